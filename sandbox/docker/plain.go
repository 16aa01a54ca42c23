package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/internal/guestbox"
	"assay/sandbox"
)

// marker is the variable that tells the processes of one command from all
// others; service managers set a variable of this name, with the same form.
const marker = "INVOCATION_ID"

// plain is a container whose commands run through the engine's own exec. Its
// first process waits for the end of the stream that is attached to it, so that
// here, too, nothing outlives the runner.
//
// What the engine cannot do is done with the image's shell: ending a command's
// process tree. Where that fails the container is killed.
type plain struct {
	instance
	s     *stream
	users accounts
	user  plainUser
	ended chan struct{} // closed when the first process's stream has ended

	mu       sync.Mutex
	homes    map[string]plainUser
	oomKills int // as far as it was looked up
}

// createPlain makes a container that needs `cat` and no exec server.
func (p *Provider) createPlain(ctx context.Context, e *engine, img *image, r sandbox.CreateRequest) (sandbox.Driver, error) {
	c, h := p.blueprint(img, r, []string{"cat"})
	yes := true
	h.Init = &yes // reaps what commands leave behind
	c.Env = []string{marker + "=" + newToken()}
	id, s, err := p.launch(ctx, e, img, r.Owner, c, h, nil)
	if unstartable(err) {
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox.image-unusable", What: "start a container without the exec server", Fix: "Use an image that has the command `cat`.", Err: err}
	}
	if err != nil {
		return nil, err
	}
	d := &plain{instance: instance{p: p, e: e, id: id, img: img}, s: s, ended: make(chan struct{}), homes: map[string]plainUser{}}
	go func() { // ends with the container, or when the stream is closed
		defer close(d.ended)
		_, _ = io.Copy(io.Discard, s)
	}()
	if err := d.settle(ctx, r); err != nil {
		return nil, e.discard(ctx, id, s, err)
	}
	return d, nil
}

// settle reads the container's users and makes the working directory.
func (d *plain) settle(ctx context.Context, r sandbox.CreateRequest) error {
	passwd, err := d.file(ctx, "/etc/passwd")
	if err != nil {
		return err
	}
	group, err := d.file(ctx, "/etc/group")
	if err != nil {
		return err
	}
	d.users = parseAccounts(passwd, group)
	if d.user, err = d.identity(ctx, firstOf(r.User, d.img.User)); err != nil {
		return err
	}
	d.workdir = path.Clean(firstOf(r.Workdir, d.img.Workdir, "/"))
	if !path.IsAbs(d.workdir) || d.workdir == "/" && r.Workdir == "" {
		d.workdir = defaultWorkdir
	}
	if d.workdir == "/" {
		return nil
	}
	return d.mkdir(ctx, d.workdir, 0o755, d.user, true)
}

// file reads a small file; a missing one is empty.
func (d *plain) file(ctx context.Context, p string) ([]byte, error) {
	var out []byte
	err := d.fetch(ctx, p, func(_ container.PathStat, tr *tarReader) error {
		h, err := tr.Next()
		if err != nil {
			return err
		}
		if h.Size > 1<<20 {
			return fmt.Errorf("%s is too large", p)
		}
		out, err = io.ReadAll(tr)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// identity resolves a user once. A uid without an entry gets a private home.
func (d *plain) identity(ctx context.Context, name string) (plainUser, error) {
	d.mu.Lock()
	u, ok := d.homes[name]
	d.mu.Unlock()
	if ok {
		return u, nil
	}
	u, err := d.users.find(name)
	if err != nil {
		return u, err
	}
	if u.home == "" {
		u.home = fmt.Sprintf("/tmp/.home-%d", u.uid)
		if err := d.mkdir(ctx, u.home, 0o700, u, true); err != nil {
			return u, err
		}
	}
	d.mu.Lock()
	d.homes[name] = u
	d.mu.Unlock()
	return u, nil
}

func (d *plain) userOf(ctx context.Context, name string) (plainUser, error) {
	if name == "" {
		return d.user, nil
	}
	return d.identity(ctx, name)
}

// Environ is the image's environment with the user's HOME, USER, LOGNAME.
func (d *plain) Environ(ctx context.Context, user string) (map[string]string, error) {
	u, err := d.userOf(ctx, user)
	if err != nil {
		return nil, err
	}
	return environ(d.img, u.account), nil
}

// failed gives an error of an engine call its meaning for the sandbox: a
// container that ended makes every later call a conflict or a "not found".
func (d *plain) failed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.As(err, new(callerError)) || errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != "" {
		return err
	}
	var ce *callError
	if !errors.As(err, &ce) {
		return err
	}
	if s := ce.status; ce.answered() && s != http.StatusNotFound && s != http.StatusConflict && s < 500 {
		return err
	}
	look, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "engine-call", afterlife, "built-in")
	defer cancel()
	if health := d.Health(look); errors.Is(health, sandbox.ErrUnusable) {
		return d.broken(ctx, err)
	}
	return err
}

// Digest hashes files on the host, from the engine's archive of them.
func (d *plain) Digest(ctx context.Context, paths []string) ([]string, error) {
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		sum, err := d.digest(ctx, p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("digest of %s: %w", p, err)
		}
		out = append(out, sum)
	}
	return out, nil
}

