package enter

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that the exec server, and root inside, keep in the
// sandbox's own user namespace: enough to own files and to switch users, nothing
// that reaches a mount, a device, the network's set-up or another process's
// memory.
const kept = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE

// lockDown gives up, in this order, what is not needed any more.
func (b *builder) lockDown() error {
	for _, r := range b.Rlimits {
		if err := setRlimit(r); err != nil {
			return stepError{step: "set limit", err: err}
		}
	}
	if b.CPUs > 0 {
		if err := b.setCPUs(b.CPUs); err != nil {
			return stepError{step: "limit processors", err: err}
		}
	}
	keep := uint64(0)
	if b.Many {
		keep = kept
		if err := b.every(unix.SYS_SETGROUPS, 0, 0, 0); err != nil {
			return stepError{step: "leave all groups", err: err}
		}
	}
	if err := b.dropCaps(keep); err != nil {
		return stepError{step: "drop capabilities", err: err}
	}
	if err := b.every(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return stepError{step: "forbid new privileges", err: err}
	}
	if err := b.filter(); err != nil {
		return stepError{step: "filter system calls", err: err}
	}
	return nil
}

// setRlimit lowers a limit; one that is lower already stays.
func setRlimit(r Rlimit) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(r.Resource, &now); err != nil {
		return err
	}
	v := min(uint64(r.Value), now.Max)
	return unix.Setrlimit(r.Resource, &unix.Rlimit{Cur: v, Max: v})
}

// dropCaps limits the sets of capabilities(7) to keep, the ambient and the
// inheritable one to nothing. The bounding set is of no use to a process that can
// never gain privileges by an exec; it is limited as well where one thread is all
// there is to do.
func (b *builder) dropCaps(keep uint64) error {
	if err := b.every(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return err
	}
	for c := uintptr(0); b.alone && c < 64; c++ {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := b.every(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); err == unix.EINVAL {
			break // the kernel knows no more of them
		} else if err != nil {
			return err
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	return b.every(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data)), 0)
}

// filter installs the system call filter for all that follows, on all threads
// together with no_new_privs.
func (b *builder) filter() error {
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_TSYNC)
	if b.alone {
		flags = 0
	}
	prog := program()
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return errno
	}
	if r != 0 {
		return unix.ESRCH // the thread r cannot be synchronised
	}
	return nil
}
