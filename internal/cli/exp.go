package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"assay"
	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/board"
	"assay/internal/dash"
	"assay/internal/emit"
	"assay/internal/event"
	"assay/internal/jsonstream"
	"assay/internal/keep"
	"assay/internal/plain"
	"assay/internal/plan"
	"assay/internal/run"
	"assay/record"
	"assay/sandbox"
)

type expOptions struct {
	sel       plan.Selection
	dry, json bool
	record    string
	early     bool
	noEarly   bool
	keep      string
	teardown  teardownOptions
	rerun     string
	agent     string
	model     string
}

func (a *app) exp() *cobra.Command {
	var o expOptions
	c := &cobra.Command{
		Use:   "exp [experiment] [eval-prefix…]",
		Short: "Run experiments",
		Long: "Run experiments: prepare each sandbox, run the attempts, grade them and record the results.\n\n" +
			"Results that still hold are carried instead of run again: the same command resumes what was interrupted.\n\n" +
			"The first argument selects experiments: an id, a folder, a folder and the start of a name, or a file.\n" +
			"Further arguments narrow the evals; each must match at least one.\n\n" +
			"Exit codes: 0 all green, 1 red or incomplete, 2 you can fix it, 3 infrastructure could not be readied,\n" +
			"4 a crash, 130 interrupted, 143 terminated. The first Ctrl-C stops starting and cleans up, the second\n" +
			"stops the sandboxes at once, the third leaves.",
		Example: "  " + a.w.Name + " exp                      everything\n" +
			"  " + a.w.Name + " exp codex/small fix-      the evals that start with fix-\n" +
			"  " + a.w.Name + " exp codex --dry           what would run, and why; costs nothing\n" +
			"  " + a.w.Name + " exp codex --rerun         carry what passed, run what failed again\n" +
			"  " + a.w.Name + " exp codex --rerun all     carry nothing\n" +
			"  " + a.w.Name + " exp codex --attempts 5 --max-concurrency 8",
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.sel.Experiment, o.sel.Evals = args[0], args[1:]
			}
			if err := o.check(c); err != nil {
				return err
			}
			if o.teardown.run {
				return a.tearDown(c.Context(), o)
			}
			return a.runExp(c.Context(), o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.dry, "dry", false, "print the plan with a reason per slot; create nothing")
	f.BoolVar(&o.json, "json", false, "machine output: one JSON event a line, a receipt last (with --dry: one document)")
	f.IntVar(&o.sel.MaxConcurrency, "max-concurrency", 0, "global width, over the providers' own")
	f.IntVar(&o.sel.Attempts, "attempts", 0, "attempts per eval, over the experiment's own")
	f.DurationVar(&o.sel.Timeout, "timeout", 0, "limit of one attempt, such as 20m, over all others")
	f.Float64Var(&o.sel.Budget, "budget", 0, "USD per experiment after which nothing more starts")
	f.StringSliceVar(&o.sel.Tags, "tag", nil, "only evals with this tag (repeatable)")
	f.StringVar(&o.record, "record", "", "folder of the record, taken exactly as given")
	f.BoolVar(&o.early, "early-exit", false, "stop an eval's attempts after the first pass")
	f.BoolVar(&o.noEarly, "no-early-exit", false, "run all attempts whatever the experiment says")
	f.StringVar(&o.rerun, "rerun", "", "also run again what failed (--rerun), or everything (--rerun all)")
	f.Lookup("rerun").NoOptDefVal = string(plan.RerunFailed)
	f.StringVar(&o.keep, "keep-sandbox", "", "keep the sandboxes of failed and errored attempts (--keep-sandbox), or of all (--keep-sandbox all)")
	f.Lookup("keep-sandbox").NoOptDefVal = keep.Failed
	o.teardown.flags(c)
	f.StringVar(&o.agent, "agent", "", "")
	f.StringVar(&o.model, "model", "", "")
	for _, hidden := range []string{"agent", "model"} {
		f.Lookup(hidden).Hidden = true
	}
	c.AddCommand(a.expList(), a.expRename())
	return c
}

