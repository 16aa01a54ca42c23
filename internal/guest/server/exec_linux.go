package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/supervise"
	"assay/internal/guest/wire"
)

// exec runs a command. The reply goes out as soon as the command's fate is
// known; exec returns when the output has been sent as well.
func (s *server) exec(st *wire.Stream, req *wire.ExecRequest) wire.Message {
	refuse := func(code, what string) wire.Message {
		return &wire.ExecReply{Result: wire.Result{Code: code, What: what}}
	}
	if len(req.Argv) == 0 {
		return refuse(wire.CodeOther, "no program")
	}
	p, err := openPipes(req.Stdin)
	if err != nil {
		return refuse(wire.CodeFork, "open pipes: "+err.Error())
	}
	before, orphans := s.oom.count(), s.reaper.orphans()
	sup, err := s.dispatch(req, p.child)
	p.closeChild()
	spare := time.AfterFunc(spareDelay, s.crew.fill)
	defer spare.Stop()
	if err != nil {
		p.closeParent()
		return refuse(wire.CodeFork, "start supervisor: "+err.Error())
	}
	flow := p.pump(st)
	c := &command{s: s, st: st, link: sup.link, orphans: orphans}
	r := c.watch()
	if c.idle {
		s.crew.release(sup)
	} else {
		sup.link.Close()
		s.crew.fill()
	}
	r.OOM = s.oom.count() > before
	if err := st.SendReply(r); err != nil {
		flow.finish()
		return nil // the client has gone, and the tree with it
	}
	flow.finish()
	return nil
}

// dispatch gives the command to a supervisor. One that was killed while it
// waited is replaced; a command that a supervisor may have got is never given to
// a second one.
func (s *server) dispatch(req *wire.ExecRequest, files [3]*os.File) (*supervisor, error) {
	if s.crew.keeping() {
		sup, err := s.crew.keep(req, files)
		if !errors.Is(err, errUnfit) {
			return sup, err
		}
		s.crew.part()
	}
	for {
		sup, err := s.crew.hire()
		if err != nil {
			return nil, err
		}
		err = sup.spare.Start(req, files)
		if err == nil {
			return sup, nil
		}
		sup.link.Close()
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			return nil, err
		}
		if len(s.crew.idle) == 0 {
			if sup, err = s.crew.recruit(); err != nil {
				return nil, err
			}
			return sup, sup.spare.Start(req, files)
		}
	}
}

// command is a command in the hands of a supervisor.
type command struct {
	s    *server
	st   *wire.Stream
	link tie
	// orphans is the reaper's count from before the start.
	orphans int
	leader  int
	idle    bool // the supervisor takes another command
}

// watch follows the command to its end and returns what to reply.
func (c *command) watch() *wire.ExecReply {
	kills := make(chan time.Duration, 1)
	c.st.OnKill(func(grace time.Duration) {
		select {
		case kills <- grace:
		default: // one is enough
		}
	})
	events := make(chan supervise.Event)
	gone := make(chan struct{})
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			e, err := c.link.Next()
			if err != nil {
				close(gone)
				return
			}
			select {
			case events <- e:
			case <-over:
				return
			}
			if e.Last() {
				return // what follows belongs to the next command
			}
		}
	}()
	done := c.st.Done()
	killed := false
	var orphan <-chan unix.WaitStatus
	for {
		select {
		case e := <-events:
			c.idle = e.Idle
			switch e.Kind {
			case supervise.Started:
				var forget func()
				c.leader = e.PID
				orphan, forget = c.s.reaper.watch(e.PID, c.orphans)
				defer forget()
			case supervise.Refused:
				return &wire.ExecReply{Result: e.Refuse}
			default:
				return &wire.ExecReply{
					Exited: e.Known, Status: e.Status, Signal: e.Signal,
					Killed: e.Kind == supervise.Killed, Proven: e.Kind == supervise.Killed,
				}
			}
		case grace := <-kills:
			killed = true
			_ = c.link.Kill(grace) // a supervisor that is gone shows as such
		case <-done:
			done = nil
			if c.s.keep.Load() && c.s.conn.Err() != nil {
				continue // the client has left on purpose
			}
			killed = true
			_ = c.link.Kill(0)
		case <-gone:
			return c.watchAlone(killed, kills, orphan)
		}
	}
}

// watchAlone follows a command whose supervisor was killed. The leader is now a
// child of this process, so its end is still seen; its tree is no longer known.
func (c *command) watchAlone(killed bool, kills <-chan time.Duration, orphan <-chan unix.WaitStatus) *wire.ExecReply {
	if c.leader == 0 {
		return &wire.ExecReply{Result: wire.Result{Code: wire.CodeUnproven, What: "the supervisor was killed before it reported a start"}}
	}
	reply := func(ws unix.WaitStatus) *wire.ExecReply {
		r := &wire.ExecReply{Exited: true, Killed: killed}
		if ws.Signaled() {
			r.Signal = int(ws.Signal())
		} else {
			r.Status = ws.ExitStatus()
		}
		return r
	}
	if !killed {
		select {
		case ws := <-orphan:
			return reply(ws)
		case <-kills:
		case <-c.st.Done():
		}
		killed = true
	}
	killSession(c.leader)
	return reply(<-orphan)
}

