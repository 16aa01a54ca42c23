// Package run is the conductor of one invocation: check, prepare, schedule,
// attempt, record. It decides nothing about a verdict and prints nothing.
package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/bake"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/redact"
	"assay/internal/schedule"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Options are what an invocation needs besides its plan.
type Options struct {
	Plan   *plan.Plan
	Writer *record.Writer
	Sink   event.Sink
	// Env reads host variables.
	Env func(name string) (string, bool)
	// Root is the project folder: host hooks run there and uploads are confined
	// to it. "" confines nothing.
	Root string
	// State is the folder for what is no result: kept sandboxes, leases and
	// teardown markers. "" has none of them.
	State string
	// Owner identifies this process on everything that is created.
	Owner sandbox.Owner
	// Tool is the version of assay.
	Tool string
	// Force ends when a second signal asks to stop sandboxes at once.
	Force context.Context
}

// Outcome is how an invocation ended.
type Outcome struct {
	Receipt record.Receipt
	// Red tells that a verdict is red or a slot has none that should have one.
	Red bool
	// Fatal is the error that ended the invocation early, or nil.
	Fatal error
	// Unready is set when no sandbox of the run could be prepared, so that no
	// attempt could start: Config when the user can fix all of it.
	Unready fault.Class
}

// Run executes a plan. ctx ends with cause attempt.ErrInterrupted on the first
// signal. The error is a failure before the first attempt; nothing was recorded
// then.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := checkSecrets(o); err != nil {
		return Outcome{}, err
	}
	if err := bake.CheckAll(ctx, o.Plan.Environments, o.Sink); err != nil {
		return Outcome{}, err
	}
	swept := sweep(ctx, o)
	defer swept(0)
	judges := seatJudges(ctx, o)
	oven := bake.New(o.Sink)
	oven.PrepareAll(ctx, o.Plan.Environments)
	for _, env := range o.Plan.Environments {
		if r := oven.Prepare(ctx, env); r.Err != nil && env.Default && fault.Cause(ctx) == nil {
			err := *r.Err
			err.Scope, err.What = fault.ScopeRun, fmt.Sprintf("%s; it is the sandbox of %s, so no attempt can start", r.Info.Headline, strings.Join(env.Levels, ", "))
			return Outcome{}, &err
		}
	}
	c := newConductor(o, oven)
	defer func() { _ = c.hub.Close() }() // spans that still come belong to nobody
	c.judges = judges
	if err := c.open(); err != nil {
		return Outcome{}, err
	}
	remindKept(o)
	c.heal(ctx)
	swept(sweepGrace)
	c.dispatch(ctx)
	swept(0)
	return c.close(ctx), nil
}

