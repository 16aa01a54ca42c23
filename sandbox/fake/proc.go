package fake

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"assay/sandbox"
)

// killed is why a process ended that did not end by itself.
type killed struct {
	sig  syscall.Signal
	tree bool // with the whole job
}

func (k killed) Error() string { return "ended by " + signalName(k.sig) }

var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "PIPE": syscall.SIGPIPE, "ALRM": syscall.SIGALRM, "TERM": syscall.SIGTERM,
}

func signalName(s syscall.Signal) string {
	for name, sig := range signals {
		if sig == s {
			return "SIG" + name
		}
	}
	return "SIG" + s.String()
}

// proc is one simulated process: a goroutine with an environment, open files
// and an identity. It ends when its function returns; killing it makes every
// wait of that function return.
type proc struct {
	m    *machine
	pid  int
	ppid int
	job  *job
	who  user
	argv []string
	env  map[string]string
	cwd  string
	mask uint32
	fds  map[int]*file

	ctx  context.Context
	kill context.CancelCauseFunc
	done chan struct{}
	exit sandbox.Exit // valid after done
	// birth is the environment at the start, as /proc/PID/environ shows it.
	birth  map[string]string
	oom    bool // killed for want of memory
	byTree bool // killed with its whole job; valid after done

	mu      sync.Mutex
	ignored map[syscall.Signal]bool // inherited by children
	trapped map[syscall.Signal]bool // has a handler in the process's shell
	pending []syscall.Signal
}

// job is the set of processes that one Exec started.
type job struct {
	mu     sync.Mutex
	closed bool // nothing may be started any more
	live   map[int]*proc
}

var errNoFork = errors.New("the process cannot start another")

// newProc makes a process that is not yet started: launch does that. It shares
// the open files of its parent, if it has one.
func (m *machine) newProc(parent *proc, j *job, argv []string) *proc {
	p := &proc{m: m, job: j, argv: argv, done: make(chan struct{}), ignored: map[syscall.Signal]bool{}, trapped: map[syscall.Signal]bool{}}
	if parent != nil {
		p.ppid, p.who, p.env, p.cwd, p.mask = parent.pid, parent.who, maps.Clone(parent.env), parent.cwd, parent.mask
		p.fds = maps.Clone(parent.fds)
		parent.mu.Lock()
		maps.Copy(p.ignored, parent.ignored)
		parent.mu.Unlock()
	}
	p.ctx, p.kill = context.WithCancelCause(context.Background())
	return p
}

// launch registers a complete process and starts its goroutine.
func (m *machine) launch(p *proc, f func(p *proc) int) error {
	m.mu.Lock()
	if m.gone != nil {
		m.mu.Unlock()
		return errNoFork
	}
	p.job.mu.Lock()
	if p.job.closed {
		p.job.mu.Unlock()
		m.mu.Unlock()
		return errNoFork
	}
	p.birth = p.env
	m.pids++
	p.pid = m.pids
	p.job.live[p.pid] = p
	m.procs[p.pid] = p
	m.running.Add(1)
	p.job.mu.Unlock()
	m.mu.Unlock()
	for _, fd := range p.fds {
		fd.retain()
	}
	go func() {
		defer m.running.Done()
		code := f(p)
		p.end(code)
	}()
	return nil
}

func (p *proc) end(code int) {
	p.exit = sandbox.Exit{Code: code & 0xff}
	if k := (killed{}); errors.As(context.Cause(p.ctx), &k) {
		p.exit = sandbox.Exit{Code: 128 + int(k.sig), Signal: signalName(k.sig), OOM: p.oom}
		p.byTree = k.tree
	}
	for _, fd := range p.fds {
		fd.release()
	}
	p.m.mu.Lock()
	delete(p.m.procs, p.pid)
	p.m.mu.Unlock()
	p.job.mu.Lock()
	delete(p.job.live, p.pid)
	p.job.mu.Unlock()
	close(p.done)
	p.kill(nil)
}

// dead reports whether the process was killed.
func (p *proc) dead() bool { return p.ctx.Err() != nil }

// signal delivers a signal as the kernel would.
func (p *proc) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case sig == 0:
	case sig == syscall.SIGKILL:
		p.kill(killed{sig: sig})
	case p.ignored[sig]:
	case p.trapped[sig]:
		p.pending = append(p.pending, sig)
	default:
		p.kill(killed{sig: sig})
	}
}

func (p *proc) takePending() []syscall.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.pending
	p.pending = nil
	return s
}

// wait waits for a child; it gives up when the waiting process is killed.
func (p *proc) wait(child *proc) int {
	select {
	case <-child.done:
		return child.exit.Code
	case <-p.ctx.Done():
		return 137
	}
}

// endAll kills every process of the job and returns when none is left. Nothing
// can be started in it afterwards.
func (j *job) endAll() {
	j.mu.Lock()
	j.closed = true
	ps := slices.Collect(maps.Values(j.live))
	j.mu.Unlock()
	for _, p := range ps {
		p.kill(killed{syscall.SIGKILL, true})
	}
	for _, p := range ps {
		<-p.done
	}
}

// rename sets what process lists show.
func (p *proc) rename(argv []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.argv = argv
}

func (p *proc) command() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := strings.Join(p.argv, " ")
	return c[:min(len(c), 120)]
}

// stream is an open file, pipe or device. Read and Write return when the
// process that waits in them is killed.
type stream interface {
	read(p *proc, b []byte) (int, error)
	write(p *proc, b []byte) (int, error)
	close()
}

// file counts the users of a stream, as descriptors share open files.
type file struct {
	stream
	mu    sync.Mutex
	users int
}

