package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	"assay/fault"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/snapshot"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// writer is an agent that runs f in the sandbox.
type writer struct {
	f func(ctx context.Context, s *agent.Session) error
}

func (writer) Info() agent.Info { return agent.Info{Name: "writer"} }
func (w writer) Send(ctx context.Context, s *agent.Session, _ agent.Input) (agent.Turn, error) {
	if err := w.f(ctx, s); err != nil {
		return agent.Turn{}, err
	}
	return agent.Turn{Status: agent.Completed, Message: "ok"}, nil
}

// shared is an experiment whose attempts share sandboxes.
func shared(p *fake.Provider, change func(*assay.Experiment), layers ...func(sandbox.Layer) sandbox.Layer) assay.Experiment {
	l := p.Layer().Lifetime(time.Hour)
	for _, f := range layers {
		l = f(l)
	}
	x := assay.Experiment{ID: "x", Sandbox: l, SandboxReuse: true, MaxConcurrency: 1, Timeout: time.Minute}
	if change != nil {
		change(&x)
	}
	return x
}

func TestReuseRunsEachStageAsOftenAsItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		var kept sandbox.State[int]
		hook := func(name string) sandbox.Hook {
			return func(_ context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error {
				n, _ := kept.Get(s)
				kept.Set(s, n+1)
				j.add("%s%d", name, n)
				return nil
			}
		}
		x := shared(p, func(x *assay.Experiment) { x.Agent, x.Attempts = stepper{j}, 2 }, func(l sandbox.Layer) sandbox.Layer {
			return l.Setup(hook("s")).Teardown(hook("t")).PrepareFunc(hook("p"))
		})
		st := play(t, one(x, hello("a"), hello("b")), setup{})
		if st.err != nil || st.out.Red {
			t.Fatal(st.err, st.out)
		}
		each := "ensure agent-setup send agent-teardown "
		want := "s0 p1 " + each + "p2 " + each + "p3 " + each + "p4 " + each + "t5"
		if got := j.String(); got != want {
			t.Errorf("stages\n got %s\nwant %s", got, want)
		}
		var uses []string
		ids := map[string]bool{}
		for _, a := range st.attempts {
			uses = append(uses, fmt.Sprintf("%s#%d:%d/%d/%v", a.Eval, a.Ordinal, a.Sandbox.Ordinal, a.Sandbox.Use, a.Sandbox.Reused))
			ids[a.Sandbox.ID] = true
		}
		slices.Sort(uses)
		if got := strings.Join(uses, " "); got != "a#0:1/1/false a#1:1/3/true b#0:1/2/true b#1:1/4/true" || len(ids) != 1 {
			t.Errorf("uses %s of %d sandboxes", got, len(ids))
		}
		if n := len(p.Instances("")); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		if f := st.ends[0].Facts["assay.sandbox.reuse"]; string(f.Value) != `{"sandboxes":1,"attempts":4}` {
			t.Errorf("the run says %s of its reuse", f.Value)
		}
	})
}

func TestReuseStartsFromTheResetPoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		var mu sync.Mutex
		agent := writer{func(ctx context.Context, s *agent.Session) error {
			var found []string
			for _, f := range []string{"base", "task", "old/left", "node_modules/left", "/tmp/left"} {
				if ok, err := s.Sandbox.PathExists(ctx, f); err != nil {
					return err
				} else if ok {
					found = append(found, f)
				}
			}
			base, err := s.Sandbox.ReadText(ctx, "base")
			mu.Lock()
			seen = append(seen, strings.Join(found, " ")+" base="+base)
			mu.Unlock()
			return errors.Join(err, s.Sandbox.WriteText(ctx, "base", "changed"), s.Sandbox.WriteText(ctx, "old/left", "x"),
				s.Sandbox.WriteText(ctx, "node_modules/left", "x"), s.Sandbox.WriteText(ctx, "/tmp/left", "x"))
		}}
		x := shared(fake.New(fake.Script{}), func(x *assay.Experiment) { x.Agent, x.Attempts = agent, 2 }, func(l sandbox.Layer) sandbox.Layer {
			return l.Setup(func(ctx context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error {
				return s.WriteText(ctx, "base", "set up")
			})
		})
		st := play(t, one(x, assay.Eval{ID: "e", Prompt: "go", Files: map[string]string{"task": "t"}}), setup{})
		if st.err != nil || st.out.Red {
			t.Fatal(st.err, st.out)
		}
		// What is excluded from the ledger and what lies outside the workdir stays.
		if got := strings.Join(seen, ", "); got != "base task base=set up, base task node_modules/left /tmp/left base=set up" {
			t.Errorf("the attempts saw %s", got)
		}
		for _, a := range st.attempts {
			if a.Diff == nil || len(a.Diff.Changes) != 2 {
				t.Errorf("attempt %d changed %+v, want base and old/left", a.Ordinal, a.Diff)
			}
		}
	})
}

