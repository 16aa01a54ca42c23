package assay

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"assay/fault"
	"assay/judge"
	"assay/record"
)

// JudgeCheck asks a model to grade what the agent did.
type JudgeCheck struct {
	// Kind is what is asked; "" is judge.Criteria.
	Kind judge.Kind
	// Criterion is the criterion, or the question of judge.ClosedQA.
	Criterion string
	// Reference is the expected answer of judge.Factuality and the source of
	// judge.Summary.
	Reference string
	// Input and Output replace what was asked and what was answered; "" is the
	// conversation so far.
	Input, Output string
	// File, when set, is a file of the sandbox that is graded as the output.
	File string
}

// Judged is what became of a question.
type Judged struct {
	judge.Grade
	Config judge.Config
	// Sent is the material as it was sent: masked and shortened.
	Sent judge.Question
	Took time.Duration
}

// judgeLane keeps the order of an attempt's judge checks: one at a time, as they
// were made.
type judgeLane struct {
	mu   sync.Mutex // held while the model is asked
	list []*Assertion
}

// Judge grades the work so far: the material is fixed now, the model is asked
// when the check's result is needed, once. The eval must declare its judge. It
// is a measurement: soft until Gate.
func (t *T) Judge(ctx context.Context, c JudgeCheck) *Assertion {
	turns := t.Turns()
	return t.judged(ctx, c, turns, 1, len(turns))
}

// JudgeCriteria grades how well the work so far meets a criterion.
func (t *T) JudgeCriteria(ctx context.Context, criterion string) *Assertion {
	return t.Judge(ctx, JudgeCheck{Criterion: criterion})
}

// JudgeClosedQA asks a question about the work so far: 1 is yes, 0 is no.
func (t *T) JudgeClosedQA(ctx context.Context, question string) *Assertion {
	return t.Judge(ctx, JudgeCheck{Kind: judge.ClosedQA, Criterion: question})
}

// JudgeFactuality compares the last reply with the expected answer.
func (t *T) JudgeFactuality(ctx context.Context, expected string) *Assertion {
	return t.Judge(ctx, JudgeCheck{Kind: judge.Factuality, Reference: expected})
}

// JudgeSummary grades the last reply as a summary of a source.
func (t *T) JudgeSummary(ctx context.Context, source string) *Assertion {
	return t.Judge(ctx, JudgeCheck{Kind: judge.Summary, Reference: source})
}

// Judge grades this turn alone: its prompt, its reply and what the agent changed
// in it.
func (turn *Turn) Judge(ctx context.Context, c JudgeCheck) *Assertion {
	return turn.t.judged(ctx, c, []*Turn{turn}, turn.Number, turn.Number)
}

func (t *T) judged(ctx context.Context, c JudgeCheck, turns []*Turn, from, to int) *Assertion {
	t.live()
	if c.Kind == "" {
		c.Kind = judge.Criteria
	}
	q, broken := t.material(ctx, c, turns, from, to)
	var a *Assertion
	check := func(ctx context.Context) (record.Check, error) {
		// Those that were made before come first.
		for _, before := range t.judgesBefore(a) {
			before.result(ctx)
		}
		if broken != nil {
			return record.Check{}, broken
		}
		t.lane.mu.Lock()
		defer t.lane.mu.Unlock()
		t.mu.Lock()
		over := t.err
		t.mu.Unlock()
		if over != nil {
			return unknown("judge-not-asked", "the attempt ended in an error, so no grade was paid for")
		}
		got, err := t.host.Judge(ctx, q)
		return graded(q, got, err), nil
	}
	a = t.assert("judge", judgeName(c), check)
	a.measured, a.strict = true, true
	t.mu.Lock()
	t.lane.list = append(t.lane.list, a)
	t.mu.Unlock()
	return a
}

func (t *T) judgesBefore(a *Assertion) []*Assertion {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, b := range t.lane.list {
		if b == a {
			return append([]*Assertion(nil), t.lane.list[:i]...)
		}
	}
	return nil
}

func judgeName(c JudgeCheck) string {
	text, _, _ := strings.Cut(c.Criterion, "\n")
	switch c.Kind {
	case judge.Factuality:
		text = "the facts are right"
	case judge.Summary:
		text = "it is a good summary"
	}
	if r := []rune(text); len(r) > 100 {
		text = string(r[:100]) + "…"
	}
	return "judge: " + text
}

