package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// This file is the rest and the second life of containers. A container whose
// first process loses its stream ends, and keeps its files; so a container at
// rest is a stopped one.

// rest stops the container and lets go of it.
func (i *instance) rest(ctx context.Context) (sandbox.Dormant, error) {
	if i.isStopped() {
		return sandbox.Dormant{}, i.Health(ctx)
	}
	now := 0
	err := i.e.do(ctx, "stop", makeLimit, func(ctx context.Context) error {
		_, err := i.e.cli.ContainerStop(ctx, i.id, client.ContainerStopOptions{Timeout: &now})
		return err
	})
	if err != nil {
		return sandbox.Dormant{}, &fault.Error{Class: classify(err), Code: "sandbox-suspend-failed", What: fmt.Sprintf("stop container %.12s", i.id), Err: err}
	}
	i.letGo()
	return sandbox.Dormant{ID: i.id}, nil
}

// letGo makes Stop destroy nothing.
func (i *instance) letGo() {
	i.removing.Lock()
	defer i.removing.Unlock()
	i.mu.Lock()
	i.stopped = true
	i.mu.Unlock()
	i.gone = true
}

// Suspend stops the container and keeps it.
func (d *driver) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	out, err := d.rest(ctx)
	if err == nil {
		_ = d.Client.Close()
	}
	return out, err
}

// Leave lets the container run on without anybody to talk to it.
func (d *driver) Leave(ctx context.Context) error {
	if err := d.Client.Keep(ctx); err != nil {
		return d.Failed(ctx, err)
	}
	d.letGo()
	return d.Client.Close()
}

// Suspend stops the container and keeps it.
func (d *plain) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	out, err := d.rest(ctx)
	if err == nil {
		_ = d.s.Close()
		<-d.ended
	}
	return out, err
}

// Wake starts a container again. One that still runs is stopped first: whoever
// talked to it is gone.
func (p *Provider) Wake(ctx context.Context, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	c, err := e.inspect(ctx, id)
	if err != nil {
		if statusOf(err) == http.StatusNotFound {
			return nil, &fault.Error{Class: fault.Config, Code: "sandbox-removed", What: fmt.Sprintf("container %.12s is gone", id), Fix: "Forget it with `sandbox stop`.", Err: err}
		}
		return nil, err
	}
	if err := e.owned(ctx, id); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		d, err := p.wake(ctx, e, c, id, r)
		// Podman may lose the first words of a stream to a container that is
		// just coming up; nothing was done with it yet, so it starts again.
		if err == nil || p.kind != Podman || try == wakeTries || ctx.Err() != nil {
			return d, err
		}
		if c, err = e.inspect(ctx, id); err != nil {
			return nil, err
		}
	}
}

// wakeTries is how often a container of Podman is started for one Wake.
const wakeTries = 3

// wake starts a container once.
func (p *Provider) wake(ctx context.Context, e *engine, c container.InspectResponse, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	if c.State != nil && c.State.Running {
		now := 0
		if err := e.do(ctx, "stop", makeLimit, func(ctx context.Context) error {
			_, err := e.cli.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &now})
			return err
		}); err != nil {
			return nil, err
		}
	}
	s, err := p.restart(ctx, e, id)
	if err != nil {
		return nil, err
	}
	d, err := p.reopen(ctx, e, c, s, r)
	if err != nil {
		_ = s.Close() // it ends with its stream
		return nil, err
	}
	return d, nil
}

