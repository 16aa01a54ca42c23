package native

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/ref"
	"assay/sandbox"
)

// provider returns a provider that runs a freshly built exec server.
func provider(tb testing.TB) *Provider {
	tb.Helper()
	bin := os.Getenv(guestVar)
	if bin == "" {
		bin = guesttest.Build(tb)
	}
	p := New(Options{Guest: bin, Cache: tb.TempDir(), Boxes: filepath.Join(tb.TempDir(), "boxes")})
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

func limited(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// request prepares spec and returns a request for it.
func request(tb testing.TB, p *Provider, spec Spec) sandbox.CreateRequest {
	tb.Helper()
	t := sandbox.Template{Provider: p, Spec: spec}
	from, err := p.Prepare(limited(tb), t, sandbox.Harness{}, onceSteps{})
	if err != nil {
		tb.Fatalf("Prepare: %v", err)
	}
	return sandbox.CreateRequest{From: from, Template: t, Notes: sandbox.Quiet{}, Owner: sandbox.Owner{
		Invocation: ref.NewInvocation(), Run: ref.NewRun(), Attempt: ref.NewAttempt(), PID: os.Getpid(), Token: ref.New(),
	}}
}

// create makes a sandbox that ends with the test.
func create(tb testing.TB, p *Provider, r sandbox.CreateRequest) *driver {
	tb.Helper()
	d, err := p.Create(limited(tb), r)
	if err != nil {
		tb.Fatalf("Create: %v", err)
	}
	tb.Cleanup(func() {
		if err := d.Stop(limited(tb)); err != nil {
			tb.Errorf("Stop: %v", err)
		}
	})
	return d.(*driver)
}

// result is how a script ended.
type result struct {
	sandbox.Exit
	out, err string
}

func try(tb testing.TB, d sandbox.Driver, user, script string) result {
	tb.Helper()
	var out, errs bytes.Buffer
	x, err := d.Exec(limited(tb), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, Dir: "/", User: user, Stdout: &out, Stderr: &errs})
	if err != nil {
		tb.Fatalf("%s: %v", script, err)
	}
	return result{x, strings.TrimSpace(out.String()), strings.TrimSpace(errs.String())}
}

// run runs a script that must succeed and returns what it printed.
func run(tb testing.TB, d sandbox.Driver, user, script string) string {
	tb.Helper()
	r := try(tb, d, user, script)
	if r.Code != 0 {
		tb.Fatalf("%s: %+v", script, r)
	}
	return r.out
}

func TestToolsAreThoseOfTheHost(t *testing.T) {
	p := provider(t)
	d := create(t, p, request(t, p, Spec{}))
	if got := run(t, d, "", `echo "$(id -un) $HOME $(hostname) $(ls /home) $$"; git --version`); !strings.HasPrefix(got, "user /home/user sandbox user ") || !strings.Contains(got, "git version") {
		t.Errorf("inside there is %q", got)
	}
	if d.Workdir() != "/home/user/workspace" {
		t.Errorf("the working directory is %q", d.Workdir())
	}
	status := run(t, d, "", "cat /proc/self/status")
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status of a process lacks %q", want)
		}
	}
	// Nothing in sight names who made it.
	view := run(t, d, "", "cat /proc/self/mountinfo /proc/self/cgroup /proc/mounts; ls -laR /home /tmp /var /run /dev /root 2>&-; ps aux; env; ls -la /proc/*/exe 2>&-; true")
	if i := strings.Index(strings.ToLower(view), "assay"); i >= 0 {
		t.Errorf("a command can see who runs it: %q", view[max(0, i-80):min(len(view), i+80)])
	}
}
