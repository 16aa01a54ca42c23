// Package report builds a closed model of results from a record reader. Views
// render a model; they read nothing and calculate nothing.
//
// Unknown is not a score: errored attempts, slots without a result and censored
// durations are left out of every rate and mean, and each rate and mean says how
// many of how many it stands on.
package report

import (
	"time"

	"assay/record"
	"assay/ref"
)

// Model is what a selection of a record says.
type Model struct {
	// Root is the record's path.
	Root string
	// Current is true when the runs hold only the newest result of each slot.
	Current bool
	// Runs are sorted by experiment, then oldest first.
	Runs   []*Run
	Totals Totals
	// Groups are the failures of all runs, equal ones together, most frequent
	// first.
	Groups []Group
	// Problems are the parts of the record that cannot be read.
	Problems []*record.Problem
}

// Run is one run, or the part of it that is current.
type Run struct {
	ID          ref.RunID
	Experiment  ref.ExperimentID
	Invocation  ref.InvocationID
	StartedAt   time.Time
	CompletedAt *time.Time
	Status      record.Status
	// Completion is "" while the run goes on or nobody can tell.
	Completion  record.Completion
	Labels      map[string]any
	Context     map[string]any
	Slots       []Slot
	Totals      Totals
	Diagnostics []record.Diagnostic
	Facts       record.Facts
	Error       *record.ErrorInfo
}

// Slot is one declared slot. Every declared slot is there.
type Slot struct {
	Eval    ref.EvalID
	Ordinal int
	// Origin, Attempt and Locator are empty for a slot without a result.
	Origin  record.Origin
	Attempt ref.AttemptID
	Locator ref.Locator
	Verdict record.Verdict
	// Why is the reason of the verdict in one line of raw text: the first missed
	// gate, the error, why it was skipped or did not run; for a passed slot its
	// soft failures, or "".
	Why string
	// SoftFailures counts the soft checks that were missed.
	SoftFailures int
	// Source is the run that executed a carried or accepted result.
	Source ref.RunID
	// Result is the attempt without Turns and Identity; nil when there is none.
	Result *record.Attempt
	// Error is that of a slot that is errored without an attempt.
	Error *record.ErrorInfo
}

// Totals counts slots by verdict and sums what is known.
type Totals struct {
	Passed, Failed, Errored, Skipped, NotRun int
	// Carried counts the slots whose result was carried or accepted; they are
	// counted by their verdict too.
	Carried int
	// SoftFailed counts passed slots with soft failures.
	SoftFailed int
	// Duration is in milliseconds, Tokens and CostUSD of executed attempts only.
	Duration, Tokens, CostUSD Measure
}

// Slots is the number of declared slots.
func (t *Totals) Slots() int { return t.Passed + t.Failed + t.Errored + t.Skipped + t.NotRun }

// PassRate is passed / (passed + failed), and on how many slots it stands; the
// rate means nothing when that is 0.
func (t *Totals) PassRate() (rate float64, measured int) {
	measured = t.Passed + t.Failed
	if measured == 0 {
		return 0, 0
	}
	return float64(t.Passed) / float64(measured), measured
}

// Measure is a quantity that is known for some attempts.
type Measure struct {
	Sum   float64
	Known int // attempts with a known value
	Of    int // attempts that could have one
}

// Mean is Sum / Known; false when nothing is known.
func (m Measure) Mean() (float64, bool) {
	if m.Known == 0 {
		return 0, false
	}
	return m.Sum / float64(m.Known), true
}

func (m *Measure) add(v float64, known bool) {
	m.Of++
	if known {
		m.Known++
		m.Sum += v
	}
}

func (m *Measure) merge(o Measure) {
	m.Sum, m.Known, m.Of = m.Sum+o.Sum, m.Known+o.Known, m.Of+o.Of
}

func (t *Totals) add(s *Slot) {
	switch s.Verdict {
	case record.Passed:
		t.Passed++
		if s.SoftFailures > 0 {
			t.SoftFailed++
		}
	case record.Failed:
		t.Failed++
	case record.Errored:
		t.Errored++
	case record.Skipped:
		t.Skipped++
	default:
		t.NotRun++
	}
	switch s.Origin {
	case record.Executed:
		t.measure(s.Result)
	case record.Carried, record.Accepted:
		t.Carried++
	}
}

func (t *Totals) measure(a *record.Attempt) {
	if a == nil {
		return
	}
	if a.Verdict != record.Skipped {
		// A censored attempt ran at least as long as its limit; nobody knows how
		// long it would have taken.
		known := a.DurationMS != nil && a.CensoredMS == nil && a.Verdict != record.Errored
		ms := 0.0
		if known {
			ms = float64(*a.DurationMS)
		}
		t.Duration.add(ms, known)
	}
	tokens, known := Tokens(a.Usage)
	t.Tokens.add(float64(tokens), known)
	cost := 0.0
	if a.CostUSD != nil {
		cost = *a.CostUSD
	}
	t.CostUSD.add(cost, a.CostUSD != nil)
}

func (t *Totals) merge(o Totals) {
	t.Passed, t.Failed, t.Errored = t.Passed+o.Passed, t.Failed+o.Failed, t.Errored+o.Errored
	t.Skipped, t.NotRun = t.Skipped+o.Skipped, t.NotRun+o.NotRun
	t.Carried, t.SoftFailed = t.Carried+o.Carried, t.SoftFailed+o.SoftFailed
	t.Duration.merge(o.Duration)
	t.Tokens.merge(o.Tokens)
	t.CostUSD.merge(o.CostUSD)
}

// Tokens sums the buckets of a usage that were reported, and says whether any
// was. Reasoning tokens are part of the output.
func Tokens(u *record.Usage) (int64, bool) {
	if u == nil {
		return 0, false
	}
	var sum int64
	known := false
	for _, p := range []*int64{u.InputTokens, u.CacheReadTokens, u.CacheCreationTokens, u.OutputTokens} {
		if p != nil {
			sum, known = sum+*p, true
		}
	}
	return sum, known
}
