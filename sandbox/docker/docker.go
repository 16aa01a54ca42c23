// Package docker is the provider of containers: one container per sandbox, from
// an image, on Docker Engine (API 1.41 and newer) or Podman, spoken to over the
// engine's socket.
//
// The first process of a container is a small exec server that is bind-mounted
// into it (or uploaded, where the engine is remote). Commands, files, the change
// ledger and the end of process trees go over the one stream attached to it, so
// that an attempt costs four engine calls: create, attach, start, remove. When
// the stream ends, by the death of this process too, everything inside ends with
// it. Where the exec server cannot run, the engine's own exec and archive calls
// take its place, slower and less exact; that is reported once per run with
// diagnostic "docker-guest-unavailable".
//
// Limits that nobody set: processes and threads are limited to DefaultPIDs, so
// that a fork bomb stays inside; memory, CPU and disk are not limited. Swap is
// never added to a memory limit. Containers are not privileged, log nothing to
// the engine, and are never restarted.
package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"

	"assay/fault"
	"assay/sandbox"
)

// The engines.
const (
	Docker = "docker"
	Podman = "podman"
)

// DefaultPIDs limits the processes and threads of a sandbox that sets no limit.
const DefaultPIDs = 4096

// Spec is the start point of a sandbox, as YAML and JSON spell it.
type Spec struct {
	// Image is a name with a tag or digest, or an image id.
	Image string `yaml:"image" json:"image"`
	// Guest is "auto" (or empty), or "off" to use the engine's own exec instead
	// of the exec server.
	Guest string `yaml:"guest,omitempty" json:"guest,omitempty"`
}

// Label names the start point for people.
func (s Spec) Label() string { return s.Image }

// Image returns a layer that starts from an image on Docker. The image is pulled
// when it is missing.
func Image(image string) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(Docker), Spec: Spec{Image: image}})
}

// PodmanImage is Image on Podman.
func PodmanImage(image string) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(Podman), Spec: Spec{Image: image}})
}

// Definition lets YAML say `docker: {image: …}`.
func Definition() sandbox.Definition {
	return definition(Docker, "Start Docker Engine 20.10 or newer, or point DOCKER_HOST or a docker context at one.")
}

// PodmanDefinition lets YAML say `podman: {image: …}`.
func PodmanDefinition() sandbox.Definition {
	return definition(Podman, "Start Podman's API service (systemctl --user start podman.socket), or point CONTAINER_HOST at it.")
}

func definition(kind, remedy string) sandbox.Definition {
	return sandbox.Definition{
		Kind: kind, Remedy: remedy, Provider: func() sandbox.Provider { return shared(kind) },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("docker: a template needs a *Spec, got %T", spec)
			}
			if err := s.check(kind); err != nil {
				return sandbox.Template{}, err
			}
			return sandbox.Template{Provider: shared(kind), Spec: *s, Dir: dir}, nil
		},
	}
}

// check finds a spec that cannot work.
func (s Spec) check(kind string) error {
	if s.Image == "" {
		return fault.Configf("sandbox.docker-image-missing", fmt.Sprintf("Name one, for example `%s: {image: node:24-slim}`.", kind), "the %s sandbox names no image", kind)
	}
	if _, err := reference.ParseAnyReference(s.Image); err != nil || strings.ContainsAny(s.Image, " \t\n") {
		return fault.Configf("sandbox.docker-image-invalid", "Write the image as name:tag or name@sha256:digest.", "%q is no image name: %v", s.Image, err)
	}
	switch s.Guest {
	case "", "auto", "off":
		return nil
	}
	return fault.Configf("sandbox.docker-guest", "Write `guest: auto` or `guest: off`.", "guest %q is not known", s.Guest)
}

// specOf reads a template's spec.
func specOf(kind string, t sandbox.Template) (Spec, error) {
	var s Spec
	switch v := t.Spec.(type) {
	case Spec:
		s = v
	case *Spec:
		if v != nil {
			s = *v
		}
	default:
		return s, fmt.Errorf("docker: a template needs a Spec, got %T", t.Spec)
	}
	return s, s.check(kind)
}

// Options are the settings of a Provider. The zero value is Docker at the usual
// places.
type Options struct {
	// Engine is Docker or Podman; "" is Docker.
	Engine string
	// Host is the engine's address; "" looks at DOCKER_HOST, the current docker
	// context and the usual sockets, in this order.
	Host string
}

// Provider makes containers on one engine. It is safe for concurrent use and
// connects when it is first used.
type Provider struct {
	o     Options
	kind  string
	calls atomic.Int64
	// find returns the exec server for an architecture.
	find func(arch string) (guestBinary, error)

	mu     sync.Mutex
	eng    *engine
	staged map[string]stagedGuest
	// bindless: the engine does not see this host's files.
	bindless atomic.Bool
	// guestless holds the images in which the exec server could not start.
	guestless sync.Map
}

