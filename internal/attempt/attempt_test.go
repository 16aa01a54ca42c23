package attempt_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"assay"
	"assay/agent"
	"assay/agent/script"
	"assay/expect"
	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/record"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// rig is a plan of one suite and what an attempt of it needs.
type rig struct {
	plan   *plan.Plan
	secret map[string]string

	mu     sync.Mutex
	events []event.Event
}

func newRig(t *testing.T, suite assay.Suite) *rig {
	t.Helper()
	p, err := plan.Link(t.Context(), &suite, plan.Selection{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{plan: p}
}

func (r *rig) run(ctx context.Context, s *plan.Slot) attempt.Result {
	return attempt.Run(ctx, s, attempt.Env{
		Run: "run", Force: context.Background(), Prepared: sandbox.Prepared{Ref: "fake"},
		Sink: func(e event.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
		Secret: func(n string) (string, bool) { v, ok := r.secret[n]; return v, ok },
		Yield:  func(ctx context.Context, _ string, wait func(context.Context) error) error { return wait(ctx) },
	})
}

const secret = `s3cr3t-"quoted"\value&more`

// leaky is an agent that says the secret wherever it can.
type leaky struct{ script.Agent }

func (l leaky) Info() agent.Info {
	i := l.Agent.Info()
	i.SecretEnv = []string{"AGENT_KEY"}
	return i
}

func (l leaky) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	key := s.Secrets["AGENT_KEY"]
	_ = s.Notes.Diagnostic(sandbox.Diagnostic{Code: "leak", Level: sandbox.Warning, Message: "key " + key, Data: map[string]string{"k": key}})
	_ = s.Notes.Fact("com.acme.leak", []string{key})
	s.Notes.Progress(sandbox.Progress{Message: "using " + key})
	if _, err := s.Sandbox.RunShell(ctx, `printf '%s' "$K"; echo "$K" >leak.txt; exit 3`, sandbox.CommandOptions{Env: map[string]string{"K": key}}); err != nil {
		return agent.Turn{}, err
	}
	input, err := json.Marshal(map[string]string{"command": "curl -H " + key})
	return agent.Turn{
		Status: agent.Completed, Message: "the key is " + key, StopReason: key,
		Events: []agent.Event{
			{Type: agent.OperationStarted, ID: "1", Name: "bash", Input: input},
			{Type: agent.OperationFinished, ID: "1", Status: "completed", Output: json.RawMessage(input)},
			{Type: "odd", Raw: json.RawMessage(input)},
			{Type: agent.MessageEvent, Role: "assistant", Text: key},
		},
	}, err
}

func TestEverythingThatIsKeptIsRedacted(t *testing.T) {
	p := fake.New(fake.Script{})
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: leaky{}, Sandbox: p.Layer().SecretEnv("LAYER_KEY")}},
		Evals: []assay.Eval{{ID: "e", Test: func(ctx context.Context, t *assay.T) error {
			t.Send(ctx, "say "+secret)
			t.Check(t.Reply(), expect.Equals("x"))
			t.FileChanged("nothing-like-" + secret)
			if v, err := t.Sandbox().ReadText(ctx, "leak.txt"); err != nil || !strings.Contains(v, secret) {
				return fmt.Errorf("the file holds %q: %w", v, err)
			}
			return errors.New("it ended with " + secret)
		}}},
	})
	r.secret = map[string]string{"AGENT_KEY": secret, "LAYER_KEY": secret + "-of-the-layer"}
	res := r.run(t.Context(), r.plan.Slots()[0])
	if !strings.Contains(res.Sealed.Attempt.Error.Message, "it ended with") || res.Sealed.Diff == nil || len(res.Sealed.Commands) == 0 || len(res.Sealed.Events) < 5 {
		t.Fatalf("the attempt did not get to its end: %+v", res.Sealed.Attempt.Error)
	}
	b, err := json.Marshal(res.Sealed)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "redacted"); n < 12 {
		t.Errorf("only %d places are masked: %s", n, b)
	}
	if i := strings.Index(string(b), "s3cr3t"); i >= 0 {
		t.Errorf("the secret is kept: …%s…", b[max(i-200, 0):min(i+60, len(b))])
	}
	for _, e := range r.events {
		if s, _ := json.Marshal(e); strings.Contains(string(s), "s3cr3t") {
			t.Errorf("the secret is shown: %T %s", e, s)
		}
	}
}

