package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"assay/fault"
	"assay/sandbox"
)

const (
	// defaultWorkdir is where the agent works in images that name no folder.
	defaultWorkdir = "/home/sandbox/workspace"
	// guestPath is where the exec server stands inside. Nothing an agent can
	// see names this program.
	guestPath = "/.init"
	// helloLimit bounds the wait for the exec server's first word.
	helloLimit = 20 * time.Second
	// reclaimLimit bounds the clean-up after a create that did not succeed.
	reclaimLimit = 30 * time.Second
)

// Create starts one container with the owner's labels. An image in which the
// exec server cannot run gets the engine's own exec instead.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	return p.create(ctx, r, nil)
}

// create is Create with a shape; nil is a container of its own.
func (p *Provider) create(ctx context.Context, r sandbox.CreateRequest, shape *Shape) (sandbox.Driver, error) {
	if r.Notes == nil {
		r.Notes = sandbox.Quiet{}
	}
	if r.Owner.Token == "" {
		r.Owner.Token = newToken()
	}
	spec, err := specOf(p.kind, r.Template)
	if err != nil {
		return nil, err
	}
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx = withNotes(ctx, r.Notes)
	img, err := p.imageOf(ctx, e, r.From)
	if err != nil {
		return nil, err
	}
	if err := p.permit(ctx, e, r); err != nil {
		return nil, err
	}
	img = img.shaped(shape)
	var unfit error
	if spec.Guest != "off" {
		d, err := p.createGuest(ctx, e, img, r)
		if err == nil {
			return d, nil
		}
		if !errors.As(err, new(unfitError)) {
			return nil, explainCreate(err)
		}
		if p.kind == Podman {
			return nil, &fault.Error{
				Class: fault.Config, Code: "sandbox.image-unusable", What: "start the exec server in a container of Podman", Err: err,
				Fix: "Use an image for this machine's architecture, and check that Podman itself can run it (podman run).",
			}
		}
		unfit = err
		_ = r.Notes.Diagnostic(sandbox.Diagnostic{
			Code: "docker-guest-unavailable", Level: sandbox.Warning, DedupeKey: "docker-guest-unavailable",
			Message: "the exec server cannot run in this sandbox, so commands go through the engine's own exec, which is slower and cannot always end a process tree: " + err.Error(),
		})
	}
	d, err := p.createPlain(ctx, e, img, r)
	if err != nil {
		// The first reason stays the main one: without it the plain way would
		// not have been tried.
		return nil, explainCreate(errors.Join(unfit, err))
	}
	return d, nil
}

// explainCreate names the errors of Create that have one usual cause.
func explainCreate(err error) error {
	if fault.CodeOf(err) != "" {
		return err
	}
	switch {
	case noSpace(err):
		return &fault.Error{Class: fault.Resource, Code: "enospc", What: "create container", Fix: "Free disk space for the engine, for example with `docker system prune`.", Err: err}
	case statusOf(err) == http.StatusNotFound:
		return &fault.Error{Class: fault.Config, Code: "sandbox.image-missing", What: "create container", Fix: "The image was removed after it was prepared; run again.", Err: err}
	}
	return err
}

// unfitError says that the exec server cannot run here, for a reason that
// another try will not change.
type unfitError struct{ err error }

func (e unfitError) Error() string { return e.err.Error() }
func (e unfitError) Unwrap() error { return e.err }

// permit refuses what this provider cannot enforce, before anything is made.
func (p *Provider) permit(ctx context.Context, e *engine, r sandbox.CreateRequest) error {
	switch r.Network.Mode {
	case "", "default", "none":
	default:
		return fault.Configf("sandbox.network-unsupported", "Use `network: default` or `network: none`.", "the %s provider cannot enforce network mode %q", p.kind, r.Network.Mode)
	}
	if r.Resources.Disk == 0 {
		return nil
	}
	f, err := e.about(ctx)
	if err != nil {
		return err
	}
	switch {
	case f.Driver == "btrfs", f.Driver == "zfs", f.Driver == "devicemapper":
	case f.Driver == "overlay2" && f.Backing == "xfs":
	default:
		return fault.Configf("sandbox.disk-limit-unsupported", "Leave out `disk`, or put the engine's data on xfs with project quotas.",
			"the engine's storage driver (%s on %s) cannot limit a container's disk", f.Driver, f.Backing)
	}
	return nil
}

