package supervise

import (
	"math"
	"os"
	"os/signal"
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
	// Handlers, unlike ignored signals, do not pass to started commands.
	signal.Notify(make(chan os.Signal, 1))
	_ = unix.CloseRange(uint(firstFD), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // before Linux 5.11 only Go's own descriptors are safe
	name := append([]byte(ProcessName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0) // looks only
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
	s := &session{control: os.NewFile(controlFD, "control"), reaped: make(chan struct{}, 1), gone: make(chan struct{})}
	req, files, err := s.receiveStart()
	if err != nil {
		return 0 // never used: the parent has closed the socket
	}
	pid, refused := start(req, files)
	for _, fd := range files {
		_ = unix.Close(fd)
	}
	if refused != nil {
		s.report(refused)
		return 0
	}
	s.report(&Event{Kind: Started, PID: pid})
	go s.obey()
	s.wait(pid)
	return 0
}

type session struct {
	control *os.File
	reaped  chan struct{} // a process was reaped since the last look
	gone    chan struct{} // no process is left

	mu      sync.Mutex
	killing bool
	over    bool
}

func (s *session) report(e *Event) {
	// Without a parent there is nobody to tell; obey notices and kills.
	_, _ = s.control.Write(frame(byte(e.Kind), e))
}

// receiveStart waits for the command and its three descriptors.
func (s *session) receiveStart() (*wire.ExecRequest, []int, error) {
	oob := make([]byte, unix.CmsgSpace(3*4))
	first := make([]byte, 32<<10)
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(controlFD, first, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil || n == 0 {
		return nil, nil, os.ErrClosed
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return nil, nil, os.ErrInvalid
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 3 {
		return nil, nil, os.ErrInvalid
	}
	kind, body, err := readFrame(&prefixed{first[:n], s.control})
	if err != nil || kind != msgStart {
		return nil, nil, os.ErrInvalid
	}
	req := &wire.ExecRequest{}
	return req, fds, wire.Unmarshal(body, req)
}

type prefixed struct {
	head []byte
	rest *os.File
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.head) > 0 {
		n := copy(b, p.head)
		p.head = p.head[n:]
		return n, nil
	}
	return p.rest.Read(b)
}

// obey carries out the parent's orders. The end of the socket is the order to
// kill at once.
func (s *session) obey() {
	for {
		kind, body, err := readFrame(s.control)
		order := killOrder{}
		if err == nil && (kind != msgKill || wire.Unmarshal(body, &order) != nil) {
			continue
		}
		s.mu.Lock()
		begin := !s.killing && !s.over
		s.killing = true
		s.mu.Unlock()
		if begin {
			go s.kill(time.Duration(order.grace))
		}
		if err != nil {
			return
		}
	}
}

// kill ends the tree; wait notices when nothing is left.
func (s *session) kill(grace time.Duration) {
	if grace > 0 {
		signalTree(unix.SIGTERM)
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.gone:
			return
		}
	}
	// Each round sees what the one before made orphans or what was forked
	// meanwhile; the pause only saves work.
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for {
		signalTree(unix.SIGKILL)
		select {
		case <-s.reaped:
		case <-pause.C:
		case <-s.gone:
			return
		}
	}
}

// wait reaps until the leader has ended by itself or, under a kill, until no
// process is left, and reports which.
func (s *session) wait(leader int) {
	done := &Event{Kind: Exited}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			close(s.gone)
			done.Kind = Killed
			s.report(done)
			return
		}
		select {
		case s.reaped <- struct{}{}:
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
		s.mu.Lock()
		s.over = !s.killing
		over := s.over
		s.mu.Unlock()
		if over {
			s.report(done)
			return
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
