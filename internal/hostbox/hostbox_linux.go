package hostbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Box is one machine.
type Box struct {
	o     Options
	base  string // on the host, covered by a file system in memory inside
	outer *exec.Cmd
	in    io.Closer
	init  int // pid of the machine's first process
	ns    *os.File
	done  chan struct{}

	mu      sync.Mutex
	stopped bool
	procs   map[int]*Proc
}

// build makes the root and then waits, reaping, until its input ends.
const build = `set -e
B=$1 HOSTNAME=$2
mount -t tmpfs -o mode=0755 none "$B"
cd "$B"
mkdir up wk root
if [ -n "$3" ]; then cp -a "$3/up/." up/; cp -a "$3/root/." root/; fi
for t in usr etc; do
  mkdir -p up/$t wk/$t root/$t
  mount -t overlay -o lowerdir=/$t,upperdir=up/$t,workdir=wk/$t none root/$t
done
for l in bin sbin lib lib32 lib64 libx32; do
  if [ -L /$l ]; then [ -L root/$l ] || ln -s "$(readlink /$l)" root/$l
  elif [ -d /$l ]; then mkdir -p root/$l; mount --bind -o ro /$l root/$l; fi
done
mkdir -p root/proc root/dev/pts root/dev/shm root/tmp root/root root/home root/run root/var/tmp root/sys root/opt root/srv
chmod 1777 root/tmp root/var/tmp root/dev/shm
chmod 0700 root/root
mount -t proc none root/proc
for d in null zero full random urandom tty; do : >root/dev/$d; mount --bind /dev/$d root/dev/$d; done
[ -e root/dev/fd ] || ln -s /proc/self/fd root/dev/fd
[ -e root/dev/stdin ] || { ln -s fd/0 root/dev/stdin; ln -s fd/1 root/dev/stdout; ln -s fd/2 root/dev/stderr; }
[ -z "$HOSTNAME" ] || hostname "$HOSTNAME" 2>/dev/null || echo "$HOSTNAME" >/proc/sys/kernel/hostname
echo ready
exec 1>/dev/null 2>&1
exec env -i /usr/sbin/chroot root /bin/sh -c 'while :; do sleep 86400 & wait; done'
`

// Start makes a machine.
func Start(ctx context.Context, o Options) (*Box, error) {
	if os.Geteuid() != 0 {
		return nil, ErrUnsupported
	}
	base, err := os.MkdirTemp("", "box-")
	if err != nil {
		return nil, err
	}
	b := &Box{o: o, base: base, done: make(chan struct{}), procs: map[int]*Proc{}}
	if err := b.boot(ctx); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	if err := b.people(); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
}

func (b *Box) boot(ctx context.Context) error {
	cmd := exec.Command("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation", "private", "--", "/bin/sh", "-c", build, "init", b.base, b.o.Hostname, b.o.From)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	// An interrupt from the terminal is for the test only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var words strings.Builder
	cmd.Stderr = &words
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, in.Close())
	}
	b.outer, b.in = cmd, in
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	stop()
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // it is killed
		close(b.done)
	}()
	if err != nil || line != "ready\n" {
		_ = cmd.Process.Kill()
		<-b.done
		return fmt.Errorf("%w: %s (%w)", ErrUnsupported, strings.TrimSpace(words.String()), errors.Join(err, context.Cause(ctx)))
	}
	kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	if err == nil {
		b.init, err = strconv.Atoi(strings.TrimSpace(string(kids)))
	}
	if err != nil {
		return err
	}
	b.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/pid", b.init))
	return err
}

// people makes accounts and directories.
func (b *Box) people() error {
	root, err := b.Files()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	passwd, group := "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n", "root:x:0:\nnogroup:x:65534:\n"
	for _, u := range b.o.Users {
		passwd += fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/bash\n", u.Name, u.UID, u.UID, u.Name, u.Home)
		group += fmt.Sprintf("%s:x:%d:\n", u.Name, u.UID)
		if err := b.own(root, u.Home, u.UID); err != nil {
			return err
		}
	}
	if len(b.o.Users) > 0 {
		for _, d := range b.o.Dirs {
			if err := b.own(root, d, b.o.Users[0].UID); err != nil {
				return err
			}
		}
	}
	return errors.Join(root.WriteFile("etc/passwd", []byte(passwd), 0o644), root.WriteFile("etc/group", []byte(group), 0o644))
}

func (b *Box) own(root *os.Root, dir string, uid int) error {
	name := strings.TrimPrefix(filepath.Clean(dir), "/")
	if err := root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	return root.Lchown(name, uid, uid)
}

// Root is the machine's root directory as this process reaches it. Links in it
// lead to the host: use Files.
func (b *Box) Root() string { return fmt.Sprintf("/proc/%d/root%s/root", b.outer.Process.Pid, b.base) }

// Files opens the machine's root; nothing under it leads outside.
func (b *Box) Files() (*os.Root, error) {
	if b.over() {
		return nil, ErrStopped
	}
	return os.OpenRoot(b.Root())
}

func (b *Box) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped
}

