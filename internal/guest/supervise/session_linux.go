package supervise

import (
	"bytes"
	"io"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// Harden prepares a process that runs beside untrusted ones: no ptrace, no core,
// no signal but SIGKILL ends it, no descriptor from firstFD on is inherited by
// what it starts, orphans of its descendants become its children, and its name
// says nothing.
func Harden(firstFD int) error {
	if err := endure(); err != nil {
		return err
	}
	// Before Linux 5.11 only Go's own descriptors are safe.
	closesRanges = unix.CloseRange(uint(firstFD), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, 0, uintptr(unsafe.Pointer(&startMask)), unsafe.Sizeof(startMask), 0, 0); errno != 0 {
		return errno
	}
	name := append([]byte(ProcessName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0) // looks only
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// What Harden found: whether ranges of descriptors can be closed, and the blocked
// signals.
var (
	closesRanges bool
	startMask    uint64
)

// End kills everything below this process and returns when nothing is left.
func End() int {
	for {
		signalTree(os.Getpid(), unix.SIGKILL)
		if childless() {
			return 0
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Session is the life of a supervisor whose control socket is descriptor 3. It
// returns the exit code of the process.
func Session() int {
	// no_new_privs belongs to a thread, so the one that sets it must start the
	// command.
	runtime.LockOSThread()
	if err := Harden(controlFD); err != nil {
		return 1
	}
	s := &session{control: os.NewFile(controlFD, "control"), orders: make(chan *order)}
	go s.obey()
	for o := range s.orders {
		if !s.run(o) {
			break
		}
	}
	return 0
}

// session serves one command after the other for as long as each leaves nothing
// behind.
type session struct {
	control *os.File
	orders  chan *order // closed when the parent is gone

	mu      sync.Mutex
	current *order
}

// order is one command under supervision.
type order struct {
	req    *wire.ExecRequest
	files  []int
	reaped chan struct{} // a process was reaped since the last look
	gone   chan struct{} // closed when there is nothing left to kill

	killing bool // under session.mu: a kill came before the leader's end
}

func (s *session) report(e *Event) {
	// Without a parent there is nobody to tell; obey notices and kills.
	_, _ = s.control.Write(frame(byte(e.Kind), e))
}

// obey reads what the parent wants. The end of the socket is the order to kill
// at once.
func (s *session) obey() {
	defer close(s.orders)
	for {
		kind, body, files, err := s.receive()
		if err != nil {
			s.beginKill(0)
			return
		}
		switch kind {
		case msgKill:
			// One that came too late for its command finds none running: the
			// parent sends the next command only after it has seen the end.
			k := killOrder{}
			if wire.Unmarshal(body, &k) == nil {
				s.beginKill(time.Duration(k.grace))
			}
		case msgStart:
			o := &order{req: &wire.ExecRequest{}, files: files, reaped: make(chan struct{}, 1), gone: make(chan struct{})}
			if len(files) != 3 || wire.Unmarshal(body, o.req) != nil {
				return
			}
			s.mu.Lock()
			s.current = o
			s.mu.Unlock()
			s.orders <- o
		}
	}
}

func (s *session) beginKill(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.current; o != nil && !o.killing {
		o.killing = true
		go o.kill(grace)
	}
}

// receive reads one message and the descriptors that come with its first byte.
func (s *session) receive() (kind byte, body []byte, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(3*4))
	first := make([]byte, 1)
	var n, oobn int
	for {
		n, oobn, _, _, err = unix.Recvmsg(controlFD, first, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil || n == 0 {
		return 0, nil, nil, os.ErrClosed
	}
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
		files, _ = unix.ParseUnixRights(&msgs[0]) // none: the caller counts
	}
	kind, body, err = readFrame(io.MultiReader(bytes.NewReader(first), s.control))
	return kind, body, files, err
}

// run carries out one order and says whether this supervisor can take another.
func (s *session) run(o *order) bool {
	pid, refused := start(o.req, o.files)
	for _, fd := range o.files {
		_ = unix.Close(fd)
	}
	var e *Event
	if refused != nil {
		e = refused
		s.finish(o)
		close(o.gone)
	} else {
		s.report(&Event{Kind: Started, PID: pid})
		e = s.wait(o, pid)
	}
	// A thread cannot give no_new_privs back.
	e.Idle = !o.req.NoNewPrivs && e.Kind != Killed && childless()
	s.report(e)
	return e.Idle
}

// finish makes o no longer killable and says whether it is being killed.
func (s *session) finish(o *order) (killing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.killing {
		s.current = nil
	}
	return o.killing
}

// childless reaps what has ended and says whether nothing is left.
func childless() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if err == unix.ECHILD {
			return true
		}
		if pid == 0 || err != nil && err != unix.EINTR {
			return false
		}
	}
}

// kill ends the tree; wait notices when nothing is left.
func (o *order) kill(grace time.Duration) {
	if grace > 0 {
		signalTree(os.Getpid(), unix.SIGTERM)
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
		case <-o.gone:
			return
		}
	}
	// Each round sees what the one before made orphans or what was forked
	// meanwhile; the pause only saves work.
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for {
		signalTree(os.Getpid(), unix.SIGKILL)
		select {
		case <-o.reaped:
		case <-pause.C:
		case <-o.gone:
			return
		}
	}
}

// wait reaps until the leader has ended by itself or, under a kill, until no
// process is left, and returns which.
func (s *session) wait(o *order, leader int) *Event {
	done := &Event{Kind: Exited}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			close(o.gone)
			done.Kind = Killed
			return done
		}
		select {
		case o.reaped <- struct{}{}:
		default:
		}
		if pid != leader {
			continue
		}
		done.Known = true
		if ws.Signaled() {
			done.Signal = int(ws.Signal())
		} else {
			done.Status = ws.ExitStatus()
		}
		if !s.finish(o) {
			close(o.gone)
			return done
		}
	}
}

// start starts the command, or says why not: as a shell does for a program that
// is missing (127) or not executable (126), as a refusal otherwise.
func start(req *wire.ExecRequest, fds []int) (int, *Event) {
	if req.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return 0, refuse(wire.CodeOther, "no_new_privs: "+err.Error())
		}
	}
	attr := &syscall.ProcAttr{
		Dir: req.Dir, Env: req.Env,
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: credential(req)},
	}
	if attr.Env == nil {
		attr.Env = []string{}
	}
	status, why := 127, "not found"
	for _, path := range candidates(req) {
		pid, err := forkExec(path, req.Argv, attr)
		switch err {
		case nil:
			return pid, nil
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ETXTBSY, unix.ENAMETOOLONG:
			if e := dirProblem(req); e != nil {
				return 0, e
			}
			if err == unix.ENOENT || err == unix.ENOTDIR {
				continue
			}
			status, why = 126, err.Error()
			if err != unix.EACCES {
				return 0, complain(req, fds[2], status, why)
			}
		default:
			return 0, refuseErrno(req, err)
		}
	}
	if e := dirProblem(req); e != nil { // of a program that is nowhere
		return 0, e
	}
	return 0, complain(req, fds[2], status, why)
}

