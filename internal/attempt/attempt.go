// Package attempt runs one slot from the creation of its sandbox to its
// verdict. It never fails, it concludes: a panic, a timeout and an
// infrastructure failure become an errored attempt.
//
// Every phase is one named statement of run; what must be undone is pushed on a
// stack when it is entered and swept, last first, each entry on its own bounded
// context.
package attempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/event"
	"assay/internal/ledger"
	"assay/internal/otlp"
	"assay/internal/plan"
	"assay/internal/pool"
	"assay/internal/redact"
	"assay/judge"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// The limits of closing work. They form a chain: stop < watchdog < cleanup.
const (
	StopLimit     = 8 * time.Second
	StopWatchdog  = 12 * time.Second
	CleanupLimit  = 30 * time.Second
	bodyPatience  = 5 * time.Second
	evidenceLimit = 30 * time.Second
)

// Env is what an attempt gets from the run.
type Env struct {
	Run   ref.RunID
	Owner sandbox.Owner
	// Sink gets what happens.
	Sink event.Sink
	// Prepared is the start point of the slot's environment.
	Prepared sandbox.Prepared
	// Secret reads a named host variable.
	Secret func(name string) (string, bool)
	// Yield gives the global slot back while wait runs, for back-off.
	Yield func(ctx context.Context, what string, wait func(context.Context) error) error
	// Force ends when a second signal asks to stop sandboxes at once; closing
	// work ends with it.
	Force context.Context
	// HostRoot confines uploads; "" confines nothing.
	HostRoot string
	// Queued is when the slot began to wait.
	Queued time.Time
	// Lane is set when the slot shares sandboxes with others.
	Lane *Lane
	// Keep says what becomes of the sandbox, nil when it is always stopped.
	Keep *Keeping
	// Judge is the judge of the slot, nil where it needs none.
	Judge *judge.Client
	// Hub receives the spans of agents, nil where nobody asked for them.
	Hub *otlp.Hub
}

// Result is what an attempt came to.
type Result struct {
	Sealed record.Sealed
	// Interrupted attempts have no verdict and are not recorded as attempts.
	Interrupted bool
	// Scope says what further work the error makes pointless.
	Scope fault.Scope
	// AgentRan tells that at least one turn was sent.
	AgentRan bool
	// Stillborn attempts never began: what they need could not be made ready.
	Stillborn bool
}

// ErrInterrupted is the cause of a context that a signal ended.
var ErrInterrupted = &fault.Error{Class: fault.Canceled, Code: "interrupted", What: "the run was interrupted"}

// attempt is the state of one run of a slot.
type attempt struct {
	slot  *plan.Slot
	env   Env
	agent agent.Agent
	info  agent.Info
	rec   record.Attempt
	red   *redact.Redactor
	begin time.Time

	t       *assay.T
	sb      *sandbox.Sandbox
	driver  sandbox.Driver
	scratch string
	secrets map[string]string
	undo    []undo
	box     *pool.Box // the shared sandbox, or nil
	spoiled string    // why a shared sandbox must not be used again
	cut     bool      // the run was interrupted
	ledger  *ledger.Ledger
	scope   fault.Scope

	// What follows is guarded by mu. While the eval's body runs, so is all of
	// rec, which the body changes through own and the engine leaves alone.
	mu       sync.Mutex
	phase    string
	commands []json.RawMessage
	events   []agent.Event
	facts    record.Facts
	diags    []record.Diagnostic
	noLedger error
	sessions []*agent.Session
	sent     []sentTurn
	tele     *telemetry
	spans    []record.Span
	// spansLeft counts the spans that are not among them.
	spansLeft int
	turns     int
	windows   int
	diffs     map[[2]int]*record.Diff
	retries   int
	left      bool // the body is over, or was given up
	closed    bool
}

// errLeft is what a body gets that was given up.
var errLeft = &fault.Error{Class: fault.Canceled, Code: "eval-over", What: "the eval's body was given up"}

// own changes the attempt for the eval's body. After the engine took the attempt
// back, a body that it gave up changes nothing any more.
func (a *attempt) own(change func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left {
		return errLeft
	}
	change()
	return nil
}

// undo is one entry of the closing stack.
type undo struct {
	phase, code string
	fatal       bool // its failure is an error of the attempt
	stop        bool // destroys the sandbox
	host        bool // works outside of the sandbox
	bounded     bool // keeps limits of its own, beyond limit
	limit       time.Duration
	do          func(context.Context) error
}

