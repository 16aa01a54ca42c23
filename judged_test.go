package assay

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"assay/agent"
	"assay/fault"
	"assay/judge"
	"assay/record"
)

// judging is a host whose judge gives fixed scores by criterion and remembers
// what it was asked.
func judging(scores map[string]float64, asked *[]judge.Question) *host {
	text := "func main() {}\n"
	h := &host{
		turns: []agent.Turn{{Status: agent.Completed, Message: "first reply"}, {Status: agent.Completed, Message: "second reply"}},
		rows:  []record.Row{{Path: "main.go", Status: "added", After: &record.Side{Text: &text}}},
	}
	h.judge = func(_ context.Context, q judge.Question) (Judged, error) {
		*asked = append(*asked, q)
		out := Judged{Config: judge.Config{Model: "m", BaseURL: "https://user:pw@x.example/v1"}, Sent: q}
		s, ok := scores[q.Criterion]
		if !ok {
			return out, &fault.Error{Code: judge.CodeUnavailable, What: "no answer"}
		}
		out.Grade = judge.Grade{Score: s, Rationale: "because", Model: "m-2", Usage: &judge.Usage{InputTokens: 5, OutputTokens: 2}, Tries: 1}
		return out, nil
	}
	return h
}

func TestJudgeIsAMeasurement(t *testing.T) {
	gate, soft := 0.7, 0.9
	tests := []struct {
		name     string
		check    Check
		outcome  record.Outcome
		severity record.Severity
		verdict  record.Verdict
	}{
		{"a number alone decides nothing", Check{Judge: &JudgeCheck{Criterion: "low"}}, record.Matched, record.Soft, record.Passed},
		{"a gate that is met", Check{Judge: &JudgeCheck{Criterion: "high"}, Gate: &gate}, record.Matched, record.Gate, record.Passed},
		{"a gate that is missed", Check{Judge: &JudgeCheck{Criterion: "low"}, Gate: &gate}, record.Mismatched, record.Gate, record.Failed},
		{"a local condition", Check{Judge: &JudgeCheck{Criterion: "high"}, AtLeast: &soft}, record.Mismatched, record.Soft, record.Passed},
		{"no answer at a gate", Check{Judge: &JudgeCheck{Criterion: "gone"}, Gate: &gate}, record.Unavailable, record.Gate, record.Errored},
		{"no answer without a gate", Check{Judge: &JudgeCheck{Criterion: "gone"}}, record.Unavailable, record.Soft, record.Passed},
		{"no answer, optional", Check{Judge: &JudgeCheck{Criterion: "gone"}, Gate: &gate, Optional: true}, record.Unavailable, record.Gate, record.Passed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var asked []judge.Question
			out, checks := drive(t, judging(map[string]float64{"high": 0.8, "low": 0.2}, &asked), func(ctx context.Context, t *T) error {
				t.Send(ctx, "do it")
				t.Declared(ctx, tt.check)
				return nil
			})
			c := checks[0]
			a := record.Attempt{Checks: checks}
			if out.Err != nil || c.Outcome != tt.outcome || c.Severity != tt.severity || a.Fold() != tt.verdict || len(asked) != 1 {
				t.Fatalf("%+v folds to %s after %d questions, error %v", c, a.Fold(), len(asked), out.Err)
			}
			if c.Outcome == record.Unavailable {
				if c.Value != nil || c.Reason != judge.CodeUnavailable {
					t.Errorf("no answer is %+v", c)
				}
				return
			}
			if j := c.Judge; j == nil || j.Model != "m" || j.BaseURL != "https://x.example/v1" || j.AnsweredBy != "m-2" || j.Rationale != "because" || j.Usage.InputTokens != 5 || j.Tries != 1 {
				t.Errorf("judgment %+v", j)
			}
			if !strings.Contains(c.Detail, "because") {
				t.Errorf("detail %q", c.Detail)
			}
		})
	}
}

