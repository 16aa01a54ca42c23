package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"assay"
	"assay/agent"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// lasting is a teardown that takes its time, and hurries when it is told to.
func lasting(j *journal, name string, d time.Duration) sandbox.Hook {
	return func(ctx context.Context, _ *sandbox.Sandbox, _ sandbox.Notes) error {
		select {
		case <-time.After(d):
			j.add("%s", name)
			return nil
		case <-ctx.Done():
			j.add("%s-cut", name)
			return context.Cause(ctx)
		}
	}
}

// Each step of a shared sandbox's teardown has a limit of its own. The attempt
// that gives the sandbox up waits for all of them: until then it is not gone.
func TestTheEndOfASharedSandboxIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) { x.MaxUses = 1 }, func(l sandbox.Layer) sandbox.Layer {
			return l.Teardown(lasting(j, "first", 25*time.Second)).Teardown(lasting(j, "second", 25*time.Second))
		})
		x.Teardown = func(context.Context, sandbox.Notes) error { j.add("experiment"); return nil }
		st := play(t, one(x, hello("e")), setup{})
		if got := j.String(); got != "second first experiment" {
			t.Errorf("order %q", got)
		}
		if n := len(p.Instances("")); n != 0 {
			t.Errorf("%d sandboxes are left when the run is over", n)
		}
		if st.out.Red || len(st.attempts) != 1 || len(st.attempts[0].Diagnostics) != 0 {
			t.Errorf("red %v, %+v", st.out.Red, st.attempts)
		}
	})
}

// A provider that panics while a sandbox is handed over loses no sandbox.
func TestAPanicBetweenTwoAttemptsLosesNoSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		asked := 0
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) { x.Attempts = 2 })
		x.Sandbox = sandbox.From(sandbox.Template{Provider: mortal{p, func() error {
			if asked++; asked == 2 {
				panic("no such field")
			}
			return nil
		}}, Spec: struct{}{}}).Lifetime(time.Hour).Teardown(j.hook("t", nil))
		st := play(t, one(x, hello("e")), setup{})
		if n := len(p.Instances("")); n != 0 || j.String() != "t t" {
			t.Errorf("%d sandboxes are left, teardowns %q", n, j)
		}
		if st.out.Red || len(st.attempts) != 2 || st.attempts[1].Sandbox.Ordinal != 2 {
			t.Errorf("red %v, %+v", st.out.Red, st.attempts)
		}
		if d := st.ends[0].Diagnostics; len(d) != 1 || d[0].Code != "sandbox-reset-failed" || !strings.Contains(d[0].Message, "no such field") {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

// A signal that finds an attempt in its closing work takes nothing from its
// result: its error came before.
func TestASignalAfterTheEndOfAnAttemptTakesNothingFromIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		x := assay.Experiment{
			Sandbox: p.Layer().Teardown(lasting(j, "t", 10*time.Second)),
			Agent:   busy{d: time.Second, fails: func(agent.Input) error { return errors.New("no credit left") }},
		}
		st := play(t, one(x, hello("e")), setup{interrupt: []time.Duration{5 * time.Second}})
		if len(st.attempts) != 1 || st.attempts[0].Verdict != record.Errored || !strings.Contains(st.attempts[0].Error.Message, "no credit left") {
			t.Errorf("attempts %+v, not run %+v", st.attempts, st.ends[0].NotRun)
		}
		if st.out.Receipt.Completion != record.Interrupted || j.String() != "t" {
			t.Errorf("%s, teardowns %q", st.out.Receipt.Completion, j)
		}
	})
}

// Kinds of shared sandboxes take turns in the lanes of an experiment: with one
// lane nothing of the next is made before the last is gone.
func TestKindsOfSharedSandboxesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{Users: []fake.User{{Name: "other", UID: 2000}}})
		other := hello("b")
		other.Sandbox = sandbox.NewLayer().User("other")
		peak := 0
		x := shared(p, nil, func(l sandbox.Layer) sandbox.Layer {
			return l.Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
				peak = max(peak, len(p.Instances("")))
				j.add("setup")
				return nil
			}).Teardown(lasting(j, "teardown", 10*time.Second))
		})
		st := play(t, one(x, hello("a"), other), setup{})
		if got := j.String(); got != "setup teardown setup teardown" || peak != 1 {
			t.Errorf("order %q, %d sandboxes at once", got, peak)
		}
		if st.out.Red || len(p.Instances("")) != 0 {
			t.Errorf("red %v, %d left", st.out.Red, len(p.Instances("")))
		}
	})
}

