package docker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/bake"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/testreq"
	"assay/sandbox"
)

// made0 is a time that no file has by itself.
var made0 = time.Unix(1_000_000_000, 0)

func asLogged(err error, to *sandbox.Logged) bool { return errors.As(err, to) }

// localRegistry is a real registry on loopback, with faults.
type localRegistry struct {
	host string
	mu   sync.Mutex
	// fault, where it is set, answers a request and returns true.
	fault func(w http.ResponseWriter, r *http.Request) bool
	asked []asked
}

type asked struct {
	at         time.Time
	path, auth string
	refused    bool
}

// newRegistry returns a registry that has the image "x:1".
func newRegistry(t *testing.T) *localRegistry {
	t.Helper()
	l := &localRegistry{}
	real := ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		f := l.fault
		l.mu.Unlock()
		auth := r.Header.Get("Authorization")
		refused := f != nil && f(w, r)
		l.mu.Lock()
		l.asked = append(l.asked, asked{time.Now(), r.Method + " " + r.URL.Path, auth, refused})
		l.mu.Unlock()
		if !refused {
			real.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	l.host = strings.TrimPrefix(s.URL, "http://")
	layer, err := random.Layer(512, types.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: must(img.ConfigFile()).RootFS})
	}
	if err == nil {
		var ref name.Reference
		if ref, err = name.ParseReference(l.host + "/x:1"); err == nil {
			err = remote.Write(ref, img)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	l.asked = nil
	cli, _ := testreq.Engine(t)
	t.Cleanup(func() {
		_, _ = cli.ImageRemove(context.Background(), l.host+"/x:1", client.ImageRemoveOptions{Force: true}) // it may never have come
	})
	return l
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (l *localRegistry) breaks(f func(w http.ResponseWriter, r *http.Request) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

// baked prepares an image as a run does.
func baked(t *testing.T, p *Provider, ref string) (bake.Result, []event.Prepare) {
	t.Helper()
	var mu sync.Mutex
	var told []event.Prepare
	oven := bake.New(func(e event.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e, ok := e.(event.Prepare); ok {
			told = append(told, e)
		}
	})
	env := &plan.Environment{Provider: p, Info: p.Info(), Template: sandbox.Template{Provider: p, Spec: Spec{Image: ref}}, Key: sandbox.Key(ref), Levels: []string{"eval a"}}
	return oven.Prepare(limited(t), env), told
}

func TestPullFromARegistryThatFails(t *testing.T) {
	_, host := testreq.Engine(t)
	t.Run("503 twice", func(t *testing.T) {
		t.Parallel()
		l, times := newRegistry(t), 0
		var mu sync.Mutex
		l.breaks(func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(r.URL.Path, "/manifests/") || times >= 2 {
				return false
			}
			if r.Method == http.MethodGet { // the engine looks with HEAD first
				times++
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		res, told := baked(t, provider(t, host), l.host+"/x:1")
		if res.Err != nil || res.Prepared.Details["origin"] != originPulled || !strings.HasPrefix(res.Prepared.Details["digest"], l.host+"/x@sha256:") {
			t.Fatalf("%+v, %v", res.Prepared, res.Err)
		}
		waits := 0
		for _, e := range told {
			if strings.HasPrefix(e.Message, "trying again in ") {
				waits++
			}
		}
		if waits != 2 || told[len(told)-1].Message != originPulled {
			t.Errorf("%d waits were told: %+v", waits, told)
		}
	})
	t.Run("429 with Retry-After", func(t *testing.T) {
		t.Parallel()
		l := newRegistry(t)
		var mu sync.Mutex
		var first time.Time
		l.breaks(func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			if first.IsZero() {
				first = time.Now()
			}
			if time.Since(first) >= 4*time.Second {
				return false
			}
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}`)
			return true
		})
		res, _ := baked(t, provider(t, host), l.host+"/x:1")
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		// One try was refused, with the question after its reason, and the next came
		// no earlier than the registry asked: the usual 2 s would have come too soon.
		for _, a := range l.asked {
			if since := a.at.Sub(first); a.refused && since > time.Second {
				t.Errorf("it was asked again after %s: %s", since, a.path)
			}
		}
	})
	t.Run("bad credentials", func(t *testing.T) {
		l := newRegistry(t)
		l.breaks(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"incorrect username or password"}]}`)
			return true
		})
		login(t, l.host, "u", "wrong")
		res, told := baked(t, provider(t, host), l.host+"/x:1")
		if res.Err == nil || res.Info.Class != "config" || res.Info.Stage != "image" || fault.CodeOf(res.Err.Err) != "sandbox.registry-denied" || !strings.Contains(res.Err.Fix, "docker login") {
			t.Errorf("%+v, %v", res.Info, res.Err)
		}
		for _, e := range told {
			if strings.HasPrefix(e.Message, "trying again") {
				t.Errorf("a refusal was repeated: %s", e.Message)
			}
		}
	})
	t.Run("missing", func(t *testing.T) {
		l := newRegistry(t)
		res, _ := baked(t, provider(t, host), l.host+"/x:2")
		if res.Err == nil || res.Info.Class != "config" || res.Info.Stage != "image" || fault.CodeOf(res.Err.Err) != "sandbox.image-missing" || res.Err.Fix == "" {
			t.Errorf("%+v, %v", res.Info, res.Err)
		}
	})
}

// login writes a docker configuration with a credential helper.
func login(t *testing.T, host, user, password string) {
	t.Helper()
	dir := folder(t, map[string]string{
		"config.json": fmt.Sprintf(`{"credHelpers":{%q:"test"}}`, host),
		"bin/docker-credential-test": fmt.Sprintf("#!/bin/sh\nread server\n[ \"$1\" = get ] && [ \"$server\" = %q ] && echo '{\"ServerURL\":\"'$server'\",\"Username\":%q,\"Secret\":%q}'\n",
			host, user, password),
	})
	if err := os.Chmod(filepath.Join(dir, "bin/docker-credential-test"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
}

func TestCredentialsComeFromTheHelper(t *testing.T) {
	_, host := testreq.Engine(t)
	l := newRegistry(t)
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("u:secret"))
	l.breaks(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == want {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	login(t, l.host, "u", "secret")
	res, _ := baked(t, provider(t, host), l.host+"/x:1")
	if res.Err != nil {
		t.Fatal(res.Err)
	}
}

func TestATagIsResolvedOncePerRun(t *testing.T) {
	_, host := testreq.Engine(t)
	l := newRegistry(t)
	p := provider(t, host)
	for range 3 {
		if _, err := prepare(t, p, "", Spec{Image: l.host + "/x:1"}, sandbox.Harness{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, a := range l.asked {
		if strings.HasPrefix(a.path, "GET") && strings.Contains(a.path, "/manifests/") {
			n++
		}
	}
	if n > 1 {
		t.Errorf("the manifest was asked for %d times", n)
	}
}

// npmRegistry is the registry that this machine's npm uses.
func npmRegistry(t *testing.T) string {
	t.Helper()
	testreq.Need(t, "npm")
	out, err := exec.Command("npm", "config", "get", "registry").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// authorities are the certificate authorities that this machine trusts.
func authorities(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		testreq.Missing(t, "ca-certificates", err.Error())
	}
	return string(b)
}
