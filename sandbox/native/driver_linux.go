package native

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"sync"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guestbox"
	"assay/sandbox"
)

// driver is one live sandbox.
type driver struct {
	guestbox.Box
	p       *Provider
	id      string
	workdir string
	res     sandbox.Resources
	size    int64
	proc    *process
	cg      *group
	proxy   *proxy
	box     *box // nil: the files are in memory

	mu      sync.Mutex
	stopped bool
	death   error

	stopping sync.Mutex
	finished bool
}

// ID is unique on this machine and boot.
func (d *driver) ID() string { return d.id }

// Workdir is the directory in which the agent works.
func (d *driver) Workdir() string { return d.workdir }

// makeWorkdir makes the working directory, or takes the one that is there.
func (d *driver) makeWorkdir(ctx context.Context) error {
	st, err := d.Look(ctx, d.workdir)
	switch {
	case fault.CodeOf(err) == guest.CodeNotFound:
		var none bytes.Buffer
		if err := tar.NewWriter(&none).Close(); err != nil {
			return err
		}
		return d.Put(ctx, d.workdir, &none)
	case err != nil:
		return d.Failed(ctx, err)
	case st.Type != "dir":
		return fault.Configf("sandbox.workdir", "Choose another `workdir`.", "the working directory %s is no directory", d.workdir)
	}
	return nil
}

// Stop ends every process and with the last of them the sandbox's file systems.
func (d *driver) Stop(ctx context.Context) error { return d.end(ctx, true) }

// end ends every process. With remove, files on disk go too.
func (d *driver) end(ctx context.Context, remove bool) error {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.stopping.Lock()
	defer d.stopping.Unlock()
	if d.finished {
		return nil
	}
	if d.Client != nil {
		_ = d.Client.Close() // ends the readers; the kill below does not depend on it
	}
	if d.proxy != nil {
		d.proxy.close()
	} else if d.proc.way != nil {
		_ = d.proc.way.Close()
	}
	if err := d.proc.end(ctx); err != nil {
		return &fault.Error{Class: fault.Resource, Code: "sandbox-stop-failed", What: "wait for the end of sandbox " + d.id, Err: err}
	}
	if err := d.cg.remove(ctx); err != nil {
		return &fault.Error{Class: fault.Resource, Code: "sandbox-stop-failed", What: "remove the cgroup of sandbox " + d.id, Err: err}
	}
	if remove {
		if err := d.box.remove(); err != nil {
			return &fault.Error{Class: fault.Resource, Code: "sandbox-stop-failed", What: "remove the files of sandbox " + d.id, Err: err}
		}
	}
	d.box.release()
	d.finished = true
	d.p.delist(d.id)
	return nil
}

func (d *driver) isStopped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stopped
}

// Health says how the sandbox is doing. The codes are "sandbox-stopped", "oom",
// "sandbox-expired" and "sandbox-exited".
func (d *driver) Health(context.Context) error {
	switch {
	case d.isStopped():
		return &fault.Error{Code: "sandbox-stopped", What: "sandbox " + d.id + " was stopped", Err: sandbox.ErrUnusable}
	case !d.proc.ended():
		return nil
	}
	return d.obituary()
}

// obituary says why the first process ended.
func (d *driver) obituary() error {
	if d.cg.oomKills() > 0 {
		return &fault.Error{Class: fault.Resource, Code: "oom", What: fmt.Sprintf("sandbox %s ran out of its %d MiB of memory", d.id, d.res.Memory>>20), Fix: "Raise `resources.memory`.", Err: sandbox.ErrUnusable}
	}
	if d.proc.status() == guest.ExitExpired {
		return guestbox.Expired("sandbox " + d.id)
	}
	return &fault.Error{Code: "sandbox-exited", What: "the first process of sandbox " + d.id + " ended", Err: sandbox.ErrUnusable}
}

// gone explains an operation that failed because the exec server is gone.
// Whatever may be left of the sandbox is ended first: nobody can use it again.
func (d *driver) gone(ctx context.Context, err error) error {
	if d.isStopped() {
		return fmt.Errorf("%w (%w)", d.Health(ctx), err)
	}
	d.mu.Lock()
	death := d.death
	d.mu.Unlock()
	if death == nil {
		clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", endLimit, "built-in")
		defer cancel()
		_ = d.proc.end(clean) // Stop says it again
		death = d.obituary()
		d.mu.Lock()
		d.death = death
		d.mu.Unlock()
	}
	return &fault.Error{Class: fault.ClassOf(death), Code: fault.CodeOf(death), Fix: fault.FixOf(death), Err: fmt.Errorf("%w (%w)", death, err)}
}

// Denied lists the hosts that the sandbox asked for and was not given, in order
// of the first time.
func (d *driver) Denied() []string {
	if d.proxy == nil {
		return nil
	}
	return d.proxy.deniedHosts()
}

var (
	_ sandbox.Driver       = (*driver)(nil)
	_ sandbox.Environer    = (*driver)(nil)
	_ sandbox.Stater       = (*driver)(nil)
	_ sandbox.Tracker      = (*driver)(nil)
	_ sandbox.ProcessEnder = (*driver)(nil)
	_ sandbox.Digester     = (*driver)(nil)
	_ sandbox.Lifetimer    = (*driver)(nil)
	_ sandbox.Remover      = (*driver)(nil)
	_ sandbox.Reporter     = (*driver)(nil)
)