// blueprint returns the container of a request. entry is its first process,
// which runs as root and talks over its standard streams.
func (p *Provider) blueprint(img *image, r sandbox.CreateRequest, entry []string) (*container.Config, *container.HostConfig) {
	labels := map[string]string{}
	maps.Copy(labels, r.Owner.Labels())
	noInit := false
	pids := r.Resources.PIDs
	if pids == 0 {
		pids = DefaultPIDs
	}
	c := &container.Config{
		Image: img.ID, User: "0:0", WorkingDir: "/", Entrypoint: entry, Labels: labels,
		OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		StopSignal: "SIGKILL", Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	h := &container.HostConfig{
		LogConfig:     container.LogConfig{Type: "none"},
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Init:          &noInit,
		Resources: container.Resources{
			NanoCPUs: int64(r.Resources.CPUs * 1e9), Memory: r.Resources.Memory, MemorySwap: r.Resources.Memory, PidsLimit: &pids,
		},
	}
	if r.Network.Mode == "none" {
		h.NetworkMode = "none"
	}
	if r.Resources.Disk > 0 {
		h.StorageOpt = map[string]string{"size": fmt.Sprint(r.Resources.Disk)}
	}
	img.shape.alter(c, h)
	return c, h
}

// mountGuest puts the exec server into a container read-only.
func mountGuest(h *container.HostConfig, path string) {
	h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: path, Target: guestPath, ReadOnly: true})
}

// launch makes a container, fills it, attaches to it and starts it, in this
// order: attached before it starts, nothing that it says is lost. On error
// nothing is left of it.
func (p *Provider) launch(ctx context.Context, e *engine, img *image, o sandbox.Owner, c *container.Config, h *container.HostConfig, fill func(ctx context.Context, id string) error) (string, *stream, error) {
	b := img.shape.birth(o.Token)
	if b.name == "" && p.kind == Podman {
		// Podman writes the name into the container's /etc/hosts.
		b.name = "env-" + newToken()[:16]
	}
	id, err := e.bearAs(ctx, b, c, h)
	if err != nil {
		return "", nil, err
	}
	var s *stream
	err = func() error {
		if fill != nil {
			if err := fill(ctx, id); err != nil {
				return err
			}
		}
		if err := img.shape.settle(ctx, e, id); err != nil {
			return err
		}
		conn, err := e.attach(ctx, id)
		if err != nil {
			return e.whyNot(ctx, id, err)
		}
		s = newStream(conn)
		return e.start(ctx, id)
	}()
	if err != nil {
		return "", nil, e.discard(ctx, id, s, err)
	}
	return id, s, nil
}

// whyNot explains a refused attach. Podman makes a container ready to run for
// it, and the reason why that fails is lost with the refusal; a start gives it
// again.
func (e *engine) whyNot(ctx context.Context, id string, err error) error {
	if statusOf(err) == http.StatusConflict {
		if serr := e.start(ctx, id); serr != nil {
			return serr
		}
	}
	return err
}

