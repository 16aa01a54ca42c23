package run

import (
	"assay/internal/event"
	"assay/internal/plan"
	"assay/record"
)

// members are the slots of an experiment that earlier results fill.
func members(x *plan.Experiment) []record.Member {
	var out []record.Member
	for _, s := range x.Carried() {
		out = append(out, plan.Member(s))
	}
	return out
}

// adopt counts the results that earlier runs give, and ends the slots that need
// none because of them. What carried attempts cost was paid before.
func (x *experiment) adopt() {
	for _, s := range x.x.Slots {
		switch s.Action {
		case plan.Carry:
			x.mu.Lock()
			e := x.eval(s.Ref.Eval)
			if s.PriorVerdict == record.Passed {
				e.passed++
			} else {
				e.failed++
			}
			x.mu.Unlock()
			m := plan.Member(s)
			x.c.o.Sink(event.Carried{Slot: s.Ref, Verdict: s.PriorVerdict, Locator: s.Prior, Origin: m.Origin, Run: m.Run, Attempt: m.Attempt})
		case plan.Skip:
			x.mu.Lock()
			x.skipped = append(x.skipped, record.NotRunSlot{SlotRef: record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal}, Reason: s.Reason})
			x.mu.Unlock()
			x.c.o.Sink(event.NotRun{Slot: s.Ref, Reason: s.Reason})
		}
	}
}
