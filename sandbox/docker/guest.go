package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/guest"
	"assay/sandbox"
)

// guestBinary is an exec server on this host and the arguments that start it.
type guestBinary struct {
	Path string
	Args []string
}

// stagedGuest is an exec server that is ready to be mounted.
type stagedGuest struct {
	path string
	args []string
}

// stage returns the exec server for an architecture, found once.
func (p *Provider) stage(arch string) (stagedGuest, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g, ok := p.staged[arch]; ok {
		return g, nil
	}
	bin, err := p.find(arch)
	if err != nil {
		return stagedGuest{}, err
	}
	g := stagedGuest{path: bin.Path, args: bin.Args}
	if !neutral(bin.Path) {
		if g.path, err = copyNeutral(bin.Path); err != nil {
			return stagedGuest{}, fmt.Errorf("place the exec server: %w", err)
		}
	}
	p.staged[arch] = g
	return g, nil
}

// neutral reports whether a path names nothing that would tell an agent that it
// is under test: the source of a bind mount shows in the container's mount
// table.
func neutral(path string) bool { return !strings.Contains(strings.ToLower(path), "assay") }

// copyNeutral copies a program to a place, named by its content, whose path is
// neutral.
func copyNeutral(src string) (string, error) {
	f, err := os.Open(src)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	base := os.TempDir()
	if c, err := os.UserCacheDir(); err == nil && neutral(c) {
		base = c
	} else if !neutral(base) {
		return "", fmt.Errorf("neither the cache folder nor the folder for temporary files (%s) has a neutral name", base)
	}
	dst := filepath.Join(base, fmt.Sprintf("container-init-%d", os.Getuid()), hex.EncodeToString(sum.Sum(nil))[:32])
	if st, err := os.Stat(dst); err == nil && st.Mode().IsRegular() && st.Size() == fileSize(f) {
		return dst, nil
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(filepath.Dir(dst), ".new-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = f.Seek(0, io.SeekStart)
	if err == nil {
		_, err = io.Copy(tmp, f)
	}
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), dst)
	}
	return dst, err
}

func fileSize(f *os.File) int64 {
	st, err := f.Stat()
	if err != nil {
		return -1
	}
	return st.Size()
}