// meddler is a provider whose sandboxes fail chosen requests of the ledger.
type meddler struct {
	*fake.Provider
	fails func(op snapshot.Op) error
}

func (m meddler) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	d, err := m.Provider.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return meddled{d, m.fails}, nil
}

type meddled struct {
	sandbox.Driver
	fails func(op snapshot.Op) error
}

func (m meddled) Unwrap() sandbox.Driver { return m.Driver }

func (m meddled) Track(ctx context.Context, request []byte, w io.Writer) error {
	var r snapshot.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return err
	}
	if err := m.fails(r.Op); err != nil {
		return err
	}
	tr, _ := sandbox.AsDriver[sandbox.Tracker](m.Driver)
	return tr.Track(ctx, request, w)
}

func TestASandboxThatCannotBeResetIsRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		m := meddler{p, func(op snapshot.Op) error {
			if op == snapshot.OpReset {
				return errors.New("the disk is odd")
			}
			return nil
		}}
		x := shared(p, func(x *assay.Experiment) { x.Attempts, x.MaxConcurrency = 10, 2 })
		x.Sandbox = sandbox.From(sandbox.Template{Provider: m, Spec: struct{}{}}).Lifetime(time.Hour)
		st := play(t, one(x, hello("e")), setup{})
		if st.err != nil || st.out.Red || len(st.attempts) != 10 {
			t.Fatal(st.err, st.out, len(st.attempts))
		}
		for _, a := range st.attempts {
			if a.Sandbox.Use != 1 || a.Sandbox.Reused {
				t.Errorf("attempt %d is use %d", a.Ordinal, a.Sandbox.Use)
			}
		}
		warned := 0 // each attempt but the first of a lane found one to take over
		for _, d := range st.ends[0].Diagnostics {
			if d.Code == "sandbox-reset-failed" && strings.Contains(d.Message, "the disk is odd") {
				warned += d.Count
			}
		}
		if warned < 8 || warned > 9 || len(p.Instances("")) != 0 {
			t.Errorf("%d warnings, %d sandboxes are left", warned, len(p.Instances("")))
		}
	})
}

func TestReuseAsksTheProviderForItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A first sandbox that is asked once at its birth and refuses the second
		// time is replaced; that is no event.
		asked := 0
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) { x.Attempts = 3 })
		x.Sandbox = sandbox.From(sandbox.Template{Provider: mortal{p, func() error {
			if asked++; asked == 2 {
				return errors.New("it ends in a minute")
			}
			return nil
		}}, Spec: struct{}{}}).Lifetime(time.Hour)
		st := play(t, one(x, hello("e")), setup{})
		if st.err != nil || st.out.Red || len(st.ends[0].Diagnostics) != 0 {
			t.Fatal(st.err, st.out, st.ends[0].Diagnostics)
		}
		var uses []string
		for _, a := range st.attempts {
			uses = append(uses, fmt.Sprint(a.Sandbox.Ordinal, "/", a.Sandbox.Use))
		}
		if got := strings.Join(uses, " "); got != "1/1 2/1 2/2" {
			t.Errorf("uses %s", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// One that never lives long enough ends the experiment instead of a loop.
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) { x.Attempts = 5 })
		x.Sandbox = sandbox.From(sandbox.Template{Provider: mortal{p, func() error { return errors.New("an hour is the cap of this account") }}, Spec: struct{}{}}).Lifetime(time.Hour)
		st := play(t, one(x, hello("e")), setup{})
		if len(st.attempts) != 1 || st.attempts[0].Error.Code != "sandbox-lifetime-insufficient" || !strings.Contains(st.attempts[0].Error.Message, "an hour is the cap") || st.attempts[0].Error.Fix == "" {
			t.Errorf("%d attempts, the first with %+v", len(st.attempts), st.attempts[0].Error)
		}
		if len(st.ends[0].NotRun) != 4 || len(p.Instances("")) != 0 {
			t.Errorf("%d not run, %d sandboxes are left", len(st.ends[0].NotRun), len(p.Instances("")))
		}
	})
}

// mortal is a provider whose sandboxes answer for their life with says.
type mortal struct {
	*fake.Provider
	says func() error
}

func (m mortal) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	d, err := m.Provider.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return mortalBox{d, m.says}, nil
}

type mortalBox struct {
	sandbox.Driver
	says func() error
}

func (m mortalBox) Unwrap() sandbox.Driver { return m.Driver }
func (m mortalBox) EnsureLifetime(_ context.Context, min time.Duration) (time.Time, error) {
	return time.Now().Add(min), m.says()
}

func TestWhenASandboxIsNotUsedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(x *assay.Experiment, e *assay.Eval)
		want   string // sandbox/use of three attempts
	}{
		"its attempts passed": {func(*assay.Experiment, *assay.Eval) {}, "1/1 1/2 1/3"},
		"its attempts failed": {func(_ *assay.Experiment, e *assay.Eval) {
			e.Checks = []assay.Check{{File: &assay.FileCheck{Path: "nothing"}}}
		}, "1/1 1/2 1/3"},
		"it has served enough": {func(x *assay.Experiment, _ *assay.Eval) { x.MaxUses = 2 }, "1/1 1/2 2/1"},
		"an attempt timed out": {func(x *assay.Experiment, _ *assay.Eval) {
			x.Timeout = time.Second
			x.Agent = writer{func(ctx context.Context, s *agent.Session) error {
				if s.Ordinal != 0 {
					return nil
				}
				_, err := s.Sandbox.RunCommand(ctx, []string{"sleep", "100"})
				return err
			}}
		}, "1/1 1/2 1/3"}, // its processes are provably gone
		"its clean-up failed": {func(_ *assay.Experiment, e *assay.Eval) {
			e.Teardown = []sandbox.Command{{Argv: []string{"false"}}}
		}, "1/1 2/1 3/1"},
		"its attempt's set-up failed": {func(_ *assay.Experiment, e *assay.Eval) {
			e.Setup = []sandbox.Command{{Argv: []string{"false"}}}
		}, "1/1 2/1"}, // the same error twice ends the eval
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				e := hello("e")
				x := shared(p, func(x *assay.Experiment) { x.Attempts = 3; tt.change(x, &e) })
				st := play(t, one(x, e), setup{})
				if st.err != nil {
					t.Fatal(st.err)
				}
				var uses []string
				for _, a := range st.attempts {
					uses = append(uses, fmt.Sprint(a.Sandbox.Ordinal, "/", a.Sandbox.Use))
				}
				if got := strings.Join(uses, " "); got != tt.want {
					t.Errorf("uses %s, want %s", got, tt.want)
				}
				if n := len(p.Instances("")); n != 0 {
					t.Errorf("%d sandboxes are left", n)
				}
			})
		})
	}
}

func TestReuseNeverMixesStartPoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{Users: []fake.User{{Name: "other", UID: 2000}}})
		var mu sync.Mutex
		peak := 0
		hooked := hello("c")
		hooked.Sandbox = sandbox.NewLayer().Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil })
		other := hello("b")
		other.Sandbox = sandbox.NewLayer().User("other")
		x := shared(p, func(x *assay.Experiment) {
			x.Attempts, x.MaxConcurrency = 4, 2
			x.Agent = writer{func(ctx context.Context, s *agent.Session) error {
				mu.Lock()
				defer mu.Unlock()
				peak = max(peak, len(p.Instances("")))
				return nil
			}}
		})
		st := play(t, one(x, hello("a"), other, hooked), setup{})
		if st.err != nil || st.out.Red || len(st.attempts) != 12 {
			t.Fatal(st.err, st.out, len(st.attempts))
		}
		owner := map[string]ref.EvalID{}
		for _, a := range st.attempts {
			if o, ok := owner[a.Sandbox.ID]; ok && o != a.Eval {
				t.Errorf("%s and %s shared a sandbox", o, a.Eval)
			}
			owner[a.Sandbox.ID] = a.Eval
		}
		if peak > 2 {
			t.Errorf("%d sandboxes at once in 2 lanes", peak)
		}
	})
}

func TestReuseIsRefusedBeforeAnythingIsMade(t *testing.T) {
	p := fake.New(fake.Script{})
	for name, tt := range map[string]struct {
		change func(*assay.Experiment)
		sel    plan.Selection
		code   string
	}{
		"no lifetime":      {change: func(x *assay.Experiment) { x.Sandbox = p.Layer() }, code: "sandbox.reuse-lifetime-missing"},
		"a short lifetime": {change: func(x *assay.Experiment) { x.Sandbox = p.Layer().Lifetime(80 * time.Second) }, code: "sandbox.lifetime-too-short"},
		"root":             {change: func(x *assay.Experiment) { x.Sandbox = x.Sandbox.User("root") }, code: "sandbox.reuse-root"},
		"keeping":          {sel: plan.Selection{KeepSandbox: "failed"}, code: "sandbox.reuse-keep-conflict"},
		"uses without it":  {change: func(x *assay.Experiment) { x.SandboxReuse, x.MaxUses = false, 3 }, code: "sandbox.reuse-max-uses"},
		"a provider of one": {change: func(x *assay.Experiment) {
			x.Sandbox = sandbox.From(sandbox.Template{Provider: single{p}, Spec: 1}).Lifetime(time.Hour)
		}, code: "sandbox.reuse-unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			x := shared(p, tt.change)
			st := play(t, one(x, hello("e")), setup{sel: tt.sel})
			if !hasCode(st.err, tt.code) {
				t.Errorf("error %v, want %s", st.err, tt.code)
			}
			if fe := (*fault.Error)(nil); errors.As(st.err, &fe) && fe.Fix == "" {
				t.Error("the error says no way out")
			}
		})
	}
}

// single cannot reuse.
type single struct{ *fake.Provider }

func (s single) Info() sandbox.Info { i := s.Provider.Info(); i.Reuse = false; return i }

func hasCode(err error, code string) bool {
	if fault.CodeOf(err) == code {
		return true
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(j.Unwrap(), func(e error) bool { return hasCode(e, code) })
	}
	return false
}

// group is a suite of a group of a, b and c beside a free eval.
func group(p *fake.Provider, x assay.Experiment, g assay.Group) assay.Suite {
	x.ID, x.Timeout = "x", time.Minute
	if x.Agent == nil {
		x.Agent = writer{func(context.Context, *agent.Session) error { return nil }}
	}
	g.ID, g.Evals = "g", []ref.EvalID{"c", "a", "b"}
	g.Sandbox = p.Layer()
	free := hello("free")
	free.Sandbox = p.Layer()
	return assay.Suite{Experiments: []assay.Experiment{x}, Evals: []assay.Eval{hello("a"), hello("b"), hello("c"), free}, Groups: []assay.Group{g}}
}

func TestGroupSharesOneSandboxInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		var mu sync.Mutex
		var order []string
		st := play(t, group(p, assay.Experiment{Attempts: 2, Agent: writer{func(_ context.Context, s *agent.Session) error {
			mu.Lock()
			defer mu.Unlock()
			if s.Eval != "free" {
				order = append(order, fmt.Sprint(s.Eval, s.Ordinal))
			}
			return nil
		}}}, assay.Group{}), setup{})
		if st.err != nil || st.out.Red {
			t.Fatal(st.err, st.out)
		}
		if got := strings.Join(order, " "); got != "c0 a0 b0 c1 a1 b1" {
			t.Errorf("order %s", got)
		}
		ids := map[string]int{}
		for _, a := range st.attempts {
			if a.Eval != "free" {
				ids[a.Sandbox.ID]++
			} else if a.Sandbox.Ordinal != 0 {
				t.Error("an eval outside of the group shares")
			}
		}
		if len(ids) != 1 {
			t.Errorf("the members used %d sandboxes", len(ids))
		}
	})
}

func TestGroupThatLosesItsSandbox(t *testing.T) {
	for mode, want := range map[string]string{"": "c:passed a:errored b:not-run", "stop-group": "c:passed a:errored b:not-run", "replace-sandbox": "c:passed a:errored b:passed"} {
		t.Run("mode "+mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				suite := group(p, assay.Experiment{Agent: writer{func(ctx context.Context, s *agent.Session) error {
					if s.Eval != "a" {
						return nil
					}
					for _, in := range p.Instances("") {
						if in == s.Sandbox.ID() {
							return errors.Join(errors.New("it is gone"), s.Sandbox.Stop(ctx))
						}
					}
					return errors.New("no such sandbox")
				}}}, assay.Group{OnUnavailable: mode})
				st := play(t, suite, setup{sel: plan.Selection{Evals: []string{"a", "b", "c"}}})
				if st.err != nil {
					t.Fatal(st.err)
				}
				got := map[ref.EvalID]string{}
				for _, a := range st.attempts {
					got[a.Eval] = string(a.Verdict)
				}
				for _, n := range st.ends[0].NotRun {
					got[n.Eval] = "not-run"
					if n.Reason != "group-stopped" {
						t.Errorf("the reason is %s", n.Reason)
					}
				}
				if s := fmt.Sprintf("c:%s a:%s b:%s", got["c"], got["a"], got["b"]); s != want {
					t.Errorf("%s, want %s", s, want)
				}
				if !st.out.Red || len(p.Instances("")) != 0 {
					t.Errorf("red %v, %d sandboxes are left", st.out.Red, len(p.Instances("")))
				}
			})
		})
	}
}

func TestGroupsAreChecked(t *testing.T) {
	p := fake.New(fake.Script{})
	for name, tt := range map[string]struct {
		change func(*assay.Suite)
		code   string
	}{
		"a member that is no eval": {func(s *assay.Suite) { s.Groups[0].Evals = []ref.EvalID{"a", "aa"} }, "eval-group-member-unresolved"},
		"no member":                {func(s *assay.Suite) { s.Groups[0].Evals = nil }, "eval-group-member-unresolved"},
		"a member twice":           {func(s *assay.Suite) { s.Groups[0].Evals = []ref.EvalID{"a", "a"} }, "eval-group-member-overlap"},
		"a member of two": {func(s *assay.Suite) {
			s.Groups = append(s.Groups, assay.Group{ID: "h", Evals: []ref.EvalID{"b"}, Sandbox: p.Layer()})
		}, "eval-group-member-overlap"},
		"a member with a start point": {func(s *assay.Suite) { s.Evals[0].Sandbox = p.Layer() }, "eval-group-member-layer"},
		"members that differ":         {func(s *assay.Suite) { s.Evals[0].Diff.Ignore = []string{"x"} }, "eval-group-incompatible"},
		"reuse of the experiment":     {func(s *assay.Suite) { s.Experiments[0].SandboxReuse = true }, "eval-group-sandbox-reuse-conflict"},
		"a direct agent":              {func(s *assay.Suite) { s.Experiments[0].Agent = direct{} }, "eval-group-direct-agent"},
		"an unknown mode":             {func(s *assay.Suite) { s.Groups[0].OnUnavailable = "panic" }, "eval-group-on-unavailable"},
		"two start points":            {func(s *assay.Suite) { s.Experiments[0].Sandbox = p.Layer() }, "sandbox.template-conflict"},
	} {
		t.Run(name, func(t *testing.T) {
			s := group(p, assay.Experiment{}, assay.Group{})
			tt.change(&s)
			if st := play(t, s, setup{}); !hasCode(st.err, tt.code) {
				t.Errorf("error %v, want %s", st.err, tt.code)
			}
		})
	}
}

func TestLaterAttemptsThatFailAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) {
			x.Attempts = 4
			x.Agent = writer{func(ctx context.Context, s *agent.Session) error {
				there, err := s.Sandbox.PathExists(ctx, "/tmp/poison")
				if err == nil && !there {
					err = errors.Join(s.Sandbox.WriteText(ctx, "done", "x"), s.Sandbox.WriteText(ctx, "/tmp/poison", "x"))
				}
				return err
			}}
		})
		e := hello("e")
		e.Checks = []assay.Check{{File: &assay.FileCheck{Path: "done"}}}
		st := play(t, one(x, e), setup{})
		if st.err != nil {
			t.Fatal(st.err)
		}
		d := st.ends[0].Diagnostics
		if len(d) != 1 || d[0].Code != "reuse-contamination-suspected" || !strings.Contains(d[0].Message, "its attempts 2, 3, 4 failed in the checks") {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

func TestTeardownOfASharedSandboxThatFailsIsAnErrorOfTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		x := shared(p, func(x *assay.Experiment) { x.Attempts = 2 }, func(l sandbox.Layer) sandbox.Layer {
			return l.Teardown(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return errors.New("state not saved") })
		})
		st := play(t, one(x, hello("e")), setup{})
		end := st.ends[0]
		if end.Error == nil || end.Error.Code != "sandbox-teardown-fatal" || !st.out.Red || end.Completion != record.RunFailed {
			t.Errorf("the run ended with %+v, red %v, %s", end.Error, st.out.Red, end.Completion)
		}
		for _, a := range st.attempts {
			if a.Verdict != record.Passed {
				t.Errorf("attempt %d is %s", a.Ordinal, a.Verdict)
			}
		}
		if len(p.Instances("")) != 0 {
			t.Error("the sandbox is left")
		}
	})
}

func TestInterruptedReuseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		j := &journal{}
		x := shared(p, func(x *assay.Experiment) { x.Attempts, x.MaxConcurrency, x.Agent = 20, 3, busy{d: 10 * time.Second} }, func(l sandbox.Layer) sandbox.Layer {
			return l.Teardown(j.hook("t", nil))
		})
		st := play(t, one(x, hello("e")), setup{interrupt: []time.Duration{25 * time.Second}})
		if st.out.Receipt.Completion != record.Interrupted || len(p.Instances("")) != 0 {
			t.Errorf("%s, %d sandboxes are left", st.out.Receipt.Completion, len(p.Instances("")))
		}
		if got := j.String(); got != "t t t" {
			t.Errorf("teardowns %q, want one for each of the three sandboxes", got)
		}
		for _, e := range st.events {
			if d, ok := e.(event.Diagnostic); ok {
				t.Errorf("an interrupt is no finding: %+v", d.Diagnostic)
			}
		}
	})
}

