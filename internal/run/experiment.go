package run

import (
	"context"
	"fmt"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/bake"
	"assay/internal/event"
	"assay/internal/lease"
	"assay/internal/otlp"
	"assay/internal/plan"
	"assay/internal/redact"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// conductor is the state of one invocation.
type conductor struct {
	o           Options
	oven        *bake.Oven
	judges      bench
	hub         otlp.Hub // of the spans of agents
	invocation  ref.InvocationID
	begin       time.Time
	queued      time.Time
	receipt     record.Receipt
	experiments []*experiment
	stop        context.CancelFunc
	teardowns   sync.WaitGroup // of experiments whose last slot is over

	mu    sync.Mutex
	fatal error
}

func newConductor(o Options, oven *bake.Oven) *conductor {
	c := &conductor{o: o, oven: oven, invocation: ref.NewInvocation(), begin: time.Now()}
	c.o.Owner.Invocation = c.invocation
	c.receipt = record.Receipt{InvocationID: c.invocation, StartedAt: c.begin}
	return c
}

// halt stops every further dispatch: a result that cannot be recorded must not
// be paid for.
func (c *conductor) halt(err error) {
	c.mu.Lock()
	first := c.fatal == nil
	if first {
		c.fatal = err
	}
	c.mu.Unlock()
	if first {
		c.o.Sink(event.Halted{Scope: "run", Message: err.Error()})
		c.stop()
	}
}

// failed tells that the run was halted.
func (c *conductor) failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal != nil
}

// experiment is the state of one run.
type experiment struct {
	c  *conductor
	x  *plan.Experiment
	w  *record.RunWriter
	id ref.RunID
	// mask replaces the values of the experiment's secrets in what its own hooks
	// say.
	mask *redact.Redactor

	lanes   *lanes
	closing sync.WaitGroup // of shared sandboxes that nobody comes for any more

	setupOnce    sync.Once
	setupDone    chan struct{} // closed when setup is over, nil when nobody asked for it
	setupErr     error
	setupEntered bool
	lease        *lease.Lease // of the shared state

	mu        sync.Mutex
	left      int // slots that have not ended
	evals     map[ref.EvalID]*evalState
	skipped   []record.NotRunSlot
	halted    string // why nothing more of this experiment starts
	spent     float64
	blind     int // attempts that ran the agent and told no cost
	overdrawn bool
	diags     []record.Diagnostic
	facts     record.Facts
	err       *record.ErrorInfo
	sealed    bool // the run has ended: late feedback is ignored
	ran       []record.Hook
	uncleaned string // what may have left the shared state half changed
}

// evalState is what is known of one eval of a run.
type evalState struct {
	passed, failed, errored, skipped int
	unmeasured                       int // slots without a result that should have one
	streak                           int
	code                             string // of the streak
	halted                           string
}

func (x *experiment) eval(id ref.EvalID) *evalState {
	e := x.evals[id]
	if e == nil {
		e = &evalState{}
		x.evals[id] = e
	}
	return e
}

// admit decides at the moment a slot could start whether it still should.
func (x *experiment) admit(s *plan.Slot) bool {
	fatal := x.c.failed()
	x.mu.Lock()
	e := x.eval(s.Ref.Eval)
	reason := ""
	switch {
	case fatal:
		reason = "halted"
	case x.halted != "":
		reason = x.halted
	case e.halted != "":
		reason = e.halted
	case x.lanes.stopped(s) != "":
		reason = x.lanes.stopped(s)
	case x.x.EarlyExit && e.passed > 0:
		reason = "early-exit"
	case x.x.Budget > 0 && x.spent >= x.x.Budget:
		reason = "budget"
		if !x.overdrawn {
			x.overdrawn = true
			x.c.o.Sink(event.Budget{Experiment: x.x.ID, SpentUSD: x.spent, Limit: x.x.Budget})
		}
	}
	x.mu.Unlock()
	if reason == "" {
		return true
	}
	x.notRun(s, reason, "")
	return false
}

