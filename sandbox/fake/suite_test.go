package fake_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"assay/sandbox"
	"assay/sandbox/fake"
	"assay/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is the fake as the suite sees it.
func harness() sandboxtest.Harness {
	p := fake.New(fake.Script{Users: []fake.User{{Name: "other", UID: 1200}}})
	other := func(s fake.Script) sandbox.Template { return fake.New(s).Template() }
	broken := func(f fake.Faults) func(testing.TB) sandboxtest.Broken {
		return func(testing.TB) sandboxtest.Broken {
			q := fake.New(fake.Script{Faults: f})
			return sandboxtest.Broken{Provider: q, Template: q.Template(), Instances: lister(q)}
		}
	}
	return sandboxtest.Harness{
		Provider: p, Template: p.Template(), BakesHarness: true, User: "other",
		Others: []sandbox.Template{
			other(fake.Script{Users: []fake.User{{Name: "other", UID: 1201}}}), other(fake.Script{Files: map[string]string{"a": "1"}}),
			other(fake.Script{Files: map[string]string{"a": "2"}}), other(fake.Script{Commands: []fake.Response{{Match: "x"}}}),
			other(fake.Script{Workdir: "/w"}), other(fake.Script{User: "root"}),
		},
		Instances: lister(p),
		Labels:    func(_ context.Context, id string) (map[string]string, error) { return p.Labels(id), nil },
		Marked: func(_ context.Context, d sandbox.Driver, mark string) (int, error) {
			return p.Marked(d.ID(), "ST_MARK", mark), nil
		},
		Powers: []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Inventory", "Waker"},
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails:       broken(fake.Faults{Check: fake.Fault{Config: "the token is wrong"}}),
			sandboxtest.PrepareConfig:    broken(fake.Faults{Prepare: fake.Fault{Config: "step 2 exits 1", Stage: "build"}}),
			sandboxtest.PrepareTransient: broken(fake.Faults{Prepare: fake.Fault{Transient: 9, Stage: "pull"}}),
			sandboxtest.PrepareResource:  broken(fake.Faults{Prepare: fake.Fault{Class: "resource", Stage: "build"}}),
			sandboxtest.CreateFails:      broken(fake.Faults{Create: fake.Fault{Transient: 9}}),
			sandboxtest.CreateStalls: func(testing.TB) sandboxtest.Broken {
				q := fake.New(fake.Script{Faults: fake.Faults{Create: fake.Fault{Stall: true}}})
				return sandboxtest.Broken{Provider: q, Template: q.Template(), Instances: lister(q), Reached: q.CreateStalled()}
			},
			sandboxtest.ExecFails:  broken(fake.Faults{Exec: fake.Fault{Transport: 9}}),
			sandboxtest.PutFails:   broken(fake.Faults{Put: fake.Fault{Transient: 9}}),
			sandboxtest.GetFails:   broken(fake.Faults{Get: fake.Fault{Transient: 9}}),
			sandboxtest.StopStalls: broken(fake.Faults{Stop: fake.Fault{Stall: true}}),
			sandboxtest.Vanishes: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: func(_ context.Context, d sandbox.Driver) error { p.Vanish(d.ID()); return nil }}
			},
		},
	}
}

func lister(p *fake.Provider) func(context.Context, string) ([]string, error) {
	return func(_ context.Context, token string) ([]string, error) { return p.Instances(token), nil }
}

func TestSuite(t *testing.T) { sandboxtest.Run(t, harness()) }
