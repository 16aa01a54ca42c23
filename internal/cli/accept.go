package cli

import (
	"context"
	"errors"
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

func (a *app) accept() *cobra.Command {
	var root string
	var asJSON bool
	c := &cobra.Command{
		Use:   "accept @locator…",
		Short: "Let recorded results count although something they depend on changed",
		Long: "Let recorded results count although something they depend on changed, such as a comment in an uploaded\n" +
			"file. Each fills its own slot from now on, shown as accepted, until the definitions change again.\n\n" +
			"All locators are checked first; when one cannot be accepted nothing is written.",
		Example: "  " + a.w.Name + " exp codex --dry             what would run again, and because of what\n" +
			"  " + a.w.Name + " accept @1h2k9d0q3v5zx        keep this result\n" +
			"  " + a.w.Name + " accept @1h2k9d0q3v5zx @1mzz40c7q2w8d",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.runAccept(c.Context(), args, root, asJSON) },
	}
	c.Flags().StringVar(&root, "record", "", "folder of the record")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

func (a *app) runAccept(ctx context.Context, args []string, flag string, asJSON bool) error {
	locs, err := locators(args)
	if err != nil {
		return err
	}
	suite, err := a.suite(ctx)
	if err != nil {
		return err
	}
	root, err := a.recordRoot(suite, flag)
	if err != nil {
		return err
	}
	r, err := record.OpenReader(root) // before the writer, which would make one
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := record.Open(root, "accept")
	if err != nil {
		return err
	}
	defer w.Close()
	found, err := lookUp(ctx, r, locs)
	if err != nil {
		return err
	}
	plans, all, err := a.admit(ctx, suite, found)
	if err != nil {
		return err
	}
	for _, p := range plans {
		known, err := newPrior(ctx, root, pairsOf(p))
		if err != nil {
			return err
		}
		p.Adopt(known)
		if err := a.adopt(w, p, all); err != nil {
			return err
		}
	}
	return a.showAdopted("accepted", all, nil, asJSON)
}

// locators reads all of them, and names all that are none.
func locators(args []string) ([]ref.Locator, error) {
	var locs []ref.Locator
	var problems []error
	for _, s := range args {
		loc, err := ref.ParseLocator(s)
		if err != nil {
			problems = append(problems, fault.Configf("malformed-locator", "`assay show` lists the locators.", "%q is no locator: %v", s, err))
			continue
		}
		if !slices.Contains(locs, loc) {
			locs = append(locs, loc)
		}
	}
	return locs, errors.Join(problems...)
}

func lookUp(ctx context.Context, r *record.Reader, locs []ref.Locator) ([]*record.Attempt, error) {
	var out []*record.Attempt
	var problems []error
	for _, loc := range locs {
		at, err := r.Find(ctx, loc)
		if err == nil {
			var found *record.Attempt
			if found, err = r.Sketch().Attempt(at); err == nil {
				out = append(out, found)
				continue
			}
		}
		problems = append(problems, err)
	}
	return out, errors.Join(problems...)
}

// admit links the experiments of the results, and finds the slot that each can
// fill.
func (a *app) admit(ctx context.Context, suite *assay.Suite, found []*record.Attempt) ([]*plan.Plan, []adoption, error) {
	plans := map[ref.ExperimentID]*plan.Plan{}
	var order []*plan.Plan
	var all []adoption
	var problems []error
	refuse := func(code, fix, format string, args ...any) {
		problems = append(problems, fault.Configf(code, fix, format, args...))
	}
	for _, at := range found {
		if at.Verdict != record.Passed && at.Verdict != record.Failed {
			refuse("accept-ineligible", "Run it again: only passed and failed results count.", "%s is %s", at.Locator, at.Verdict)
			continue
		}
		p := plans[at.Experiment]
		if p == nil {
			if !slices.ContainsFunc(suite.Experiments, func(x assay.Experiment) bool { return x.ID == at.Experiment }) {
				refuse("accept-ineligible", fmt.Sprintf("After a renamed file: `%s exp rename %s <new>`.", a.w.Name, at.Experiment), "%s is a result of experiment %s, which is not defined any more", at.Locator, at.Experiment)
				continue
			}
			var err error
			if p, err = plan.Link(ctx, suite, plan.Selection{Experiment: string(at.Experiment)}, nil); err != nil {
				return nil, nil, err
			}
			plans[at.Experiment] = p
			order = append(order, p)
		}
		s := slotOf(p, ref.Slot{Experiment: at.Experiment, Eval: at.Eval, Ordinal: at.Ordinal})
		switch {
		case s == nil:
			refuse("accept-ineligible", "Correct `evals:` or `attempts:` of the experiment, or run what it selects.", "%s is the result of %s#%d, which experiment %s does not plan", at.Locator, at.Eval, at.Ordinal, at.Experiment)
		case !plan.Within(at, s.Timeout):
			refuse("accept-ineligible", "Raise the timeout, or run it again.", "%s took longer than the limit of %s", at.Locator, s.Timeout)
		case slices.ContainsFunc(all, func(o adoption) bool { return o.slot.Ref == s.Ref }):
			refuse("duplicate-accept-member", "Give one of them.", "%s is a second result of %s", at.Locator, s.Ref)
		default:
			reason := "accepted"
			if changed := carry.Changes(at.Identity, s.Identity); len(changed) > 0 {
				reason = "accepted although changed: " + changed[0].Input
				if n := len(changed) - 1; n > 0 {
					reason += fmt.Sprintf(" and %d more", n)
				}
			}
			all = append(all, adoption{slot: s, at: record.AttemptRef{Run: at.Run, Attempt: at.ID}, loc: at.Locator, verdict: at.Verdict, reason: reason})
		}
	}
	return order, all, errors.Join(problems...)
}

func slotOf(p *plan.Plan, r ref.Slot) *plan.Slot {
	for _, s := range p.Slots() {
		if s.Ref == r {
			return s
		}
	}
	return nil
}

// adopted is one slot in the document of accept and rename.
type adopted struct {
	Experiment string   `json:"experiment"`
	Eval       string   `json:"eval"`
	Ordinal    int      `json:"ordinal"`
	Locator    string   `json:"locator"`
	Verdict    string   `json:"verdict"`
	Reason     string   `json:"reason"`
	Changed    []string `json:"changed,omitempty"`
}

// left is a result that was not adopted, and why.
type left struct {
	slot    *plan.Slot
	past    *plan.Past
	reason  string
	changed []string
}

func (a *app) showAdopted(verb string, all []adoption, rest []left, asJSON bool) error {
	doc := struct {
		Adopted []adopted `json:"adopted"`
		Left    []adopted `json:"left"`
	}{[]adopted{}, []adopted{}}
	text := ""
	for _, t := range all {
		r := t.slot.Ref
		doc.Adopted = append(doc.Adopted, adopted{string(r.Experiment), string(r.Eval), r.Ordinal, string(t.loc), string(t.verdict), t.reason, nil})
		text += fmt.Sprintf("%s %s %s  %s\n", verb, t.loc, t.verdict, r)
	}
	for _, t := range rest {
		r, at := t.slot.Ref, t.past.Attempt
		doc.Left = append(doc.Left, adopted{string(r.Experiment), string(r.Eval), r.Ordinal, string(at.Locator), string(at.Verdict), t.reason, t.changed})
		text += fmt.Sprintf("left %s %s  %s: %s\n", at.Locator, at.Verdict, r, t.reason)
		for _, c := range t.changed {
			text += "    " + c + "\n"
		}
	}
	if asJSON {
		return a.printJSON(doc)
	}
	_, err := fmt.Fprint(a.p.Stdout, text)
	return a.wrote(err)
}