// notRun ends a slot without a result.
func (x *experiment) notRun(s *plan.Slot, reason string, id ref.AttemptID) {
	x.mu.Lock()
	x.skipped = append(x.skipped, record.NotRunSlot{SlotRef: record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal}, Reason: reason, Attempt: id})
	if reason != "early-exit" {
		x.eval(s.Ref.Eval).unmeasured++
	}
	x.mu.Unlock()
	x.c.o.Sink(event.NotRun{Slot: s.Ref, Reason: reason})
	x.ended(s)
}

// ended counts a slot that is over without a sandbox. Shared sandboxes that nobody
// comes for any more are destroyed, and the last slot tears the experiment down
// after that. Nobody is held up for it.
func (x *experiment) ended(s *plan.Slot) {
	if x.lanes != nil {
		x.closing.Go(func() { x.lanes.over(s) })
	}
	x.counted()
}

// counted counts a slot that is over.
func (x *experiment) counted() {
	x.mu.Lock()
	x.left--
	last := x.left == 0
	x.mu.Unlock()
	if last {
		x.c.teardowns.Go(func() {
			x.closing.Wait()
			x.lanes.conclude()
			x.teardown()
			x.letGo()
		})
	}
}

// yield gives permits back while wait runs; what says for what.
type yield func(ctx context.Context, what string, wait func(context.Context) error) error

// execute runs one slot whose permits are held. early yields those that a slot
// holds before it has a sandbox, later those that it gives back while it has one.
func (x *experiment) execute(ctx context.Context, s *plan.Slot, early, later yield) {
	grader, err := x.c.judges.of(s)
	if err != nil {
		if fault.Cause(ctx) != nil {
			x.notRun(s, "interrupted", "")
			return
		}
		x.unjudged(s, err)
		return
	}
	if err := x.setup(ctx, s.Ref, early); err != nil {
		if fault.Cause(ctx) != nil {
			x.notRun(s, "interrupted", "")
			return
		}
		x.conclude(s, attempt.Result{Stillborn: true, Sealed: x.stillborn(s, &fault.Error{Class: fault.ClassOf(err), Code: setupCode(err), Stage: "experiment.setup", Fix: fault.FixOf(err), What: "setup of experiment " + string(x.x.ID), Err: err}, nil)})
		return
	}
	// While the setup ran, all other slots came as far as here: what a result
	// among them decides is asked again.
	if !x.admit(s) {
		return
	}
	var prepared sandbox.Prepared
	if s.Environment != nil {
		r := x.c.oven.Prepare(ctx, s.Environment)
		if r.Err != nil {
			if fault.Cause(ctx) != nil {
				x.notRun(s, "interrupted", "")
				return
			}
			x.conclude(s, attempt.Result{Stillborn: true, Sealed: x.stillborn(s, r.Err, r.Info)})
			return
		}
		prepared = r.Prepared
	}
	owner := x.c.o.Owner
	owner.Run, owner.Experiment = x.id, x.x.ID
	res := attempt.Run(ctx, s, attempt.Env{
		Run: x.id, Owner: owner, Sink: x.c.o.Sink, Prepared: prepared, Secret: x.c.o.Env, Yield: later,
		Force: x.c.o.Force, HostRoot: x.c.o.Root, Queued: x.c.queued, Judge: grader, Hub: &x.c.hub, Lane: x.lanes.of(s), Keep: x.c.keeping(),
	})
	x.soil(&res.Sealed.Attempt)
	if res.Interrupted {
		x.notRun(s, "interrupted", res.Sealed.Attempt.ID)
		return
	}
	x.conclude(s, res)
}

