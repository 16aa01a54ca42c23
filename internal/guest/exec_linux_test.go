package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

var path = "PATH=/usr/local/bin:/usr/bin:/bin"

// both runs a test against a guest that is process 1 and one that is not.
func both(t *testing.T, test func(t *testing.T, g *guesttest.Guest)) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("first=%v", first), func(t *testing.T) {
			t.Parallel()
			g := guesttest.Start(t, first)
			if got := g.Info().First; got != first {
				t.Fatalf("First = %v", got)
			}
			test(t, g)
		})
	}
	// Supervisors that are processes of their own, as on other kinds of machines.
	t.Run("apart", func(t *testing.T) {
		t.Parallel()
		test(t, guesttest.StartCommand(t, false, guesttest.Build(t), "--init", "--init-apart"))
	})
}

type result struct {
	guest.Exit
	out, err string
}

func sh(t *testing.T, g *guesttest.Guest, script string, change ...func(*guest.ExecRequest)) result {
	t.Helper()
	r, err := trySh(t.Context(), g, script, change...)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return r
}

func trySh(ctx context.Context, g *guesttest.Guest, script string, change ...func(*guest.ExecRequest)) (result, error) {
	var out, errs bytes.Buffer
	req := guest.ExecRequest{Argv: []string{"sh", "-c", script}, Dir: "/", Env: []string{path}, Stdout: &out, Stderr: &errs}
	for _, f := range change {
		f(&req)
	}
	x, err := g.Exec(ctx, req)
	return result{x, out.String(), errs.String()}, err
}

func env(v ...string) func(*guest.ExecRequest) {
	return func(r *guest.ExecRequest) { r.Env = append(r.Env, v...) }
}

func TestExecBasics(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		dir := t.TempDir()
		tests := []struct {
			name   string
			req    guest.ExecRequest
			code   int
			signal string
			out    string
			err    string
		}{
			{"streams apart", guest.ExecRequest{Argv: []string{"sh", "-c", "echo a; echo b >&2; echo c"}}, 0, "", "a\nc\n", "b\n"},
			{"exit code", guest.ExecRequest{Argv: []string{"sh", "-c", "exit 124"}}, 124, "", "", ""},
			{"signal", guest.ExecRequest{Argv: []string{"sh", "-c", "kill -SEGV $$"}}, 139, "SIGSEGV", "", ""},
			{"no stdin is empty", guest.ExecRequest{Argv: []string{"cat"}}, 0, "", "", ""},
			{"stdin", guest.ExecRequest{Argv: []string{"cat"}, Stdin: strings.NewReader("in")}, 0, "", "in", ""},
			{"dir", guest.ExecRequest{Argv: []string{"pwd"}, Dir: dir}, 0, "", dir + "\n", ""},
			{"env is complete", guest.ExecRequest{Argv: []string{"/usr/bin/env"}, Env: []string{"A=\xff b"}}, 0, "", "A=\xff b\n", ""},
			{"odd arguments", guest.ExecRequest{Argv: []string{"printf", "%s|", "", "$(touch x)", ";rm", "-rf", "\xff\n"}}, 0, "", "|$(touch x)|;rm|-rf|\xff\n|", ""},
			{"missing program", guest.ExecRequest{Argv: []string{"no-such-program"}}, 127, "", "", "no-such-program: not found\n"},
			{"missing file", guest.ExecRequest{Argv: []string{"./no-such"}}, 127, "", "", "./no-such: not found\n"},
			{"not executable", guest.ExecRequest{Argv: []string{"/etc/passwd"}}, 126, "", "", "/etc/passwd: permission denied\n"},
			{"directory", guest.ExecRequest{Argv: []string{"/etc"}}, 126, "", "", "/etc: permission denied\n"},
			{"relative PATH", guest.ExecRequest{Argv: []string{"passwd-less-tool"}, Dir: "/", Env: []string{"PATH=no/such:."}}, 127, "", "", "passwd-less-tool: not found\n"},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				var out, errs bytes.Buffer
				req := tt.req
				if req.Env == nil {
					req.Env = []string{path}
				}
				req.Stdout, req.Stderr = &out, &errs
				x, err := g.Exec(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if x.Code != tt.code || x.Signal != tt.signal || x.OOM || out.String() != tt.out || errs.String() != tt.err {
					t.Errorf("got %+v %q %q", x, out.String(), errs.String())
				}
			})
		}
	})
}

func TestExecPathIsRelativeToDir(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "tool"), []byte("#!/bin/sh\necho here $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := g.Exec(t.Context(), guest.ExecRequest{Argv: []string{"tool"}, Dir: dir, Env: []string{"PATH=bin:/bin"}, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "here ") {
		t.Errorf("out = %q", out.String())
	}
}

