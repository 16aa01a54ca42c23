package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"assay/fault"
	"assay/sandbox"
)

func execPromises() []Promise {
	return []Promise{
		{"exec-exit-is-a-result", execExit},
		{"exec-signal-is-a-result", execSignal},
		{"exec-127-and-126", execNotFound},
		{"exec-argv-is-exact", execArgv},
		{"exec-env", execEnv},
		{"exec-dir", execDir},
		{"exec-no-stdin-is-empty", execNoStdin},
		{"exec-stdin-is-exact", execStdin},
		{"exec-unread-stdin-does-not-hang", execUnreadStdin},
		{"exec-streams-apart-and-in-order", execStreams},
		{"exec-output-is-bytes", execBytes},
		{"exec-large-output", execLarge},
		{"exec-parallel", execParallel},
		{"exec-user", execUser},
		{"exec-transport-failure-is-an-error", execTransport},
		{"exec-vanished-sandbox-is-unusable", execVanished},
		{"exec-view-is-neutral", execNeutral},
	}
}

func execExit(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	for _, code := range []int{0, 1, 2, 7, 77, 124, 137, 143, 255} {
		o, err := b.exec(b.ctx, sandbox.Cmd{Argv: script("exit $1", fmt.Sprint(code))})
		if err != nil || o.Code != code || o.Signal != "" || o.OOM {
			t.Errorf("exit %d gave %+v, %v", code, o.Exit, err)
		}
	}
	for range 20 {
		if o := b.argv(script("exit 7")...); o.Code != 7 {
			t.Fatalf("exit 7 gave %d", o.Code)
		}
	}
}

func execSignal(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	for _, s := range []struct {
		name string
		code int
	}{{"KILL", 137}, {"TERM", 143}} {
		o, err := b.exec(b.ctx, sandbox.Cmd{Argv: script("kill -" + s.name + " $$; sleep 60")})
		if err != nil || o.Code != s.code || o.Signal != "SIG"+s.name {
			t.Errorf("a command ended by SIG%s gave %+v, %v", s.name, o.Exit, err)
		}
	}
}

func execNotFound(t testing.TB, h Harness) {
	b := start(t, h)
	for _, name := range []string{"no-such-program-here", "/no/such/program"} {
		o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{name}})
		if err != nil || o.Code != 127 {
			t.Errorf("a missing executable %q gave %+v, %v, want exit 127", name, o.Exit, err)
		}
	}
	plain := file("plain", "#!/bin/sh\nexit 0\n")
	if err := b.d.Put(b.ctx, b.dir, tarOf(t, plain)); err != nil {
		t.Fatalf("Put: %v", err)
	}
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{b.dir + "/plain"}})
	if err != nil || o.Code != 126 {
		t.Errorf("a file without execute permission gave %+v, %v, want exit 126", o.Exit, err)
	}
}

func execArgv(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	args := []string{"a b", "", "$HOME", "`id`", "*", "a\nb", `"q'`, `\n`, ";rm", "-rf", "~", "é"}
	o := b.argv(append([]string{"printf", "<%s>"}, args...)...)
	want := ""
	for _, a := range args {
		want += "<" + a + ">"
	}
	if o.out != want {
		t.Errorf("arguments arrived as %q, want %q", o.out, want)
	}
}

func execEnv(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	o, err := b.exec(b.ctx, sandbox.Cmd{
		Argv: script(`printf '%s|%s|%s' "$ST_A" "$ST_B" "${ST_C-unset}"`),
		Env:  map[string]string{"ST_A": "a b\nc", "ST_B": "$ST_A"},
	})
	if err != nil || o.out != "a b\nc|$ST_A|unset" {
		t.Errorf("environment arrived as %q (%v)", o.out, err)
	}
	if o := b.argv(script(`printf %s "${ST_A-unset}"`)...); o.out != "unset" {
		t.Errorf("a variable of one command is %q in the next", o.out)
	}
}

func execDir(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	b.mkdir()
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: script("cat f; pwd -P"), Dir: b.dir})
	if err != nil || !strings.HasSuffix(strings.TrimSpace(o.out), b.dir[strings.LastIndex(b.dir, "/"):]) {
		t.Errorf("pwd in %s is %q (%v)", b.dir, o.out, err)
	}
	if o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"true"}, Dir: b.dir + "/missing"}); err == nil {
		t.Errorf("a missing directory gave %+v and no error", o.Exit)
	}
}

