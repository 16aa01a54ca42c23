package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/imagebuild"
	"assay/sandbox"
)

// image is what a sandbox needs to know of its image.
type image struct {
	ID      string            `json:"id"`
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Arch    string            `json:"arch"`
	Env     map[string]string `json:"env,omitempty"`

	shape *Shape // how its containers differ

	platform, digest string
	labels           map[string]string
}

// The stages of a preparation.
const (
	stageImage      = "image"
	stageFrom       = "from"
	stageDockerfile = "dockerfile"
	stageInstall    = "install"
	stageHarness    = "harness"
)

// How an image came to be there, as Details["origin"] says it.
const (
	originFound  = "already here"
	originPulled = "pulled"
	originBuilt  = "built"
	originReused = "built before"
)

// Prepare finds, pulls or builds the image, and bakes the agent's tools into it
// where they can be installed by commands. A name is resolved once per run, so
// that a tag that moves changes nothing. What is built is named by its content:
// the next run, and another process, uses it again.
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, h sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	spec, err := specOf(p.kind, t)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	w := &making{p: p, s: s, details: map[string]string{}}
	var img *image
	switch {
	case spec.Dockerfile != "":
		img, err = w.dockerfile(ctx, spec, t.Dir)
	case spec.From != "":
		w.details["from"] = spec.From
		if img, err = w.named(ctx, stageFrom, prebuilt(spec.From)); err == nil {
			w.details["fromID"] = img.ID
			img, err = w.layer(ctx, stageInstall, img, spec.Install, "", spec.From)
		}
	default:
		w.details["image"] = prebuilt(spec.Image)
		img, err = w.named(ctx, stageImage, prebuilt(spec.Image))
	}
	if err == nil && len(h.Install) > 0 && img.labels[harnessLabel] != harnessName(h) {
		w.details["harness"] = harnessName(h)
		img, err = w.layer(ctx, stageHarness, img, h.Install, harnessName(h), spec.Label())
	}
	if err != nil {
		return sandbox.Prepared{}, err
	}
	found := map[string]string{"id": img.ID, "platform": img.platform}
	if img.digest != "" {
		found["digest"] = img.digest
	}
	maps.Copy(w.details, found)
	return sandbox.Prepared{Ref: img.ID, Details: w.details, Data: img}, nil
}

// harnessName names a set of tools.
func harnessName(h sandbox.Harness) string { return h.Name + "@" + h.Version }

// making is one preparation under way.
type making struct {
	p       *Provider
	s       sandbox.Steps
	details map[string]string
}

// origin notes how the image came to be there; what took most work is told.
func (w *making) origin(how string) {
	rank := map[string]int{"": 0, originFound: 1, originReused: 2, originPulled: 3, originBuilt: 4}
	if rank[how] > rank[w.details["origin"]] {
		w.details["origin"] = how
	}
}

// do runs a step and binds its stage to the error.
func (w *making) do(ctx context.Context, stage string, step func(context.Context, *engine) error) error {
	err := w.s.Do(ctx, stage, func(ctx context.Context) error {
		e, err := w.p.connect(ctx)
		if err != nil {
			return err
		}
		return step(ctx, e)
	})
	if err == nil || fault.StageOf(err) != "" {
		return err
	}
	return &fault.Error{Class: classOf(err), Code: fault.CodeOf(err), Fix: fault.FixOf(err), Stage: stage, Err: err}
}

func classOf(err error) fault.Class {
	if c := fault.ClassOf(err); c != fault.Unknown {
		return c
	}
	return classify(err)
}

func (w *making) show(p sandbox.Progress) {
	if s, ok := w.s.(sandbox.Progresser); ok {
		s.Progress(p)
	}
}

