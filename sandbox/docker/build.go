package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/imagebuild"
	"assay/sandbox"
)

// LowWater is how many bytes must be free before an image is pulled or built.
const LowWater = 1 << 30

// Labels of the images that are built here. They are on the image alone: nothing
// inside a container shows them.
const (
	imageLabel   = sandbox.LabelPrefix + "image" // the key of its content
	madeOfLabel  = sandbox.LabelPrefix + "image.of"
	harnessLabel = sandbox.LabelPrefix + "image.harness" // the tools that are in it
)

// builtRepo names the images that are built here; their tag is the key of their
// content. baseRepo names images for the time of one build.
const (
	builtRepo = "assay-sandbox"
	baseRepo  = "assay-base"
)

// buildRevision enters every key: images built by other rules are others.
const buildRevision = "1"

// dockerfile builds a Dockerfile.
func (w *making) dockerfile(ctx context.Context, spec Spec, dir string) (*image, error) {
	src, err := spec.source(dir)
	if err != nil {
		return nil, err
	}
	in, err := imagebuild.Read(ctx, src)
	if err != nil {
		return nil, staged(stageDockerfile, err)
	}
	plan, err := in.Plan()
	if err != nil {
		return nil, staged(stageDockerfile, err)
	}
	w.details["dockerfile"] = spec.Dockerfile
	words := []string{"dockerfile", in.Digest()}
	var bases []string
	ids := map[string]string{}
	for _, ref := range plan.Bases {
		base, err := w.named(ctx, stageDockerfile, ref)
		if err != nil {
			return nil, err
		}
		ids[ref] = base.ID
		words = append(words, ref, base.ID)
		bases = append(bases, ref+"="+base.ID)
	}
	if len(bases) > 0 {
		w.details["bases"] = strings.Join(bases, " ")
	}
	delete(w.details, "origin") // of the bases
	return w.built(ctx, stageDockerfile, order{
		key: contentKey(words...), of: spec.Label(), modern: plan.BuildKit,
		input: func(context.Context, *engine) (*imagebuild.Input, func(), error) { return in, func() {}, nil },
		sure: func(ctx context.Context, e *engine) error {
			for ref, id := range ids {
				now, err := w.p.inspectImage(ctx, e, ref)
				if err != nil {
					return err
				}
				if now.ID != id {
					return &fault.Error{Class: fault.Transient, Code: "sandbox.image-moved", What: ref + " was replaced while an image was built on it"}
				}
			}
			return nil
		},
	})
}

func staged(stage string, err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Code: fault.CodeOf(err), Fix: fault.FixOf(err), Stage: stage, Err: err}
}

// layer runs commands as root on top of an image. tools names what they install,
// "" where that is no agent's harness.
func (w *making) layer(ctx context.Context, stage string, base *image, commands []string, tools, of string) (*image, error) {
	if len(commands) == 0 {
		return base, nil
	}
	words := append([]string{"layer", base.ID, base.User, tools}, commands...)
	return w.built(ctx, stage, order{
		key: contentKey(words...), of: of, tools: tools,
		input: func(ctx context.Context, e *engine) (*imagebuild.Input, func(), error) {
			// Builders take no image id, so the image gets a name of its own.
			name := baseRepo + ":" + newToken()[:16]
			err := e.do(ctx, "image tag", lookLimit, func(ctx context.Context) error {
				_, err := e.cli.ImageTag(ctx, client.ImageTagOptions{Source: base.ID, Target: name})
				return err
			})
			if err != nil {
				return nil, nil, err
			}
			in, err := imagebuild.Read(ctx, imagebuild.Source{Inline: layerFile(name, base.User, commands)})
			return in, func() { e.untag(ctx, name) }, err
		},
	})
}

// layerFile is the Dockerfile of commands on top of an image.
func layerFile(base, user string, commands []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s\n", base)
	root := user == "" || user == "0" || user == "root"
	if !root {
		b.WriteString("USER 0\n")
	}
	for _, c := range commands {
		argv, _ := json.Marshal([]string{"/bin/sh", "-ec", c}) // strings always encode
		fmt.Fprintf(&b, "RUN %s\n", argv)
	}
	if !root {
		fmt.Fprintf(&b, "USER %s\n", user)
	}
	return b.String()
}

