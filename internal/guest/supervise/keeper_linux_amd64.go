package supervise

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/internal/guest/fork"
)

// A keeper is a supervisor that shares this program's memory instead of being the
// program started once more: a process with its own identity, children,
// descriptors and signals, made by clone(2) with CLONE_VM, which costs a
// hundredth of a start of the Go runtime in time and in memory.
//
// The price is that nothing of the runtime works in it. Its code is the one
// function keep and what that calls: no stack that grows, no allocation, no
// goroutine, no pointer written, nothing but system calls on memory that the
// parent laid out. What needs more, the parent does from outside: it looks for
// the processes of the tree and kills them, while the keeper makes sure that they
// stay below it.

// keeper is the memory that both share.
type keeper struct {
	// What to start. The pointers are written by the parent before the clone.
	argv, env  []*byte
	dir        *byte
	candidates []*byte // programs to try in turn
	files      [4]int  // the standard streams, and the keeper's end of the link
	aside      [4]int
	limit      syscall.Rlimit
	limited    bool
	noNewPrivs bool
	switching  bool // to uid and gid, and with settingGroups to groups
	setGroups  bool
	uid, gid   uint32
	groups     []uint32
	name       [16]byte
	self       *byte   // this program
	again      []*byte // arguments that make it a supervisor which kills its tree
	none       []*byte
	mask       uint64 // of signals, for the command

	// What became of it. A byte on the link, or its end, says that these hold.
	step   int             // where the start failed: one of the step constants
	errno  syscall.Errno   // of the step
	errnos []syscall.Errno // of the candidates
	tried  int             // candidates
	leader int
	status unix.WaitStatus
	known  bool

	// fate decides between a kill and the leader's own end, whichever is first.
	fate atomic.Uint32

	usual   sigaction // SIG_DFL
	action  sigaction
	pending [2]unix.PollFd
	info    [128]byte
	wstatus uint32
	note    [1]byte
	stack   []byte // the keeper runs on it
}

// The values of keeper.fate.
const (
	fateOpen = iota
	fateKilling
	fateEnded
)

// The steps of a start.
const (
	stepNone = iota
	stepFork
	stepSession
	stepPrivs
	stepGroups
	stepSwitch
	stepDir
	stepExec
)

// The bytes on a link.
const (
	noteStarted = 's'
	noteExited  = 'x'
	noteKilled  = 'k'
)

const keeperStack = 16 << 10

func cloneKeeper(flags, stack uintptr, k *keeper) (pid, errno uintptr)

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// begin clones the keeper, which starts the command.
//
//go:noinline
//go:norace
func (k *keeper) begin() (pid int, err error) {
	k.stack = make([]byte, keeperStack)
	top := uintptr(unsafe.Pointer(unsafe.SliceData(k.stack))) + keeperStack
	syscall.ForkLock.Lock()
	beforeFork() // no signal is handled in the keeper, whose memory is also ours
	id, errno := cloneKeeper(unix.CLONE_VM|uintptr(unix.SIGCHLD), top&^15, k)
	afterFork()
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return 0, syscall.Errno(errno)
	}
	return int(id), nil
}

var _ = keep // cloneKeeper calls it

// keep is the life of a keeper. All signals are blocked in it.
//
//go:nosplit
//go:norace
//go:nocheckptr
func keep(k *keeper) {
	var e syscall.Errno
	var r, i uintptr
	// What is handled is not inherited; what is ignored is.
	for i = 1; i <= 64; i++ {
		_, _, e = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, i, uintptr(unsafe.Pointer(&k.usual)), uintptr(unsafe.Pointer(&k.action)), 8, 0, 0)
		if e == 0 && k.action.handler == 1 { // SIG_IGN
			_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, i, uintptr(unsafe.Pointer(&k.action)), 0, 8, 0, 0)
		}
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&k.name)), 0)
	// The streams become 0 to 2 and the link 3, and nothing else stays open.
	for i = 0; i < 4; i++ {
		if r, _, e = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(k.files[i]), unix.F_DUPFD_CLOEXEC, 4); e != 0 {
			k.fail(stepFork, e)
		}
		k.aside[i] = int(r)
	}
	for i = 0; i < 4; i++ {
		if _, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(k.aside[i]), i, unix.O_CLOEXEC*(i/3)); e != 0 {
			k.fail(stepFork, e)
		}
	}
	_, _, e = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 4, 0xffffffff, 0)
	if e == 0 {
		_, _, e = syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0)
	}
	if e != 0 {
		k.fail(stepFork, e)
	}
	*(*uint64)(unsafe.Pointer(&k.info)) = 1 << (uint(unix.SIGCHLD) - 1)
	if r, _, e = syscall.RawSyscall6(unix.SYS_SIGNALFD4, ^uintptr(0), uintptr(unsafe.Pointer(&k.info)), 8, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0); e != 0 {
		k.fail(stepFork, e)
	}
	k.pending[0].Fd, k.pending[0].Events = 3, unix.POLLIN
	k.pending[1].Fd, k.pending[1].Events = int32(r), unix.POLLIN

	r, e = k.launch()
	if e != 0 {
		k.fail(stepFork, e)
	}
	for i = 0; i < 3; i++ {
		_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, i, 0, 0)
	}
	if k.step != stepNone {
		_, _, _ = syscall.RawSyscall6(unix.SYS_WAIT4, r, 0, unix.WALL, 0, 0, 0)
		k.fail(k.step, k.errno)
	}
	k.leader = int(r)
	k.say(noteStarted)
	k.watch()
}

