package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/redact"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, s fake.Script, o sandbox.Options) (*fake.Provider, *sandbox.Sandbox) {
	t.Helper()
	p := fake.New(s)
	d, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(context.Background()) })
	o.Provider = p
	return p, sandbox.New(d, o)
}

func TestOutputKeepsHeadAndTail(t *testing.T) {
	for _, c := range []struct {
		limit, writes, size int
	}{{10, 1, 3}, {10, 1, 10}, {10, 1, 11}, {10, 7, 3}, {10, 1, 100}, {11, 13, 7}, {2, 5, 1}, {1 << 10, 100, 77}, {0, 4, 1}} {
		o := sandbox.NewOutput(c.limit)
		var all []byte
		for i := range c.writes {
			b := bytes.Repeat([]byte{byte('a' + i%26)}, c.size)
			all = append(all, b...)
			if n, err := o.Write(b); n != len(b) || err != nil {
				t.Fatalf("Write gave %d, %v", n, err)
			}
		}
		half := max(c.limit, 2) / 2
		want := string(all)
		dropped := int64(0)
		if len(all) > 2*half {
			dropped = int64(len(all) - 2*half)
			want = string(all[:half]) + fmt.Sprintf("\n[%d bytes dropped]\n", dropped) + string(all[len(all)-half:])
		}
		if o.String() != want || o.Dropped() != dropped || o.Total() != int64(len(all)) {
			t.Errorf("limit %d, %d writes of %d: %q, dropped %d; want %q, %d", c.limit, c.writes, c.size, o.String(), o.Dropped(), want, dropped)
		}
	}
}

func TestCleanAndSummary(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                      "plain",
		"a\tb\n c":                   "a b c",
		"\x1b[31mred\x1b[0m":         "red",
		"\x1b]0;title\x07after":      "after",
		"\x1b]8;;http://x\x1b\\link": "link",
		"a\x07\x08b\x7f":             "ab",
		"\u202eevil\u202c":           "evil",
		"bad\xff":                    "bad\ufffd",
		"\x1b":                       "",
		"\x1b[":                      "",
		"\u009b31mx":                 "x",
	} {
		if got := sandbox.Clean(in); got != want {
			t.Errorf("Clean(%q) is %q, want %q", in, got, want)
		}
	}
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"ls", "-l"}, "ls -l"},
		{[]string{"echo", "a b", "", "it's"}, `echo 'a b' '' 'it'\''s'`},
		{[]string{"sh", "-c", "x\ny"}, "sh -c 'x y'"},
	} {
		if got := sandbox.Summary(c.argv); got != c.want {
			t.Errorf("Summary(%q) is %q, want %q", c.argv, got, c.want)
		}
	}
	if n := len([]rune(sandbox.Summary([]string{strings.Repeat("é", 500)}))); n != 160 {
		t.Errorf("a long summary has %d characters", n)
	}
	if got := sandbox.Tail(strings.Repeat("x", 5000)+" end", 10); len([]rune(got)) != 10 || !strings.HasSuffix(got, " end") || !strings.HasPrefix(got, "…") {
		t.Errorf("Tail is %q", got)
	}
}

