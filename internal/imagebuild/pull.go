package imagebuild

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// dockerHub is the host under which Docker's configuration keeps the credentials
// of its own registry.
const dockerHub = "https://index.docker.io/v1/"

// Credentials finds how to log in to a registry, by its host. A nil one logs in
// nowhere.
type Credentials func(host string) (registry.AuthConfig, bool)

// DockerCredentials reads the credentials of `docker login` in a configuration
// folder, and asks the credential helpers that it names. dir "" is the user's.
func DockerCredentials(dir string) Credentials {
	return func(host string) (registry.AuthConfig, bool) {
		if dir == "" {
			dir = config.Dir()
		}
		c, err := config.Load(dir)
		if err != nil {
			return registry.AuthConfig{}, false // the registry says that it wants some
		}
		a, err := c.GetAuthConfig(host)
		if err != nil || a.Username == "" && a.Password == "" && a.IdentityToken == "" && a.RegistryToken == "" {
			return registry.AuthConfig{}, false
		}
		return registry.AuthConfig{Username: a.Username, Password: a.Password, ServerAddress: host, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}, true
	}
}

// DockerProxies reads the proxies that a docker configuration gives to builds on
// an engine. The builders keep them out of the image and of their cache.
func DockerProxies(dir, engine string) map[string]*string {
	if dir == "" {
		return nil
	}
	c, err := config.Load(dir)
	if err != nil {
		return nil
	}
	return c.ParseProxyConfig(engine, nil)
}

// of returns the host and the credentials for an image.
func (c Credentials) of(image string) (string, registry.AuthConfig, bool) {
	if c == nil {
		return "", registry.AuthConfig{}, false
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", registry.AuthConfig{}, false
	}
	host := reference.Domain(named)
	if host == "docker.io" {
		host = dockerHub
	}
	a, ok := c(host)
	return host, a, ok
}

// encode is the credentials for an image as the engine takes them, or "".
func (c Credentials) encode(image string) string {
	_, a, ok := c.of(image)
	if !ok {
		return ""
	}
	b, err := json.Marshal(a)
	if err != nil {
		return ""
	}
	return base64.URLEncoding.EncodeToString(b)
}

// The limits of a pull: as a whole, and without any news from the registry.
const (
	pullLimit  = 60 * time.Minute
	pullSilent = 5 * time.Minute
)

