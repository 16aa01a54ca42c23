package e2b_test

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/internal/guest/guesttest"
	"assay/sandbox"
	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2bapi"
	"assay/sandbox/e2b/e2btest"
	"assay/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, connections...)
}

// connections are those that are kept for the next request.
var connections = []goleak.Option{
	goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
	goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
}

// roomy asks for the reserve that a life needs beyond the attempt's limit.
type roomy struct{ *e2b.Provider }

func (r roomy) Create(ctx context.Context, c sandbox.CreateRequest) (sandbox.Driver, error) {
	if c.Lifetime == c.Timeout {
		c.Lifetime += time.Minute
	}
	return r.Provider.Create(ctx, c)
}

func (roomy) guest() string { return guestPath }

var guestPath string

func provider(t testing.TB, s *e2btest.Server) roomy {
	t.Helper()
	guestPath = guesttest.Build(t)
	p := e2b.New(e2b.Options{
		Client: &e2bapi.Client{Key: e2btest.Key, APIURL: s.URL, SandboxURL: s.URL}, CreateEvery: time.Millisecond, CreateBurst: 100,
		Guest: guestPath, Patience: 2 * time.Second,
	})
	t.Cleanup(func() { _ = p.Close() })
	return roomy{p}
}

func template(p sandbox.Provider, name string) sandbox.Template {
	return sandbox.Template{Provider: p, Spec: e2b.Spec{Template: name}}
}

func instances(s *e2btest.Server) func(context.Context, string) ([]string, error) {
	return func(_ context.Context, token string) ([]string, error) {
		return s.Sandboxes(sandbox.LabelPrefix+"token", token), nil
	}
}

func TestSuite(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	fresh := func(tb testing.TB) (*e2btest.Server, sandboxtest.Broken) {
		s := e2btest.New(tb)
		p := provider(tb, s)
		return s, sandboxtest.Broken{Provider: p, Template: template(p, "base"), Instances: instances(s)}
	}
	sandboxtest.Run(t, sandboxtest.Harness{
		Provider: p, Template: template(p, "base"), Others: []sandbox.Template{template(p, "claude"), template(p, "codex")},
		Instances: instances(s),
		Labels:    func(_ context.Context, id string) (map[string]string, error) { return s.Metadata(id), nil },
		Powers:    []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Leaver", "Inventory", "Waker"},
		User:      "user", IgnoreGoroutines: connections, LargeOutput: 20 << 20,
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				b.Provider = e2b.New(e2b.Options{Client: &e2bapi.Client{Key: "e2b_00", APIURL: s.URL, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}})
				return b
			},
			sandboxtest.PrepareConfig: func(tb testing.TB) sandboxtest.Broken {
				_, b := fresh(tb)
				b.Provider = roomy{e2b.New(e2b.Options{Guest: "/no/such/program"})}
				b.Template = template(b.Provider, "base")
				return b
			},
			sandboxtest.CreateFails: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				s.Inject(e2btest.Fault{Method: "POST", Path: "/files", Status: 500, Body: `{"code":500,"message":"broken"}`})
				return b
			},
			sandboxtest.CreateStalls: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				reached := make(chan struct{})
				s.Inject(e2btest.Fault{Method: "POST", Path: "/v2/sandboxes", After: true, Hang: true, Reached: reached})
				b.Reached = reached
				return b
			},
			sandboxtest.ExecFails: breaks(fresh), sandboxtest.PutFails: breaks(fresh), sandboxtest.GetFails: breaks(fresh),
			sandboxtest.StopStalls: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				b.Trigger = func(context.Context, sandbox.Driver) error {
					off := s.Inject(e2btest.Fault{Method: "DELETE", Hang: true})
					tb.Cleanup(off)
					return nil
				}
				return b
			},
			sandboxtest.Vanishes: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				b.Trigger = func(_ context.Context, d sandbox.Driver) error {
					if !s.Kill(d.ID()) {
						return os.ErrNotExist
					}
					return nil
				}
				return b
			},
		},
	})
}

// breaks makes every way to a sandbox fail, for longer than the provider's
// patience.
func breaks(fresh func(testing.TB) (*e2btest.Server, sandboxtest.Broken)) func(testing.TB) sandboxtest.Broken {
	return func(tb testing.TB) sandboxtest.Broken {
		s, b := fresh(tb)
		b.Trigger = func(context.Context, sandbox.Driver) error {
			s.Inject(e2btest.Fault{Path: "/process.Process/", Drop: true})
			s.Cut("/process.Process/")
			return nil
		}
		return b
	}
}
