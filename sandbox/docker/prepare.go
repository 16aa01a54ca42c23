package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"assay/fault"
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
}

// Prepare finds the image, pulls it when it is missing, and resolves its name to
// its id, so that a tag that moves during the run changes nothing. Stages are
// "image" and "pull".
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, _ sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	spec, err := specOf(p.kind, t)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	var img *image
	details := map[string]string{"image": spec.Image}
	find := func(ctx context.Context) error {
		e, err := p.connect(ctx)
		if err != nil {
			return err
		}
		img, err = p.inspectImage(ctx, e, spec.Image, details)
		return err
	}
	err = s.Do(ctx, "image", func(ctx context.Context) error {
		err := find(ctx)
		if statusOf(err) == http.StatusNotFound && pullable(spec.Image) {
			return nil // the pull comes next
		}
		return err
	})
	if err == nil && img == nil {
		err = s.Do(ctx, "pull", func(ctx context.Context) error {
			e, err := p.connect(ctx)
			if err != nil {
				return err
			}
			if err := e.pull(ctx, spec.Image, thisHost().registryAuth(spec.Image), progressOf(s)); err != nil {
				return err
			}
			return find(ctx)
		})
	}
	if err != nil {
		return sandbox.Prepared{}, imageError(spec.Image, err)
	}
	return sandbox.Prepared{Ref: img.ID, Details: details, Data: img}, nil
}

// imageError gives an error of the preparation its stage and, for a missing
// image, its code.
func imageError(ref string, err error) error {
	if fault.ClassOf(err) != fault.Unknown || fault.CodeOf(err) != "" {
		return err
	}
	out := &fault.Error{Stage: "image", What: "find image " + ref, Err: err, Class: classify(err)}
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

func (p *Provider) inspectImage(ctx context.Context, e *engine, ref string, details map[string]string) (*image, error) {
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
	img := &image{ID: r.ID, Arch: r.Architecture, Env: map[string]string{}}
	if c := r.Config; c != nil {
		img.User, img.Workdir = c.User, c.WorkingDir
		for _, kv := range c.Env {
			k, v, _ := strings.Cut(kv, "=")
			img.Env[k] = v
		}
	}
	found := map[string]string{"id": r.ID, "platform": r.Os + "/" + r.Architecture}
	if len(r.RepoDigests) > 0 {
		found["digest"] = r.RepoDigests[0]
	}
	maps.Copy(details, found)
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
	img, err := p.inspectImage(ctx, e, from.Ref, map[string]string{})
	if err != nil {
		return nil, imageError(from.Ref, err)
	}
	return img, nil
}

func progressOf(s sandbox.Steps) func(sandbox.Progress) {
	if p, ok := s.(sandbox.Progresser); ok {
		return p.Progress
	}
	return func(sandbox.Progress) {}
}

// The limits of a pull: as a whole, and without any news from the registry.
const (
	pullLimit  = 60 * time.Minute
	pullSilent = 5 * time.Minute
)

// pull fetches an image. It holds no place at the gate: it is the network that
// it waits for.
func (e *engine) pull(ctx context.Context, ref, auth string, show func(sandbox.Progress)) error {
	err := e.ungated(ctx, "pull", pullLimit, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silent := time.AfterFunc(pullSilent, func() { cancel(fmt.Errorf("no news from the registry for %s", pullSilent)) })
		defer silent.Stop()
		r, err := e.cli.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
		if err != nil {
			return err
		}
		layers := map[string]jsonstream.Progress{}
		for m, err := range r.JSONMessages(ctx) {
			if err != nil {
				return errors.Join(err, context.Cause(ctx))
			}
			silent.Reset(pullSilent)
			if m.Error != nil {
				return m.Error
			}
			if m.Progress != nil && m.ID != "" && strings.HasPrefix(m.Status, "Downloading") {
				layers[m.ID] = *m.Progress
			}
			show(pullProgress(ref, layers))
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return pullError(ref, err)
	}
	return err
}

// pullProgress adds the layers up.
func pullProgress(ref string, layers map[string]jsonstream.Progress) sandbox.Progress {
	p := sandbox.Progress{Message: "pulling " + ref}
	for _, l := range layers {
		p.Current += l.Current
		p.Total += l.Total
	}
	return p
}

// registryAuth returns the credentials that docker's config.json holds for the
// registry of an image, encoded for the engine, or "". Credential helpers are
// programs and are not run.
func (s surroundings) registryAuth(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	c, err := s.config()
	if err != nil {
		return ""
	}
	domain := reference.Domain(named)
	keys := []string{domain, "https://" + domain, "https://" + domain + "/v1/", "https://" + domain + "/v2/"}
	if domain == "docker.io" {
		keys = append(keys, "https://index.docker.io/v1/", "index.docker.io")
	}
	for _, k := range keys {
		a, ok := c.Auths[k]
		if !ok || a.Auth == "" && a.IdentityToken == "" {
			continue
		}
		out := map[string]string{"serveraddress": domain}
		if a.IdentityToken != "" {
			out["identitytoken"] = a.IdentityToken
		}
		if b, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
			user, pass, _ := strings.Cut(string(b), ":")
			out["username"], out["password"] = user, strings.TrimRight(pass, "\x00")
		}
		b, err := json.Marshal(out)
		if err != nil {
			return ""
		}
		return base64.URLEncoding.EncodeToString(b)
	}
	return ""
}
