package native

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"assay/fault"
	"assay/internal/guest/guesttest"
	"assay/internal/ocistore"
	"assay/internal/testimage"
	"assay/sandbox"
	"assay/sandbox/sandboxtest"
)

// sliceRoot is the tar of a small root with a shell, tools and git.
var sliceRoot = sync.OnceValues(func() ([]byte, error) {
	var b bytes.Buffer
	err := testimage.Root(&b, "slice")
	return b.Bytes(), err
})

// entry is one entry of a layer.
type entry struct {
	name, body, link string
	kind             byte
	mode             int64
	uid              int
}

func layerOf(tb testing.TB, entries ...entry) v1.Layer {
	tb.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Uid: e.uid, Gid: e.uid}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(e.body))
		}
		if err := tw.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	return layerFrom(tb, b.Bytes())
}

func layerFrom(tb testing.TB, b []byte) v1.Layer {
	tb.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// imageOf returns an image of the slice root with more layers on top.
func imageOf(tb testing.TB, c v1.Config, layers ...v1.Layer) v1.Image {
	tb.Helper()
	root, err := sliceRoot()
	if errors.Is(err, testimage.ErrHost) {
		guesttest.Require(tb, "tools", false, err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, append([]v1.Layer{layerFrom(tb, root)}, layers...)...)
	if err == nil {
		img, err = mutate.Config(img, c)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return img
}

// saved writes an image as `docker save` does and returns its name for a spec.
func saved(tb testing.TB, img v1.Image) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "image.tar")
	tag, err := name.NewTag("example.test/slice:1")
	if err == nil {
		err = tarball.WriteToFile(file, tag, img)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return "docker-archive:" + file
}

var slicePath = v1.Config{Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "FROM_IMAGE=yes"}}

func TestSuiteImage(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite runs on the host's tools in short mode")
	}
	c := slicePath
	c.User = "node" // the one identity that there may be is not root
	spec := Spec{Image: saved(t, imageOf(t, c))}
	h := harness(t, spec)
	h.Others = []sandbox.Template{{Provider: h.Provider, Spec: Spec{}}}
	h.Break[sandboxtest.PrepareConfig] = func(t testing.TB) sandboxtest.Broken {
		return sandboxtest.Broken{Template: sandbox.Template{Provider: h.Provider, Spec: Spec{Image: "oci:" + t.TempDir()}}}
	}
	h.Break[sandboxtest.PrepareTransient] = func(t testing.TB) sandboxtest.Broken {
		return sandboxtest.Broken{Template: sandbox.Template{Provider: h.Provider, Spec: Spec{Image: "127.0.0.1:1/none:1"}}}
	}
	sandboxtest.Run(t, h)
}

func TestImageDeclaresUserWorkdirAndEnvironment(t *testing.T) {
	c := slicePath
	c.User, c.WorkingDir = "node", "/srv/app"
	p := provider(t)
	d := create(t, p, request(t, p, Spec{Image: saved(t, imageOf(t, c))}))
	if got := run(t, d, "", `echo "$(id -un):$(id -gn):$FROM_IMAGE:$HOME"`); got != "node:node:yes:/home/node" {
		t.Errorf("the image's user and environment are %q", got)
	}
	if d.Workdir() != "/srv/app" {
		t.Errorf("the working directory is %q", d.Workdir())
	}
	run(t, d, "", "cd /srv/app && echo x >f && echo y >$HOME/g")
}

func TestImageLayers(t *testing.T) {
	dir := byte(tar.TypeDir)
	lower := layerOf(
		t,
		entry{name: "data/", kind: dir}, entry{name: "data/gone", body: "old"}, entry{name: "data/kept", body: "kept"},
		entry{name: "opaque/", kind: dir}, entry{name: "opaque/old", body: "old"},
		entry{name: "data/setuid", body: "x", mode: 0o4755}, entry{name: "data/hard", kind: tar.TypeLink, link: "data/kept"},
		entry{name: "data/null", kind: tar.TypeChar}, entry{name: "data/closed/", kind: dir, mode: 0o555}, entry{name: "data/closed/f", body: "in"},
	)
	upper := layerOf(
		t,
		entry{name: "data/.wh.gone"}, entry{name: "opaque/.wh..wh..opq"}, entry{name: "opaque/new", body: "new"},
		entry{name: "data/later", kind: tar.TypeSymlink, link: "/etc/hostname"},
	)
	p := provider(t)
	img := saved(t, imageOf(t, slicePath, lower, upper))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(closedOf(t, p), "closed"), 0o700) }) // for the removal by an ordinary user
	d := create(t, p, request(t, p, Spec{Image: img}))
	for _, c := range [][2]string{
		{"ls /data", "closed hard kept later setuid"},
		{"ls /opaque", "new"},
		{"cat /data/hard /data/closed/f", "keptin"},
		{"readlink /data/later", "/etc/hostname"},
		{"stat -c %a /data/setuid", "755"},
		{"rm -r /opaque; ls -d /opaque 2>&-", ""},
		{"mkdir /opaque && ls /opaque", ""},
	} {
		if got := strings.Join(strings.Fields(try(t, d, "", c[0]).out), " "); got != c[1] {
			t.Errorf("%s: %q, want %q", c[0], got, c[1])
		}
	}
	// What one sandbox did to its root, another does not see.
	e := create(t, p, request(t, p, Spec{Image: img}))
	if got := run(t, e, "", "ls /opaque"); got != "new" {
		t.Errorf("a second sandbox sees %q", got)
	}
}