// restart attaches to a stopped container and starts it. The exec server waits
// for the first word of whoever attaches, so with Podman, which ends the stream
// of a container that ended before, the start comes first.
func (p *Provider) restart(ctx context.Context, e *engine, id string) (*stream, error) {
	if p.kind == Podman {
		if err := e.start(ctx, id); err != nil {
			return nil, err
		}
		conn, err := e.attach(ctx, id)
		if err != nil {
			return nil, err
		}
		return newStream(conn), nil
	}
	conn, err := e.attach(ctx, id)
	if err != nil {
		return nil, err
	}
	s := newStream(conn)
	if err := e.start(ctx, id); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// reopen makes the driver of a container that was started again.
func (p *Provider) reopen(ctx context.Context, e *engine, c container.InspectResponse, s *stream, r sandbox.WakeRequest) (sandbox.Driver, error) {
	img, err := p.inspectImage(ctx, e, c.Image)
	if err != nil {
		// The image's name may be gone while the container lives on it.
		img = &image{ID: c.Image, Env: map[string]string{}}
		if c.Config != nil {
			for _, kv := range c.Config.Env {
				k, v, _ := strings.Cut(kv, "=")
				img.Env[k] = v
			}
		}
	}
	req := sandbox.CreateRequest{User: r.User, Workdir: r.Workdir, Lifetime: r.Lifetime, Notes: sandbox.Quiet{}}
	if isGuest(c) {
		d := &driver{instance: instance{p: p, e: e, id: c.ID, img: img}, s: s}
		return d, d.greet(ctx, req)
	}
	d := &plain{instance: instance{p: p, e: e, id: c.ID, img: img}, s: s, ended: make(chan struct{}), homes: map[string]plainUser{}}
	go func() { // ends with the container, or when the stream is closed
		defer close(d.ended)
		_, _ = io.Copy(io.Discard, s)
	}()
	return d, d.settle(ctx, req)
}

// Enter runs a command on a terminal that the engine makes.
func (d *driver) Enter(ctx context.Context, c sandbox.Cmd, t sandbox.Terminal) (sandbox.Exit, error) {
	u, err := d.Identity(ctx, c.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	return d.seat(ctx, fmt.Sprintf("%d:%d", u.UID, u.GID), environ(d.img, account{name: u.Name, uid: u.UID, home: u.Home}), c, t)
}

// Enter runs a command on a terminal that the engine makes.
func (d *plain) Enter(ctx context.Context, c sandbox.Cmd, t sandbox.Terminal) (sandbox.Exit, error) {
	u, err := d.userOf(ctx, c.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	return d.seat(ctx, fmt.Sprintf("%d:%d", u.uid, u.gid), environ(d.img, u.account), c, t)
}

// seat runs a command through the engine's exec on a terminal.
func (i *instance) seat(ctx context.Context, user string, base map[string]string, c sandbox.Cmd, t sandbox.Terminal) (sandbox.Exit, error) {
	size := client.ConsoleSize{Height: t.Height, Width: t.Width}
	env := []string{"TERM=" + firstOf(t.Kind, "xterm")}
	for k, v := range base {
		if _, over := c.Env[k]; !over {
			env = append(env, k+"="+v)
		}
	}
	for k, v := range c.Env {
		env = append(env, k+"="+v)
	}
	var id string
	err := i.e.do(ctx, "exec create", makeLimit, func(ctx context.Context) error {
		r, err := i.e.cli.ExecCreate(ctx, i.id, client.ExecCreateOptions{
			User: user, TTY: true, ConsoleSize: size, AttachStdin: true, AttachStdout: true, AttachStderr: true,
			Env: env, WorkingDir: c.Dir, Cmd: c.Argv,
		})
		id = r.ID
		return err
	})
	if err != nil {
		return sandbox.Exit{}, err
	}
	var h client.HijackedResponse
	err = i.e.do(ctx, "exec start", makeLimit, func(ctx context.Context) error {
		r, err := i.e.cli.ExecAttach(ctx, id, client.ExecAttachOptions{TTY: true, ConsoleSize: size})
		h = r.HijackedResponse
		return err
	})
	if err != nil {
		return sandbox.Exit{}, err
	}
	defer h.Close()
	if t.Width > 0 && t.Height > 0 {
		i.fit(ctx, id, [2]uint{t.Width, t.Height}) // not every engine heeds the size at the start
	}
	over := make(chan struct{})
	go i.resize(ctx, id, t.Resized, over)
	defer close(over)
	if c.Stdin != nil {
		go func() { // ends with the connection, or with the person's next key
			_, _ = io.Copy(struct{ io.Writer }{h.Conn}, c.Stdin)
			// Closing would end the output too; a terminal's input ends by a key.
			_, _ = h.Conn.Write([]byte{endOfTransmission})
		}()
	}
	stop := context.AfterFunc(ctx, h.Close)
	defer stop()
	if _, err := io.Copy(c.Stdout, h.Reader); err != nil && fault.Cause(ctx) == nil && !errors.Is(err, io.EOF) {
		return sandbox.Exit{}, fmt.Errorf("read the terminal: %w", err)
	}
	if cause := fault.Cause(ctx); cause != nil {
		return sandbox.Exit{}, cause
	}
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		st, err := i.e.execInspect(ctx, id)
		if err != nil || !st.running {
			return sandbox.Exit{Code: st.code}, err
		}
		select { // the engine notes the exit a little after the end of the output
		case <-ctx.Done():
			return sandbox.Exit{}, fault.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// endOfTransmission is Ctrl-D.
const endOfTransmission = 4

func (i *instance) resize(ctx context.Context, id string, sizes <-chan [2]uint, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			i.fit(ctx, id, s)
		}
	}
}

// fit gives a terminal its size.
func (i *instance) fit(ctx context.Context, id string, s [2]uint) {
	_ = i.e.do(ctx, "exec resize", lookLimit, func(ctx context.Context) error { // a picture, nothing more
		_, err := i.e.cli.ExecResize(ctx, id, client.ExecResizeOptions{Width: s[0], Height: s[1]})
		return err
	})
}

var (
	_ sandbox.Waker     = (*Provider)(nil)
	_ sandbox.Suspender = (*driver)(nil)
	_ sandbox.Suspender = (*plain)(nil)
	_ sandbox.Leaver    = (*driver)(nil)
	_ sandbox.Enterer   = (*driver)(nil)
	_ sandbox.Enterer   = (*plain)(nil)
)