// Run runs a slot. ctx ends when the run is interrupted; its cause is
// ErrInterrupted then.
func Run(ctx context.Context, slot *plan.Slot, env Env) Result {
	id := ref.NewAttempt()
	a := &attempt{
		slot: slot, env: env, agent: slot.Experiment.Def.Agent, info: slot.Experiment.Agent, begin: time.Now(),
		facts: record.Facts{}, diffs: map[[2]int]*record.Diff{},
		rec: record.Attempt{
			ID: id, Locator: ref.LocatorOf(id), Run: env.Run, Experiment: slot.Ref.Experiment, Eval: slot.Ref.Eval,
			Ordinal: slot.Ref.Ordinal, StartedAt: time.Now(), Identity: slot.Identity.Clone(),
		},
	}
	a.env.Owner.Attempt, a.env.Owner.Eval = id, slot.Ref.Eval
	if !env.Queued.IsZero() {
		q := a.begin.Sub(env.Queued).Milliseconds()
		a.rec.QueuedMS = &q
	}
	a.emit(event.AttemptStarted{Time: a.begin, Slot: slot.Ref, Attempt: id, Locator: a.rec.Locator})
	main, cancel := ctx, context.CancelFunc(func() {})
	if slot.Timeout > 0 {
		main, cancel = fault.WithTimeout(ctx, "attempt-deadline", slot.Timeout, slot.TimeoutLayer)
	}
	defer cancel()
	err := a.guarded(func() error { return a.run(main) })
	if !interrupted(ctx) { // an interrupted attempt has no verdict and needs no evidence
		if cerr := a.guarded(func() error { return a.collect(main) }); err == nil {
			err = cerr
		}
	}
	measured := time.Since(a.begin).Milliseconds()
	cut := fault.Cause(main)
	// A signal that comes from here on finds an attempt that has ended.
	a.cut = interrupted(ctx)
	if err != nil && a.rec.Error == nil {
		reason := err // also where who is asked for more panics
		_ = a.guarded(func() error { reason = a.diagnose(ctx, err); return nil })
		a.fail(reason)
	}
	_ = a.guarded(func() error { a.companions(ctx); return nil }) // they decide nothing
	a.closeTelemetry()
	a.sweep()
	a.conclude(measured, cut)
	return Result{
		Sealed: a.seal(), Interrupted: a.cut && (err != nil || cut != nil),
		Scope: a.scope, AgentRan: a.turns > 0,
	}
}

// interrupted tells that a signal ended ctx.
func interrupted(ctx context.Context) bool { return errors.Is(fault.Cause(ctx), ErrInterrupted) }

func (a *attempt) emit(e event.Event) { a.env.Sink(e) }

// guarded turns a panic of engine, provider or agent code into an error.
func (a *attempt) guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &fault.Error{Code: "panic", Stage: a.current(), What: fmt.Sprintf("panic: %v", p), Err: errors.New(stack())}
		}
	}()
	return f()
}

// run is the main chain. It stops at the first phase that fails.
func (a *attempt) run(ctx context.Context) error {
	steps := []struct {
		phase string
		do    func(context.Context) error
		skip  bool
	}{
		{"sandbox.reset", a.over, a.info.Direct},
		{"sandbox.create", a.create, a.info.Direct},
		{"sandbox.setup", a.setup, a.info.Direct},
		{"sandbox.mark", a.mark, a.info.Direct},
		{"workspace.upload", a.upload, a.info.Direct},
		{"sandbox.prepare", a.prepare, a.info.Direct},
		{"agent.ensure", a.ensure, false},
		{"eval.setup", a.evalSetup, a.info.Direct},
		{"workspace.baseline", a.baseline, a.info.Direct},
		{"telemetry.configure", a.openTelemetry, a.info.Direct},
		{"agent.setup", a.agentSetup, false},
		{"eval.run", a.body, false},
	}
	for _, s := range steps {
		if s.skip {
			continue
		}
		if err := a.timed(ctx, s.phase, s.do); err != nil {
			return err
		}
	}
	return nil
}

// timed runs one phase and notes its time and how it ended. A phase that had
// nothing to do leaves no trace.
func (a *attempt) timed(ctx context.Context, phase string, do func(context.Context) error) error {
	p, err := a.measure(ctx, phase, do)
	if p != nil {
		a.rec.Phases = append(a.rec.Phases, *p)
	}
	return err
}