// checkSecrets refuses a run whose named variables are not set, before anything
// is paid for.
func checkSecrets(o Options) error {
	var missing []string
	for _, s := range o.Plan.Executing() {
		names := append(slices.Clone(s.Settings.SecretEnv), s.Experiment.Agent.SecretEnv...)
		if s.Environment != nil {
			names = append(names, s.Environment.Template.SecretEnv()...)
		}
		for _, name := range names {
			if _, ok := o.Env(name); !ok && !slices.Contains(missing, name) {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fault.Configf("secret-env-missing", "Set them in the environment and run again.", "environment variables named by secretEnv or credentialEnv are not set: %s", strings.Join(missing, ", "))
}

// open starts the runs in the record and announces the plan.
func (c *conductor) open() error {
	start := event.Start{Time: c.begin, Invocation: c.invocation, Concurrency: c.width()}
	for _, x := range c.o.Plan.Experiments {
		id := ref.NewRun()
		rw, err := c.o.Writer.StartRun(record.Run{
			ID: id, Experiment: x.ID, Invocation: c.invocation, StartedAt: time.Now(), Slots: slotRefs(x),
			Labels: x.Def.Labels, Context: describe(x), Tool: c.o.Tool, Owner: record.CurrentOwner(),
		}, members(x)...)
		if err != nil {
			c.abandon()
			return err
		}
		xr := &experiment{c: c, x: x, w: rw, id: id, mask: c.secrets(x), evals: map[ref.EvalID]*evalState{}, left: len(x.Executing())}
		xr.lanes = newLanes(xr)
		c.experiments = append(c.experiments, xr)
		c.receipt.RunIDs = append(c.receipt.RunIDs, id)
		carried := len(x.Carried())
		start.Total += len(x.Slots)
		start.Reused += carried
		e := event.Experiment{ID: x.ID, Run: id, Agent: x.Agent.Name, Model: x.Def.Model, Slots: len(x.Slots), Reused: carried, MaxConcurrency: x.Def.MaxConcurrency}
		if len(x.Slots) > 0 && x.Slots[0].Environment != nil {
			e.Sandbox = x.Slots[0].Environment.Label()
		}
		start.Experiments = append(start.Experiments, e)
	}
	c.o.Sink(start)
	for _, x := range c.experiments {
		x.adopt()
	}
	for _, n := range c.o.Plan.Notices {
		c.o.Sink(event.Notice{Code: n.Code, Level: "warning", Message: n.Message})
	}
	said := map[string]bool{}
	for _, env := range c.o.Plan.Environments {
		if env.Info.Warning != "" && !said[env.Info.Warning] {
			said[env.Info.Warning] = true
			c.o.Sink(event.Notice{Code: "provider-warning", Level: "warning", Message: env.Info.Warning})
		}
		if env.Info.Exclusive && !said[env.Info.Kind] {
			said[env.Info.Kind] = true
			c.o.Sink(event.Notice{Code: "provider-exclusive-serial", Level: "warning", Message: fmt.Sprintf("%s sandboxes run one attempt at a time, whatever the concurrency is", env.Info.Kind)})
		}
	}
	return nil
}

// abandon ends the runs that were declared before another could not be: nothing
// of them starts.
func (c *conductor) abandon() {
	for _, x := range c.experiments {
		e := record.End{CompletedAt: time.Now(), Completion: record.RunFailed}
		for _, s := range slotRefs(x.x) {
			e.NotRun = append(e.NotRun, record.NotRunSlot{SlotRef: s, Reason: "halted"})
		}
		_ = x.w.End(e) // what failed before is told; a run without an end shows as interrupted
	}
}

// secrets masks what the slots of an experiment may know.
func (c *conductor) secrets(x *plan.Experiment) *redact.Redactor {
	var names, values []string
	names = append(names, x.Agent.SecretEnv...)
	for _, s := range x.Slots {
		for _, name := range s.Settings.SecretEnv {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if s.Judge != nil && !slices.Contains(names, s.Judge.APIKeyEnv) {
			names = append(names, s.Judge.APIKeyEnv)
		}
	}
	for _, name := range names {
		if v, ok := c.o.Env(name); ok {
			values = append(values, v)
		}
	}
	return redact.New(values...)
}

func slotRefs(x *plan.Experiment) []record.SlotRef {
	out := make([]record.SlotRef, len(x.Slots))
	for i, s := range x.Slots {
		out[i] = record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal}
	}
	return out
}

// describe is the configuration as declared, for reports.
func describe(x *plan.Experiment) map[string]any {
	m := map[string]any{"agent": x.Agent.Name, "attempts": x.Attempts}
	set := func(k string, v any, ok bool) {
		if ok {
			m[k] = v
		}
	}
	set("model", x.Def.Model, x.Def.Model != "")
	set("reasoningEffort", x.Def.ReasoningEffort, x.Def.ReasoningEffort != "")
	set("flags", x.Def.Flags, len(x.Def.Flags) > 0)
	set("earlyExit", true, x.EarlyExit)
	set("budget", x.Budget, x.Budget > 0)
	set("maxConcurrency", x.Def.MaxConcurrency, x.Def.MaxConcurrency > 0)
	if len(x.Slots) > 0 && x.Slots[0].Environment != nil {
		m["sandbox"] = x.Slots[0].Environment.Label()
	}
	return m
}

// dispatch schedules every slot and waits for the last.
func (c *conductor) dispatch(ctx context.Context) {
	order := slices.Clone(c.experiments)
	rounds := func(x *experiment) int {
		width := c.width()
		if m := x.x.Def.MaxConcurrency; m > 0 && (width == 0 || m < width) {
			width = m
		}
		if width == 0 {
			width = 1
		}
		return (len(x.x.Executing()) + width - 1) / width
	}
	slices.SortStableFunc(order, func(a, b *experiment) int { return rounds(b) - rounds(a) })
	capacity := map[string]int{}
	if c.o.Plan.Width > 0 {
		capacity["all"] = c.o.Plan.Width
	}
	var jobs []schedule.Job
	for _, x := range order {
		if n := x.x.Def.MaxConcurrency; n > 0 {
			capacity["experiment:"+string(x.x.ID)] = n
		}
		for _, s := range x.x.Executing() {
			jobs = append(jobs, c.job(x, s, capacity))
		}
	}
	c.queued = time.Now()
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	c.stop = cancel
	schedule.New(capacity).Run(ctx, stop.Done(), jobs)
	c.teardowns.Wait()
}

// job makes the job of one slot, and sets the capacities of its tokens.
func (c *conductor) job(x *experiment, s *plan.Slot, capacity map[string]int) schedule.Job {
	tokens := []string{"all", "experiment:" + string(s.Ref.Experiment)}
	info := sandbox.Info{Kind: "direct", Concurrency: 10}
	if s.Environment != nil {
		info = s.Environment.Info
	}
	if c.o.Plan.Width == 0 {
		capacity["provider:"+info.Kind] = max(info.Concurrency, 1)
		tokens = append(tokens, "provider:"+info.Kind)
	}
	slots := []string{"all", "provider:" + info.Kind}
	places := slots // what a slot without a sandbox does not need
	if info.Exclusive {
		capacity["exclusive:"+info.Kind] = 1
		tokens = append(tokens, "exclusive:"+info.Kind)
		places = append(slices.Clone(slots), "exclusive:"+info.Kind)
	}
	if s.Group != nil {
		// One sandbox serves the members, in the order of the list.
		group := "group:" + string(s.Ref.Experiment) + "/" + s.Group.ID
		capacity[group] = 1
		tokens = append(tokens, group)
	}
	return schedule.Job{
		Tokens:  tokens,
		Admit:   func() bool { return x.admit(s) },
		Dropped: func() { x.notRun(s, c.why(), "") },
		Run: func(ctx context.Context, l *schedule.Lease) {
			without := func(tokens []string) yield {
				return func(ctx context.Context, what string, wait func(context.Context) error) error {
					c.o.Sink(event.Queued{Slot: s.Ref, For: what})
					return l.Yield(ctx, tokens, wait)
				}
			}
			x.execute(ctx, s, without(places), without(slots))
		},
	}
}

// why is the reason for which nothing more starts.
func (c *conductor) why() string {
	if c.failed() {
		return "halted"
	}
	return "interrupted"
}

// width is the global width as far as one number can tell.
func (c *conductor) width() int {
	if c.o.Plan.Width > 0 {
		return c.o.Plan.Width
	}
	n := 0
	seen := map[string]bool{}
	for _, s := range c.o.Plan.Executing() {
		kind, width := "direct", 10
		if s.Environment != nil {
			kind, width = s.Environment.Info.Kind, max(s.Environment.Info.Concurrency, 1)
		}
		if !seen[kind] {
			seen[kind] = true
			n += width
		}
	}
	return n
}

// close ends the runs and writes the receipt.
func (c *conductor) close(ctx context.Context) Outcome {
	out := Outcome{Fatal: c.fatal}
	interrupted := errors.Is(fault.Cause(ctx), attempt.ErrInterrupted)
	c.receipt.Completion = record.Completed
	for _, x := range c.experiments {
		completion, err := x.end(interrupted)
		if err != nil {
			out.Fatal = errors.Join(out.Fatal, err)
		}
		if completion == record.RunFailed && c.receipt.Completion == record.Completed {
			c.receipt.Completion = record.RunFailed
		}
		out.Red = out.Red || x.red()
	}
	if out.Fatal != nil {
		c.receipt.Completion, out.Red = record.RunFailed, true
	}
	if interrupted {
		c.receipt.Completion, out.Red = record.Interrupted, true
	}
	out.Unready = c.unready()
	now := time.Now()
	c.receipt.CompletedAt = &now
	out.Receipt = c.receipt
	c.o.Sink(event.End{Time: now, Receipt: c.receipt, Conclusion: c.conclusion(out), RecordRoot: c.o.Writer.Root()})
	return out
}

// unready judges a run in which every start point failed.
func (c *conductor) unready() fault.Class {
	class := fault.Unknown
	for _, s := range c.o.Plan.Executing() {
		if s.Environment == nil {
			return fault.Unknown
		}
	}
	for _, env := range c.o.Plan.Environments {
		r := c.oven.Prepare(context.Background(), env) // remembered
		switch {
		case r.Err == nil:
			return fault.Unknown
		case r.Err.Class != fault.Config:
			class = fault.Resource
		case class == fault.Unknown:
			class = fault.Config
		}
	}
	return class
}

// conclusion is the outcome in one word. It agrees with the exit code.
func (c *conductor) conclusion(out Outcome) event.Conclusion {
	var failed, errored, unmeasured bool
	for _, x := range c.experiments {
		f, e, u := x.reds()
		failed, errored, unmeasured = failed || f, errored || e, unmeasured || u
	}
	switch {
	case out.Receipt.Completion == record.Interrupted:
		return event.ConcludedInterrupted
	case errored:
		return event.ConcludedErrored
	case failed:
		return event.ConcludedFailed
	case unmeasured, out.Red:
		return event.ConcludedIncomplete
	default:
		return event.ConcludedPassed
	}
}
