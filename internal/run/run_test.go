package run_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"assay"
	"assay/agent"
	"assay/agent/script"
	"assay/expect"
	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/run"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// story is one run of a suite and everything that came of it.
type story struct {
	out      run.Outcome
	err      error
	events   []event.Event
	attempts []*record.Attempt // in slot order of the record
	ends     []*record.End
	root     string
	took     time.Duration
}

// by returns the only attempt of an eval.
func (s *story) by(t *testing.T, id ref.EvalID) *record.Attempt {
	t.Helper()
	var found *record.Attempt
	for _, a := range s.attempts {
		if a.Eval == id {
			if found != nil {
				t.Fatalf("eval %s has several attempts", id)
			}
			found = a
		}
	}
	if found == nil {
		t.Fatalf("eval %s has no attempt; there are %d", id, len(s.attempts))
	}
	return found
}

// setup changes how a story is played.
type setup struct {
	sel       plan.Selection
	interrupt []time.Duration // when signals come
	env       map[string]string
	onEvent   func(event.Event)
	onRoot    func(string)
	state     string // the folder for what is no result
}

// play runs a suite to its end.
func play(t *testing.T, suite assay.Suite, s setup) *story {
	t.Helper()
	st := &story{root: filepath.Join(t.TempDir(), "record")}
	p, err := plan.Link(t.Context(), &suite, s.sel, nil)
	if err != nil {
		st.err = err
		return st
	}
	w, err := record.Open(st.root, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if s.onRoot != nil {
		s.onRoot(st.root)
	}
	work, cancel := context.WithCancelCause(t.Context())
	force, cut := context.WithCancelCause(context.WithoutCancel(t.Context()))
	defer cancel(nil)
	defer cut(nil)
	for i, at := range s.interrupt {
		f := cancel
		if i == 1 {
			f = cut
		}
		time.AfterFunc(at, func() { f(attempt.ErrInterrupted) })
	}
	var mu sync.Mutex
	begin := time.Now()
	st.out, st.err = run.Run(work, run.Options{
		Plan: p, Writer: w, Force: force, State: s.state,
		Sink: func(e event.Event) {
			mu.Lock()
			st.events = append(st.events, e)
			mu.Unlock()
			if s.onEvent != nil {
				s.onEvent(e)
			}
		},
		Env: func(n string) (string, bool) { v, ok := s.env[n]; return v, ok },
	})
	st.took = time.Since(begin)
	if st.out.Fatal != nil {
		return st
	}
	r, err := record.OpenReader(st.root)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	runs, problems, err := r.Runs(t.Context())
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for rs, err := range r.Slots(t.Context(), runs) {
		if err != nil {
			t.Fatal(err)
		}
		for _, slot := range rs.Slots {
			if slot.Attempt != nil {
				st.attempts = append(st.attempts, slot.Attempt)
			}
		}
		st.ends = append(st.ends, rs.Run.End)
	}
	return st
}

// journal notes what happened in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, " ")
}

func (j *journal) hook(name string, err error) sandbox.Hook {
	return func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { j.add("%s", name); return err }
}

// busy is an agent whose turn takes a while.
type busy struct {
	d     time.Duration
	now   *atomic.Int32
	peak  *atomic.Int32
	fails func(in agent.Input) error
}

func (busy) Info() agent.Info { return agent.Info{Name: "busy", Direct: false} }

func (b busy) Send(ctx context.Context, _ *agent.Session, in agent.Input) (agent.Turn, error) {
	if b.now != nil {
		n := b.now.Add(1)
		defer b.now.Add(-1)
		for {
			p := b.peak.Load()
			if n <= p || b.peak.CompareAndSwap(p, n) {
				break
			}
		}
	}
	select {
	case <-time.After(b.d):
	case <-ctx.Done():
		return agent.Turn{}, context.Cause(ctx)
	}
	if b.fails != nil {
		if err := b.fails(in); err != nil {
			return agent.Turn{}, err
		}
	}
	return agent.Turn{Status: agent.Completed, Message: "ok"}, nil
}

func hello(id ref.EvalID) assay.Eval { return assay.Eval{ID: id, Prompt: "go"} }

func one(x assay.Experiment, evals ...assay.Eval) assay.Suite {
	if x.ID == "" {
		x.ID = "x"
	}
	if x.Agent == nil {
		x.Agent = script.Nop{}
	}
	return assay.Suite{Experiments: []assay.Experiment{x}, Evals: evals}
}

func TestOrderOfOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		layer := p.Layer().Setup(j.hook("s1", nil), j.hook("s2", nil)).Teardown(j.hook("t1", nil), j.hook("t2", nil)).PrepareFunc(j.hook("p", nil))
		st := play(t, one(assay.Experiment{
			Sandbox: layer, Agent: stepper{j},
			Setup:    func(context.Context, sandbox.Notes) error { j.add("xs"); return nil },
			Teardown: func(context.Context, sandbox.Notes) error { j.add("xt"); return nil },
		}, assay.Eval{ID: "e", Test: func(ctx context.Context, t *assay.T) error {
			j.add("body")
			t.Send(ctx, "go")
			return nil
		}}), setup{})
		if st.err != nil || st.out.Red {
			t.Fatal(st.err, st.out)
		}
		if got, want := j.String(), "xs s1 s2 p ensure agent-setup body send agent-teardown t2 t1 xt"; got != want {
			t.Errorf("order\n got %s\nwant %s", got, want)
		}
		if n := len(p.Instances("")); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
}

// stepper is an agent with every optional power.
type stepper struct{ j *journal }

func (stepper) Info() agent.Info { return agent.Info{Name: "stepper"} }
func (s stepper) Ensure(context.Context, *agent.Session) (agent.Installed, error) {
	s.j.add("ensure")
	return agent.Installed{Version: "1.2"}, nil
}
func (s stepper) Setup(context.Context, *agent.Session) error { s.j.add("agent-setup"); return nil }
func (s stepper) Teardown(context.Context, *agent.Session) error {
	s.j.add("agent-teardown")
	return nil
}

func (s stepper) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	s.j.add("send")
	return agent.Turn{Status: agent.Completed}, nil
}

func TestSetupShortCircuitRunsEveryTeardown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		layer := fake.New(fake.Script{}).Layer().
			Setup(j.hook("a", nil), j.hook("b", errors.New("no tunnel")), j.hook("c", nil)).
			Teardown(j.hook("x", nil), j.hook("y", nil))
		st := play(t, one(assay.Experiment{Sandbox: layer}, hello("e")), setup{})
		if got := j.String(); got != "a b y x" {
			t.Errorf("hooks ran as %q", got)
		}
		a := st.by(t, "e")
		if a.Verdict != record.Errored || a.Error.Code != "sandbox-setup-failed" || a.Error.Phase != "sandbox.setup" || !strings.Contains(a.Error.Message, "no tunnel") {
			t.Errorf("verdict %s, error %+v", a.Verdict, a.Error)
		}
		if len(a.Checks) != 0 || len(a.Turns) != 0 {
			t.Error("an agent's failure was invented")
		}
	})
}

func TestTeardownDoesNotRunWithoutASandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		layer := fake.New(fake.Script{Faults: fake.Faults{Create: fake.Fault{Config: "no such template"}}}).Layer().Teardown(j.hook("t", nil))
		st := play(t, one(assay.Experiment{Sandbox: layer}, hello("e")), setup{})
		if j.String() != "" {
			t.Error("a teardown ran")
		}
		if a := st.by(t, "e"); a.Verdict != record.Errored || a.Error.Phase != "sandbox.create" || a.Error.Class != "config" {
			t.Errorf("%+v", a.Error)
		}
	})
}

func TestTeardownDiagnosticAndError(t *testing.T) {
	for name, tt := range map[string]struct {
		hook sandbox.Hook
		want record.Verdict
	}{
		"diagnostic": {func(_ context.Context, _ *sandbox.Sandbox, n sandbox.Notes) error {
			return n.Diagnostic(sandbox.Diagnostic{Code: "cache-large", Level: sandbox.Warning, Message: "9 GB"})
		}, record.Passed},
		"error": {func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return errors.New("state not saved") }, record.Errored},
		"panic": {func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { panic("bug") }, record.Errored},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				st := play(t, one(assay.Experiment{Sandbox: p.Layer().Teardown(tt.hook)}, hello("e")), setup{})
				a := st.by(t, "e")
				if a.Verdict != tt.want {
					t.Errorf("verdict %s, error %+v", a.Verdict, a.Error)
				}
				if tt.want == record.Errored && a.Error.Code != "sandbox-teardown-fatal" {
					t.Errorf("code %s", a.Error.Code)
				}
				if tt.want == record.Passed && (len(a.Diagnostics) != 1 || a.Diagnostics[0].Phase != "sandbox.teardown") {
					t.Errorf("diagnostics %+v", a.Diagnostics)
				}
				if len(p.Instances("")) != 0 {
					t.Error("the sandbox is left")
				}
			})
		})
	}
}

func TestBaselineAndWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer().Setup(func(ctx context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error {
			return s.WriteText(ctx, "setup.txt", "s")
		})
		e := assay.Eval{ID: "e", Files: map[string]string{"start.txt": "a"}, Test: func(ctx context.Context, t *assay.T) error {
			t.Send(ctx, "one")
			if err := t.Sandbox().WriteText(ctx, "between.txt", "eval"); err != nil {
				return err
			}
			t.Send(ctx, "two")
			t.FileChanged("agent.txt")
			t.FileChanged("start.txt")
			t.NotInDiff("setup.txt")
			t.NotInDiff("between.txt")
			t.FileDeleted("gone.txt")
			return nil
		}}
		e.Files["gone.txt"] = "x"
		st := play(t, one(assay.Experiment{Sandbox: layer, Agent: script.Agent{Turns: []script.Turn{
			{Commands: []string{"echo 1 > agent.txt; rm gone.txt"}},
			{Commands: []string{"echo 2 >> agent.txt; echo b >> start.txt"}},
		}}}, e), setup{})
		a := st.by(t, "e")
		if a.Verdict != record.Passed {
			t.Fatalf("%+v %+v", a.Error, a.Checks)
		}
		var got []string
		for _, c := range a.Diff.Changes {
			got = append(got, c.Path+":"+c.Status)
		}
		slices.Sort(got)
		if want := []string{"agent.txt:added", "gone.txt:deleted", "start.txt:modified"}; !slices.Equal(got, want) {
			t.Errorf("changes %v, want %v", got, want)
		}
	})
}

func TestHiddenFilesComeAfterTheLastTurn(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "hidden", "tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hidden", "tests", "check.sh"), []byte("grep -q yes answer.txt\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := assay.Eval{ID: "e", Dir: dir, Hidden: "hidden", Prompt: "go", Checks: []assay.Check{
			{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "sh tests/check.sh"}}},
			{File: &assay.FileCheck{Path: "seen.txt", Match: &assay.ValueMatch{Excludes: "tests"}}},
			{Unchanged: "tests/**"},
		}}
		st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: script.Agent{Turns: []script.Turn{
			{Commands: []string{"ls > seen.txt; echo yes > answer.txt; sleep 1000 &"}},
		}}}, e), setup{})
		a := st.by(t, "e")
		if a.Verdict != record.Passed {
			t.Errorf("%+v %+v", a.Error, a.Checks)
		}
		if _, ok := a.Facts["assay.processes.ended"]; !ok {
			t.Error("the process that the agent left was not ended and told")
		}
	})
}

func TestStateIsPerSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handles sandbox.State[string]
		var bad atomic.Int32
		layer := fake.New(fake.Script{}).Layer().
			Setup(func(_ context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error { handles.Set(s, s.ID()); return nil }).
			Teardown(func(_ context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error {
				if v, ok := handles.Get(s); !ok || v != s.ID() {
					bad.Add(1)
				}
				return nil
			})
		st := play(t, one(assay.Experiment{Sandbox: layer, Agent: busy{d: time.Second}, Attempts: 8}, hello("e")), setup{})
		if len(st.attempts) != 8 || bad.Load() != 0 {
			t.Errorf("%d attempts, %d wrong handles", len(st.attempts), bad.Load())
		}
	})
}

func TestCreateRetries(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   fake.Fault
		verdict record.Verdict
		creates int
		min     time.Duration
	}{
		"twice transient":  {fake.Fault{Transient: 2}, record.Passed, 3, 1500 * time.Millisecond},
		"always transient": {fake.Fault{Class: "transient"}, record.Errored, 4, 3500 * time.Millisecond},
		"config":           {fake.Fault{Config: "template missing"}, record.Errored, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{Faults: fake.Faults{Create: tt.fault}})
				st := play(t, one(assay.Experiment{Sandbox: p.Layer()}, hello("e")), setup{})
				if a := st.by(t, "e"); a.Verdict != tt.verdict {
					t.Errorf("verdict %s: %+v", a.Verdict, a.Error)
				}
				if got := p.Stats().Creates; got != tt.creates {
					t.Errorf("%d creates, want %d", got, tt.creates)
				}
				if st.took < tt.min {
					t.Errorf("took %s, want at least %s", st.took, tt.min)
				}
				if len(p.Instances("")) != 0 {
					t.Error("a sandbox is left")
				}
			})
		})
	}
}

func TestCustomCreateIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := &sandbox.Func{
			Name:  "mine",
			Judge: func(error) fault.Class { return fault.Transient },
			Make: func(_ context.Context, o sandbox.FuncOptions) (sandbox.Driver, error) {
				calls++
				o.Feedback.Progress(sandbox.Progress{Message: "asking"})
				if err := o.Feedback.Diagnostic(sandbox.Diagnostic{Code: "slow", Level: sandbox.Warning, Message: "slow today"}); err != nil {
					t.Error(err)
				}
				return nil, errors.New("connection reset")
			},
		}
		st := play(t, one(assay.Experiment{Sandbox: f.Layer()}, hello("e")), setup{})
		a := st.by(t, "e")
		if calls != 1 || a.Verdict != record.Errored {
			t.Errorf("%d calls, verdict %s", calls, a.Verdict)
		}
		if len(a.Diagnostics) != 1 || a.Diagnostics[0].Phase != "sandbox.create" {
			t.Errorf("diagnostics %+v", a.Diagnostics)
		}
	})
}

func TestFeedbackChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer().Setup(func(_ context.Context, _ *sandbox.Sandbox, n sandbox.Notes) error {
			for i := range 100 {
				n.Progress(sandbox.Progress{Message: fmt.Sprint("step-", i)})
				if err := n.Diagnostic(sandbox.Diagnostic{Code: "slow", Level: sandbox.Warning, Message: "slow", DedupeKey: "k"}); err != nil {
					return err
				}
			}
			if err := n.Fact("com.acme.cache", map[string]int{"bytes": 12}); err != nil {
				return err
			}
			if err := n.Fact("com.acme.cache", 1); fault.CodeOf(err) != "record-custom-fact-duplicate" {
				t.Errorf("second fact: %v", err)
			}
			if err := n.Fact("nodot", 1); err == nil {
				t.Error("a fact without a dot was taken")
			}
			if err := n.Fact("com.acme.big", strings.Repeat("x", 70_000)); fault.CodeOf(err) != "record-custom-fact-too-large" {
				t.Errorf("a large fact: %v", err)
			}
			return nil
		})
		st := play(t, one(assay.Experiment{Sandbox: layer}, hello("e")), setup{})
		a := st.by(t, "e")
		if len(a.Diagnostics) != 1 || a.Diagnostics[0].Count != 100 || a.Diagnostics[0].Phase != "sandbox.setup" {
			t.Errorf("diagnostics %+v", a.Diagnostics)
		}
		if len(a.Facts) != 1 || a.Verdict != record.Passed {
			t.Errorf("facts %v, verdict %s", a.Facts, a.Verdict)
		}
		told := 0
		for _, e := range st.events {
			if _, ok := e.(event.Diagnostic); ok {
				told++
			}
		}
		if told != 1 {
			t.Errorf("the diagnostic was shown %d times", told)
		}
		found := false
		filepath.WalkDir(st.root, func(p string, d os.DirEntry, _ error) error {
			if d.Type().IsRegular() {
				b, _ := os.ReadFile(p)
				found = found || strings.Contains(string(b), "step-")
			}
			return nil
		})
		if found {
			t.Error("progress is in the record")
		}
	})
}

func TestWidths(t *testing.T) {
	for name, tt := range map[string]struct {
		x    assay.Experiment
		sel  plan.Selection
		peak int32
		took time.Duration
	}{
		"provider's own":       {assay.Experiment{Attempts: 12}, plan.Selection{}, 12, 0},
		"global":               {assay.Experiment{Attempts: 12}, plan.Selection{MaxConcurrency: 3}, 3, 4 * time.Second},
		"strict serial":        {assay.Experiment{Attempts: 4, MaxConcurrency: 1}, plan.Selection{MaxConcurrency: 8}, 1, 4 * time.Second},
		"experiment's own":     {assay.Experiment{Attempts: 4, MaxConcurrency: 2}, plan.Selection{}, 2, 2 * time.Second},
		"attempts of the flag": {assay.Experiment{}, plan.Selection{Attempts: 6, MaxConcurrency: 2}, 2, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now, peak atomic.Int32
				tt.x.Agent, tt.x.Sandbox = busy{d: time.Second, now: &now, peak: &peak}, fake.New(fake.Script{}).Layer()
				st := play(t, one(tt.x, hello("e")), setup{sel: tt.sel})
				if st.err != nil || st.out.Red {
					t.Fatal(st.err, st.out)
				}
				if peak.Load() != tt.peak {
					t.Errorf("peak %d, want %d", peak.Load(), tt.peak)
				}
				if tt.took > 0 && st.took != tt.took {
					t.Errorf("took %s, want %s", st.took, tt.took)
				}
			})
		})
	}
}

// A serial experiment is a critical section: the next sandbox's setup does not
// start before the last teardown is over.
func TestSerialExperimentIsACriticalSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		slow := func(name string) sandbox.Hook {
			return func(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
				j.add("%s", name)
				time.Sleep(time.Second)
				return nil
			}
		}
		layer := fake.New(fake.Script{}).Layer().Setup(slow("load")).Teardown(slow("save"))
		play(t, one(assay.Experiment{Sandbox: layer, Attempts: 3, MaxConcurrency: 1}, hello("e")), setup{})
		if got := j.String(); got != "load save load save load save" {
			t.Errorf("got %s", got)
		}
	})
}

func TestEarlyExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		st := play(t, one(assay.Experiment{Sandbox: p.Layer(), Attempts: 5, EarlyExit: true, MaxConcurrency: 1}, hello("a"), hello("b")), setup{})
		if len(st.attempts) != 2 || st.out.Red {
			t.Errorf("%d attempts, red %v", len(st.attempts), st.out.Red)
		}
		if n := len(st.ends[0].NotRun); n != 8 || st.ends[0].NotRun[0].Reason != "early-exit" {
			t.Errorf("not run: %+v", st.ends[0].NotRun)
		}
	})
}

func TestTheSameErrorTwiceHaltsTheEval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer()
		bad := hello("bad")
		bad.Setup = []sandbox.Command{{Shell: "exit 3"}}
		st := play(t, one(assay.Experiment{Sandbox: layer, Attempts: 5, MaxConcurrency: 1}, bad, hello("good")), setup{})
		count := map[ref.EvalID]int{}
		for _, a := range st.attempts {
			count[a.Eval]++
		}
		if count["bad"] != 2 || count["good"] != 5 || !st.out.Red {
			t.Errorf("attempts %v, red %v", count, st.out.Red)
		}
		if len(st.ends[0].Diagnostics) != 1 || st.ends[0].Diagnostics[0].Code != "dispatch-halted" {
			t.Errorf("diagnostics %+v", st.ends[0].Diagnostics)
		}
	})
}

func TestFatalErrorHaltsItsExperimentOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer()
		fatal := layer.Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
			return &fault.Error{Scope: fault.ScopeExperiment, Code: "licence", What: "the licence is over"}
		})
		suite := assay.Suite{Evals: []assay.Eval{hello("e1"), hello("e2"), hello("e3")}, Experiments: []assay.Experiment{
			{ID: "broken", Agent: script.Nop{}, Sandbox: fatal, MaxConcurrency: 1},
			{ID: "fine", Agent: script.Nop{}, Sandbox: layer},
		}}
		st := play(t, suite, setup{})
		count := map[ref.ExperimentID]int{}
		for _, a := range st.attempts {
			count[a.Experiment]++
		}
		if count["broken"] != 1 || count["fine"] != 3 {
			t.Errorf("attempts %v", count)
		}
	})
}

// priced is an agent that tells its cost.
type priced struct{ cost *float64 }

func (priced) Info() agent.Info { return agent.Info{Name: "priced"} }
func (p priced) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	return agent.Turn{Status: agent.Completed, Usage: &agent.Usage{CostUSD: p.cost}}, nil
}

func TestBudget(t *testing.T) {
	cost := 0.4
	for name, tt := range map[string]struct {
		agent    agent.Agent
		attempts int
		diag     string
	}{
		"enforced":       {priced{&cost}, 3, ""},
		"not enforcible": {priced{nil}, 10, "budget-unenforceable"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: tt.agent, Attempts: 10, Budget: 1, MaxConcurrency: 1}, hello("e")), setup{})
				if len(st.attempts) != tt.attempts {
					t.Errorf("%d attempts, want %d", len(st.attempts), tt.attempts)
				}
				if red := tt.attempts < 10; st.out.Red != red {
					t.Errorf("red %v", st.out.Red)
				}
				got := ""
				for _, d := range st.ends[0].Diagnostics {
					got += d.Code
				}
				if got != tt.diag {
					t.Errorf("diagnostics %q, want %q", got, tt.diag)
				}
			})
		})
	}
}

func TestAttemptDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		layer := p.Layer().Teardown(func(ctx context.Context, s *sandbox.Sandbox, _ sandbox.Notes) error {
			time.Sleep(5 * time.Second) // closing work has a budget of its own
			_, err := s.RunShellOrThrow(ctx, "echo alive")
			j.add("teardown %v", err)
			return nil
		})
		e := hello("e")
		e.Timeout = 10 * time.Second
		st := play(t, one(assay.Experiment{Sandbox: layer, Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"echo part > out.txt; sleep 3600"}}}}}, e), setup{})
		a := st.by(t, "e")
		if a.Verdict != record.Errored || a.Error.Code != "attempt-deadline" || a.Error.Timeout == nil || a.Error.Timeout.Layer != "eval" || a.Error.Timeout.ValueMS != 10_000 {
			t.Errorf("%+v %+v", a.Error, a.Error.Timeout)
		}
		if a.DurationMS != nil || a.CensoredMS == nil || *a.CensoredMS != 10_000 {
			t.Errorf("duration %v, censored %v", a.DurationMS, a.CensoredMS)
		}
		if a.Diff == nil || len(a.Diff.Changes) != 1 || a.Diff.Changes[0].Path != "out.txt" {
			t.Errorf("the evidence is lost: %+v", a.Diff)
		}
		if j.String() != "teardown <nil>" || len(p.Instances("")) != 0 {
			t.Errorf("closing: %s, %d left", j, len(p.Instances("")))
		}
	})
}

func TestDeadlineExcludesQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: busy{d: 8 * time.Second}, Attempts: 4, Timeout: 10 * time.Second}, hello("e")), setup{sel: plan.Selection{MaxConcurrency: 1}})
		for _, a := range st.attempts {
			if a.Verdict != record.Passed {
				t.Errorf("attempt %d: %+v", a.Ordinal, a.Error)
			}
		}
	})
}

func TestInterruptLevels(t *testing.T) {
	for name, tt := range map[string]struct {
		signals []time.Duration
		took    time.Duration
		saved   bool
	}{
		"one lets teardown finish": {[]time.Duration{2500 * time.Millisecond}, 2500*time.Millisecond + 20*time.Second, true},
		"two stop at once":         {[]time.Duration{2500 * time.Millisecond, 5 * time.Second}, 5 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				var saved atomic.Int32
				layer := p.Layer().Teardown(func(ctx context.Context, _ *sandbox.Sandbox, _ sandbox.Notes) error {
					select {
					case <-time.After(20 * time.Second):
						saved.Add(1)
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
				// The first attempts have no teardown and finish before the signal.
				suite := assay.Suite{Evals: []assay.Eval{hello("e")}, Experiments: []assay.Experiment{
					{ID: "quick", Agent: busy{d: time.Second}, Sandbox: p.Layer(), Attempts: 2},
					{ID: "slow", Agent: busy{d: time.Hour}, Sandbox: layer, Attempts: 5, MaxConcurrency: 2},
				}}
				st := play(t, suite, setup{interrupt: tt.signals})
				if st.out.Receipt.Completion != record.Interrupted || !st.out.Red {
					t.Errorf("outcome %+v", st.out)
				}
				if len(st.attempts) != 2 {
					t.Errorf("%d attempts are recorded, want the 2 finished ones", len(st.attempts))
				}
				notRun := 0
				for _, e := range st.ends {
					notRun += len(e.NotRun)
					if e.Completion != record.Interrupted {
						t.Errorf("completion %s", e.Completion)
					}
				}
				if notRun != 5 || (saved.Load() == 2) != tt.saved {
					t.Errorf("%d not run, %d saved", notRun, saved.Load())
				}
				if st.took != tt.took {
					t.Errorf("took %s, want %s", st.took, tt.took)
				}
				if len(p.Instances("")) != 0 {
					t.Errorf("%d sandboxes are left", len(p.Instances("")))
				}
			})
		})
	}
}

func TestExperimentSetupFailureErrorsItsAttemptsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		torn := 0
		suite := assay.Suite{Evals: []assay.Eval{hello("e1"), hello("e2")}, Experiments: []assay.Experiment{
			{ID: "bad", Agent: script.Nop{}, Sandbox: p.Layer(), Setup: func(context.Context, sandbox.Notes) error { return errors.New("port taken") }, Teardown: func(context.Context, sandbox.Notes) error { torn++; return nil }},
			{ID: "good", Agent: script.Nop{}, Sandbox: p.Layer()},
		}}
		st := play(t, suite, setup{})
		for _, a := range st.attempts {
			if a.Experiment == "bad" && (a.Error == nil || a.Error.Code != "experiment-setup-failed") || a.Experiment == "good" && a.Verdict != record.Passed {
				t.Errorf("%s: %s %+v", a.Experiment, a.Verdict, a.Error)
			}
		}
		if len(st.attempts) != 4 || torn != 1 || p.Stats().Creates != 2 {
			t.Errorf("%d attempts, %d teardowns, %d creates", len(st.attempts), torn, p.Stats().Creates)
		}
	})
}

func TestPreparationFailureStaysWithItsEval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := fake.New(fake.Script{Faults: fake.Faults{Prepare: fake.Fault{Config: "step 3 failed", Stage: "dockerfile"}}})
		fine := fake.New(fake.Script{})
		suite := assay.Suite{
			Defaults:    assay.Defaults{Sandbox: fine.Layer()},
			Experiments: []assay.Experiment{{ID: "x", Agent: script.Nop{}}},
			Evals:       []assay.Eval{hello("a"), {ID: "b", Prompt: "go", Sandbox: broken.Layer()}, hello("c")},
		}
		st := play(t, suite, setup{})
		b := st.by(t, "b")
		if b.Verdict != record.Errored || b.Error.Prepare == nil || b.Error.Prepare.Stage != "dockerfile" || b.Error.Prepare.Class != "config" || !slices.Equal(b.Error.Prepare.Levels, []string{"eval b"}) {
			t.Errorf("%+v", b.Error)
		}
		if st.by(t, "a").Verdict != record.Passed || st.by(t, "c").Verdict != record.Passed {
			t.Error("other evals were hit")
		}
		suite.Defaults.Sandbox = broken.Layer()
		st = play(t, suite, setup{})
		if st.err == nil || fault.ClassOf(st.err) != fault.Config || len(st.attempts) != 0 {
			t.Errorf("a broken default: %v, %d attempts", st.err, len(st.attempts))
		}
	})
}

