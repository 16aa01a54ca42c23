package attempt

import (
	"context"
	"time"

	"assay/fault"
)

// forcedLimit is what is left for closing work on the host after a second signal.
// It is short, but not nothing: what was set up outside of the sandboxes, such as
// a tunnel or a paid service, nobody else releases.
const forcedLimit = 10 * time.Second

// OnHost returns the context of closing work outside of the sandboxes: bounded,
// and bounded more tightly from the moment when force ends.
func OnHost(force context.Context) (context.Context, context.CancelFunc) {
	ctx, done := fault.WithTimeout(context.WithoutCancel(force), "cleanup-limit", CleanupLimit, "built-in")
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-force.Done():
		}
		hurry := time.NewTimer(forcedLimit)
		defer hurry.Stop()
		select {
		case <-ctx.Done():
		case <-hurry.C:
			end(&fault.Timeout{Limit: "cleanup-limit", Value: forcedLimit, Layer: "built-in"})
		}
	}()
	return ctx, func() { end(nil); done() }
}