// launch starts the command and returns its pid. The child shares memory and
// stack until it has become the command, and says in step and errno why it could
// not.
//
//go:nosplit
//go:noinline
//go:norace
//go:nocheckptr
func (k *keeper) launch() (uintptr, syscall.Errno) {
	pid, errno := fork.Vfork(unix.CLONE_VFORK | unix.CLONE_VM | uintptr(unix.SIGCHLD))
	if errno != 0 || pid != 0 {
		return pid, syscall.Errno(errno)
	}
	k.become()
	return 0, 0 // not reached
}

// become turns the child into the command.
//
//go:nosplit
//go:noinline
//go:norace
//go:nocheckptr
func (k *keeper) become() {
	var e syscall.Errno
	k.step = stepSession
	if _, _, e = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
		k.giveUp(e)
	}
	if k.noNewPrivs {
		k.step = stepPrivs
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
			k.giveUp(e)
		}
	}
	if k.switching {
		if k.setGroups {
			k.step = stepGroups
			if _, _, e = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(k.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(k.groups))), 0); e != 0 {
				k.giveUp(e)
			}
		}
		k.step = stepSwitch
		if _, _, e = syscall.RawSyscall(unix.SYS_SETGID, uintptr(k.gid), 0, 0); e != 0 {
			k.giveUp(e)
		}
		if _, _, e = syscall.RawSyscall(unix.SYS_SETUID, uintptr(k.uid), 0, 0); e != 0 {
			k.giveUp(e)
		}
	}
	k.step = stepDir
	if _, _, e = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(k.dir)), 0, 0); e != 0 {
		k.giveUp(e)
	}
	if k.limited {
		// One that may not be set stays higher, which harms nothing.
		_, _, _ = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&k.limit)), 0, 0, 0)
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&k.mask)), 0, 8, 0, 0)
	k.step = stepExec
	argv, env := uintptr(unsafe.Pointer(unsafe.SliceData(k.argv))), uintptr(unsafe.Pointer(unsafe.SliceData(k.env)))
	for k.tried < len(k.candidates) && k.tried < len(k.errnos) {
		// The parent resumes, and reads step, as soon as this one succeeds.
		k.step = stepNone
		_, _, e = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(k.candidates[k.tried])), argv, env)
		k.step = stepExec
		k.errnos[k.tried] = e
		k.tried++
		if e != unix.ENOENT && e != unix.ENOTDIR && e != unix.EACCES {
			break
		}
	}
	k.giveUp(e)
}

//go:nosplit
//go:noinline
//go:norace
func (k *keeper) giveUp(e syscall.Errno) {
	k.errno = e
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// fail says, by the end of the link, that there is no command.
//
//go:nosplit
//go:noinline
//go:norace
func (k *keeper) fail(step int, e syscall.Errno) {
	k.step, k.errno = step, e
	k.leave()
}

//go:nosplit
//go:noinline
//go:norace
func (k *keeper) say(note byte) {
	k.note[0] = note
	// Without a parent there is nobody to tell; the link shows it.
	_, _, _ = syscall.RawSyscall6(unix.SYS_SENDTO, 3, uintptr(unsafe.Pointer(&k.note)), 1, unix.MSG_NOSIGNAL, 0, 0)
}

//go:nosplit
//go:noinline
//go:norace
func (k *keeper) leave() {
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// watch reaps until the leader has ended by itself or, under a kill, until no
// process is left.
//
//go:nosplit
//go:noinline
//go:norace
//go:nocheckptr
func (k *keeper) watch() {
	var e syscall.Errno
	var pid uintptr
	for {
		for {
			pid, _, e = syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&k.wstatus)), unix.WNOHANG|unix.WALL, 0, 0, 0)
			if e == unix.EINTR {
				continue
			}
			if e != 0 { // ECHILD
				k.say(noteKilled)
				k.leave()
			}
			if pid == 0 {
				break
			}
			if int(pid) != k.leader {
				continue
			}
			k.status, k.known = unix.WaitStatus(k.wstatus), true
			if k.fate.CompareAndSwap(fateOpen, fateEnded) {
				k.say(noteExited)
				k.leave()
			}
		}
		_, _, _ = syscall.RawSyscall(unix.SYS_POLL, uintptr(unsafe.Pointer(&k.pending)), 2, ^uintptr(0))
		if k.pending[1].Revents != 0 {
			_, _, _ = syscall.RawSyscall(unix.SYS_READ, uintptr(k.pending[1].Fd), uintptr(unsafe.Pointer(&k.info)), 128)
		}
		if k.pending[0].Revents != 0 {
			// The parent is gone. To kill the tree takes more than this can do.
			_, _, _ = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(k.self)), uintptr(unsafe.Pointer(unsafe.SliceData(k.again))), uintptr(unsafe.Pointer(unsafe.SliceData(k.none))))
			k.leave()
		}
	}
}
