package attempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"assay/fault"
	"assay/internal/ledger"
	"assay/internal/plan"
	"assay/internal/pool"
	"assay/internal/redact"
	"assay/internal/snapshot"
	"assay/record"
	"assay/sandbox"
)

// Lane is how an attempt comes to a sandbox that others use before and after it.
// Its funcs are called while the attempt holds its permits.
type Lane struct {
	Pool *pool.Pool
	Key  string
	// MaxUses is how many attempts one sandbox serves; 0 is no limit.
	MaxUses int
	// Close destroys a sandbox with everything that its set-up made, and frees
	// its lane. why is a few words for people.
	Close func(ctx context.Context, b *pool.Box, why string)
	// Warn tells of the run as a whole.
	Warn func(sandbox.Diagnostic)
	// Lost tells that the sandbox cannot serve those who come after.
	Lost func()
}

// over takes an idle sandbox over: the provider confirms that it lives long
// enough, and its workdir goes back to the reset point. One that cannot be used
// again is destroyed, and the next is tried; without any there is nothing to do
// and a new one is made.
func (a *attempt) over(ctx context.Context) error {
	lane := a.env.Lane
	if lane == nil {
		return errNothing
	}
	for {
		b := lane.Pool.Take(lane.Key)
		if b == nil {
			return errNothing
		}
		var sb *sandbox.Sandbox
		// Nobody else has the sandbox now: a panic must not lose it.
		err := a.guarded(func() error {
			sb = sandbox.Next(b.Face, a.faceOptions())
			if err := a.confirm(ctx, b.Driver); err != nil {
				return err
			}
			return a.reset(ctx, sb, b)
		})
		if fault.CodeOf(err) == codeLifetime {
			lane.Close(ctx, b, "its life ends before another attempt would") // rotation is no event
			continue
		}
		if err == nil {
			b.Uses++
			b.Face = sb
			a.adopt(b)
			return nil
		}
		if cause := fault.Cause(ctx); cause != nil {
			lane.Close(ctx, b, "the attempt ended before it was handed over")
			return cause
		}
		lane.Warn(sandbox.Diagnostic{
			Code: "sandbox-reset-failed", Level: sandbox.Warning, DedupeKey: b.Driver.ID(),
			Message: fmt.Sprintf("%s sandbox %d (%s) is retired after %d attempts, because it cannot be made ready for another: %v", a.slot.Environment.Info.Kind, b.Ordinal, b.Driver.ID(), b.Uses, err),
		})
		lane.Close(ctx, b, "it could not be reset")
		if a.slot.Group != nil {
			lane.Lost()
			if a.slot.Group.OnUnavailable != "replace-sandbox" {
				return &fault.Error{Class: fault.ClassOf(err), Code: "eval-group-sandbox-lost", Fix: fault.FixOf(err), What: "the sandbox of eval group " + a.slot.Group.ID + " is lost", Err: err}
			}
		}
	}
}

// codeLifetime is the code of a sandbox that will not live long enough.
const codeLifetime = "sandbox-lifetime-insufficient"

// confirm asks the provider whether the sandbox outlives another attempt. Only
// the provider knows.
func (a *attempt) confirm(ctx context.Context, d sandbox.Driver) error {
	l, ok := sandbox.AsDriver[sandbox.Lifetimer](d)
	if !ok {
		if a.slot.Settings.Lifetime == 0 {
			return nil // a group's sandbox without a limit
		}
		return &fault.Error{Class: fault.Config, Code: "sandbox.reuse-unavailable", Scope: fault.ScopeExperiment, Fix: "Use another provider, or remove the reuse.", What: fmt.Sprintf("%s sandboxes cannot confirm how long they live", a.slot.Environment.Info.Kind)}
	}
	min := a.slot.Timeout + plan.LifetimeReserve
	if _, err := l.EnsureLifetime(ctx, min); err != nil {
		if cause := fault.Cause(ctx); cause != nil {
			return cause
		}
		return &fault.Error{
			Class: fault.ClassOf(err), Code: codeLifetime, Scope: fault.ScopeExperiment,
			Fix:  fmt.Sprintf("Raise the sandbox's `lifetime:` (now %s), or lower the timeout.", a.slot.Settings.Lifetime),
			What: fmt.Sprintf("the provider does not confirm that the sandbox lives for another %s", min.Round(time.Second)), Err: err,
		}
	}
	return nil
}

// reset makes the sandbox what it was at its reset point, as far as that is the
// workdir, and notes what else is different.
func (a *attempt) reset(ctx context.Context, sb *sandbox.Sandbox, b *pool.Box) error {
	l := ledger.Resume(sb, a.newScratch(), b.Point)
	if _, err := l.Reset(ctx, b.Point); err != nil {
		return err
	}
	return a.drift(ctx, l, sb, b)
}

