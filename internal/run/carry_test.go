package run_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"assay"
	"assay/agent"
	"assay/agent/script"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/run"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// untouched is a provider that may be asked for facts only.
type untouched struct {
	sandbox.Provider
	calls atomic.Int32
}

func (u *untouched) Check(context.Context) error {
	u.calls.Add(1)
	return errors.New("the provider was asked")
}

func (u *untouched) Prepare(context.Context, sandbox.Template, sandbox.Harness, sandbox.Steps) (sandbox.Prepared, error) {
	u.calls.Add(1)
	return sandbox.Prepared{}, errors.New("the provider was asked")
}

// past is what a record knows, as the plan asks for it.
type past map[ref.Slot]*plan.Past

func (p past) Past(s ref.Slot) *plan.Past { return p[s] }

func read(t *testing.T, root string) (past, []*record.RunSlots) {
	t.Helper()
	r, err := record.OpenReader(root)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	runs, _, err := r.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, all := past{}, []*record.RunSlots(nil)
	for rs, err := range r.Sketch().Slots(t.Context(), runs) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rs)
		for _, s := range rs.Slots {
			if s.Attempt != nil {
				p[ref.Slot{Experiment: rs.Run.Experiment, Eval: s.Eval, Ordinal: s.Ordinal}] = &plan.Past{Attempt: s.Attempt, Identity: s.Attempt.Identity}
			}
		}
	}
	return p, all
}

// costly plays its script and says what each turn cost.
type costly struct{ script.Agent }

func (p costly) Info() agent.Info { i := p.Agent.Info(); i.Name = "costly"; return i }

func (p costly) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	turn, err := p.Agent.Send(ctx, s, in)
	cost := 3.0
	turn.Usage = &agent.Usage{CostUSD: &cost}
	return turn, err
}

// A run whose every slot is carried touches no provider and runs no hook, counts
// the old verdicts, and copies nothing.
func TestCarriedRunsTouchNothing(t *testing.T) {
	root := filepath.Join(t.TempDir(), "record")
	hooks := 0
	provider := fake.New(fake.Script{})
	watch := &untouched{Provider: provider}
	template := provider.Template()
	mine := template
	mine.Provider = watch
	suiteOf := func(tpl sandbox.Template, evals ...string) assay.Suite {
		s := assay.Suite{Experiments: []assay.Experiment{{
			ID: "x", Agent: costly{script.Agent{Turns: []script.Turn{{Commands: []string{"echo hi > out"}, Reply: "ok"}}}}, Sandbox: sandbox.From(tpl), Budget: 4, MaxConcurrency: 1,
			Setup: func(context.Context, sandbox.Notes) error { hooks++; return nil },
		}}}
		for _, id := range evals {
			s.Evals = append(s.Evals, assay.Eval{ID: ref.EvalID(id), Prompt: "go", Checks: []assay.Check{{Changed: map[bool]string{true: "nothing", false: "out"}[id == "bad"]}}})
		}
		return s
	}
	play := func(s assay.Suite) (run.Outcome, []event.Event) {
		t.Helper()
		p, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w, err := record.Open(root, "test")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		known, _ := read(t, root)
		p.Adopt(known)
		var events []event.Event
		sink := make(chan event.Event, 10_000)
		out, err := run.Run(t.Context(), run.Options{Plan: p, Writer: w, Force: t.Context(), Sink: func(e event.Event) { sink <- e }, Env: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		close(sink)
		for e := range sink {
			events = append(events, e)
		}
		return out, events
	}
	if out, _ := play(suiteOf(template, "bad")); !out.Red || hooks != 1 {
		t.Fatalf("red %v, %d setups", out.Red, hooks)
	}
	out, events := play(suiteOf(mine, "bad"))
	if !out.Red || out.Receipt.Completion != record.Completed || hooks != 1 || watch.calls.Load() != 0 {
		t.Errorf("red %v, %s, %d setups, %d calls of the provider", out.Red, out.Receipt.Completion, hooks, watch.calls.Load())
	}
	var start event.Start
	carried := 0
	for _, e := range events {
		switch e := e.(type) {
		case event.Start:
			start = e
		case event.Carried:
			carried++
			if e.Verdict != record.Failed || e.Run == "" || e.Attempt == "" {
				t.Errorf("carried %+v", e)
			}
		}
	}
	if start.Total != 1 || start.Reused != 1 || carried != 1 {
		t.Errorf("%d of %d reused, %d told", start.Reused, start.Total, carried)
	}
	_, runs := read(t, root)
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
	s := runs[1].Slots[0]
	if s.Origin != record.Carried || s.At.Run != runs[0].Run.ID || s.Attempt.Locator != runs[0].Slots[0].Attempt.Locator {
		t.Errorf("the slot is %s, of run %s", s.Origin, s.At.Run)
	}
	if own, err := os.ReadDir(filepath.Join(root, "runs", string(runs[1].Run.ID), "attempts")); err != nil || len(own) != 0 {
		t.Errorf("the carried run has %d attempts of its own: %v", len(own), err)
	}
	// What was carried is not spent: 3 USD of a budget of 4 were paid before, and
	// two more attempts fit, the second of which overdraws.
	out, _ = play(suiteOf(template, "bad", "more", "most"))
	_, runs = read(t, root)
	origins := map[record.Origin]int{}
	for _, s := range runs[2].Slots {
		origins[s.Origin]++
	}
	if origins[record.Carried] != 1 || origins[record.Executed] != 2 || !out.Red {
		t.Errorf("%v, red %v", origins, out.Red)
	}
}
