// Package guestbox is the part of a driver that is the same wherever an exec
// server is the sandbox's first process: commands, files, the change ledger,
// processes and digests, each one operation of its client. A driver embeds a Box
// and adds what its provider is about: birth, health and end.
package guestbox

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

// Box serves a sandbox through its exec server. Set the fields before the first
// call; all methods are safe for concurrent use.
type Box struct {
	// Client talks to the exec server.
	Client *guest.Client
	// User is the sandbox's default identity.
	User guest.User
	// Env is the environment of the start point, to which HOME, USER and LOGNAME
	// are added.
	Env map[string]string
	// Permit, when set, refuses identities that the sandbox does not have.
	Permit func(name string, u guest.User) error
	// Gone explains the end of the exec server; its error must match
	// sandbox.ErrUnusable. nil leaves the client's own words.
	Gone func(ctx context.Context, err error) error

	mu    sync.Mutex
	users map[string]guest.User
}

// Identity resolves a user by the sandbox's own files, once: what an agent
// writes into them later changes nobody's identity. "" is the default.
func (b *Box) Identity(ctx context.Context, name string) (guest.User, error) {
	if name == "" {
		return b.User, nil
	}
	b.mu.Lock()
	u, ok := b.users[name]
	b.mu.Unlock()
	if ok {
		return u, nil
	}
	u, err := b.Client.Lookup(ctx, name)
	if err == nil && b.Permit != nil {
		err = b.Permit(name, u)
	}
	if err != nil {
		return u, b.Failed(ctx, err)
	}
	b.mu.Lock()
	if b.users == nil {
		b.users = map[string]guest.User{}
	}
	b.users[name] = u
	b.mu.Unlock()
	return u, nil
}

// Environ is the environment that commands of a user start with.
func (b *Box) Environ(ctx context.Context, user string) (map[string]string, error) {
	u, err := b.Identity(ctx, user)
	if err != nil {
		return nil, err
	}
	return Environ(b.Env, u.Name, u.UID, u.Home), nil
}

// SystemPath is the PATH of start points that declare none.
const SystemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ adds to a start point's environment what belongs to a user; name is
// empty for a uid without an entry.
func Environ(base map[string]string, name string, uid uint32, home string) map[string]string {
	env := maps.Clone(base)
	if env == nil {
		env = map[string]string{}
	}
	if name == "" {
		name = fmt.Sprint(uid)
	}
	env["HOME"], env["USER"], env["LOGNAME"] = home, name, name
	if env["PATH"] == "" {
		env["PATH"] = SystemPath
	}
	// Global npm packages of a user who may not write to /usr/local. The folder
	// comes last: what an agent puts there shadows no tool of the image.
	global := path.Join(home, ".npm-global")
	env["PATH"] += ":" + global + "/bin"
	if _, set := env["NPM_CONFIG_PREFIX"]; !set && uid != 0 {
		env["NPM_CONFIG_PREFIX"] = global
	}
	return env
}

// Pairs returns base with over on top as "NAME=value".
func Pairs(base, over map[string]string) []string {
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

// Exec runs a command.
func (b *Box) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	u, err := b.Identity(ctx, c.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	x, err := b.Client.Exec(ctx, guest.ExecRequest{
		Argv: c.Argv, Dir: c.Dir, Env: Pairs(Environ(b.Env, u.Name, u.UID, u.Home), c.Env), UID: u.UID, GID: u.GID, Groups: u.Groups,
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	return sandbox.Exit(x), b.Failed(ctx, err)
}

// Failed gives an error of the client its meaning for the sandbox.
func (b *Box) Failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, guest.ErrGone) && b.Gone != nil:
		return b.Gone(ctx, err)
	case errors.Is(err, guest.ErrGone), errors.Is(err, guest.ErrUnproven):
		return fmt.Errorf("%w: %w", sandbox.ErrUnusable, err)
	default:
		return err
	}
}

// Put unpacks a tar below dir as the sandbox's user.
func (b *Box) Put(ctx context.Context, dir string, tar io.Reader) error {
	_, err := b.Client.Put(ctx, dir, tar, guest.PutOptions{UID: b.User.UID, GID: b.User.GID})
	return b.Failed(ctx, err)
}

// Get writes a tar of a path.
func (b *Box) Get(ctx context.Context, p string, tar io.Writer) error {
	_, err := b.Client.Get(ctx, p, tar, guest.GetOptions{})
	return b.Failed(ctx, err)
}

// maxLinks is how many symlinks in a row are followed.
const maxLinks = 16

// Look describes a path and follows a symlink at its end. Its errors are the
// client's own.
func (b *Box) Look(ctx context.Context, p string) (guest.FileInfo, error) {
	for range maxLinks {
		st, err := b.Client.Stat(ctx, p)
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
func (b *Box) Stat(ctx context.Context, p string) (sandbox.FileStat, error) {
	st, err := b.Look(ctx, p)
	if err != nil {
		return sandbox.FileStat{}, b.Failed(ctx, err)
	}
	return sandbox.FileStat{
		Dir: st.Type == "dir", Regular: st.Type == "file", Symlink: st.Type == "symlink",
		Mode: st.Mode & 0o777, Size: st.Size, UID: int(st.UID), GID: int(st.GID),
	}, nil
}

// Track hands a request of the change ledger to the exec server.
func (b *Box) Track(ctx context.Context, request []byte, response io.Writer) error {
	return b.Failed(ctx, b.Client.Ledger(ctx, request, response))
}

// Processes lists what lives in the sandbox.
func (b *Box) Processes(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := b.Client.Processes(ctx)
	if err != nil {
		return nil, b.Failed(ctx, err)
	}
	return listed(ps), nil
}

func listed(ps []guest.Process) []sandbox.Process {
	out := make([]sandbox.Process, 0, len(ps))
	for _, p := range ps {
		out = append(out, sandbox.Process{PID: p.PID, UID: int(p.UID), Command: p.Command})
	}
	return out
}

// EndProcesses kills every process but the exec server and returns what there
// was, in one round trip.
func (b *Box) EndProcesses(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := b.Client.EndListed(ctx)
	return listed(ps), b.Failed(ctx, err)
}

// Remove removes a path with what is below it, by the exec server's own code and
// rights.
func (b *Box) Remove(ctx context.Context, p string) error {
	return b.Failed(ctx, b.Client.Remove(ctx, p))
}

// Digest hashes files by the exec server's own code.
func (b *Box) Digest(ctx context.Context, paths []string) ([]string, error) {
	ds, err := b.Client.Digest(ctx, paths...)
	if err != nil {
		return nil, b.Failed(ctx, err)
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