func TestJudge(t *testing.T) {
	p := &sandbox.Func{Judge: func(err error) fault.Class {
		if errors.Is(err, io.ErrClosedPipe) {
			return fault.Transient
		}
		return fault.Unknown
	}}
	live := t.Context()
	timed, cancel := fault.WithTimeout(live, "attempt-deadline", time.Nanosecond, "eval")
	defer cancel()
	<-timed.Done()
	stopped, stop := context.WithCancelCause(live)
	stop(&fault.Error{Code: "interrupted"})
	config := fault.Configf("x", "do y", "z")
	for _, c := range []struct {
		name  string
		ctx   context.Context
		err   error
		class fault.Class
		code  string
	}{
		{"the provider's own", live, io.ErrClosedPipe, fault.Transient, ""},
		{"foreign", live, errors.New("x"), fault.Unknown, ""},
		{"judged before", live, config, fault.Config, "x"},
		{"judged before and wrapped", live, fmt.Errorf("w: %w", config), fault.Config, "x"},
		{"our limit", timed, io.ErrClosedPipe, fault.Canceled, "attempt-deadline"},
		{"our cancellation", stopped, config, fault.Canceled, "interrupted"},
		{"a bare context error", live, context.Canceled, fault.Unknown, ""},
	} {
		j := sandbox.Judge(c.ctx, p, c.err)
		if j.Class != c.class || j.Code != c.code || !errors.Is(j, c.err) {
			t.Errorf("%s: class %v, code %q, %v", c.name, j.Class, j.Code, j)
		}
	}
	if sandbox.Judge(live, p, nil) != nil {
		t.Error("nil has a judgement")
	}
}

func TestLayerIsImmutable(t *testing.T) {
	p := fake.New(fake.Script{})
	base := p.Layer().Env(map[string]string{"A": "1"}).Path("/one").User("u")
	for range 3 { // a chain with room for one more, as append leaves it
		base = base.Prepare(sandbox.Command{Shell: "base"})
	}
	left := base.Env(map[string]string{"A": "2", "B": "3"}).Path("/left").Prepare(sandbox.Command{Shell: "left"})
	right := base.Path("/right").Prepare(sandbox.Command{Shell: "right"}).Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil })
	if got := base.Settings(); got.Env["A"] != "1" || len(got.Env) != 1 || len(got.Path) != 1 {
		t.Errorf("the base changed: %+v", got)
	}
	if l, r := left.PrepareSteps(), right.PrepareSteps(); len(l) != 4 || len(r) != 4 || l[3].Label() != "left" || r[3].Label() != "right" {
		t.Errorf("two layers share a chain: %v, %v", l, r)
	}
	if len(base.SetupSteps()) != 0 || len(right.SetupSteps()) != 1 || right.SetupSteps()[0].Label() != "hook" {
		t.Error("the set-up chains are wrong")
	}
	base.Settings().Env["A"] = "changed"
	if base.Settings().Env["A"] != "1" {
		t.Error("Settings hands out the layer's own map")
	}
	if _, ok := base.Template(); !ok || !sandbox.NewLayer().IsZero() || base.IsZero() {
		t.Error("templates or emptiness are wrong")
	}
	if _, ok := sandbox.NewLayer().User("x").Template(); ok {
		t.Error("a command-only layer has a template")
	}
}

func TestStateIsPerSandbox(t *testing.T) {
	_, a := open(t, fake.Script{}, sandbox.Options{})
	_, b := open(t, fake.Script{}, sandbox.Options{})
	var port, name sandbox.State[int]
	port.Set(a, 1)
	name.Set(a, 2)
	if v, ok := port.Get(a); v != 1 || !ok {
		t.Errorf("got %v, %v", v, ok)
	}
	if _, ok := port.Get(b); ok {
		t.Error("the state of one sandbox shows in another")
	}
	port.Delete(a)
	if _, ok := port.Get(a); ok {
		t.Error("a deleted state is there")
	}
	if v, _ := name.Get(a); v != 2 {
		t.Errorf("another state is %d", v)
	}
}

