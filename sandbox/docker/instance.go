package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guestbox"
	"assay/sandbox"
)

// instance is one container, whatever way its commands are run.
type instance struct {
	p       *Provider
	e       *engine
	id      string
	img     *image
	workdir string

	mu      sync.Mutex
	stopped bool  // Stop was called
	gone    bool  // the container is known to be removed
	death   error // why the instance ended, once that was looked up

	removing sync.Mutex
}

// ID is the container's id.
func (i *instance) ID() string { return i.id }

// Workdir is the directory in which the agent works.
func (i *instance) Workdir() string { return i.workdir }

// stop destroys the container.
func (i *instance) stop(ctx context.Context) error {
	i.mu.Lock()
	i.stopped = true
	i.mu.Unlock()
	i.removing.Lock()
	defer i.removing.Unlock()
	if i.gone {
		return nil
	}
	if err := i.e.remove(ctx, i.id); err != nil {
		if cause := fault.Cause(ctx); cause != nil {
			return fmt.Errorf("remove container %.12s: %w", i.id, cause)
		}
		return &fault.Error{Class: classify(err), Code: "sandbox-stop-failed", What: fmt.Sprintf("remove container %.12s", i.id), Err: err}
	}
	i.gone = true
	return nil
}

func (i *instance) isStopped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stopped
}

// Health asks the engine how the container is doing. The codes are "oom",
// "sandbox-expired", "sandbox-exited", "sandbox-removed" and "sandbox.engine-unreachable"; all but
// the last match sandbox.ErrUnusable.
func (i *instance) Health(ctx context.Context) error {
	if i.isStopped() {
		return &fault.Error{Code: "sandbox-stopped", What: fmt.Sprintf("container %.12s was stopped", i.id), Err: sandbox.ErrUnusable}
	}
	c, err := i.e.inspect(ctx, i.id)
	switch {
	case statusOf(err) == http.StatusNotFound:
		return &fault.Error{Code: "sandbox-removed", What: fmt.Sprintf("container %.12s was removed by somebody else", i.id), Err: sandbox.ErrUnusable}
	case err != nil && ctx.Err() != nil && !errors.As(context.Cause(ctx), new(*fault.Timeout)):
		return context.Cause(ctx)
	case err != nil:
		return &fault.Error{Class: fault.Transient, Code: "sandbox.engine-unreachable", What: "ask the container engine about the sandbox", Fix: "Check that the container engine runs.", Err: err}
	}
	return i.judge(c)
}

func (i *instance) judge(c container.InspectResponse) error {
	st := c.State
	if st == nil || st.Running && !st.Dead {
		return nil
	}
	if st.OOMKilled {
		what := fmt.Sprintf("container %.12s ran out of memory", i.id)
		if c.HostConfig != nil && c.HostConfig.Memory > 0 {
			what = fmt.Sprintf("container %.12s ran out of its %d MiB of memory", i.id, c.HostConfig.Memory>>20)
		}
		return &fault.Error{Class: fault.Resource, Code: "oom", What: what, Fix: "Raise `resources.memory`.", Err: sandbox.ErrUnusable}
	}
	if st.ExitCode == guest.ExitExpired {
		return guestbox.Expired(fmt.Sprintf("container %.12s", i.id))
	}
	what := fmt.Sprintf("container %.12s exited with code %d", i.id, st.ExitCode)
	if st.Error != "" {
		what += ": " + sandbox.Tail(st.Error, 240)
	}
	return &fault.Error{Code: "sandbox-exited", What: what, Err: sandbox.ErrUnusable}
}

// settledHealth is Health of an instance whose stream has ended: the engine may
// notice the end of a container a little later than its client does.
func (i *instance) settledHealth(ctx context.Context) error {
	pause := 20 * time.Millisecond
	for range 6 {
		if err := i.Health(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			pause *= 2
		}
	}
	return nil
}

// afterlife bounds the look at an instance that broke.
const afterlife = 10 * time.Second

// broken explains an operation that failed because the instance ended: why it
// ended by the engine's account, looked up once, and ErrUnusable.
func (i *instance) broken(ctx context.Context, err error) error {
	i.mu.Lock()
	death := i.death
	i.mu.Unlock()
	if death == nil {
		look, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "engine-call", afterlife, "built-in")
		defer cancel()
		death = i.settledHealth(look)
		if death == nil {
			// It runs, but nobody can talk to it any more.
			death = &fault.Error{Class: fault.Transient, Code: "sandbox-stream-lost", What: fmt.Sprintf("the connection to container %.12s broke", i.id)}
		}
		i.mu.Lock()
		if i.death == nil && !i.stopped {
			i.death = death
		}
		i.mu.Unlock()
	}
	out := &fault.Error{Class: fault.ClassOf(death), Code: fault.CodeOf(death), Fix: fault.FixOf(death), Err: fmt.Errorf("%w (%w)", death, err)}
	if !errors.Is(out, sandbox.ErrUnusable) {
		out.Err = fmt.Errorf("%w: %w (%w)", sandbox.ErrUnusable, death, err)
	}
	return out
}
