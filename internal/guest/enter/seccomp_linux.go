package enter

import (
	"golang.org/x/sys/unix"
)

// The offsets of struct seccomp_data, see seccomp(2).
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// lastKnown is the highest system call number that was judged here; newer ones
// do not exist inside. From 424 on, the numbers are the same on every
// architecture.
const lastKnown = 466

// namespaceFlags are the flags of clone(2) and unshare(2) that make namespaces.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// refused are the system calls that change or reach what is not the sandbox's
// own, or are a large surface of the kernel that programs can do without. Those
// that only one architecture has are in refusedHere.
var refused = []uint32{
	// mounts and roots
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_FANOTIFY_INIT,
	// namespaces
	unix.SYS_SETNS,
	// kernel and machine
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP, unix.SYS_NFSSERVCTL, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
	// keys are not in a namespace of their own
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	// large surfaces
	unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_KCMP,
}

// families are the socket families that exist inside. Others, such as vsock,
// reach beyond the network namespace or are large surfaces.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// personalities are the values of personality(2) that are harmless.
var personalities = []uint32{0x0, 0x8, 0x20000, 0x20008, 0xffffffff}

// refusedIoctls feed a terminal's input or control a console.
var refusedIoctls = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

const (
	allow   = unix.SECCOMP_RET_ALLOW
	eperm   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	eafnot  = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	codeLd  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	codeEq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	codeGt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	codeSet = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	codeRet = unix.BPF_RET | unix.BPF_K
)

// assembler writes a program in which every test stands right before its
// verdict, so that no jump is longer than a few instructions.
type assembler []unix.SockFilter

func (a *assembler) op(code uint16, k uint32, jt, jf uint8) {
	*a = append(*a, unix.SockFilter{Code: code, K: k, Jt: jt, Jf: jf})
}
func (a *assembler) load(off uint32) { a.op(codeLd, off, 0, 0) }
func (a *assembler) ret(v uint32)    { a.op(codeRet, v, 0, 0) }

// on gives verdict v to the system call nr.
func (a *assembler) on(nr, v uint32) {
	a.op(codeEq, nr, 0, 1)
	a.ret(v)
}

// arg judges the low half of an argument of the system call nr: body is given
// the argument and ends in a verdict; other calls pass by.
func (a *assembler) arg(nr uint32, n uint32, body func(*assembler)) {
	var b assembler
	b.load(offArgs + 8*n)
	body(&b)
	a.op(codeEq, nr, 0, uint8(len(b)))
	*a = append(*a, b...)
}

// oneOf allows the values and gives v to all others.
func oneOf(values []uint32, v uint32) func(*assembler) {
	return func(a *assembler) {
		for _, x := range values {
			a.op(codeEq, x, 0, 1)
			a.ret(allow)
		}
		a.ret(v)
	}
}

// noneOf gives v to the values and allows all others.
func noneOf(values []uint32, v uint32) func(*assembler) {
	return func(a *assembler) {
		for _, x := range values {
			a.op(codeEq, x, 0, 1)
			a.ret(v)
		}
		a.ret(allow)
	}
}

func noNamespaces(a *assembler) {
	a.op(codeSet, namespaceFlags, 0, 1)
	a.ret(eperm)
	a.ret(allow)
}

// program returns the filter. Registers are loaded anew after each argument
// test, which always ends in a verdict.
func program() []unix.SockFilter {
	var a assembler
	a.load(offArch)
	a.op(codeEq, auditArch, 1, 0)
	a.ret(enosys) // programs of another architecture
	a.load(offNr)
	a.op(codeGt, lastKnown, 0, 1) // x32 is up there too
	a.ret(enosys)
	// Its flags are behind a pointer; C libraries fall back to clone.
	a.on(unix.SYS_CLONE3, enosys)
	for _, nr := range refused {
		a.on(nr, eperm)
	}
	for _, nr := range refusedHere {
		a.on(nr, eperm)
	}
	a.arg(unix.SYS_CLONE, 0, noNamespaces)
	a.arg(unix.SYS_UNSHARE, 0, noNamespaces)
	a.arg(unix.SYS_SOCKET, 0, oneOf(families, eafnot))
	a.arg(unix.SYS_PERSONALITY, 0, oneOf(personalities, eperm))
	a.arg(unix.SYS_IOCTL, 1, noneOf(refusedIoctls, eperm))
	a.ret(allow)
	return a
}