func TestEvidence(t *testing.T) {
	var seen []sandbox.CommandRecord
	_, s := open(t, fake.Script{}, sandbox.Options{
		Redactor: redact.New("hunter2-secret"), Observe: func(r sandbox.CommandRecord) { seen = append(seen, r) },
	})
	ctx := t.Context()
	_, _ = s.RunShell(ctx, "echo hunter2-secret; exit 0")
	_, _ = s.RunShell(ctx, "echo hunter2-secret other-secret; exit 3", sandbox.CommandOptions{Env: map[string]string{"TOKEN": "other-secret"}, Sensitive: []string{"other-secret"}})
	_, err := s.RunShellOrThrow(ctx, "echo hunter2-secret >&2; exit 4")
	_, _ = s.RunShell(ctx, "sleep 100", sandbox.CommandOptions{Timeout: time.Millisecond})
	if len(seen) != 4 {
		t.Fatalf("%d records", len(seen))
	}
	for i, want := range []string{"ok", "observed", "failed", "error"} {
		if seen[i].Outcome != want {
			t.Errorf("record %d is %q, want %q", i, seen[i].Outcome, want)
		}
		if all := fmt.Sprintf("%+v", seen[i]); strings.Contains(all, "hunter2") || strings.Contains(all, "other-secret") {
			t.Errorf("record %d holds a secret: %s", i, all)
		}
	}
	if strings.Contains(err.Error(), "hunter2") || fault.CodeOf(err) != "command-exit" {
		t.Errorf("the error is %v", err)
	}
	if seen[0].Stdout != "" || !strings.Contains(seen[1].Stdout, "<redacted>") || seen[1].EnvKeys[0] != "TOKEN" || seen[3].Exit != nil || *seen[2].Exit != 4 {
		t.Errorf("records are %+v", seen)
	}
}

func TestCommandsAreNeverRepeated(t *testing.T) {
	p, s := open(t, fake.Script{Faults: fake.Faults{Exec: fake.Fault{Transient: 5}}}, sandbox.Options{})
	if _, err := s.RunCommand(t.Context(), []string{"true"}); fault.ClassOf(err) != fault.Transient {
		t.Errorf("got %v", err)
	}
	if n := p.Stats().Execs; n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

func TestFileOperationsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault fake.Fault
		tries int
		class fault.Class
	}{
		{"twice", fake.Fault{Transient: 2}, 3, fault.Unknown},
		{"for ever", fake.Fault{Transient: 99}, 3, fault.Transient},
		{"a configuration", fake.Fault{Config: "no"}, 1, fault.Config},
		{"unjudged", fake.Fault{Fail: 1}, 1, fault.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s := open(t, fake.Script{Files: map[string]string{"f": "1"}, Faults: fake.Faults{Get: c.fault}}, sandbox.Options{})
				got, err := s.ReadText(t.Context(), "f")
				if n := p.Stats().Gets; n != c.tries || fault.ClassOf(err) != c.class || err == nil && got != "1" {
					t.Errorf("%d tries, %q, %v", n, got, err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		p, s := open(t, fake.Script{Faults: fake.Faults{Get: fake.Fault{Transient: 99}}}, sandbox.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := s.ReadText(ctx, "f"); fault.ClassOf(err) != fault.Canceled || p.Stats().Gets != 1 {
			t.Errorf("a cancelled repetition gave %v after %d tries", err, p.Stats().Gets)
		}
	})
}

func TestUnusableStays(t *testing.T) {
	p, s := open(t, fake.Script{}, sandbox.Options{})
	p.Vanish(s.ID())
	if _, err := s.RunCommand(t.Context(), []string{"true"}); !errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("got %v", err)
	}
	n := p.Stats()
	if _, err := s.ReadText(t.Context(), "f"); !errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != "sandbox-unusable" {
		t.Errorf("got %v", err)
	}
	if p.Stats() != n {
		t.Error("the driver of an unusable sandbox was asked again")
	}
}

func TestConfine(t *testing.T) {
	outer := t.TempDir()
	root := filepath.Join(outer, "project")
	for _, d := range []string{root + "/in", outer + "/project-evil", outer + "/out"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../out", root+"/link"), os.Symlink("in", root+"/inner")); err != nil {
		t.Fatal(err)
	}
	for p, code := range map[string]string{
		root: "", root + "/in": "", root + "/inner": "", root + "/link": "path-escapes", outer + "/project-evil": "path-escapes", root + "/../out": "path-escapes",
	} {
		if err := sandbox.Confine(root, p); fault.CodeOf(err) != code {
			t.Errorf("%s: %v, want code %q", p, err, code)
		}
	}
	if err := sandbox.Confine(root, root+"/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing path: %v", err)
	}
	_, s := open(t, fake.Script{}, sandbox.Options{HostDir: root, HostRoot: root})
	if err := s.UploadDirectory(t.Context(), "link", "x"); fault.CodeOf(err) != "path-escapes" {
		t.Errorf("an upload through a link: %v", err)
	}
	if err := sandbox.Confine("", "/anything"); err != nil {
		t.Errorf("no root confines: %v", err)
	}
}

