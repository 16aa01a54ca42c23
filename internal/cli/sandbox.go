package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/discover"
	"assay/internal/keep"
	"assay/internal/orphan"
	"assay/internal/run"
	"assay/record"
	"assay/sandbox"
)

func (a *app) sandboxCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "sandbox", Short: "See, enter and remove sandboxes that were kept or left",
		Long: "See, enter and remove sandboxes that outlived their run: those that --keep-sandbox kept, and those that\n" +
			"runs which died have left. The project's files are not read, so that a broken one is no obstacle.",
		Example: "  " + a.w.Name + " sandbox list\n  " + a.w.Name + " sandbox enter 3fa1\n  " + a.w.Name + " sandbox prune",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.sandboxList(), a.sandboxEnter(), a.sandboxDiff(), a.sandboxHistory(), a.sandboxStop(), a.sandboxPrune())
	return c
}

// state is the project's folder for what is no result. Outside of a project it is
// that of the folder itself.
func (a *app) state() (string, error) {
	root, err := discover.Root(a.dir)
	if fault.CodeOf(err) == "project-missing" {
		root, err = filepath.Abs(a.dir)
	}
	return filepath.Join(root, ".assay"), err
}

func (a *app) registry() (keep.Registry, error) {
	state, err := a.state()
	return run.Registry(state), err
}

// lookLimit bounds what one provider is asked.
const lookLimit = 20 * time.Second

// silent is a provider that did not answer.
type silent struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// look finds what is left at every provider that answers.
func (a *app) look(ctx context.Context, r keep.Registry) (found []orphan.Found, mute []silent) {
	for _, kind := range a.w.Sandboxes.Kinds() {
		def, _ := a.w.Sandboxes.Lookup(kind)
		if def.Provider == nil {
			continue
		}
		v, ok := def.Provider().(sandbox.Inventory)
		if !ok {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, lookLimit)
		some, err := orphan.Find(limited, orphan.Place{Kind: kind, Inventory: v}, r)
		cancel()
		if err != nil {
			mute = append(mute, silent{kind, sandbox.Tail(sandbox.Clean(err.Error()), 200)})
			continue
		}
		found = append(found, some...)
	}
	return found, mute
}

func (a *app) tellSilent(mute []silent) {
	for _, s := range mute {
		fmt.Fprintf(a.p.Stderr, "note: %s was not asked: %s\n", s.Provider, s.Reason)
	}
}

func (a *app) sandboxList() *cobra.Command {
	var orphans, asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List kept sandboxes, or with --orphans what dead runs have left",
		Example: "  " + a.w.Name + " sandbox list\n  " + a.w.Name + " sandbox list --orphans",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.registry()
			if err != nil {
				return err
			}
			if orphans {
				return a.listOrphans(c.Context(), r, asJSON)
			}
			return a.listKept(r, asJSON)
		},
	}
	c.Flags().BoolVar(&orphans, "orphans", false, "what runs that died have left at all providers of this machine")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

