package assay

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"assay/agent"
	"assay/expect"
	"assay/fault"
	"assay/judge"
	"assay/record"
	"assay/sandbox"
)

// host is an engine made of data.
type host struct {
	judge    func(context.Context, judge.Question) (Judged, error)
	turns    []agent.Turn
	err      error
	coverage agent.Coverage
	rows     []record.Row
	partial  string
	diffErr  error
	sent     []agent.Input
	sessions int
	ended    int
	onSend   func() // during each send
}

func (h *host) Send(_ context.Context, _ int, in agent.Input) (agent.Turn, error) {
	if h.onSend != nil {
		h.onSend()
	}
	h.sent = append(h.sent, in)
	if h.err != nil {
		return agent.Turn{}, h.err
	}
	t := h.turns[in.Turn-1]
	for i := range t.Events {
		t.Events[i].Turn = in.Turn
	}
	return t, nil
}
func (h *host) NewSession() int           { h.sessions++; return h.sessions + 1 }
func (h *host) Sandbox() *sandbox.Sandbox { return sandbox.New(nil, sandbox.Options{}) }
func (h *host) Notes() sandbox.Notes      { return sandbox.Quiet{} }
func (h *host) Changes(context.Context, int, int) ([]record.Row, string, error) {
	return h.rows, h.partial, h.diffErr
}
func (h *host) Conclude(context.Context) error { h.ended++; return nil }
func (h *host) Judge(ctx context.Context, q judge.Question) (Judged, error) {
	return h.judge(ctx, q)
}
func (h *host) Facts() AttemptFacts { return AttemptFacts{Agent: "x", Coverage: h.coverage} }

var complete = agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete}

// drive runs a body over a host and returns what it came to and the checks.
func drive(t *testing.T, h *host, body func(context.Context, *T) error) (Outcome, []record.Check) {
	t.Helper()
	at := NewT(h)
	out := at.RunBody(t.Context(), body, nil)
	return out, at.Finish(t.Context())
}

func tool(id, name, input, status, output string) []agent.Event {
	return []agent.Event{
		{Type: agent.OperationStarted, ID: id, Name: name, Input: json.RawMessage(input)},
		{Type: agent.OperationFinished, ID: id, Status: status, Output: json.RawMessage(output)},
	}
}

func TestDiffChecksAreThreeValued(t *testing.T) {
	rows := []record.Row{{Path: "src/a.go", Status: "modified"}, {Path: "old.txt", Status: "deleted"}}
	tests := []struct {
		name    string
		rows    []record.Row
		partial string
		err     error
		check   Check
		want    record.Outcome
	}{
		{"changed", rows, "", nil, Check{Changed: "src/a.go"}, record.Matched},
		{"changed by pattern", rows, "", nil, Check{Changed: "src/**"}, record.Matched},
		{"not changed", rows, "", nil, Check{Changed: "b.go"}, record.Mismatched},
		{"a deletion is no change", rows, "", nil, Check{Changed: "old.txt"}, record.Mismatched},
		{"not changed, list not complete", rows, "collection-cap-reached", nil, Check{Changed: "b.go"}, record.Unavailable},
		{"changed, list not complete", rows, "collection-cap-reached", nil, Check{Changed: "src/a.go"}, record.Matched},
		{"deleted", rows, "", nil, Check{Deleted: "old.txt"}, record.Matched},
		{"unchanged", rows, "", nil, Check{Unchanged: "tests/**"}, record.Matched},
		{"unchanged missed", rows, "", nil, Check{Unchanged: "src/*"}, record.Mismatched},
		{"unchanged, list not complete", rows, "x", nil, Check{Unchanged: "tests/**"}, record.Unavailable},
		{"unchanged missed, list not complete", rows, "x", nil, Check{Unchanged: "src/*"}, record.Mismatched},
		{"no changes", nil, "", nil, Check{NoChanges: true}, record.Matched},
		{"no changes missed", rows, "", nil, Check{NoChanges: true}, record.Mismatched},
		{"no changes, list not complete", nil, "x", nil, Check{NoChanges: true}, record.Unavailable},
		{"no evidence", nil, "", errors.New("lost"), Check{NoChanges: true}, record.Unavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, checks := drive(t, &host{rows: tt.rows, partial: tt.partial, diffErr: tt.err}, func(ctx context.Context, t *T) error {
				t.Declared(ctx, tt.check)
				return nil
			})
			if len(checks) != 1 || checks[0].Outcome != tt.want {
				t.Fatalf("got %+v, want %s", checks, tt.want)
			}
			if tt.want != record.Matched && checks[0].Detail == "" {
				t.Error("no reason is given")
			}
		})
	}
}

