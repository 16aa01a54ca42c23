package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/sandbox"
)

type user struct {
	name     string
	uid, gid int
	home     string
}

// machine is one sandbox: a tree, users and processes.
type machine struct {
	id      string
	p       *Provider
	script  *Script
	labels  map[string]string
	tree    *tree
	users   []user
	def     user
	workdir string

	dead    chan struct{} // closed when the machine is gone
	running sync.WaitGroup

	mu       sync.Mutex
	gone     error // why, once it is gone
	procs    map[int]*proc
	pids     int
	commands int
	used     map[int]int // answers given, by position in the script
	stores   map[string]*snapshot.MemStore
	expires  time.Time
	latest   time.Time // the life cannot be made longer than that; zero is no bound
	timer    *time.Timer
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func newMachine(p *Provider, r sandbox.CreateRequest) (*machine, error) {
	if p.err != nil {
		return nil, p.err
	}
	m := &machine{
		id: newID(), p: p, script: &p.script, labels: r.Owner.Labels(), tree: newTree(),
		users: []user{{"root", 0, 0, "/root"}, {"user", 1000, 1000, "/home/user"}},
		dead:  make(chan struct{}), procs: map[int]*proc{}, used: map[int]int{}, stores: map[string]*snapshot.MemStore{},
	}
	for _, u := range p.script.Users {
		home := u.Home
		if home == "" {
			home = "/home/" + u.Name
		}
		m.users = append(m.users, user{u.Name, u.UID, u.UID, home})
	}
	name := r.User
	if name == "" {
		name = p.script.User
	}
	if name == "" {
		name = "user"
	}
	var ok bool
	if m.def, ok = m.lookup(name); !ok {
		return nil, unknownUser(name)
	}
	m.workdir = r.Workdir
	if m.workdir == "" {
		m.workdir = p.script.Workdir
	}
	if m.workdir == "" {
		m.workdir = path.Join(m.def.home, "workspace")
	}
	if err := m.furnish(); err != nil {
		return nil, err
	}
	life, most := r.Lifetime, p.script.Faults.MaxLifetime
	if most > 0 {
		if life > most {
			return nil, fault.Configf("sandbox.lifetime-too-long", "Lower `lifetime`.", "a sandbox may live for %s, not for %s", most, life)
		}
		if life == 0 {
			life = most
		}
		m.latest = time.Now().Add(most)
	}
	if life > 0 {
		m.expires = time.Now().Add(life)
		m.timer = time.AfterFunc(life, func() { m.end(errors.New("the lifetime of the instance is over")) })
	}
	return m, nil
}

// furnish fills a fresh tree.
func (m *machine) furnish() error {
	t := m.tree
	for _, d := range []string{"/bin", "/etc", "/dev", "/home", "/root", "/usr/bin", "/usr/local/bin", "/var/tmp", "/tmp"} {
		if err := t.mkdirAll(d, 0o755, super); err != nil {
			return err
		}
	}
	for _, d := range []string{"/tmp", "/var/tmp"} {
		if err := t.chmod(d, 0o1777, super); err != nil {
			return err
		}
	}
	t.root.kids["dev"].kids["null"] = t.make(nullDevice, 0o666, super)
	t.root.kids["dev"].kids["zero"] = t.make(zeroDevice, 0o666, super)
	for _, a := range appletNames() {
		dir := "/usr/bin/"
		if a == "sh" || a == "bash" {
			dir = "/bin/"
		}
		if err := t.place(dir+a, []byte(appletMagic+a), 0o755, super); err != nil {
			return err
		}
	}
	var passwd, group strings.Builder
	for _, u := range m.users {
		fmt.Fprintf(&passwd, "%s:x:%d:%d::%s:/bin/sh\n", u.name, u.uid, u.gid, u.home)
		fmt.Fprintf(&group, "%s:x:%d:\n", u.name, u.gid)
		if err := m.own(u.home, u, 0o750); err != nil {
			return err
		}
	}
	if err := errors.Join(t.place("/etc/passwd", []byte(passwd.String()), 0o644, super), t.place("/etc/group", []byte(group.String()), 0o644, super)); err != nil {
		return err
	}
	if err := m.own(m.workdir, m.def, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m.script.Files)) {
		full := name
		if !path.IsAbs(full) {
			full = path.Join(m.workdir, name)
		}
		if err := m.makeDirs(path.Dir(full)); err != nil {
			return err
		}
		who := cred{m.def.uid, m.def.gid}
		if err := t.place(full, []byte(m.script.Files[name]), 0o644, super); err != nil {
			return err
		}
		if err := t.chown(full, who, super); err != nil {
			return err
		}
	}
	return nil
}

