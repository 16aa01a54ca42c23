package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/internal/guest/enter"
	"assay/sandbox"
)

// A sandbox that may be kept writes to a folder on disk instead of memory. What
// stands in the folder besides the files is enough to start it again; it is
// written before the first process is.
//
//	<base>/<id>/box.json   what it was made of, and whose it is
//	<base>/<id>/lock       held by the process that runs it
//	<base>/<id>/fs/        what it has written: see enter.Plan.Scratch
const (
	boxFile = "box.json"
	boxLock = "lock"
	boxTree = "fs"
)

// box is the folder of one sandbox.
type box struct {
	dir  string
	lock *flock.Flock
}

// description is box.json.
type description struct {
	Labels    map[string]string `json:"labels"`
	Made      time.Time         `json:"made"`
	Plan      *enter.Plan       `json:"plan"`
	Many      bool              `json:"many"`
	UID       int               `json:"uid"`
	GID       int               `json:"gid"`
	User      string            `json:"user"`
	Workdir   string            `json:"workdir"`
	Env       map[string]string `json:"env"`
	Resources sandbox.Resources `json:"resources"`
	Network   sandbox.Network   `json:"network"`
}

// boxes is the folder of all of them. Its name shows in the mount tables of the
// sandboxes and says nothing.
func (p *Provider) boxes() string {
	if p.o.Boxes != "" {
		return p.o.Boxes
	}
	return "/var/tmp/boxes-" + strconv.Itoa(os.Geteuid())
}

// ownFolder makes the folder of the boxes. What stands at its public place must
// be ours alone.
func ownFolder(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return ours(dir)
}

// ours refuses a folder of boxes that somebody else made or can write to: what
// stands in it may lead anywhere.
func ours(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int(sys.Uid) != os.Geteuid() || st.Mode().Perm()&0o077 != 0 {
		return fault.Configf("sandbox.native-boxes", "Remove it.", "%s is no folder of yours alone", dir)
	}
	return nil
}

// newBox makes the folder of a sandbox and takes its lock.
func (p *Provider) newBox(id string, b *blueprint, r sandbox.CreateRequest) (*box, error) {
	if b.ids.helpers {
		return nil, fault.Configf("sandbox.keep-unsupported", "Run as root, or use docker.", "with subordinate ids a sandbox's files on disk would belong to users whom only the sandbox has")
	}
	if err := ownFolder(p.boxes()); err != nil {
		return nil, err
	}
	x := &box{dir: filepath.Join(p.boxes(), id)}
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		return nil, err
	}
	body, err := json.Marshal(description{
		Labels: r.Owner.Labels(), Made: time.Now().UTC(), Plan: b.plan, Many: b.ids.many, UID: b.uid, GID: b.gid,
		User: b.user, Workdir: b.workdir, Env: b.env, Resources: r.Resources, Network: r.Network,
	})
	if err == nil {
		err = (&atomicfile.Disk{}).Replace(filepath.Join(x.dir, boxFile), body)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(x.dir, boxTree), 0o755)
	}
	if err == nil {
		err = x.take()
	}
	if err != nil {
		return nil, errors.Join(err, x.remove())
	}
	b.plan.Scratch = filepath.Join(x.dir, boxTree)
	return x, nil
}

// errBusy says that another process runs a sandbox.
var errBusy = errors.New("another process runs it")

func (x *box) take() error {
	x.lock = flock.New(filepath.Join(x.dir, boxLock))
	ok, err := x.lock.TryLock()
	if err == nil && !ok {
		err = errBusy
	}
	return err
}

func (x *box) release() {
	if x != nil && x.lock != nil {
		_ = x.lock.Unlock()
	}
}

// running reports whether a process holds a box.
func running(dir string) bool {
	l := flock.New(filepath.Join(dir, boxLock))
	ok, err := l.TryLock()
	if ok {
		_ = l.Unlock()
	}
	return err == nil && !ok
}