func TestToolChecks(t *testing.T) {
	events := append(tool("1", "bash", `{"command":"npm test"}`, "completed", `"ok"`), tool("2", "edit", `{"path":"a"}`, "failed", `"denied"`)...)
	n := func(i int) *int { return &i }
	tests := []struct {
		name     string
		coverage agent.Coverage
		check    Check
		want     record.Outcome
	}{
		{"called", complete, Check{CalledTool: &ToolMatch{Name: "bash"}}, record.Matched},
		{"called with input", complete, Check{CalledTool: &ToolMatch{Name: "bash", Input: map[string]any{"command": ValueMatch{Contains: "npm"}}}}, record.Matched},
		{"called with other input", complete, Check{CalledTool: &ToolMatch{Name: "bash", Input: map[string]any{"command": ValueMatch{Contains: "yarn"}}}}, record.Mismatched},
		{"called once", complete, Check{CalledTool: &ToolMatch{Name: "bash", Count: n(1)}}, record.Matched},
		{"called twice", complete, Check{CalledTool: &ToolMatch{Name: "bash", Count: n(2)}}, record.Mismatched},
		{"called none, incomplete", agent.Coverage{}, Check{CalledTool: &ToolMatch{Name: "web"}}, record.Unavailable},
		{"called, incomplete", agent.Coverage{}, Check{CalledTool: &ToolMatch{Name: "bash"}}, record.Matched},
		{"exact count needs all evidence", agent.Coverage{}, Check{CalledTool: &ToolMatch{Name: "bash", Count: n(1)}}, record.Unavailable},
		{"not called", complete, Check{NotCalledTool: &ToolMatch{Name: "web"}}, record.Matched},
		{"not called missed", agent.Coverage{}, Check{NotCalledTool: &ToolMatch{Name: "bash"}}, record.Mismatched},
		{"not called, incomplete", agent.Coverage{Actions: agent.Partial}, Check{NotCalledTool: &ToolMatch{Name: "web"}}, record.Unavailable},
		{"order", complete, Check{ToolOrder: []string{"bash", "edit"}}, record.Matched},
		{"order missed", complete, Check{ToolOrder: []string{"edit", "bash"}}, record.Mismatched},
		{"no tools missed", complete, Check{UsedNoTools: true}, record.Mismatched},
		{"failed action", complete, Check{NoFailedActions: true}, record.Mismatched},
		{"max calls", complete, Check{MaxToolCalls: n(2)}, record.Matched},
		{"max calls missed", complete, Check{MaxToolCalls: n(1)}, record.Mismatched},
		{"max calls, incomplete", agent.Coverage{}, Check{MaxToolCalls: n(2)}, record.Unavailable},
		{"event", complete, Check{Event: "operation.started"}, record.Matched},
		{"no event", complete, Check{NotEvent: "compaction"}, record.Matched},
		{"no event, incomplete", agent.Coverage{}, Check{NotEvent: "compaction"}, record.Unavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &host{turns: []agent.Turn{{Status: agent.Completed, Events: events}}, coverage: tt.coverage}
			_, checks := drive(t, h, func(ctx context.Context, t *T) error {
				t.Send(ctx, "go")
				t.Declared(ctx, tt.check)
				return nil
			})
			if len(checks) != 1 || checks[0].Outcome != tt.want {
				t.Fatalf("got %+v, want %s", checks, tt.want)
			}
		})
	}
}