// Attempts that are not needed any more end too: what was theirs goes before the
// lane is another's.
func TestALaneWhoseAttemptsAreNotNeededIsEmptiedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{Users: []fake.User{{Name: "other", UID: 2000}}})
		other := hello("b")
		other.Sandbox = sandbox.NewLayer().User("other")
		var mu sync.Mutex
		peak := 0
		x := shared(p, func(x *assay.Experiment) { x.Attempts, x.EarlyExit, x.MaxConcurrency = 3, true, 2 }, func(l sandbox.Layer) sandbox.Layer {
			return l.Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
				mu.Lock()
				defer mu.Unlock()
				peak = max(peak, len(p.Instances("")))
				return nil
			}).Teardown(lasting(j, "t", 10*time.Second))
		})
		third := hello("c")
		third.Sandbox = sandbox.NewLayer().Workdir("/c")
		st := play(t, one(x, hello("a"), other, third), setup{})
		if st.out.Red || peak > 2 || len(p.Instances("")) != 0 {
			t.Errorf("red %v, %d at once in 2 lanes, %d left", st.out.Red, peak, len(p.Instances("")))
		}
		var evals []string
		for _, a := range st.attempts {
			evals = append(evals, string(a.Eval))
		}
		if slices.Sort(evals); !slices.Contains(evals, "c") {
			t.Errorf("attempts of %v", evals)
		}
	})
}

// alone is a provider of which one sandbox may exist at a time.
type alone struct{ *fake.Provider }

func (a alone) Info() sandbox.Info {
	i := a.Provider.Info()
	i.Kind, i.Exclusive = "alone", true
	return i
}

// Who waits for a shared state holds nothing that its holder needs to go on.
func TestWhoWaitsForASharedStateHoldsNoSandboxPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		first, second := hello("first"), hello("second")
		first.Sandbox = p.Layer()
		second.Sandbox = sandbox.From(sandbox.Template{Provider: alone{p}, Spec: struct{}{}})
		x := assay.Experiment{ID: "x", Agent: busy{d: time.Second}, SharedState: "k", MaxConcurrency: 1}
		y := x
		y.ID, y.Evals = "y", []string{"second"}
		st := play(t, assay.Suite{Experiments: []assay.Experiment{x, y}, Evals: []assay.Eval{first, second}}, setup{state: t.TempDir(), interrupt: []time.Duration{time.Hour}})
		if st.out.Red || len(st.attempts) != 3 {
			t.Errorf("%s with %d attempts after %s", st.out.Receipt.Completion, len(st.attempts), st.took)
		}
	})
}

// Leftover teardowns are no reason to go on after a signal, and hurry after a
// second one. What was not torn down is still owed.
func TestInterruptedHealing(t *testing.T) {
	for name, c := range map[string]struct {
		signals []time.Duration
		took    time.Duration
		torn    string
	}{
		"one signal":  {[]time.Duration{time.Second}, 20 * time.Second, "x"},
		"two signals": {[]time.Duration{time.Second, 2 * time.Second}, 12 * time.Second, "x-cut"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{}
				state := t.TempDir()
				dead := *record.CurrentOwner()
				dead.Start = "1"
				suite := assay.Suite{Evals: []assay.Eval{hello("e")}}
				for _, id := range []ref.ExperimentID{"x", "y"} {
					suite.Experiments = append(suite.Experiments, assay.Experiment{
						ID: id, Agent: busy{d: time.Second}, Sandbox: fake.New(fake.Script{}).Layer(),
						Teardown: func(ctx context.Context, _ sandbox.Notes) error {
							return lasting(j, string(id), 20*time.Second)(ctx, nil, nil)
						},
					})
					body, err := json.Marshal(map[string]any{"experiment": id, "run": "r", "owner": dead})
					if err == nil {
						err = os.MkdirAll(filepath.Join(state, "teardowns"), 0o700)
					}
					if err = errors.Join(err, os.WriteFile(filepath.Join(state, "teardowns", string(id)+".r.json"), body, 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				st := play(t, suite, setup{state: state, interrupt: c.signals})
				if j.String() != c.torn || st.took != c.took || st.out.Receipt.Completion != record.Interrupted {
					t.Errorf("torn down %q in %s, %s; want %q in %s", j, st.took, st.out.Receipt.Completion, c.torn, c.took)
				}
				if left, _ := filepath.Glob(filepath.Join(state, "teardowns", "*.json")); len(left) != len(c.signals) {
					t.Errorf("owed: %v", left)
				}
			})
		})
	}
}

