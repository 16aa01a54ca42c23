package ocistore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"assay/fault"
)

// Get returns the image of a ref, which it fetches and unpacks when the store
// does not have it. A name in a registry is asked for once: what is unpacked
// under it stays until it is collected.
func (s *Store) Get(ctx context.Context, r Ref, show Progress) (*Image, error) {
	key, err := r.Key()
	if err != nil {
		return nil, err
	}
	if r.Place == Engine {
		return s.fromEngine(ctx, r, show)
	}
	if img, err := s.Find(key); err != nil || img != nil {
		return img, err
	}
	var src v1.Image
	switch r.Place {
	case Archive:
		src, err = tarball.ImageFromPath(r.Name, nil)
	case Layout:
		src, err = fromLayout(r.Name)
	default:
		src, err = fromRegistry(ctx, r.Name)
	}
	if err != nil {
		return nil, explain(r, err)
	}
	img, err := s.Add(ctx, key, r, src, show)
	return img, explain(r, err)
}

func platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

// fromRegistry uses the credentials of `docker login` and its helpers.
func fromRegistry(ctx context.Context, image string) (v1.Image, error) {
	n, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	return remote.Image(n, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform()))
}

// fromLayout finds the image for this machine in a layout that holds one, or one
// for each of several platforms.
func fromLayout(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	return pick(index, 0)
}

func pick(index v1.ImageIndex, depth int) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && !d.Platform.Satisfies(platform()) {
			continue
		}
		if d.MediaType.IsIndex() && depth < 4 {
			next, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := pick(next, depth+1); err == nil {
				return img, nil
			}
			continue
		}
		if d.MediaType.IsImage() {
			return index.Image(d.Digest)
		}
	}
	return nil, fault.Configf("sandbox.image-platform", "Use an image that exists for this machine's architecture.", "the layout holds no image for linux/%s", runtime.GOARCH)
}

// fromEngine asks the local engine for an image, by the two calls of its API
// that every version has: inspect, and save.
func (s *Store) fromEngine(ctx context.Context, r Ref, show Progress) (*Image, error) {
	c, base, err := engine()
	if err != nil {
		return nil, err
	}
	defer c.CloseIdleConnections()
	var about struct{ Id string }
	body, err := call(ctx, c, base+"/images/"+url.PathEscape(r.Name)+"/json")
	if err == nil {
		err = json.NewDecoder(io.LimitReader(body, 16<<20)).Decode(&about)
		_ = body.Close()
	}
	if err != nil {
		return nil, explain(r, err)
	}
	key := Engine + ":" + about.Id
	if img, err := s.Find(key); err != nil || img != nil {
		return img, err
	}
	tmp, err := os.CreateTemp(filepath.Join(s.dir, "new"), "save-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	defer func() { _ = tmp.Close() }()
	body, err = call(ctx, c, base+"/images/"+url.PathEscape(r.Name)+"/get")
	if err == nil {
		_, err = io.Copy(tmp, body)
		err = errors.Join(err, body.Close())
	}
	if err != nil {
		return nil, explain(r, err)
	}
	src, err := tarball.ImageFromPath(tmp.Name(), nil)
	if err != nil {
		return nil, explain(r, err)
	}
	img, err := s.Add(ctx, key, r, src, show)
	return img, explain(r, err)
}

// engine returns a client of the local engine and the start of its URLs.
func engine() (*http.Client, string, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	u, err := url.Parse(host)
	if err != nil || u.Scheme != "unix" && u.Scheme != "tcp" && u.Scheme != "http" {
		return nil, "", fault.Configf("sandbox.engine-unreachable", "Save the image with `docker save` and use docker-archive:.", "images cannot be taken from the engine at %q", host)
	}
	if u.Scheme != "unix" {
		return &http.Client{Transport: &http.Transport{}}, "http://" + u.Host, nil
	}
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", u.Path)
	}}}, "http://engine", nil
}

// engineError is an answer of the engine that is no success.
type engineError struct {
	status int
	text   string
}

func (e *engineError) Error() string {
	return fmt.Sprintf("the engine answered %d: %s", e.status, e.text)
}

func call(ctx context.Context, c *http.Client, at string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // what came is enough
	_ = resp.Body.Close()
	return nil, &engineError{resp.StatusCode, strings.TrimSpace(string(b))}
}

// explain gives an error of fetching or unpacking its class, code and fix.
func explain(r Ref, err error) error {
	if err == nil || fault.CodeOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	out := &fault.Error{Stage: "image", What: "get image " + r.String(), Err: err}
	var te *transport.Error
	var ee *engineError
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		out.Class, out.Code, out.Fix = fault.Resource, "enospc", "Free space in the cache folder."
	case errors.As(err, &te) && te.StatusCode == http.StatusTooManyRequests:
		out.Class, out.Code, out.Fix = fault.Transient, "sandbox.registry-rate-limit", "Wait, log in with `docker login`, or use a mirror."
	case errors.As(err, &te) && te.StatusCode == http.StatusNotFound:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.image-missing", "Check the image's name and tag, or log in with `docker login` if it is private."
	case errors.As(err, &te) && (te.StatusCode == http.StatusUnauthorized || te.StatusCode == http.StatusForbidden):
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.registry-denied", "Log in to the registry with `docker login`, and check the image's name."
	case errors.As(err, &te):
		out.Class, out.Code = fault.Transient, "sandbox.registry-unreachable"
	case errors.As(err, &ee) && ee.status == http.StatusNotFound:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.image-missing", "Build or pull the image with the engine first."
	case r.Place == Engine:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.engine-unreachable", "Start the engine, or let DOCKER_HOST name it."
	case r.Place != Registry:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.image-invalid", "Check the file: it must be the output of `docker save`, or an OCI image layout."
	case errors.As(err, new(*net.DNSError)):
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.image-missing", "The registry cannot be found: check the image's name, go online, or load the image from a file."
	case errors.As(err, &ne), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, io.ErrUnexpectedEOF):
		out.Class, out.Code, out.Fix = fault.Transient, "sandbox.registry-unreachable", "Check the network and the registry."
	}
	return out
}
