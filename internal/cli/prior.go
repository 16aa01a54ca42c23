package cli

import (
	"context"

	"assay/fault"
	"assay/internal/plan"
	"assay/record"
	"assay/ref"
)

// prior is what the record knows of slots, for a plan.
type prior map[ref.Slot]*plan.Past

// Past returns what is known of a slot.
func (p prior) Past(s ref.Slot) *plan.Past { return p[s] }

// pairsOf are the pairs of a plan.
func pairsOf(p *plan.Plan) map[record.Pair]bool {
	out := map[record.Pair]bool{}
	for _, x := range p.Experiments {
		for _, s := range x.Slots {
			out[record.Pair{Experiment: s.Ref.Experiment, Eval: s.Ref.Eval}] = true
		}
	}
	return out
}

// newPrior reads what the record knows of some pairs, each from the one run that
// counts for it. It takes no lock; a root that is missing knows nothing.
func newPrior(ctx context.Context, root string, pairs map[record.Pair]bool) (prior, error) {
	r, err := record.OpenReader(root)
	if fault.CodeOf(err) == record.CodeRootMissing {
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
	sources := record.Sources(runs)
	wanted := map[*record.StoredRun]bool{}
	for pair := range pairs {
		if run := sources[pair]; run != nil {
			wanted[run] = true
		}
	}
	var read []*record.StoredRun
	for _, run := range runs {
		if wanted[run] {
			read = append(read, run)
		}
	}
	p := prior{}
	for rs, err := range r.Sketch().Slots(ctx, read) {
		if err != nil {
			return nil, err
		}
		for i := range rs.Slots {
			s := &rs.Slots[i]
			pair := record.Pair{Experiment: rs.Run.Experiment, Eval: s.Eval}
			if !pairs[pair] || sources[pair] != rs.Run {
				continue
			}
			past := &plan.Past{Attempt: s.Attempt}
			if a := s.Attempt; a != nil {
				past.Identity = a.Identity
				if s.Member != nil && s.Member.Identity != nil {
					past.Identity, past.Accepted = s.Member.Identity, true
				}
			}
			p[ref.Slot{Experiment: pair.Experiment, Eval: s.Eval, Ordinal: s.Ordinal}] = past
		}
	}
	return p, nil
}