// check refuses flags that make no sense before anything is touched.
func (o *expOptions) check(c *cobra.Command) error {
	changed := c.Flags().Changed
	switch {
	case changed("agent"), changed("model"):
		return fault.Configf("usage", "Change `agent:` or `model:` in the experiment's file, or copy the file: one file is one configuration.", "an experiment's agent and model cannot be set by a flag")
	case changed("rerun") && o.rerun != string(plan.RerunFailed) && o.rerun != string(plan.RerunAll):
		return fault.Configf("usage", "Give --rerun or --rerun all.", "--rerun cannot be %q", o.rerun)
	case o.early && o.noEarly:
		return fault.Configf("usage", "Give one of them.", "--early-exit and --no-early-exit exclude each other")
	case changed("attempts") && o.sel.Attempts < 1, changed("max-concurrency") && o.sel.MaxConcurrency < 1:
		return fault.Configf("usage", "Give a number from 1.", "--attempts and --max-concurrency start at 1")
	case changed("record") && o.record == "":
		return fault.Configf("usage", "Name a folder, or leave --record out.", "--record names no folder")
	case changed("timeout") && o.sel.Timeout <= 0:
		return fault.Configf("usage", "Give a duration such as 90s or 20m.", "--timeout must be positive")
	case changed("budget") && o.sel.Budget <= 0:
		return fault.Configf("usage", "Give an amount of USD.", "--budget must be positive")
	}
	if err := keep.CheckLevel(o.keep); err != nil {
		return err
	}
	o.sel.Rerun, o.sel.KeepSandbox = plan.Rerun(o.rerun), o.keep
	if o.early || o.noEarly {
		o.sel.EarlyExit = &o.early
	}
	return o.teardown.check(o, changed)
}

func (a *app) runExp(ctx context.Context, o expOptions) error {
	suite, err := a.suite(ctx)
	if err != nil {
		return err
	}
	root, err := a.recordRoot(suite, o.record)
	if err != nil {
		return err
	}
	if o.dry {
		return a.dry(ctx, suite, root, o)
	}
	p, err := plan.Link(ctx, suite, o.sel, nil)
	if err != nil {
		return err
	}
	writer, err := record.Open(root, "exp")
	if err != nil {
		return err
	}
	defer writer.Close()
	// Under the lock: what is carried is what is there when the run starts.
	known, err := newPrior(ctx, root, pairsOf(p))
	if err != nil {
		return err
	}
	p.Adopt(known)
	return a.execute(ctx, suite, p, writer, o)
}

// view shows a run.
type view interface {
	Handle(event.Event)
	Close() error
}

// restorer is a view that changed the terminal.
type restorer interface{ Restore() }

func (a *app) view(json bool, recordFlag string) view {
	stdout := fileOf(a.p.Stdout)
	show := []string{a.w.Name}
	if a.dir != "." {
		show = append(show, "-C", a.dir)
	}
	show = append(show, "show")
	if recordFlag != "" {
		show = append(show, "--record", recordFlag)
	}
	again := append([]string{a.w.Name}, withoutRerun(a.p.Args)...)
	bo := board.Options{Command: typed(again), Rerun: typed(append(again, "--rerun")), Show: typed(show)}
	switch {
	case json:
		return &startFirst{view: jsonstream.New(a.p.Stdout, jsonstream.Options{})}
	case stdout != nil && dash.Usable(stdout, a.p.env):
		_, noColor := a.p.Env("NO_COLOR")
		return dash.New(stdout, dash.Options{Options: bo, Input: a.p.Stdin, NoColor: noColor})
	default:
		return plain.New(a.p.Stdout, plain.Options{Options: bo})
	}
}