func TestJudgeMaterialIsFixedWhenAsked(t *testing.T) {
	var asked []judge.Question
	h := judging(map[string]float64{"a": 1, "b": 1, "": 1}, &asked)
	_, checks := drive(t, h, func(ctx context.Context, t *T) error {
		first := t.Send(ctx, "one")
		t.JudgeCriteria(ctx, "a")
		t.Send(ctx, "two")
		t.JudgeFactuality(ctx, "42")
		first.Judge(ctx, JudgeCheck{Kind: judge.ClosedQA, Criterion: "b"})
		t.Judge(ctx, JudgeCheck{Kind: judge.Summary, Reference: "long", Input: "in", Output: "out"})
		return nil
	})
	if len(checks) != 4 || len(asked) != 4 {
		t.Fatalf("%d checks, %d questions", len(checks), len(asked))
	}
	a, b, c, d := asked[0], asked[1], asked[2], asked[3]
	if a.Input != "one" || a.Output != "first reply" || !strings.Contains(a.Changes, "+func main() {}") {
		t.Errorf("criteria: %+v", a)
	}
	if b.Kind != judge.Factuality || b.Reference != "42" || b.Output != "second reply" || b.Changes != "" || b.Input != "User: one\nAssistant: first reply\nUser: two\n" {
		t.Errorf("factuality: %+v", b)
	}
	if c.Kind != judge.ClosedQA || c.Input != "one" || c.Output != "first reply" {
		t.Errorf("closed question of a turn: %+v", c)
	}
	if d.Kind != judge.Summary || d.Input != "in" || d.Output != "out" || d.Reference != "long" {
		t.Errorf("summary: %+v", d)
	}
}

// Evaluators run once each and in the order in which they were made, also when a
// later one is needed first.
func TestJudgeLane(t *testing.T) {
	var asked []judge.Question
	h := judging(map[string]float64{"a": 1, "b": 0, "c": 1}, &asked)
	out, checks := drive(t, h, func(ctx context.Context, t *T) error {
		t.Send(ctx, "one")
		t.JudgeCriteria(ctx, "a")
		b := t.JudgeCriteria(ctx, "b").AtLeast(0.5)
		b.OK(ctx)
		b.OrStop(ctx)
		t.JudgeCriteria(ctx, "c")
		return nil
	})
	var order []string
	for _, q := range asked {
		order = append(order, q.Criterion)
	}
	if out.Err != nil || !slices.Equal(order, []string{"a", "b"}) || len(checks) != 2 {
		t.Errorf("asked %q, %d checks, error %v", order, len(checks), out.Err)
	}
}

func TestJudgeIsNotAskedInVain(t *testing.T) {
	var asked []judge.Question
	h := judging(map[string]float64{"a": 1}, &asked)
	_, checks := drive(t, h, func(ctx context.Context, t *T) error {
		t.Send(ctx, "one")
		t.JudgeCriteria(ctx, "a")
		return errors.New("the body broke")
	})
	if len(asked) != 0 || checks[0].Outcome != record.Unavailable || checks[0].Reason != "judge-not-asked" {
		t.Errorf("asked %d times: %+v", len(asked), checks)
	}
	h.diffErr, h.turns = errors.New("lost"), []agent.Turn{{Status: agent.Completed}}
	_, checks = drive(t, h, func(ctx context.Context, t *T) error {
		t.Send(ctx, "one")
		t.JudgeCriteria(ctx, "a")
		return nil
	})
	if len(asked) != 0 || checks[0].Outcome != record.Unavailable {
		t.Errorf("without the changes: asked %d times: %+v", len(asked), checks)
	}
}

func TestJudgeOrStopNeedsAThreshold(t *testing.T) {
	var asked []judge.Question
	out, _ := drive(t, judging(nil, &asked), func(ctx context.Context, t *T) error {
		t.Send(ctx, "one")
		t.JudgeCriteria(ctx, "a").OrStop(ctx)
		return nil
	})
	if fault.CodeOf(out.Err) != "check-without-threshold" || len(asked) != 0 {
		t.Errorf("%v after %d questions", out.Err, len(asked))
	}
}