// killSession kills what can still be found of a command: the members of its
// session and all below them, until two looks in a row find nobody.
func killSession(leader int) {
	for clean := 0; clean < 2; {
		ps, err := supervise.Scan()
		if err != nil {
			_ = unix.Kill(leader, unix.SIGKILL)
			return
		}
		targets := supervise.Descendants(ps, leader)
		for _, p := range ps {
			if p.SID == leader || p.PID == leader {
				targets = append(targets, p)
				targets = append(targets, supervise.Descendants(ps, p.PID)...)
			}
		}
		clean++
		for _, p := range targets {
			if p.Alive() {
				clean = 0
				_ = unix.Kill(p.PID, unix.SIGKILL)
			}
		}
		time.Sleep(tick)
	}
}

// pipes are the standard streams of a command.
type pipes struct {
	child  [3]*os.File // what the command gets
	parent [3]*os.File // our ends; parent[0] is nil without input
}

func openPipes(stdin bool) (*pipes, error) {
	p := &pipes{}
	ok := false
	defer func() {
		if !ok {
			p.closeChild()
			p.closeParent()
		}
	}()
	if stdin {
		r, w, err := pipe(1)
		if err != nil {
			return nil, err
		}
		p.child[0], p.parent[0] = r, w
	} else {
		in, out, err := nowhere()
		if err != nil {
			return nil, err
		}
		if out != in {
			_ = out.Close()
		}
		p.child[0] = in
	}
	for i := 1; i <= 2; i++ {
		r, w, err := pipe(0)
		if err != nil {
			return nil, err
		}
		p.parent[i], p.child[i] = r, w
	}
	ok = true
	return p, nil
}

// pipe returns a pipe of which one end, ours, does not block.
func pipe(ours int) (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

func closeFiles(fs *[3]*os.File) {
	for i, f := range fs {
		if f != nil {
			_ = f.Close() // pipes have nothing to flush
			fs[i] = nil
		}
	}
}

func (p *pipes) closeChild()  { closeFiles(&p.child) }
func (p *pipes) closeParent() { closeFiles(&p.parent) }

// flow moves the bytes of one command.
type flow struct {
	p    *pipes
	sent sync.WaitGroup // both outputs have been sent to their ends
}

func (p *pipes) pump(st *wire.Stream) *flow {
	f := &flow{p: p}
	if p.parent[0] != nil {
		go feedInput(p.parent[0], st)
	}
	for i := range 2 {
		f.sent.Add(1)
		go pumpOutput(p.parent[i+1], st, i, f.sent.Done)
	}
	return f
}

// finish ends the flow after the leader's end: what is in the pipes is sent,
// nothing more is waited for.
func (f *flow) finish() {
	past := time.Unix(1, 0)
	for _, file := range f.p.parent {
		if file != nil {
			_ = file.SetDeadline(past) // fails only on a closed file
		}
	}
	f.sent.Wait()
}

// feedInput writes channel 0 to the command's input until either ends.
func feedInput(w *os.File, st *wire.Stream) {
	defer w.Close()
	for {
		b, err := st.Next(0)
		if err != nil {
			return
		}
		if _, err := w.Write(b); err != nil {
			break
		}
	}
	w.Close()
	// Nobody reads the input any more. The client's credits must not run dry
	// before it has seen the end of the command.
	for {
		if _, err := st.Next(0); err != nil {
			return
		}
	}
}

// pumpOutput sends an output of the command on a channel and calls sent when
// that has ended. It then goes on reading for as long as some process holds the
// other end, so that a service left in the background does not die of a broken
// pipe.
func pumpOutput(r *os.File, st *wire.Stream, channel int, sent func()) {
	defer r.Close()
	buf := make([]byte, 64<<10)
	open, sending := true, true
	send := func(b []byte) {
		if sending {
			_, err := st.Write(channel, b)
			sending = err == nil
		}
	}
	for {
		n, err := r.Read(buf)
		send(buf[:n])
		if err != nil {
			open = errors.Is(err, os.ErrDeadlineExceeded)
			break
		}
	}
	if open {
		// All that the leader wrote is in the pipe now, and a limit taken now
		// keeps others from prolonging its output.
		_ = r.SetDeadline(time.Time{}) // fails only on a closed file
		_, err := io.CopyBuffer(struct{ io.Writer }{writerFunc(send)}, io.LimitReader(r, buffered(r)), buf)
		open = err == nil
	}
	_ = st.CloseWrite(channel) // fails only with the stream
	sent()
	for open {
		_, err := r.Read(buf[:4096])
		open = err == nil
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// buffered returns how many bytes a read of the pipe gets without blocking.
func buffered(r *os.File) int64 {
	n := 0
	if rc, err := r.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // 0 on failure
		})
	}
	return int64(n)
}
