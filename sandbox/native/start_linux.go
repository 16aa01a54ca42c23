package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/enter"
	"assay/internal/guest/fork"
	"assay/internal/guest/guestbin"
	"assay/internal/guest/supervise"
	"assay/internal/guest/wire"
)

// program is the exec server as a sealed copy in memory: nobody can change it,
// not even through /proc, and its name says nothing.
type program struct {
	file *os.File
	// copying: processes are started by the syscall package, in the way that works
	// on every kind of machine.
	copying bool
}

// load finds the exec server and copies it.
func load(o Options) (*program, error) {
	path := o.Guest
	if path == "" {
		g, err := guestbin.FindForHost()
		if err != nil {
			return nil, err
		}
		path = g.Path
	}
	src, err := os.Open(path)
	if err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "guest-missing", What: "open the exec server", Fix: "Put the exec server back, or let ASSAY_GUEST name it.", Err: err}
	}
	defer func() { _ = src.Close() }()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(supervise.ProcessName, flags|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(supervise.ProcessName, flags)
	}
	if err != nil {
		return nil, &startError{"make the exec server's copy", "", err}
	}
	f := os.NewFile(uintptr(fd), supervise.ProcessName)
	_, err = io.Copy(f, src)
	if err == nil {
		err = f.Chmod(0o555)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = f.Close()
		return nil, &startError{"make the exec server's copy", "", err}
	}
	return &program{file: f, copying: !fork.Available}, nil
}

// process is the first process of a sandbox, seen from outside.
type process struct {
	p      *os.Process
	pid    int
	stream *os.File
	// way is the listening socket of the sandbox's network namespace, or nil.
	way net.Listener

	once sync.Once
	over chan struct{} // closed when the process, and so every other, is gone
	how  *os.ProcessState
	err  error
}

// wire numbers of the child's descriptors.
const childSelf = 3

// startRequest is what start needs.
type startRequest struct {
	plan *enter.Plan
	ids  identities
	// uid and gid are the single identity, where there is only one.
	uid, gid int
	// join puts the process into its cgroups before it does anything.
	join func(pid int) error
	// copying is that of the program.
	copying bool
}

// bear clones the first process. Its standard streams are far and null.
func (pr *program) bear(r *startRequest, far, null *os.File) (*os.Process, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", childSelf)
	argv := []string{supervise.ProcessName, enter.Arg}
	files := []*os.File{far, far, null, pr.file}
	if pr.copying {
		if r.ids.helpers {
			argv = append(argv, enter.WaitArg)
		}
		return os.StartProcess(path, argv, &os.ProcAttr{Dir: "/", Env: guest.StartEnv(), Files: files, Sys: r.ids.attr(r.uid, r.gid)})
	}
	s := &fork.Spec{Path: path, Argv: argv, Env: guest.StartEnv(), Flags: namespaces, Ambient: capabilities}
	for _, f := range files {
		s.Files = append(s.Files, int(f.Fd()))
	}
	pid, err := fork.Start(s)
	if err != nil {
		return nil, err
	}
	p, err := os.FindProcess(pid)
	if err == nil && !r.ids.helpers {
		err = r.ids.write(pid, r.uid, r.gid)
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, werr := p.Wait()
		return nil, errors.Join(err, werr)
	}
	return p, nil
}

// start makes the namespaces and the root. On error nothing is left.
func (pr *program) start(ctx context.Context, r startRequest) (*process, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &startError{"make a socket", "", err}
	}
	far := os.NewFile(uintptr(fds[1]), "stream")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = far.Close()
		_ = unix.Close(fds[0])
		return nil, &startError{"make a socket", "", err}
	}
	r.copying = pr.copying
	p := &process{stream: os.NewFile(uintptr(fds[0]), "stream"), over: make(chan struct{})}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		p.p, err = pr.bear(&r, far, null)
		_ = null.Close()
	}
	_ = far.Close()
	runtime.KeepAlive(pr.file)
	if err != nil {
		_ = p.stream.Close()
		return nil, &startError{"make namespaces", "", errnoOf(err)}
	}
	p.pid = p.p.Pid
	stop := context.AfterFunc(ctx, func() { _ = p.p.Kill() })
	err = p.instruct(r)
	if !stop() || err != nil {
		// Killed by ctx, perhaps: whatever the far end said then says nothing.
		p.end(context.Background())
		if p.way != nil {
			_ = p.way.Close()
		}
		if cause := fault.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	return p, nil
}