func TestEqualIdsOfTwoTurnsAreTwoCalls(t *testing.T) {
	h := &host{coverage: complete, turns: []agent.Turn{
		{Status: agent.Completed, Events: tool("item_0", "a", `{}`, "completed", `1`)},
		{Status: agent.Completed, Events: tool("item_0", "b", `{}`, "completed", `1`)},
	}}
	_, checks := drive(t, h, func(ctx context.Context, t *T) error {
		t.Send(ctx, "1")
		t.Send(ctx, "2")
		n := 2
		t.MaxToolCalls(1)
		t.CalledTool(ToolMatch{Count: &n})
		t.ToolOrder("a", "b")
		return nil
	})
	want := []record.Outcome{record.Mismatched, record.Matched, record.Matched}
	for i, w := range want {
		if checks[i].Outcome != w {
			t.Errorf("check %d: %+v, want %s", i, checks[i], w)
		}
	}
}

func TestUsageChecksNeverInvent(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	f := func(v float64) *float64 { return &v }
	for name, tt := range map[string]struct {
		usage *agent.Usage
		check Check
		want  record.Outcome
	}{
		"within":       {&agent.Usage{InputTokens: n(10), OutputTokens: n(5)}, Check{MaxTokens: n(15)}, record.Matched},
		"over":         {&agent.Usage{InputTokens: n(10), CacheReadTokens: n(6)}, Check{MaxTokens: n(15)}, record.Mismatched},
		"unknown":      {nil, Check{MaxTokens: n(15)}, record.Unavailable},
		"cost":         {&agent.Usage{CostUSD: f(0.5)}, Check{MaxCost: f(0.5)}, record.Matched},
		"cost over":    {&agent.Usage{CostUSD: f(0.6)}, Check{MaxCost: f(0.5)}, record.Mismatched},
		"cost unknown": {&agent.Usage{InputTokens: n(1)}, Check{MaxCost: f(0.5)}, record.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{coverage: complete, turns: []agent.Turn{{Status: agent.Completed, Usage: tt.usage}}}
			_, checks := drive(t, h, func(ctx context.Context, t *T) error {
				t.Send(ctx, "go")
				t.Declared(ctx, tt.check)
				return nil
			})
			if checks[0].Outcome != tt.want {
				t.Errorf("got %+v, want %s", checks[0], tt.want)
			}
		})
	}
}

func TestSeverityAndMeasurements(t *testing.T) {
	_, checks := drive(t, &host{}, func(ctx context.Context, t *T) error {
		t.Check("ab", expect.Contains("z"))                    // 0 gate, missed
		t.Check("ab", expect.Contains("z")).Soft()             // 1 soft, missed
		t.Check("abcd", expect.Similarity("abxx"))             // 2 a number, soft, no threshold
		t.Check("abcd", expect.Similarity("abxx")).Gate(0.4)   // 3 gate, matched
		t.Check("abcd", expect.Similarity("abxx")).Gate(0.6)   // 4 gate, missed
		t.Check("abcd", expect.Similarity("abxx")).AtLeast(.6) // 5 soft, missed
		t.Check(42, expect.Contains("x")).Name("named")        // 6 cannot be judged
		return nil
	})
	want := []struct {
		s record.Severity
		o record.Outcome
	}{
		{record.Gate, record.Mismatched},
		{record.Soft, record.Mismatched},
		{record.Soft, record.Matched},
		{record.Gate, record.Matched},
		{record.Gate, record.Mismatched},
		{record.Soft, record.Mismatched},
		{record.Gate, record.Unavailable},
	}
	for i, w := range want {
		if checks[i].Severity != w.s || checks[i].Outcome != w.o {
			t.Errorf("check %d: %+v, want %v", i, checks[i], w)
		}
	}
	if checks[2].Value == nil || *checks[2].Value != 0.5 || checks[6].Name != "named" {
		t.Errorf("value or name is lost: %+v", checks)
	}
}