func (a *app) execute(ctx context.Context, suite *assay.Suite, p *plan.Plan, writer *record.Writer, o expOptions) error {
	v := a.view(o.json, o.record)
	if r, ok := v.(restorer); ok {
		leave := a.p.Exit
		a.p.Exit = func(code int) { r.Restore(); leave(code) }
		defer r.Restore()
	}
	in := a.interrupts(ctx, v.Handle)
	defer in.close()
	left := a.reporting(writer.Root(), v.Handle)
	out, err := run.Run(in.work, run.Options{
		Plan: p, Writer: writer, Sink: left.Handle, Env: a.p.Env, Root: suite.Root, State: filepath.Join(suite.Root, ".assay"), Owner: owner(), Tool: a.w.Version, Force: in.force,
	})
	verr := v.Close()
	left.finish(whyNothingRan(err))
	if verr != nil && !emit.Quiet(verr) {
		err = errors.Join(err, a.wrote(verr))
	}
	if code := in.code(); code != 0 {
		if err != nil && fault.CodeOf(err) != "interrupted" {
			a.p.show(err)
		}
		return exitError(code)
	}
	if err != nil {
		return err
	}
	if out.Fatal != nil {
		a.p.show(out.Fatal)
		return exitError(ExitRed)
	}
	switch {
	case out.Unready == fault.Config:
		return exitError(ExitConfig)
	case out.Unready != fault.Unknown:
		return exitError(ExitInfra)
	case out.Red:
		return exitError(ExitRed)
	}
	return nil
}

// withoutRerun are the arguments that go on where a run stopped: what was asked to
// run again has run.
func withoutRerun(args []string) []string {
	var out []string
	for _, arg := range valued(args) {
		if arg != "--rerun" && !strings.HasPrefix(arg, "--rerun=") {
			out = append(out, arg)
		}
	}
	return out
}

// typed renders a command as a user can type it again.
func typed(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = sandbox.Word(a)
	}
	return strings.Join(out, " ")
}

// startFirst holds back what happens before a run exists, so that a stream for
// machines begins with its start, and a run that never starts prints none.
type startFirst struct {
	view
	mu      sync.Mutex
	started bool
	held    []event.Event
}

func (s *startFirst) Handle(e event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := e.(event.Start); ok {
		s.started = true
		s.view.Handle(e)
		for _, h := range s.held {
			s.view.Handle(h)
		}
		s.held = nil
		return
	}
	if !s.started {
		s.held = append(s.held, e)
		return
	}
	s.view.Handle(e)
}

// owner identifies this process on what it creates.
func owner() sandbox.Owner {
	o := record.CurrentOwner()
	return sandbox.Owner{Host: o.Host, Boot: o.Boot, PIDNamespace: o.PIDNamespace, PID: o.PID, StartTime: o.Start}
}

// interrupts turns signals into the three levels.
type interrupts struct {
	work, force context.Context
	stop        func()
	last        atomic.Int32
}

// closeBound is how long closing work may take after a second signal.
const closeBound = 60 * time.Second

func (a *app) interrupts(ctx context.Context, tell func(event.Event)) *interrupts {
	in := &interrupts{}
	work, cancel := context.WithCancelCause(ctx)
	force, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	in.work, in.force = work, force
	signals := a.p.Signals
	release := func() {}
	if signals == nil {
		ch := make(chan os.Signal, 4)
		signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
		signals, release = ch, func() { signal.Stop(ch) }
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var bound <-chan time.Time
		for level := 1; ; level++ {
			select {
			case <-done:
				return
			case <-bound:
				level = 3
			case s := <-signals:
				code := ExitInterrupted
				if s == syscall.SIGTERM {
					code = ExitTerminated
				}
				in.last.Store(int32(code))
				tell(event.Interrupt{Signal: s.String(), Level: min(level, 3)})
			}
			switch level {
			case 1:
				cancel(attempt.ErrInterrupted)
			case 2:
				cut(attempt.ErrInterrupted)
				bound = time.After(closeBound)
			default:
				a.p.Exit(int(in.last.Load()))
				return
			}
		}
	}()
	in.stop = func() {
		release()
		close(done)
		<-ended
		cancel(nil)
		cut(nil)
	}
	return in
}

func (in *interrupts) close() { in.stop() }

// code is the exit code of the last signal, 0 for none.
func (in *interrupts) code() int { return int(in.last.Load()) }

// printJSON writes one document.
func (a *app) printJSON(doc any) error {
	enc := json.NewEncoder(a.p.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return a.wrote(enc.Encode(doc))
}
