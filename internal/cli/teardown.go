package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/run"
)

// teardownOptions are the flags of what an earlier run left to be done.
type teardownOptions struct {
	run        bool
	key, token string
	terminated bool // --confirm-owner-terminated
	quiesced   bool // --confirm-remote-quiesced
}

func (o *teardownOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.run, "teardown", false, "only run the experiments' teardowns that dead runs have left")
	f.StringVar(&o.key, "recover-shared-state", "", "with --teardown: look at the lease of this key that was left, and with the three flags below recover it")
	f.StringVar(&o.token, "owner-token", "", "the token that the look printed")
	f.BoolVar(&o.terminated, "confirm-owner-terminated", false, "you know that the process that held the lease is gone")
	f.BoolVar(&o.quiesced, "confirm-remote-quiesced", false, "you know that nothing it started elsewhere still uses the state")
}

// check refuses combinations before anything is touched.
func (o *teardownOptions) check(x *expOptions, changed func(string) bool) error {
	if !o.run {
		for _, name := range []string{"recover-shared-state", "owner-token", "confirm-owner-terminated", "confirm-remote-quiesced"} {
			if changed(name) {
				return fault.Configf("usage", "Add --teardown.", "--%s belongs to --teardown", name)
			}
		}
		return nil
	}
	switch {
	case len(x.sel.Evals) > 0 || len(x.sel.Tags) > 0:
		return fault.Configf("usage", "Select experiments only.", "--teardown is about whole experiments, not about evals")
	case x.dry || changed("keep-sandbox") || changed("rerun"):
		return fault.Configf("usage", "Leave the others out.", "--teardown runs no attempts and goes with neither --dry, --keep-sandbox nor --rerun")
	case o.key != "" && x.json:
		return fault.Configf("usage", "Leave --json out: this needs a person.", "--recover-shared-state and --json exclude each other")
	case o.key == "" && (o.token != "" || o.terminated || o.quiesced):
		return fault.Configf("usage", "Name the key with --recover-shared-state.", "--owner-token and the confirmations belong to --recover-shared-state")
	}
	return nil
}

// tearDown does what earlier runs have left.
func (a *app) tearDown(ctx context.Context, o expOptions) error {
	suite, err := a.suite(ctx)
	if err != nil {
		return err
	}
	exps, err := plan.Experiments(suite, o.sel.Experiment)
	if err != nil {
		return err
	}
	t := run.TeardownOptions{Experiments: exps, State: filepath.Join(suite.Root, ".assay"), Root: suite.Root, Env: a.p.Env, Sink: func(event.Event) {}}
	if o.teardown.key != "" {
		return a.recoverState(ctx, t, o)
	}
	var errs []error
	paid := run.Teardown(ctx, t)
	if o.json {
		type row struct {
			Experiment string `json:"experiment"`
			Owed       int    `json:"owed"`
			Waits      string `json:"waits,omitempty"`
			Error      string `json:"error,omitempty"`
		}
		rows := []row{}
		for _, p := range paid {
			r := row{Experiment: string(p.Experiment), Owed: p.Owed, Waits: p.Waits}
			if p.Err != nil {
				r.Error = p.Err.Error()
			}
			if p.Err != nil || p.Owed > 0 && p.Waits != "" {
				errs = append(errs, exitError(ExitRed))
			}
			rows = append(rows, r)
		}
		return errors.Join(append(errs, a.printJSON(rows))...)
	}
	owed := false
	for _, p := range paid {
		owed = owed || p.Owed > 0 && p.Waits != ""
		switch {
		case p.Err != nil:
			errs = append(errs, &fault.Error{Class: fault.Config, Code: "leftover-teardown-failed", What: fmt.Sprintf("teardown of experiment %s, which is still owed", p.Experiment), Fix: cmp.Or(fault.FixOf(p.Err), "Repair it, and run the command again."), Err: p.Err})
		case p.Waits != "":
			fmt.Fprintf(a.p.Stdout, "%s\tleft alone: %s\n", p.Experiment, p.Waits)
		case p.Owed > 0:
			runs := "earlier runs"
			if p.Owed == 1 {
				runs = "earlier run"
			}
			fmt.Fprintf(a.p.Stdout, "%s\ttorn down for %d %s\n", p.Experiment, p.Owed, runs)
		default:
			fmt.Fprintf(a.p.Stdout, "%s\tnothing is owed\n", p.Experiment)
		}
	}
	if len(errs) > 0 {
		a.p.show(errors.Join(errs...))
		return exitError(ExitRed)
	}
	if owed {
		return exitError(ExitRed) // what remains was told above
	}
	return nil
}

// recoverState shows the lease that was left and, when told so, recovers it.
func (a *app) recoverState(ctx context.Context, t run.TeardownOptions, o expOptions) error {
	key := o.teardown.key
	r, life, ok, err := run.Leases(t.State).Inspect(key)
	if err != nil {
		return err
	}
	if !ok {
		_, err := fmt.Fprintf(a.p.Stdout, "shared state %s is not held: there is nothing to recover\n", key)
		return a.wrote(err)
	}
	if o.teardown.token == "" || !o.teardown.terminated || !o.teardown.quiesced {
		why := "its owner ended without saving it"
		if r.Uncleaned != "" {
			why = r.Uncleaned
		}
		if life == "live" {
			why = "its owner lives"
		}
		fmt.Fprintf(a.p.Stdout, "shared state   %s\nowner token    %s\nowner          %s (%s)\nheartbeat      %s\nwhy            %s\n",
			key, r.Token, r, life, r.Heartbeat.Local().Format(time.DateTime), why)
		if life == "live" {
			fmt.Fprintln(a.p.Stdout, "next           end that process; a stopped one lives")
		} else {
			fmt.Fprintf(a.p.Stdout, "next           make sure that nothing uses the state any more, then:\n  %s exp %s --teardown --recover-shared-state %s --owner-token %s --confirm-owner-terminated --confirm-remote-quiesced\n",
				a.w.Name, r.Experiment, key, r.Token)
		}
		return exitError(ExitRed)
	}
	done, err := run.Recover(ctx, t, key, o.teardown.token)
	for _, id := range done {
		fmt.Fprintf(a.p.Stdout, "%s\ttorn down\n", id)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.p.Stdout, "shared state %s is free\n", key)
	return a.wrote(err)
}