// closedOf finds the layer that holds a directory without write permission.
func closedOf(t *testing.T, p *Provider) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(p.o.Cache, "*", "layers", "*", "data"))
	if err != nil || len(dirs) == 0 {
		t.Fatal("no layer has data", err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "closed")); err == nil {
			return d
		}
	}
	return ""
}

func TestImageOutOfItsRoot(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for what, l := range map[string]v1.Layer{
		"a name with ..":     layerOf(t, entry{name: "../../../../../.." + outside + "/f", body: "x"}),
		"a symlink, then in": layerOf(t, entry{name: "way", kind: tar.TypeSymlink, link: outside}, entry{name: "way/f", body: "x"}),
		"a hard link":        layerOf(t, entry{name: "link", kind: tar.TypeLink, link: "../../etc/passwd"}),
	} {
		p := provider(t)
		tm := sandbox.Template{Provider: p, Spec: Spec{Image: saved(t, imageOf(t, slicePath, l))}}
		if _, err := p.Prepare(limited(t), tm, sandbox.Harness{}, onceSteps{}); err == nil && what != "a hard link" {
			t.Errorf("%s: no error", what)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Errorf("%s: the host got %v, %v", what, left, err)
		}
	}
}

// An image whose own /dev, /proc and /etc are symlinks must not make the set-up
// write anywhere but inside.
func TestImageWithHostileRoot(t *testing.T) {
	outside := t.TempDir()
	l := layerOf(
		t,
		entry{name: ".wh.etc"}, entry{name: "etc", kind: tar.TypeSymlink, link: outside},
		entry{name: "dev", kind: tar.TypeSymlink, link: outside}, entry{name: "proc", kind: tar.TypeSymlink, link: "../../../.." + outside},
	)
	p := provider(t)
	r := request(t, p, Spec{Image: saved(t, imageOf(t, slicePath, l))})
	if d, err := p.Create(limited(t), r); err == nil {
		if err := d.Stop(limited(t)); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("the host got %v, %v", left, err)
	}
}

func TestImagePlaces(t *testing.T) {
	img := imageOf(t, slicePath)
	// Handlers of the registry log every request.
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/team/slice:1")
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if _, err := layout.Write(folder, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})); err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	p := provider(t)
	for _, spec := range []string{ref.Name(), "oci:" + folder, saved(t, img)} {
		r := request(t, p, Spec{Image: spec})
		if r.From.Ref != id.String() {
			t.Errorf("%s is image %s, want %s", spec, r.From.Ref, id)
		}
		if got := run(t, create(t, p, r), "", "echo $FROM_IMAGE; git --version >/dev/null"); got != "yes" {
			t.Errorf("%s: %q", spec, got)
		}
	}
	srv.Close()
	// Unpacked once: the registry is not asked again.
	request(t, p, Spec{Image: ref.Name()})
	missing := sandbox.Template{Provider: p, Spec: Spec{Image: strings.TrimPrefix(srv.URL, "http://") + "/other:1"}}
	if _, err := p.Prepare(limited(t), missing, sandbox.Harness{}, onceSteps{}); fault.ClassOf(err) != fault.Transient {
		t.Errorf("a registry that is down: %v", err)
	}
}

func TestImageFromEngine(t *testing.T) {
	ref := testimage.Slice(t)
	p := provider(t)
	d := create(t, p, request(t, p, Spec{Image: "docker:" + ref}))
	if got := run(t, d, "", "echo $PATH"); !strings.HasPrefix(got, "/usr/local/bin:") {
		t.Errorf("PATH is %q", got)
	}
}

func TestImagesAreCollectedUnlessInUse(t *testing.T) {
	p := provider(t)
	request(t, p, Spec{Image: saved(t, imageOf(t, slicePath))})
	// Another process, as the lock sees it.
	q := New(Options{Guest: p.o.Guest, Cache: p.o.Cache})
	s, err := q.images()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	if gone, err := s.Collect(context.Background(), func(ocistore.Image) bool { return true }); err != nil || len(gone) > 0 {
		t.Errorf("an image in use was collected: %v, %v", gone, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Collect(context.Background(), func(ocistore.Image) bool { return true }); err != nil || len(gone) != 1 {
		t.Errorf("collected %v, %v, want one image", gone, err)
	}
	if left, err := filepath.Glob(filepath.Join(p.o.Cache, "*", "layers", "*")); err != nil || len(left) > 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
}