func newFile(s stream) *file { return &file{stream: s} }

func (f *file) retain() {
	f.mu.Lock()
	f.users++
	f.mu.Unlock()
}

func (f *file) release() {
	f.mu.Lock()
	f.users--
	last := f.users == 0
	f.mu.Unlock()
	if last {
		f.close()
	}
}

func (h *handle) read(_ *proc, b []byte) (int, error)  { return h.Read(b) }
func (h *handle) write(_ *proc, b []byte) (int, error) { return h.Write(b) }
func (h *handle) close()                               {}

// pipe holds a bounded number of chunks, as a kernel pipe holds 64 KiB.
type pipe struct {
	chunks   chan []byte
	noWriter chan struct{}
	noReader chan struct{}
	mu       sync.Mutex // one reader at a time
	rest     []byte
}

const chunk = 4096

func newPipe() (r, w *file) {
	p := &pipe{chunks: make(chan []byte, 16), noWriter: make(chan struct{}), noReader: make(chan struct{})}
	return newFile(pipeEnd{p, false}), newFile(pipeEnd{p, true})
}

type pipeEnd struct {
	*pipe
	writer bool
}

func (e pipeEnd) close() {
	if e.writer {
		close(e.noWriter)
	} else {
		close(e.noReader)
	}
}

func (e pipeEnd) read(p *proc, b []byte) (int, error) {
	if e.writer {
		return 0, syscall.EBADF
	}
	for {
		e.mu.Lock()
		if len(e.rest) == 0 {
			select {
			case e.rest = <-e.chunks:
			default:
			}
		}
		n := copy(b, e.rest)
		e.rest = e.rest[n:]
		e.mu.Unlock()
		if n > 0 || len(b) == 0 {
			return n, nil
		}
		select {
		case c := <-e.chunks:
			e.mu.Lock()
			e.rest = append(e.rest, c...)
			e.mu.Unlock()
		case <-e.noWriter:
			if len(e.chunks) == 0 {
				return 0, io.EOF
			}
		case <-p.ctx.Done():
			return 0, context.Cause(p.ctx)
		}
	}
}

func (e pipeEnd) write(p *proc, b []byte) (int, error) {
	if !e.writer {
		return 0, syscall.EBADF
	}
	n := 0
	for n < len(b) {
		c := append([]byte(nil), b[n:min(n+chunk, len(b))]...)
		select {
		case <-e.noReader:
			return n, broken(p)
		default:
		}
		select {
		case e.chunks <- c:
			n += len(c)
		case <-e.noReader:
			return n, broken(p)
		case <-p.ctx.Done():
			return n, context.Cause(p.ctx)
		}
	}
	return n, nil
}

// broken is a write that nobody can read: it ends the writer by SIGPIPE unless
// that is ignored.
func broken(p *proc) error {
	p.signal(syscall.SIGPIPE)
	return syscall.EPIPE
}

// gate leads to the writer of an Exec until that has returned.
type gate struct {
	mu sync.Mutex
	w  io.Writer
}

func (g *gate) read(*proc, []byte) (int, error) { return 0, syscall.EBADF }

func (g *gate) write(p *proc, b []byte) (int, error) {
	if p.dead() {
		return 0, context.Cause(p.ctx)
	}
	g.mu.Lock()
	w := g.w
	if w == nil {
		g.mu.Unlock()
		return 0, broken(p)
	}
	n, err := w.Write(b)
	g.mu.Unlock()
	return n, err
}

func (g *gate) close() {}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.w = nil
}

// input feeds a command from a reader of the host. The reader is not touched
// before somebody reads, and no process waits in it: a reader that blocks costs
// one goroutine until it returns.
type input struct {
	r     io.Reader
	once  sync.Once
	inner *file
	feed  *file
}

func newInput(r io.Reader) *input {
	in := &input{r: r}
	in.inner, in.feed = newPipe()
	in.inner.retain()
	in.feed.retain()
	return in
}

func (in *input) read(p *proc, b []byte) (int, error) {
	in.once.Do(func() {
		feeder := &proc{ignored: map[syscall.Signal]bool{syscall.SIGPIPE: true}}
		feeder.ctx, feeder.kill = context.WithCancelCause(context.Background())
		go func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := in.r.Read(buf)
				if n > 0 {
					if _, werr := in.feed.write(feeder, buf[:n]); werr != nil {
						break
					}
				}
				if err != nil {
					break
				}
			}
			in.feed.release()
			feeder.kill(nil)
		}()
	})
	return in.inner.read(p, b)
}

func (in *input) write(*proc, []byte) (int, error) { return 0, syscall.EBADF }

// close ends the feeder at its next write.
func (in *input) close() { in.inner.release() }

// buffer collects the output of a command substitution.
type buffer struct {
	mu sync.Mutex
	b  []byte
}

func (b *buffer) read(*proc, []byte) (int, error) { return 0, syscall.EBADF }

func (b *buffer) write(_ *proc, p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.b)+len(p) > maxSubstitution {
		return 0, syscall.ENOSPC
	}
	b.b = append(b.b, p...)
	return len(p), nil
}

func (b *buffer) close() {}

func (b *buffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b
}

// maxSubstitution bounds what $(...) may print.
const maxSubstitution = 16 << 20

// text is an input with fixed content, such as a here-document.
type text struct {
	mu   sync.Mutex
	rest string
}

func (t *text) read(_ *proc, b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rest == "" {
		return 0, io.EOF
	}
	n := copy(b, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

func (t *text) write(*proc, []byte) (int, error) { return 0, syscall.EBADF }
func (t *text) close()                           {}