// forkExec starts path. In a user namespace where setgroups is denied, the
// groups stay what they are.
func forkExec(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != unix.EPERM || attr.Sys.Credential == nil {
		return pid, err
	}
	if b, readErr := readSmall("/proc/self/setgroups"); readErr != nil || string(b) != "deny\n" {
		return pid, err
	}
	attr.Sys.Credential.NoSetGroups = true
	return syscall.ForkExec(path, argv, attr)
}

// credential returns the identity to switch to, or nil when the command is to
// run as this process does.
func credential(req *wire.ExecRequest) *syscall.Credential {
	if os.Geteuid() != 0 && int(req.UID) == os.Geteuid() && int(req.GID) == os.Getegid() {
		return nil // an unprivileged process cannot set groups, even to the same
	}
	return &syscall.Credential{Uid: req.UID, Gid: req.GID, Groups: req.Groups}
}

func refuse(code, what string) *Event {
	return &Event{Kind: Refused, Refuse: wire.Result{Code: code, What: what}}
}

func refuseErrno(req *wire.ExecRequest, err error) *Event {
	code := wire.CodeOther
	switch err {
	case unix.E2BIG:
		code = wire.CodeArgsTooLong
	case unix.EAGAIN, unix.ENOMEM, unix.ENFILE, unix.EMFILE:
		code = wire.CodeFork
	case unix.EPERM, unix.EINVAL:
		code = wire.CodeNoSwitch
	}
	return refuse(code, "start "+req.Argv[0]+": "+err.Error())
}

// complain tells the command's standard error what a shell would, and reports
// the exit status that a shell would give.
func complain(req *wire.ExecRequest, stderr, status int, why string) *Event {
	_, _ = unix.Write(stderr, []byte(req.Argv[0]+": "+why+"\n")) // the status says it too
	return &Event{Kind: Exited, Known: true, Status: status}
}
