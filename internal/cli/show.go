package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/dash"
	"assay/internal/discover"
	"assay/record"
	"assay/ref"
	"assay/report"
	"assay/report/atif"
	"assay/report/showjson"
	"assay/report/terminal"
)

type showOptions struct {
	target      report.Target
	runs        []string
	experiments []string
	record      string
	latest      bool
	json, all   bool
	format      string
}

func (a *app) showCommand() *cobra.Command {
	var o showOptions
	c := &cobra.Command{
		Use:   "show [@locator]",
		Short: "Show results, or everything about one attempt",
		Long: "Show results. Without arguments: the newest result of every eval of every experiment, also while a run\n" +
			"goes on. With a locator, or --run and --page: everything that is recorded of one attempt.\n\n" +
			"It reads the record only; it needs no sandbox and waits for nobody.",
		Example: "  " + a.w.Name + " show\n" +
			"  " + a.w.Name + " show @1h2k9d0q3v5zx\n" +
			"  " + a.w.Name + " show --run 06h2vfdxjar0fvbezs9vftrnxr --page attempt-06h2vfdxjvt7b4hct6qvjxgxg8\n" +
			"  " + a.w.Name + " show --json --latest\n" +
			"  " + a.w.Name + " show @1h2k9d0q3v5zx --format atif > trajectory.json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.target.Locator = first(args)
			if err := o.formatted(); err != nil {
				return err
			}
			return a.show(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.runs, "run", nil, "exactly this run (repeatable)")
	f.StringVar(&o.target.Page, "page", "", "a page of a run: attempt-<attemptId>")
	f.StringArrayVar(&o.experiments, "experiment", nil, "only this experiment (repeatable)")
	f.BoolVar(&o.latest, "latest", false, "the newest completed run of each experiment")
	f.BoolVar(&o.json, "json", false, "one JSON document, like --format json")
	f.StringVar(&o.format, "format", "", "text, json, or atif (one attempt's trajectory, ATIF v1.7)")
	f.BoolVar(&o.all, "all", false, "list every one of equal failures")
	f.StringVar(&o.record, "record", "", "folder of the record")
	return c
}

// formatted settles --format and --json.
func (o *showOptions) formatted() error {
	switch o.format {
	case "", "text", "json", "atif":
	default:
		return fault.Configf("usage", "use text, json or atif", "no format %q", o.format)
	}
	if o.json && o.format != "" && o.format != "json" {
		return fault.Configf("usage", "give one of them", "--json and --format %s contradict each other", o.format)
	}
	o.json = o.json || o.format == "json"
	return nil
}

// results is the record root of the project, for those who only read it. A
// project whose definitions do not load still has its results.
func (a *app) results(ctx context.Context) (string, error) {
	if len(a.w.Suite.Evals)+len(a.w.Suite.Experiments) == 0 && a.w.Suite.Record == "" {
		return discover.Record(a.dir, discover.Options{Sandboxes: a.w.Sandboxes, Agents: a.w.Agents})
	}
	suite, err := a.suite(ctx)
	if err != nil {
		suite = nil
	}
	return a.recordRoot(suite, "")
}

func (a *app) show(ctx context.Context, o showOptions) error {
	root := o.record
	if root == "" {
		var err error
		if root, err = a.results(ctx); err != nil {
			return err
		}
	}
	r, err := record.OpenReader(root)
	if err != nil {
		return err
	}
	defer r.Close()
	sel := report.Selection{Latest: o.latest}
	for _, id := range o.runs {
		o.target.Runs = append(o.target.Runs, ref.RunID(id))
		sel.Runs = append(sel.Runs, ref.RunID(id))
	}
	for _, id := range o.experiments {
		sel.Experiments = append(sel.Experiments, ref.ExperimentID(id))
	}
	at, single, err := report.Resolve(ctx, r, o.target)
	if err != nil {
		return err
	}
	if o.format == "atif" {
		if !single {
			return fault.Configf("usage", "name an attempt: `"+a.w.Name+" show @locator --format atif`", "--format atif writes the trajectory of one attempt")
		}
		one, err := r.Attempt(at)
		if err != nil {
			return err
		}
		return a.wrote(atif.Write(a.p.Stdout, one, r.Events(at)))
	}
	stdout := fileOf(a.p.Stdout)
	_, noColor := a.p.Env("NO_COLOR")
	opts := terminal.Options{All: o.all, Color: !noColor && dash.Usable(stdout, a.p.env)}
	if single && !o.json {
		page, err := report.ReadPage(r, at)
		if err != nil {
			return err
		}
		return a.wrote(terminal.Page(a.p.Stdout, page, opts))
	}
	if single {
		sel = report.Selection{Runs: []ref.RunID{at.Run}}
	}
	m, err := report.Build(ctx, r, sel)
	if err != nil {
		return err
	}
	if single {
		m.Only(at.Attempt)
	}
	for _, id := range sel.Experiments {
		if !slices.ContainsFunc(m.Runs, func(r *report.Run) bool { return r.Experiment == id }) {
			return fault.Configf("experiment-unknown", "`"+a.w.Name+" show` lists what there is.", "the record has no results of an experiment %q", id)
		}
	}
	if o.json {
		return a.wrote(showjson.Write(a.p.Stdout, m))
	}
	return a.wrote(terminal.Summary(a.p.Stdout, m, opts))
}
