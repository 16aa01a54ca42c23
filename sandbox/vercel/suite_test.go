package vercel_test

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/internal/guest/guesttest"
	"assay/sandbox"
	"assay/sandbox/sandboxtest"
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/vercelapi"
	"assay/sandbox/vercel/verceltest"
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
type roomy struct{ *vercel.Provider }

func (r roomy) Create(ctx context.Context, c sandbox.CreateRequest) (sandbox.Driver, error) {
	if c.Lifetime == c.Timeout {
		c.Lifetime += time.Minute
	}
	return r.Provider.Create(ctx, c)
}

func provider(t testing.TB, s *verceltest.Server) roomy {
	t.Helper()
	p := vercel.New(vercel.Options{
		Client: client(s), CreateEvery: time.Millisecond, CreateBurst: 100,
		Guest: guesttest.Build(t), Patience: 2 * time.Second,
	})
	t.Cleanup(func() { _ = p.Close() })
	return roomy{p}
}

func client(s *verceltest.Server) *vercelapi.Client {
	return &vercelapi.Client{BaseURL: s.URL, Credentials: func() (vercelapi.Credentials, error) {
		return vercelapi.Credentials{Token: verceltest.Token, TeamID: verceltest.Team, ProjectID: verceltest.Project}, nil
	}}
}

func template(p sandbox.Provider, name string) sandbox.Template {
	return sandbox.Template{Provider: p, Spec: vercel.Spec{Runtime: name}}
}

func instances(s *verceltest.Server) func(context.Context, string) ([]string, error) {
	return func(_ context.Context, token string) ([]string, error) {
		return s.Sandboxes(sandbox.LabelPrefix+"token", token), nil
	}
}

func TestSuite(t *testing.T) {
	s := verceltest.New(t)
	p := provider(t, s)
	fresh := func(tb testing.TB) (*verceltest.Server, sandboxtest.Broken) {
		s := verceltest.New(tb)
		p := provider(tb, s)
		return s, sandboxtest.Broken{Provider: p, Template: template(p, "node24"), Instances: instances(s)}
	}
	sandboxtest.Run(t, sandboxtest.Harness{
		Provider: p, Template: template(p, "node24"), Others: []sandbox.Template{template(p, "node22"), template(p, "python3.13")},
		Instances:        instances(s),
		Labels:           func(_ context.Context, id string) (map[string]string, error) { return vercel.Labels(s.Tags(id)), nil },
		Powers:           []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Inventory", "Waker"},
		IgnoreGoroutines: connections, LargeOutput: 20 << 20,
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				b.Provider = vercel.New(vercel.Options{Client: &vercelapi.Client{BaseURL: s.URL, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, Credentials: func() (vercelapi.Credentials, error) {
					return vercelapi.Credentials{Token: "wrong", TeamID: verceltest.Team, ProjectID: verceltest.Project}, nil
				}}})
				return b
			},
			sandboxtest.PrepareConfig: func(tb testing.TB) sandboxtest.Broken {
				_, b := fresh(tb)
				b.Provider = roomy{vercel.New(vercel.Options{Guest: "/no/such/program"})}
				b.Template = template(b.Provider, "node24")
				return b
			},
			sandboxtest.CreateFails: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				s.Inject(verceltest.Fault{Method: "POST", Path: "/fs/write", Status: 500, Body: `{"error":{"code":"internal_error","message":"broken"}}`})
				return b
			},
			sandboxtest.CreateStalls: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				reached := make(chan struct{})
				s.Inject(verceltest.Fault{Method: "POST", Path: "/v2/sandboxes", Match: func(r *http.Request) bool { return r.URL.Path == "/v2/sandboxes" }, After: true, Hang: true, Reached: reached})
				b.Reached = reached
				return b
			},
			sandboxtest.ExecFails: breaks(fresh), sandboxtest.PutFails: breaks(fresh), sandboxtest.GetFails: breaks(fresh),
			sandboxtest.StopStalls: func(tb testing.TB) sandboxtest.Broken {
				s, b := fresh(tb)
				b.Trigger = func(context.Context, sandbox.Driver) error {
					off := s.Inject(verceltest.Fault{Method: "DELETE", Hang: true})
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
func breaks(fresh func(testing.TB) (*verceltest.Server, sandboxtest.Broken)) func(testing.TB) sandboxtest.Broken {
	return func(tb testing.TB) sandboxtest.Broken {
		s, b := fresh(tb)
		b.Trigger = func(context.Context, sandbox.Driver) error {
			s.Inject(verceltest.Fault{Path: "/sessions/", Drop: true})
			s.Cut("/cmd")
			return nil
		}
		return b
	}
}
