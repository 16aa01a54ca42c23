package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/bake"
	"assay/internal/discover"
	"assay/internal/event"
	"assay/internal/projectfile"
	"assay/ref"
	"assay/sandbox"
)

func (a *app) template() *cobra.Command {
	c := &cobra.Command{
		Use: "template", Short: "Build the templates that cloud sandboxes start from",
		Long: "Build the templates that cloud sandboxes start from. A file templates/<name>.yaml says where one starts and\n" +
			"which packages, files and commands it adds; `" + a.w.Name + " schema template` describes it. Build a template\n" +
			"once, under a versioned name, and not per attempt.",
		Example: "  " + a.w.Name + " template build\n  " + a.w.Name + " template build acme",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.templateBuild())
	return c
}

func (a *app) templateBuild() *cobra.Command {
	var asJSON, anew bool
	var kind string
	c := &cobra.Command{
		Use: "build [file…]", Short: "Build templates from their files",
		Long: "Build templates from their files: paths, or names of files below templates/. Without one, all files there.\n" +
			"The steps run at the provider, whose lines come as they are written.",
		Example: "  " + a.w.Name + " template build acme\n  " + a.w.Name + " template build templates/acme.yaml --json",
		RunE: func(c *cobra.Command, args []string) error {
			b, err := a.builderOf("template", kind)
			if err != nil {
				return err
			}
			recipes, err := a.recipes(b, args)
			if err != nil {
				return err
			}
			return a.buildPoints(c.Context(), b, recipes, anew, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.Flags().BoolVar(&anew, "no-cache", false, "run every step anew")
	c.Flags().StringVar(&kind, "sandbox", "", "the kind of sandbox to build for; omitted is the one that has templates")
	return c
}

// pointBuilder is a kind of sandbox that builds start points.
type pointBuilder struct {
	kind, noun string
	p          sandbox.Provider
	sandbox.StartPointBuilder
}

// builderOf finds the kind of sandbox whose start points have a name.
func (a *app) builderOf(noun, only string) (pointBuilder, error) {
	for _, kind := range a.w.Sandboxes.Kinds() {
		def, _ := a.w.Sandboxes.Lookup(kind)
		if def.Provider == nil || only != "" && kind != only {
			continue
		}
		p := def.Provider()
		b, ok := p.(sandbox.StartPointBuilder)
		if !ok {
			continue
		}
		if is, _ := b.StartPointRecipe(); is == noun {
			return pointBuilder{kind, noun, p, b}, nil
		}
	}
	if only != "" {
		return pointBuilder{}, fault.Configf("usage", "Name another, or leave --sandbox out.", "%q is no kind of sandbox with a %s", only, noun)
	}
	return pointBuilder{}, fault.Configf("usage", "Use a program that has one.", "no kind of sandbox here has a %s", noun)
}

// recipe is one start point to build.
type recipe struct {
	name, dir string
	spec      any
}

// recipes reads the files that a user names: paths, or names below the folder of
// the kind; without one, all of that folder.
func (a *app) recipes(b pointBuilder, args []string) ([]recipe, error) {
	folder, err := a.recipeFolder(b.noun)
	if err != nil {
		return nil, err
	}
	files := make([]string, 0, len(args))
	for _, arg := range args {
		file, err := a.recipeFile(folder, arg)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if len(args) == 0 {
		for _, ext := range []string{"*.yaml", "*.yml"} {
			found, err := filepath.Glob(filepath.Join(folder, ext))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		slices.Sort(files)
		if len(files) == 0 {
			return nil, fault.Configf("usage", "Name a file, or write one there: see `"+a.w.Name+" schema "+b.noun+"`.", "there is no %s file in %s", b.noun, folder)
		}
	}
	out := make([]recipe, 0, len(files))
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			return nil, fault.Wrap(err, fault.Config, b.noun+"-invalid", "read the "+b.noun+" file")
		}
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		r, err := decodeRecipe(b, file, body)
		if err != nil {
			return nil, err
		}
		out = append(out, recipe{name, filepath.Dir(file), r})
	}
	return out, nil
}

func (a *app) recipeFolder(noun string) (string, error) {
	root, err := discover.Root(a.dir)
	if fault.CodeOf(err) == "project-missing" {
		root, err = filepath.Abs(a.dir)
	}
	return filepath.Join(root, noun+"s"), err
}

func (a *app) recipeFile(folder, arg string) (string, error) {
	path := arg
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.dir, path)
	}
	try := []string{path, filepath.Join(folder, arg+".yaml"), filepath.Join(folder, arg+".yml"), filepath.Join(folder, arg)}
	for _, file := range try {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fault.Configf("usage", "Name a file, or one of "+folder+" by its name.", "there is no file %s and none in %s", arg, folder)
}

// decodeRecipe reads a recipe strictly.
func decodeRecipe(b pointBuilder, file string, body []byte) (any, error) {
	_, r := b.StartPointRecipe()
	root, problems := projectfile.Parse(body)
	if root != nil {
		problems = append(problems, projectfile.Decode(root, r, projectfile.Kinds{})...)
	}
	if len(problems) == 0 {
		return r, nil
	}
	var text strings.Builder
	for _, p := range problems {
		p.File = file
		text.WriteString("\n  " + p.String())
	}
	return nil, &fault.Error{Class: fault.Config, Code: b.noun + "-invalid", What: "the " + b.noun + " cannot be built" + text.String(), Fix: "Correct the file; nothing was built."}
}

// pointRow is one start point of a list.
type pointRow struct {
	Sandbox string `json:"sandbox"`
	Kind    string `json:"kind"`
	sandbox.StartPoint
}

func (a *app) printPointsJSON(rows []pointRow) error {
	return a.printJSON(struct {
		Schema      string     `json:"schema"`
		StartPoints []pointRow `json:"startPoints"`
	}{"assay.start-points/v1", rows})
}

// heartbeat is how long a build may be silent before it is said that it goes on.
const heartbeat = 30 * time.Second

// buildPoints builds one after the other, as far as they go.
func (a *app) buildPoints(ctx context.Context, b pointBuilder, recipes []recipe, anew, asJSON bool) error {
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	err := b.p.Check(limited)
	cancel()
	if err != nil {
		return err
	}
	in := a.interrupts(ctx, func(event.Event) {})
	defer in.close()
	rows := []pointRow{}
	var errs []error
	for _, r := range recipes {
		made, err := a.buildPoint(in.work, b, r, anew)
		if code := in.code(); code != 0 {
			return exitError(code)
		}
		if err != nil {
			errs = append(errs, fault.Wrap(err, fault.Unknown, "", "build the "+b.noun+" "+r.name))
			continue
		}
		rows = append(rows, pointRow{b.kind, b.noun, made})
	}
	if asJSON {
		return errors.Join(append(errs, a.printPointsJSON(rows))...)
	}
	for _, r := range rows {
		name := r.ID
		if r.Name != "" {
			name = r.Name
		}
		_, err := fmt.Fprintf(a.p.Stdout, "built %s %s\n  sandbox: {%s}\n", r.Kind, name, r.Layer)
		errs = append(errs, a.wrote(err))
	}
	return errors.Join(errs...)
}

// buildPoint builds one, tells what it does, and that it goes on.
func (a *app) buildPoint(ctx context.Context, b pointBuilder, r recipe, anew bool) (made sandbox.StartPoint, err error) {
	t := &talker{out: a.p.Stderr}
	t.say("%s %s: building at %s", b.noun, r.name, b.kind)
	begin := time.Now()
	tick := time.NewTicker(heartbeat)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				t.say("%s %s: building for %s", b.noun, r.name, time.Since(begin).Round(time.Second))
			}
		}
	}()
	defer func() { tick.Stop(); close(done); <-ended }()
	steps := bake.Steps(b.p, func(_, progress string) {
		if progress != "" {
			t.say("%s %s: %s", b.noun, r.name, progress)
		}
	})
	err = steps.Do(ctx, "build", func(ctx context.Context) (err error) {
		o := owner()
		o.Token = ref.New() // another try is another build
		made, err = b.BuildStartPoint(ctx, sandbox.StartPointBuild{
			Recipe: r.spec, Dir: r.dir, Name: r.name, Anew: anew, Owner: o,
			Log: func(line string) {
				tick.Reset(heartbeat)
				for l := range strings.SplitSeq(sandbox.StripControl(line), "\n") {
					if l = strings.TrimRight(l, " "); l != "" {
						t.say("  %s", l)
					}
				}
			},
		})
		return err
	})
	return made, err
}