// errnoOf strips the words of the os package, which name a path that says
// nothing.
func errnoOf(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// instruct gives the process its plan and waits for the reply.
func (p *process) instruct(r startRequest) error {
	if r.join != nil {
		if err := r.join(p.pid); err != nil {
			return &startError{"join the cgroup", "", err}
		}
	}
	msg := r.plan.Encode()
	if r.ids.helpers {
		if err := r.ids.grant(p.pid); err != nil {
			return &startError{"map identities", "", err}
		}
		if r.copying {
			msg = append([]byte{0}, msg...)
		}
	}
	if _, err := p.stream.Write(msg); err != nil {
		return &startError{"send the plan", "", err}
	}
	verdict, fd, err := p.receive()
	if err != nil {
		return &startError{"start the first process", "", err}
	}
	if fd >= 0 {
		f := os.NewFile(uintptr(fd), "way out")
		p.way, err = net.FileListener(f)
		_ = f.Close()
		if err != nil {
			return &startError{"open the way out", "", err}
		}
	}
	if verdict == enter.Ready {
		return nil
	}
	return p.failure()
}

// receive reads the first byte of the reply and the descriptor that comes with
// it, or -1.
func (p *process) receive() (byte, int, error) {
	rc, err := p.stream.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	var got error
	err = rc.Read(func(fd uintptr) bool {
		n, oobn, _, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return got != unix.EAGAIN && got != unix.EINTR
	})
	if err == nil {
		err = got
	}
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) == 0 {
		return b[0], -1, nil
	}
	if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
		return b[0], fds[0], nil
	}
	return b[0], -1, nil
}

func (p *process) failure() error {
	var head [4]byte
	if _, err := io.ReadFull(p.stream, head[:]); err != nil {
		return &startError{"start the first process", "", err}
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > enter.MaxFailure {
		return &startError{"start the first process", "", wire.ErrProtocol}
	}
	body := make([]byte, n)
	var f enter.Failure
	_, err := io.ReadFull(p.stream, body)
	if err == nil {
		err = wire.Unmarshal(body, &f)
	}
	if err != nil {
		return &startError{"start the first process", "", err}
	}
	cause := errors.New(f.Text)
	if f.Errno != 0 {
		cause = syscall.Errno(f.Errno)
	}
	return &startError{f.Step, f.Path, cause}
}

// end kills the first process, and with it the whole sandbox, and waits until
// the kernel says that nothing of it is left, or ctx ends.
func (p *process) end(ctx context.Context) error {
	p.once.Do(func() {
		_ = p.stream.Close()
		_ = p.p.Kill() // it may be gone by itself
		go func() {
			p.how, p.err = p.p.Wait()
			close(p.over)
		}()
	})
	select {
	case <-p.over:
		return p.err
	default:
	}
	select {
	case <-p.over:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended says whether the first process has ended, without waiting.
func (p *process) ended() bool {
	ended, _ := p.look()
	return ended
}

// status is the exit code of a first process that has ended, -1 where a signal
// ended it or it runs.
func (p *process) status() int {
	if ended, code := p.look(); ended && code >= 0 {
		return code
	}
	select {
	case <-p.over:
		if p.how != nil {
			return p.how.ExitCode()
		}
	default:
	}
	return -1
}

// look says whether the first process has ended and, while nobody has reaped it,
// its exit code, else -1.
func (p *process) look() (ended bool, code int) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return true, -1 // reaped
		}
		if info.Signo == 0 {
			return false, -1
		}
		if info.Code != cldExited {
			return true, -1
		}
		return true, int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), statusAt)))
	}
}

// Of the siginfo_t of waitid(2) on 64-bit machines: the code for an exit, and
// where si_status is.
const (
	cldExited = 1
	statusAt  = 24
)