func TestABodyThatStops(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		h    *host
		body func(context.Context, *T) error
		code string
		text string
		skip string
		n    int // checks
	}{
		"failed send": {h: &host{err: boom}, body: func(ctx context.Context, t *T) error {
			t.Send(ctx, "x")
			t.Check(1, expect.Equals(1))
			return nil
		}, text: "boom"},
		"panic": {h: &host{}, body: func(context.Context, *T) error { panic("oops") }, code: "eval-panic"},
		"error": {h: &host{}, body: func(context.Context, *T) error { return boom }, text: "boom"},
		"orStop": {h: &host{}, body: func(ctx context.Context, t *T) error {
			t.Check(1, expect.Equals(2)).OrStop(ctx)
			t.Check(1, expect.Equals(1))
			return nil
		}, n: 1},
		"skip": {h: &host{}, body: func(ctx context.Context, t *T) error {
			t.Check(1, expect.Equals(1))
			t.Skip("not here")
			return boom
		}, skip: "not here", n: 1},
		"send after conclude": {h: &host{}, body: func(ctx context.Context, t *T) error {
			t.Conclude(ctx)
			t.Send(ctx, "x")
			return nil
		}, code: "send-after-conclude"},
	} {
		t.Run(name, func(t *testing.T) {
			out, checks := drive(t, tt.h, tt.body)
			if got := fault.CodeOf(out.Err); got != tt.code {
				t.Errorf("code %q, want %q (%v)", got, tt.code, out.Err)
			}
			if tt.text != "" && (out.Err == nil || !strings.Contains(out.Err.Error(), tt.text)) {
				t.Errorf("error %v, want one with %q", out.Err, tt.text)
			}
			if tt.text == "" && tt.code == "" && out.Err != nil {
				t.Errorf("error %v", out.Err)
			}
			if out.Skip != tt.skip || len(checks) != tt.n {
				t.Errorf("skip %q, %d checks; want %q, %d", out.Skip, len(checks), tt.skip, tt.n)
			}
		})
	}
}

func TestABodyThatDoesNotReturnIsAbandoned(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := &fault.Timeout{Limit: "attempt-deadline", Value: 1, Layer: "flag"}
	cancel(why)
	release, patience := make(chan struct{}), make(chan struct{})
	close(patience)
	at := NewT(&host{})
	late := make(chan struct{})
	out := at.RunBody(ctx, func(_ context.Context, t *T) error {
		defer close(late)
		<-release
		t.Check(1, expect.Equals(1)) // too late to count
		return nil
	}, patience)
	if !errors.Is(out.Err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", out.Err)
	}
	close(release)
	<-late
	if checks := at.Finish(t.Context()); len(checks) != 0 {
		t.Errorf("a late check was counted: %+v", checks)
	}
}

func TestDeclaredEvalRunsTurnsInOrder(t *testing.T) {
	h := &host{coverage: complete, turns: []agent.Turn{{Status: agent.Completed, Message: "one"}, {Status: agent.Completed, Message: "two"}}}
	eq := func(s string) *ValueMatch { return &ValueMatch{Equals: &s} }
	e := Eval{ID: "e", Turns: []TurnSpec{
		{Prompt: "first", Checks: []Check{{Reply: eq("one")}}},
		{Prompt: "second", NewSession: true},
	}, Checks: []Check{{Reply: eq("two")}, {Reply: eq("one"), Soft: true, Name: "stale"}}}
	out, checks := drive(t, h, e.Body())
	if out.Err != nil || len(h.sent) != 2 || h.sessions != 1 || h.ended != 1 {
		t.Fatalf("err %v, sent %d, sessions %d, concluded %d", out.Err, len(h.sent), h.sessions, h.ended)
	}
	if checks[0].Outcome != record.Matched || checks[0].Turn != 1 || checks[1].Outcome != record.Matched || checks[1].Turn != 2 {
		t.Errorf("checks %+v", checks)
	}
	if checks[2].Outcome != record.Mismatched || checks[2].Severity != record.Soft || checks[2].Name != "stale" {
		t.Errorf("soft check %+v", checks[2])
	}
}