// Processes lists what lives in the sandbox, by the word of its own shell.
func (d *plain) Processes(ctx context.Context) ([]sandbox.Process, error) {
	out, err := d.script(ctx, "0:0", listScript)
	if err != nil {
		return nil, err
	}
	return parseProcesses(out), nil
}

// EndProcesses kills every process but the container's own, and then asks the
// engine, which reads the kernel's list and not the container's tools, whether
// that is true.
func (d *plain) EndProcesses(ctx context.Context) ([]sandbox.Process, error) {
	ps, err := d.Processes(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := d.script(ctx, "0:0", endScript); err != nil {
		return ps, err
	}
	n, err := d.e.processes(ctx, d.id)
	if err != nil {
		return ps, d.failed(ctx, err)
	}
	if n > ownProcesses {
		return ps, &fault.Error{Code: "processes-left", What: fmt.Sprintf("%d processes of the sandbox did not end", n-ownProcesses), Err: sandbox.ErrUnusable}
	}
	return ps, nil
}

// ownProcesses are the container's own: its init and the process that waits.
const ownProcesses = 2

// Stop removes the container, which ends whatever runs in it.
func (d *plain) Stop(ctx context.Context) error {
	err := d.stop(ctx)
	_ = d.s.Close()
	return err
}

// script runs one of this package's own scripts and returns what it printed.
func (d *plain) script(ctx context.Context, user, text string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	x, err := d.run(ctx, execution{
		user: user, dir: "/", argv: append([]string{"/bin/sh", "-c", text, "sh"}, args...),
		env: []string{marker + "=" + newToken(), "PATH=" + scriptPath}, stdout: &out, stderr: &errs,
	})
	if err != nil {
		return "", err
	}
	if x.Code != 0 {
		return "", &fault.Error{Code: "processes-unsupported", What: fmt.Sprintf("the sandbox's shell cannot look at processes: exit %d: %s", x.Code, sandbox.Tail(errs.String(), 160))}
	}
	return out.String(), nil
}

// Exec runs a command through the engine.
func (d *plain) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	if err := d.alive(ctx); err != nil {
		return sandbox.Exit{}, err
	}
	u, err := d.userOf(ctx, c.User)
	if err != nil {
		return sandbox.Exit{}, err
	}
	over := maps.Clone(c.Env)
	if over == nil {
		over = map[string]string{}
	}
	id := newToken()
	over[marker] = id
	base := environ(d.img, u.account)
	ex := execution{
		user: u.spec, dir: c.Dir, argv: c.Argv, env: guestbox.Pairs(base, over), stdin: c.Stdin, stdout: c.Stdout, stderr: c.Stderr,
	}
	ex.end = func() error { return d.endTree(ctx, id, u) }
	if cause := fault.Cause(ctx); cause != nil {
		return sandbox.Exit{}, cause
	}
	x, err := d.run(ctx, ex)
	switch {
	case x.over:
		return sandbox.Exit{}, err
	case err == nil && x.unstarted:
		dirs := over["PATH"]
		if dirs == "" {
			dirs = base["PATH"]
		}
		return d.unstarted(ctx, c, dirs, x)
	case err == nil:
		return d.exited(ctx, x.Code)
	case fault.Cause(ctx) != nil:
		return sandbox.Exit{}, d.endTree(ctx, id, u)
	default:
		return sandbox.Exit{}, d.failed(ctx, err)
	}
}

