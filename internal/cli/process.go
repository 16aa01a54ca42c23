// Package cli is the assay command: its commands, flags, signals, exit codes
// and its choice of a view. Only it and package app know the process around
// them.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/discover"
	"assay/sandbox"
)

// The exit codes.
const (
	ExitGreen       = 0   // everything is green, or the command did its work
	ExitRed         = 1   // a verdict is red, or the run is incomplete
	ExitConfig      = 2   // the user can fix it
	ExitInfra       = 3   // infrastructure could not be readied
	ExitCrash       = 4   // a bug of ours
	ExitInterrupted = 130 // SIGINT
	ExitTerminated  = 143 // SIGTERM
)

// Process is the process as a value: nothing below touches package os for these.
type Process struct {
	Args   []string // without the program's name
	Env    func(string) (string, bool)
	Stdin  *os.File
	Stdout io.Writer
	Stderr io.Writer
	// Signals delivers interrupts; nil installs a handler of our own.
	Signals <-chan os.Signal
	// Exit leaves at once, for a third signal.
	Exit func(int)
}

// World is what a program brings: what it defines in Go, and what its files may
// name.
type World struct {
	Name      string // of the command, for help
	Version   string
	Suite     assay.Suite
	Sandboxes *sandbox.Registry
	Agents    *agent.Registry
	// Shapes are further files that `schema` knows, by name.
	Shapes map[string]any
}

// fileOf returns w as a file where it is one.
func fileOf(w io.Writer) *os.File {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	return f
}

func (p *Process) env(name string) string {
	v, _ := p.Env(name)
	return v
}

// codeOf decides the exit code of an error that ended a command.
func codeOf(err error) int {
	var exit exitError
	switch {
	case err == nil:
		return ExitGreen
	case errors.As(err, &exit):
		return int(exit)
	}
	worst := ExitConfig
	for _, e := range split(err) {
		switch fault.ClassOf(e) {
		case fault.Config:
		case fault.Transient, fault.Resource:
			worst = max(worst, ExitInfra)
		case fault.Canceled:
			if fault.CodeOf(e) == "interrupted" {
				return ExitInterrupted
			}
			worst = max(worst, ExitInfra)
		default:
			worst = max(worst, ExitInfra)
		}
		if fault.CodeOf(e) == "panic" {
			return ExitCrash
		}
	}
	return worst
}

// exitError is an exit code whose reason was already shown.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// split opens a joined error.
func split(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range j.Unwrap() {
			out = append(out, split(e)...)
		}
		return out
	}
	return []error{err}
}

// show prints errors: what happened, and what to do. The codes are stable.
func (p *Process) show(err error) {
	var exit exitError
	if err == nil || errors.As(err, &exit) {
		return
	}
	if problems := discover.ProblemsOf(err); len(problems) > 0 {
		fmt.Fprintf(p.Stderr, "error: %s\n", strings.TrimSpace(sandbox.StripControl(err.Error())))
		if fix := fault.FixOf(err); fix != "" {
			fmt.Fprintf(p.Stderr, "fix: %s\n", fix)
		}
		return
	}
	for _, e := range split(err) {
		code := ""
		if c := fault.CodeOf(e); c != "" {
			code = " [" + c + "]"
		}
		fmt.Fprintf(p.Stderr, "error: %s%s\n", strings.TrimSpace(sandbox.StripControl(e.Error())), code)
		if fix := fault.FixOf(e); fix != "" {
			fmt.Fprintf(p.Stderr, "fix: %s\n", fix)
		}
	}
}