func TestCheckRetriesAndClasses(t *testing.T) {
	for name, tt := range map[string]struct {
		fault fake.Fault
		class fault.Class
		took  time.Duration
	}{
		"transient twice":  {fake.Fault{Transient: 2}, fault.Unknown, 10 * time.Second},
		"transient always": {fake.Fault{Class: "transient"}, fault.Transient, 10 * time.Second},
		"bad token":        {fake.Fault{Config: "401"}, fault.Config, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{Faults: fake.Faults{Check: tt.fault}})
				st := play(t, one(assay.Experiment{Sandbox: p.Layer()}, hello("e")), setup{})
				if (st.err == nil) != (tt.class == fault.Unknown) || fault.ClassOf(st.err) != tt.class || st.took != tt.took {
					t.Errorf("err %v, took %s", st.err, st.took)
				}
			})
		})
	}
}

func TestSecretsAreNowhere(t *testing.T) {
	const secret = "sk-very-secret-value-42"
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer().SecretEnv("TOKEN")
		e := assay.Eval{ID: "e", Prompt: "tell " + secret, Checks: []assay.Check{
			{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "echo $TOKEN; echo $TOKEN >&2; exit 3"}}},
			{File: &assay.FileCheck{Path: "leak.txt", Match: &assay.ValueMatch{Contains: "x"}}},
		}}
		st := play(t, one(assay.Experiment{Sandbox: layer, Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"echo $TOKEN > leak.txt; echo $TOKEN"}, Reply: "it is " + secret}}}}, e), setup{env: map[string]string{"TOKEN": secret}})
		a := st.by(t, "e")
		if a.Verdict != record.Failed {
			t.Fatalf("%s %+v", a.Verdict, a.Error)
		}
		if got := a.Checks[0].Detail; !strings.Contains(got, "<redacted>") {
			t.Errorf("the command did not see the secret: %s", got)
		}
		filepath.WalkDir(st.root, func(p string, d os.DirEntry, _ error) error {
			if d.Type().IsRegular() {
				if b, _ := os.ReadFile(p); strings.Contains(string(b), secret) {
					t.Errorf("the secret is in %s", p)
				}
			}
			return nil
		})
		for _, ev := range st.events {
			if strings.Contains(fmt.Sprintf("%+v", ev), secret) {
				t.Errorf("the secret is in event %T", ev)
			}
		}
		st = play(t, one(assay.Experiment{Sandbox: layer}, hello("e")), setup{})
		if fault.CodeOf(st.err) != "secret-env-missing" || fault.ClassOf(st.err) != fault.Config {
			t.Errorf("a missing variable: %v", st.err)
		}
	})
}

func TestAVanishedSandboxIsItsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{Faults: fake.Faults{VanishAfter: 1}})
		st := play(t, one(assay.Experiment{Sandbox: p.Layer(), Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"true", "true"}}}}}, hello("e")), setup{})
		a := st.by(t, "e")
		if a.Verdict != record.Errored || !strings.HasPrefix(a.Error.Code, "sandbox") {
			t.Errorf("%s %+v", a.Verdict, a.Error)
		}
		if len(st.attempts) != 1 {
			t.Error("the attempt was run again")
		}
	})
}

func TestStopFailureChangesNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{Faults: fake.Faults{Stop: fake.Fault{Fail: 1}}})
		st := play(t, one(assay.Experiment{Sandbox: p.Layer()}, hello("e")), setup{})
		a := st.by(t, "e")
		if a.Verdict != record.Passed || len(a.Diagnostics) != 1 || a.Diagnostics[0].Code != "sandbox-stop-failed" {
			t.Errorf("%s %+v", a.Verdict, a.Diagnostics)
		}
	})
}

func TestDirectAgentNeedsNoSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		p := fake.New(fake.Script{})
		e := assay.Eval{ID: "e", Test: func(ctx context.Context, t *assay.T) error {
			t.Check(t.Send(ctx, "hi").Message, expect.Contains("ok"))
			return nil
		}}
		touch := assay.Eval{ID: "touch", Test: func(ctx context.Context, t *assay.T) error {
			t.Send(ctx, "hi")
			t.Sandbox()
			return nil
		}}
		st := play(t, one(assay.Experiment{Agent: direct{}, Sandbox: p.Layer().Setup(j.hook("s", nil)).Teardown(j.hook("t", nil))}, e, touch), setup{})
		if st.by(t, "e").Verdict != record.Passed || j.String() != "" || p.Stats().Creates != 0 {
			t.Errorf("%+v, hooks %q", st.by(t, "e"), j)
		}
		if a := st.by(t, "touch"); a.Error == nil || a.Error.Code != "sandbox-for-direct-agent" {
			t.Errorf("%+v", a.Error)
		}
		notices := 0
		for _, ev := range st.events {
			if n, ok := ev.(event.Notice); ok && n.Code == "sandbox-inert" {
				notices++
			}
		}
		if notices != 1 {
			t.Errorf("%d notices about the inert layer", notices)
		}
	})
}

type direct struct{}

func (direct) Info() agent.Info { return agent.Info{Name: "direct", Direct: true} }
func (direct) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	return agent.Turn{Status: agent.Completed, Message: "ok"}, nil
}

func TestSendRetries(t *testing.T) {
	for name, tt := range map[string]struct {
		acceptance agent.Acceptance
		class      fault.Class
		sends      int
		verdict    record.Verdict
	}{
		"rejected":           {agent.Rejected, fault.Transient, 3, record.Passed},
		"rejected for good":  {agent.Rejected, fault.Config, 1, record.Errored},
		"perhaps accepted":   {agent.AcceptanceUnknown, fault.Transient, 1, record.Errored},
		"surely accepted":    {agent.Started, fault.Transient, 1, record.Errored},
		"rejected too often": {agent.Rejected, fault.Resource, 1, record.Errored},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				a := busy{fails: func(agent.Input) error {
					n++
					if n == 3 {
						return nil
					}
					return &agent.SendError{Acceptance: tt.acceptance, Err: &fault.Error{Class: tt.class, What: "429"}}
				}}
				st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: a}, hello("e")), setup{})
				if got := st.by(t, "e"); n != tt.sends || got.Verdict != tt.verdict || len(got.Turns) != 1 {
					t.Errorf("%d sends, verdict %s, %d turns, %+v", n, got.Verdict, len(got.Turns), got.Error)
				}
			})
		})
	}
}

// A result that cannot be recorded did not happen, and nothing more is paid for.
func TestARecordThatCannotBeWrittenStopsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Script{})
		root := ""
		st := play(t, one(assay.Experiment{Sandbox: p.Layer(), Agent: busy{d: time.Second}, Attempts: 6, MaxConcurrency: 1}, hello("e")), setup{
			onRoot: func(r string) { root = r },
			onEvent: func(e event.Event) {
				if _, ok := e.(event.AttemptDone); !ok {
					return
				}
				// A file where the attempts belong: even root cannot go on.
				dirs, err := filepath.Glob(filepath.Join(root, "runs", "*", "attempts"))
				if err != nil || len(dirs) != 1 {
					t.Error(dirs, err)
					return
				}
				if err := os.Rename(dirs[0], dirs[0]+".gone"); err != nil {
					t.Error(err)
				}
				if err := os.WriteFile(dirs[0], nil, 0o600); err != nil {
					t.Error(err)
				}
			},
		})
		if st.out.Fatal == nil || !st.out.Red || st.out.Receipt.Completion != record.RunFailed {
			t.Errorf("outcome %+v", st.out)
		}
		if n := p.Stats().Creates; n != 2 {
			t.Errorf("%d sandboxes were created, want 2: the recorded and the lost one", n)
		}
		if len(p.Instances("")) != 0 {
			t.Error("a sandbox is left")
		}
	})
}

// An agent cannot escape a red verdict by standing in the way of the tests.
func TestAnAgentInTheWayOfHiddenFilesFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "hidden", "tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hidden", "tests", "check.sh"), []byte("exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := assay.Eval{ID: "e", Dir: dir, Hidden: "hidden", Prompt: "go", Checks: []assay.Check{{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "sh tests/check.sh"}}}}}
		st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"echo x > tests"}}}}}, e), setup{})
		if a := st.by(t, "e"); a.Verdict != record.Failed {
			t.Errorf("verdict %s: %+v %+v", a.Verdict, a.Error, a.Checks)
		}
	})
}

// A cost that is no cost must not raise the budget or break a sum.
func TestInvalidUsageIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cost := -3.0
		st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Agent: priced{&cost}}, hello("e")), setup{})
		a := st.by(t, "e")
		if a.CostUSD != nil || a.Usage != nil || len(a.Diagnostics) != 1 || a.Diagnostics[0].Code != "agent-usage-invalid" {
			t.Errorf("cost %v, usage %+v, diagnostics %+v", a.CostUSD, a.Usage, a.Diagnostics)
		}
	})
}