// measure runs one phase and returns what is to be noted of it.
func (a *attempt) measure(ctx context.Context, phase string, do func(context.Context) error) (*record.Phase, error) {
	a.mu.Lock()
	a.phase = phase
	a.mu.Unlock()
	a.emit(event.Phase{Slot: a.slot.Ref, Name: phase})
	start := time.Now()
	err := a.guarded(func() error {
		if cause := fault.Cause(ctx); cause != nil {
			return cause
		}
		return do(ctx)
	})
	if errors.Is(err, errNothing) {
		return nil, nil
	}
	p := &record.Phase{Name: phase, StartMS: start.Sub(a.begin).Milliseconds(), MS: time.Since(start).Milliseconds()}
	if err != nil {
		p.Outcome = "failed"
		if fault.Cause(ctx) != nil {
			p.Outcome = "canceled"
		}
		if fault.StageOf(err) == "" {
			err = &fault.Error{Class: fault.ClassOf(err), Code: fault.CodeOf(err), Scope: fault.ScopeOf(err), Fix: fault.FixOf(err), Stage: phase, Err: err}
		}
	}
	return p, err
}

// errNothing is returned by a phase that had nothing to do.
var errNothing = errors.New("nothing to do")

func (a *attempt) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.phase
}

// push puts an entry on the closing stack.
func (a *attempt) push(u undo) { a.undo = append(a.undo, u) }

// closing returns a fresh bounded context for closing work: the attempt's own
// deadline and interruption do not reach it, a second signal does.
func (a *attempt) closing(limit string, d time.Duration) (context.Context, context.CancelFunc) {
	return fault.WithTimeout(a.env.Force, limit, d, "built-in")
}

// next takes the last entry of the closing stack. After a second signal what
// works on the host waits until the sandbox is gone.
func (a *attempt) next() undo {
	at := len(a.undo) - 1
	if a.env.Force.Err() != nil {
		for i := at; i >= 0; i-- {
			if !a.undo[i].host {
				at = i
				break
			}
		}
	}
	u := a.undo[at]
	a.undo = slices.Delete(a.undo, at, at+1)
	return u
}

// sweep runs the closing stack. The primary outcome is fixed by now: what fails
// here is attached as a diagnostic, or is fatal where the author made cleanup a
// condition.
func (a *attempt) sweep() {
	for len(a.undo) > 0 {
		u := a.next()
		limit := u.limit
		if limit == 0 {
			limit = CleanupLimit
		}
		ctx, cancel := a.closing("cleanup-limit", limit)
		if u.stop {
			// A second signal makes everything else fail fast so that this
			// comes sooner; nothing takes its time away.
			cancel()
			ctx, cancel = fault.WithTimeout(context.WithoutCancel(a.env.Force), "stop-limit", limit, "built-in")
		}
		if u.host {
			cancel()
			ctx, cancel = OnHost(a.env.Force)
		}
		err := a.timed(context.WithoutCancel(ctx), u.phase, func(context.Context) error {
			if u.bounded {
				return u.do(ctx)
			}
			return Bounded(ctx, u.do)
		})
		cancel()
		if err == nil {
			continue
		}
		if a.spoiled == "" {
			a.spoiled = u.phase + " failed: " + sandbox.Tail(err.Error(), 200)
		}
		if u.fatal {
			fe := &fault.Error{Class: fault.ClassOf(err), Code: u.code, Stage: u.phase, Fix: fault.FixOf(err), Err: err}
			if a.rec.Error == nil {
				a.fail(fe)
				continue
			}
		}
		a.diagnostic(u.phase, sandbox.Diagnostic{Code: u.code, Level: sandbox.Error, Message: err.Error()})
	}
}

// errLeftGoroutine is the error of author code that did not return.
var errLeftGoroutine error = &fault.Error{Code: "goexit", What: "the code ended its goroutine instead of returning"}

// Bounded runs author code and leaves it behind when it does not end with its
// context. What it returns late is lost.
func Bounded(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		err := errLeftGoroutine
		defer func() {
			if p := recover(); p != nil {
				err = &fault.Error{Code: "panic", What: fmt.Sprintf("panic: %v", p), Err: errors.New(stack())}
			}
			done <- err
		}()
		err = do(ctx)
	}()
	select {
	case err := <-done:
		return named(ctx, err)
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return named(ctx, err)
	case <-time.After(StopWatchdog - StopLimit):
		return named(ctx, fault.Cause(ctx))
	}
}

