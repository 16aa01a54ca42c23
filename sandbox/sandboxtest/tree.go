package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"assay/ref"
	"assay/sandbox"
)

func treePromises() []Promise {
	return []Promise{
		{"exec-background-does-not-hang", backgroundReturns},
		{"exec-background-survives", backgroundSurvives},
		{"exec-timeout-is-an-error", timeoutIsError},
		{"exec-cancel-is-an-error", cancelIsError},
		{"exec-cancel-ends-the-tree", cancelEndsTree},
		{"exec-known-status-wins", statusWins},
		{"exec-writers-are-quiet-afterwards", writersQuiet},
	}
}

func mark() string { return "m" + ref.New() }

func backgroundReturns(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	// The child holds both pipes for longer than the test may take.
	o := b.argv(script(`sleep 600 & echo up; echo err >&2`)...)
	if o.Code != 0 || o.out != "up\n" || o.err != "err\n" {
		t.Errorf("a command that starts a service gave %+v, %q, %q", o.Exit, o.out, o.err)
	}
}

func backgroundSurvives(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	b.mkdir()
	m := mark()
	o, err := b.exec(b.ctx, sandbox.Cmd{
		Argv: script(`(while :; do echo x >>"$1/hb"; sleep 0.05; done) & echo up`, b.dir),
		Env:  map[string]string{"ST_MARK": m},
	})
	if err != nil || o.out != "up\n" {
		t.Fatalf("start a service: %+v, %q, %v", o.Exit, o.out, err)
	}
	b.await(`[ -s "$1/hb" ]`, b.dir)
	if n := b.marked(m); n == 0 {
		t.Fatal("the service ended with the command that started it")
	}
	// It still works: it appends to a file that is emptied now.
	b.sh(`: >"$1/hb"`, b.dir)
	b.await(`[ -s "$1/hb" ]`, b.dir)
}

func timeoutIsError(t testing.TB, h Harness) {
	b := start(t, h)
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	o, err := b.exec(ctx, sandbox.Cmd{Argv: script(`echo before; sleep 300`)})
	if err == nil {
		t.Fatalf("a command that was cut by its limit gave %+v and no error", o.Exit)
	}
	if o.Code != 0 || o.Signal != "" {
		t.Errorf("a limit was reported as an exit: %+v, %v", o.Exit, err)
	}
	if o.out != "before\n" && !h.NoShell {
		t.Errorf("output from before the limit is %q", o.out)
	}
	if errors.Is(err, sandbox.ErrUnusable) && !h.MayRetire {
		t.Errorf("the driver could not prove that the command ended: %v", err)
	}
}

func cancelIsError(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	out := &sink{on: func(int64) { cancel() }}
	if o, err := b.exec(ctx, sandbox.Cmd{Argv: script(`echo ready; sleep 300`), Stdout: out}); err == nil {
		t.Errorf("a cancelled command gave %+v and no error", o.Exit)
	}
	ended, stop := context.WithCancel(b.ctx)
	stop()
	if o, err := b.exec(ended, sandbox.Cmd{Argv: []string{"true"}}); err == nil {
		t.Errorf("a command under a context that had ended gave %+v and no error", o.Exit)
	}
	if o := b.argv("true"); o.Code != 0 {
		t.Errorf("the sandbox does not work after a cancelled command: %+v", o.Exit)
	}
}

// stubborn starts a heartbeat that leaves its session and its parent and
// ignores TERM, then a foreground that ignores TERM too.
const stubborn = `trap '' TERM HUP INT
(setsid /bin/sh -c 'trap "" TERM HUP INT
(while :; do echo x >>"$1/hb"; sleep 0.05; done) & wait' sh "$1" >/dev/null 2>&1 &)
(setsid /bin/sh -c '(sleep 500 & sleep 500) & exit' &)
until [ -s "$1/hb" ]; do sleep 0.02; done
echo ready
while :; do sleep 1; done`

func cancelEndsTree(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	b.mkdir()
	m := mark()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	out := &sink{on: func(int64) { cancel() }}
	o, err := b.exec(ctx, sandbox.Cmd{Argv: script(stubborn, b.dir), Env: map[string]string{"ST_MARK": m}, Stdout: out})
	if err == nil {
		t.Fatalf("a cancelled command gave %+v and no error", o.Exit)
	}
	if errors.Is(err, sandbox.ErrUnusable) {
		if !h.MayRetire {
			t.Errorf("the end of the process tree is not proven: %v", err)
		}
		return
	}
	if n := b.marked(m); n != 0 {
		t.Errorf("%d processes of a cancelled command live on", n)
	}
	before := b.size(b.dir + "/hb")
	b.sh("sleep 0.4")
	if after := b.size(b.dir + "/hb"); after != before {
		t.Errorf("a process of a cancelled command still writes: %d bytes, then %d", before, after)
	}
}

func statusWins(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	for i := range 40 {
		ctx, cancel := context.WithCancel(b.ctx)
		out := &sink{on: func(int64) { cancel() }}
		o, err := b.exec(ctx, sandbox.Cmd{Argv: script(`echo last; exit 7`), Stdout: out})
		cancel()
		if errors.Is(err, sandbox.ErrUnusable) {
			t.Fatalf("run %d: %v", i, err)
		}
		if err == nil && o.Code != 7 || err != nil && o.Code != 0 {
			t.Fatalf("run %d: exit %d together with the error %v", i, o.Code, err)
		}
	}
}

func writersQuiet(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	b.mkdir()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	out := &sink{on: func(n int64) {
		if n > 100<<10 {
			cancel()
		}
	}}
	if _, err := b.exec(ctx, sandbox.Cmd{Argv: script(`while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done`), Stdout: out}); err == nil {
		t.Error("a cancelled command is no error")
	}
	out.close()
	// A service that holds the pipe writes after its command has returned.
	left := &sink{}
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: script(`(until [ -e "$1/go" ]; do sleep 0.02; done; echo late; : >"$1/done") & echo up`, b.dir), Stdout: left})
	if err != nil || o.Code != 0 {
		t.Fatalf("start a service: %+v, %v", o.Exit, err)
	}
	left.close()
	// The write may fail or end the service; either way it is over then.
	b.sh(`: >"$1/go"; i=0; until [ -e "$1/done" ] || [ $i -gt 100 ]; do sleep 0.02; i=$((i+1)); done`, b.dir)
	if out.wroteLate() || left.wroteLate() {
		t.Error("output was written after Exec had returned")
	}
	if s := strings.TrimSpace(b.sh("echo alive")); s != "alive" {
		t.Errorf("the sandbox does not work afterwards: %q", s)
	}
}
