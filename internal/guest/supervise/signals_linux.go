//go:build linux && (amd64 || arm64)

package supervise

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// endured are the signals that would end or stop this process, whoever sends
// them.
var endured = [...]unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM, unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGSTKFLT,
	unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR,
	32, 34, // 33 is the runtime's own
}

// faults are the signals of a fault of the program's own, which must end it; one
// that a process sends is endured.
var faults = [...]unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS}

// sigaction is the kernel's own of rt_sigaction(2), the same on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// runtimeHandler is the Go runtime's, to which the fault handler goes on.
var runtimeHandler uintptr

var _ = &runtimeHandler // the handler in assembly reads it

// endure handles signals with nothing at all. A handler, unlike a signal that is
// ignored, does not pass to the commands that are started. Package os/signal
// would do it with two switches of threads for each signal, which took longer
// than all else that this program does to start.
func endure() error {
	// The runtime's own flags and restorer, from a signal that it always handles.
	act, err := action(unix.SIGSEGV, nil)
	if err != nil {
		return err
	}
	runtimeHandler = act.handler
	act.handler = ignorePC()
	for _, s := range endured {
		if _, err := action(s, &act); err != nil {
			return err
		}
	}
	act.handler = faultPC()
	for _, s := range faults {
		if _, err := action(s, &act); err != nil {
			return err
		}
	}
	return nil
}

// action sets how a signal is handled, unless set is nil, and returns how it was.
func action(s unix.Signal, set *sigaction) (old sigaction, err error) {
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(&old)), unsafe.Sizeof(old.mask), 0, 0)
	if errno != 0 {
		return old, errno
	}
	return old, nil
}

// ignorePC and faultPC return the addresses of the two handlers.
func ignorePC() uintptr
func faultPC() uintptr