// named gives an error that only says that its context ended the reason why it
// did, with a code.
func named(ctx context.Context, err error) error {
	why := fault.Cause(ctx)
	if why == nil || fault.CodeOf(err) != "" || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, why) {
		return err
	}
	if !errors.Is(err, why) {
		err = fmt.Errorf("%w: %w", why, err)
	}
	code := fault.CodeOf(why)
	if limit := (*fault.Timeout)(nil); errors.As(why, &limit) {
		code = limit.Limit
	}
	return &fault.Error{Class: fault.Canceled, Code: code, Err: err}
}

// fail sets the one execution error; the first stays.
func (a *attempt) fail(err error) {
	if a.rec.Error != nil {
		return
	}
	a.scope = fault.ScopeOf(err)
	a.rec.Error = ErrorInfo(err, a.red)
}

// diagnose asks the provider how the sandbox is after an abnormal end: out of
// memory, exited, removed and engine gone are different facts than what the
// failed operation saw.
func (a *attempt) diagnose(ctx context.Context, err error) error {
	if a.driver == nil || interrupted(ctx) {
		return err
	}
	rep, ok := sandbox.AsDriver[sandbox.Reporter](a.driver)
	if !ok {
		return err
	}
	check, cancel := a.closing("health-check", 5*time.Second)
	defer cancel()
	health := rep.Health(check)
	if health == nil || fault.CodeOf(health) == "" || fault.CodeOf(health) == fault.CodeOf(err) {
		return err
	}
	var limit *fault.Timeout
	if errors.As(err, &limit) && fault.CodeOf(health) != "oom" {
		return err // our own limit fired first and is the reason
	}
	return &fault.Error{Class: fault.ClassOf(health), Code: fault.CodeOf(health), Stage: fault.StageOf(err), Fix: fault.FixOf(health), Scope: fault.ScopeOf(err), What: health.Error(), Err: err}
}

// conclude fixes times and verdict.
func (a *attempt) conclude(measured int64, cut error) {
	var limit *fault.Timeout
	if errors.As(cut, &limit) {
		v := limit.Value.Milliseconds()
		a.rec.CensoredMS = &v
	} else if cut == nil {
		a.rec.DurationMS = &measured
	}
	a.rec.Verdict = a.rec.Fold()
}

// ErrorInfo renders an error for the record. Secrets are masked before the texts
// are cut: half of one is not recognised any more.
func ErrorInfo(err error, red *redact.Redactor) *record.ErrorInfo {
	code := fault.CodeOf(err)
	var limit *fault.Timeout
	if errors.As(err, &limit) && (code == "" || code == "command-timeout" && limit.Limit != code) {
		code = limit.Limit
	}
	if code == "" {
		code = "attempt-failed"
	}
	info := &record.ErrorInfo{
		Code: code, Phase: fault.StageOf(err), Message: clip(sandbox.StripControl(red.String(message(err))), 4096),
		Class: fault.ClassOf(err).String(), Fix: red.String(fault.FixOf(err)),
	}
	if s := fault.ScopeOf(err); s != fault.ScopeAttempt {
		info.Scope = s.String()
	}
	if limit != nil {
		info.Timeout = &record.TimeoutInfo{Limit: limit.Limit, ValueMS: limit.Value.Milliseconds(), Layer: limit.Layer}
	}
	inner := err
	for u := errors.Unwrap(inner); u != nil; u = errors.Unwrap(inner) {
		inner = u
	}
	if text := red.String(inner.Error()); text != info.Message {
		info.Cause = clip(sandbox.StripControl(text), 2048)
	}
	return info
}

// message is the text of err without stages: they are a field of their own.
func message(err error) string {
	var fe *fault.Error
	if e, ok := err.(*fault.Error); ok { //nolint: only the outermost layer is opened
		fe = e
	} else {
		return err.Error()
	}
	switch {
	case fe.Err == nil:
		if fe.What != "" {
			return fe.What
		}
		return fe.Code
	case fe.What == "":
		return message(fe.Err)
	default:
		return fe.What + ": " + message(fe.Err)
	}
}

// clip keeps the start and the end of s, about n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n*2/3], "") + " … " + strings.ToValidUTF8(s[len(s)-n/3:], "")
}

var _ assay.Host = (*attempt)(nil)
