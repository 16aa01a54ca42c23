package docker

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// provider returns a provider at an address that runs a freshly built exec
// server.
func provider(tb testing.TB, host string) *Provider {
	tb.Helper()
	return providerOf(tb, Docker, host)
}

func providerOf(tb testing.TB, kind, host string) *Provider {
	tb.Helper()
	p := New(Options{Engine: kind, Host: host})
	bin := guesttest.Build(tb)
	p.find = func(string) (guestBinary, error) { return guestBinary{Path: bin, Args: []string{"--init"}}, nil }
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

// steps runs each step once.
type steps struct{ stages []string }

func (s *steps) Do(ctx context.Context, stage string, step func(context.Context) error) error {
	s.stages = append(s.stages, stage)
	return step(ctx)
}

func owner() sandbox.Owner {
	return sandbox.Owner{Invocation: ref.NewInvocation(), Run: ref.NewRun(), Attempt: ref.NewAttempt(), PID: os.Getpid(), Token: ref.New()}
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
	from, err := p.Prepare(limited(tb), t, sandbox.Harness{}, &steps{})
	if err != nil {
		tb.Fatalf("Prepare: %v", err)
	}
	return sandbox.CreateRequest{From: from, Template: t, Owner: owner(), Notes: sandbox.Quiet{}}
}

// create makes a sandbox that ends with the test.
func create(tb testing.TB, p *Provider, r sandbox.CreateRequest) sandbox.Driver {
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
	return d
}

// instances lists the containers of a token, in any state.
func instances(cli *client.Client) func(context.Context, string) ([]string, error) {
	return func(ctx context.Context, token string) ([]string, error) {
		r, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", "assay.token="+token)})
		var ids []string
		for _, c := range r.Items {
			ids = append(ids, c.ID)
		}
		return ids, err
	}
}

// offline makes sandboxes without a network, which start in half the time.
type offline struct{ *Provider }

func (o offline) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	r.Network.Mode = "none"
	return o.Provider.Create(ctx, r)
}

func suite(t *testing.T, spec Spec) sandboxtest.Harness {
	cli, host := testreq.Engine(t)
	return suiteOn(t, Docker, cli, host, spec, testimage.Slice(t), testimage.Busybox(t), testimage.SliceUser(t))
}

// suiteOn is the harness on an engine with the test images in it.
func suiteOn(t *testing.T, kind string, cli *client.Client, host string, spec Spec, slice, busybox, sliceUser string) sandboxtest.Harness {
	p := providerOf(t, kind, host)
	spec.Image = slice
	template := func(p *Provider) sandbox.Template { return sandbox.Template{Provider: offline{p}, Spec: spec} }
	h := sandboxtest.Harness{
		Provider: offline{p}, Template: template(p),
		Others:    []sandbox.Template{{Provider: p, Spec: Spec{Image: busybox, Guest: spec.Guest}}, {Provider: p, Spec: Spec{Image: sliceUser, Guest: spec.Guest}}},
		Instances: instances(cli),
		Labels: func(ctx context.Context, id string) (map[string]string, error) {
			r, err := cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
			if err != nil {
				return nil, err
			}
			return r.Container.Config.Labels, nil
		},
		User: "node", BakesHarness: true,
	}
	// broken makes a provider behind a proxy.
	broken := func(t testing.TB, fault func(*proxy) sandboxtest.Broken) sandboxtest.Broken {
		px := newProxy(t, host)
		b := fault(px)
		bp := providerOf(t, kind, px.host())
		b.Provider, b.Template = offline{bp}, template(bp)
		return b
	}
	cut := func(match string) func(testing.TB) sandboxtest.Broken {
		return func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: func(context.Context, sandbox.Driver) error {
					px.add(match, faulty{before: true})
					px.cut(`POST /containers/.*/attach`)
					return nil
				}}
			})
		}
	}
	h.Break = map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
		sandboxtest.CheckFails: func(t testing.TB) sandboxtest.Broken {
			bp := New(Options{Engine: kind, Host: "unix://" + t.TempDir() + "/none.sock"})
			return sandboxtest.Broken{Provider: bp, Template: template(bp)}
		},
		sandboxtest.PrepareConfig: func(t testing.TB) sandboxtest.Broken {
			return sandboxtest.Broken{Template: sandbox.Template{Provider: p, Spec: Spec{Image: "sha256:0123456789012345678901234567890123456789012345678901234567890123"}}}
		},
		sandboxtest.PrepareTransient: func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				px.add(`GET /images/`, faulty{before: true, answer: status(http.StatusServiceUnavailable, "busy")})
				return sandboxtest.Broken{}
			})
		},
		sandboxtest.PrepareResource: func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				px.add(`GET /images/`, faulty{before: true, answer: status(http.StatusInternalServerError, "write /var/lib/x: no space left on device")})
				return sandboxtest.Broken{}
			})
		},
		sandboxtest.CreateFails: func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				px.add(`POST /containers/.*/start`, faulty{before: true, answer: status(http.StatusInternalServerError, "no")})
				return sandboxtest.Broken{}
			})
		},
		sandboxtest.CreateStalls: func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				ru := px.add(`POST /containers/create`, faulty{hold: make(chan struct{})})
				return sandboxtest.Broken{Reached: ru.reached}
			})
		},
		sandboxtest.ExecFails: cut(`POST /containers/.*/exec`),
		sandboxtest.PutFails:  cut(`PUT /containers/.*/archive`),
		sandboxtest.GetFails:  cut(`GET /containers/.*/archive`),
		sandboxtest.StopStalls: func(t testing.TB) sandboxtest.Broken {
			return broken(t, func(px *proxy) sandboxtest.Broken {
				var bd sandbox.Driver
				t.Cleanup(func() {
					if bd != nil {
						_, _ = cli.ContainerRemove(context.Background(), bd.ID(), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
					}
				})
				return sandboxtest.Broken{Trigger: func(_ context.Context, d sandbox.Driver) error {
					bd = d
					px.add(`DELETE /containers/`, faulty{before: true, hold: make(chan struct{})})
					return nil
				}}
			})
		},
		sandboxtest.Vanishes: func(t testing.TB) sandboxtest.Broken {
			return sandboxtest.Broken{Trigger: func(ctx context.Context, d sandbox.Driver) error {
				_, err := cli.ContainerRemove(ctx, d.ID(), client.ContainerRemoveOptions{Force: true})
				return err
			}}
		},
	}
	return h
}

func TestSuiteGuest(t *testing.T) {
	h := suite(t, Spec{})
	h.Powers = []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Leaver", "Enterer", "Inventory", "Waker"}
	sandboxtest.Run(t, h)
}

// beyond are the promises that the engine's own exec cannot keep.
var beyond = map[string]string{
	"exec-signal-is-a-result": "the engine reports a signal as an exit code",
}

func TestSuitePlain(t *testing.T) {
	h := suite(t, Spec{Guest: "off"})
	h.Powers = []string{"Environer", "ProcessEnder", "Digester", "Reporter", "Reconciler", "Suspender", "Enterer", "Inventory", "Waker"}
	h.MayRetire = true
	for _, p := range sandboxtest.Promises() {
		t.Run(p.Name, func(t *testing.T) {
			if why := beyond[p.Name]; why != "" {
				t.Skip(why)
			}
			p.Test(t, h)
		})
	}
}
