package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/record"
	"assay/ref"
)

func (a *app) clean() *cobra.Command {
	var root string
	var yes bool
	c := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left in the record",
		Long: "Remove what killed runs left in the record: runs that have no end and whose process is gone, with the\n" +
			"results they hold. The next run would carry those results, so run first, then clean. A run that a later\n" +
			"one refers to stays.",
		Example: "  " + a.w.Name + " clean          lists them and asks\n" +
			"  " + a.w.Name + " clean --yes    does not ask",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runClean(c.Context(), root, yes) },
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().StringVar(&root, "record", "", "folder of the record")
	return c
}

// remnant is a run without an end.
type remnant struct {
	run     *record.StoredRun
	results int
	// user is a run that refers to a result of it, or "".
	user ref.RunID
}

func (a *app) runClean(ctx context.Context, root string, yes bool) error {
	if root == "" {
		var err error
		if root, err = a.results(ctx); err != nil {
			return err
		}
	}
	all, err := remnants(ctx, root)
	if err != nil {
		return err
	}
	text, n := describeRemnants(all)
	fmt.Fprint(a.p.Stdout, text)
	if n == 0 {
		return nil
	}
	if !yes {
		ok, err := a.ask(fmt.Sprintf("Remove %d runs? [y/N] ", n))
		if err != nil || !ok {
			return err
		}
	}
	w, err := record.Open(root, "clean")
	if err != nil {
		return err
	}
	defer w.Close()
	listed := map[ref.RunID]bool{}
	for _, r := range all {
		listed[r.run.ID] = r.user == ""
	}
	// Between the look and the lock somebody may have carried from one of them.
	if all, err = remnants(ctx, root); err != nil {
		return err
	}
	removed := 0
	for _, r := range all {
		if !listed[r.run.ID] || r.user != "" {
			continue
		}
		if err := w.RemoveRun(r.run.ID); err != nil {
			return err
		}
		removed++
	}
	_, err = fmt.Fprintf(a.p.Stdout, "removed %d runs\n", removed)
	return a.wrote(err)
}

// remnants finds the runs that have no end and never will, oldest first.
func remnants(ctx context.Context, root string) ([]remnant, error) {
	r, err := record.OpenReader(root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	runs, _, err := r.Runs(ctx)
	if err != nil {
		return nil, err
	}
	users := map[ref.RunID]ref.RunID{}
	for _, run := range runs {
		for _, m := range run.Members {
			if m.Run != run.ID {
				users[m.Run] = run.ID
			}
		}
	}
	var out []remnant
	for _, run := range runs {
		if run.Status != record.StatusInterrupted {
			continue
		}
		refs, err := r.AttemptRefs(run.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, remnant{run, len(refs), users[run.ID]})
	}
	return out, nil
}

// describeRemnants lists them, and counts those that can go.
func describeRemnants(all []remnant) (text string, n int) {
	if len(all) == 0 {
		return "nothing to clean: every run has its end\n", 0
	}
	for _, r := range all {
		verb, why := "remove", ""
		if r.user == "" {
			n++
		} else {
			verb, why = "keep  ", fmt.Sprintf("  run %s refers to it", r.user)
		}
		text += fmt.Sprintf("%s %s  %s  started %s  %d of %d results%s\n", verb, r.run.ID, r.run.Experiment, r.run.StartedAt.Local().Format(time.DateTime), r.results, len(r.run.Slots), why)
	}
	return text, n
}

// ask asks the person at the terminal; without one the error says what to do.
func (a *app) ask(question string) (bool, error) {
	in := a.p.Stdin
	info, err := os.Stat(os.DevNull)
	if in == nil || err != nil {
		return false, unasked()
	}
	own, err := in.Stat()
	if err != nil || own.Mode()&os.ModeCharDevice == 0 || os.SameFile(own, info) {
		return false, unasked()
	}
	fmt.Fprint(a.p.Stdout, question)
	line, _ := bufio.NewReader(in).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}

func unasked() error {
	return fault.Configf("confirmation-missing", "Add --yes.", "nobody is there to be asked")
}
