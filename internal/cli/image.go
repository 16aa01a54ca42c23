package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/images"
	"assay/internal/bake"
	"assay/internal/event"
	"assay/sandbox"
)

// pruneAge is how long an image may lie unused before prune takes it.
const pruneAge = 30 * 24 * time.Hour

func (a *app) image() *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "Show, build and remove the images that sandboxes start from",
		Long: "Images that runs built are named by their content and used again by every later run. They are kept until\n" +
			"they are pruned. Nothing that this program did not make is listed or removed.",
		Example: "  " + a.w.Name + " image list\n  " + a.w.Name + " image build codex\n  " + a.w.Name + " image prune",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.imageList(), a.imageBuild(), a.imagePrune())
	return c
}

// keeper is a kind of sandbox that keeps images.
type keeper struct {
	kind string
	sandbox.ImageKeeper
}

// keepers are the kinds that keep images, or the one that is named, and those of
// them that cannot be asked.
func (a *app) keepers(ctx context.Context, only string) (found []keeper, missing []string, err error) {
	seen := map[sandbox.Provider]bool{}
	for _, kind := range a.w.Sandboxes.Kinds() {
		def, _ := a.w.Sandboxes.Lookup(kind)
		if def.Provider == nil || only != "" && kind != only {
			continue
		}
		p := def.Provider()
		k, ok := p.(sandbox.ImageKeeper)
		if !ok || seen[p] {
			continue
		}
		seen[p] = true
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		err := p.Check(limited)
		cancel()
		switch {
		case err == nil:
			found = append(found, keeper{kind, k})
		case only != "":
			return nil, nil, err
		default:
			missing = append(missing, kind)
		}
	}
	if only != "" && len(found) == 0 {
		return nil, nil, fault.Configf("usage", "Name another, or leave --sandbox out.", "%q is no kind of sandbox that keeps images", only)
	}
	return found, missing, nil
}

// imageRow is one image of a list.
type imageRow struct {
	Sandbox string `json:"sandbox"`
	sandbox.StoredImage
}