// untag takes a name away from an image.
func (e *engine) untag(ctx context.Context, name string) {
	ctx, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", lookLimit, "built-in")
	defer cancel()
	// A name that stays costs nothing and is pruned with the images.
	_ = e.do(ctx, "image untag", lookLimit, func(ctx context.Context) error {
		_, err := e.cli.ImageRemove(ctx, name, client.ImageRemoveOptions{})
		return err
	})
}

// contentKey names content by everything that it depends on.
func contentKey(words ...string) string {
	h := sha256.New()
	for _, w := range append([]string{buildRevision}, words...) {
		fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// order is one image to build.
type order struct {
	key, of, tools string
	name           string // "" is one of the key
	modern         bool   // the classic builder cannot read it
	// input returns what is built, and what is done afterwards.
	input func(context.Context, *engine) (*imagebuild.Input, func(), error)
	// sure, where it is set, is asked after the build whether it holds.
	sure func(context.Context, *engine) error
}

// built returns the image of an order: one that was built before, by whomever,
// or a new one. Of all processes of this machine one builds it.
func (w *making) built(ctx context.Context, stage string, o order) (*image, error) {
	name := o.name
	if name == "" {
		name = builtRepo + ":" + o.key
	}
	var img *image
	err := w.do(ctx, stage, func(ctx context.Context, e *engine) error {
		var err error
		if img, err = w.p.reuse(ctx, e, name, o.key); err != nil || img != nil {
			w.origin(originReused)
			return err
		}
		unlock, err := lockBuild(ctx, e.at.host, o.key, func() { w.show(sandbox.Progress{Message: "waiting for another process that builds it"}) })
		if err != nil {
			return err
		}
		defer unlock()
		if img, err = w.p.reuse(ctx, e, name, o.key); err != nil || img != nil {
			w.origin(originReused)
			return err
		}
		if err := w.build(ctx, e, name, o); err != nil {
			return err
		}
		w.origin(originBuilt)
		img, err = w.p.inspectImage(ctx, e, name)
		return err
	})
	return img, err
}

// reuse returns the image that has a key, or nil, and notes that it was used.
func (p *Provider) reuse(ctx context.Context, e *engine, name, key string) (*image, error) {
	img, err := p.inspectImage(ctx, e, name)
	if statusOf(err) == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if img.labels[imageLabel] != key {
		return nil, nil // somebody else's tag
	}
	// The engine notes when a name was given last; it is the only memory of use
	// that all clients of an engine share.
	err = e.do(ctx, "image tag", lookLimit, func(ctx context.Context) error {
		_, err := e.cli.ImageTag(ctx, client.ImageTagOptions{Source: img.ID, Target: name})
		return err
	})
	return img, err
}

func (w *making) build(ctx context.Context, e *engine, name string, o order) error {
	if err := e.roomLeft(ctx); err != nil {
		return err
	}
	in, after, err := o.input(ctx, e)
	if err != nil {
		return err
	}
	defer after()
	opts := imagebuild.Options{
		Tags: []string{name}, Labels: map[string]string{imageLabel: o.key, madeOfLabel: o.of},
		Proxies: imagebuild.DockerProxies(thisHost().configDir(), e.at.host),
		Classic: !imagebuild.HasBuildKit(e.cli.ClientVersion(), w.p.kind == Podman), Credentials: w.p.credentials(), Show: w.show,
	}
	if o.tools != "" { // else those of the image below are in it
		opts.Labels[harnessLabel] = o.tools
	}
	if l, ok := w.s.(sandbox.LogKeeper); ok {
		opts.Log = l.Log
	}
	if !e.at.remote() {
		opts.OOMKills = imagebuild.HostOOMKills
	}
	if _, err := imagebuild.Build(ctx, e.cli, in, opts); err != nil {
		return err
	}
	if o.sure == nil {
		return nil
	}
	err = o.sure(ctx, e)
	if err != nil {
		e.untag(ctx, name)
	}
	return err
}

// lockBuild lets one process of this machine and user build a key on an engine.
// The locks are few and stay: a lock file that is removed can be locked twice.
func lockBuild(ctx context.Context, host, key string, waiting func()) (unlock func(), err error) {
	sum := sha256.Sum256([]byte(host + " " + key))
	l := flock.New(filepath.Join(os.TempDir(), fmt.Sprintf("assay-build-%d-%02x.lock", os.Getuid(), sum[0])), flock.SetPermissions(0o600))
	ok, err := l.TryLock()
	if err == nil && !ok {
		waiting()
		ok, err = l.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil || !ok {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("lock the build: %w", err)
	}
	return func() { _ = l.Unlock() }, nil
}
