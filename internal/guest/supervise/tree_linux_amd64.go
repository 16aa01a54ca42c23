package supervise

import (
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/limits"
	"assay/internal/guest/wire"
)

// Keeping says whether commands can be given to keepers here.
func Keeping() bool { return closesRanges }

// Keeper is a command in the hands of a process that keeps its tree together.
type Keeper struct {
	k      *keeper
	pid    int
	req    *wire.ExecRequest
	link   *os.File
	stderr int // a copy for what a shell would say, until the start is known; else -1

	first *report // of the start, until Next has returned it

	gone func() // closes over
	over chan struct{}
}

// groupsDenied says whether this user namespace refuses to set groups.
var groupsDenied = sync.OnceValue(func() bool {
	b, err := readSmall("/proc/self/setgroups")
	return err == nil && string(b) == "deny\n"
})

// Keep starts a command with the given standard input, output and error. adopt
// calls its argument, which makes a child of this process, in a way that whoever
// reaps children knows of it.
func Keep(req *wire.ExecRequest, files [3]*os.File, adopt func(func() (int, error)) error) (*Keeper, error) {
	k, err := layOut(req)
	if err != nil {
		return nil, err
	}
	near, far, err := NewLink()
	if err != nil {
		return nil, err
	}
	c := &Keeper{k: k, req: req, link: near.f, over: make(chan struct{})}
	c.gone = sync.OnceFunc(func() { close(c.over) })
	for i, f := range append(files[:], far) {
		k.files[i] = int(f.Fd())
	}
	c.stderr, err = unix.FcntlInt(files[2].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = adopt(func() (int, error) {
			pid, err := k.begin()
			c.pid = pid
			return pid, err
		})
	}
	_ = far.Close() // the keeper has its own
	if err != nil {
		c.quiet()
		_ = near.f.Close()
		return nil, err
	}
	return c, nil
}

// layOut writes down all that the keeper needs.
func layOut(req *wire.ExecRequest) (*keeper, error) {
	k := &keeper{noNewPrivs: req.NoNewPrivs, mask: startMask}
	copy(k.name[:], ProcessName)
	programs := candidates(req)
	k.errnos = make([]syscall.Errno, len(programs))
	var errs [6]error
	k.argv, errs[0] = syscall.SlicePtrFromStrings(req.Argv)
	k.env, errs[1] = syscall.SlicePtrFromStrings(req.Env)
	k.dir, errs[2] = syscall.BytePtrFromString(req.Dir)
	k.candidates, errs[3] = syscall.SlicePtrFromStrings(programs)
	k.self, errs[4] = syscall.BytePtrFromString("/proc/self/exe")
	k.again, errs[5] = syscall.SlicePtrFromStrings([]string{ProcessName, EndArg})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	k.none = []*byte{nil}
	k.limit.Cur, k.limit.Max, k.limited = limits.OpenFiles()
	if cred := credential(req); cred != nil {
		k.switching, k.setGroups = true, !groupsDenied()
		k.uid, k.gid, k.groups = cred.Uid, cred.Gid, cred.Groups
	}
	return k, nil
}

// quiet gives the copy of the standard error back.
func (c *Keeper) quiet() {
	if c.stderr >= 0 {
		_ = unix.Close(c.stderr)
		c.stderr = -1
	}
}

// PID is the keeper's own.
func (c *Keeper) PID() int { return c.pid }

// Unfit waits for the start and says whether the keeper cannot do its work on
// this kernel. Nothing was started then.
func (c *Keeper) Unfit() bool {
	e, err := c.next()
	c.first = &report{e, err}
	return c.k.step == stepFork && (c.k.errno == unix.ENOSYS || c.k.errno == unix.EPERM || c.k.errno == unix.EINVAL)
}

type report struct {
	e   Event
	err error
}

// Next waits for the next event. io.EOF means that the keeper was killed.
func (c *Keeper) Next() (Event, error) {
	if r := c.first; r != nil {
		c.first = nil
		return r.e, r.err
	}
	return c.next()
}

func (c *Keeper) next() (Event, error) {
	var b [1]byte
	_, err := io.ReadFull(c.link, b[:])
	defer c.quiet()
	k := c.k
	if err != nil {
		c.gone()
		if k.step != stepNone {
			return *c.failure(), nil
		}
		return Event{}, io.EOF
	}
	if b[0] == noteStarted {
		return Event{Kind: Started, PID: k.leader}, nil
	}
	c.gone()
	e := Event{Kind: Exited, Known: k.known}
	if b[0] == noteKilled {
		e.Kind = Killed
	}
	if k.status.Signaled() {
		e.Signal = int(k.status.Signal())
	} else {
		e.Status = k.status.ExitStatus()
	}
	return e, nil
}

// failure says why there is no command: as a shell does for a program that is
// missing (127) or not executable (126), as a refusal otherwise.
func (c *Keeper) failure() *Event {
	k := c.k
	switch k.step {
	case stepPrivs:
		return refuse(wire.CodeOther, "no_new_privs: "+k.errno.Error())
	case stepDir:
		if e := dirProblem(c.req); e != nil {
			return e
		}
		return refuse(wire.CodeNoDir, "working directory "+c.req.Dir+": "+k.errno.Error())
	case stepExec:
	default:
		return refuseErrno(c.req, k.errno)
	}
	status, why := 127, "not found"
	for _, err := range k.errnos[:k.tried] {
		switch err {
		case unix.ENOENT, unix.ENOTDIR:
		case unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ETXTBSY, unix.ENAMETOOLONG:
			status, why = 126, err.Error()
		default:
			return refuseErrno(c.req, err)
		}
	}
	return complain(c.req, c.stderr, status, why)
}

// Kill orders the end of the whole tree: SIGTERM, grace later SIGKILL; without
// grace SIGKILL at once. One that comes after the leader's end does nothing.
func (c *Keeper) Kill(grace time.Duration) error {
	if c.k.fate.CompareAndSwap(fateOpen, fateKilling) {
		go c.kill(grace)
	}
	return nil
}

func (c *Keeper) kill(grace time.Duration) {
	if grace > 0 {
		signalTree(c.pid, unix.SIGTERM)
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.over:
			return
		}
	}
	// Each round sees what the one before made orphans or what was forked
	// meanwhile; the pause only saves work.
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for {
		signalTree(c.pid, unix.SIGKILL)
		select {
		case <-pause.C:
		case <-c.over:
			return
		}
	}
}

// Close closes the link. A keeper whose command runs kills the tree and ends.
func (c *Keeper) Close() {
	c.gone()
	c.quiet()
	_ = c.link.Close() // nothing is buffered
}