func TestExecRefusals(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		req  guest.ExecRequest
		code string
	}{
		{"no program", guest.ExecRequest{}, "bad-command"},
		{"NUL", guest.ExecRequest{Argv: []string{"a\x00b"}}, "bad-command"},
		{"missing dir", guest.ExecRequest{Argv: []string{"true"}, Dir: filepath.Join(dir, "no")}, guest.CodeNoDir},
		{"missing dir and program", guest.ExecRequest{Argv: []string{"no-such-program"}, Dir: filepath.Join(dir, "no")}, guest.CodeNoDir},
		{"dir is a file", guest.ExecRequest{Argv: []string{"true"}, Dir: filepath.Join(dir, "f")}, guest.CodeNoDir},
		{"long argument", guest.ExecRequest{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, guest.CodeArgsTooLong},
		{"long arguments", guest.ExecRequest{Argv: append([]string{"true"}, strings.Split(strings.Repeat("x ", 3<<20), " ")...)}, guest.CodeArgsTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.req.Env = []string{path}
			x, err := g.Exec(t.Context(), tt.req)
			if fault.CodeOf(err) != tt.code {
				t.Errorf("got %+v, %v (%s), want %s", x, err, fault.CodeOf(err), tt.code)
			}
		})
	}
	t.Run("dir closed to the user", func(t *testing.T) {
		guesttest.Require(t, "root", os.Getuid() == 0, "switching users")
		_, err := g.Exec(t.Context(), guest.ExecRequest{Argv: []string{"true"}, Dir: closed, Env: []string{path}, UID: 12345, GID: 12345})
		if fault.CodeOf(err) != guest.CodeNoDir || !strings.Contains(err.Error(), closed) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestExecIdentity(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		guesttest.Require(t, "root", os.Getuid() == 0, "switching users")
		user := func(nnp bool) func(*guest.ExecRequest) {
			return func(r *guest.ExecRequest) {
				r.UID, r.GID, r.Groups, r.NoNewPrivs = 12345, 23456, []uint32{7, 8}, nnp
			}
		}
		r := sh(t, g, "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$", user(false))
		lines := strings.Split(r.out, "\n")
		want := []string{"12345", "23456", "23456 7 8", "NoNewPrivs:\t0", "4"}
		if len(lines) < 7 || strings.Join(lines[:5], ",") != strings.Join(want, ",") || lines[5] != lines[6] {
			t.Errorf("out = %q", r.out)
		}
		if r := sh(t, g, "grep NoNewPrivs /proc/self/status", user(true)); r.out != "NoNewPrivs:\t1\n" {
			t.Errorf("out = %q", r.out)
		}
	})
}

func TestExecExitCodeEachTime(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		for i := range 200 {
			if r := sh(t, g, "exit 7"); r.Code != 7 {
				t.Fatalf("run %d: %+v", i, r)
			}
		}
	})
}

func TestExecBackgroundSurvives(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		beat := filepath.Join(t.TempDir(), "beat")
		// The child holds the output and writes to it for ever: it must neither
		// hold up the call nor die of a broken pipe.
		r := sh(t, g, `(while :; do echo noise; echo x >> "$BEAT"; sleep 0.01; done) & echo up $!`, env("BEAT="+beat))
		if r.Code != 0 || !strings.Contains(r.out, "up ") {
			t.Fatalf("got %+v", r)
		}
		size := func() int64 {
			st, err := os.Stat(beat)
			if err != nil {
				return 0
			}
			return st.Size()
		}
		for start := size(); size() < start+20; {
			sh(t, g, "sleep 0.02") // time passes in the sandbox
		}
		ps, err := g.Processes(t.Context())
		if err != nil || len(ps) == 0 {
			t.Fatalf("processes: %v, %v", ps, err)
		}
		if n, err := g.EndProcesses(t.Context()); err != nil || n == 0 {
			t.Fatalf("end: %d, %v", n, err)
		}
		if ps, err := g.Processes(t.Context()); err != nil || len(ps) != 0 {
			t.Fatalf("left: %v, %v", ps, err)
		}
	})
}