// stillborn is the attempt of a slot whose environment could not be produced.
func (x *experiment) stillborn(s *plan.Slot, err error, prep *record.PrepareError) record.Sealed {
	id := ref.NewAttempt()
	info := attempt.ErrorInfo(err, x.mask)
	if prep != nil {
		info.Prepare, info.Phase, info.Message, info.Cause = prep, "prepare", prep.Headline+": "+prep.Cause, ""
	}
	a := record.Attempt{
		ID: id, Locator: ref.LocatorOf(id), Run: x.id, Experiment: s.Ref.Experiment, Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal,
		StartedAt: time.Now(), Error: info,
	}
	a.Verdict = a.Fold()
	x.c.o.Sink(event.AttemptStarted{Time: a.StartedAt, Slot: s.Ref, Attempt: id, Locator: a.Locator})
	return record.Sealed{Attempt: a}
}

// conclude records an attempt, then tells of it, then acts on it.
func (x *experiment) conclude(s *plan.Slot, res attempt.Result) {
	if err := x.w.Seal(res.Sealed); err != nil {
		x.c.halt(fmt.Errorf("record the attempt of %s: %w", s.Ref, err))
		x.notRun(s, "halted", res.Sealed.Attempt.ID)
		return
	}
	a := &res.Sealed.Attempt
	x.c.o.Sink(event.AttemptDone{Time: time.Now(), Slot: s.Ref, Attempt: a})
	x.count(s, a, res)
	x.lanes.used(a)
	x.lanes.over(s) // still with the permits: what comes next finds the place empty
	x.counted()
}

// count folds an attempt into what decides further dispatch.
func (x *experiment) count(s *plan.Slot, a *record.Attempt, res attempt.Result) {
	x.mu.Lock()
	e := x.eval(s.Ref.Eval)
	code := ""
	switch a.Verdict {
	case record.Passed:
		e.passed++
	case record.Failed:
		e.failed++
	case record.Skipped:
		e.skipped++
	default:
		e.errored++
		if a.Error != nil {
			code = a.Error.Code
		}
	}
	if res.Stillborn {
		code = "" // every slot fails for the same known reason, once each
	}
	if code != "" && code == e.code {
		e.streak++
	} else {
		e.streak = 1
	}
	e.code = code
	var events []event.Event
	diag := func(d record.Diagnostic) {
		x.diags = append(x.diags, d)
		events = append(events, event.Diagnostic{Slot: ref.Slot{Experiment: x.x.ID}, Diagnostic: d})
	}
	halt := func(scope, message string) {
		events = append(events, event.Halted{Scope: scope, Slot: s.Ref, Message: message})
		diag(record.Diagnostic{Code: "dispatch-halted", Level: "error", Message: message, Count: 1})
	}
	if code != "" && e.streak >= 2 && e.passed == 0 && e.halted == "" {
		e.halted = "halted"
		halt("eval", fmt.Sprintf("no further attempt of eval %s starts: the error %s came %d times in a row", s.Ref.Eval, code, e.streak))
	}
	switch {
	case res.Scope == fault.ScopeEval && e.halted == "":
		e.halted = "halted"
		halt("eval", fmt.Sprintf("no further attempt of eval %s starts: %s", s.Ref.Eval, a.Error.Message))
	case res.Scope >= fault.ScopeExperiment && x.halted == "":
		x.halted = "halted"
		halt("experiment", fmt.Sprintf("no further attempt of experiment %s starts: %s", x.x.ID, a.Error.Message))
	}
	if a.CostUSD != nil {
		x.spent += *a.CostUSD
		if x.x.Budget > 0 && x.spent >= x.x.Budget && !x.overdrawn {
			x.overdrawn = true
			events = append(events, event.Budget{Experiment: x.x.ID, SpentUSD: x.spent, Limit: x.x.Budget})
		}
	} else if res.AgentRan && x.x.Budget > 0 {
		if x.blind++; x.blind == 3 {
			diag(record.Diagnostic{Code: "budget-unenforceable", Level: "warning", Message: fmt.Sprintf("the budget of experiment %s cannot be enforced: three attempts ran the agent and none told its cost", x.x.ID), Count: 1})
		}
	}
	x.mu.Unlock()
	for _, ev := range events {
		x.c.o.Sink(ev)
	}
}

