package cli

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/projectfile"
	"assay/internal/scaffold"
	"assay/internal/schema"
	"assay/sandbox"
)

func (a *app) initCommand() *cobra.Command {
	var o scaffold.Options
	c := &cobra.Command{
		Use: "init [folder]", Short: "Make a small project that works",
		Long:    "Make a small project that works: a configuration, one experiment and one eval. Nothing that exists is changed.",
		Example: "  " + a.w.Name + " init\n  " + a.w.Name + " init my-evals --sandbox docker",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir := a.dir
			if len(args) > 0 {
				dir = args[0]
			}
			if o.Sandbox == "" {
				o.Sandbox = a.firstThatWorks(c.Context(), "native", "docker")
			}
			res, err := scaffold.Init(dir, o)
			if err != nil {
				return err
			}
			var b strings.Builder
			for _, part := range []struct {
				verb  string
				paths []string
			}{{"created", res.Created}, {"changed", res.Changed}, {"kept", res.Kept}} {
				for _, p := range part.paths {
					fmt.Fprintf(&b, "%s %s\n", part.verb, p)
				}
			}
			at := ""
			if len(args) > 0 {
				at = " -C " + dir
			}
			fmt.Fprintf(&b, "next: %s%s exp\n", a.w.Name, at)
			_, err = fmt.Fprint(a.p.Stdout, b.String())
			return a.wrote(err)
		},
	}
	c.Flags().StringVar(&o.Sandbox, "sandbox", "", "the first experiment's sandbox: "+strings.Join(scaffold.Sandboxes(), ", ")+" (default: the first of native and docker that works here, else fake)")
	c.Flags().StringVar(&o.Name, "name", "", "the project's name (default: the folder's)")
	return c
}

// firstThatWorks returns the first of the named providers that this machine can
// run, or "".
func (a *app) firstThatWorks(ctx context.Context, kinds ...string) string {
	for _, kind := range kinds {
		def, ok := a.w.Sandboxes.Lookup(kind)
		if !ok || def.Provider == nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		err := def.Provider().Check(limited)
		cancel()
		if err == nil {
			return kind
		}
	}
	return ""
}

func (a *app) schemaCommand() *cobra.Command {
	opts := schema.Options{Kinds: projectfile.Kinds{Sandboxes: a.w.Sandboxes, Agents: a.w.Agents}, Shapes: a.w.Shapes}
	return &cobra.Command{
		Use:   "schema " + strings.Join(schema.Names(opts), "|"),
		Short: "Print the JSON Schema of a file, for editors",
		Example: "  " + a.w.Name + " schema eval > eval.schema.json\n" +
			"  then put `# yaml-language-server: $schema=eval.schema.json` at the top of a file",
		Args: cobra.ExactArgs(1), ValidArgs: schema.Names(opts),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := schema.For(args[0], opts)
			if err != nil {
				return err
			}
			_, err = a.p.Stdout.Write(b)
			return a.wrote(err)
		},
	}
}

// checkLimit bounds the check of one provider by doctor.
const checkLimit = 10 * time.Second

// described is what a provider found, such as an engine's version.
type described interface{ Describe(context.Context) string }

func (a *app) doctor() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "doctor", Short: "Tell which sandboxes and agents work here, and what to do about the others",
		Example: "  " + a.w.Name + " doctor",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			type row struct {
				Name   string `json:"name"`
				Kind   string `json:"kind"`
				OK     bool   `json:"ok"`
				Detail string `json:"detail,omitempty"`
				Fix    string `json:"fix,omitempty"`
			}
			rows := []row{}
			for _, kind := range a.w.Sandboxes.Kinds() {
				def, _ := a.w.Sandboxes.Lookup(kind)
				if def.Provider == nil {
					continue
				}
				r := row{Name: kind, Kind: "sandbox", OK: true}
				p := def.Provider()
				ctx, cancel := context.WithTimeout(c.Context(), checkLimit)
				if err := p.Check(ctx); err != nil {
					r.OK, r.Detail, r.Fix = false, sandbox.Clean(err.Error()), fault.FixOf(err)
					if r.Fix == "" {
						r.Fix = def.Remedy
					}
				} else if d, ok := p.(described); ok {
					r.Detail = d.Describe(ctx)
				}
				cancel()
				rows = append(rows, r)
			}
			for _, name := range a.w.Agents.Names() {
				def, _ := a.w.Agents.Lookup(name)
				rows = append(rows, row{Name: name, Kind: "agent", OK: true, Detail: def.Summary})
			}
			if asJSON {
				return a.printJSON(rows)
			}
			w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintf(w, "%s %s on %s/%s\n", a.w.Name, a.w.Version, runtime.GOOS, runtime.GOARCH)
			for _, r := range rows {
				state := "works"
				if !r.OK {
					state = "does not work"
				} else if r.Kind == "agent" {
					state = "ships"
				}
				fmt.Fprintf(w, "%s %s\t%s\t%s\n", r.Kind, r.Name, state, r.Detail)
				if r.Fix != "" {
					fmt.Fprintf(w, "\tfix:\t%s\n", r.Fix)
				}
			}
			return a.wrote(w.Flush())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}
