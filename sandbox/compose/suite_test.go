package compose

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/docker"
	"assay/sandbox/sandboxtest"
)

// proxy stands before the engine and makes faults.
type proxy struct {
	host string

	mu    sync.Mutex
	rules []rule
	seen  []string
	conns []net.Conn // to the engine
}

type rule struct {
	match *regexp.Regexp // on "METHOD path" without the version
	times int            // 0: always
	// pass lets the request through.
	pass bool
	// answer is the status that the client gets in place of the engine's reply;
	// 0 holds the real reply back until the client gives up.
	answer  int
	message string
	reached chan struct{}
	once    *sync.Once
}

var version = regexp.MustCompile(`^/v[0-9.]+`)

func newProxy(t testing.TB, backend string) *proxy {
	t.Helper()
	path := filepath.Join(t.TempDir(), "e.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{host: "unix://" + path}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(backend, "unix://"))
		if err == nil {
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
		}
		return c, err
	}}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	forward.Transport, forward.FlushInterval = tr, -1
	forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	var handlers sync.WaitGroup
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		ru, ok := p.rule(r)
		switch {
		case !ok:
			forward.ServeHTTP(w, r)
		case ru.answer != 0:
			ru.once.Do(func() { close(ru.reached) })
			http.Error(w, fmt.Sprintf(`{"message":%q}`, ru.message), ru.answer)
		default:
			// The engine does what it was asked, and nobody hears of it.
			hold := r.Clone(context.WithoutCancel(r.Context()))
			rec := &discard{h: http.Header{}}
			forward.ServeHTTP(rec, hold)
			ru.once.Do(func() { close(ru.reached) })
			<-r.Context().Done()
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		// The engine does not end the stream of a container that never started.
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		handlers.Wait()
	})
	return p
}

type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

func (p *proxy) add(match string, ru rule) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	ru.match, ru.reached, ru.once = regexp.MustCompile(match), make(chan struct{}), &sync.Once{}
	p.rules = append(p.rules, ru)
	return ru.reached
}

func (p *proxy) rule(r *http.Request) (rule, bool) {
	what := r.Method + " " + version.ReplaceAllString(r.URL.Path, "")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, what)
	for i := range p.rules {
		ru := &p.rules[i]
		if ru.times < 0 || !ru.match.MatchString(what) {
			continue
		}
		if ru.pass {
			ru.once.Do(func() { close(ru.reached) })
			continue
		}
		if ru.times > 0 {
			if ru.times--; ru.times == 0 {
				ru.times = -1
			}
		}
		return *ru, true
	}
	return rule{}, false
}

// asked lists the requests that match, and forgets all.
func (p *proxy) asked(match string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.seen
	p.seen = nil
	return slices.DeleteFunc(all, func(s string) bool { return !regexp.MustCompile(match).MatchString(s) })
}

// duo is a sandbox with something beside it that does nothing.
func duo(box, side string) string {
	return fmt.Sprintf("services:\n  box:\n    image: %s\n  side:\n    image: %s\n    command: [sleep, infinity]\nvolumes: {}\n", box, side)
}

func suite(t *testing.T) sandboxtest.Harness {
	p, cli := provider(t)
	_, host := testreq.Engine(t)
	slice, busybox := testimage.Slice(t), testimage.Busybox(t)
	main := tmplOf(t, p, duo(slice, busybox))
	broken := func(match string, ru rule) func(t testing.TB) sandboxtest.Broken {
		return func(t testing.TB) sandboxtest.Broken {
			px := newProxy(t, host)
			bp := at(t, px.host)
			reached := px.add(match, ru)
			return sandboxtest.Broken{Provider: bp, Template: sandbox.Template{Provider: bp, Spec: main.Spec, Dir: main.Dir}, Reached: reached}
		}
	}
	return sandboxtest.Harness{
		Provider: p, Template: main,
		Others: []sandbox.Template{
			tmplOf(t, p, duo(busybox, busybox)), tmplOf(t, p, duo(slice, slice)),
			tmplOf(t, p, strings.Replace(duo(slice, busybox), "infinity", `"1000"`, 1)),
		},
		Instances: func(ctx context.Context, token string) ([]string, error) {
			e, err := p.engines[docker.Docker].Engine(ctx)
			if err != nil {
				return nil, err
			}
			// A whole project is one instance, and so is what is left of one.
			g, err := e.Find(ctx, sandbox.LabelPrefix+"token", token)
			all := slices.Concat(g.Containers, g.Networks, g.Volumes)
			for _, id := range g.Containers {
				if in, err := e.Inspect(ctx, id); err == nil && in.Config.Labels["com.docker.compose.service"] == "box" {
					return []string{id}, nil
				}
			}
			return all[:min(1, len(all))], err
		},
		Labels: func(ctx context.Context, id string) (map[string]string, error) {
			r, err := cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
			if err != nil {
				return nil, err
			}
			return r.Container.Config.Labels, nil
		},
		User: "node",
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails: func(t testing.TB) sandboxtest.Broken {
				none := docker.New(docker.Options{Host: "unix://" + t.TempDir() + "/none.sock"})
				bp := New(Options{Docker: none, Podman: none})
				return sandboxtest.Broken{Provider: bp, Template: sandbox.Template{Provider: bp, Spec: main.Spec, Dir: main.Dir}}
			},
			sandboxtest.PrepareConfig: func(t testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Template: tmplOf(t, p, duo(slice, "sha256:0123456789012345678901234567890123456789012345678901234567890123"))}
			},
			sandboxtest.PrepareTransient: broken(`GET /images/`, rule{answer: http.StatusServiceUnavailable, message: "busy"}),
			sandboxtest.PrepareResource:  broken(`GET /images/`, rule{answer: http.StatusInternalServerError, message: "no space left on device"}),
			sandboxtest.CreateFails:      broken(`POST /containers/.*/start`, rule{answer: http.StatusInternalServerError, message: "no"}),
			sandboxtest.CreateStalls:     broken(`POST /containers/create`, rule{}),
			sandboxtest.Vanishes: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: func(ctx context.Context, d sandbox.Driver) error {
					_, err := cli.ContainerRemove(ctx, d.ID(), client.ContainerRemoveOptions{Force: true})
					return err
				}}
			},
		},
	}
}

func TestSuite(t *testing.T) {
	h := suite(t)
	h.Powers = []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Enterer"}
	sandboxtest.Run(t, h)
}
