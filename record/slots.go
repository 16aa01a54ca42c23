package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"assay/ref"
)

// SlotResult is how one declared slot of a run was filled, if it was.
type SlotResult struct {
	Run *StoredRun
	SlotRef
	// Origin is "" for a slot without a result.
	Origin Origin
	// Attempt is the result; nil when there is none or it cannot be read.
	Attempt *Attempt
	// At is where the result lies, also when it cannot be read.
	At AttemptRef
	// Member is the reference of a carried or accepted result.
	Member *Member
	// Reason says why there is no result: what End.NotRun tells, "running" while
	// the run lives, "interrupted" when its process died, "unfinished" when nobody
	// can tell, or "not-recorded".
	Reason string
	// Error is set for a slot that is errored without an attempt.
	Error *ErrorInfo
	// Problem says why the result cannot be read.
	Problem *Problem
}

// Slots yields the given runs in their order, each with every declared slot. A
// slot that was executed more than once in a run shows its last attempt. An
// error is the last thing it yields.
func (r *Reader) Slots(ctx context.Context, runs []*StoredRun) iter.Seq2[*RunSlots, error] {
	return func(yield func(*RunSlots, error) bool) {
		var refs []AttemptRef
		ends := make([]int, len(runs)) // refs[:ends[i]] belong to runs[:i+1]
		for i, run := range runs {
			own, err := r.AttemptRefs(run.ID)
			if err != nil {
				yield(nil, err)
				return
			}
			refs = append(refs, own...)
			ends[i] = len(refs)
		}
		at, current := 0, 0
		var sealed []*Attempt
		var broken []*Problem
		flush := func() bool { // emits all runs that are complete at position at
			for current < len(runs) && ends[current] == at {
				slots, err := r.fill(ctx, runs[current], sealed, broken)
				sealed, broken = nil, nil
				current++
				if !yield(slots, err) || err != nil {
					return false
				}
			}
			return true
		}
		if !flush() {
			return
		}
		for a, err := range r.Attempts(ctx, refs) {
			problem := (*Problem)(nil)
			if err != nil && !errors.As(err, &problem) {
				yield(nil, err)
				return
			}
			if problem != nil {
				broken = append(broken, problem)
			} else {
				sealed = append(sealed, a)
			}
			at++
			if !flush() {
				return
			}
		}
	}
}

// RunSlots is a run with all its slots.
type RunSlots struct {
	Run *StoredRun
	// Slots has one entry per declared slot, in the declared order.
	Slots []SlotResult
	// Problems are sealed attempts that cannot be read or that fill no declared
	// slot: nobody knows which slot they belong to.
	Problems []*Problem
}

func (r *Reader) fill(ctx context.Context, run *StoredRun, sealed []*Attempt, broken []*Problem) (*RunSlots, error) {
	out := &RunSlots{Run: run, Slots: make([]SlotResult, len(run.Slots)), Problems: broken}
	index := make(map[SlotRef]int, len(run.Slots))
	for i, s := range run.Slots {
		out.Slots[i] = SlotResult{Run: run, SlotRef: s}
		index[s] = i
	}
	for _, a := range sealed {
		i, ok := index[SlotRef{Eval: a.Eval, Ordinal: a.Ordinal}]
		if !ok {
			out.Problems = append(out.Problems, &Problem{
				Run: run.ID, Attempt: a.ID, File: dirOf(AttemptRef{run.ID, a.ID}) + "/" + attemptFile,
				Message: fmt.Sprintf("slot %s#%d is not declared by its run", a.Eval, a.Ordinal),
			})
			continue
		}
		s := &out.Slots[i]
		if s.Attempt == nil || cmpAttempts(s.Attempt, a) < 0 {
			s.Origin, s.Attempt, s.At = Executed, a, AttemptRef{run.ID, a.ID}
		}
	}
	if err := r.fillMembers(ctx, run, out.Slots, index); err != nil {
		return nil, err
	}
	reasons := map[SlotRef]NotRunSlot{}
	if run.End != nil {
		for _, n := range run.End.NotRun {
			reasons[n.SlotRef] = n
		}
	}
	for i := range out.Slots {
		s := &out.Slots[i]
		if s.Origin != "" {
			continue
		}
		if n, ok := reasons[s.SlotRef]; ok {
			s.Reason, s.Error = n.Reason, n.Error
			continue
		}
		switch run.Status {
		case StatusRunning:
			s.Reason = "running"
		case StatusInterrupted:
			s.Reason = "interrupted"
		case StatusUnfinished:
			s.Reason = "unfinished"
		default:
			s.Reason = "not-recorded"
		}
	}
	return out, nil
}

// fillMembers loads the attempts of other runs that fill slots of this one. A
// result that was executed here wins over a reference.
func (r *Reader) fillMembers(ctx context.Context, run *StoredRun, slots []SlotResult, index map[SlotRef]int) error {
	var refs []AttemptRef
	var at []int
	for i := range run.Members {
		m := &run.Members[i]
		k, ok := index[m.SlotRef]
		if !ok || slots[k].Origin != "" {
			continue
		}
		slots[k].Origin, slots[k].Member, slots[k].At = m.Origin, m, AttemptRef{m.Run, m.Attempt}
		refs = append(refs, slots[k].At)
		at = append(at, k)
	}
	n := 0
	for a, err := range r.Attempts(ctx, refs) {
		problem := (*Problem)(nil)
		if err != nil && !errors.As(err, &problem) {
			return err
		}
		slots[at[n]].Attempt, slots[at[n]].Problem = a, problem
		n++
	}
	return nil
}

func cmpAttempts(a, b *Attempt) int {
	if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

// Pair is an eval under an experiment.
type Pair struct {
	Experiment ref.ExperimentID
	Eval       ref.EvalID
}

// Sources maps each pair to the one run whose results may be carried: the
// newest that declares it, by start and id, finished or not. Older runs are
// never consulted, so that no result comes back from before a change.
func Sources(runs []*StoredRun) map[Pair]*StoredRun {
	sources := map[Pair]*StoredRun{}
	for _, run := range runs {
		for _, s := range run.Slots {
			pair := Pair{run.Experiment, s.Eval}
			if old := sources[pair]; old == nil || cmpRuns(&old.Run, &run.Run) < 0 {
				sources[pair] = run
			}
		}
	}
	return sources
}

// Current picks, among the slots of all runs, the state of each (experiment,
// eval, ordinal): the newest run that has a result for it, else the newest that
// declares it. Running one eval again therefore hides no other result. The
// order is by experiment, then as first declared in the newest runs.
func Current(all []*RunSlots) []SlotResult {
	type key struct {
		Pair
		ordinal int
	}
	newest := slices.Clone(all)
	slices.SortStableFunc(newest, func(a, b *RunSlots) int { return cmpRuns(&b.Run.Run, &a.Run.Run) })
	chosen := map[key]int{}
	var out []SlotResult
	for _, rs := range newest {
		for _, s := range rs.Slots {
			k := key{Pair{rs.Run.Experiment, s.Eval}, s.Ordinal}
			i, ok := chosen[k]
			if !ok {
				chosen[k] = len(out)
				out = append(out, s)
			} else if out[i].Origin == "" && s.Origin != "" {
				out[i] = s
			}
		}
	}
	slices.SortStableFunc(out, func(a, b SlotResult) int {
		return cmp.Compare(a.Run.Experiment, b.Run.Experiment)
	})
	return out
}
