// Package showjson writes a model as the machine document of `show --json`,
// schema assay.show/v1. Facts that are absent are absent, never zero.
package showjson

import (
	"bufio"
	"encoding/json"
	"io"
	"time"

	"assay/record"
	"assay/ref"
	"assay/report"
)

// Schema is the name and version of the document.
const Schema = "assay.show/v1"

type run struct {
	ID          ref.RunID           `json:"id"`
	Experiment  ref.ExperimentID    `json:"experiment"`
	StartedAt   time.Time           `json:"startedAt"`
	CompletedAt *time.Time          `json:"completedAt,omitempty"`
	Completion  record.Completion   `json:"completion,omitempty"`
	Slots       []slot              `json:"slots"`
	Diagnostics []record.Diagnostic `json:"diagnostics,omitempty"`
	Facts       record.Facts        `json:"facts,omitempty"`
	Error       *record.ErrorInfo   `json:"error,omitempty"`
}

type slot struct {
	Eval        ref.EvalID          `json:"eval"`
	Ordinal     int                 `json:"ordinal"`
	Attempt     ref.AttemptID       `json:"attempt,omitempty"`
	Locator     ref.Locator         `json:"locator,omitempty"`
	Origin      record.Origin       `json:"origin,omitempty"`
	Verdict     record.Verdict      `json:"verdict"`
	Reason      string              `json:"reason,omitempty"` // of skipped and not-run
	DurationMS  *int64              `json:"durationMs,omitempty"`
	CensoredMS  *int64              `json:"censoredMs,omitempty"`
	Phases      []phase             `json:"phases,omitempty"`
	Checks      []record.Check      `json:"checks,omitempty"`
	Diff        []record.Change     `json:"diff,omitempty"`
	DiffPartial string              `json:"diffPartial,omitempty"`
	Usage       *record.Usage       `json:"usage,omitempty"`
	CostUSD     *float64            `json:"costUSD,omitempty"`
	Sandbox     *record.Sandbox     `json:"sandbox,omitempty"`
	Diagnostics []record.Diagnostic `json:"diagnostics,omitempty"`
	Facts       record.Facts        `json:"facts,omitempty"`
	Error       *record.ErrorInfo   `json:"error,omitempty"`
}

type phase struct {
	Name    string `json:"name"`
	MS      int64  `json:"ms"`
	Outcome string `json:"outcome,omitempty"`
}

type totals struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Errored int `json:"errored"`
	Skipped int `json:"skipped"`
	NotRun  int `json:"notRun"`
	Carried int `json:"carried"`
}

// Write writes the one document and a newline, a run at a time. The error is
// that of w.
func Write(w io.Writer, m *report.Model) error {
	b := bufio.NewWriterSize(w, 64<<10)
	// A bufio.Writer keeps its first error and returns it from Flush.
	_, _ = b.WriteString(`{"schema":"` + Schema + `","runs":[`)
	for i, r := range m.Runs {
		if i > 0 {
			_ = b.WriteByte(',')
		}
		if err := encode(b, newRun(r)); err != nil {
			return err
		}
	}
	_, _ = b.WriteString(`],"totals":`)
	t := &m.Totals
	if err := encode(b, totals{t.Passed, t.Failed, t.Errored, t.Skipped, t.NotRun, t.Carried}); err != nil {
		return err
	}
	if len(m.Problems) > 0 {
		_, _ = b.WriteString(`,"problems":`)
		if err := encode(b, m.Problems); err != nil {
			return err
		}
	}
	_, _ = b.WriteString("}\n")
	return b.Flush()
}

func encode(b *bufio.Writer, v any) error {
	doc, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = b.Write(doc)
	return err
}

func newRun(r *report.Run) run {
	out := run{
		ID: r.ID, Experiment: r.Experiment, StartedAt: r.StartedAt, CompletedAt: r.CompletedAt, Completion: r.Completion,
		Slots: make([]slot, len(r.Slots)), Diagnostics: r.Diagnostics, Facts: r.Facts, Error: r.Error,
	}
	for i := range r.Slots {
		out.Slots[i] = newSlot(&r.Slots[i])
	}
	return out
}

func newSlot(s *report.Slot) slot {
	out := slot{Eval: s.Eval, Ordinal: s.Ordinal, Attempt: s.Attempt, Locator: s.Locator, Origin: s.Origin, Verdict: s.Verdict}
	if s.Verdict == record.NotRun || s.Verdict == record.Skipped {
		out.Reason = s.Why
	}
	a := s.Result
	if a == nil {
		out.Error = s.Error
		return out
	}
	out.DurationMS, out.CensoredMS, out.Checks = a.DurationMS, a.CensoredMS, a.Checks
	for _, p := range a.Phases {
		out.Phases = append(out.Phases, phase{p.Name, p.MS, p.Outcome})
	}
	if a.Diff != nil {
		out.Diff, out.DiffPartial = a.Diff.Changes, a.Diff.Partial
	}
	out.Usage, out.CostUSD, out.Sandbox = a.Usage, a.CostUSD, a.Sandbox
	out.Diagnostics, out.Facts, out.Error = a.Diagnostics, a.Facts, a.Error
	return out
}