func TestPhasesAreRecordedOnceAndInOrder(t *testing.T) {
	p := fake.New(fake.Script{})
	hook := func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil }
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"echo a >a"}}, {Commands: []string{"echo b >b"}}}}, Sandbox: p.Layer().Setup(hook).Teardown(hook).Prepare(sandbox.Command{Shell: "true"})}},
		Evals: []assay.Eval{{
			ID: "e", Files: map[string]string{"f": "x"}, Setup: []sandbox.Command{{Shell: "true"}}, Teardown: []sandbox.Command{{Shell: "true"}},
			Turns: []assay.TurnSpec{{Prompt: "one"}, {Prompt: "two"}}, Checks: []assay.Check{{Changed: "a"}, {Changed: "b"}},
		}},
	})
	a := r.run(t.Context(), r.plan.Slots()[0]).Sealed.Attempt
	var got []string
	for _, ph := range a.Phases {
		got = append(got, ph.Name)
		if ph.Outcome != "" || ph.MS < 0 || ph.StartMS < 0 {
			t.Errorf("phase %+v", ph)
		}
	}
	if a.Verdict != record.Passed {
		t.Errorf("verdict %s, error %+v", a.Verdict, a.Error)
	}
	want := []string{
		"sandbox.create", "sandbox.setup", "workspace.upload", "sandbox.prepare", "eval.setup", "workspace.baseline", "eval.run",
		"workspace.diff", "assertions.evaluate", "eval.teardown", "sandbox.teardown", "sandbox.stop",
	}
	if !slices.Equal(got, want) {
		t.Errorf("phases %q, want %q", got, want)
	}
}

// TestAttemptsOfAPairShareNoEnvironment runs under the race detector: the
// settings of a pair belong to all of its attempts.
func TestAttemptsOfAPairShareNoEnvironment(t *testing.T) {
	p := fake.New(fake.Script{})
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Attempts: 4, Agent: script.Agent{Turns: []script.Turn{{Commands: []string{`test "$KEY" = value-of-the-key`}}}}, Sandbox: p.Layer().SecretEnv("KEY").Env(map[string]string{"A": "b"})}},
		Evals:       []assay.Eval{{ID: "e", Prompt: "x", Checks: []assay.Check{{Succeeded: true}}}},
	})
	r.secret = map[string]string{"KEY": "value-of-the-key"}
	var wg sync.WaitGroup
	for _, s := range r.plan.Slots() {
		wg.Go(func() {
			if a := r.run(t.Context(), s).Sealed.Attempt; a.Verdict != record.Passed {
				t.Errorf("verdict %s, error %+v", a.Verdict, a.Error)
			}
		})
	}
	wg.Wait()
	for _, s := range r.plan.Slots() {
		if _, leaked := s.Settings.Env["KEY"]; leaked {
			t.Error("the value of a secret was written into the plan")
		}
	}
}