func (a *app) imageList() *cobra.Command {
	var asJSON bool
	var only string
	c := &cobra.Command{
		Use: "list", Short: "List the images that this program made or unpacked",
		Example: "  " + a.w.Name + " image list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			found, missing, err := a.keepers(c.Context(), only)
			if err != nil {
				return err
			}
			rows := []imageRow{}
			listed := map[string]bool{} // two kinds may use one engine
			for _, k := range found {
				all, err := k.Images(c.Context())
				if err != nil {
					return err
				}
				for _, i := range all {
					if !listed[i.ID+i.Name] {
						listed[i.ID+i.Name] = true
						rows = append(rows, imageRow{k.kind, i})
					}
				}
			}
			if asJSON {
				return a.printJSON(rows)
			}
			return a.printImages(rows, missing)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.Flags().StringVar(&only, "sandbox", "", "only this kind of sandbox")
	return c
}

func (a *app) printImages(rows []imageRow, missing []string) error {
	w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
	if len(rows) == 0 {
		fmt.Fprintln(w, "no images")
	} else {
		fmt.Fprintln(w, "SANDBOX\tID\tSIZE\tAGE\tLAST USE\tMADE OF")
	}
	now := time.Now()
	var sum int64
	for _, r := range rows {
		use := ago(now, r.Used)
		if r.InUse {
			use = "in use"
		}
		of := r.Of
		if of == "" {
			of = r.Name
		}
		sum += r.Size
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Sandbox, shortID(r.ID), bytesText(r.Size), ago(now, r.Created), use, sandbox.Clean(of))
	}
	if len(rows) > 1 {
		fmt.Fprintf(w, "%d images, %s together; layers that they share count in each\n", len(rows), bytesText(sum))
	}
	if len(missing) > 0 {
		fmt.Fprintf(w, "not asked, because it does not work here: %s\n", strings.Join(missing, ", "))
	}
	return a.wrote(w.Flush())
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

func ago(now, at time.Time) string {
	if at.IsZero() {
		return "unknown"
	}
	switch d := now.Sub(at); {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d KiB", n>>10)
	}
}

func (a *app) imagePrune() *cobra.Command {
	var all bool
	var older time.Duration
	var only string
	c := &cobra.Command{
		Use: "prune", Short: "Remove images that this program made and no run used for a while",
		Long: "Remove images that this program made or unpacked and that were not used for 30 days, or for the time that\n" +
			"--older-than gives. Images of sandboxes that exist stay. The engine's build cache is the engine's:\n" +
			"`docker builder prune` empties that.",
		Example: "  " + a.w.Name + " image prune --older-than 168h\n  " + a.w.Name + " image prune --all",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case all && c.Flags().Changed("older-than"):
				return fault.Configf("usage", "Give one of them.", "--all and --older-than exclude each other")
			case older < 0:
				return fault.Configf("usage", "Give a duration such as 168h.", "--older-than is negative")
			}
			return a.prune(c.Context(), only, func(i sandbox.StoredImage) bool {
				return all || i.Age(time.Now()) >= older && i.Age(time.Now()) > 0
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all of them, however fresh")
	c.Flags().DurationVar(&older, "older-than", pruneAge, "only what was not used for so long")
	c.Flags().StringVar(&only, "sandbox", "", "only this kind of sandbox")
	return c
}

func (a *app) prune(ctx context.Context, only string, drop func(sandbox.StoredImage) bool) error {
	found, _, err := a.keepers(ctx, only)
	if err != nil {
		return err
	}
	n := 0
	var freed int64
	var errs []error
	var b strings.Builder
	for _, k := range found {
		gone, err := k.RemoveImages(ctx, drop)
		errs = append(errs, err)
		for _, i := range gone {
			n++
			freed += i.Size
			of := i.Of
			if of == "" {
				of = i.Name
			}
			fmt.Fprintf(&b, "removed %s image %s, %s, of %s\n", k.kind, shortID(i.ID), bytesText(i.Size), sandbox.Clean(of))
		}
	}
	if n == 0 {
		b.WriteString("nothing was removed\n")
	} else {
		fmt.Fprintf(&b, "%d removed, %s at most\n", n, bytesText(freed))
	}
	_, err = io.WriteString(a.p.Stdout, b.String())
	return errors.Join(append(errs, a.wrote(err))...)
}

func (a *app) imageBuild() *cobra.Command {
	var kind, base string
	var args []string
	var agents []string
	for _, r := range images.All() {
		agents = append(agents, r.Agent)
	}
	c := &cobra.Command{
		Use: "build " + strings.Join(agents, "|"), Short: "Build the prebuilt environment of an agent on this machine",
		Long: "Build the prebuilt environment of an agent on this machine: its own CLI and what that needs. The sandbox\n" +
			"names it by the agent: `docker: {image: assay/codex}`. The recipes need a base image with node, or Python\n" +
			"for bub, and the network.",
		Example: "  " + a.w.Name + " image build codex\n" +
			"  " + a.w.Name + " image build claude-code --base node:22-slim --arg NPM_REGISTRY=https://npm.example.com/",
		Args: cobra.ExactArgs(1), ValidArgs: agents,
		RunE: func(c *cobra.Command, argv []string) error {
			r, ok := images.Lookup(argv[0])
			if !ok {
				return fault.Configf("usage", "Name one of "+strings.Join(agents, ", ")+".", "there is no prebuilt environment of %q", argv[0])
			}
			given := map[string]string{}
			for _, kv := range args {
				k, v, ok := strings.Cut(kv, "=")
				if !ok || k == "" {
					return fault.Configf("usage", "Write it as NAME=value.", "--arg %q has no value", kv)
				}
				given[k] = v
			}
			if base != "" {
				given["BASE"] = base
			}
			return a.buildImage(c.Context(), kind, r, given)
		},
	}
	c.Flags().StringVar(&kind, "sandbox", "docker", "the kind of sandbox to build for: docker or podman")
	c.Flags().StringVar(&base, "base", "", "the image to start from, instead of the recipe's")
	c.Flags().StringArrayVar(&args, "arg", nil, "a build argument NAME=value (repeatable)")
	return c
}

// spoken are steps that print what they do.
type spoken struct {
	sandbox.Steps
	out io.Writer
}

// Log prints what a step prints.
func (s spoken) Log(text string) {
	for _, l := range strings.Split(sandbox.StripControl(text), "\n") {
		if l = strings.TrimRight(l, " "); l != "" {
			fmt.Fprintln(s.out, "  "+l)
		}
	}
}

func (a *app) buildImage(ctx context.Context, kind string, r images.Recipe, args map[string]string) error {
	def, ok := a.w.Sandboxes.Lookup(kind)
	if !ok || def.Provider == nil {
		return fault.Configf("usage", "Give docker or podman.", "there is no kind of sandbox %q", kind)
	}
	p := def.Provider()
	builder, ok := p.(sandbox.ImageBuilder)
	if !ok {
		return fault.Configf("usage", "Give docker or podman.", "%s builds no images", kind)
	}
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	err := p.Check(limited)
	cancel()
	if err != nil {
		return err
	}
	in := a.interrupts(ctx, func(event.Event) {})
	defer in.close()
	last := ""
	steps := spoken{bake.Steps(p, func(stage, progress string) {
		if strings.HasPrefix(progress, "trying again") || strings.HasPrefix(progress, "waiting") || strings.HasPrefix(progress, "pulling") && progress != last {
			fmt.Fprintf(a.p.Stderr, "%s: %s\n", stage, progress)
		}
		last = progress
	}), a.p.Stderr}
	i, err := builder.BuildImage(in.work, sandbox.ImageRecipe{Name: r.Image(), Dockerfile: r.Dockerfile, Tools: r.Tools(), Args: args}, steps)
	if code := in.code(); code != 0 {
		return exitError(code)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.p.Stdout, "%s %s, %s\n", r.Image(), shortID(i.ID), bytesText(i.Size))
	return a.wrote(err)
}
