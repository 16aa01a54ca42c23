package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"assay"
	"assay/fault"
	"assay/internal/discover"
)

// app is one call of the command.
type app struct {
	p   *Process
	w   World
	dir string // -C
}

// Main runs one command and returns the exit code.
func Main(p Process, w World) (code int) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(p.Stderr, "error: %s crashed: %v [panic]\n%s\nfix: Please report this with the text above.\n", w.Name, r, debug.Stack())
			code = ExitCrash
		}
	}()
	keepPipes()
	a := &app{p: &p, w: w}
	root := a.root()
	root.SetArgs(valued(p.Args))
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(context.Background())
	p.show(err)
	return codeOf(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   a.w.Name,
		Short: "Run evals of AI coding agents in isolated sandboxes",
		Long: "Run evals of AI coding agents in isolated sandboxes, and tell the truth about what the agent did.\n\n" +
			"Experiments say which agent, model and sandbox; evals say the start files, the task and the checks.",
		Example: "  " + a.w.Name + " init                        make a small project that works\n" +
			"  " + a.w.Name + " exp local                   run the experiment `local` on all its evals\n" +
			"  " + a.w.Name + " exp codex fix-button --dry  show what would run, and why\n" +
			"  " + a.w.Name + " show                        the results so far\n" +
			"  " + a.w.Name + " show @1h2k9d0q3v5zx         everything about one attempt",
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.PersistentFlags().StringVarP(&a.dir, "directory", "C", ".", "work in the project of this folder")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &fault.Error{Class: fault.Config, Code: "usage", What: err.Error(), Fix: fmt.Sprintf("See `%s --help`.", c.CommandPath())}
	})
	root.AddCommand(a.exp(), a.list(), a.check(), a.showCommand(), a.sandboxCommand(), a.template(), a.snapshot(), a.accept(), a.clean(), a.initCommand(), a.schemaCommand(), a.doctor(), a.image(), a.modelserver(), a.version())
	// Every misuse is the same kind of error, with the same exit code.
	wrapUsage(root)
	return root
}

// valued joins a flag whose value may be left out with a value that follows it:
// `--rerun all` means `--rerun=all`.
func valued(args []string) []string {
	values := map[string][]string{"--rerun": {"failed", "all"}, "--keep-sandbox": {"failed", "all"}}
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(out, args[i:]...)
		}
		if i+1 < len(args) && slices.Contains(values[args[i]], args[i+1]) {
			out = append(out, args[i]+"="+args[i+1])
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// wrapUsage makes cobra's own complaints about arguments usage errors.
func wrapUsage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || fault.CodeOf(err) != "" {
				return err
			}
			fix := fmt.Sprintf("See `%s --help`.", cmd.CommandPath())
			if near := cmd.SuggestionsFor(first(args)); len(near) > 0 {
				fix = "Did you mean `" + strings.Join(near, "` or `") + "`? " + fix
			}
			return &fault.Error{Class: fault.Config, Code: "usage", What: err.Error(), Fix: fix}
		}
	}
	for _, sub := range c.Commands() {
		wrapUsage(sub)
	}
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// suite loads the project's files and joins what the program defines.
func (a *app) suite(ctx context.Context) (*assay.Suite, error) {
	files, err := discover.Load(ctx, a.dir, discover.Options{Sandboxes: a.w.Sandboxes, Agents: a.w.Agents})
	if fault.CodeOf(err) == "project-missing" && len(a.w.Suite.Evals) > 0 {
		// A program that defines everything itself needs no project folder.
		suite := a.w.Suite
		if suite.Root == "" {
			suite.Root, err = filepath.Abs(a.dir)
			if err != nil {
				return nil, err
			}
		}
		return &suite, nil
	}
	if err != nil {
		return nil, err
	}
	return discover.Merge(*files, a.w.Suite)
}

// recordRoot is where results are kept.
func (a *app) recordRoot(suite *assay.Suite, flag string) (string, error) {
	switch {
	case flag != "":
		return filepath.Abs(flag)
	case suite == nil:
		root, err := discover.Root(a.dir)
		if err != nil {
			return "", err
		}
		return filepath.Join(root, ".assay", "record"), nil
	case suite.Record == "":
		return filepath.Join(suite.Root, ".assay", "record"), nil
	case filepath.IsAbs(suite.Record):
		return suite.Record, nil
	default:
		return filepath.Join(suite.Root, suite.Record), nil
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  " + a.w.Name + " version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.p.Stdout, "%s %s\n", a.w.Name, a.w.Version)
			return a.wrote(err)
		},
	}
}

// wrote turns a failed write to the output into an error, and lets a reader
// that left early go quietly.
func (a *app) wrote(err error) error {
	if err == nil || errors.Is(err, os.ErrClosed) || isPipe(err) {
		return nil
	}
	return &fault.Error{Class: fault.Resource, Code: "output-failed", What: "write the output", Fix: "See whether the target is full.", Err: err}
}
