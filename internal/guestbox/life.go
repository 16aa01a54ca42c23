package guestbox

import (
	"context"
	"time"

	"assay/fault"
	"assay/sandbox"
)

// Unlimited is how long a sandbox without a lifetime is said to live beyond what
// was asked: it lives until it is stopped.
const Unlimited = 24 * time.Hour

// Limit makes the exec server end the sandbox by itself when its lifetime is
// over; 0 is no limit.
func (b *Box) Limit(ctx context.Context, lifetime time.Duration) error {
	if lifetime <= 0 {
		return nil
	}
	_, _, err := b.Client.Live(ctx, lifetime, 0)
	return b.Failed(ctx, err)
}

// EnsureLifetime asks the exec server to live for at least min longer and says
// when it ends by its own account.
func (b *Box) EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error) {
	asked := time.Now() // what is left counts from a later moment, so this errs on the safe side
	left, limited, err := b.Client.Live(ctx, 0, min)
	switch {
	case err != nil:
		return time.Time{}, b.Failed(ctx, err)
	case !limited:
		return asked.Add(min + Unlimited), nil
	}
	return asked.Add(left), nil
}

// Expired is the error of a sandbox whose lifetime is over.
func Expired(what string) error {
	return &fault.Error{Class: fault.Config, Code: "sandbox-expired", What: what + " reached the end of its lifetime", Fix: "Raise `lifetime` when the attempts need longer.", Err: sandbox.ErrUnusable}
}
