package board

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

// Counts says where every slot is. Total is the sum of all others, always, and
// none is negative.
type Counts struct {
	Total                            int
	Reused                           int // filled from the record
	Running                          int
	Waiting                          int // for something but its turn: a setup, a lock, a pause
	Queued                           int
	Passed, Failed, Errored, Skipped int // executed now
	NotRun                           int // ended without a result
}

// Counts returns the counters. Slots that nobody has spoken of yet are reused,
// as far as the plan announced reused ones, else queued.
func (b *Board) Counts() Counts {
	known := 0
	for _, n := range b.n {
		known += n
	}
	c := Counts{
		Total: max(b.total, known), Running: b.n[running], Waiting: b.n[waiting], Passed: b.n[passed],
		Failed: b.n[failed], Errored: b.n[errored], Skipped: b.n[skipped], NotRun: b.n[notrun],
	}
	unsettled := c.Total - known + b.n[queued]
	coming := min(max(b.announced-b.n[reused], 0), c.Total-known)
	c.Reused = b.n[reused] + coming
	c.Queued = unsettled - coming
	return c
}

// Finished is the number of slots that have ended, reused ones included.
func (c Counts) Finished() int {
	return c.Reused + c.Passed + c.Failed + c.Errored + c.Skipped + c.NotRun
}

// String names every class that the total is made of: the classes of results
// always, the others where there are any.
func (c Counts) String() string {
	parts := []string{
		fmt.Sprintf("%d passed", c.Passed), fmt.Sprintf("%d failed", c.Failed), fmt.Sprintf("%d errored", c.Errored),
		fmt.Sprintf("%d skipped", c.Skipped), fmt.Sprintf("%d carried", c.Reused), fmt.Sprintf("%d not run", c.NotRun),
	}
	for _, p := range []struct {
		n    int
		name string
	}{{c.Running, "running"}, {c.Waiting, "waiting"}, {c.Queued, "queued"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	return plural(c.Total, "attempt") + ": " + strings.Join(parts, ", ")
}

// Row is one active attempt.
type Row struct {
	Slot    ref.Slot
	Locator ref.Locator
	// Since is when it was dispatched, zero where that is unknown. It does not
	// change from phase to phase.
	Since time.Time
	// Text is what it does: its last progress, else its phase.
	Text string
}

// Active returns up to limit active attempts, the oldest first, and how many
// there are.
func (b *Board) Active(limit int) (rows []Row, all int) {
	for _, s := range b.active[:min(max(limit, 0), len(b.active))] {
		r := Row{Slot: s.ref, Locator: s.locator, Since: s.since, Text: PhaseText(s.phase)}
		switch {
		case s.state != running && s.waitsFor != "":
			r.Text = "Waiting for " + s.waitsFor
		case s.state != running:
			r.Text = "Waiting for a slot"
		case s.progress != "":
			r.Text = s.progress
		}
		rows = append(rows, r)
	}
	return rows, len(b.active)
}

// Verdict is the result of a slot, "" while it has none. For a reused one it is
// the verdict in the record.
func (b *Board) Verdict(r ref.Slot) record.Verdict {
	if s := b.slots[r]; s != nil {
		return s.verdict
	}
	return ""
}

// Steps returns the run-level work that goes on, one line each.
func (b *Board) Steps() []string {
	out := make([]string, 0, len(b.steps))
	for _, s := range b.steps {
		out = append(out, join(s.text, s.progress))
	}
	return out
}

// Failures returns the failed and errored attempts in the order in which they
// ended.
func (b *Board) Failures() []Failure { return slices.Clone(b.failures) }

// Diagnostics returns the diagnostics by dedupe key in the order of their first
// appearance.
func (b *Board) Diagnostics() []Diagnostic { return slices.Clone(b.diagnostics) }

// Spend returns cost and tokens of newly executed attempts.
func (b *Board) Spend() Spend { return b.spend }

// Started is when the invocation began, zero before it did.
func (b *Board) Started() time.Time { return b.start }

// Ended reports whether the invocation is over.
func (b *Board) Ended() bool { return b.ended }

// Interrupted returns the highest interrupt level received, 0 for none.
func (b *Board) Interrupted() int { return b.interrupt.Level }

// Conclusion is the outcome so far: the engine's word where it gave one, else
// worked out from the verdicts. A pair of experiment and eval is red when an
// attempt of it is errored or when it has a failed attempt and no passed one;
// a slot without a result makes the run incomplete unless it was spared by an
// early exit.
func (b *Board) Conclusion() event.Conclusion {
	if b.conclusion != "" {
		return b.conclusion
	}
	if b.interrupt.Level > 0 || b.completion == record.Interrupted {
		return event.ConcludedInterrupted
	}
	type pair struct {
		experiment ref.ExperimentID
		eval       ref.EvalID
	}
	pairs := map[pair]map[record.Verdict]bool{}
	incomplete := b.completion == record.RunFailed
	for r, s := range b.slots {
		k := pair{r.Experiment, r.Eval}
		if pairs[k] == nil {
			pairs[k] = map[record.Verdict]bool{}
		}
		pairs[k][s.verdict] = true
		if !s.state.final() || s.state == notrun && s.reason != "early-exit" {
			incomplete = true
		}
	}
	isErrored := false
	for _, v := range pairs {
		if v[record.Failed] && !v[record.Passed] {
			return event.ConcludedFailed
		}
		isErrored = isErrored || v[record.Errored]
	}
	c := b.Counts()
	switch {
	case isErrored:
		return event.ConcludedErrored
	case incomplete || c.Total == 0 || len(b.slots) < c.Total-max(b.announced-b.n[reused], 0):
		return event.ConcludedIncomplete
	}
	return event.ConcludedPassed
}