// Pull fetches an image by the engine, with its mirrors. Errors carry a class and
// a code; where the registry asks for patience, the error says for how long, see
// sandbox.Patience.
func Pull(ctx context.Context, cli *client.Client, ref string, c Credentials, show func(sandbox.Progress)) error {
	if show == nil {
		show = func(sandbox.Progress) {}
	}
	bounded, cancel := fault.WithTimeout(ctx, "pull-limit", pullLimit, "built-in")
	defer cancel()
	bounded, hangUp := context.WithCancelCause(bounded)
	defer hangUp(nil)
	silent := time.AfterFunc(pullSilent, func() { hangUp(fmt.Errorf("no news from the registry for %s", pullSilent)) })
	defer silent.Stop()
	err := pull(bounded, cli, ref, c.encode(ref), func(p sandbox.Progress) {
		silent.Reset(pullSilent)
		show(p)
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	out := pullError(ref, errors.Join(err, context.Cause(bounded)))
	if out.Code == "sandbox.registry-rate-limit" {
		if wait := patience(ctx, ref); wait > 0 {
			out.Err = &throttled{out.Err, wait}
		}
	}
	return out
}

func pull(ctx context.Context, cli *client.Client, ref, auth string, show func(sandbox.Progress)) error {
	r, err := cli.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	layers := map[string]jsonstream.Progress{}
	for m, err := range r.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		if m.Progress != nil && m.ID != "" && strings.HasPrefix(m.Status, "Downloading") {
			layers[m.ID] = *m.Progress
		}
		p := sandbox.Progress{Message: "pulling " + ref}
		for _, l := range layers {
			p.Current += l.Current
			p.Total += l.Total
		}
		show(p)
	}
	return nil
}

// throttled is a refusal for now.
type throttled struct {
	err  error
	wait time.Duration
}

func (t *throttled) Error() string {
	return fmt.Sprintf("%v; the registry asks to wait %s", t.err, t.wait)
}
func (t *throttled) Unwrap() error             { return t.err }
func (t *throttled) RetryAfter() time.Duration { return t.wait }

// patience asks a registry that refused for now how long that is. The engine does
// not pass its answer on. 0 is unknown.
func patience(ctx context.Context, ref string) time.Duration {
	n, err := name.ParseReference(ref)
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	h := &retryAfter{base: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}
	_, _ = remote.Head(n, remote.WithContext(ctx), remote.WithTransport(h), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithRetryPredicate(func(error) bool { return false }), remote.WithRetryStatusCodes()) // only the header counts
	return h.wait
}

// retryAfter notes how long a server asks to wait.
type retryAfter struct {
	base http.RoundTripper
	wait time.Duration
}

func (h *retryAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := h.base.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests {
		return resp, err
	}
	v := resp.Header.Get("Retry-After")
	if s, perr := strconv.Atoi(v); perr == nil && s > 0 {
		h.wait = time.Duration(s) * time.Second
	} else if at, perr := http.ParseTime(v); perr == nil {
		h.wait = max(0, time.Until(at))
	}
	return resp, nil
}

// pullError names the failure of a pull. The engine passes a registry's answer
// on as text, most of it as status 500, so the words have to be read; their real
// samples are in testdata/pull.txt.
func pullError(ref string, err error) *fault.Error {
	out := &fault.Error{What: "pull image " + ref, Err: err}
	text := strings.ToLower(err.Error())
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case noSpace(err):
		out.Class, out.Code, out.Fix = fault.Resource, "enospc", freeDisk
	case errors.Is(err, io.ErrUnexpectedEOF) || engineGone(err):
		out.Class, out.Code, out.Fix = fault.Transient, "sandbox.engine-lost", "See whether the engine still runs."
	case has("toomanyrequests", "too many requests", "rate limit", "429"):
		out.Class, out.Code = fault.Transient, "sandbox.registry-rate-limit"
		out.Fix = "Wait, log in with `docker login`, or use a mirror."
	case has("no matching manifest"):
		out.Class, out.Code = fault.Config, "sandbox.image-platform"
		out.Fix = "Use an image that exists for this machine's architecture."
	case has("unauthorized", "authentication required", "no basic auth credentials", "incorrect username or password"):
		out.Class, out.Code = fault.Config, "sandbox.registry-denied"
		out.Fix = "Log in to the registry with `docker login`."
	case has("pull access denied", "manifest unknown", "does not exist", "repository name not known", "name unknown", "name_unknown", "no such image"), cerrdefs.IsNotFound(err):
		out.Class, out.Code = fault.Config, "sandbox.image-missing"
		out.Fix = "Check the image's name and tag; build it, or log in with `docker login` if it is private."
	case has("no such host"):
		out.Class, out.Code = fault.Config, "sandbox.image-missing"
		out.Fix = "The image is not on this machine and its registry cannot be found: check the name, build or load the image, or go online."
	case has("denied:", "forbidden"):
		out.Class, out.Code = fault.Config, "sandbox.registry-denied"
		out.Fix = "Log in to the registry with `docker login`, with an account that may read the image."
	case has("invalid reference format"), cerrdefs.IsInvalidArgument(err):
		out.Class, out.Code = fault.Config, "sandbox.docker-image-invalid"
		out.Fix = "Write the image as name:tag or name@sha256:digest."
	case has("unexpected http status: 4"):
		out.Class, out.Code = fault.Config, "sandbox.registry-denied"
		out.Fix = "Check the image's name and the registry's permissions."
	default:
		out.Class, out.Code = fault.Transient, "sandbox.registry-unreachable"
		out.Fix = "Check the network and the registry, or load the image onto this machine."
	}
	return out
}
