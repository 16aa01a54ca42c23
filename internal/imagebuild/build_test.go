package imagebuild

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
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// lines remembers what a build printed.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// write makes files below dir.
func write(tb testing.TB, dir string, files map[string]string) {
	tb.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// builders runs a test with each builder.
func builders(t *testing.T, f func(t *testing.T, classic bool)) {
	t.Helper()
	for name, classic := range map[string]bool{"buildkit": false, "classic": true} {
		t.Run(name, func(t *testing.T) { f(t, classic) })
	}
}

// source reads a Dockerfile that stands in dir with the context dir.
func source(tb testing.TB, dir string) *Input {
	tb.Helper()
	in, err := Read(tb.Context(), Source{Context: dir, Dockerfile: filepath.Join(dir, "Dockerfile")})
	if err != nil {
		tb.Fatal(err)
	}
	return in
}

func limited(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// discard removes an image after the test.
func discard(tb testing.TB, cli *client.Client, id string) {
	tb.Helper()
	tb.Cleanup(func() {
		_, err := cli.ImageRemove(context.Background(), id, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if err != nil {
			tb.Logf("remove %s: %v", id, err)
		}
	})
}

func TestBuildWithEachBuilder(t *testing.T) {
	cli, _ := testreq.Engine(t)
	base := testimage.Busybox(t)
	builders(t, func(t *testing.T, classic bool) {
		dir, l := t.TempDir(), &lines{}
		write(t, dir, map[string]string{
			"Dockerfile": "FROM " + base + " AS first\nARG WORD\nRUN echo said $WORD && echo $WORD > /word\nFROM " + base + "\nCOPY --from=first /word /word\nCOPY . /all\n" +
				"RUN ls -A /all\n",
			"keep.txt": "k", "drop.log": "d", "sub/keep.log": "k", ".assay/record/x": "r", ".dockerignore": "*.log\nsub/*\n!sub/keep.log\n",
		})
		in, err := Read(t.Context(), Source{Context: dir, Dockerfile: filepath.Join(dir, "Dockerfile"), Args: map[string]string{"WORD": randomID()}})
		if err != nil {
			t.Fatal(err)
		}
		var shown lines
		id, err := Build(limited(t), cli, in, Options{Classic: classic, Tags: []string{"assay-test/build:" + in.Digest()[:12]}, Labels: map[string]string{"x.y": "z"}, Log: l.add, Show: func(p sandbox.Progress) { shown.add(p.Message) }})
		if err != nil {
			t.Fatalf("%v\n%s", err, l)
		}
		discard(t, cli, id)
		img, err := cli.ImageInspect(t.Context(), id)
		if err != nil || img.Config.Labels["x.y"] != "z" || !slices.Contains(img.RepoTags, "assay-test/build:"+in.Digest()[:12]) {
			t.Errorf("image %+v, %v", img, err)
		}
		for _, want := range []string{"said " + in.src.Args["WORD"], "keep.txt", "sub"} {
			if !strings.Contains(l.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, l)
			}
		}
		for _, not := range []string{"drop.log", ".assay"} {
			if strings.Contains(l.String(), not) {
				t.Errorf("the log has %q:\n%s", not, l)
			}
		}
		if !strings.Contains(shown.String(), "RUN ls -A /all") {
			t.Errorf("shown: %s", &shown)
		}
	})
}

func TestFailingStep(t *testing.T) {
	cli, _ := testreq.Engine(t)
	base := testimage.Busybox(t)
	builders(t, func(t *testing.T, classic bool) {
		for name, c := range map[string]struct {
			lines string
			class fault.Class
			code  string
			exit  int
			log   string
		}{
			"a command":    {"RUN echo fine\nRUN echo it broke >&2; exit 3\n", fault.Config, "sandbox.build-failed", 3, "it broke"},
			"a full disk":  {"RUN dd if=/dev/zero of=/dev/shm/x bs=1M count=999\n", fault.Resource, "enospc", 1, "No space left on device"},
			"a lost file":  {"COPY nowhere /x\n", fault.Config, "sandbox.build-failed", 0, ""},
			"a lost stage": {"COPY --from=assay-test/nowhere.invalid:1 /x /x\n", fault.Config, "sandbox.image-missing", 0, ""},
			"killed":       {"RUN echo dying; exit 137\n", fault.Config, "sandbox.build-failed", 137, "dying"},
		} {
			t.Run(name, func(t *testing.T) {
				dir, l := t.TempDir(), &lines{}
				write(t, dir, map[string]string{"Dockerfile": "FROM " + base + "\n" + c.lines})
				_, err := Build(limited(t), cli, source(t, dir), Options{Classic: classic, NoCache: true, Log: l.add})
				if fault.ClassOf(err) != c.class || fault.CodeOf(err) != c.code || fault.FixOf(err) == "" {
					t.Fatalf("%v: class %s, code %q, fix %q; want %s, %q\n%s", err, fault.ClassOf(err), fault.CodeOf(err), fault.FixOf(err), c.class, c.code, l)
				}
				step, ok := asStep(err)
				if !ok || step.ExitCode != c.exit || !strings.Contains(step.Log(), c.log) || strings.Contains(step.Log(), "fine") {
					t.Errorf("step %+v, want exit code %d and a log with %q alone\n%s", step, c.exit, c.log, l)
				}
			})
		}
	})
}

func asStep(err error) (*StepError, bool) {
	var s *StepError
	ok := errors.As(err, &s)
	return s, ok
}

// A registry that wants a login is asked by the builder itself, with the
// credentials that it gets over the session or with the request.
func TestBuildersLogIn(t *testing.T) {
	cli, _ := testreq.Engine(t)
	real := ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0)))
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("u:secret"))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	layer, err := random.Layer(100, types.DockerLayer)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: cf.RootFS})
	if err != nil {
		t.Fatal(err)
	}
	builders(t, func(t *testing.T, classic bool) {
		ref, err := name.ParseReference(host + "/x:" + fmt.Sprint(classic))
		if err == nil {
			err = remote.Write(ref, img, remote.WithAuth(&authn.Basic{Username: "u", Password: "secret"}))
		}
		if err != nil {
			t.Fatal(err)
		}
		for password, code := range map[string]string{"wrong": "sandbox.registry-denied", "secret": ""} {
			in, err := Read(t.Context(), Source{Inline: "FROM " + ref.Name() + "\nLABEL x=" + randomID() + "\n"})
			if err != nil {
				t.Fatal(err)
			}
			id, err := Build(limited(t), cli, in, Options{Classic: classic, Credentials: func(h string) (registry.AuthConfig, bool) {
				return registry.AuthConfig{Username: "u", Password: password, ServerAddress: h}, h == host
			}})
			if fault.CodeOf(err) != code {
				t.Errorf("password %s: %v (%s)", password, err, fault.CodeOf(err))
			}
			if err == nil {
				discard(t, cli, id)
				discard(t, cli, ref.Name())
			}
		}
	})
}

func TestAStepThatRunsOutOfMemory(t *testing.T) {
	cli, _ := testreq.Engine(t)
	in, err := Read(t.Context(), Source{Inline: "FROM " + testimage.Busybox(t) + "\nRUN echo eating; dd if=/dev/zero of=/dev/null bs=256M count=1\n"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Build(limited(t), cli, in, Options{Classic: true, Memory: 32 << 20, NoCache: true, OOMKills: HostOOMKills})
	step, ok := asStep(err)
	if fault.ClassOf(err) != fault.Resource || fault.CodeOf(err) != "oom" || !ok || step.ExitCode != 137 || !strings.Contains(err.Error(), "exit code 137") || !strings.Contains(step.Log(), "eating") {
		t.Errorf("%v: class %s, code %q, step %+v", err, fault.ClassOf(err), fault.CodeOf(err), step)
	}
}
