package jsonstream

import (
	"encoding/json"
	"time"

	"assay/internal/board"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

// The lines of the stream. A field that is not known is absent, never zero.

type startLine struct {
	Event         string           `json:"event"` // "start"
	Format        string           `json:"format"`
	SchemaVersion int              `json:"schemaVersion"`
	Time          time.Time        `json:"time"`
	Invocation    ref.InvocationID `json:"invocationId"`
	Total         int              `json:"total"`
	Reused        int              `json:"reused"`
	Concurrency   int              `json:"concurrency"`
	// Gates maps experiments to their own width, where they have one.
	Gates   map[ref.ExperimentID]int `json:"experimentConcurrency,omitempty"`
	Configs []configLine             `json:"configs"`
}

type configLine struct {
	Experiment ref.ExperimentID `json:"experiment"`
	Run        ref.RunID        `json:"runId"`
	Agent      string           `json:"agent,omitempty"`
	Model      string           `json:"model,omitempty"`
	Sandbox    string           `json:"sandbox,omitempty"`
	Slots      int              `json:"slots"`
	Reused     int              `json:"reused"`
}

// slotFields name a slot; a run's own lines have no eval.
type slotFields struct {
	Experiment ref.ExperimentID `json:"experiment,omitempty"`
	Eval       ref.EvalID       `json:"eval,omitempty"`
	Ordinal    *int             `json:"ordinal,omitempty"`
}

func slotOf(s ref.Slot) slotFields {
	f := slotFields{Experiment: s.Experiment, Eval: s.Eval}
	if s.Eval != "" {
		f.Ordinal = &s.Ordinal
	}
	return f
}

type evalLine struct {
	Event string `json:"event"` // "eval"
	slotFields
	Verdict    record.Verdict `json:"verdict"`
	Origin     record.Origin  `json:"origin,omitempty"`
	Locator    ref.Locator    `json:"locator,omitempty"`
	Run        ref.RunID      `json:"runId,omitempty"`
	Attempt    ref.AttemptID  `json:"attempt,omitempty"`
	DurationMS *int64         `json:"durationMs,omitempty"`
	CostUSD    *float64       `json:"costUSD,omitempty"`
	Usage      *record.Usage  `json:"usage,omitempty"`
	Reason     string         `json:"reason,omitempty"` // of a skip or a slot without a result
}

type failureLine struct {
	Event string `json:"event"` // "failure"
	slotFields
	Locator ref.Locator    `json:"locator,omitempty"`
	Checks  []record.Check `json:"checks"` // those that did not match
}

type errorLine struct {
	Event string `json:"event"` // "error"
	slotFields
	Locator ref.Locator       `json:"locator,omitempty"`
	Error   *record.ErrorInfo `json:"error,omitempty"`
	Checks  []record.Check    `json:"checks,omitempty"` // those without an answer
}

type progressCounts struct {
	Event     string `json:"event"` // "progress"
	ElapsedMS int64  `json:"elapsedMs"`
	Total     int    `json:"total"`
	Reused    int    `json:"reused"`
	Running   int    `json:"running"`
	Waiting   int    `json:"waiting"`
	Queued    int    `json:"queued"`
	Passed    int    `json:"passed"`
	Failed    int    `json:"failed"`
	Errored   int    `json:"errored"`
	Skipped   int    `json:"skipped"`
	NotRun    int    `json:"notRun"`
}

type messageLine struct {
	Event string `json:"event"` // "notice" or "warning"
	slotFields
	Code    string          `json:"code"`
	Level   string          `json:"level,omitempty"`
	Phase   string          `json:"phase,omitempty"`
	Scope   string          `json:"scope,omitempty"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

type budgetLine struct {
	Event      string           `json:"event"` // "budget_exhausted"
	Experiment ref.ExperimentID `json:"experiment"`
	SpentUSD   float64          `json:"spentUSD"`
	LimitUSD   float64          `json:"limitUSD"`
}

type interruptedLine struct {
	Event  string `json:"event"` // "interrupted"
	Signal string `json:"signal"`
	Level  int    `json:"level"`
}

type checkLine struct {
	Event    string     `json:"event"` // "provider_check"
	Provider string     `json:"provider"`
	Status   event.Step `json:"status"`
	Error    string     `json:"error,omitempty"`
}

type prepareLine struct {
	Event    string     `json:"event"` // "sandbox_prepare"
	Key      string     `json:"key"`
	Provider string     `json:"provider"`
	Label    string     `json:"label,omitempty"`
	Status   event.Step `json:"status"`
	Stage    string     `json:"stage,omitempty"`
	Class    string     `json:"class,omitempty"`
	Headline string     `json:"headline,omitempty"`
	Cause    string     `json:"cause,omitempty"`  // of a failure
	Log      string     `json:"log,omitempty"`    // the end of what the failed step printed
	Origin   string     `json:"origin,omitempty"` // how it came to be there, such as "pulled"
	Levels   []string   `json:"levels,omitempty"`
}

type hookLine struct {
	Event      string           `json:"event"` // "experiment_setup" or "experiment_teardown"
	Experiment ref.ExperimentID `json:"experiment"`
	Status     event.Step       `json:"status"`
	Error      string           `json:"error,omitempty"`
}

type lockLine struct {
	Event string `json:"event"` // "lock_wait"
	slotFields
	Lock   string `json:"lock"`
	Holder string `json:"holder,omitempty"`
}

type receiptLine struct {
	Type    string         `json:"type"` // "receipt"
	Receipt record.Receipt `json:"receipt"`
}

// prepared returns the line of a preparation. Its progress is for people.
func prepared(e event.Prepare) []any {
	if e.Status == event.Started && e.Message != "" {
		return nil
	}
	l := prepareLine{
		Event: "sandbox_prepare", Key: e.Key, Provider: e.Provider, Label: e.Label, Status: e.Status, Stage: e.Stage,
		Class: e.Class, Headline: e.Headline, Log: e.Log, Levels: e.Levels,
	}
	switch e.Status {
	case event.Done:
		l.Origin = e.Message
	case event.Broken:
		l.Cause = e.Message
	}
	return []any{l}
}

// translate returns the lines of e.
func translate(e event.Event) []any {
	switch e := e.(type) {
	case event.Start:
		return []any{start(e)}
	case event.Check:
		return []any{checkLine{"provider_check", e.Provider, e.Status, e.Err}}
	case event.Prepare:
		return prepared(e)
	case event.ExperimentHook:
		return []any{hookLine{"experiment_" + e.Hook, e.Experiment, e.Status, e.Err}}
	case event.LockWait:
		return []any{lockLine{"lock_wait", slotOf(e.Slot), e.Lock, e.Holder}}
	case event.AttemptDone:
		return done(e)
	case event.NotRun:
		return []any{evalLine{Event: "eval", slotFields: slotOf(e.Slot), Verdict: record.NotRun, Reason: e.Reason}}
	case event.Carried:
		origin := e.Origin
		if origin == "" {
			origin = record.Carried
		}
		return []any{evalLine{
			Event: "eval", slotFields: slotOf(e.Slot), Verdict: e.Verdict, Origin: origin, Locator: e.Locator, Run: e.Run, Attempt: e.Attempt,
		}}
	case event.Diagnostic:
		d := e.Diagnostic
		return []any{messageLine{
			Event: "warning", slotFields: slotOf(e.Slot), Code: d.Code, Level: d.Level, Phase: d.Phase,
			Message: d.Message, Data: d.Data,
		}}
	case event.Notice:
		return []any{messageLine{Event: "notice", Code: e.Code, Level: e.Level, Message: e.Message}}
	case event.Halted:
		return []any{messageLine{
			Event: "warning", slotFields: slotOf(e.Slot), Code: "dispatch-halted", Level: "error", Scope: e.Scope, Message: e.Message,
		}}
	case event.Budget:
		return []any{budgetLine{"budget_exhausted", e.Experiment, e.SpentUSD, e.Limit}}
	case event.Interrupt:
		return []any{interruptedLine{"interrupted", e.Signal, e.Level}}
	case event.End:
		return []any{receipt(e)}
	}
	return nil
}

func start(e event.Start) startLine {
	l := startLine{
		Event: "start", Format: Format, SchemaVersion: Version, Time: e.Time, Invocation: e.Invocation, Total: e.Total,
		Reused: e.Reused, Concurrency: e.Concurrency, Configs: []configLine{},
	}
	for _, x := range e.Experiments {
		l.Configs = append(l.Configs, configLine{x.ID, x.Run, x.Agent, x.Model, x.Sandbox, x.Slots, x.Reused})
		if x.MaxConcurrency > 0 {
			if l.Gates == nil {
				l.Gates = map[ref.ExperimentID]int{}
			}
			l.Gates[x.ID] = x.MaxConcurrency
		}
	}
	return l
}

// done is the eval line of a finished attempt and, for a red one, the reason.
func done(e event.AttemptDone) []any {
	a := e.Attempt
	if a == nil {
		return []any{evalLine{Event: "eval", slotFields: slotOf(e.Slot), Verdict: record.Errored, Reason: "no result was given"}}
	}
	lines := []any{evalLine{
		Event: "eval", slotFields: slotOf(e.Slot), Verdict: a.Verdict, Origin: record.Executed, Locator: a.Locator, Run: a.Run,
		Attempt: a.ID, DurationMS: a.DurationMS, CostUSD: a.CostUSD, Usage: a.Usage, Reason: a.Skip,
	}}
	switch a.Verdict {
	case record.Failed:
		return append(lines, failureLine{"failure", slotOf(e.Slot), a.Locator, checks(a, record.Mismatched)})
	case record.Errored:
		return append(lines, errorLine{"error", slotOf(e.Slot), a.Locator, a.Error, checks(a, record.Unavailable)})
	}
	return lines
}

func checks(a *record.Attempt, outcome record.Outcome) []record.Check {
	out := []record.Check{}
	for _, c := range a.Checks {
		if c.Outcome == outcome {
			out = append(out, c)
		}
	}
	return out
}

func receipt(e event.End) receiptLine {
	r := e.Receipt
	if r.RunIDs == nil {
		r.RunIDs = []ref.RunID{}
	}
	return receiptLine{"receipt", r}
}

func progressLine(b *board.Board, now time.Time) progressCounts {
	c := b.Counts()
	return progressCounts{
		"progress", now.Sub(b.Started()).Milliseconds(), c.Total, c.Reused, c.Running, c.Waiting, c.Queued, c.Passed,
		c.Failed, c.Errored, c.Skipped, c.NotRun,
	}
}