// The first thing that went wrong is the error of the run; what follows is told
// beside it.
func TestTheFirstErrorOfARunStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := shared(fake.New(fake.Script{}), nil, func(l sandbox.Layer) sandbox.Layer {
			return l.Teardown(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return errors.New("state not saved") })
		})
		x.Teardown = func(context.Context, sandbox.Notes) error { return errors.New("port still taken") }
		end := play(t, one(x, hello("e")), setup{}).ends[0]
		if end.Error == nil || !strings.Contains(end.Error.Message, "state not saved") {
			t.Errorf("error %+v", end.Error)
		}
		if d := end.Diagnostics; len(d) != 2 || !strings.Contains(d[1].Message, "port still taken") {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

// broken is a provider whose sandboxes panic where they are asked.
type broken struct {
	*fake.Provider
	at string
}

func (b broken) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	d, err := b.Provider.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return brokenBox{d, b.at}, nil
}

type brokenBox struct {
	sandbox.Driver
	at string
}

func (b brokenBox) Unwrap() sandbox.Driver { return b.Driver }

func (b brokenBox) Health(context.Context) error {
	if b.at == "health" {
		panic("no such field")
	}
	return nil
}

func (b brokenBox) Companions(context.Context) ([]sandbox.Companion, error) {
	if b.at == "companions" {
		panic("no such field")
	}
	return nil, nil
}

func (b brokenBox) Track(ctx context.Context, request []byte, w io.Writer) error {
	if b.at == "track" {
		panic("no such field")
	}
	tr, _ := sandbox.AsDriver[sandbox.Tracker](b.Driver)
	return tr.Track(ctx, request, w)
}

// A panic of a provider is an error of the attempt that met it, and of no other:
// the run goes on and nothing is left.
func TestAPanicOfAProviderStaysInItsAttempt(t *testing.T) {
	for _, at := range []string{"health", "companions", "track"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				fails := busy{d: time.Second, fails: func(agent.Input) error { return errors.New("no credit left") }}
				x := assay.Experiment{ID: "x", Sandbox: sandbox.From(sandbox.Template{Provider: broken{p, at}, Spec: struct{}{}}), Agent: fails}
				y := assay.Experiment{ID: "y", Sandbox: p.Layer(), Agent: busy{d: 3 * time.Second}}
				st := play(t, assay.Suite{Experiments: []assay.Experiment{x, y}, Evals: []assay.Eval{hello("e")}}, setup{})
				if len(st.attempts) != 2 || len(p.Instances("")) != 0 {
					t.Fatalf("%d attempts, %d sandboxes are left", len(st.attempts), len(p.Instances("")))
				}
				for _, a := range st.attempts {
					want, text := record.Passed, ""
					if a.Experiment == "x" {
						want, text = record.Errored, "no credit left"
						if at == "track" {
							text = "no such field"
						}
					}
					if a.Verdict != want || text != "" && !strings.Contains(a.Error.Message, text) {
						t.Errorf("%s is %s: %+v", a.Experiment, a.Verdict, a.Error)
					}
				}
			})
		})
	}
}

// One lane serves one group after the other: none loses its sandbox to the next.
func TestGroupsInOneLaneKeepTheirSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		j := &journal{}
		x := assay.Experiment{ID: "x", Attempts: 2, MaxConcurrency: 1, Agent: writer{func(_ context.Context, s *agent.Session) error {
			j.add("%s%d", s.Eval, s.Ordinal)
			return nil
		}}}
		free := hello("d")
		free.Sandbox = p.Layer()
		st := play(t, assay.Suite{Experiments: []assay.Experiment{x}, Evals: []assay.Eval{hello("a"), hello("b"), hello("c"), free}, Groups: []assay.Group{
			{ID: "g", Evals: []ref.EvalID{"a", "b"}, Sandbox: p.Layer()}, {ID: "h", Evals: []ref.EvalID{"c"}, Sandbox: p.Layer()},
		}}, setup{})
		ids := map[string]bool{}
		for _, a := range st.attempts {
			if a.Eval != "d" {
				ids[a.Sandbox.ID] = true
			}
		}
		if got := j.String(); st.out.Red || len(ids) != 2 || got != "a0 b0 a1 b1 c0 c1 d0 d1" {
			t.Errorf("two groups used %d sandboxes, in the order %s; red %v", len(ids), got, st.out.Red)
		}
	})
}
