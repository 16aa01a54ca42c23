package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"sync"

	"assay/internal/guest"
	"assay/sandbox"
)

// driver is a container whose first process is the exec server.
type driver struct {
	instance
	s    *stream
	g    *guest.Client
	user guest.User // the sandbox's default

	usersMu sync.Mutex
	users   map[string]guest.User
}

// identity resolves a user by the container's own files, once: what an agent
// writes into them later changes nobody's identity.
func (d *driver) identity(ctx context.Context, name string) (guest.User, error) {
	if name == "" {
		return d.user, nil
	}
	d.usersMu.Lock()
	u, ok := d.users[name]
	d.usersMu.Unlock()
	if ok {
		return u, nil
	}
	u, err := d.g.Lookup(ctx, name)
	if err != nil {
		return u, d.failed(ctx, err)
	}
	d.usersMu.Lock()
	d.users[name] = u
	d.usersMu.Unlock()
	return u, nil
}

// Environ is the image's environment with the user's HOME, USER, LOGNAME.
func (d *driver) Environ(ctx context.Context, user string) (map[string]string, error) {
	u, err := d.identity(ctx, user)
	if err != nil {
		return nil, err
	}
	return environ(d.img, account{name: u.Name, uid: u.UID, home: u.Home}), nil
}

// account is what the environment needs to know of a user.
type account struct {
	name string // empty for a uid without an entry
	uid  uint32
	home string
}

// systemPath is the PATH of images that declare none.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func environ(img *image, u account) map[string]string {
	env := maps.Clone(img.Env)
	if env == nil {
		env = map[string]string{}
	}
	name := u.name
	if name == "" {
		name = fmt.Sprint(u.uid)
	}
	env["HOME"], env["USER"], env["LOGNAME"] = u.home, name, name
	if env["PATH"] == "" {
		env["PATH"] = systemPath
	}
	// Global npm packages of a user who may not write to /usr/local. The folder
	// comes last: what an agent puts there shadows no tool of the image.
	global := path.Join(u.home, ".npm-global")
	env["PATH"] += ":" + global + "/bin"
	if _, set := env["NPM_CONFIG_PREFIX"]; !set && u.uid != 0 {
		env["NPM_CONFIG_PREFIX"] = global
	}
	return env
}

// pairs returns base with over on top as "NAME=value".
func pairs(base, over map[string]string) []string {
	out := make([]string, 0, len(base)+len(over))
	for k, v := range base {
		if _, ok := over[k]; !ok {
			out = append(out, k+"="+v)
		}
	}
	for k, v := range over {
		out = append(out, k+"="+v)
	}
	return out
}

// Exec runs a command through the exec server.
func (d *driver) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	u, err := d.identity(ctx, c.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	base := environ(d.img, account{name: u.Name, uid: u.UID, home: u.Home})
	x, err := d.g.Exec(ctx, guest.ExecRequest{
		Argv: c.Argv, Dir: c.Dir, Env: pairs(base, c.Env), UID: u.UID, GID: u.GID, Groups: u.Groups,
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	return sandbox.Exit(x), d.failed(ctx, err)
}

// failed gives an error of the exec server's client its meaning for the sandbox.
func (d *driver) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, guest.ErrGone):
		return d.broken(ctx, err)
	case errors.Is(err, guest.ErrUnproven):
		return fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)
	default:
		return err
	}
}

// Put unpacks a tar below dir as the sandbox's user.
func (d *driver) Put(ctx context.Context, dir string, tar io.Reader) error {
	_, err := d.g.Put(ctx, dir, tar, guest.PutOptions{UID: d.user.UID, GID: d.user.GID})
	return d.failed(ctx, err)
}

// Get writes a tar of a path.
func (d *driver) Get(ctx context.Context, p string, tar io.Writer) error {
	_, err := d.g.Get(ctx, p, tar, guest.GetOptions{})
	return d.failed(ctx, err)
}

// maxLinks is how many symlinks in a row are followed.
const maxLinks = 16

// stat describes a path and follows a symlink at its end.
func (d *driver) stat(ctx context.Context, p string) (guest.FileInfo, error) {
	for range maxLinks {
		st, err := d.g.Stat(ctx, p)
		if err != nil || st.Type != "symlink" {
			return st, err
		}
		if path.IsAbs(st.Target) {
			p = path.Clean(st.Target)
		} else {
			p = path.Join(path.Dir(p), st.Target)
		}
	}
	return guest.FileInfo{}, fmt.Errorf("%s: too many levels of symlinks", p)
}

// Stat looks at a path.
func (d *driver) Stat(ctx context.Context, p string) (sandbox.FileStat, error) {
	st, err := d.stat(ctx, p)
	if err != nil {
		return sandbox.FileStat{}, d.failed(ctx, err)
	}
	return sandbox.FileStat{
		Dir: st.Type == "dir", Regular: st.Type == "file", Symlink: st.Type == "symlink",
		Mode: st.Mode & 0o777, Size: st.Size, UID: int(st.UID), GID: int(st.GID),
	}, nil
}

// Track hands a request of the change ledger to the exec server.
func (d *driver) Track(ctx context.Context, request []byte, response io.Writer) error {
	return d.failed(ctx, d.g.Ledger(ctx, request, response))
}

// Processes lists what lives in the sandbox.
func (d *driver) Processes(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := d.g.Processes(ctx)
	if err != nil {
		return nil, d.failed(ctx, err)
	}
	out := make([]sandbox.Process, 0, len(ps))
	for _, p := range ps {
		out = append(out, sandbox.Process{PID: p.PID, UID: int(p.UID), Command: p.Command})
	}
	return out, nil
}

// EndProcesses kills every process but the exec server and returns what there
// was.
func (d *driver) EndProcesses(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := d.Processes(ctx)
	if err != nil {
		return nil, err
	}
	_, err = d.g.EndProcesses(ctx)
	return ps, d.failed(ctx, err)
}

// Digest hashes files by the exec server's own code.
func (d *driver) Digest(ctx context.Context, paths []string) ([]string, error) {
	ds, err := d.g.Digest(ctx, paths...)
	if err != nil {
		return nil, d.failed(ctx, err)
	}
	out := make([]string, 0, len(ds))
	for i, one := range ds {
		if one.Err != nil && !errors.Is(one.Err, fs.ErrNotExist) {
			return nil, fmt.Errorf("digest of %s: %w", paths[i], one.Err)
		}
		out = append(out, one.SHA256)
	}
	return out, nil
}

// Stop removes the container, which ends whatever runs in it.
func (d *driver) Stop(ctx context.Context) error {
	err := d.stop(ctx)
	// Closing the stream ends the exec server, and with it every process, even
	// where the engine did not answer.
	_ = d.g.Close()
	return err
}

var (
	_ sandbox.Driver       = (*driver)(nil)
	_ sandbox.Environer    = (*driver)(nil)
	_ sandbox.Stater       = (*driver)(nil)
	_ sandbox.Tracker      = (*driver)(nil)
	_ sandbox.ProcessEnder = (*driver)(nil)
	_ sandbox.Digester     = (*driver)(nil)
	_ sandbox.Reporter     = (*driver)(nil)
)
