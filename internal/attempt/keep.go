package attempt

import (
	"context"
	"fmt"
	"time"

	"assay/internal/event"
	"assay/internal/keep"
	"assay/sandbox"
)

// Keeping says which sandboxes outlive their attempt, and where they are listed.
type Keeping struct {
	// Level is keep.Failed or keep.All.
	Level    string
	Registry keep.Registry
	// Record is the record root that will hold the attempt.
	Record string
	// Command is what people type, such as "assay".
	Command string
}

// keepLimit is how long letting go of a sandbox may take: some providers copy its
// files.
const keepLimit = 2 * time.Minute

// stopLimit bounds the end of the sandbox.
func (a *attempt) stopLimit() time.Duration {
	if a.env.Keep != nil {
		return keepLimit
	}
	return StopLimit
}

// stop destroys the sandbox, or lets it go when it is to be kept.
func (a *attempt) stop(ctx context.Context) error {
	if k := a.env.Keep; k != nil && !a.cut && keep.Wants(k.Level, a.rec.Fold()) && a.retain(ctx, k) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StopLimit)
	defer cancel()
	return a.sb.Stop(ctx)
}

// retain writes the sandbox into the registry, and only then gives up its
// ownership. It returns false when the sandbox still has to be stopped.
func (a *attempt) retain(ctx context.Context, k *Keeping) bool {
	warn := func(code, what string, err error) {
		a.diagnostic("sandbox.stop", sandbox.Diagnostic{Code: code, Level: sandbox.Warning, Message: fmt.Sprintf("%s: %v", what, err)})
	}
	s, ok := sandbox.AsDriver[sandbox.Suspender](a.driver)
	if !ok {
		warn("sandbox-keep-failed", "the sandbox is stopped and not kept", fmt.Errorf("a %s sandbox cannot be suspended", a.rec.Sandbox.Provider))
		return false
	}
	e := keep.Entry{
		ID: keep.IDOf(a.rec.Sandbox.Provider, a.driver.ID()), SandboxID: a.driver.ID(), Provider: a.rec.Sandbox.Provider,
		Experiment: a.rec.Experiment, Eval: a.rec.Eval, Ordinal: a.rec.Ordinal, Attempt: a.rec.ID, Run: a.rec.Run, Locator: a.rec.Locator,
		Verdict: a.rec.Fold(), Record: k.Record, KeptAt: time.Now().UTC(), Workdir: a.driver.Workdir(), User: a.slot.Settings.User, State: keep.Alive,
	}
	if err := k.Registry.Put(e); err != nil {
		warn("sandbox-keep-failed", "the sandbox is stopped and not kept, because the registry cannot be written", err)
		return false
	}
	a.rec.Sandbox.Kept = true
	asleep, err := s.Suspend(ctx)
	if err != nil {
		warn("sandbox-suspend-failed", "the kept sandbox could not be suspended and may still run", err)
		a.told(k, e)
		return true
	}
	first := e.ID
	e.State, e.SandboxID, e.ID = keep.Dormant, asleep.ID, keep.IDOf(e.Provider, asleep.ID)
	if !asleep.Expires.IsZero() {
		at := asleep.Expires.UTC()
		e.ExpiresAt = &at
	}
	if err := k.Registry.Put(e); err != nil {
		warn("sandbox-keep-failed", "the registry says that the kept sandbox runs, because it cannot be written", err)
		return true
	}
	if first != e.ID {
		if err := k.Registry.Forget(first); err != nil {
			warn("sandbox-keep-failed", "the registry lists the kept sandbox under an id that is gone, too", err)
		}
	}
	a.told(k, e)
	return true
}

func (a *attempt) told(k *Keeping, e keep.Entry) {
	a.emit(event.Notice{Code: "sandbox-kept", Level: "info", Message: fmt.Sprintf("kept the sandbox of %s (%s): `%s sandbox enter %s`", e.Slot(), e.Verdict, k.Command, e.ID)})
}