func execNoStdin(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	if o := b.argv("cat"); o.Code != 0 || o.out != "" {
		t.Errorf("cat without input gave %+v, %q", o.Exit, o.out)
	}
}

// noise is deterministic content that does not compress.
func noise(n int) []byte {
	out := make([]byte, 0, n+sha256.Size)
	sum := sha256.Sum256([]byte("seed"))
	for len(out) < n {
		sum = sha256.Sum256(sum[:])
		out = append(out, sum[:]...)
	}
	return out[:n]
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func execStdin(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	in := noise(1 << 20)
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"sha256sum"}, Stdin: bytes.NewReader(in)})
	if err != nil || !strings.HasPrefix(o.out, digest(in)) {
		t.Errorf("1 MiB of input has the digest %.70q inside, want %s (%v)", o.out, digest(in), err)
	}
	// Output is read to the end although input ended long before.
	o, err = b.exec(b.ctx, sandbox.Cmd{Argv: script("cat; echo end"), Stdin: strings.NewReader("in\n")})
	if err != nil || o.out != "in\nend\n" {
		t.Errorf("input then output gave %q, %v", o.out, err)
	}
}

func execUnreadStdin(t testing.TB, h Harness) {
	b := start(t, h)
	pr, pw := io.Pipe() // never delivers anything
	t.Cleanup(func() { pw.Close() })
	if o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"true"}, Stdin: pr}); err != nil || o.Code != 0 {
		t.Errorf("a command that leaves its input alone gave %+v, %v", o.Exit, err)
	}
	if o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"true"}, Stdin: bytes.NewReader(noise(1 << 20))}); err != nil || o.Code != 0 {
		t.Errorf("a command that leaves 1 MiB of input alone gave %+v, %v", o.Exit, err)
	}
}

func execStreams(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	o := b.argv(script(`i=0; while [ $i -lt 300 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done; exit 3`)...)
	var wantOut, wantErr strings.Builder
	for i := range 300 {
		fmt.Fprintf(&wantOut, "o%d\n", i)
		fmt.Fprintf(&wantErr, "e%d\n", i)
	}
	if o.Code != 3 || o.out != wantOut.String() || o.err != wantErr.String() {
		t.Errorf("exit %d; stdout complete %v, stderr complete %v", o.Code, o.out == wantOut.String(), o.err == wantErr.String())
	}
}

func execBytes(t testing.TB, h Harness) {
	b := start(t, h)
	in := append(noise(4096), []byte("\x00\x01\x02\xff\xfe\r\n\x1b[31mé")...)
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"cat"}, Stdin: &dribble{in}})
	if err != nil || o.out != string(in) {
		t.Errorf("%d bytes came back as %d other bytes (%v)", len(in), len(o.out), err)
	}
}

// dribble delivers a few bytes at a time.
type dribble struct{ rest []byte }

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 7)], d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func execLarge(t testing.TB, h Harness) {
	needShell(t, h)
	n := h.LargeOutput
	if n == 0 {
		n = 50 << 20
	}
	b := start(t, h)
	var out, errb sink
	o, err := b.exec(b.ctx, sandbox.Cmd{
		Argv:   script(`head -c $1 /dev/zero >&2 & head -c $1 /dev/zero; wait`, fmt.Sprint(n)),
		Stdout: &out, Stderr: &errb,
	})
	if err != nil || o.Code != 0 || out.n != int64(n) || errb.n != int64(n) {
		t.Errorf("%d bytes on each stream gave %d and %d, %+v, %v", n, out.n, errb.n, o.Exit, err)
	}
}