// own makes a directory that belongs to u.
func (m *machine) own(dir string, u user, perm uint32) error {
	if err := m.makeDirs(dir); err != nil {
		return err
	}
	return errors.Join(m.tree.chown(dir, cred{u.uid, u.gid}, super), m.tree.chmod(dir, perm, super))
}

// makeDirs makes missing directories for the default user.
func (m *machine) makeDirs(dir string) error {
	who := cred{m.def.uid, m.def.gid}
	var missing []string
	for d := dir; ; d = path.Dir(d) {
		if _, err := m.tree.stat(d, super, true); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, d)
	}
	if err := m.tree.mkdirAll(dir, 0o755, super); err != nil {
		return err
	}
	for _, d := range missing {
		if err := m.tree.chown(d, who, super); err != nil {
			return err
		}
	}
	return nil
}

// lookup finds a user by "name", "uid", "uid:gid" or "name:group".
func (m *machine) lookup(s string) (user, bool) {
	name, group, hasGroup := strings.Cut(s, ":")
	var u user
	i := slices.IndexFunc(m.users, func(u user) bool { return u.name == name || strconv.Itoa(u.uid) == name })
	if i >= 0 {
		u = m.users[i]
	} else {
		uid, err := strconv.Atoi(name)
		if err != nil || uid < 0 {
			return user{}, false
		}
		u = user{name, uid, uid, "/tmp"}
	}
	if hasGroup {
		if g := slices.IndexFunc(m.users, func(u user) bool { return u.name == group }); g >= 0 {
			u.gid = m.users[g].gid
		} else if gid, err := strconv.Atoi(group); err == nil {
			u.gid = gid
		} else {
			return user{}, false
		}
	}
	return u, true
}

// ID is the instance's name.
func (m *machine) ID() string { return m.id }

// Workdir is where the agent works.
func (m *machine) Workdir() string { return m.workdir }

func goneError(why error) error {
	return &fault.Error{Code: "sandbox.gone", Err: fmt.Errorf("%w: %w", sandbox.ErrUnusable, why)}
}

// usable returns why the machine cannot be used, or nil.
func (m *machine) usable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone != nil {
		return goneError(m.gone)
	}
	return nil
}

// end removes the machine; its processes end soon.
func (m *machine) end(why error) {
	m.mu.Lock()
	first := m.gone == nil
	if first {
		m.gone = why
		close(m.dead)
	}
	if m.timer != nil {
		m.timer.Stop()
	}
	ps := slices.Collect(maps.Values(m.procs))
	m.mu.Unlock()
	for _, p := range ps {
		p.kill(killed{syscall.SIGKILL, true})
	}
	if first {
		m.p.forget(m.id)
	}
}

// Stop ends the machine and waits for its processes.
func (m *machine) Stop(ctx context.Context) error {
	m.p.stopped.next(ctx, "stop", Fault{})
	m.mu.Lock()
	already := m.gone != nil
	m.mu.Unlock()
	if !already {
		if err := m.p.stop.next(ctx, "stop", m.script.Faults.Stop); err != nil {
			return err
		}
	}
	m.end(errors.New("it was stopped"))
	done := make(chan struct{})
	go func() { m.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		select {
		case <-done:
			return nil
		default:
			return context.Cause(ctx)
		}
	}
}