// graded makes the outcome of a judge's answer. A grade that could not be had is
// unavailable, never zero.
func graded(q judge.Question, got Judged, err error) record.Check {
	j := &record.Judgment{Kind: string(q.Kind), Tries: got.Tries, MS: got.Took.Milliseconds(), Rationale: got.Rationale}
	short := got.Sent.Trim(judge.MaxRecorded)
	j.Criterion, j.Input, j.Output, j.Changes, j.Reference = short.Criterion, short.Input, short.Output, short.Changes, short.Reference
	if got.Config.Model != "" {
		j.Model, j.BaseURL = got.Config.Model, judge.Address(got.Config.BaseURL)
	}
	if got.Model != got.Config.Model {
		j.AnsweredBy = got.Model
	}
	if u := got.Usage; u != nil {
		j.Usage = &record.JudgeUsage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens}
	}
	if err != nil {
		c := record.Check{Outcome: record.Unavailable, Reason: fault.CodeOf(err), Detail: err.Error(), Judge: j}
		if c.Reason == "" {
			c.Reason = judge.CodeUnavailable
		}
		if fix := fault.FixOf(err); fix != "" {
			c.Detail += " (" + fix + ")"
		}
		return c
	}
	score := got.Score
	return record.Check{Outcome: record.Matched, Value: &score, Detail: got.Rationale, Judge: j}
}

// material fixes what is graded. broken says why it is not known.
func (t *T) material(ctx context.Context, c JudgeCheck, turns []*Turn, from, to int) (q judge.Question, broken error) {
	q = judge.Question{Kind: c.Kind, Criterion: c.Criterion, Reference: c.Reference, Input: c.Input, Output: c.Output}
	if q.Input == "" {
		q.Input = talk(turns)
	}
	if q.Output == "" && len(turns) > 0 {
		q.Output = turns[len(turns)-1].Message
	}
	if c.File != "" {
		body, err := t.Sandbox().ReadText(ctx, c.File)
		if err != nil {
			return q, err
		}
		q.Output = body
	}
	// Given material stands for itself; changes belong to the conversation.
	if c.Output != "" || c.File != "" || t.host.Sandbox() == nil || c.Kind != judge.Criteria && c.Kind != judge.ClosedQA || to < from {
		return q, nil
	}
	rows, partial, err := t.host.Changes(ctx, from, to)
	if err != nil {
		return q, err
	}
	q.Changes = changesText(rows, partial)
	return q, nil
}

// talk is what was asked, and between the questions what was answered.
func talk(turns []*Turn) string {
	if len(turns) == 1 {
		return turns[0].Prompt
	}
	var b strings.Builder
	for i, turn := range turns {
		fmt.Fprintf(&b, "User: %s\n", turn.Prompt)
		if i < len(turns)-1 {
			fmt.Fprintf(&b, "Assistant: %s\n", turn.Message)
		}
	}
	return b.String()
}

// maxSide is the longest file whose change is told as a diff, in bytes.
const maxSide = 128 << 10

// changesText tells changes as unified diffs. It cuts nothing: that comes after
// the secrets are masked.
func changesText(rows []record.Row, partial string) string {
	var b strings.Builder
	for i := range rows {
		r := &rows[i]
		before, okBefore := sideText(r.Before)
		after, okAfter := sideText(r.After)
		if !okBefore || !okAfter {
			fmt.Fprintf(&b, "%s %s (its content is not text, or too long)\n", r.Path, r.Status)
			continue
		}
		from, to := "a/"+r.Path, "b/"+r.Path
		if r.Before == nil {
			from = "/dev/null"
		}
		if r.After == nil {
			to = "/dev/null"
		}
		b.WriteString(udiff.Unified(from, to, before, after))
	}
	if len(rows) == 0 {
		b.WriteString("The agent changed no file.\n")
	}
	if partial != "" {
		fmt.Fprintf(&b, "The list of changes is not complete: %s\n", partial)
	}
	return b.String()
}

func sideText(s *record.Side) (string, bool) {
	switch {
	case s == nil:
		return "", true
	case s.Text == nil || len(*s.Text) > maxSide:
		return "", false
	}
	return *s.Text, true
}
