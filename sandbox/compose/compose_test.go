package compose

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/docker"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// provider returns a provider on the test engine with a freshly built exec
// server.
func provider(t testing.TB) (*Provider, *client.Client) {
	t.Helper()
	cli, host := testreq.Engine(t)
	return at(t, host), cli
}

func at(t testing.TB, host string) *Provider {
	t.Helper()
	t.Setenv("ASSAY_GUEST", guesttest.Build(t))
	p := New(Options{Docker: docker.New(docker.Options{Host: host})})
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// write makes the files of a project and returns its folder.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tmplOf is a project of one file whose sandbox is the service box.
func tmplOf(t testing.TB, p *Provider, yaml string) sandbox.Template {
	t.Helper()
	return sandbox.Template{Provider: p, Spec: Spec{File: "compose.yaml", WorkspaceService: "box"}, Dir: write(t, map[string]string{"compose.yaml": yaml})}
}

type steps struct{}

func (steps) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

// notes remembers what was said.
type notes struct {
	sandbox.Quiet
	mu          sync.Mutex
	progress    []string
	diagnostics []sandbox.Diagnostic
}

func (n *notes) Progress(p sandbox.Progress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.progress = append(n.progress, p.Message)
}

func (n *notes) Diagnostic(d sandbox.Diagnostic) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diagnostics = append(n.diagnostics, d)
	return nil
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func request(t testing.TB, p *Provider, tmpl sandbox.Template) sandbox.CreateRequest {
	t.Helper()
	from, err := p.Prepare(limited(t), tmpl, sandbox.Harness{}, steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	return sandbox.CreateRequest{
		From: from, Template: tmpl, Notes: &notes{},
		Owner: sandbox.Owner{Invocation: ref.NewInvocation(), Run: ref.NewRun(), Attempt: ref.NewAttempt(), PID: os.Getpid(), Token: ref.New()},
	}
}

func create(t testing.TB, p *Provider, r sandbox.CreateRequest) sandbox.Driver {
	t.Helper()
	d, err := p.Create(limited(t), r)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Stop(limited(t)); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return d
}

// run runs a script in a sandbox and returns what it printed.
func run(t testing.TB, d sandbox.Driver, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	x, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, Dir: d.Workdir(), Stdout: &out, Stderr: &errs})
	if err != nil || x.Code != 0 {
		t.Fatalf("%s: %+v, %v, %q %q", script, x, err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String())
}

// left lists everything with an owner's token.
func left(t testing.TB, p *Provider, token string) docker.Group {
	t.Helper()
	e, err := p.engines[docker.Docker].Engine(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	g, err := e.Find(limited(t), sandbox.LabelPrefix+"token", token)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// pair is a sandbox with a web server beside it that takes a moment to be
// healthy and serves a file of the project.
func pair(t testing.TB) string {
	return fmt.Sprintf(`
services:
  box:
    image: %s
    depends_on: {web: {condition: service_healthy}}
  web:
    image: %s
    command: [sh, -c, "echo up; mkdir -p /www && echo hello from $$GREETER > /www/index.html && exec httpd -f -p 80 -h /www"]
    environment: {GREETER: web}
    healthcheck: {test: [CMD, wget, -q, -O-, "http://127.0.0.1/"], interval: 200ms, retries: 50}
`, testimage.Busybox(t), testimage.Busybox(t))
}

func TestServiceNextToTheSandbox(t *testing.T) {
	p, cli := provider(t)
	r := request(t, p, tmplOf(t, p, pair(t)))
	d := create(t, p, r)
	if got := run(t, d, "wget -q -O- http://web/"); got != "hello from web" {
		t.Errorf("the companion said %q", got)
	}
	g := left(t, p, r.Owner.Token)
	if len(g.Containers) != 2 || len(g.Networks) != 1 {
		t.Errorf("the engine has %+v, want two containers and a network", g)
	}
	for _, id := range g.Containers {
		in, err := cli.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range r.Owner.Labels() {
			if in.Container.Config.Labels[k] != v {
				t.Errorf("container %s: label %s is %q, want %q", in.Container.Name, k, in.Container.Config.Labels[k], v)
			}
		}
	}
	// Nothing in the agent's view names this program.
	view := run(t, d, "env; cat /proc/self/mountinfo /etc/hosts /etc/resolv.conf; hostname; nslookup web 2>&1 || true; nslookup $(nslookup web | awk '/^Address/{a=$NF} END{print a}') 2>&1 || true")
	if strings.Contains(strings.ToLower(view), "assay") {
		t.Errorf("the sandbox names this program:\n%s", view)
	}
	cs, err := d.(sandbox.Companioner).Companions(t.Context())
	if err != nil || len(cs) != 1 || cs[0].Name != "web" || cs[0].State != "running, healthy" || cs[0].Log != "up" {
		t.Errorf("Companions: %+v, %v", cs, err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := left(t, p, r.Owner.Token); !g.Empty() {
		t.Errorf("left after Stop: %+v", g)
	}
}