// named returns the image of a name, pulled when it is missing.
func (w *making) named(ctx context.Context, stage, ref string) (*image, error) {
	var img *image
	err := w.do(ctx, stage, func(ctx context.Context, e *engine) error {
		r := w.p.resolving(ref)
		select {
		case r.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		defer func() { <-r.turn }()
		if r.id != "" {
			var err error
			if img, err = w.p.inspectImage(ctx, e, r.id); err == nil {
				w.origin(originFound)
				return nil
			}
			r.id = "" // it was removed meanwhile
		}
		var how string
		var err error
		if img, how, err = w.p.lookUp(ctx, e, ref, w.show); err != nil {
			return imageError(ref, err)
		}
		w.origin(how)
		r.id = img.ID
		return nil
	})
	return img, err
}

// lookUp looks for an image and pulls it when it is missing.
func (p *Provider) lookUp(ctx context.Context, e *engine, ref string, show func(sandbox.Progress)) (*image, string, error) {
	img, err := p.inspectImage(ctx, e, ref)
	if statusOf(err) != http.StatusNotFound || !pullable(ref) {
		return img, originFound, err
	}
	if err := e.roomLeft(ctx); err != nil {
		return nil, "", err
	}
	// The pull holds no place at the gate: it is the network that it waits for.
	if err := imagebuild.Pull(ctx, e.cli, ref, p.credentials(), show); err != nil {
		if how := howToGet(ref); how != "" {
			err = &fault.Error{Class: fault.Config, Code: "sandbox.image-missing", Fix: how, What: ref + " is not on this machine", Err: err}
		}
		return nil, "", err
	}
	img, err = p.inspectImage(ctx, e, ref)
	return img, originPulled, err
}

func (p *Provider) credentials() imagebuild.Credentials {
	return imagebuild.DockerCredentials(thisHost().configDir())
}

// resolution is what a name stands for in this run.
type resolution struct {
	turn chan struct{} // one at a time
	id   string
}

// resolutions are those of one run.
type resolutions struct {
	mu sync.Mutex
	of map[string]*resolution
}

func (p *Provider) resolving(ref string) *resolution {
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	r := p.names.of[ref]
	if r == nil {
		r = &resolution{turn: make(chan struct{}, 1)}
		if p.names.of == nil {
			p.names.of = map[string]*resolution{}
		}
		p.names.of[ref] = r
	}
	return r
}

// forget lets the next run resolve names anew.
func (p *Provider) forget() {
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	p.names.of = nil
}

// imageError gives an error of finding an image its class and, for a missing
// one, its code.
func imageError(ref string, err error) error {
	if fault.ClassOf(err) != fault.Unknown || fault.CodeOf(err) != "" {
		return err
	}
	out := &fault.Error{What: "find image " + ref, Err: err, Class: classify(err)}
	if noSpace(err) {
		out.Code, out.Fix = "enospc", "Free disk space for the engine, for example with `assay image prune` or `docker image prune`."
	}
	if statusOf(err) == http.StatusNotFound {
		out.Code, out.Fix = "sandbox.image-missing", "Check the image's name; an id can only name an image that is on this machine."
	}
	return out
}

// pullable reports whether a registry can be asked for the image. An id names
// an image of this machine only.
func pullable(ref string) bool {
	_, err := reference.ParseNormalizedNamed(ref)
	return err == nil && !strings.HasPrefix(ref, "sha256:")
}

func (p *Provider) inspectImage(ctx context.Context, e *engine, ref string) (*image, error) {
	var r client.ImageInspectResult
	err := e.do(ctx, "image inspect", lookLimit, func(ctx context.Context) error {
		var err error
		r, err = e.cli.ImageInspect(ctx, ref)
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.Os != "" && r.Os != "linux" {
		return nil, fault.Configf("sandbox.image-platform", "Use a Linux image.", "image %s is for %s", ref, r.Os)
	}
	img := &image{ID: r.ID, Arch: r.Architecture, Env: map[string]string{}, platform: r.Os + "/" + r.Architecture}
	if c := r.Config; c != nil {
		img.User, img.Workdir, img.labels = c.User, c.WorkingDir, c.Labels
		for _, kv := range c.Env {
			k, v, _ := strings.Cut(kv, "=")
			img.Env[k] = v
		}
	}
	if len(r.RepoDigests) > 0 {
		img.digest = r.RepoDigests[0]
	}
	return img, nil
}

// imageOf returns the image of a start point. One that did not come from this
// process's Prepare is looked up by its id.
func (p *Provider) imageOf(ctx context.Context, e *engine, from sandbox.Prepared) (*image, error) {
	if img, ok := from.Data.(*image); ok && img != nil {
		return img, nil
	}
	if from.Ref == "" {
		return nil, errors.New("docker: Create needs the result of Prepare")
	}
	img, err := p.inspectImage(ctx, e, from.Ref)
	if err != nil {
		return nil, imageError(from.Ref, err)
	}
	return img, nil
}

// roomLeft refuses to fill a disk that is nearly full: what comes next would
// fail half-way, and everything else on the machine with it.
func (e *engine) roomLeft(ctx context.Context) error {
	f, err := e.about(ctx)
	if err != nil || e.at.remote() || f.Root == "" {
		return err // of another machine's disk nothing is known
	}
	free, ok := diskFree(f.Root)
	if !ok || free >= LowWater {
		return nil
	}
	return &fault.Error{
		Class: fault.Resource, Code: "enospc", Fix: "Free disk space for the engine, for example with `assay image prune` or `docker image prune`.",
		What: fmt.Sprintf("only %d MiB are free at %s, where the engine keeps images, and %d MiB are wanted before one is pulled or built", free>>20, f.Root, LowWater>>20),
	}
}
