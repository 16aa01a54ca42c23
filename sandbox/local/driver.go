package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/sandbox"
)

// runner runs the commands of one sandbox.
type runner interface {
	exec(ctx context.Context, c sandbox.Cmd, env []string) (sandbox.Exit, error)
	// lost says why no command can run any more, or nil.
	lost() error
	// stop ends every process that commands left, bounded by ctx.
	stop(ctx context.Context) error
}

// driver is one attempt's use of the working tree.
type driver struct {
	id, dir, private string
	run              runner
	forget           func()

	mu      sync.Mutex
	stopped bool
	gone    bool // everything is cleaned up
}

// ID names the use, not the directory.
func (d *driver) ID() string { return d.id }

// Workdir is the directory.
func (d *driver) Workdir() string { return d.dir }

func (d *driver) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return &fault.Error{Code: "sandbox.stopped", Err: fmt.Errorf("%w: it was stopped", sandbox.ErrUnusable)}
	}
	return d.run.lost()
}

func (d *driver) ready(ctx context.Context) error {
	if err := d.usable(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// hostEnv is what commands inherit. Variables that set up this program itself
// are not for them.
func hostEnv() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if k != "" && !strings.HasPrefix(strings.ToUpper(k), "ASSAY") {
			env[k] = v
		}
	}
	return env
}

// Environ implements sandbox.Environer.
func (d *driver) Environ(_ context.Context, user string) (map[string]string, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if user != "" {
		return nil, noUser(user)
	}
	return hostEnv(), nil
}

func noUser(user string) error {
	return fault.Configf("sandbox.user-unsupported", "Remove `user`, or use a container.", "the local sandbox runs everything as you and cannot run it as %q", user)
}

// Exec runs a command as this user.
func (d *driver) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	if c.User != "" {
		return sandbox.Exit{}, noUser(c.User)
	}
	if err := d.ready(ctx); err != nil {
		return sandbox.Exit{}, err
	}
	env := hostEnv()
	maps.Copy(env, c.Env)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	exit, err := d.run.exec(ctx, c, list)
	if err != nil {
		if gone := d.usable(); gone != nil {
			return sandbox.Exit{}, gone
		}
	}
	return exit, err
}

// Stat implements sandbox.Stater.
func (d *driver) Stat(ctx context.Context, path string) (sandbox.FileStat, error) {
	if err := d.ready(ctx); err != nil {
		return sandbox.FileStat{}, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return sandbox.FileStat{}, absent(err)
	}
	out := sandbox.FileStat{Dir: st.IsDir(), Regular: st.Mode().IsRegular(), Mode: uint32(st.Mode().Perm()), Size: st.Size()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		out.UID, out.GID = int(sys.Uid), int(sys.Gid)
	}
	return out, nil
}

// absent makes a path below something that is no directory a path that does not
// exist.
func absent(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) && errors.Is(pe.Err, syscall.ENOTDIR) {
		return &fs.PathError{Op: pe.Op, Path: pe.Path, Err: fs.ErrNotExist}
	}
	return err
}

// Digest implements sandbox.Digester.
func (d *driver) Digest(ctx context.Context, paths []string) ([]string, error) {
	out := make([]string, len(paths))
	for i, p := range paths {
		if err := d.ready(ctx); err != nil {
			return nil, err
		}
		f, err := openRegular(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		out[i] = hex.EncodeToString(h.Sum(nil))
	}
	return out, nil
}

// openRegular opens a regular file and never blocks on anything else.
func openRegular(p string) (*os.File, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, absent(err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", p)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Remove removes a path outside of the directory, such as what was put beside
// an agent.
func (d *driver) Remove(_ context.Context, path string) error { return os.RemoveAll(path) }

// Track implements sandbox.Tracker. The objects are kept in the private
// directory; a reset is refused, because the tree is the user's.
func (d *driver) Track(ctx context.Context, request []byte, response io.Writer) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	var r snapshot.Request
	if err := json.Unmarshal(request, &r); err != nil {
		return fmt.Errorf("ledger request: %w", err)
	}
	if r.Op == snapshot.OpReset {
		return fault.Configf("sandbox.local-reset-refused", "Use a container to reset between attempts.", "the local sandbox never changes the working tree")
	}
	sum := sha256.Sum256([]byte(r.Store))
	r.Root, r.Store = d.dir, filepath.Join(d.private, hex.EncodeToString(sum[:8]))
	body, err := r.Encode()
	if err != nil {
		return err
	}
	return snapshot.Serve(ctx, body, response)
}

// Stop ends what the commands left running and removes the private directory.
// The working tree stays as it is.
func (d *driver) Stop(ctx context.Context) error {
	d.mu.Lock()
	d.stopped = true
	gone := d.gone
	d.mu.Unlock()
	if gone {
		return nil
	}
	err := d.run.stop(ctx)
	if err == nil {
		err = os.RemoveAll(d.private)
	}
	if err != nil {
		return fmt.Errorf("stop the local sandbox: %w", err)
	}
	d.mu.Lock()
	d.gone = true
	d.mu.Unlock()
	d.forget()
	return nil
}

var (
	_ sandbox.Driver    = (*driver)(nil)
	_ sandbox.Environer = (*driver)(nil)
	_ sandbox.Stater    = (*driver)(nil)
	_ sandbox.Digester  = (*driver)(nil)
	_ sandbox.Tracker   = (*driver)(nil)
)