func TestExecLeaderOutputIsWhole(t *testing.T) {
	g := guesttest.Start(t, false)
	for range 20 {
		// The holder keeps the pipe open, so the end of the output is known from
		// the leader's end alone.
		r := sh(t, g, "sleep 30 & head -c 60000 /dev/zero; echo end")
		if len(r.out) != 60004 || !strings.HasSuffix(r.out, "end\n") {
			t.Fatalf("%d bytes", len(r.out))
		}
	}
	if _, err := g.EndProcesses(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestExecBigOutputs(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		var out, errs count
		x, err := g.Exec(t.Context(), guest.ExecRequest{
			Argv:   []string{"sh", "-c", "head -c 50000000 /dev/zero & head -c 50000000 /dev/zero >&2; wait"},
			Env:    []string{path},
			Stdout: &out, Stderr: &errs,
		})
		if err != nil || x.Code != 0 || out != 50e6 || errs != 50e6 {
			t.Errorf("got %+v, %v, %d, %d", x, err, out, errs)
		}
	})
}

type count int

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}

func TestExecBigInput(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		r := sh(t, g, "sha256sum; echo done", func(r *guest.ExecRequest) { r.Stdin = bytes.NewReader(in) })
		want, err := exec.Command("sh", "-c", "yes 0123456789abcdef | tr -d '\\n' | head -c 1048576 | sha256sum; echo done").Output()
		if err != nil || r.out != string(want) {
			t.Errorf("got %q, want %q (%v)", r.out, want, err)
		}
		// A command that does not read its input ends all the same.
		if r := sh(t, g, "exit 3", func(r *guest.ExecRequest) { r.Stdin = bytes.NewReader(in) }); r.Code != 3 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestExecInputFailureIsAnError(t *testing.T) {
	g := guesttest.Start(t, false)
	boom := errors.New("boom")
	r, err := trySh(t.Context(), g, "cat", func(r *guest.ExecRequest) { r.Stdin = io.MultiReader(strings.NewReader("part"), errReader{boom}) })
	if !errors.Is(err, boom) || r.out != "part" {
		t.Errorf("got %+v, %v", r, err)
	}
	_, err = trySh(t.Context(), g, "echo x", func(r *guest.ExecRequest) { r.Stdout = errWriter{boom} })
	if !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

type errWriter struct{ err error }

func (e errWriter) Write([]byte) (int, error) { return 0, e.err }

// after is a writer that calls f when it has seen want.
type after struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	want string
	f    func()
	once sync.Once
}

func (a *after) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buf.Write(p)
	if strings.Contains(a.buf.String(), a.want) {
		a.once.Do(a.f)
	}
	return len(p), nil
}

func TestExecCancelKillsTheTree(t *testing.T) {
	script, err := os.ReadFile("testdata/hang.sh")
	if err != nil {
		t.Fatal(err)
	}
	both(t, func(t *testing.T, g *guesttest.Guest) {
		for _, grace := range []time.Duration{0, 20 * time.Millisecond} {
			beat := filepath.Join(t.TempDir(), "beat")
			mark := fmt.Sprintf("MARK=%s-%d-%d", t.Name(), grace, os.Getpid())
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			out := &after{want: "started", f: func() { cancel(why) }}
			r, err := trySh(ctx, g, string(script), env("HB="+beat, mark), func(r *guest.ExecRequest) { r.Stdout, r.Grace = out, grace })
			if !errors.Is(err, why) || errors.Is(err, guest.ErrUnproven) {
				t.Fatalf("got %+v, %v", r, err)
			}
			if out.buf.String() != "started\n" {
				t.Errorf("output before the end: %q", out.buf.String())
			}
			if left := marked(t, mark); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if ps, err := g.Processes(t.Context()); err != nil || len(ps) > 0 {
				t.Errorf("left: %v, %v", ps, err)
			}
		}
	})
}

// marked lists live processes of this machine that have an environment entry.
func marked(t *testing.T, entry string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/environ") // a zombie has none
		if err == nil && strings.Contains("\x00"+string(b), "\x00"+entry+"\x00") {
			found = append(found, d)
		}
	}
	return found
}