// use counts an answer of the script and reports whether it may be given.
func (m *machine) use(i, times int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if times > 0 && m.used[i] >= times {
		return false
	}
	m.used[i]++
	return true
}

func (m *machine) process(pid int) *proc {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.procs[pid]
}

// begin counts a command and lets the machine vanish when its time has come.
func (m *machine) begin() error {
	m.mu.Lock()
	m.commands++
	limit := m.script.Faults.VanishAfter
	vanish := limit > 0 && m.commands > limit
	m.mu.Unlock()
	if vanish {
		m.end(errGone)
	}
	return m.usable()
}

// Exec runs a command in the simulation.
func (m *machine) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	if err := m.begin(); err != nil {
		return sandbox.Exit{}, err
	}
	if ctx.Err() != nil {
		return sandbox.Exit{}, context.Cause(ctx)
	}
	if err := m.p.exec.next(ctx, "exec", m.script.Faults.Exec); err != nil {
		if m.script.Faults.Exec.Transport > 0 {
			// Nobody knows whether the command runs.
			err = errors.Join(err, sandbox.ErrUnusable)
		}
		return sandbox.Exit{}, err
	}
	who := m.def
	if c.User != "" {
		var ok bool
		if who, ok = m.lookup(c.User); !ok {
			return sandbox.Exit{}, unknownUser(c.User)
		}
	}
	if len(c.Argv) == 0 {
		return sandbox.Exit{}, fault.Configf("command-empty", "Name an executable.", "an empty command cannot run")
	}
	dir := path.Clean(c.Dir)
	if i, err := m.tree.stat(dir, super, true); err != nil || !i.isDir() {
		return sandbox.Exit{}, &fault.Error{Class: fault.Config, Code: "sandbox.no-directory", What: "the directory " + c.Dir + " does not exist in the sandbox", Fix: "Make the directory first or name another `cwd`."}
	}
	stdout, stderr := newGate(c.Stdout), newGate(c.Stderr)
	defer stdout.shut()
	defer stderr.shut()
	j := &job{live: map[int]*proc{}}
	p := m.newProc(nil, j, c.Argv)
	p.who, p.cwd, p.mask = who, dir, 0o022
	p.env = m.environ(who)
	maps.Copy(p.env, c.Env)
	var in stream = &text{}
	if c.Stdin != nil {
		in = newInput(c.Stdin)
	}
	p.fds = map[int]*file{0: newFile(in), 1: newFile(stdout), 2: newFile(stderr)}
	if err := m.launch(p, func(p *proc) int { return p.execve(c.Argv, 0) }); err != nil {
		return sandbox.Exit{}, goneError(err)
	}
	return m.await(ctx, p, j)
}

// await waits for the leader of a job. A status that is known wins over the end
// of ctx and of the machine.
func (m *machine) await(ctx context.Context, p *proc, j *job) (sandbox.Exit, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-m.dead:
	}
	select {
	case <-p.done:
		if !p.byTree {
			return p.exit, nil
		}
	default:
		// From here on an exit is our own doing, also that of a shell which
		// merely saw its child end.
		j.endAll()
	}
	if err := m.usable(); err != nil {
		return sandbox.Exit{}, err
	}
	return sandbox.Exit{}, context.Cause(ctx)
}

func newGate(w io.Writer) *gate {
	if w == nil {
		w = io.Discard
	}
	return &gate{w: w}
}

func (m *machine) environ(u user) map[string]string {
	return map[string]string{"HOME": u.home, "USER": u.name, "LOGNAME": u.name, "PATH": systemPath, "SHELL": "/bin/sh"}
}

// Environ implements sandbox.Environer.
func (m *machine) Environ(_ context.Context, name string) (map[string]string, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	u := m.def
	if name != "" {
		var ok bool
		if u, ok = m.lookup(name); !ok {
			return nil, unknownUser(name)
		}
	}
	return m.environ(u), nil
}

