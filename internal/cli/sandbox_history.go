package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/dash"
	"assay/internal/keep"
	"assay/record"
	"assay/report"
	"assay/report/terminal"
	"assay/sandbox"
)

// attempted opens the record of a kept sandbox's attempt.
func (a *app) attempted(name string) (*record.Reader, record.AttemptRef, error) {
	_, e, err := a.find(name)
	if err != nil {
		return nil, record.AttemptRef{}, err
	}
	at := record.AttemptRef{Run: e.Run, Attempt: e.Attempt}
	r, err := record.OpenReader(e.Record)
	if err != nil {
		return nil, at, unrecorded(e, err)
	}
	if _, err := r.Attempt(at); err != nil {
		_ = r.Close()
		return nil, at, unrecorded(e, err)
	}
	return r, at, nil
}

func unrecorded(e keep.Entry, err error) error {
	return &fault.Error{Class: fault.Config, Code: "sandbox-unrecorded", What: fmt.Sprintf("the attempt %s of the kept sandbox %s is not in the record %s", e.Locator, e.ID, e.Record), Fix: "Enter the sandbox to look at it; its run was cut off, or its record was moved.", Err: err}
}

func (a *app) sandboxDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff <id>", Short: "Show what the agent changed in a kept sandbox",
		Long:    "Show what the agent changed, from the record of its attempt. What was done since by hand is not in it.",
		Example: "  " + a.w.Name + " sandbox diff 3fa1",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, at, err := a.attempted(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			page, err := report.ReadPage(r, at)
			if err != nil {
				return err
			}
			return a.wrote(terminal.Diff(a.p.Stdout, page, a.terminalOptions()))
		},
	}
}

func (a *app) terminalOptions() terminal.Options {
	_, noColor := a.p.Env("NO_COLOR")
	return terminal.Options{All: true, Color: !noColor && dash.Usable(fileOf(a.p.Stdout), a.p.env)}
}

func (a *app) sandboxHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history <id>", Short: "List the commands that ran in a kept sandbox during its attempt",
		Example: "  " + a.w.Name + " sandbox history 3fa1",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, at, err := a.attempted(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			n := 0
			for line, err := range r.Commands(at) {
				if err != nil {
					return fault.Wrap(err, fault.Config, "record-unreadable", "read the commands of the attempt")
				}
				var c sandbox.CommandRecord
				if err := json.Unmarshal(line, &c); err != nil {
					return fault.Wrap(err, fault.Config, "record-unreadable", "read the commands of the attempt")
				}
				n++
				if _, err := fmt.Fprintln(a.p.Stdout, terminal.Command(&c)); err != nil {
					return a.wrote(err)
				}
			}
			if n == 0 {
				_, err = fmt.Fprintln(a.p.Stdout, "no commands are recorded")
			}
			return a.wrote(err)
		},
	}
}
