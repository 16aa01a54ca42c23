package fork

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/internal/guest/limits"
)

// Available says whether Start can be used on this kind of machine.
const Available = true

// newborn is what the child needs, in memory that does not move. The child shares
// it, and says in errno why it could not become the program.
type newborn struct {
	path      *byte
	root      *byte
	argv, env []*byte
	files     []int
	aside     []int // the same, out of the way of their targets
	flags     uintptr
	limit     *syscall.Rlimit
	ambient   uint64
	head      unix.CapUserHeader
	caps      [2]unix.CapUserData
	errno     syscall.Errno
}

// These keep signals and the scheduler away between clone and exec; package
// syscall uses them in the same way and for the same reason.

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// Vfork is clone(2) with flags that contain CLONE_VM and CLONE_VFORK. The child
// must never return from the function that calls it, and the parent must return
// from that at once.
func Vfork(flags uintptr) (pid, errno uintptr)

// Start starts a program in the root directory, in a session of its own.
func Start(s *Spec) (pid int, err error) {
	n := &newborn{files: s.Files, aside: make([]int, len(s.Files)), flags: s.Flags | unix.CLONE_VFORK | unix.CLONE_VM | uintptr(unix.SIGCHLD), ambient: s.Ambient}
	if n.path, err = syscall.BytePtrFromString(s.Path); err != nil {
		return 0, err
	}
	if n.root, err = syscall.BytePtrFromString("/"); err != nil {
		return 0, err
	}
	if n.argv, err = syscall.SlicePtrFromStrings(s.Argv); err != nil {
		return 0, err
	}
	if n.env, err = syscall.SlicePtrFromStrings(s.Env); err != nil {
		return 0, err
	}
	if soft, hard, ok := limits.OpenFiles(); ok {
		n.limit = &syscall.Rlimit{Cur: soft, Max: hard}
	}
	n.head.Version = unix.LINUX_CAPABILITY_VERSION_3
	for i := range n.caps {
		set := uint32(s.Ambient >> (32 * i))
		n.caps[i] = unix.CapUserData{Effective: set, Permitted: set, Inheritable: set}
	}
	syscall.ForkLock.Lock()
	id, errno := n.start()
	afterFork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(n)
	if errno != 0 {
		return 0, syscall.Errno(errno)
	}
	if n.errno != 0 {
		for {
			if _, err := unix.Wait4(int(id), nil, 0, nil); err != unix.EINTR {
				return 0, n.errno
			}
		}
	}
	return int(id), nil
}

// start clones. In the child it does not return and calls nothing that could
// grow a stack, allocate, or wait for another goroutine: there is none. The
// parent returns at once: the child has used the same frame.
//
//go:noinline
//go:norace
//go:nocheckptr
func (n *newborn) start() (pid, errno uintptr) {
	var e syscall.Errno
	var fd, i uintptr
	beforeFork()
	pid, errno = Vfork(n.flags)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	afterForkInChild()
	if _, _, e = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
		goto failed
	}
	if _, _, e = syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&n.head)), uintptr(unsafe.Pointer(&n.caps[0])), 0); e != 0 {
		goto failed
	}
	for i = 0; i < 64; i++ {
		if n.ambient&(1<<i) == 0 {
			continue
		}
		if _, _, e = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, i, 0, 0, 0); e != 0 {
			goto failed
		}
	}
	if _, _, e = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(n.root)), 0, 0); e != 0 {
		goto failed
	}
	for i = 0; i < uintptr(len(n.files)); i++ {
		if fd, _, e = syscall.RawSyscall(unix.SYS_FCNTL, uintptr(n.files[i]), unix.F_DUPFD_CLOEXEC, uintptr(len(n.files))); e != 0 {
			goto failed
		}
		n.aside[i] = int(fd)
	}
	for i = 0; i < uintptr(len(n.files)); i++ {
		if _, _, e = syscall.RawSyscall(unix.SYS_DUP3, uintptr(n.aside[i]), i, 0); e != 0 {
			goto failed
		}
	}
	if n.limit != nil {
		// One that may not be set stays higher, which harms nothing.
		_, _, _ = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(n.limit)), 0, 0, 0)
	}
	_, _, e = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(n.path)), uintptr(unsafe.Pointer(&n.argv[0])), uintptr(unsafe.Pointer(&n.env[0])))
failed:
	n.errno = e
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT, 127, 0, 0)
	}
}
