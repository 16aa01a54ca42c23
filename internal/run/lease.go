package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"assay/internal/event"
	"assay/internal/lease"
	"assay/record"
	"assay/ref"
)

// hold takes the lease of the experiment's shared state, before anything is made
// that could touch it. slot is who waits, for the views.
func (x *experiment) hold(ctx context.Context, slot ref.Slot) error {
	key := x.x.Def.SharedState
	if key == "" || x.c.o.State == "" {
		return nil
	}
	h := lease.Holder{Owner: *record.CurrentOwner(), Experiment: x.x.ID, Run: x.id}
	l, err := x.c.leases().Acquire(ctx, key, h, func(r lease.Record) {
		x.c.o.Sink(event.LockWait{Slot: slot, Lock: "shared state " + key, Holder: r.String()})
		holder := r.String()
		if holder == "" {
			holder = "another process"
		}
		x.c.o.Sink(event.Notice{Code: "state-lease-waiting", Level: "info", Message: fmt.Sprintf("experiment %s waits for shared state %s, which %s holds", x.x.ID, key, holder)})
	})
	if err != nil {
		return err
	}
	x.lease = l
	return nil
}

// cleaning are the codes of diagnostics that say that something which may have
// touched a shared state was not cleaned up.
var cleaning = []string{"sandbox-stop-failed", "sandbox-teardown-fatal", "sandbox-close-failed", "sandbox-release-failed", "experiment-teardown-failed"}

// soil notes what an attempt could not clean up.
func (x *experiment) soil(a *record.Attempt) {
	if x.x.Def.SharedState == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.Error != nil && slices.Contains(cleaning, a.Error.Code) {
		x.uncleaned = a.Error.Code + ": " + a.Error.Message
	}
	for _, d := range a.Diagnostics {
		if slices.Contains(cleaning, d.Code) {
			x.uncleaned = d.Code + ": " + d.Message
		}
	}
}

// letGo releases the lease, after the teardown of everything. It stays behind for
// an explicit recovery when a cleanup failed.
func (x *experiment) letGo() {
	if x.lease == nil {
		return
	}
	x.mu.Lock()
	why := x.uncleaned
	for _, d := range x.diags {
		if slices.Contains(cleaning, d.Code) {
			why = d.Code + ": " + d.Message
		}
	}
	x.mu.Unlock()
	why = strings.TrimSpace(why)
	err := x.lease.Release(why)
	if why == "" && err == nil {
		return
	}
	r := x.lease.Record()
	message := fmt.Sprintf("shared state %s stays locked until it is recovered with `assay exp %s --teardown --recover-shared-state %s`: %s", r.Key, x.x.ID, r.Key, why)
	if err != nil {
		message = fmt.Sprintf("the lease of shared state %s could not be released: %v", r.Key, err)
	}
	d := record.Diagnostic{Phase: "experiment.teardown", Code: "state-lease-recovery-required", Level: "error", Message: message, Count: 1}
	x.mu.Lock()
	x.diags = append(x.diags, d)
	x.mu.Unlock()
	x.c.o.Sink(event.Notice{Code: d.Code, Level: "warning", Message: message})
}

// noted records how one of the experiment's own hooks went.
func (x *experiment) noted(name string, begin time.Time, err error) {
	h := record.Hook{Name: name, Outcome: "done", MS: time.Since(begin).Milliseconds()}
	if err != nil {
		h.Outcome = "failed"
	}
	x.mu.Lock()
	x.ran = append(x.ran, h)
	x.mu.Unlock()
}
