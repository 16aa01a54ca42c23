package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"assay"
	"assay/fault"
	"assay/internal/plan"
)

// dry prints the plan and creates nothing.
func (a *app) dry(ctx context.Context, suite *assay.Suite, root string, o expOptions) error {
	p, linkErr := plan.Link(ctx, suite, o.sel, nil)
	if linkErr == nil {
		known, err := newPrior(ctx, root, pairsOf(p))
		if err != nil {
			return err
		}
		p.Adopt(known)
	}
	if o.json {
		return a.dryJSON(p, linkErr)
	}
	if linkErr != nil {
		return linkErr
	}
	w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
	slots := p.Slots()
	fmt.Fprintf(w, "plan: %d slots in %d experiments%s, %d distinct sandboxes; nothing was created\n", len(slots), len(p.Experiments), tally(slots), len(p.Environments))
	for _, n := range p.Notices {
		fmt.Fprintf(w, "notice: %s\n", n.Message)
	}
	for _, x := range p.Experiments {
		shared := sharingOf(x)
		fmt.Fprintf(w, "\n%s\n", describeExperiment(x))
		for _, text := range shared.texts {
			fmt.Fprintf(w, "  %s\n", text)
		}
		for _, s := range x.Slots {
			fmt.Fprintf(w, "  %s#%d\t%s%s\n", s.Ref.Eval, s.Ref.Ordinal, action(s), shared.of(s))
			for _, c := range s.Changed {
				fmt.Fprintf(w, "  \t  %s\n", c)
			}
		}
	}
	return a.wrote(w.Flush())
}

func describeExperiment(x *plan.Experiment) string {
	parts := []string{string(x.ID), "agent " + x.Agent.Name}
	if x.Def.Model != "" {
		parts = append(parts, "model "+x.Def.Model)
	}
	if len(x.Slots) > 0 && x.Slots[0].Environment != nil {
		parts = append(parts, x.Slots[0].Environment.Label())
	}
	if x.Slots[0].Timeout > 0 {
		parts = append(parts, fmt.Sprintf("timeout %s (%s)", x.Slots[0].Timeout, x.Slots[0].TimeoutLayer))
	}
	if x.Def.Profile != "" {
		parts = append(parts, "profile "+x.Def.Profile)
	}
	if x.Def.MaxConcurrency > 0 {
		parts = append(parts, fmt.Sprintf("width %d", x.Def.MaxConcurrency))
	}
	if x.Def.SharedState != "" {
		parts = append(parts, "shared state "+x.Def.SharedState)
	}
	return strings.Join(parts, " · ")
}

// sharing is how the slots of an experiment share sandboxes.
type sharing struct {
	numbers map[string]int // of the lanes, from 1
	texts   []string       // one for each
}

// sharingOf numbers the lanes of what is executed: a carried result needs none.
func sharingOf(x *plan.Experiment) sharing {
	s := sharing{numbers: map[string]int{}}
	count := map[string]int{}
	for _, slot := range x.Executing() {
		count[slot.Lane]++
	}
	for _, slot := range x.Executing() {
		if slot.Lane == "" || s.numbers[slot.Lane] > 0 {
			continue
		}
		n := len(s.numbers) + 1
		s.numbers[slot.Lane] = n
		text := fmt.Sprintf("lane %d: %d attempts share %s sandboxes", n, count[slot.Lane], slot.Environment.Label())
		if g := slot.Group; g != nil {
			text = fmt.Sprintf("lane %d: group %s, %d attempts in one %s sandbox, in order; when it is lost: %s", n, g.ID, count[slot.Lane], slot.Environment.Label(), lostText(g.OnUnavailable))
		} else {
			if x.Def.MaxConcurrency > 0 {
				text += fmt.Sprintf(", at most %d at once over all lanes", x.Def.MaxConcurrency)
			}
			if x.Def.MaxUses > 0 {
				text += fmt.Sprintf(", each for %d attempts", x.Def.MaxUses)
			}
			if d := slot.Settings.Lifetime; d > 0 {
				text += fmt.Sprintf(", lifetime %s", d)
			}
		}
		s.texts = append(s.texts, text)
	}
	return s
}

