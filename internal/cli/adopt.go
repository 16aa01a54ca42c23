package cli

import (
	"time"

	"assay/internal/plan"
	"assay/record"
	"assay/ref"
)

// adoption is one recorded result that is to fill a slot of a plan by somebody's
// word.
type adoption struct {
	slot *plan.Slot
	at   record.AttemptRef
	loc  ref.Locator
	// verdict is that of the result.
	verdict record.Verdict
	reason  string
}

// adopt records a run that holds the adopted results. What else of their evals
// would be carried goes with them, because it is the newest run of a pair that
// counts. The plan knows the record.
func (a *app) adopt(w *record.Writer, p *plan.Plan, all []adoption) error {
	invocation := ref.NewInvocation()
	for _, x := range p.Experiments {
		taken := map[ref.Slot]*adoption{}
		evals := map[ref.EvalID]bool{}
		for i := range all {
			if s := all[i].slot; s.Experiment == x {
				taken[s.Ref] = &all[i]
				evals[s.Ref.Eval] = true
			}
		}
		if len(taken) == 0 {
			continue
		}
		run := record.Run{
			ID: ref.NewRun(), Experiment: x.ID, Invocation: invocation, StartedAt: time.Now(),
			Labels: x.Def.Labels, Context: map[string]any{"agent": x.Agent.Name, "attempts": x.Attempts}, Tool: a.w.Version, Owner: record.CurrentOwner(),
		}
		var members []record.Member
		for _, s := range x.Slots {
			slot := record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal}
			m := record.Member{SlotRef: slot, Origin: record.Accepted, Identity: s.Identity}
			switch t := taken[s.Ref]; {
			case t != nil:
				m.Run, m.Attempt, m.Reason = t.at.Run, t.at.Attempt, t.reason
			case evals[s.Ref.Eval] && s.Action == plan.Carry:
				m = plan.Member(s)
			default:
				continue
			}
			run.Slots = append(run.Slots, slot)
			members = append(members, m)
		}
		rw, err := w.StartRun(run, members...)
		if err != nil {
			return err
		}
		if err := rw.End(record.End{CompletedAt: time.Now(), Completion: record.Completed}); err != nil {
			return err
		}
	}
	return nil
}