func TestExecCancelLeavesOthersAlone(t *testing.T) {
	g := guesttest.Start(t, false)
	sh(t, g, "sleep 1000 & sleep 1000 &")
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := trySh(ctx, g, "echo x; sleep 1000", func(r *guest.ExecRequest) { r.Stdout = &after{want: "x", f: cancel} }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if ps, err := g.Processes(t.Context()); err != nil || len(ps) != 2 {
		t.Errorf("left: %v, %v", ps, err)
	}
}

func TestExecForkingTreeEnds(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "process namespaces need root")
	_, noPerl := exec.LookPath("perl")
	guesttest.Require(t, "perl", noPerl == nil, "a shell forks too slowly")
	g := guesttest.Start(t, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Chains in which each process forks the next and exits: no list of pids is
	// ever up to date.
	_, err := trySh(ctx, g, `for i in 1 2 3 4; do perl -e 'for (;;) { exit if fork }' & done; sleep 0.2; echo go; sleep 1000`, func(r *guest.ExecRequest) { r.Stdout = &after{want: "go", f: cancel} })
	if !errors.Is(err, context.Canceled) || errors.Is(err, guest.ErrUnproven) {
		t.Fatal(err)
	}
	if ps, err := g.Processes(t.Context()); err != nil || len(ps) > 0 {
		t.Errorf("left: %v, %v", ps, err)
	}
}

func TestExecSupervisorKilled(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		// The wait is for the supervisor to report the start: one that dies before
		// makes an error of another kind.
		// The command kills its own supervisor; its exit is still seen.
		if r := sh(t, g, "sleep 0.1; kill -9 $PPID; sleep 0.05; exit 9"); r.Code != 9 {
			t.Errorf("got %+v", r)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := trySh(ctx, g, "sleep 0.1; kill -9 $PPID; echo x; sleep 1000", func(r *guest.ExecRequest) { r.Stdout = &after{want: "x", f: cancel} })
		if !errors.Is(err, context.Canceled) || !errors.Is(err, guest.ErrUnproven) {
			t.Errorf("err = %v", err)
		}
		if ps, err := g.Processes(t.Context()); err != nil || len(ps) > 0 {
			t.Errorf("left: %v, %v", ps, err)
		}
	})
}

func TestExecKnownExitWins(t *testing.T) {
	g := guesttest.Start(t, false)
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		r, err := trySh(ctx, g, "exit 5")
		cancel()
		switch {
		case err == nil && r.Code == 5:
		case errors.Is(err, context.DeadlineExceeded) && r.Exit == (guest.Exit{}) && !errors.Is(err, guest.ErrUnproven):
		default:
			t.Fatalf("run %d: %+v, %v", i, r, err)
		}
	}
}

func TestExecSlowConsumerBlocksNobody(t *testing.T) {
	g := guesttest.Start(t, false)
	release := make(chan struct{})
	stuck := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	go func() {
		_, err := g.Exec(context.Background(), guest.ExecRequest{
			Argv: []string{"head", "-c", "5000000", "/dev/zero"}, Env: []string{path},
			Stdout: writerFunc(func(p []byte) (int, error) {
				once.Do(func() { close(stuck) })
				<-release
				return len(p), nil
			}),
		})
		done <- err
	}()
	<-stuck
	for range 5 {
		if r := sh(t, g, "head -c 1000000 /dev/zero"); len(r.out) != 1e6 {
			t.Errorf("%d bytes", len(r.out))
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestExecManyAtOnce(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		var wg sync.WaitGroup
		var bad atomic.Int32
		for i := range 100 {
			wg.Go(func() {
				r, err := trySh(t.Context(), g, "cat; exit "+strconv.Itoa(i), func(r *guest.ExecRequest) { r.Stdin = strings.NewReader(strconv.Itoa(i)) })
				if err != nil || r.Code != i || r.out != strconv.Itoa(i) {
					bad.Add(1)
					t.Errorf("%d: %+v, %v", i, r, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestOrphansAreReaped(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		n := 2000
		if !g.Info().First {
			n = 200
		}
		sh(t, g, "i=0; while [ $i -lt "+strconv.Itoa(n)+" ]; do ( : & ); i=$((i+1)); done")
		// The last ones may have ended just now, so a zombie counts when it stays.
		var zombies []string
		for range 100 {
			if zombies = zombiesOf(t, g); len(zombies) == 0 {
				return
			}
		}
		t.Errorf("zombies: %q", zombies)
	})
}

func zombiesOf(t *testing.T, g *guesttest.Guest) (zombies []string) {
	r := sh(t, g, "for s in /proc/[0-9]*/stat; do read -r line < $s || continue; case \"$line\" in *') Z '*) echo \"$line\";; esac; done 2>/dev/null")
	for line := range strings.Lines(r.out) {
		// This machine may have zombies that are not the guest's.
		if f := strings.Fields(line); g.Info().First || len(f) > 3 && f[3] == strconv.Itoa(g.Info().PID) {
			zombies = append(zombies, line)
		}
	}
	return zombies
}

func TestNothingNamesTheFramework(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "process namespaces need root")
	g := guesttest.Start(t, true)
	r := sh(t, g, "for p in /proc/[0-9]*; do cat $p/comm; tr '\\0' ' ' < $p/cmdline; tr '\\0' ' ' < $p/environ; done 2>/dev/null; env", func(r *guest.ExecRequest) { r.UID, r.GID = 12345, 12345 })
	if !strings.Contains(r.out, "init") || strings.Contains(strings.ToLower(r.out), "assay") {
		t.Errorf("out = %q", r.out)
	}
}