// talker writes whole lines.
type talker struct {
	mu  sync.Mutex
	out io.Writer
}

func (t *talker) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format+"\n", args...)
}

func (a *app) snapshot() *cobra.Command {
	c := &cobra.Command{
		Use: "snapshot", Short: "Take, list and delete the snapshots that cloud sandboxes start from",
		Long: "Take, list and delete the snapshots that cloud sandboxes start from: the files of a sandbox after some commands.\n" +
			"Take one when dependencies change, and name it in the `sandbox:` of an experiment, eval or profile.",
		Example: "  " + a.w.Name + " snapshot create --sudo 'npm install -g @openai/codex@0.144.1'\n  " + a.w.Name + " snapshot list",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.snapshotCreate(), a.snapshotList(), a.snapshotDelete())
	return c
}

// scripts is a flag that adds to an ordered list which it shares with others.
type scripts struct {
	list *[]any
	sudo bool
}

func (s scripts) Set(v string) error {
	if s.sudo {
		*s.list = append(*s.list, map[string]any{"run": v, "sudo": true})
	} else {
		*s.list = append(*s.list, v)
	}
	return nil
}
func (s scripts) String() string { return "" }
func (s scripts) Type() string   { return "script" }

func (a *app) snapshotCreate() *cobra.Command {
	var asJSON bool
	var kind, runtime, from, image, expires string
	var copies []string
	var run []any
	given := []string{"runtime", "from", "image", "copy", "run", "sudo", "expires"}
	c := &cobra.Command{
		Use: "create [file…]", Short: "Take a snapshot of a fresh sandbox after some commands",
		Long: "Take a snapshot of a fresh sandbox after some commands. What to do is said by files, paths or names below\n" +
			"snapshots/ (`" + a.w.Name + " schema snapshot` describes them), or by flags. Files are copied first; scripts run\n" +
			"in the order of their flags, and each must exit 0. The sandbox is deleted afterwards, whatever happens.",
		Example: "  " + a.w.Name + " snapshot create --sudo 'npm install -g @openai/codex@0.144.1' --run 'codex --version'\n" +
			"  " + a.w.Name + " snapshot create --from snap_0123 --copy fixtures:/vercel/sandbox/fixtures\n" +
			"  " + a.w.Name + " snapshot create acme --json",
		RunE: func(c *cobra.Command, args []string) error {
			b, err := a.builderOf("snapshot", kind)
			if err != nil {
				return err
			}
			flags := slices.ContainsFunc(given, func(name string) bool { return c.Flags().Changed(name) })
			var recipes []recipe
			switch {
			case flags && len(args) > 0:
				return fault.Configf("usage", "Write it into the file.", "a file says everything, and flags are for snapshots without one")
			case flags:
				doc := map[string]any{}
				source := map[string]any{}
				for k, v := range map[string]string{"runtime": runtime, "snapshotId": from, "image": image} {
					if v != "" {
						source[k] = v
					}
				}
				for k, v := range map[string]any{"from": source, "copy": copyList(copies), "run": run} {
					doc[k] = v
				}
				if expires != "" {
					doc["expires"] = expires
				}
				body, err := json.Marshal(doc)
				if err != nil {
					return err
				}
				spec, err := decodeRecipe(b, "flags", body)
				if err != nil {
					return err
				}
				recipes = []recipe{{"of flags", a.dir, spec}}
			default:
				if recipes, err = a.recipes(b, args); err != nil {
					return err
				}
			}
			return a.buildPoints(c.Context(), b, recipes, false, asJSON)
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "one JSON document")
	f.StringVar(&runtime, "runtime", "", "start from a runtime; omitted is the newest that is known")
	f.StringVar(&from, "from", "", "start from another snapshot")
	f.StringVar(&image, "image", "", "start from an image of the provider")
	f.StringArrayVar(&copies, "copy", nil, "copy a file or folder, as from:to (repeatable)")
	f.Var(scripts{&run, false}, "run", "run a script as the sandbox's own user (repeatable)")
	f.Var(scripts{&run, true}, "sudo", "run a script as root (repeatable)")
	f.StringVar(&expires, "expires", "", "how long to keep it, such as 720h; omitted is for ever")
	f.StringVar(&kind, "sandbox", "", "the kind of sandbox to build for; omitted is the one that has snapshots")
	return c
}

// copyList splits from:to; what has no colon is refused with the recipe.
func copyList(copies []string) []any {
	out := []any{}
	for _, one := range copies {
		i := strings.LastIndexByte(one, ':')
		if i < 0 {
			out = append(out, map[string]any{"from": one})
			continue
		}
		out = append(out, map[string]any{"from": one[:i], "to": one[i+1:]})
	}
	return out
}

// pointKeeper is a kind of sandbox that lists its snapshots.
func (a *app) pointKeeper(ctx context.Context, kind string) (pointBuilder, sandbox.StartPointKeeper, error) {
	b, err := a.builderOf("snapshot", kind)
	if err != nil {
		return b, nil, err
	}
	k, ok := b.p.(sandbox.StartPointKeeper)
	if !ok {
		return b, nil, fault.Configf("usage", "Use the provider's own tools.", "%s snapshots cannot be listed", b.kind)
	}
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	return b, k, b.p.Check(limited)
}

func (a *app) snapshotList() *cobra.Command {
	var asJSON bool
	var kind string
	c := &cobra.Command{
		Use: "list", Short: "List the snapshots of the account's project",
		Long:    "List the snapshots of the account's project, oldest first. Those of kept sandboxes are among them.",
		Example: "  " + a.w.Name + " snapshot list --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b, k, err := a.pointKeeper(c.Context(), kind)
			if err != nil {
				return err
			}
			all, err := k.StartPoints(c.Context())
			if err != nil {
				return err
			}
			rows := []pointRow{}
			for _, p := range all {
				rows = append(rows, pointRow{b.kind, b.noun, p})
			}
			if asJSON {
				return a.printPointsJSON(rows)
			}
			return a.printPoints(rows)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.Flags().StringVar(&kind, "sandbox", "", "the kind of sandbox to ask; omitted is the one that has snapshots")
	return c
}

func (a *app) printPoints(rows []pointRow) error {
	w := tabwriter.NewWriter(a.p.Stdout, 0, 4, 2, ' ', 0)
	if len(rows) == 0 {
		fmt.Fprintln(w, "no snapshots")
	} else {
		fmt.Fprintln(w, "ID\tSIZE\tAGE\tUNTIL\tSANDBOX")
	}
	now := time.Now()
	for _, r := range rows {
		until := "deleted"
		if !r.Expires.IsZero() {
			until = r.Expires.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", sandbox.Clean(r.ID), bytesText(r.Size), ago(now, r.Created), until, sandbox.Clean(r.Layer))
	}
	return a.wrote(w.Flush())
}

func (a *app) snapshotDelete() *cobra.Command {
	var kind string
	c := &cobra.Command{
		Use: "delete id…", Short: "Delete snapshots",
		Example: "  " + a.w.Name + " snapshot delete snap_0123",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, k, err := a.pointKeeper(c.Context(), kind)
			if err != nil {
				return err
			}
			r, err := a.registry()
			if err != nil {
				return err
			}
			kept, err := r.List()
			if err != nil {
				return err
			}
			for _, e := range kept {
				if slices.Contains(args, e.SandboxID) {
					return fault.Configf("snapshot-kept", "Run `"+a.w.Name+" sandbox stop "+e.ID+"`.", "%s holds the kept sandbox %s", e.SandboxID, e.ID)
				}
			}
			var errs []error
			for _, id := range args {
				if err := k.RemoveStartPoint(c.Context(), id); err != nil {
					errs = append(errs, err)
					continue
				}
				_, err := fmt.Fprintf(a.p.Stdout, "deleted %s\n", sandbox.Clean(id))
				errs = append(errs, a.wrote(err))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().StringVar(&kind, "sandbox", "", "the kind of sandbox to ask; omitted is the one that has snapshots")
	return c
}