func execParallel(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			o, err := b.exec(b.ctx, sandbox.Cmd{Argv: script(`cat; echo "$ST_N"; exit $ST_N`), Env: map[string]string{"ST_N": fmt.Sprint(i)}, Stdin: strings.NewReader("in ")})
			if want := fmt.Sprintf("in %d\n", i); err != nil || o.Code != i || o.out != want {
				errs[i] = fmt.Errorf("command %d gave exit %d, %q, %v", i, o.Code, o.out, err)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func execUser(t testing.TB, h Harness) {
	b := start(t, h)
	refused := func(user string) {
		t.Helper()
		o, err := b.d.Exec(b.ctx, b.cmdAs(sandbox.Cmd{Argv: []string{"true"}, User: user}))
		if err == nil {
			t.Errorf("the user %q gave %+v and no error", user, o)
		} else if fault.CodeOf(err) == "" {
			t.Errorf("the refusal of user %q has no code: %v", user, err)
		}
	}
	switch h.Provider.Info().Users {
	case sandbox.UsersNone:
		refused("root")
		refused("nobody-here")
		return
	case sandbox.UsersRoot:
		refused("nobody-here")
	}
	needShell(t, h)
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"id", "-u"}, User: "root"})
	if err != nil || strings.TrimSpace(o.out) != "0" {
		t.Errorf("id -u as root is %q, %v", o.out, err)
	}
	if h.Provider.Info().Users != sandbox.UsersAny {
		return
	}
	refused("nobody-here")
	if h.User == "" {
		return
	}
	uid := strings.TrimSpace(b.sh(`id -u "$1"`, h.User))
	if o, err := b.exec(b.ctx, sandbox.Cmd{Argv: []string{"id", "-u"}, User: h.User}); err != nil || strings.TrimSpace(o.out) != uid {
		t.Errorf("id -u as %s is %q, want %s (%v)", h.User, o.out, uid, err)
	}
	o, err = b.exec(b.ctx, sandbox.Cmd{Argv: script(`printf %s "$HOME"; : >"$HOME/.st" && rm "$HOME/.st"`), User: h.User})
	if err != nil || o.Code != 0 || !strings.HasPrefix(o.out, "/") {
		t.Errorf("HOME of %s is %q and not writable: %+v, %q, %v", h.User, o.out, o.Exit, o.err, err)
	}
}

// cmdAs completes a command whose user Environ may not know.
func (b *box) cmdAs(c sandbox.Cmd) sandbox.Cmd {
	user := c.User
	c.User = ""
	c = b.cmd(c)
	c.User = user
	return c
}

func execTransport(t testing.TB, h Harness) {
	b := broken(t, h, ExecFails)
	o, err := b.d.Exec(b.ctx, b.cmdAs(sandbox.Cmd{Argv: []string{"true"}}))
	if err == nil {
		t.Fatalf("a broken transport gave %+v and no error", o)
	}
	if b.ctx.Err() != nil {
		t.Errorf("the broken transport was only noticed by the test's own limit: %v", err)
	}
}

func execVanished(t testing.TB, h Harness) {
	b := broken(t, h, Vanishes)
	_, err := b.d.Exec(b.ctx, sandbox.Cmd{Argv: []string{"true"}, Dir: b.d.Workdir(), Env: map[string]string{"PATH": plainPath}})
	if !errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("a command in a sandbox that is gone: %v, want an error that matches ErrUnusable", err)
	}
	if err := b.d.Get(context.WithoutCancel(b.ctx), b.d.Workdir(), io.Discard); err == nil || isMissing(err) {
		t.Errorf("a read from a sandbox that is gone: %v, want an error that is not \"does not exist\"", err)
	}
	if r, ok := sandbox.AsDriver[sandbox.Reporter](b.d); ok && r.Health(b.ctx) == nil {
		t.Error("Health says that a sandbox that is gone runs")
	}
}

func execNeutral(t testing.TB, h Harness) {
	if h.HostView {
		t.Skip("commands see the host's own environment")
	}
	needShell(t, h)
	b := start(t, h)
	view := b.sh(`env; pwd; ls -a .; ls -a /tmp; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; true`)
	if i := strings.Index(strings.ToLower(view), "assay"); i >= 0 {
		t.Errorf("a command can see who runs it: %q", view[max(0, i-80):min(len(view), i+80)])
	}
	if left := strings.Fields(b.sh(`ls -A "$1"`, b.d.Workdir())); slices.Contains(left, ".git") {
		t.Errorf("the workdir holds files that nobody asked for: %q", left)
	}
}