func lostText(policy string) string {
	if policy == "" {
		return "stop-group"
	}
	return policy
}

// number is the lane of a slot that is executed, 0 for a sandbox of its own.
func (s sharing) number(slot *plan.Slot) int {
	if slot.Action != plan.Execute {
		return 0
	}
	return s.numbers[slot.Lane]
}

func (s sharing) of(slot *plan.Slot) string {
	if n := s.number(slot); n > 0 {
		return fmt.Sprintf(", lane %d", n)
	}
	return ""
}

// tally counts what happens to slots, where more than one thing does.
func tally(slots []*plan.Slot) string {
	n := map[plan.Action]int{}
	for _, s := range slots {
		n[s.Action]++
	}
	if n[plan.Execute] == len(slots) {
		return ""
	}
	parts := []string{fmt.Sprintf("%d carried", n[plan.Carry]), fmt.Sprintf("%d to execute", n[plan.Execute])}
	if n[plan.Skip] > 0 {
		parts = append(parts, fmt.Sprintf("%d not needed", n[plan.Skip]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func action(s *plan.Slot) string {
	switch s.Action {
	case plan.Carry:
		how := "carried"
		if s.Past.Accepted {
			how = "accepted"
		}
		return fmt.Sprintf("%s %s (%s)", how, s.Prior, s.PriorVerdict)
	case plan.Skip:
		return "not needed: an attempt passed (early exit)"
	}
	out := string(s.Action) + ": " + s.Reason
	if s.Prior != "" {
		out += fmt.Sprintf(" (last %s %s)", s.PriorVerdict, s.Prior)
	}
	return out
}

// drySlot is one slot of the plan's document.
type drySlot struct {
	Experiment string   `json:"experiment"`
	Eval       string   `json:"eval"`
	Ordinal    int      `json:"ordinal"`
	Action     string   `json:"action"`
	Reason     string   `json:"reason"`
	Changed    []string `json:"changed,omitempty"`
	Locator    string   `json:"locator,omitempty"`
	Key        string   `json:"key,omitempty"`
	// Lane is equal for slots of an experiment that share sandboxes, Group the
	// group that does.
	Lane  int    `json:"lane,omitempty"`
	Group string `json:"group,omitempty"`
}

type dryError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

func (a *app) dryJSON(p *plan.Plan, linkErr error) error {
	doc := struct {
		Schema string     `json:"schema"`
		Slots  []drySlot  `json:"slots"`
		Errors []dryError `json:"errors"`
	}{Schema: "assay.exp-plan/v1", Slots: []drySlot{}, Errors: []dryError{}}
	if p != nil {
		lanes := map[*plan.Experiment]sharing{}
		for _, x := range p.Experiments {
			lanes[x] = sharingOf(x)
		}
		for _, s := range p.Slots() {
			d := drySlot{Experiment: string(s.Ref.Experiment), Eval: string(s.Ref.Eval), Ordinal: s.Ref.Ordinal, Action: string(s.Action), Reason: s.Reason, Changed: s.Changed, Locator: string(s.Prior)}
			if s.Environment != nil {
				d.Key = string(s.Environment.Key)
			}
			d.Lane = lanes[s.Experiment].number(s)
			if s.Group != nil {
				d.Group = s.Group.ID
			}
			doc.Slots = append(doc.Slots, d)
		}
	}
	if linkErr != nil {
		for _, e := range split(linkErr) {
			doc.Errors = append(doc.Errors, dryError{Code: fault.CodeOf(e), Message: e.Error(), Fix: fault.FixOf(e)})
		}
	}
	if err := a.printJSON(doc); err != nil {
		return err
	}
	if linkErr != nil {
		return exitError(codeOf(linkErr))
	}
	return nil
}
