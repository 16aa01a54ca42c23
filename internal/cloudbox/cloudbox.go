// Package cloudbox is the part of a driver that is the same for every service
// that offers only commands and files: an exec server is uploaded at birth and
// reached through package relay, so that a cut connection loses nothing and
// every operation has one meaning everywhere.
package cloudbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/relay"
	"assay/internal/guestbox"
	"assay/sandbox"
)

// Machine is one instance as its service offers it.
type Machine interface {
	relay.Link
	// ID is the service's identifier.
	ID() string
	// Install places the exec server and, where the service cannot feed a
	// command, the first frames.
	Install(ctx context.Context, first []byte) error
	// Destroy removes the instance; one that is gone is no error.
	Destroy(ctx context.Context) error
	// Alive asks the service: nil while the instance runs. An error that
	// matches relay.ErrGone says that it does not.
	Alive(ctx context.Context) error
	// EnsureLifetime makes the instance live for at least min longer, or says
	// in the service's words why not.
	EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error)
}

// Options say how to open a machine.
type Options struct {
	Machine Machine
	// EarlyInput hands the first frames to Install.
	EarlyInput bool
	// User is the identity of commands; "" is the service's default.
	User string
	// Workdir is what the machine's attachments were told to make.
	Workdir string
	// Env is added to the environment that the service gives.
	Env map[string]string
	// Permit refuses identities.
	Permit func(name string, u guest.User) error
	Tunnel relay.Options
}

// Driver is a sandbox on a machine.
type Driver struct {
	guestbox.Box
	m       Machine
	t       *relay.Tunnel
	workdir string
	shells  map[string]relay.Shell
	ran     atomic.Bool // a command, which may have changed the shells

	mu      sync.Mutex
	stopped bool
	death   error

	stopping sync.Mutex
	gone     bool
}

// helloLimit bounds the wait for the exec server.
const helloLimit = 2 * time.Minute

// Open installs the exec server on a machine and connects to it. The machine is
// the caller's to destroy when it fails.
func Open(ctx context.Context, o Options) (*Driver, error) {
	hello, cancel := fault.WithTimeout(ctx, "engine-call", helloLimit, "built-in")
	defer cancel()
	d := &Driver{m: o.Machine, workdir: o.Workdir}
	d.t = relay.NewTunnel(o.Machine, o.Tunnel)
	type dialled struct {
		g   *guest.Client
		err error
	}
	dial := make(chan dialled, 1)
	dialCtx, stop := context.WithCancelCause(hello)
	defer stop(nil)
	go func() {
		g, err := guest.Dial(dialCtx, d.t, guest.Options{})
		dial <- dialled{g, err}
	}()
	fail := func(err error) (*Driver, error) {
		stop(err)
		if got := <-dial; got.g != nil {
			_ = got.g.Close() // closes the tunnel
		} else {
			_ = d.t.Close()
		}
		if cause := fault.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	var first []byte
	if o.EarlyInput {
		var err error
		if first, err = d.t.First(hello); err != nil {
			return fail(err)
		}
	}
	if err := o.Machine.Install(hello, first); err != nil {
		return fail(err)
	}
	d.t.Start()
	h, err := d.t.Greeting(hello)
	if err != nil {
		return fail(err)
	}
	got := <-dial
	dial <- got
	if got.err != nil {
		return fail(got.err)
	}
	d.Client = got.g
	d.User = guest.User(h.User)
	d.Env = environment(h.Env, o.Env)
	d.shells = h.Shells
	d.Permit, d.Gone = o.Permit, d.broken
	if h.Workdir != "" {
		return fail(fault.Configf("sandbox.workdir", "Choose another `workdir`.", "the working directory cannot be made: %s", h.Workdir))
	}
	if o.User != "" {
		u, err := d.Client.Lookup(hello, o.User)
		if err != nil {
			return fail(d.Failed(ctx, err))
		}
		if err := d.give(hello, u); err != nil {
			return fail(err)
		}
		d.User = u
	}
	return d, nil
}

// give hands a fresh working directory to another user than the default.
func (d *Driver) give(ctx context.Context, u guest.User) error {
	st, err := d.Client.Stat(ctx, d.workdir)
	if err != nil || st.UID == u.UID || d.Client.Info().UID != 0 || st.UID != d.User.UID {
		return d.Failed(ctx, err)
	}
	x, err := d.Client.Exec(ctx, guest.ExecRequest{
		Argv: []string{"chown", fmt.Sprintf("%d:%d", u.UID, u.GID), d.workdir}, Env: []string{"PATH=" + guestbox.SystemPath},
	})
	if err == nil && x.Code != 0 {
		err = fault.Configf("sandbox.workdir", "Choose another `workdir`.", "the working directory %s cannot be given to %s", d.workdir, u.Name)
	}
	return d.Failed(ctx, err)
}

// notInherited belongs to the process that was started, not to the start point.
var notInherited = []string{"HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "_", "MAIL", "SHELL", "TERM"}

func environment(given []string, more map[string]string) map[string]string {
	env := map[string]string{}
	for _, kv := range given {
		k, v, ok := strings.Cut(kv, "=")
		if ok && !slices.Contains(notInherited, k) && !strings.HasPrefix(k, "SUDO_") {
			env[k] = v
		}
	}
	maps.Copy(env, more)
	return env
}

// Exec runs a command.
func (d *Driver) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	d.ran.Store(true)
	return d.Box.Exec(ctx, c)
}

// Stat looks at a path. What the daemon saw of the shells at its start holds
// until the first command, and saves a request.
func (d *Driver) Stat(ctx context.Context, p string) (sandbox.FileStat, error) {
	if !d.ran.Load() && !d.isStopped() && slices.Contains(relay.ShellPaths, p) {
		if s, ok := d.shells[p]; ok {
			return sandbox.FileStat{Regular: true, Mode: s.Mode, Size: s.Size, UID: int(s.UID), GID: int(s.GID)}, nil
		}
	}
	return d.Box.Stat(ctx, p)
}

// ID is the service's identifier.
func (d *Driver) ID() string { return d.m.ID() }

// Workdir is the directory in which the agent works.
func (d *Driver) Workdir() string { return d.workdir }

// Machine is the instance itself.
func (d *Driver) Machine() Machine { return d.m }

// Cuts is how often the connection was cut and taken up again.
func (d *Driver) Cuts() int { return d.t.Cuts() }

// Keep lets the sandbox's processes outlive the connection.
func (d *Driver) Keep(ctx context.Context) error { return d.Failed(ctx, d.Client.Keep(ctx)) }

// Detach ends the connection and leaves the instance to itself.
func (d *Driver) Detach() error {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.stopping.Lock()
	defer d.stopping.Unlock()
	d.gone = true
	return d.Client.Close()
}

func (d *Driver) isStopped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stopped
}