// createGuest makes a container whose first process is the exec server.
func (p *Provider) createGuest(ctx context.Context, e *engine, img *image, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if why, ok := p.guestless.Load(img.ID); ok {
		return nil, unfitError{why.(error)}
	}
	bin, err := p.stage(img.Arch)
	if err != nil {
		return nil, unfitError{err}
	}
	d, err := p.tryGuest(ctx, e, img, r, bin)
	if why := (unfitError{}); errors.As(err, &why) && ctx.Err() == nil {
		p.guestless.Store(img.ID, why.err)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (p *Provider) tryGuest(ctx context.Context, e *engine, img *image, r sandbox.CreateRequest, bin stagedGuest) (*driver, error) {
	entry := append([]string{guestPath}, bin.args...)
	c, h := p.blueprint(img, r, entry)
	upload := func(ctx context.Context, id string) error {
		b, err := guestArchive(bin.path)
		if err != nil {
			return err
		}
		return e.upload(ctx, id, "/", bytes.NewReader(b))
	}
	copying := e.at.remote() || p.bindless.Load()
	var fill func(context.Context, string) error
	if copying {
		fill = upload
	} else {
		mountGuest(h, bin.path)
	}
	id, s, err := p.launch(ctx, e, img, r.Owner, c, h, fill)
	if !copying && unseen(err) {
		// An engine in a virtual machine or a container does not see this
		// host's file: give it a copy.
		c, h = p.blueprint(img, r, entry)
		var again error
		if id, s, again = p.launch(ctx, e, img, r.Owner, c, h, upload); again == nil {
			p.bindless.Store(true)
			err = nil
		} else if opOf(again) != "create" {
			err = again
		}
	}
	if err != nil {
		if unstartable(err) {
			return nil, unfitError{err}
		}
		return nil, err
	}
	d := &driver{instance: instance{p: p, e: e, id: id, img: img}, s: s}
	if err := d.greet(ctx, r); err != nil {
		return nil, e.discard(ctx, id, s, err)
	}
	return d, nil
}

// opOf names the engine call that failed.
func opOf(err error) string {
	var ce *callError
	if !errors.As(err, &ce) {
		return ""
	}
	return ce.op
}

// unseen reports whether a container was not made because the engine does not
// see this host's files. Podman says so as an error of its own.
func unseen(err error) bool {
	if opOf(err) != "create" {
		return false
	}
	return statusOf(err) == http.StatusBadRequest || statusOf(err) == http.StatusInternalServerError && strings.Contains(err.Error(), "statfs ")
}

// unstartable reports whether a container did not start because its first
// process cannot be executed. Docker refuses that as a bad request, and nothing
// else of start; Podman passes the words of its runtime on.
func unstartable(err error) bool {
	if opOf(err) != "start" {
		return false
	}
	if statusOf(err) != http.StatusInternalServerError {
		return statusOf(err) == http.StatusBadRequest
	}
	text := err.Error()
	for _, s := range []string{
		"unable to start container process: exec:", // runc
		"executable file `", "open executable",     // crun
		"attempted to invoke a command that was not found", // Podman
		"exec format error",
	} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// greet waits for the exec server, resolves the sandbox's user and makes the
// working directory.
func (d *driver) greet(ctx context.Context, r sandbox.CreateRequest) error {
	hello, cancel := fault.WithTimeout(ctx, "engine-call", helloLimit, "built-in")
	defer cancel()
	g, err := guest.Dial(hello, d.s, guest.Options{})
	if err != nil {
		return d.silent(ctx, err)
	}
	d.Client, d.Env, d.Gone = g, d.img.Env, d.broken
	if d.User, err = g.Lookup(ctx, firstOf(r.User, d.img.User)); err != nil {
		return d.Failed(ctx, err)
	}
	if err := d.Limit(ctx, r.Lifetime); err != nil {
		return err
	}
	d.workdir = path.Clean(firstOf(r.Workdir, d.img.Workdir, "/"))
	if !path.IsAbs(d.workdir) || d.workdir == "/" && r.Workdir == "" {
		d.workdir = defaultWorkdir
	}
	return d.makeWorkdir(ctx)
}

func firstOf(names ...string) string {
	for _, n := range names {
		if n != "" {
			return n
		}
	}
	return ""
}

// silent explains an exec server that did not say hello. A container that ended
// by itself cannot run it; that another try may change is only known of one that
// still runs.
func (d *driver) silent(ctx context.Context, err error) error {
	if cause := fault.Cause(ctx); cause != nil {
		return cause
	}
	words := d.s.words()
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
	defer cancel()
	health := d.Health(look)
	switch fault.CodeOf(health) {
	case "sandbox-exited":
		if words != "" {
			health = fmt.Errorf("%w: it said: %s", health, words)
		}
		return unfitError{health}
	case "":
		return &fault.Error{Class: fault.Transient, Code: "sandbox.start-timeout", What: fmt.Sprintf("the container's exec server did not answer within %s", helloLimit), Err: err}
	default:
		return health
	}
}

// makeWorkdir makes the working directory, or hands over the one that the image
// made as another user.
func (d *driver) makeWorkdir(ctx context.Context) error {
	if d.workdir == "/" {
		return nil
	}
	st, err := d.Look(ctx, d.workdir)
	switch {
	case fault.CodeOf(err) == guest.CodeNotFound:
		var none bytes.Buffer
		if err := tar.NewWriter(&none).Close(); err != nil {
			return err
		}
		return d.Put(ctx, d.workdir, &none)
	case err != nil:
		return d.Failed(ctx, err)
	case st.Type != "dir":
		return fault.Configf("sandbox.workdir", "Choose another `workdir`.", "the working directory %s is no directory", d.workdir)
	case st.UID == d.User.UID && st.GID == d.User.GID:
		return nil
	}
	// The exec server never changes what is there; an unpacked entry of the
	// engine's own archive call does.
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	h := &tar.Header{Typeflag: tar.TypeDir, Name: path.Base(d.workdir) + "/", Mode: int64(st.Mode & 0o7777), Uid: int(d.User.UID), Gid: int(d.User.GID), ModTime: time.Now(), Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return d.e.upload(ctx, d.id, path.Dir(d.workdir), &b)
}

// guestArchive is the exec server as a tar for the root folder.
func guestArchive(file string) ([]byte, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(guestPath, "/"), Mode: 0o755, Size: int64(len(body)), ModTime: time.Unix(0, 0)}); err != nil {
		return nil, err
	}
	if _, err := tw.Write(body); err != nil {
		return nil, err
	}
	err = tw.Close()
	return b.Bytes(), err
}

// goArch turns the names that engines use into Go's.
func goArch(arch string) string {
	switch arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return arch
}