// alive returns why the container must not be used any more, or nil. The engine
// moves files of a container that has ended as if nothing were wrong.
func (d *plain) alive(ctx context.Context) error {
	select {
	case <-d.ended:
		return d.broken(ctx, errors.New("its first process has ended"))
	default:
		return nil
	}
}

// killSettles is how long the end of a container may be behind the end of the
// commands in it.
const killSettles = 500 * time.Millisecond

// exited turns the engine's exit code into a result. The engine does not tell
// `exit 137` from a kill, so a signal is named only where the kernel says that it
// ended something for memory. A kill is looked into: it may have been the end of
// the whole container.
func (d *plain) exited(ctx context.Context, code int) (sandbox.Exit, error) {
	if code == 128+9 {
		settle := time.NewTimer(killSettles)
		defer settle.Stop()
		select {
		case <-d.ended:
			return sandbox.Exit{}, d.broken(ctx, errors.New("the command was killed"))
		case <-settle.C:
		}
		look, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "engine-call", afterlife, "built-in")
		defer cancel()
		if health := d.Health(look); errors.Is(health, sandbox.ErrUnusable) {
			return sandbox.Exit{}, d.broken(ctx, errors.New("the command was killed"))
		}
		if d.ranOut(look) {
			return sandbox.Exit{Code: code, Signal: "SIGKILL", OOM: true}, nil
		}
	}
	return sandbox.Exit{Code: code}, nil
}

// unstarted explains a command that the engine could not start, as a shell
// would.
func (d *plain) unstarted(ctx context.Context, c sandbox.Cmd, dirs string, x ended) (sandbox.Exit, error) {
	if _, err := d.lookAt(ctx, c.Dir); errors.Is(err, fs.ErrNotExist) {
		return sandbox.Exit{}, fault.Configf("no-such-working-directory", "Make the directory first, or choose another.", "the working directory %s does not exist", c.Dir)
	} else if err != nil {
		return sandbox.Exit{}, d.failed(ctx, err)
	}
	found, err := d.executable(ctx, c.Argv[0], c.Dir, dirs)
	if err != nil {
		return sandbox.Exit{}, d.failed(ctx, err)
	}
	exit, text := 127, "not found"
	if found {
		exit, text = 126, "cannot be executed: "+sandbox.Tail(x.words, 240)
	}
	if c.Stderr != nil {
		if _, err := fmt.Fprintf(c.Stderr, "%s: %s\n", c.Argv[0], text); err != nil {
			return sandbox.Exit{}, err
		}
	}
	return sandbox.Exit{Code: exit}, nil
}

// executable looks for a program where a shell would.
func (d *plain) executable(ctx context.Context, name, dir, dirs string) (bool, error) {
	var places []string
	switch {
	case path.IsAbs(name):
		places = []string{name}
	case strings.Contains(name, "/"):
		places = []string{path.Join(dir, name)}
	default:
		for _, p := range strings.Split(dirs, ":") {
			if p != "" {
				places = append(places, path.Join(p, name))
			}
		}
	}
	for _, p := range places {
		_, err := d.lookAt(ctx, p)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

var (
	_ sandbox.Driver       = (*plain)(nil)
	_ sandbox.Environer    = (*plain)(nil)
	_ sandbox.ProcessEnder = (*plain)(nil)
	_ sandbox.Digester     = (*plain)(nil)
	_ sandbox.Reporter     = (*plain)(nil)
)