// setup runs the experiment's own setup once, before its first attempt. Those
// who wait for it give their slot back.
func (x *experiment) setup(ctx context.Context, slot ref.Slot, wait yield) error {
	d := x.x.Def
	hooks := len(d.SetupCommands) > 0 || d.Setup != nil || hasTeardown(d)
	if !hooks && d.SharedState == "" {
		return nil
	}
	x.setupOnce.Do(func() {
		x.setupDone = make(chan struct{})
		go func() {
			defer close(x.setupDone)
			if x.setupErr = x.hold(ctx, slot); x.setupErr != nil || !hooks {
				return
			}
			x.setupErr = x.enter(ctx)
		}()
	})
	select {
	case <-x.setupDone:
		return x.setupErr
	default:
	}
	if err := wait(ctx, "experiment setup", func(context.Context) error { <-x.setupDone; return nil }); err != nil {
		return err
	}
	return x.setupErr
}

// enter runs the setup, whose teardown is owed from here on.
func (x *experiment) enter(ctx context.Context) error {
	d := x.x.Def
	if hasTeardown(d) {
		if err := x.c.duties().owe(marker{Experiment: x.x.ID, Run: x.id, Owner: *record.CurrentOwner(), EnteredAt: time.Now().UTC()}); err != nil {
			return &fault.Error{Class: fault.Resource, Code: "teardown-marker-failed", What: "write down that a teardown is owed", Fix: "Make the project's .assay folder writable.", Err: err}
		}
	}
	x.setupEntered = true
	begin := time.Now()
	x.c.o.Sink(event.ExperimentHook{Experiment: x.x.ID, Hook: "setup", Status: event.Started})
	err := attempt.Bounded(ctx, func(ctx context.Context) error {
		return x.hooks(ctx, "experiment.setup", d.SetupCommands, d.Setup)
	})
	x.noted("setup", begin, err)
	x.told("setup", err)
	return err
}

// setupCode keeps the code of a lease that could not be had: it is no failure of
// the author's setup.
func setupCode(err error) string {
	switch c := fault.CodeOf(err); c {
	case lease.CodeRecovery, "state-lease-lock", "teardown-marker-failed":
		return c
	}
	return "experiment-setup-failed"
}

func (x *experiment) told(hook string, err error) {
	ev := event.ExperimentHook{Experiment: x.x.ID, Hook: hook, Status: event.Done}
	if err != nil {
		ev.Status, ev.Err = event.Broken, x.mask.String(err.Error())
	}
	x.c.o.Sink(ev)
}

// hooks runs host commands and then a host func.
func (x *experiment) hooks(ctx context.Context, phase string, commands []sandbox.Command, f func(context.Context, sandbox.Notes) error) error {
	for _, c := range commands {
		if err := attempt.HostCommand(ctx, c, x.c.o.Root, map[string]string{"ASSAY_EXPERIMENT": string(x.x.ID)}, x.mask); err != nil {
			return err
		}
	}
	if f == nil {
		return nil
	}
	return f(ctx, notes{x, phase})
}

// teardown runs if and only if setup was entered. Its limit is its own, and code
// that ignores it is left behind.
func (x *experiment) teardown() {
	if x.setupDone == nil {
		return
	}
	<-x.setupDone
	d := x.x.Def
	if !x.setupEntered || !hasTeardown(d) {
		return
	}
	begin := time.Now()
	ctx, cancel := attempt.OnHost(x.c.o.Force)
	defer cancel()
	x.c.o.Sink(event.ExperimentHook{Experiment: x.x.ID, Hook: "teardown", Status: event.Started})
	err := attempt.Bounded(ctx, func(ctx context.Context) error {
		return x.hooks(ctx, "experiment.teardown", d.TeardownCommands, d.Teardown)
	})
	x.noted("teardown", begin, err)
	x.told("teardown", err)
	if err == nil {
		err = x.c.duties().done(x.x.ID, x.id)
	}
	if err == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.diags = append(x.diags, record.Diagnostic{Phase: "experiment.teardown", Code: "experiment-teardown-failed", Level: "error", Message: x.mask.String(err.Error()), Count: 1})
	if x.err != nil {
		return // what failed first is the reason
	}
	x.err = attempt.ErrorInfo(&fault.Error{Class: fault.ClassOf(err), Code: "experiment-teardown-failed", Stage: "experiment.teardown", Fix: fault.FixOf(err), What: "teardown of experiment " + string(x.x.ID), Err: err}, x.mask)
}

