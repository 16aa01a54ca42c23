package attempt_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/redact"
	"assay/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestHostCommandRunsInItsFolderWithItsEnvironment(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FROM_HOST", "host")
	t.Setenv("OVER", "host")
	const script = `printf '%s %s %s %s %s' "$PWD" "$FROM_HOST" "$OVER" "$ENGINE" "$OWN" >"$OUT"`
	for _, c := range []struct {
		name string
		c    sandbox.Command
		want string
	}{
		{"shell", sandbox.Command{Shell: script}, dir + " host engine engine "},
		{"own env wins", sandbox.Command{Shell: script, Env: map[string]string{"OVER": "own", "OWN": "x y"}}, dir + " host own engine x y"},
		{"relative cwd", sandbox.Command{Shell: script, Cwd: "sub"}, dir + "/sub host engine engine "},
		{"absolute cwd", sandbox.Command{Shell: script, Cwd: "/"}, "/ host engine engine "},
		{"argv", sandbox.Command{Argv: []string{"sh", "-c", `printf %s "$1" >"$OUT"`, "sh", "$HOME; ls"}}, "$HOME; ls"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			err := attempt.HostCommand(t.Context(), c.c, dir, map[string]string{"ENGINE": "engine", "OVER": "engine", "OUT": out}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := read(t, out); got != strings.TrimSpace(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestHostCommandErrors(t *testing.T) {
	const secret = "very-secret-value-1234"
	red := redact.New(secret)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(attempt.ErrInterrupted)
	for _, c := range []struct {
		name  string
		ctx   context.Context
		c     sandbox.Command
		code  string
		class fault.Class
		text  []string
	}{
		{"exit", t.Context(), sandbox.Command{Shell: "echo out; echo the reason >&2; exit 7"}, "host-command-failed", fault.Unknown, []string{"exit status 7", "out the reason", "exit 7"}},
		{"name instead of script", t.Context(), sandbox.Command{Name: "start the mock", Shell: "exit 1"}, "host-command-failed", fault.Unknown, []string{"start the mock"}},
		{"missing program", t.Context(), sandbox.Command{Argv: []string{"no-such-program-here"}}, "host-command-failed", fault.Unknown, []string{"no-such-program-here"}},
		{"missing folder", t.Context(), sandbox.Command{Shell: "true", Cwd: "missing"}, "host-command-cwd", fault.Config, []string{"missing"}},
		{"user", t.Context(), sandbox.Command{Shell: "true", User: "root"}, "host-user-unsupported", fault.Config, nil},
		{"interrupted", ended, sandbox.Command{Shell: "sleep 60"}, "host-command-failed", fault.Canceled, []string{"interrupted"}},
		{"secret in label and output", t.Context(), sandbox.Command{Shell: "echo " + secret + "; exit 1"}, "host-command-failed", fault.Unknown, []string{redact.Mask}},
		// The secret crosses the place where the output is cut.
		{"secret at the cut", t.Context(), sandbox.Command{Argv: []string{"sh", "-c", `printf '%s' "$A$B"; i=0; while [ $i -lt 390 ]; do printf x; i=$((i+1)); done; exit 1`}, Env: map[string]string{"A": "very-secret-", "B": "value-1234"}}, "host-command-failed", fault.Unknown, []string{"xxx"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := attempt.HostCommand(c.ctx, c.c, t.TempDir(), nil, red)
			if err == nil || fault.CodeOf(err) != c.code || fault.ClassOf(err) != c.class {
				t.Fatalf("error %v, code %q, class %s", err, fault.CodeOf(err), fault.ClassOf(err))
			}
			for _, want := range c.text {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not tell %q", err, want)
				}
			}
			for _, part := range []string{secret, "1234"} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%q shows the secret", err)
				}
			}
		})
	}
}

// TestHostCommandTimeoutEndsTheGroup holds the write end of a pipe in every
// process of the command: the read end sees its end only when all are gone.
func TestHostCommandTimeoutEndsTheGroup(t *testing.T) {
	dir := t.TempDir()
	if err := mkfifo(filepath.Join(dir, "held")); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- attempt.HostCommand(context.Background(), sandbox.Command{Shell: `exec 9>held; (sh -c 'sleep 600; :' &) ; echo up; sleep 600; :`, Timeout: 300 * time.Millisecond}, dir, nil, nil)
	}()
	if _, err := os.ReadFile(filepath.Join(dir, "held")); err != nil { // until every holder is gone
		t.Fatal(err)
	}
	err := <-done
	var limit *fault.Timeout
	if !errors.As(err, &limit) || limit.Limit != "command-timeout" || limit.Layer != "command" {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(err.Error(), "up") {
		t.Errorf("%q does not tell what was printed", err)
	}
}

// TestHostCommandLeavesAServiceBehind: what the command starts in the background
// holds its output and neither delays it for ever nor makes it fail.
func TestHostCommandLeavesAServiceBehind(t *testing.T) {
	dir := t.TempDir()
	err := attempt.HostCommand(t.Context(), sandbox.Command{Shell: `sleep 600 & echo $! >pid`}, dir, nil, nil)
	pid := read(t, filepath.Join(dir, "pid"))
	if kerr := exec.Command("kill", pid).Run(); kerr != nil {
		t.Errorf("the service does not run: %v", kerr)
	}
	if err != nil {
		t.Errorf("a command that left a service running failed: %v", err)
	}
}
