// Package docker is the provider of containers: one container per sandbox, from
// an image that is found, pulled or built, on Docker Engine (API 1.41 and newer) or Podman, spoken to over the
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
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"

	"assay/fault"
	"assay/internal/imagebuild"
	"assay/sandbox"
)

// The engines.
const (
	Docker = "docker"
	Podman = "podman"
)

// DefaultPIDs limits the processes and threads of a sandbox that sets no limit.
const DefaultPIDs = 4096

// Spec is the start point of a sandbox, as YAML and JSON spell it. Exactly one of
// Image, Dockerfile and From is set.
type Spec struct {
	// Image is a name with a tag or digest, or an image id.
	Image string `yaml:"image,omitempty" json:"image,omitempty" doc:"An image: a name with a tag or digest, or an id."`
	// Dockerfile is the file to build from, relative to the template's folder.
	Dockerfile string `yaml:"dockerfile,omitempty" json:"dockerfile,omitempty" format:"hostpath" doc:"A Dockerfile to build."`
	// Context is the folder of COPY and ADD, relative to the template's folder;
	// "" is the Dockerfile's own.
	Context string `yaml:"context,omitempty" json:"context,omitempty" format:"hostpath" doc:"The build context; default the folder of the Dockerfile."`
	// Target is the stage to build; "" is the last.
	Target string `yaml:"target,omitempty" json:"target,omitempty" doc:"The stage to build; default the last."`
	// Args are build arguments. They are part of the identity and no place for
	// secrets.
	Args map[string]string `yaml:"args,omitempty" json:"args,omitempty" keys:"env" doc:"Build arguments."`
	// From is an image on which Install runs.
	From string `yaml:"from,omitempty" json:"from,omitempty" doc:"An image on which install runs."`
	// Install are shell commands, run once as root.
	Install []string `yaml:"install,omitempty" json:"install,omitempty" doc:"Shell commands that run once, as root, on top of from."`
	// Guest is "auto" (or empty), or "off" to use the engine's own exec instead
	// of the exec server.
	Guest string `yaml:"guest,omitempty" json:"guest,omitempty" enum:"auto,off" doc:"off uses the engine's own exec in place of the exec server."`
}

// Label names the start point for people.
func (s Spec) Label() string {
	switch {
	case s.Dockerfile != "" && s.Target != "":
		return s.Dockerfile + " " + s.Target
	case s.Dockerfile != "":
		return s.Dockerfile
	case s.From != "":
		return s.From + " with install"
	}
	return s.Image
}

// Image returns a layer that starts from an image on Docker. The image is pulled
// when it is missing.
func Image(image string) sandbox.Layer { return Build("", Spec{Image: image}) }

// Build returns a layer that starts from what a Spec says, on Docker. Relative
// paths start at dir; "" is the program's working folder.
func Build(dir string, s Spec) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(Docker), Spec: s, Dir: dir})
}

// PodmanImage is Image on Podman.
func PodmanImage(image string) sandbox.Layer { return PodmanBuild("", Spec{Image: image}) }

// PodmanBuild is Build on Podman.
func PodmanBuild(dir string, s Spec) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(Podman), Spec: s, Dir: dir})
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
	n := 0
	for _, v := range []string{s.Image, s.Dockerfile, s.From} {
		if v != "" {
			n++
		}
	}
	switch {
	case n == 0:
		return fault.Configf("sandbox.docker-image-missing", fmt.Sprintf("Name one, for example `%s: {image: node:24-slim}`.", kind), "the %s sandbox names no image, dockerfile or from", kind)
	case n > 1:
		return fault.Configf("sandbox.docker-spec", "Keep one of them.", "image, dockerfile and from exclude each other")
	case s.Dockerfile == "" && (s.Context != "" || s.Target != "" || len(s.Args) > 0):
		return fault.Configf("sandbox.docker-spec", "Add `dockerfile:`, or remove them.", "context, target and args belong to a dockerfile")
	case (s.From == "") != (len(s.Install) == 0):
		return fault.Configf("sandbox.docker-spec", "Give both, or use `image:`.", "from and install belong together")
	}
	for _, ref := range []string{s.Image, s.From} {
		if ref == "" {
			continue
		}
		if _, err := reference.ParseAnyReference(ref); err != nil || strings.ContainsAny(ref, " \t\n") {
			return fault.Configf("sandbox.docker-image-invalid", "Write the image as name:tag or name@sha256:digest.", "%q is no image name: %v", ref, err)
		}
	}
	switch {
	case s.Guest == "off" && kind == Podman:
		// It does not tell an exec that ended with 0 from one that never began.
		return fault.Configf("sandbox.docker-guest", "Leave out `guest: off`.", "Podman's own exec does not say enough of how a command ended")
	case s.Guest == "", s.Guest == "auto", s.Guest == "off":
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
	// names is what image names stand for in this run.
	names resolutions
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

// Key is the image as it is named, or the content of what is built, with the
// agent's tools where they are baked. Docker's short names and their long form
// are one; Podman resolves short names by its own rules.
func (p *Provider) Key(ctx context.Context, t sandbox.Template, h sandbox.Harness) (sandbox.Key, error) {
	s, err := specOf(p.kind, t)
	if err != nil {
		return "", err
	}
	var key string
	switch {
	case s.Dockerfile != "":
		src, err := s.source(t.Dir)
		if err != nil {
			return "", err
		}
		in, err := imagebuild.Read(ctx, src)
		if err != nil {
			return "", err
		}
		key = "dockerfile/" + in.Digest()
	case s.From != "":
		key = p.fullName(s.From) + "/install/" + contentKey(s.Install...)
	default:
		key = p.fullName(s.Image)
	}
	if len(h.Install) > 0 {
		key += "/harness/" + contentKey(append([]string{h.Name, h.Version}, h.Install...)...)
	}
	return sandbox.Key(p.kind + "/" + key), nil
}

// fullName is the long form of an image's name.
func (p *Provider) fullName(name string) string {
	name = prebuilt(name)
	if p.kind != Docker {
		return name
	}
	r, err := reference.ParseAnyReference(name)
	if err != nil {
		return name
	}
	if n, ok := r.(reference.Named); ok {
		r = reference.TagNameOnly(n)
	}
	return r.String()
}

// source is what a Dockerfile is built from, with absolute paths.
func (s Spec) source(dir string) (imagebuild.Source, error) {
	at := func(p string) (string, error) {
		if filepath.IsAbs(p) {
			return filepath.Clean(p), nil
		}
		return filepath.Abs(filepath.Join(dir, p))
	}
	file, err := at(s.Dockerfile)
	if err != nil {
		return imagebuild.Source{}, err
	}
	folder := filepath.Dir(file)
	if s.Context != "" {
		if folder, err = at(s.Context); err != nil {
			return imagebuild.Source{}, err
		}
	}
	return imagebuild.Source{Context: folder, Dockerfile: file, Target: s.Target, Args: s.Args}, nil
}

// Classify judges errors of engine calls.
func (p *Provider) Classify(err error) fault.Class { return classify(err) }

// checkLimit bounds the search for an engine: an engine that is dead, absent or
// stalls is known in less than ten seconds.
const checkLimit = 8 * time.Second

// Check connects to the engine and asks who it is. It begins a run: image names
// are resolved anew. Its error, code
// "sandbox.engine-unreachable", lists what was tried.
func (p *Provider) Check(ctx context.Context) error {
	p.forget()
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