// Whatever fails, times out or is cut, every permit comes back (the run ends)
// and every sandbox is destroyed, those that were shared too.
func TestAnyInterleavingLeavesNothing(t *testing.T) {
	for seed := range uint64(24) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			var mu sync.Mutex
			chance := func(of int) bool {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(of) == 0
			}
			p := fake.New(fake.Script{Faults: fake.Faults{Stop: fake.Fault{Transient: rng.IntN(2)}}})
			m := meddler{p, func(snapshot.Op) error {
				if chance(25) {
					return errors.New("the ledger fails")
				}
				return nil
			}}
			layer := sandbox.From(sandbox.Template{Provider: m, Spec: struct{}{}}).Lifetime(time.Hour).
				Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
					if chance(12) {
						return errors.New("set-up fails")
					}
					return nil
				}).
				Teardown(func(ctx context.Context, _ *sandbox.Sandbox, _ sandbox.Notes) error {
					if chance(12) {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				})
			who := writer{func(ctx context.Context, s *agent.Session) error {
				switch {
				case chance(8):
					return errors.New("the agent fails")
				case chance(10):
					_, err := s.Sandbox.RunCommand(ctx, []string{"sleep", "1000"})
					return err
				case chance(10):
					return s.Sandbox.Stop(ctx)
				case chance(15):
					panic("a bug")
				}
				time.Sleep(time.Second)
				return nil
			}}
			fresh := assay.Experiment{ID: "fresh", Sandbox: p.Layer(), Agent: who, Attempts: 6, Timeout: 20 * time.Second}
			many := assay.Experiment{ID: "shared", Sandbox: layer, Agent: who, Attempts: 8, Timeout: 20 * time.Second, SandboxReuse: true, MaxConcurrency: 1 + rng.IntN(3), MaxUses: rng.IntN(4)}
			grouped := assay.Experiment{ID: "grouped", Agent: who, Attempts: 3, Timeout: 20 * time.Second, Evals: []string{"g"}}
			suite := assay.Suite{
				Experiments: []assay.Experiment{fresh, many, grouped}, Evals: []assay.Eval{hello("a"), hello("b"), hello("g/1"), hello("g/2")},
				Groups: []assay.Group{{ID: "g", Evals: []ref.EvalID{"g/2", "g/1"}, Sandbox: layer, OnUnavailable: []string{"", "replace-sandbox"}[rng.IntN(2)]}},
			}
			suite.Experiments[0].Evals, suite.Experiments[1].Evals = []string{"a", "b"}, []string{"a", "b"}
			var s setup
			if rng.IntN(2) == 0 {
				s.interrupt = append(s.interrupt, time.Duration(1+rng.IntN(40))*time.Second)
				if rng.IntN(2) == 0 {
					s.interrupt = append(s.interrupt, s.interrupt[0]+time.Duration(rng.IntN(10))*time.Second)
				}
			}
			st := play(t, suite, s)
			if st.err != nil || st.out.Fatal != nil {
				t.Fatal(seed, st.err, st.out.Fatal)
			}
			if left := p.Instances(""); len(left) != 0 {
				t.Errorf("seed %d: %d sandboxes are left", seed, len(left))
			}
			total := len(st.attempts)
			for _, e := range st.ends {
				total += len(e.NotRun)
			}
			if total != 12+16+6 {
				t.Errorf("seed %d: %d slots ended, of 34", seed, total)
			}
		})
	}
}

// A second signal ends what runs in sandboxes at once, and lets commands that
// release something on the host go on for a moment.
func TestHostTeardownsOutliveTheSecondSignal(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse %v", reuse), func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "released")
			p := fake.New(fake.Script{})
			layer := p.Layer().Lifetime(time.Hour).TeardownCommands(sandbox.Command{Host: true, Shell: "sleep 1; echo yes > " + mark})
			x := assay.Experiment{ID: "x", Sandbox: layer, SandboxReuse: reuse, MaxConcurrency: 1, Timeout: time.Minute, Agent: busy{d: time.Minute}}
			st := play(t, one(x, hello("e")), setup{interrupt: []time.Duration{500 * time.Millisecond, 800 * time.Millisecond}})
			if st.out.Receipt.Completion != record.Interrupted {
				t.Fatalf("%+v", st.out)
			}
			if b, err := os.ReadFile(mark); err != nil || string(b) != "yes\n" {
				t.Errorf("the host command was cut: %q, %v", b, err)
			}
		})
	}
}