// Save copies what the machine wrote into a folder that Options.From takes.
func (b *Box) Save(ctx context.Context, dir string) error {
	if b.over() {
		return ErrStopped
	}
	in := fmt.Sprintf("/proc/%d/root%s", b.outer.Process.Pid, b.base)
	script := `set -e; mkdir -p "$2/up" "$2/root"; cp -a "$1/up/." "$2/up/"; cd "$1/root"; for d in home root opt srv var vercel tmp; do [ ! -e $d ] || cp -a $d "$2/root/"; done`
	out, err := exec.CommandContext(ctx, "/bin/sh", "-c", script, "sh", in, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("save a machine: %w: %s", err, out)
	}
	return nil
}

// Stop ends every process and removes the machine.
func (b *Box) Stop() error {
	b.mu.Lock()
	done := b.stopped
	b.stopped = true
	b.mu.Unlock()
	if done {
		return nil
	}
	if b.outer != nil && b.outer.Process != nil {
		if b.init > 0 {
			_ = unix.Kill(b.init, unix.SIGKILL) // and with it everything in its namespace
		}
		_ = b.outer.Process.Kill()
		<-b.done
		_ = b.in.Close()
	}
	if b.ns != nil {
		_ = b.ns.Close()
	}
	b.mu.Lock()
	procs := slices.Collect(maps.Values(b.procs))
	b.mu.Unlock()
	for _, p := range procs {
		<-p.done
	}
	return os.Remove(b.base)
}

// Proc is a running command.
type Proc struct {
	// PID as the machine's processes see it.
	PID int
	// Stdin feeds the command, where it was asked for.
	Stdin io.WriteCloser

	b    *Box
	host int
	cmd  *exec.Cmd
	done chan struct{}
	exit Exit
}

// Run starts a command. Its working directory is looked up first.
func (b *Box) Run(c Command) (*Proc, error) {
	root, err := b.Files()
	if err != nil {
		return nil, err
	}
	st, err := root.Stat(rel(c.Dir))
	_ = root.Close()
	if err != nil || !st.IsDir() {
		return nil, ErrNoDir
	}
	p := &Proc{b: b, done: make(chan struct{})}
	// A shell looks the program up and reports what cannot be run.
	p.cmd = &exec.Cmd{Path: "/bin/sh", Args: append([]string{"/bin/sh", "-c", `exec "$@"`, "sh"}, c.Argv...), Env: c.Env, Dir: c.Dir, Stdout: c.Stdout, Stderr: c.Stderr, WaitDelay: c.Drain}
	if c.Env == nil {
		p.cmd.Env = []string{}
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: b.Root(), Setpgid: true, Credential: &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)}}
	if c.Stdin {
		if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil, ErrStopped
	}
	if err := inNamespace(b.ns, p.cmd.Start); err != nil {
		return nil, err
	}
	p.host = p.cmd.Process.Pid
	p.PID = innerPID(p.host)
	b.procs[p.host] = p
	go p.wait()
	return p, nil
}

// inNamespace runs start with the machine's namespace of processes for its
// children.
func inNamespace(ns *os.File, start func() error) error {
	result := make(chan error, 1)
	go func() {
		// The thread ends with this goroutine, which never unlocks it.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
			result <- err
			return
		}
		result <- start()
	}()
	return <-result
}

// innerPID is the pid of a process in its innermost namespace.
func innerPID(host int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", host))
	if err != nil {
		return host
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			if n, err := strconv.Atoi(f[len(f)-1]); err == nil {
				return n
			}
		}
	}
	return host
}

func (p *Proc) wait() {
	_ = p.cmd.Wait() // how it ended is read below
	p.exit = Exit{Code: -1}
	if st := p.cmd.ProcessState; st != nil {
		if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			p.exit.Signal = int(ws.Signal())
		} else {
			p.exit.Code = st.ExitCode()
		}
	}
	p.b.mu.Lock()
	delete(p.b.procs, p.host)
	p.b.mu.Unlock()
	close(p.done)
}

// Done is closed when the command has ended and its output with it.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Exit is how it ended, once Done is closed.
func (p *Proc) Exit() Exit { return p.exit }

// Signal signals the command itself, and not what it started.
func (p *Proc) Signal(sig int) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return unix.Kill(p.host, unix.Signal(sig))
	}
}

// SignalGroup signals the command's process group.
func (p *Proc) SignalGroup(sig int) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return unix.Kill(-p.host, unix.Signal(sig))
	}
}

// Memory frees nothing and pauses the machine: no process runs until Thaw.
func (b *Box) Freeze() error { return b.all(unix.SIGSTOP) }

// Thaw lets a frozen machine run on.
func (b *Box) Thaw() error { return b.all(unix.SIGCONT) }

// all signals every process of the machine but its first, until none is new.
func (b *Box) all(sig unix.Signal) error {
	seen := map[int]bool{b.init: true}
	for again := true; again; {
		again = false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.init))
		if err != nil {
			return ErrStopped
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || seen[pid] {
				continue
			}
			if got, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && got == want {
				seen[pid], again = true, true
				_ = unix.Kill(pid, sig)
			}
		}
	}
	return nil
}