// Health asks the service. The codes are "sandbox-stopped", "sandbox-removed"
// and "sandbox.provider-unreachable"; all but the last match
// sandbox.ErrUnusable.
func (d *Driver) Health(ctx context.Context) error {
	if d.isStopped() {
		return &fault.Error{Code: "sandbox-stopped", What: "sandbox " + d.ID() + " was stopped", Err: sandbox.ErrUnusable}
	}
	err := d.m.Alive(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, relay.ErrGone):
		return &fault.Error{Code: "sandbox-removed", What: "sandbox " + d.ID() + " was killed or reached the end of its life", Fix: "Raise `lifetime` when the attempt needs longer.", Err: fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)}
	case fault.Cause(ctx) != nil:
		return fault.Cause(ctx)
	}
	return &fault.Error{Class: fault.Transient, Code: "sandbox.provider-unreachable", What: "ask the provider about sandbox " + d.ID(), Err: err}
}

// afterlife bounds the look at an instance that broke.
const afterlife = 10 * time.Second

// broken explains why nobody can talk to the exec server any more.
func (d *Driver) broken(ctx context.Context, err error) error {
	d.mu.Lock()
	death, stopped := d.death, d.stopped
	d.mu.Unlock()
	if stopped {
		return &fault.Error{Code: "sandbox-stopped", What: "sandbox " + d.ID() + " was stopped", Err: fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)}
	}
	if death == nil {
		look, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "engine-call", afterlife, "built-in")
		defer cancel()
		if death = d.Health(look); death == nil {
			death = &fault.Error{Code: "sandbox-stream-lost", What: "the connection to sandbox " + d.ID() + " broke"}
		}
		d.mu.Lock()
		d.death = death
		d.mu.Unlock()
	}
	out := &fault.Error{Class: fault.ClassOf(death), Code: fault.CodeOf(death), Fix: fault.FixOf(death), Err: fmt.Errorf("%w (%w)", death, err)}
	if !errors.Is(death, sandbox.ErrUnusable) {
		out.Err = fmt.Errorf("%w: %w (%w)", sandbox.ErrUnusable, death, err)
	}
	return out
}

// EnsureLifetime confirms with the service that the sandbox lives on.
func (d *Driver) EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error) {
	if d.isStopped() {
		return time.Time{}, d.Health(ctx)
	}
	at, err := d.m.EnsureLifetime(ctx, min)
	if errors.Is(err, relay.ErrGone) {
		err = fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)
	}
	return at, err
}

// Stop destroys the instance.
func (d *Driver) Stop(ctx context.Context) error {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	_ = d.Client.Close() // what is running ends here; the instance goes next
	d.stopping.Lock()
	defer d.stopping.Unlock()
	if d.gone {
		return nil
	}
	if err := d.m.Destroy(ctx); err != nil {
		if cause := fault.Cause(ctx); cause != nil {
			err = cause
		}
		return &fault.Error{Class: fault.ClassOf(err), Code: "sandbox-stop-failed", What: "destroy sandbox " + d.ID(), Err: err}
	}
	d.gone = true
	return nil
}

// AttachArgs is the command line of an attachment of a program at dir/init.
func AttachArgs(dir, session string, from uint64, text bool, workdir string) []string {
	mode := "raw"
	if text {
		mode = "text"
	}
	return []string{path.Join(dir, "init"), relay.AttachArg, dir, session, fmt.Sprint(from), mode, workdir}
}

var (
	_ sandbox.Driver       = (*Driver)(nil)
	_ sandbox.Environer    = (*Driver)(nil)
	_ sandbox.Stater       = (*Driver)(nil)
	_ sandbox.Tracker      = (*Driver)(nil)
	_ sandbox.ProcessEnder = (*Driver)(nil)
	_ sandbox.Digester     = (*Driver)(nil)
	_ sandbox.Reporter     = (*Driver)(nil)
	_ sandbox.Lifetimer    = (*Driver)(nil)
	_ io.Closer            = (*relay.Tunnel)(nil)
)