func TestFunc(t *testing.T) {
	calls := 0
	f := &sandbox.Func{Name: "mine", Revision: "1", Make: func(_ context.Context, o sandbox.FuncOptions) (sandbox.Driver, error) {
		calls++
		return nil, fmt.Errorf("runtime %s, limit %v", o.Runtime, o.Timeout)
	}, Runtime: "node24"}
	if err := f.Check(t.Context()); err != nil || (&sandbox.Func{}).Check(t.Context()) == nil {
		t.Errorf("Check: %v", err)
	}
	if i := f.Info(); i.Concurrency != 5 || i.RetryCreate || i.Keep || i.Reuse {
		t.Errorf("Info is %+v", i)
	}
	a, _ := f.Key(t.Context(), sandbox.Template{}, sandbox.Harness{})
	f.Revision = "2"
	if b, _ := f.Key(t.Context(), sandbox.Template{}, sandbox.Harness{}); a == b {
		t.Error("the revision does not change the key")
	}
	if _, err := f.Create(t.Context(), sandbox.CreateRequest{Timeout: time.Second}); err == nil || err.Error() != "runtime node24, limit 1s" || calls != 1 {
		t.Errorf("Create gave %v after %d calls", err, calls)
	}
}

func TestShellIsFoundOnce(t *testing.T) {
	p, s := open(t, fake.Script{}, sandbox.Options{})
	shell, err := s.Shell(t.Context())
	if err != nil || shell[0] != "/bin/bash" {
		t.Fatalf("got %q, %v", shell, err)
	}
	if _, err := s.RunShell(t.Context(), "mkdir -p bin; printf '#!/bin/sh\necho planted' >bin/bash; chmod +x bin/bash"); err != nil {
		t.Fatal(err)
	}
	r, err := s.RunShell(t.Context(), "echo real")
	if err != nil || r.Stdout != "real\n" {
		t.Errorf("got %q, %v", r.Stdout, err)
	}
	_ = p
}

func TestCheckpointErrors(t *testing.T) {
	_, s := open(t, fake.Script{Files: map[string]string{"f": "1"}}, sandbox.Options{})
	saved, err := sandbox.CreateCheckpoint(t.Context(), s, []string{"f"})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"cut": saved[:700], "noise": []byte(strings.Repeat("noise", 300))} {
		if err := sandbox.RestoreCheckpoint(t.Context(), s, b); fault.CodeOf(err) != "checkpoint-invalid" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A script that is too long for argv travels as a file, which goes away however
// the script ends.
func TestLongScriptsLeaveNoFile(t *testing.T) {
	_, s := open(t, fake.Script{}, sandbox.Options{})
	pad := strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 1200)
	for script, code := range map[string]int{pad + "echo a": 0, pad + "exit 3": 3, pad + "false": 1} {
		res, err := s.RunShell(t.Context(), script)
		if err != nil || res.Code != code {
			t.Errorf("exit %d, want %d: %v %s", res.Code, code, err, res.Stderr)
		}
	}
	res, err := s.RunCommand(t.Context(), []string{"ls", "-a", "/tmp"})
	if err != nil || strings.Contains(res.Stdout, "script") {
		t.Errorf("/tmp holds %q: %v", res.Stdout, err)
	}
}