// remove deletes the folder. An overlay leaves directories that not even their
// owner may enter.
func (x *box) remove() error {
	if x == nil {
		return nil
	}
	x.release()
	err := os.RemoveAll(x.dir)
	if errors.Is(err, fs.ErrPermission) {
		_ = filepath.WalkDir(x.dir, func(p string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && d.Type()&fs.ModeSymlink == 0 {
				_ = os.Chmod(p, 0o700) // the removal below says what it could not do
			}
			return nil
		})
		err = os.RemoveAll(x.dir)
	}
	return err
}

func describe(dir string) (*description, error) {
	body, err := os.ReadFile(filepath.Join(dir, boxFile))
	if err != nil {
		return nil, err
	}
	var d description
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, boxFile), err)
	}
	return &d, nil
}

// Suspend ends the sandbox's processes, and keeps its files on disk.
func (d *driver) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	if d.box == nil {
		return sandbox.Dormant{}, fault.Configf("sandbox.keep-unsupported", "Run with --keep-sandbox.", "sandbox %s lives in memory and was not made to be kept", d.id)
	}
	if d.isStopped() {
		return sandbox.Dormant{}, d.Health(ctx)
	}
	if err := d.end(ctx, false); err != nil {
		return sandbox.Dormant{}, err
	}
	return sandbox.Dormant{ID: d.id}, nil
}

// Wake starts a sandbox again on its files. Nothing of what it ran lives on.
func (p *Provider) Wake(ctx context.Context, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	if err := ours(p.boxes()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	x := &box{dir: filepath.Join(p.boxes(), filepath.Base(id))}
	about, err := describe(x.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox-removed", What: "sandbox " + id + " is gone", Fix: "Forget it with `sandbox stop`.", Err: err}
	case err != nil:
		return nil, err
	}
	if err := x.take(); err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox-busy", What: "sandbox " + id, Fix: "Wait until the other command has ended.", Err: err}
	}
	d, err := p.rise(ctx, x, about, id, r)
	if err != nil {
		x.release()
		return nil, p.explain(err)
	}
	return d, nil
}

// rise starts the sandbox of a box whose lock is held.
func (p *Provider) rise(ctx context.Context, x *box, about *description, id string, r sandbox.WakeRequest) (*driver, error) {
	prog, err := p.program()
	if err != nil {
		return nil, err
	}
	out, err := egressOf(about.Network)
	if err != nil {
		return nil, err
	}
	b := &blueprint{plan: about.Plan, user: about.User, uid: about.UID, gid: about.GID, env: about.Env, workdir: about.Workdir}
	if about.Many {
		if b.ids = p.identities(); !b.ids.many || b.ids.helpers {
			return nil, fault.Configf("sandbox.user-unsupported", "Run this as the user who kept it.", "sandbox %s has several users, and this user cannot have them", id)
		}
	}
	tree := filepath.Join(x.dir, boxTree)
	// The devices and the names of layers belong to one life; the rest of what
	// was made at birth is there already, perhaps changed since.
	for _, stale := range []string{"low", "dev", "root/dev"} {
		if err := os.RemoveAll(filepath.Join(tree, stale)); err != nil {
			return nil, err
		}
	}
	b.plan.Scratch, b.plan.Files, b.plan.Links, b.plan.Hide = tree, nil, nil, nil
	b.plan.Proxy = out != nil
	ctx, cancel := fault.WithTimeout(ctx, "native-create", helloLimit, "built-in")
	defer cancel()
	return p.start(ctx, prog, b, sandbox.CreateRequest{
		Owner: r.Owner, Resources: about.Resources, Network: about.Network, Lifetime: r.Lifetime, Notes: sandbox.Quiet{},
	}, out, id, x)
}

var (
	_ sandbox.Inventory = (*Provider)(nil)
	_ sandbox.Waker     = (*Provider)(nil)
	_ sandbox.Suspender = (*driver)(nil)
)
