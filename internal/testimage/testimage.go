// Package testimage makes the container images that tests run in, without a
// registry: each is assembled from this Linux machine's own tools and imported
// into the engine over its API.
//
// An image's tag is a digest of its content, so equal content is imported once
// per engine, and a test that keeps a reference never sees another image under
// it. The tag "latest" of each name points to the newest content, for files
// that must name an image in advance.
//
// Only tests and the command beside this package import it.
package testimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/gofrs/flock"
	"github.com/moby/moby/client"

	"assay/internal/testreq"
)

// Label marks every image this package makes; its value is the image's short
// name. Containers inherit it, so it stays outside the product's own prefix.
const Label = "assay-test.image"

// Repo is the first part of every image name.
const Repo = "assay-test/"

// ErrHost is the error when this machine lacks what an image is made of.
var ErrHost = errors.New("the host lacks what the test image is made of")

// Kind is one test image.
type Kind struct {
	Name    string // short name: the image is Repo+Name
	Has     string // what is in it, one line
	changes []string
	files   func() (*tree, error)
}

const path = "ENV PATH=/usr/local/bin:/usr/bin:/bin"

// Kinds returns every test image.
func Kinds() []Kind {
	return []Kind{
		{"scratch", "nothing at all", nil, func() (*tree, error) { return newTree(), nil }},
		{"busybox", "a static busybox with its applets, no git", []string{path, "CMD [\"sh\"]"}, busybox},
		{"slice", "bash, coreutils, git, tar, procps; users root and node(1000)", []string{path, "CMD [\"bash\"]"}, sliceRoot},
		{"slice-user", "slice, with USER node", []string{path, "USER node", "CMD [\"bash\"]"}, sliceRoot},
		{"slice-node", "slice, and this machine's node and npm", []string{path, "CMD [\"bash\"]"}, sliceNode},
	}
}

// Scratch returns a reference to an image with an empty root.
func Scratch(tb testing.TB) string { tb.Helper(); return need(tb, "scratch") }

// Busybox returns a reference to an image with a static busybox and its
// applets: a shell, but no bash and no git.
func Busybox(tb testing.TB) string { tb.Helper(); return need(tb, "busybox") }

// Slice returns a reference to an image with bash, coreutils, git, tar, grep,
// sed, awk, find, procps and diff, users root and node(1000), and root as the
// image's user.
func Slice(tb testing.TB) string { tb.Helper(); return need(tb, "slice") }

// SliceUser is Slice with USER node.
func SliceUser(tb testing.TB) string { tb.Helper(); return need(tb, "slice-user") }

// SliceNode is Slice with this machine's node and npm; the test is skipped
// where there are none.
func SliceNode(tb testing.TB) string { tb.Helper(); return need(tb, "slice-node") }

// Podman returns a reference to an image of this package in Podman.
func Podman(tb testing.TB, name string) string {
	tb.Helper()
	cli, _ := testreq.Podman(tb)
	return ensure(tb, "podman", cli, name)
}

// built remembers, per engine and kind, the reference this process already ensured.
var built struct {
	sync.Mutex
	refs map[string]string
}

func need(tb testing.TB, name string) string {
	tb.Helper()
	cli, _ := testreq.Engine(tb)
	return ensure(tb, "docker", cli, name)
}

func ensure(tb testing.TB, engine string, cli *client.Client, name string) string {
	tb.Helper()
	built.Lock()
	defer built.Unlock()
	if ref, ok := built.refs[engine+"/"+name]; ok {
		return ref
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ref, err := Build(ctx, cli, name)
	switch {
	case errors.Is(err, ErrHost) && name == "slice-node":
		testreq.Missing(tb, "node", err.Error())
	case errors.Is(err, ErrHost):
		testreq.Missing(tb, engine, err.Error())
	case err != nil:
		tb.Fatalf("test image %s: %v", name, err)
	}
	if built.refs == nil {
		built.refs = map[string]string{}
	}
	built.refs[engine+"/"+name] = ref
	return ref
}

// Build makes sure that the engine has the image called name with this
// machine's content, points its tag "latest" at it, and returns the reference
// with the content's tag. The error is ErrHost where the image cannot be made
// on this machine.
func Build(ctx context.Context, cli *client.Client, name string) (string, error) {
	var kind Kind
	for _, k := range Kinds() {
		if k.Name == name {
			kind = k
		}
	}
	if kind.files == nil {
		return "", fmt.Errorf("no test image is called %q", name)
	}
	t, err := kind.files()
	if err != nil {
		return "", err
	}
	changes := append([]string{"LABEL " + Label + "=" + kind.Name}, kind.changes...)
	sum := sha256.New()
	if err := t.writeTar(sum); err != nil {
		return "", err
	}
	fmt.Fprintf(sum, "%q", changes)
	ref := Repo + kind.Name + ":" + hex.EncodeToString(sum.Sum(nil))[:12]

	// Test binaries run side by side: two that import at once would leave an
	// untagged twin of the image behind.
	lock := flock.New(filepath.Join(os.TempDir(), fmt.Sprintf("assay-test-images-%d.lock", os.Getuid())))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()

	_, err = cli.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		err = importTree(ctx, cli, t, ref, changes)
	}
	if err != nil {
		return "", err
	}
	_, err = cli.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: Repo + kind.Name + ":latest"})
	return ref, err
}

// importTree streams the tree into the engine as a one-layer image.
func importTree(ctx context.Context, cli *client.Client, t *tree, ref string, changes []string) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := t.writeTar(w)
		w.CloseWithError(err)
		written <- err
	}()
	res, err := cli.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, ref, client.ImageImportOptions{Changes: changes})
	if err == nil {
		err = errors.Join(importError(res), res.Close())
	}
	// The engine may answer before it has read everything.
	_ = r.Close()
	if werr := <-written; err == nil && werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		err = werr
	}
	return err
}

// importError reads the engine's progress stream to its end: an import that
// failed half-way is a line in a stream with status 200.
func importError(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var line struct {
			Error string `json:"error"`
		}
		switch err := dec.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.Error != "":
			return fmt.Errorf("import: %s", strings.TrimSpace(line.Error))
		}
	}
}

// Remove removes every image this package made from the engine and returns the
// tags that are gone.
func Remove(ctx context.Context, cli *client.Client) ([]string, error) {
	list, err := cli.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("label", Label)})
	if err != nil {
		return nil, err
	}
	var gone []string
	var errs []error
	for _, img := range list.Items {
		// A build of the product from a test image inherits the label; only
		// the tags made here are removed.
		names := img.RepoTags
		if len(names) == 0 {
			names = []string{img.ID}
		}
		for _, n := range names {
			if n != img.ID && !strings.HasPrefix(n, Repo) {
				continue
			}
			if _, err := cli.ImageRemove(ctx, n, client.ImageRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("%s: %w", n, err))
				continue
			}
			gone = append(gone, n)
		}
	}
	return gone, errors.Join(errs...)
}

// Tag gives an image a further name, such as the one that an example pulls.
func Tag(tb testing.TB, cli *client.Client, ref, name string) {
	tb.Helper()
	if _, err := cli.ImageTag(tb.Context(), client.ImageTagOptions{Source: ref, Target: name}); err != nil {
		tb.Fatal(err)
	}
}