func TestFoldOfVerdicts(t *testing.T) {
	c := func(s record.Severity, o record.Outcome) record.Check { return record.Check{Severity: s, Outcome: o} }
	for name, tt := range map[string]struct {
		a    record.Attempt
		want record.Verdict
	}{
		"nothing":                      {record.Attempt{}, record.Passed},
		"gate missed":                  {record.Attempt{Checks: []record.Check{c(record.Gate, record.Mismatched)}}, record.Failed},
		"soft missed":                  {record.Attempt{Checks: []record.Check{c(record.Soft, record.Mismatched)}}, record.Passed},
		"gate unknown":                 {record.Attempt{Checks: []record.Check{c(record.Gate, record.Mismatched), c(record.Gate, record.Unavailable)}}, record.Errored},
		"soft unknown":                 {record.Attempt{Checks: []record.Check{c(record.Soft, record.Unavailable)}}, record.Passed},
		"optional unknown":             {record.Attempt{Checks: []record.Check{{Severity: record.Gate, Outcome: record.Unavailable, Optional: true}}}, record.Passed},
		"error beats all":              {record.Attempt{Error: &record.ErrorInfo{}, Checks: []record.Check{c(record.Gate, record.Mismatched)}}, record.Errored},
		"skip":                         {record.Attempt{Skip: "x"}, record.Skipped},
		"a missed gate is not skipped": {record.Attempt{Skip: "x", Checks: []record.Check{c(record.Gate, record.Mismatched)}}, record.Failed},
	} {
		if got := tt.a.Fold(); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestSendsOfManyGoroutinesAreServedOneByOne(t *testing.T) {
	const n = 8
	inside, most := 0, 0 // the race detector finds two sends at once, too
	h := &host{turns: make([]agent.Turn, n), coverage: complete, onSend: func() {
		inside++
		most = max(most, inside)
		runtime.Gosched()
		inside--
	}}
	out, _ := drive(t, h, func(ctx context.Context, at *T) error {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() { at.NewSession().Send(ctx, "go") })
		}
		wg.Wait()
		return nil
	})
	if most != 1 || len(out.Turns) != n || h.sessions != n {
		t.Fatalf("%d sends at once, %d turns, %d sessions", most, len(out.Turns), h.sessions)
	}
	for i, in := range h.sent {
		if in.Turn != i+1 || out.Turns[i].Number != i+1 {
			t.Errorf("send %d has the number %d, its turn %d", i+1, in.Turn, out.Turns[i].Number)
		}
	}
}

// A body that ignores the end of its context is given up; what it still does
// reaches neither the engine nor the outcome.
func TestABodyThatWasGivenUpHasNoEffect(t *testing.T) {
	for name, late := range map[string]func(context.Context, *T){
		"send":     func(ctx context.Context, at *T) { at.Send(ctx, "late") },
		"session":  func(_ context.Context, at *T) { at.NewSession() },
		"conclude": func(ctx context.Context, at *T) { at.Conclude(ctx) },
		"sandbox":  func(_ context.Context, at *T) { at.Sandbox() },
		"changes":  func(ctx context.Context, at *T) { _, _ = at.ChangedPaths(ctx) },
		"skip":     func(_ context.Context, at *T) { at.Skip("late") },
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{turns: make([]agent.Turn, 2)}
			at := NewT(h)
			patience, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			ctx, cancel := context.WithCancelCause(t.Context())
			reached := false
			out := at.RunBody(ctx, func(ctx context.Context, at *T) error {
				defer close(ended)
				at.Send(ctx, "in time")
				cancel(errors.New("time is over"))
				close(patience)
				<-release
				late(ctx, at)
				reached = true
				return nil
			}, patience)
			close(release)
			<-ended
			if reached {
				t.Error("the call returned")
			}
			if len(out.Turns) != 1 || len(h.sent) != 1 || h.sessions != 0 || h.ended != 0 || out.Skip != "" || out.Err == nil || out.Err.Error() != "time is over" {
				t.Errorf("outcome %+v, host %+v", out, h)
			}
			if again := at.Turns(); len(again) != 1 {
				t.Errorf("%d turns", len(again))
			}
		})
	}
}
