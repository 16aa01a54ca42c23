package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/plan"
)

func (a *app) expList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list [prefix]", Short: "List experiments and how many evals they select",
		Example: "  " + a.w.Name + " exp list\n  " + a.w.Name + " exp list codex/ --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			suite, err := a.suite(c.Context())
			if err != nil {
				return err
			}
			type row struct {
				ID          string `json:"id"`
				Description string `json:"description,omitempty"`
				Agent       string `json:"agent"`
				Model       string `json:"model,omitempty"`
				Evals       int    `json:"evals"`
				Attempts    int    `json:"attempts"`
			}
			rows := []row{}
			for i := range suite.Experiments {
				x := &suite.Experiments[i]
				if !strings.HasPrefix(string(x.ID), first(args)) || x.Agent == nil {
					continue
				}
				rows = append(rows, row{string(x.ID), x.Description, x.Agent.Info().Name, x.Model, plan.Count(suite, x), max(x.Attempts, 1)})
			}
			if len(rows) == 0 && len(args) > 0 {
				return fault.Configf("experiment-unknown", "Run `"+a.w.Name+" exp list` for all.", "no experiment starts with %q", args[0])
			}
			if asJSON {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d evals × %d\t%s\n", r.ID, r.Agent, r.Model, r.Evals, r.Attempts, r.Description)
			}
			return a.wrote(w.Flush())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

func (a *app) list() *cobra.Command {
	var asJSON bool
	var tags []string
	c := &cobra.Command{
		Use: "list [prefix]", Short: "List evals",
		Example: "  " + a.w.Name + " list\n  " + a.w.Name + " list memory/ --tag smoke --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			suite, err := a.suite(c.Context())
			if err != nil {
				return err
			}
			type row struct {
				ID          string   `json:"id"`
				Description string   `json:"description,omitempty"`
				Tags        []string `json:"tags,omitempty"`
				Source      string   `json:"source,omitempty"`
			}
			rows := []row{}
			for _, e := range suite.Evals {
				if strings.HasPrefix(string(e.ID), first(args)) && tagged(e.Tags, tags) {
					rows = append(rows, row{string(e.ID), e.Description, e.Tags, e.Source})
				}
			}
			if len(rows) == 0 && (len(args) > 0 || len(tags) > 0) {
				return fault.Configf("nothing-selected", "Run `"+a.w.Name+" list` for all.", "no eval matches")
			}
			if asJSON {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\t%s\n", r.ID, strings.Join(r.Tags, ","), r.Description)
			}
			return a.wrote(w.Flush())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.Flags().StringSliceVar(&tags, "tag", nil, "only evals with this tag (repeatable)")
	return c
}

func tagged(have, want []string) bool {
	if len(want) == 0 {
		return true
	}
	for _, w := range want {
		for _, h := range have {
			if h == w {
				return true
			}
		}
	}
	return false
}

func (a *app) check() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "check [experiment] [eval-prefix…]", Short: "Find every problem of the definitions; touch no provider",
		Example: "  " + a.w.Name + " check\n  " + a.w.Name + " check codex/small",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			suite, err := a.suite(c.Context())
			if err != nil {
				return err
			}
			sel := plan.Selection{Experiment: first(args)}
			if len(args) > 1 {
				sel.Evals = args[1:]
			}
			p, err := plan.Link(c.Context(), suite, sel, nil)
			if err != nil {
				return err
			}
			slots := 0
			for _, x := range p.Experiments {
				slots += len(x.Slots)
			}
			if asJSON {
				return a.printJSON(map[string]int{"experiments": len(p.Experiments), "evals": len(suite.Evals), "slots": slots, "sandboxes": len(p.Environments)})
			}
			for _, n := range p.Notices {
				fmt.Fprintf(a.p.Stdout, "notice: %s\n", n.Message)
			}
			_, err = fmt.Fprintf(a.p.Stdout, "ok: %d experiments and %d evals give %d slots in %d distinct sandboxes\n", len(p.Experiments), len(suite.Evals), slots, len(p.Environments))
			return a.wrote(err)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}
