package compose

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// The bounds of a companion's log.
const (
	logLines = 200
	logBytes = 8 << 10
	logLimit = 10 * time.Second
)

// driver is the sandbox's own container together with what stands beside it.
type driver struct {
	sandbox.Driver
	g *group

	stopping sync.Mutex
	gone     bool
}

// full is a driver over the exec server, plain one over the engine's own exec:
// the powers that belong to the one container.
type full struct {
	*driver
	sandbox.Environer
	sandbox.Stater
	sandbox.Tracker
	sandbox.ProcessEnder
	sandbox.Digester
	sandbox.Remover
	sandbox.Lifetimer
	sandbox.Reporter
}

type plain struct {
	*driver
	sandbox.Environer
	sandbox.ProcessEnder
	sandbox.Digester
	sandbox.Reporter
}

// enterer is full with a terminal.
type enterer struct {
	full
	sandbox.Enterer
}

func (g *group) driver() sandbox.Driver {
	d := &driver{Driver: g.sandbox, g: g}
	f := full{driver: d}
	ok := take(g.sandbox, &f.Environer) && take(g.sandbox, &f.Stater) && take(g.sandbox, &f.Tracker) && take(g.sandbox, &f.ProcessEnder) &&
		take(g.sandbox, &f.Digester) && take(g.sandbox, &f.Remover) && take(g.sandbox, &f.Lifetimer) && take(g.sandbox, &f.Reporter)
	if ok {
		e := enterer{full: f}
		if take(g.sandbox, &e.Enterer) {
			return e
		}
		return f
	}
	p := plain{driver: d}
	if take(g.sandbox, &p.Environer) && take(g.sandbox, &p.ProcessEnder) && take(g.sandbox, &p.Digester) && take(g.sandbox, &p.Reporter) {
		return p
	}
	return d
}

// take finds a power of a driver.
func take[C any](d sandbox.Driver, to *C) bool {
	c, ok := sandbox.AsDriver[C](d)
	*to = c
	return ok
}

// Stop destroys the project: all containers at once and without a grace, then
// its networks and volumes. What is external stays.
func (d *driver) Stop(ctx context.Context) error {
	d.stopping.Lock()
	defer d.stopping.Unlock()
	if d.gone {
		return nil
	}
	own := d.ID()
	var mine, rest error
	var wg sync.WaitGroup
	wg.Go(func() { mine = d.Driver.Stop(ctx) })
	beside := docker.Group{Containers: slices.DeleteFunc(slices.Clone(d.g.members.Containers), func(id string) bool { return id == own })}
	wg.Go(func() { rest = d.g.engine.Destroy(ctx, beside) })
	wg.Wait()
	err := errors.Join(mine, rest)
	if err == nil {
		err = d.g.engine.Destroy(ctx, docker.Group{Networks: d.g.members.Networks, Volumes: d.g.members.Volumes})
	}
	// Whatever is left is not this process's any more: the next who finds no
	// address waits for it with the engine.
	d.g.giveBack()
	if err == nil {
		d.gone = true
		return nil
	}
	if fault.CodeOf(err) != "" {
		return err
	}
	if cause := fault.Cause(ctx); cause != nil {
		return errors.Join(err, cause)
	}
	return &fault.Error{Class: d.g.p.Classify(err), Code: "sandbox-stop-failed", What: "remove project " + d.g.names.project, Err: err}
}

// Companions tells how the services beside the sandbox are doing.
func (d *driver) Companions(ctx context.Context) ([]sandbox.Companion, error) {
	var out []sandbox.Companion
	for _, name := range d.g.pr.names() {
		if name == d.g.pr.spec.WorkspaceService {
			continue
		}
		in, err := d.g.engine.Inspect(ctx, d.g.id(name))
		if docker.StatusOf(err) == http.StatusNotFound {
			out = append(out, sandbox.Companion{Name: name, State: "removed"})
			continue
		}
		if err != nil {
			return out, err
		}
		log, err := d.g.engine.Logs(ctx, d.g.id(name), logLines, logBytes)
		if err != nil {
			return out, err
		}
		out = append(out, d.g.companionOf(name, in, log))
	}
	return out, nil
}

func (g *group) companionOf(name string, in container.InspectResponse, log string) sandbox.Companion {
	c := sandbox.Companion{Name: name, Log: g.masked(strings.TrimSpace(log))}
	st := in.State
	if st == nil {
		return c
	}
	c.State, c.OOM = string(st.Status), st.OOMKilled
	if hasHealth(in) {
		c.State += ", " + string(st.Health.Status)
	}
	if !st.Running && st.Status != container.StateCreated {
		code := st.ExitCode
		c.ExitCode = &code
	}
	return c
}

// tell keeps the log of a service that kept the sandbox from being made.
func (g *group) tell(name string, in container.InspectResponse, log string) {
	c := g.companionOf(name, in, log)
	_ = g.r.Notes.Diagnostic(sandbox.Diagnostic{
		Code: "companion-log", Level: sandbox.Warning, DedupeKey: "companion-log " + name, Data: c,
		Message: "service " + name + " is " + c.State + ": " + sandbox.Tail(c.Log, 1000),
	})
}

var (
	_ sandbox.Driver      = (*driver)(nil)
	_ sandbox.Companioner = (*driver)(nil)
)