// New returns a provider of its own, for programs that use several engines.
func New(o Options) *Provider {
	kind := o.Engine
	if kind == "" {
		kind = Docker
	}
	return &Provider{o: o, kind: kind, find: findGuest, staged: map[string]stagedGuest{}}
}

// The providers that layers and YAML share, so that equal images are prepared
// once and the engine is asked once who it is.
var sharedProviders = struct {
	sync.Mutex
	of map[string]*Provider
}{of: map[string]*Provider{}}

func shared(kind string) *Provider {
	sharedProviders.Lock()
	defer sharedProviders.Unlock()
	p := sharedProviders.of[kind]
	if p == nil {
		p = New(Options{Engine: kind})
		sharedProviders.of[kind] = p
	}
	return p
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	info := sandbox.Info{
		Kind: p.kind, Concurrency: 10, RetryCreate: true, Users: sandbox.UsersAny,
		Keep: true, Reuse: true, Network: true, Limits: true, Reset: true,
	}
	if p.kind != Docker {
		info.Engine = p.kind
	}
	return info
}

// Calls is the number of requests that were sent to the engine so far.
func (p *Provider) Calls() int64 { return p.calls.Load() }

// Close drops idle connections to the engine. The provider stays usable.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eng != nil {
		p.eng.close()
		p.eng = nil
	}
	return nil
}

// Key is the image as it is named. Docker's short names and their long form are
// one; Podman resolves short names by its own rules.
func (p *Provider) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	s, err := specOf(p.kind, t)
	if err != nil {
		return "", err
	}
	name := s.Image
	if p.kind == Docker {
		if r, err := reference.ParseAnyReference(name); err == nil {
			if n, ok := r.(reference.Named); ok {
				r = reference.TagNameOnly(n)
			}
			name = r.String()
		}
	}
	return sandbox.Key(p.kind + "/" + name), nil
}

// Classify judges errors of engine calls.
func (p *Provider) Classify(err error) fault.Class { return classify(err) }

// checkLimit bounds the search for an engine: an engine that is dead, absent or
// stalls is known in less than ten seconds.
const checkLimit = 8 * time.Second

// Check connects to the engine and asks who it is. Its error, code
// "sandbox.engine-unreachable", lists what was tried.
func (p *Provider) Check(ctx context.Context) error {
	ctx, cancel := fault.WithTimeout(ctx, "engine-call", checkLimit, "built-in")
	defer cancel()
	e, err := p.connect(ctx)
	if err != nil {
		return err
	}
	f, err := e.about(ctx)
	if err != nil {
		return p.unreachable([]string{fmt.Sprintf("%s: %v", e.at, err)}, err)
	}
	if f.Driver == "windowsfilter" {
		return fault.Configf("sandbox.engine-windows", "Switch the engine to Linux containers.", "the engine at %s runs Windows containers", e.at.host)
	}
	return nil
}

// connect returns the engine, found once. A failed search is not remembered.
func (p *Provider) connect(ctx context.Context) (*engine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eng != nil {
		return p.eng, nil
	}
	ctx, cancel := fault.WithTimeout(ctx, "engine-call", checkLimit, "built-in")
	defer cancel()
	found, tried, err := thisHost().find(p.kind, p.o.Host)
	if err != nil {
		return nil, err
	}
	var last error
	for i, a := range found {
		// Each address gets its share of what is left, so that one that stalls
		// does not hide the next.
		share := checkLimit
		if at, ok := ctx.Deadline(); ok {
			share = time.Until(at) / time.Duration(len(found)-i)
		}
		one, done := context.WithTimeout(ctx, share)
		e, err := open(one, a, &p.calls)
		stalled := one.Err() != nil
		done()
		if err == nil {
			p.eng = e
			return e, nil
		}
		if cause := fault.Cause(ctx); cause != nil && !errors.As(cause, new(*fault.Timeout)) {
			return nil, cause
		}
		if fault.CodeOf(err) == "sandbox.engine-too-old" {
			return nil, err
		}
		if stalled {
			err = fmt.Errorf("it accepts the connection or its address but does not answer: %w", err)
		}
		tried = append(tried, fmt.Sprintf("%s: %v", a, err))
		last = err
	}
	return nil, p.unreachable(tried, last)
}

func (p *Provider) unreachable(tried []string, cause error) error {
	fix := "Start Docker, or set DOCKER_HOST or `docker context use` to the engine to use."
	if p.kind == Podman {
		fix = "Start Podman's API service (systemctl --user start podman.socket), or set CONTAINER_HOST."
	}
	return &fault.Error{
		Class: fault.Config, Code: "sandbox.engine-unreachable", Fix: fix,
		What: fmt.Sprintf("no %s engine answers", p.kind), Err: attempts{tried, cause},
	}
}

// attempts lists what was tried; its last cause is there for errors.Is.
type attempts struct {
	tried []string
	last  error
}

func (a attempts) Error() string { return "tried " + strings.Join(a.tried, "; ") }
func (a attempts) Unwrap() error { return a.last }

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.Reconciler = (*Provider)(nil)
)
