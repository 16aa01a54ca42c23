package report

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"assay/fault"
	"assay/record"
	"assay/ref"
)

// Selection says which results a model is built from.
type Selection struct {
	// Runs selects exactly these runs. Empty selects the current state: the
	// newest result of each slot, over all runs.
	Runs []ref.RunID
	// Latest selects the newest completed run of each experiment.
	Latest bool
	// Experiments narrows the selection; empty selects all.
	Experiments []ref.ExperimentID
}

// Build reads the selected results. A run that is selected by its id and not
// there is an error of code record-run-not-found; damaged attempts are problems
// of the model.
func Build(ctx context.Context, r *record.Reader, sel Selection) (*Model, error) {
	if len(sel.Runs) > 0 && sel.Latest {
		return nil, fault.Configf("usage", "give --run or --latest, not both", "--run and --latest contradict each other")
	}
	m := &Model{Root: r.Path(), Current: len(sel.Runs) == 0 && !sel.Latest}
	runs, err := selectRuns(ctx, r, sel, m)
	if err != nil {
		return nil, err
	}
	var all []*record.RunSlots
	for rs, err := range r.Brief().Slots(ctx, runs) {
		if err != nil {
			return nil, err
		}
		m.Problems = append(m.Problems, rs.Run.Problems...)
		m.Problems = append(m.Problems, rs.Problems...)
		all = append(all, rs)
	}
	if m.Current {
		all = currentOnly(all)
	}
	for _, rs := range all {
		run := newRun(rs)
		m.Totals.merge(run.Totals)
		m.Runs = append(m.Runs, run)
	}
	slices.SortStableFunc(m.Runs, func(a, b *Run) int {
		return cmp.Or(cmp.Compare(a.Experiment, b.Experiment), a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	m.Groups = group(m.Runs)
	return m, nil
}

func selectRuns(ctx context.Context, r *record.Reader, sel Selection, m *Model) ([]*record.StoredRun, error) {
	var runs []*record.StoredRun
	if len(sel.Runs) > 0 {
		for _, id := range sel.Runs {
			run, err := r.Run(id)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(runs, func(o *record.StoredRun) bool { return o.ID == run.ID }) {
				runs = append(runs, run)
			}
		}
	} else {
		all, problems, err := r.Runs(ctx)
		if err != nil {
			return nil, err
		}
		m.Problems = append(m.Problems, problems...)
		runs = all
	}
	if len(sel.Experiments) > 0 {
		runs = slices.DeleteFunc(runs, func(s *record.StoredRun) bool { return !slices.Contains(sel.Experiments, s.Experiment) })
	}
	if sel.Latest {
		runs = latest(runs)
	}
	return runs, nil
}

// latest keeps the newest completed run of each experiment; runs come oldest
// first.
func latest(runs []*record.StoredRun) []*record.StoredRun {
	newest := map[ref.ExperimentID]*record.StoredRun{}
	for _, run := range runs {
		if run.Completion() == record.Completed {
			newest[run.Experiment] = run
		}
	}
	return slices.DeleteFunc(runs, func(s *record.StoredRun) bool { return newest[s.Experiment] != s })
}

// currentOnly leaves in each run the slots that are current, and drops runs
// without any. Slots keep their declared order.
func currentOnly(all []*record.RunSlots) []*record.RunSlots {
	type key struct {
		run  ref.RunID
		slot record.SlotRef
	}
	current := map[key]bool{}
	for _, s := range record.Current(all) {
		current[key{s.Run.ID, s.SlotRef}] = true
	}
	var out []*record.RunSlots
	for _, rs := range all {
		rs.Slots = slices.DeleteFunc(rs.Slots, func(s record.SlotResult) bool { return !current[key{rs.Run.ID, s.SlotRef}] })
		if len(rs.Slots) > 0 || len(rs.Run.Slots) == 0 {
			out = append(out, rs)
		}
	}
	return out
}

func newRun(rs *record.RunSlots) *Run {
	s := rs.Run
	run := &Run{
		ID: s.ID, Experiment: s.Experiment, Invocation: s.Invocation, StartedAt: s.StartedAt,
		Status: s.Status, Completion: s.Completion(), Labels: s.Labels, Context: s.Context,
		Slots: make([]Slot, len(rs.Slots)),
	}
	if s.End != nil {
		run.Diagnostics, run.Facts, run.Error = s.End.Diagnostics, s.End.Facts, s.End.Error
		if !s.End.CompletedAt.IsZero() {
			run.CompletedAt = &s.End.CompletedAt
		}
	}
	for i := range rs.Slots {
		run.Slots[i] = newSlot(&rs.Slots[i])
		run.Totals.add(&run.Slots[i])
	}
	return run
}

func newSlot(s *record.SlotResult) Slot {
	out := Slot{Eval: s.Eval, Ordinal: s.Ordinal, Origin: s.Origin, Verdict: record.NotRun, Result: s.Attempt}
	if s.Origin != "" {
		out.Attempt, out.Locator = s.At.Attempt, ref.LocatorOf(s.At.Attempt)
		if s.Origin != record.Executed {
			out.Source = s.At.Run
		}
	}
	switch {
	case s.Attempt != nil:
		out.Verdict = s.Attempt.Verdict
		out.Why, out.SoftFailures = Why(s.Attempt)
	case s.Problem != nil:
		out.Why = "unreadable: " + s.Problem.Message
	case s.Error != nil:
		out.Verdict, out.Error = record.Errored, s.Error
		out.Why = whyErrored(&record.Attempt{Error: s.Error})
	default:
		out.Why = s.Reason
	}
	return out
}

// Why tells the reason of an attempt's verdict in one line of raw text, and how
// many soft checks were missed.
func Why(a *record.Attempt) (why string, soft int) {
	var softNames []string
	for i := range a.Checks {
		if c := &a.Checks[i]; c.Severity == record.Soft && c.Outcome == record.Mismatched {
			softNames = append(softNames, checkLine(c))
		}
	}
	soft = len(softNames)
	switch a.Verdict {
	case record.Errored:
		return whyErrored(a), soft
	case record.Failed:
		if c := Deciding(a); c != nil {
			return checkLine(c), soft
		}
		return "no missed gate is recorded", soft
	case record.Skipped:
		return a.Skip, soft
	}
	if soft == 1 {
		return "soft: " + softNames[0], soft
	}
	if soft > 1 {
		return fmt.Sprintf("%d soft checks missed, first: %s", soft, softNames[0]), soft
	}
	return "", soft
}

func whyErrored(a *record.Attempt) string {
	if e := a.Error; e != nil {
		parts := []string{}
		for _, p := range []string{e.Phase, e.Code, e.Message} {
			if p != "" {
				parts = append(parts, p)
			}
		}
		return strings.Join(parts, ": ")
	}
	if c := Deciding(a); c != nil {
		return checkLine(c)
	}
	return "no cause is recorded"
}

// Deciding is the first check that made the attempt failed or errored, or nil.
func Deciding(a *record.Attempt) *record.Check {
	want := record.Mismatched
	if a.Verdict == record.Errored {
		want = record.Unavailable
	}
	for i := range a.Checks {
		c := &a.Checks[i]
		if c.Severity == record.Gate && c.Outcome == want && (want == record.Mismatched || !c.Optional) {
			return c
		}
	}
	return nil
}

func checkLine(c *record.Check) string {
	parts := []string{c.Name}
	if c.Outcome == record.Unavailable {
		parts = append(parts, "unavailable")
	}
	for _, p := range []string{c.Environment, c.Reason, c.Detail} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ": ")
}

// Group is a set of slots that failed in the same way.
type Group struct {
	Verdict record.Verdict // Failed or Errored
	Why     string
	// Fix is what the user can do, where the record says so.
	Fix      string
	Members  []GroupMember // at least one
	Measured bool          // false for errored: left out of the rates
}

// GroupMember is one slot of a group.
type GroupMember struct {
	Run     *Run
	Eval    ref.EvalID
	Ordinal int
	Locator ref.Locator
}

func group(runs []*Run) []Group {
	type key struct {
		verdict record.Verdict
		why     string
	}
	index := map[key]int{}
	var groups []Group
	for _, run := range runs {
		for i := range run.Slots {
			s := &run.Slots[i]
			if s.Verdict != record.Failed && s.Verdict != record.Errored {
				continue
			}
			k := key{s.Verdict, s.Why}
			n, ok := index[k]
			if !ok {
				n = len(groups)
				index[k] = n
				g := Group{Verdict: s.Verdict, Why: s.Why, Measured: s.Verdict == record.Failed}
				if s.Result != nil && s.Result.Error != nil {
					g.Fix = s.Result.Error.Fix
				} else if s.Error != nil {
					g.Fix = s.Error.Fix
				}
				groups = append(groups, g)
			}
			groups[n].Members = append(groups[n].Members, GroupMember{run, s.Eval, s.Ordinal, s.Locator})
		}
	}
	slices.SortStableFunc(groups, func(a, b Group) int { return len(b.Members) - len(a.Members) })
	return groups
}

// Only narrows the model to the slots that one attempt fills.
func (m *Model) Only(id ref.AttemptID) {
	var runs []*Run
	m.Totals = Totals{}
	for _, r := range m.Runs {
		r.Slots = slices.DeleteFunc(r.Slots, func(s Slot) bool { return s.Attempt != id })
		if len(r.Slots) == 0 {
			continue
		}
		r.Totals = Totals{}
		for i := range r.Slots {
			r.Totals.add(&r.Slots[i])
		}
		m.Totals.merge(r.Totals)
		runs = append(runs, r)
	}
	m.Runs, m.Groups = runs, group(runs)
}