func TestErrorInfo(t *testing.T) {
	limit := &fault.Timeout{Limit: "attempt-deadline", Value: time.Minute, Layer: "flag"}
	for _, c := range []struct {
		name string
		err  error
		want record.ErrorInfo
	}{
		{"plain", errors.New("boom"), record.ErrorInfo{Code: "attempt-failed", Message: "boom", Class: "unknown"}},
		{
			"everything", &fault.Error{Class: fault.Config, Code: "outer", Stage: "sandbox.create", What: "create it", Fix: "Do this.", Scope: fault.ScopeExperiment, Err: fmt.Errorf("again: %w", fs.ErrNotExist)},
			record.ErrorInfo{Code: "outer", Phase: "sandbox.create", Message: "create it: again: file does not exist", Class: "config", Fix: "Do this.", Scope: "experiment", Cause: "file does not exist"},
		},
		{
			"stages are no text", &fault.Error{Stage: "a", What: "one", Err: &fault.Error{Stage: "b", What: "two"}},
			record.ErrorInfo{Code: "attempt-failed", Phase: "b", Message: "one: two", Class: "unknown", Cause: "b: two"},
		},
		{
			"our own limit", &fault.Error{Class: fault.Canceled, Stage: "eval.run", Err: limit},
			record.ErrorInfo{
				Code: "attempt-deadline", Phase: "eval.run", Message: limit.Error(), Class: "canceled",
				Timeout: &record.TimeoutInfo{Limit: "attempt-deadline", ValueMS: 60_000, Layer: "flag"},
			},
		},
		{
			"a command of an attempt whose deadline fired", &fault.Error{Class: fault.Canceled, Code: "command-timeout", What: "run x", Err: limit},
			record.ErrorInfo{
				Code: "attempt-deadline", Message: "run x: " + limit.Error(), Class: "canceled", Cause: limit.Error(),
				Timeout: &record.TimeoutInfo{Limit: "attempt-deadline", ValueMS: 60_000, Layer: "flag"},
			},
		},
		{"control characters", errors.New("a\x1b[31mb\x00c"), record.ErrorInfo{Code: "attempt-failed", Message: "abc", Class: "unknown", Cause: "abc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := json.Marshal(attempt.ErrorInfo(c.err, nil))
			want, _ := json.Marshal(c.want)
			if string(got) != string(want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	for shift := range 3 {
		long := attempt.ErrorInfo(errors.New(strings.Repeat("x", shift)+strings.Repeat("日本", 10_000)), nil)
		if len(long.Message) > 4200 || !strings.Contains(long.Message, "…") || !utf8.ValidString(long.Message) {
			t.Errorf("a long message has %d bytes and is valid: %v", len(long.Message), utf8.ValidString(long.Message))
		}
	}
}

func TestDiagnosticsFoldByKey(t *testing.T) {
	var list []record.Diagnostic
	for i, c := range []struct {
		d     sandbox.Diagnostic
		fresh bool
	}{
		{sandbox.Diagnostic{Code: "a", DedupeKey: "k", Message: "first"}, true},
		{sandbox.Diagnostic{Code: "a", DedupeKey: "k", Message: "second"}, false},
		{sandbox.Diagnostic{Code: "b", DedupeKey: "k"}, true},
		{sandbox.Diagnostic{Code: "a"}, true},
		{sandbox.Diagnostic{Code: "a"}, true},
	} {
		var fresh bool
		if list, fresh = attempt.Fold(list, "p", c.d); fresh != c.fresh {
			t.Errorf("diagnostic %d: fresh %v", i, fresh)
		}
	}
	if len(list) != 4 || list[0].Count != 2 || list[0].Message != "first" || list[1].Count != 1 {
		t.Errorf("folded to %+v", list)
	}
}

func TestCheckDiagnostic(t *testing.T) {
	for _, c := range []struct {
		d  sandbox.Diagnostic
		ok bool
	}{
		{sandbox.Diagnostic{Code: "a-1", Level: sandbox.Warning}, true},
		{sandbox.Diagnostic{Code: "a", Level: sandbox.Error, Data: strings.Repeat("x", 16<<10-2)}, true},
		{sandbox.Diagnostic{Code: "a", Level: sandbox.Error, Data: strings.Repeat("x", 16<<10-1)}, false},
		{sandbox.Diagnostic{Code: "a", Level: sandbox.Error, Data: func() {}}, false},
		{sandbox.Diagnostic{Code: "", Level: sandbox.Warning}, false},
		{sandbox.Diagnostic{Code: "A", Level: sandbox.Warning}, false},
		{sandbox.Diagnostic{Code: "a\n", Level: sandbox.Warning}, false},
		{sandbox.Diagnostic{Code: strings.Repeat("a", 65), Level: sandbox.Warning}, false},
		{sandbox.Diagnostic{Code: "a", Level: "info"}, false},
	} {
		err := attempt.CheckDiagnostic(c.d)
		if (err == nil) != c.ok || err != nil && (fault.CodeOf(err) != "diagnostic-invalid" || fault.ClassOf(err) != fault.Config) {
			t.Errorf("code %q, level %q: %v", c.d.Code, c.d.Level, err)
		}
	}
}