// discard removes a container whose making failed with err. The error of the
// removal joins err.
func (e *engine) discard(ctx context.Context, id string, s *stream, err error) error {
	if s != nil {
		_ = s.Close()
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", reclaimLimit, "built-in")
	defer cancel()
	if rerr := e.remove(clean, id); rerr != nil {
		return errors.Join(err, fmt.Errorf("container %.12s may be left: %w", id, rerr))
	}
	return err
}

// birth is how a container comes to life.
type birth struct {
	name string // "" makes one up
	// label and its value find the container, and no other.
	label, value string
	networks     *network.NetworkingConfig
}

func bornWith(token string) birth { return birth{label: sandbox.LabelPrefix + "token", value: token} }

// bear creates a container that is known by its owner's token.
func (e *engine) bear(ctx context.Context, token string, c *container.Config, h *container.HostConfig) (string, error) {
	return e.bearAs(ctx, bornWith(token), c, h)
}

// bearAs creates a container. The create request is not tied to ctx, because a
// request that is cut leaves it open whether a container comes of it: when ctx
// ends first, it waits for the reply or finds the container by its label, and
// removes it. A reply that was lost is cleared up in the same way.
func (e *engine) bearAs(ctx context.Context, b birth, c *container.Config, h *container.HostConfig) (string, error) {
	type reply struct {
		id  string
		err error
	}
	got := make(chan reply, 1)
	request, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	admitted := make(chan struct{})
	go func() {
		// Waiting for a place at the engine does end with ctx: nothing is made.
		if err := e.enter(ctx); err != nil {
			got <- reply{err: err}
			return
		}
		defer e.gate.leave()
		close(admitted)
		name := b.name
		if name == "" {
			name = "assay-" + newToken()[:16]
		}
		id, err := e.create(request, name, c, h, b.networks)
		got <- reply{id, err}
	}()
	select {
	case r := <-got:
		if r.err != nil && ambiguous(r.err) {
			return "", errors.Join(r.err, e.reclaim(ctx, b, nil))
		}
		return r.id, r.err
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	select {
	case <-admitted:
	case r := <-got:
		return "", errors.Join(cause, e.dispose(ctx, r.id))
	}
	gone := make(chan struct{})
	var last reply
	go func() { defer close(gone); last = <-got }()
	err := e.reclaim(ctx, b, gone)
	hangUp()
	<-gone
	return "", errors.Join(cause, err, e.dispose(ctx, last.id))
}

// dispose removes a container that nobody wants; "" is none.
func (e *engine) dispose(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	return e.discard(ctx, id, nil, nil)
}

// ambiguous reports whether a failed create may have made something: the
// request went out and no reply came back.
func ambiguous(err error) bool {
	var ce *callError
	if !errors.As(err, &ce) || ce.answered() {
		return false
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT)
}

// reclaim looks for containers with a label and removes them, until it found
// one, until over is closed, or a few looks in a row found none.
func (e *engine) reclaim(ctx context.Context, b birth, over <-chan struct{}) error {
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", reclaimLimit, "built-in")
	defer cancel()
	pause := 50 * time.Millisecond
	for look := 0; ; look++ {
		n, err := e.removeLabelled(clean, b.label, b.value)
		if err != nil {
			return fmt.Errorf("look for a container that may be left: %w", err)
		}
		// With a request still under way the end of it is what is waited for.
		if n > 0 || over == nil && look >= 4 {
			return nil
		}
		select {
		case <-over:
			_, err := e.removeLabelled(clean, b.label, b.value) // its reply may be one that was lost
			return err
		case <-clean.Done():
			return context.Cause(clean)
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

// removeLabelled removes the containers with a label and returns how many there
// were.
func (e *engine) removeLabelled(ctx context.Context, label, value string) (int, error) {
	ids, err := e.labelled(ctx, label, value)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, e.remove(ctx, id))
	}
	return len(ids), errors.Join(errs...)
}

// Reconcile removes whatever an unclear Create of this owner may have made.
func (p *Provider) Reconcile(ctx context.Context, o sandbox.Owner) error {
	if o.Token == "" {
		return errors.New("docker: an owner without a token cannot be reconciled")
	}
	e, err := p.connect(ctx)
	if err != nil {
		return err
	}
	_, err = e.removeLabelled(ctx, sandbox.LabelPrefix+"token", o.Token)
	return err
}