// end seals the run.
func (x *experiment) end(interrupted bool) (record.Completion, error) {
	x.mu.Lock()
	x.sealed = true
	e := record.End{CompletedAt: time.Now(), Completion: record.Completed, Diagnostics: x.diags, Facts: x.facts, Error: x.err, NotRun: x.skipped, Hooks: x.ran}
	x.mu.Unlock()
	switch {
	case interrupted:
		e.Completion = record.Interrupted
	case e.Error != nil || x.c.fatal != nil:
		e.Completion = record.RunFailed
	}
	return e.Completion, x.w.End(e)
}

// reds folds the evals: whether one failed, one is errored, and one has a slot
// without the result that it should have. With early exit one pass makes up for
// failures before it.
func (x *experiment) reds() (failed, errored, unmeasured bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	errored = x.err != nil
	for _, e := range x.evals {
		errored = errored || e.errored > 0
		unmeasured = unmeasured || e.unmeasured > 0
		failed = failed || e.failed > 0 && (!x.x.EarlyExit || e.passed == 0)
	}
	return failed, errored, unmeasured
}

// red tells whether anything of the run is not green.
func (x *experiment) red() bool {
	failed, errored, unmeasured := x.reds()
	return failed || errored || unmeasured
}

// notes are the feedback channels of an experiment's hooks.
type notes struct {
	x     *experiment
	phase string
}

func (n notes) Experiment() ref.ExperimentID { return n.x.x.ID }

func (n notes) Progress(p sandbox.Progress) {
	n.x.c.o.Sink(event.Progress{Slot: ref.Slot{Experiment: n.x.x.ID}, Message: sandbox.Tail(n.x.mask.String(p.Message), 1024), Current: p.Current, Total: p.Total})
}

func (n notes) Diagnostic(d sandbox.Diagnostic) error {
	if err := attempt.CheckDiagnostic(d); err != nil {
		return err
	}
	d.Message = n.x.mask.String(d.Message)
	n.x.mu.Lock()
	if n.x.sealed {
		n.x.mu.Unlock()
		return nil
	}
	var fresh bool
	n.x.diags, fresh = attempt.Fold(n.x.diags, n.phase, d)
	last := n.x.diags[len(n.x.diags)-1]
	if fresh {
		redact.Value(n.x.mask, &last)
		n.x.diags[len(n.x.diags)-1] = last
	}
	n.x.mu.Unlock()
	if fresh {
		n.x.c.o.Sink(event.Diagnostic{Slot: ref.Slot{Experiment: n.x.x.ID}, Diagnostic: last})
	}
	return nil
}

func (n notes) Fact(name string, value any) error {
	if err := record.CheckFactName(name); err != nil {
		return err
	}
	f, err := record.NewFact(value, time.Now())
	if err != nil {
		return err
	}
	redact.Value(n.x.mask, &f)
	n.x.mu.Lock()
	defer n.x.mu.Unlock()
	if n.x.sealed {
		return nil
	}
	if _, dup := n.x.facts[name]; dup {
		return &fault.Error{Class: fault.Config, Code: "record-custom-fact-duplicate", What: "the fact " + name + " was already recorded for this run", Fix: "Put several values into one JSON array."}
	}
	if n.x.facts == nil {
		n.x.facts = record.Facts{}
	}
	n.x.facts[name] = f
	return nil
}
