package enter

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// Run enters the sandbox. When it returns true, this process is the confined
// first process of the sandbox and must now serve on In and Out. Otherwise it
// could not, and has told the other end why. serve is the command line of the
// server in this same program, for where the process has to start anew.
func Run(args []string, serve []string) bool {
	// Namespaces, capabilities and filters belong to a thread. What every must
	// do on all of them is done through every; where it cannot, this thread does
	// it alone and is then the only one to survive an exec.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if len(args) > 2 && args[2] == WaitArg {
		fail(wait(args))
		return false
	}
	plan, err := readPlan()
	if err == nil {
		err = (&builder{Plan: plan}).build(serve)
	}
	if err != nil {
		fail(err)
	}
	return err == nil
}

// In is the reading side of the stream of a process that has entered a sandbox.
func In() *os.File { return os.NewFile(0, "stream") }

// Out is the writing side of the same.
func Out() *os.File { return os.NewFile(1, "stream") }

// wait waits until the identities are there and starts this program anew: a
// process that was executed without an identity has no privileges in its own
// namespace.
func wait(args []string) error {
	var b [1]byte
	if err := readAll(b[:]); err != nil {
		return stepError{step: "wait for identities", err: err}
	}
	err := syscall.Exec("/proc/self/fd/3", []string{args[0], Arg}, []string{})
	return stepError{step: "start anew", err: err}
}

func readPlan() (*Plan, error) {
	var head [4]byte
	err := readAll(head[:])
	n := binary.BigEndian.Uint32(head[:])
	if err == nil && n > maxPlan {
		err = wire.ErrProtocol
	}
	p := &Plan{}
	if err == nil {
		body := make([]byte, n)
		if err = readAll(body); err == nil {
			err = wire.Unmarshal(body, p)
		}
	}
	if err != nil {
		return nil, stepError{step: "read the plan", err: err}
	}
	return p, nil
}

// readAll fills b from the socket and takes not one byte more: what follows is
// for the server.
func readAll(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(0, b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return wire.ErrProtocol // the other end is gone
		}
		b = b[n:]
	}
	return nil
}

// stepError is a step that could not be done.
type stepError struct {
	step, path string
	err        error
}

func (e stepError) Error() string { return e.step + " " + e.path + ": " + e.err.Error() }
func (e stepError) Unwrap() error { return e.err }

func fail(err error) {
	f := &Failure{Text: err.Error()}
	var se stepError
	if errors.As(err, &se) {
		f.Step, f.Path, f.Text = se.step, se.path, se.err.Error()
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		f.Errno = int64(errno)
	}
	body := wire.Marshal(f)
	if len(body) > MaxFailure {
		return
	}
	msg := append([]byte{Failed}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)
	for msg = append(msg, body...); len(msg) > 0; {
		n, err := unix.Write(0, msg)
		if err != nil && err != unix.EINTR {
			return // nobody is there to be told
		}
		msg = msg[max(n, 0):]
	}
}

// ready tells the other end that the server comes next. fd is sent along, or -1.
func ready(fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return unix.Sendmsg(0, []byte{Ready}, rights, nil, unix.MSG_NOSIGNAL)
}

// become executes the server. The link names the running program, wherever its
// file is.
func become(argv []string) error {
	unix.CloseOnExec(selfFD)
	return syscall.Exec("/proc/self/exe", argv, []string{})
}

// every makes a system call on all threads of this process. Programs with C code
// cannot; they stay alone from the first such call on.
func (b *builder) every(trap, a1, a2, a3 uintptr) error {
	if !b.alone {
		_, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3)
		switch errno {
		case 0:
			return nil
		case syscall.ENOTSUP:
			b.alone = true
		default:
			return errno
		}
	}
	if _, _, errno := syscall.RawSyscall(trap, a1, a2, a3); errno != 0 {
		return errno
	}
	return nil
}