// adopt makes a sandbox of the pool this attempt's own until it is released.
func (a *attempt) adopt(b *pool.Box) {
	a.box, a.driver, a.sb = b, b.Driver, b.Face
	if a.scratch == "" {
		a.newScratch()
	}
	env := a.slot.Environment
	a.rec.Sandbox = a.sandboxRecord(env)
	a.rec.Sandbox.ID, a.rec.Sandbox.Workdir = b.Driver.ID(), b.Driver.Workdir()
	a.rec.Sandbox.Ordinal, a.rec.Sandbox.Use, a.rec.Sandbox.Reused = b.Ordinal, b.Uses, b.Uses > 1
	a.push(undo{phase: "sandbox.release", code: "sandbox-release-failed", stop: true, bounded: true, limit: CleanupLimit, do: a.release})
	a.push(undo{phase: "sandbox.cleanup", code: "scratch-not-removed", do: func(ctx context.Context) error {
		return a.sb.Remove(ctx, a.scratch)
	}})
}

// mark ends the set-up of a new shared sandbox: from here it can be handed on.
func (a *attempt) mark(ctx context.Context) error {
	if a.box == nil || a.box.Marked {
		return errNothing
	}
	b := a.box
	l := ledger.Open(a.sb, a.scratch, a.rules())
	if _, err := l.Mark(ctx); err != nil {
		return fault.Wrap(err, fault.ClassOf(err), cause(err, "sandbox-mark-failed"), "record the state to which the sandbox goes back between attempts")
	}
	b.Point = l.Point()
	if err := a.unseen(ctx, b.Point.Store()); err != nil {
		return err
	}
	if err := a.confirm(ctx, b.Driver); err != nil {
		return err
	}
	var err error
	if b.Outside, err = l.Drift(ctx, snapshot.DriftQuery{}); err != nil {
		return err
	}
	b.Marked = true
	return nil
}

// unseen refuses a sandbox whose agent may read what is recorded of earlier
// attempts: it could copy what they did, or change the record of it.
func (a *attempt) unseen(ctx context.Context, store string) error {
	res, err := a.sb.RunShell(ctx, "test -r "+sandbox.Word(store+"/HEAD"), sandbox.CommandOptions{Label: "look for the ledger"})
	if err != nil {
		return err
	}
	if res.Code != 0 {
		return nil
	}
	return &fault.Error{
		Class: fault.Config, Code: "sandbox.reuse-root", Scope: fault.ScopeExperiment,
		Fix:  "Give the sandbox an ordinary `user:`, or remove the reuse. A native sandbox of an ordinary user needs subordinate ids: install uidmap.",
		What: "the agent would work as the user who keeps the ledger, so it could read what earlier attempts did in the same sandbox",
	}
}

// outside are the places beside the workdir in which work leaves traces: the
// agent's home and the shared ones whole, and where packages go near the top.
func outside(home string) []snapshot.DriftDir {
	dirs := []snapshot.DriftDir{{Path: "/tmp"}, {Path: "/var/tmp"}, {Path: "/dev/shm"}}
	if home != "" && home != "/" && home != "/tmp" {
		dirs = append(dirs, snapshot.DriftDir{Path: home})
	}
	for _, d := range []struct {
		path  string
		depth int
	}{{"/usr/local", 3}, {"/opt", 2}, {"/root", 2}, {"/etc", -1}, {"/usr/bin", -1}, {"/usr/sbin", -1}, {"/usr/lib", -1}, {"/usr/lib/node_modules", -1}, {"/usr/lib/python3/dist-packages", -1}, {"/var/lib/dpkg", -1}} {
		if d.path != home {
			dirs = append(dirs, snapshot.DriftDir{Path: d.path, Depth: d.depth})
		}
	}
	return dirs
}

// drift notes what is different outside the workdir since the reset point. It is
// a fact of the attempt that gets the sandbox; nothing is judged.
func (a *attempt) drift(ctx context.Context, l *ledger.Ledger, sb *sandbox.Sandbox, b *pool.Box) error {
	env, err := sb.Environ(ctx, "")
	if err != nil {
		return err
	}
	now, err := l.Drift(ctx, snapshot.DriftQuery{Since: b.Outside.At, Dirs: outside(env["HOME"]), Skip: []string{sb.Workdir(), b.Point.Store()}})
	if err != nil {
		return err
	}
	if now.At == 0 {
		return nil // this sandbox cannot look at itself
	}
	d := Drift{Use: b.Uses, Changed: now.Changed, Partial: now.Partial || now.Changed > len(now.Paths)}
	for _, p := range now.Paths {
		d.Paths = append(d.Paths, ledger.Printable(string(p)))
	}
	for _, p := range now.Ports {
		if !slices.Contains(b.Outside.Ports, p) {
			d.Ports = append(d.Ports, p)
		}
	}
	f, err := record.NewFact(d, time.Now())
	if err != nil {
		return err
	}
	return a.fact("assay.sandbox.drift", f)
}