// Stat implements sandbox.Stater.
func (m *machine) Stat(_ context.Context, p string) (sandbox.FileStat, error) {
	if err := m.usable(); err != nil {
		return sandbox.FileStat{}, err
	}
	i, err := m.tree.stat(path.Clean(p), super, true)
	if err != nil {
		return sandbox.FileStat{}, absent(err)
	}
	return sandbox.FileStat{Dir: i.isDir(), Regular: i.kind == regular, Symlink: i.kind == symlink, Mode: i.perm, Size: i.size, UID: i.uid, GID: i.gid}, nil
}

// Remove implements sandbox.Remover.
func (m *machine) Remove(_ context.Context, p string) error {
	if err := m.usable(); err != nil {
		return err
	}
	err := m.tree.removeAll(path.Clean(p), super)
	if errors.Is(absent(err), fs.ErrNotExist) {
		return nil
	}
	return err
}

// absent makes a path below something that is no directory a path that does not
// exist, which it does not.
func absent(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) && pe.Err == syscall.ENOTDIR {
		return &fs.PathError{Op: pe.Op, Path: pe.Path, Err: fs.ErrNotExist}
	}
	return err
}

// Digest implements sandbox.Digester.
func (m *machine) Digest(_ context.Context, paths []string) ([]string, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	out := make([]string, len(paths))
	for i, p := range paths {
		b, err := m.tree.readFile(path.Clean(p), super)
		switch {
		case errors.Is(absent(err), fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			sum := sha256.Sum256(b)
			out[i] = hex.EncodeToString(sum[:])
		}
	}
	return out, nil
}

// Processes implements sandbox.ProcessEnder.
func (m *machine) Processes(context.Context) ([]sandbox.Process, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []sandbox.Process
	for _, pid := range slices.Sorted(maps.Keys(m.procs)) {
		p := m.procs[pid]
		out = append(out, sandbox.Process{PID: pid, UID: p.who.uid, Command: p.command()})
	}
	return out, nil
}

// EndProcesses implements sandbox.ProcessEnder.
func (m *machine) EndProcesses(ctx context.Context) ([]sandbox.Process, error) {
	var out []sandbox.Process
	for {
		ps, err := m.Processes(ctx)
		if err != nil || len(ps) == 0 {
			return out, err
		}
		for _, p := range ps {
			live := m.process(p.PID)
			if live == nil {
				continue
			}
			live.signal(syscall.SIGKILL)
			select {
			case <-live.done:
				out = append(out, p)
			case <-ctx.Done():
				return out, context.Cause(ctx)
			}
		}
	}
}

// EnsureLifetime implements sandbox.Lifetimer.
func (m *machine) EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error) {
	if err := m.p.life.next(ctx, "lifetime", m.script.Faults.Lifetime); err != nil {
		return time.Time{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone != nil {
		return time.Time{}, goneError(m.gone)
	}
	want := time.Now().Add(min)
	if m.timer == nil {
		return want.Add(24 * time.Hour), nil // it lives until it is stopped
	}
	if m.expires.Before(want) {
		m.expires = want.Add(time.Second)
		if !m.latest.IsZero() && m.latest.Before(m.expires) {
			m.expires = m.latest
		}
		m.timer.Reset(time.Until(m.expires))
	}
	return m.expires, nil
}

// Health implements sandbox.Reporter.
func (m *machine) Health(context.Context) error { return m.usable() }

// Marked counts the live processes whose environment has key=value.
func (p *Provider) Marked(id, key, value string) int {
	p.mu.Lock()
	m := p.instances[id]
	p.mu.Unlock()
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, pr := range m.procs {
		if pr.birth[key] == value {
			n++
		}
	}
	return n
}

var (
	_ sandbox.Driver       = (*machine)(nil)
	_ sandbox.Environer    = (*machine)(nil)
	_ sandbox.Stater       = (*machine)(nil)
	_ sandbox.Tracker      = (*machine)(nil)
	_ sandbox.ProcessEnder = (*machine)(nil)
	_ sandbox.Digester     = (*machine)(nil)
	_ sandbox.Lifetimer    = (*machine)(nil)
	_ sandbox.Reporter     = (*machine)(nil)
)