func (a *app) listKept(r keep.Registry, asJSON bool) error {
	all, err := r.List()
	if err != nil {
		a.p.show(&fault.Error{Class: fault.Config, Code: "sandbox-registry", What: "read the registry of kept sandboxes", Fix: "Remove the file after `sandbox list --orphans` shows what it was.", Err: err})
	}
	now := time.Now()
	for i := range all {
		all[i].State = all[i].Now(now)
	}
	if asJSON {
		if all == nil {
			all = []keep.Entry{}
		}
		return a.printJSON(struct {
			Schema    string       `json:"schema"`
			Sandboxes []keep.Entry `json:"sandboxes"`
		}{"assay.sandboxes/v1", all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(a.p.Stdout, "no sandboxes are kept")
		return a.wrote(err)
	}
	w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
	for _, e := range all {
		ends := "kept until it is stopped"
		if e.ExpiresAt != nil {
			ends = "until " + e.ExpiresAt.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.Provider, e.State, e.Slot(), e.Verdict, e.Locator, age(now.Sub(e.KeptAt)), ends)
	}
	return a.wrote(w.Flush())
}

// age is a duration for people.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func (a *app) listOrphans(ctx context.Context, r keep.Registry, asJSON bool) error {
	found, mute := a.look(ctx, r)
	if asJSON {
		if found == nil {
			found = []orphan.Found{}
		}
		return a.printJSON(struct {
			Schema  string         `json:"schema"`
			Orphans []orphan.Found `json:"orphans"`
			Silent  []silent       `json:"silent,omitempty"`
		}{"assay.orphans/v1", found, mute})
	}
	a.tellSilent(mute)
	if len(found) == 0 {
		_, err := fmt.Fprintln(a.p.Stdout, "nothing is left of dead runs")
		return a.wrote(err)
	}
	w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
	for _, f := range found {
		fmt.Fprintf(w, "%s\t%s\t%.40s\t%s\t%s\towner %s\n", f.Provider, f.Instance.Kind, f.Instance.ID, f.Instance.State, whose(f.Owner), f.Life)
	}
	return a.wrote(w.Flush())
}

// whose describes the maker of an instance.
func whose(o sandbox.Owner) string {
	if o.PID == 0 {
		return "of nobody known"
	}
	s := fmt.Sprintf("of process %d on %s", o.PID, o.Host)
	if o.Experiment != "" {
		s = fmt.Sprintf("%s %s, %s", o.Experiment, o.Eval, s)
	}
	return s
}

func (a *app) sandboxPrune() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "prune", Short: "Remove what runs that died have left",
		Long: "Remove what runs that died have left at every provider that answers: containers, networks, volumes, native and\n" +
			"cloud sandboxes. What belongs to a live run or is kept stays. What another machine made is only removed\n" +
			"with --force, because nobody here can tell whether its owner lives.",
		Example: "  " + a.w.Name + " sandbox prune\n  " + a.w.Name + " sandbox prune --force",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := a.registry()
			if err != nil {
				return err
			}
			found, mute := a.look(c.Context(), r)
			a.tellSilent(mute)
			var doomed []orphan.Found
			for _, f := range found {
				if force || f.Life == record.Dead {
					doomed = append(doomed, f)
				}
			}
			gone, err := orphan.Remove(c.Context(), doomed)
			what := orphan.Counted(gone)
			if what == "" {
				what = "nothing"
			}
			fmt.Fprintf(a.p.Stdout, "removed %s\n", what)
			if n := len(found) - len(doomed); n > 0 {
				fmt.Fprintf(a.p.Stdout, "left %d whose owner cannot be verified from here: see `%s sandbox list --orphans`, and --force\n", n, a.w.Name)
			}
			if err != nil {
				return &fault.Error{Class: fault.Resource, Code: "prune-incomplete", What: fmt.Sprintf("%d of %d could not be removed", len(doomed)-len(gone), len(doomed)), Fix: "See what still uses them, and run the command again.", Err: err}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also what cannot be verified, such as sandboxes that another machine made")
	return c
}

// providerOf returns the provider of an entry.
func (a *app) providerOf(e keep.Entry) (sandbox.Provider, error) {
	def, ok := a.w.Sandboxes.Lookup(e.Provider)
	if !ok || def.Provider == nil {
		return nil, fault.Configf("sandbox-unknown", "Use the program that kept it.", "the kept sandbox %s is of the provider %s, which this program does not have", e.ID, e.Provider)
	}
	return def.Provider(), nil
}

// find returns the entry that a person means.
func (a *app) find(name string) (keep.Registry, keep.Entry, error) {
	r, err := a.registry()
	if err != nil {
		return r, keep.Entry{}, err
	}
	e, err := r.Find(name)
	if fault.CodeOf(err) == keep.CodeAmbiguous {
		a.p.show(err)
		return r, e, exitError(ExitRed)
	}
	return r, e, err
}

func (a *app) sandboxStop() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "stop [id…]", Short: "Destroy kept sandboxes",
		Example: "  " + a.w.Name + " sandbox stop 3fa1\n  " + a.w.Name + " sandbox stop --all",
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return fault.Configf("usage", "Give ids, or --all.", "sandbox stop needs ids or --all")
			}
			r, err := a.registry()
			if err != nil {
				return err
			}
			var entries []keep.Entry
			if all {
				if entries, err = r.List(); err != nil && len(entries) == 0 {
					return err
				}
			}
			for _, name := range args {
				_, e, err := a.find(name)
				if err != nil {
					return err
				}
				entries = append(entries, e)
			}
			if len(entries) == 0 {
				_, err := fmt.Fprintln(a.p.Stdout, "no sandbox is kept")
				return err
			}
			var errs []error
			for _, e := range entries {
				errs = append(errs, a.stopKept(c.Context(), r, e))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all kept sandboxes of the project")
	return c
}

// stopKept destroys a kept sandbox and then forgets it. While its provider
// refuses, it stays listed.
func (a *app) stopKept(ctx context.Context, r keep.Registry, e keep.Entry) error {
	p, err := a.providerOf(e)
	if err != nil {
		return err
	}
	v, ok := p.(sandbox.Inventory)
	if !ok {
		return fault.Configf("sandbox-unknown", "Remove it with the provider's own tools.", "%s sandboxes cannot be found again", e.Provider)
	}
	release, err := r.Lock(e.ID, "stop")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	there := exists(ctx, v, e.SandboxID)
	if err := v.Destroy(ctx, e.SandboxID); err != nil {
		return &fault.Error{Class: fault.ClassOf(err), Code: "sandbox-stop-failed", What: "destroy the kept sandbox " + e.ID, Fix: cmp.Or(fault.FixOf(err), "Make its provider answer, and run the command again; it stays listed."), Err: err}
	}
	if err := r.Forget(e.ID); err != nil {
		return err
	}
	if there {
		fmt.Fprintf(a.p.Stdout, "stopped %s (%s)\n", e.ID, e.Slot())
	} else {
		fmt.Fprintf(a.p.Stdout, "%s was gone already (%s)\n", e.ID, e.Slot())
	}
	return nil
}

// exists reports whether a sandbox is known to its provider. One that does not
// answer is taken to have it.
func exists(ctx context.Context, v sandbox.Inventory, id string) bool {
	if x, ok := v.(interface {
		Exists(ctx context.Context, id string) (bool, error)
	}); ok {
		there, err := x.Exists(ctx, id)
		return there || err != nil
	}
	all, err := v.Inventory(ctx)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(i sandbox.Instance) bool { return i.ID == id })
}
