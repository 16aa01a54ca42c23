package cli

import (
	"context"

	"assay/fault"
	"assay/record"
	"assay/ref"
)

// prior is what the record knows of slots, for the plan.
type prior map[ref.Slot]*record.Attempt

// Latest returns the newest recorded result of a slot, or nil.
func (p prior) Latest(s ref.Slot) *record.Attempt { return p[s] }

// newPrior reads the record. It takes no lock; a root that is missing knows
// nothing.
func newPrior(ctx context.Context, root string) (prior, error) {
	r, err := record.OpenReader(root)
	if fault.CodeOf(err) == "record-root-missing" {
		return prior{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	runs, _, err := r.Runs(ctx)
	if err != nil {
		return nil, err
	}
	var all []*record.RunSlots
	for rs, err := range r.Slots(ctx, runs) {
		if err != nil {
			return nil, err
		}
		for i := range rs.Slots {
			if a := rs.Slots[i].Attempt; a != nil {
				// A record may hold very many attempts; a plan needs little of each.
				rs.Slots[i].Attempt = &record.Attempt{
					ID: a.ID, Locator: a.Locator, Run: a.Run, Verdict: a.Verdict, StartedAt: a.StartedAt,
					DurationMS: a.DurationMS, CensoredMS: a.CensoredMS, Identity: a.Identity,
				}
			}
		}
		all = append(all, rs)
	}
	p := prior{}
	for _, s := range record.Current(all) {
		if s.Attempt != nil {
			p[ref.Slot{Experiment: s.Run.Experiment, Eval: s.Eval, Ordinal: s.Ordinal}] = s.Attempt
		}
	}
	return p, nil
}
