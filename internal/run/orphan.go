package run

import (
	"context"
	"fmt"
	"time"

	"assay/internal/attempt"
	"assay/internal/event"
	"assay/internal/keep"
	"assay/internal/orphan"
	"assay/sandbox"
)

// Registry lists the kept sandboxes of a project's state folder.
func Registry(state string) keep.Registry { return keep.Registry{Dir: join(state, "sandboxes")} }

// sweepGrace is how long a run waits for the removal of what the dead left, once
// everything else is ready.
const sweepGrace = 2 * time.Second

// sweep removes what dead runs left at the providers of the plan, beside the
// preparation. The func it returns waits for the end, at most so long; 0 waits
// for as long as it takes.
func sweep(ctx context.Context, o Options) (wait func(time.Duration)) {
	var places []orphan.Place
	seen := map[string]bool{}
	for _, env := range o.Plan.Environments {
		id := fmt.Sprintf("%s %p", env.Info.Kind, env.Provider)
		if v, ok := env.Provider.(sandbox.Inventory); ok && !seen[id] {
			seen[id] = true
			places = append(places, orphan.Place{Kind: env.Info.Kind, Inventory: v})
		}
	}
	if o.State == "" || len(places) == 0 {
		return func(time.Duration) {}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		gone, err := orphan.Sweep(ctx, places, Registry(o.State))
		if len(gone) > 0 {
			o.Sink(event.Notice{Code: "orphans-removed", Level: "info", Message: "removed what runs that died had left: " + orphan.Counted(gone)})
		}
		if err != nil && ctx.Err() == nil {
			o.Sink(event.Notice{Code: "orphans-not-removed", Level: "warning", Message: fmt.Sprintf("what runs that died may have left could not be removed: %v; see `assay sandbox list --orphans`", err)})
		}
	}()
	return func(limit time.Duration) {
		if limit == 0 {
			<-over
			return
		}
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-over:
		case <-t.C:
		}
	}
}

// remindKept says once that kept sandboxes exist.
func remindKept(o Options) {
	if o.State == "" {
		return
	}
	all, _ := Registry(o.State).List() // what cannot be read is told by `sandbox list`
	running := 0
	for _, e := range all {
		if e.Now(time.Now()) == keep.Alive {
			running++
		}
	}
	if len(all) == 0 {
		return
	}
	verb := "exist"
	if len(all) == 1 {
		verb = "exists"
	}
	more := ""
	if running > 0 {
		more = fmt.Sprintf(", %d of them running", running)
	}
	o.Sink(event.Notice{Code: "sandboxes-kept", Level: "info", Message: fmt.Sprintf("%s %s%s: `assay sandbox list`", count(len(all), "kept sandbox"), verb, more)})
}

// keeping says what becomes of sandboxes after their attempts.
func (c *conductor) keeping() *attempt.Keeping {
	if c.o.Plan.Keep() == "" || c.o.State == "" {
		return nil
	}
	return &attempt.Keeping{Level: c.o.Plan.Keep(), Registry: Registry(c.o.State), Record: c.o.Writer.Root(), Command: "assay"}
}
