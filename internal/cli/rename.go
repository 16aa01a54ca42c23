package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"assay"
	"assay/fault"
	"assay/internal/carry"
	"assay/internal/plan"
	"assay/record"
	"assay/ref"
)

type renameOptions struct {
	record    string
	dry, json bool
}

func (a *app) expRename() *cobra.Command {
	var o renameOptions
	c := &cobra.Command{
		Use:   "rename <old> <new>",
		Short: "Let the results of a renamed experiment count under its new id",
		Long: "Let the results of a renamed experiment count under its new id, shown as accepted. Rename the file first:\n" +
			"the old id is no more, the new one is defined. Results that depend on anything else that changed are left.",
		Example: "  mv experiments/codex.yaml experiments/codex-small.yaml\n" +
			"  " + a.w.Name + " exp rename codex codex-small --dry\n" +
			"  " + a.w.Name + " exp rename codex codex-small",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return a.rename(c.Context(), ref.ExperimentID(args[0]), ref.ExperimentID(args[1]), o)
		},
	}
	c.Flags().BoolVar(&o.dry, "dry", false, "print what would count; write nothing")
	c.Flags().BoolVar(&o.json, "json", false, "one JSON document")
	c.Flags().StringVar(&o.record, "record", "", "folder of the record")
	return c
}

func (a *app) rename(ctx context.Context, from, to ref.ExperimentID, o renameOptions) error {
	suite, err := a.suite(ctx)
	if err != nil {
		return err
	}
	defined := func(id ref.ExperimentID) bool {
		return slices.ContainsFunc(suite.Experiments, func(x assay.Experiment) bool { return x.ID == id })
	}
	switch {
	case !defined(to):
		return fault.Configf("experiment-unknown", "Rename the experiment's file first; `"+a.w.Name+" exp list` names what is defined.", "no experiment has the id %s", to)
	case defined(from):
		return fault.Configf("rename-source-defined", "Remove its file if it was renamed. A copy has no results of its own until it runs.", "experiment %s is still defined", from)
	}
	root, err := a.recordRoot(suite, o.record)
	if err != nil {
		return err
	}
	p, err := plan.Link(ctx, suite, plan.Selection{Experiment: string(to)}, nil)
	if err != nil {
		return err
	}
	r, err := record.OpenReader(root)
	if err != nil {
		return err
	}
	defer r.Close()
	var w *record.Writer
	if !o.dry {
		if w, err = record.Open(root, "exp rename"); err != nil {
			return err
		}
		defer w.Close()
	}
	pairs := pairsOf(p)
	for pair := range pairsOf(p) {
		pairs[record.Pair{Experiment: from, Eval: pair.Eval}] = true
	}
	known, err := newPrior(ctx, root, pairs)
	if err != nil {
		return err
	}
	p.Adopt(known)
	all, rest := renamed(p, known, from)
	if len(all)+len(rest) == 0 {
		return fault.Configf("rename-nothing", "`"+a.w.Name+" show` lists the experiments that have results.", "experiment %s has no result that could count for %s", from, to)
	}
	verb := "would adopt"
	if !o.dry {
		verb = "adopted"
		if err := a.adopt(w, p, all); err != nil {
			return err
		}
	}
	return a.showAdopted(verb, all, rest, o.json)
}

// renamed sorts the results of the old id into those that count under the new one
// and those that do not, and why.
func renamed(p *plan.Plan, known prior, from ref.ExperimentID) (all []adoption, rest []left) {
	for _, s := range p.Slots() {
		past := known.Past(ref.Slot{Experiment: from, Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal})
		if past == nil || past.Attempt == nil {
			continue
		}
		a := past.Attempt
		skip := func(reason string, changed ...string) { rest = append(rest, left{s, past, reason, changed}) }
		changed := carry.Changes(past.Identity, s.Identity)
		other := slices.DeleteFunc(slices.Clone(changed), func(c carry.Change) bool { return c.Input == "experiment" })
		switch {
		case s.Action == plan.Carry:
			skip("the new id has a result of its own")
		case a.Verdict != record.Passed && a.Verdict != record.Failed:
			skip("it is " + string(a.Verdict))
		case len(other) > 0:
			texts := make([]string, len(other))
			for i, c := range other {
				texts[i] = c.String()
			}
			skip("more than the name changed", texts...)
		case !plan.Within(a, s.Timeout):
			skip(fmt.Sprintf("it took longer than the limit of %s", s.Timeout))
		default:
			all = append(all, adoption{slot: s, at: record.AttemptRef{Run: a.Run, Attempt: a.ID}, loc: a.Locator, verdict: a.Verdict, reason: "renamed from " + string(from)})
		}
	}
	return all, rest
}
