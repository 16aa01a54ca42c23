package server

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/supervise"
	"assay/internal/guest/wire"
)

// maxIdle is how many supervisors are kept for later commands. There is one from
// the start, so that no command waits for the start of its supervisor.
const maxIdle = 4

// spareDelay is how long a command runs before it gets a spare supervisor at its
// side: one that ends sooner gives its own back, and the sandbox stays small.
const spareDelay = 20 * time.Millisecond

// crew keeps the supervisors.
type crew struct {
	reaper *reaper
	idle   chan *supervisor

	mu     sync.Mutex
	pids   map[int]*supervisor
	closed bool
	filler bool
	apart  bool // no keepers: supervisors are processes with memory of their own
}

// supervisor is the process that has a command, or with spare waits for one.
type supervisor struct {
	pid   int
	link  tie
	spare *supervise.Link
}

// tie is how a supervisor is spoken to; see supervise.Link.
type tie interface {
	Kill(grace time.Duration) error
	Next() (supervise.Event, error)
	Close()
}

func newCrew(r *reaper, apart bool) *crew {
	return &crew{reaper: r, idle: make(chan *supervisor, maxIdle), pids: map[int]*supervisor{}, apart: apart || !supervise.Keeping()}
}

// hire returns a supervisor that has nothing to do yet.
func (c *crew) hire() (*supervisor, error) {
	select {
	case s := <-c.idle:
		return s, nil
	default:
		return c.recruit()
	}
}

// release takes back a supervisor that can serve another command.
func (c *crew) release(s *supervisor) {
	select {
	case c.idle <- s:
	default:
		s.link.Close()
	}
}

// fill starts a spare supervisor in the background when there is none. A failure
// only means that a later command starts its own and reports the error.
func (c *crew) fill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.apart || c.filler || c.closed || len(c.idle) > 0 {
		return
	}
	c.filler = true
	go func() {
		if s, err := c.recruit(); err == nil {
			c.release(s)
		}
		c.mu.Lock()
		c.filler = false
		c.mu.Unlock()
	}()
}

// recruit starts a supervisor.
func (c *crew) recruit() (*supervisor, error) {
	link, far, err := supervise.NewLink()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	in, out, err := nowhere()
	if err != nil {
		link.Close()
		return nil, err
	}
	defer in.Close()
	defer out.Close()
	// The link names the running program, whatever happened to its file.
	pid, over, err := c.reaper.start("/proc/self/exe", []string{supervise.ProcessName, supervise.SessionArg}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{in.Fd(), out.Fd(), out.Fd(), far.Fd()},
	})
	if err != nil {
		link.Close()
		return nil, err
	}
	s := &supervisor{pid: pid, link: link, spare: link}
	c.enlist(s, over)
	return s, nil
}

// enlist remembers a supervisor until it has ended.
func (c *crew) enlist(s *supervisor, over <-chan unix.WaitStatus) {
	c.mu.Lock()
	c.pids[s.pid] = s
	closed := c.closed
	c.mu.Unlock()
	if closed {
		s.link.Close()
	}
	go func() {
		<-over
		c.mu.Lock()
		delete(c.pids, s.pid)
		c.mu.Unlock()
	}()
}

// keep gives a command to a keeper.
func (c *crew) keep(req *wire.ExecRequest, files [3]*os.File) (*supervisor, error) {
	s := &supervisor{}
	var over <-chan unix.WaitStatus
	k, err := supervise.Keep(req, files, func(begin func() (int, error)) (err error) {
		s.pid, over, err = c.reaper.adopt(begin)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.link = k
	c.enlist(s, over)
	if k.Unfit() {
		k.Close()
		return nil, errUnfit
	}
	return s, nil
}

// errUnfit says that keepers do not work here.
var errUnfit = errors.New("no keepers")

// keeping says whether commands go to keepers.
func (c *crew) keeping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.apart
}

// part gives keepers up.
func (c *crew) part() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apart = true
}

// dismiss closes all links: each supervisor kills its tree and ends.
func (c *crew) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, s := range c.pids {
		s.link.Close()
	}
}

// member says whether pid is a supervisor.
func (c *crew) member(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids[pid] != nil
}

// nowhere returns an empty input and an output for what nobody reads, also where
// there is no /dev/null.
func nowhere() (in, out *os.File, err error) {
	if null, err := openNull(); err == nil {
		return null, null, nil
	}
	in, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	w.Close()
	r, out, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, nil, err
	}
	r.Close()
	return in, out, nil
}

// openNull opens the null device and nothing that stands in its place.
func openNull() (*os.File, error) {
	f, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		f.Close()
		return nil, os.ErrInvalid
	}
	return f, nil
}

// size returns how many supervisors live.
func (c *crew) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pids)
}