// Drift is the fact assay.sandbox.drift: what was different outside the workdir
// when a used sandbox was handed to the attempt.
type Drift struct {
	// Use is how many attempts had used the sandbox.
	Use int `json:"use"`
	// Changed counts files that are newer than the reset point, and Paths names
	// the first of them.
	Changed int      `json:"changed"`
	Paths   []string `json:"paths,omitempty"`
	Partial bool     `json:"partial,omitempty"`
	// Ports are TCP ports on which something listens since.
	Ports []int `json:"ports,omitempty"`
}

// release gives the sandbox back for the next attempt, or destroys it where it
// cannot serve one. ctx bounds the decision; what is torn down then has limits of
// its own, and is waited for: until it is gone the lane is taken.
func (a *attempt) release(ctx context.Context) error {
	b, lane := a.box, a.env.Lane
	decided := make(chan string, 1)
	why := ""
	if err := Bounded(ctx, func(ctx context.Context) error { decided <- a.retirement(ctx); return nil }); err != nil {
		why = "whether it can be used again could not be found out: " + sandbox.Tail(err.Error(), 200)
	} else {
		why = <-decided
	}
	if why == "" && lane.MaxUses > 0 && b.Uses >= lane.MaxUses {
		lane.Close(ctx, b, fmt.Sprintf("it has served %d attempts", b.Uses))
		return nil
	}
	if why == "" {
		lane.Pool.Put(b)
		return nil
	}
	if b.Marked && !a.cut {
		a.diagnostic("sandbox.release", sandbox.Diagnostic{Code: "sandbox-retired", Level: sandbox.Warning, Message: "the sandbox is not used again: " + why})
	}
	lane.Close(ctx, b, why)
	if a.slot.Group != nil {
		lane.Lost()
	}
	return nil
}

// retirement is why the sandbox must not be used again, or "".
func (a *attempt) retirement(ctx context.Context) string {
	failed := a.rec.Error != nil // read now: it may be left behind
	switch {
	case !a.box.Marked:
		return "its set-up was not completed"
	case a.sb.Unusable() != nil:
		return sandbox.Tail(a.sb.Unusable().Error(), 200)
	case a.spoiled != "":
		return a.spoiled
	case a.cut:
		return "the run was interrupted"
	case failed && a.t == nil:
		return "the set-up of the attempt failed"
	}
	if a.slot.Eval.KeepProcesses && !failed {
		return ""
	}
	ps, err := a.sb.EndProcesses(ctx)
	switch {
	case err == nil:
		if f, ferr := record.NewFact(ps[:min(len(ps), 50)], time.Now()); len(ps) > 0 && ferr == nil {
			_ = a.fact("assay.processes.left", f) // it is the only one of its name
		}
		return ""
	case fault.CodeOf(err) == "processes-unsupported" && !failed:
		return ""
	default:
		return "what the attempt left running could not be ended: " + sandbox.Tail(err.Error(), 200)
	}
}

// Close undoes the set-up of a shared sandbox and destroys it, on limits of its
// own. notes are the run's; the errors are what did not work.
func Close(force context.Context, b *pool.Box, notes func(phase string) sandbox.Notes, red *redact.Redactor) error {
	var all []error
	for _, st := range b.Teardown {
		ctx, cancel := fault.WithTimeout(force, "cleanup-limit", CleanupLimit, "built-in")
		if onHost(st) {
			cancel()
			ctx, cancel = OnHost(force)
		}
		err := Bounded(ctx, func(ctx context.Context) error {
			return runStep(ctx, b.Face, notes("sandbox.teardown"), b.HostDir, red, st)
		})
		cancel()
		if err != nil {
			all = append(all, &fault.Error{Class: fault.ClassOf(err), Code: "sandbox-teardown-fatal", Stage: "sandbox.teardown", Fix: fault.FixOf(err), What: "teardown of the sandbox: " + sandbox.Tail(st.Label(), 120), Err: err})
		}
	}
	ctx, cancel := fault.WithTimeout(context.WithoutCancel(force), "stop-limit", StopLimit, "built-in")
	defer cancel()
	if err := Bounded(ctx, b.Face.Stop); err != nil {
		all = append(all, &fault.Error{Class: fault.ClassOf(err), Code: "sandbox-stop-failed", Stage: "sandbox.stop", Fix: fault.FixOf(err), What: "stop sandbox " + b.Driver.ID(), Err: err})
	}
	return errors.Join(all...)
}
