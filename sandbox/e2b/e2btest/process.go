package e2btest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"assay/internal/hostbox"
)

type boxKey struct{}

func withBox(ctx context.Context, b *box) context.Context { return context.WithValue(ctx, boxKey{}, b) }

func boxOf(r *http.Request) *box { return r.Context().Value(boxKey{}).(*box) }

// processes are what was started in a sandbox and still runs, or ended lately.
type processes struct {
	mu  sync.Mutex
	all map[int]*process
}

type config struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args"`
	Envs map[string]string `json:"envs"`
	Cwd  string            `json:"cwd,omitempty"`
}

// process is one process with those who listen to it.
type process struct {
	pid    int
	tag    string
	config config
	proc   *hostbox.Proc
	input  sync.Mutex

	mu    sync.Mutex
	ears  map[*ear]bool
	ended map[string]any // the end event
	over  chan struct{}
}

// ear is one listener. A slow one holds the process up.
type ear struct {
	events chan map[string]any
	gone   chan struct{}
}

// remembered is how long the end of a process can be asked for.
const remembered = 30 * time.Second

func (p *process) listen() *ear {
	e := &ear{events: make(chan map[string]any, 64), gone: make(chan struct{})}
	p.mu.Lock()
	p.ears[e] = true
	p.mu.Unlock()
	return e
}

func (p *process) leave(e *ear) {
	close(e.gone)
	p.mu.Lock()
	delete(p.ears, e)
	p.mu.Unlock()
}

// publish tells everybody; what nobody hears is lost.
func (p *process) publish(v map[string]any) {
	p.mu.Lock()
	ears := make([]*ear, 0, len(p.ears))
	for e := range p.ears {
		ears = append(ears, e)
	}
	p.mu.Unlock()
	for _, e := range ears {
		select {
		case e.events <- v:
		case <-e.gone:
		}
	}
}

// output publishes what a process writes.
type output struct {
	p    *process
	name string
}

func (o output) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		k := min(len(rest), 32<<10)
		o.p.publish(map[string]any{"data": map[string]any{o.name: append([]byte(nil), rest[:k]...)}})
		rest = rest[k:]
	}
	return len(b), nil
}

type startRequest struct {
	Process config    `json:"process"`
	PTY     *struct{} `json:"pty"`
	Tag     string    `json:"tag"`
	Stdin   *bool     `json:"stdin"`
}

func (s *stream) start() {
	var in startRequest
	if err := s.receive(&in); err != nil {
		s.end(rpcf("invalid_argument", "%v", err))
		return
	}
	if in.PTY != nil {
		s.end(errUnimplemented)
		return
	}
	p, err := s.b.launch(in, s.acct)
	if err != nil {
		s.end(err)
		return
	}
	e := p.listen()
	defer p.leave(e)
	s.follow(p, e)
}

// launch starts a process. Nobody hears what it writes before the first ear:
// the caller listens at once, and the pipe holds what comes until then.
func (b *box) launch(in startRequest, a hostbox.Account) (*process, error) {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": a.Home, "USER": a.Name, "LOGNAME": a.Name}
	for _, m := range []map[string]string{b.environment(), in.Process.Envs} {
		for k, v := range m {
			env[k] = v
		}
	}
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	cwd, err := b.resolve(in.Process.Cwd, a)
	if err != nil {
		return nil, err
	}
	p := &process{tag: in.Tag, config: in.Process, ears: map[*ear]bool{}, over: make(chan struct{})}
	ready := make(chan struct{})
	held := func(name string) io.Writer { return holding{ready, output{p, name}} }
	proc, err := b.machine.Run(hostbox.Command{
		Argv: append([]string{in.Process.Cmd}, in.Process.Args...), Dir: cwd, Env: list, UID: a.UID, GID: a.GID,
		Stdin: in.Stdin == nil || *in.Stdin, Stdout: held("stdout"), Stderr: held("stderr"),
	})
	if errors.Is(err, hostbox.ErrNoDir) {
		return nil, rpcf("invalid_argument", "cwd '%s' does not exist", path.Clean(cwd))
	}
	if err != nil {
		return nil, err
	}
	p.proc, p.pid = proc, proc.PID
	b.procs.mu.Lock()
	b.procs.all[p.pid] = p
	b.procs.mu.Unlock()
	go p.reap(b)
	// The first ear is that of the caller.
	go func() {
		for {
			p.mu.Lock()
			n := len(p.ears)
			p.mu.Unlock()
			if n > 0 {
				close(ready)
				return
			}
			select {
			case <-b.context.Done():
				close(ready)
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return p, nil
}

// holding waits before its first write.
type holding struct {
	ready <-chan struct{}
	w     io.Writer
}

func (h holding) Write(p []byte) (int, error) {
	<-h.ready
	return h.w.Write(p)
}

// reap tells the end and forgets the process later.
func (p *process) reap(b *box) {
	<-p.proc.Done()
	x := p.proc.Exit()
	end := map[string]any{}
	switch {
	case x.Signal != 0:
		end["exitCode"], end["status"] = -1, "signal: "+syscall.Signal(x.Signal).String()
		end["error"] = end["status"]
	case x.Code != 0:
		end["exitCode"], end["exited"] = x.Code, true
		end["status"] = "exit status " + strconv.Itoa(x.Code)
		end["error"] = end["status"]
	default:
		end["exited"], end["status"] = true, "exit status 0"
	}
	p.mu.Lock()
	p.ended = map[string]any{"end": end}
	p.mu.Unlock()
	close(p.over)
	select {
	case <-time.After(remembered):
	case <-b.context.Done():
	}
	b.procs.mu.Lock()
	if b.procs.all[p.pid] == p {
		delete(b.procs.all, p.pid)
	}
	b.procs.mu.Unlock()
}

// follow sends the events of a process until its end.
func (s *stream) follow(p *process, e *ear) {
	if s.event(map[string]any{"start": map[string]any{"pid": p.pid}}) != nil {
		return
	}
	every := 90 * time.Second
	if n, err := strconv.Atoi(s.r.Header.Get("Keepalive-Ping-Interval")); err == nil {
		if n <= 0 {
			panic("e2btest: envd panics for this keepalive interval")
		}
		every = time.Duration(n) * time.Second
	}
	var deadline <-chan time.Time
	if ms, err := strconv.Atoi(s.r.Header.Get("Connect-Timeout-Ms")); err == nil && ms > 0 {
		t := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer t.Stop()
		deadline = t.C
	}
	alive := time.NewTimer(every)
	defer alive.Stop()
	for {
		select {
		case v := <-e.events:
			if s.event(v) != nil {
				return // the process runs on
			}
			alive.Reset(every)
		case <-alive.C:
			if s.event(map[string]any{"keepalive": map[string]any{}}) != nil {
				return
			}
			alive.Reset(every)
		case <-deadline:
			_ = p.proc.Signal(9) // only the process itself
			s.end(rpcf("deadline_exceeded", "context deadline exceeded"))
			return
		case <-s.r.Context().Done():
			return
		case <-s.b.context.Done():
			panic(http.ErrAbortHandler)
		case <-p.over:
			for { // what came before the end
				select {
				case v := <-e.events:
					if s.event(v) != nil {
						return
					}
					continue
				default:
				}
				break
			}
			if s.b.context.Err() != nil {
				panic(http.ErrAbortHandler)
			}
			if s.event(p.ended) == nil {
				s.end(nil)
			}
			return
		}
	}
}

type selector struct {
	Process struct {
		PID int    `json:"pid"`
		Tag string `json:"tag"`
	} `json:"process"`
}

// pick finds the process of a selector.
func (b *box) pick(sel selector, ended bool) (*process, error) {
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	for _, p := range b.procs.all {
		if sel.Process.PID != 0 && p.pid == sel.Process.PID || sel.Process.Tag != "" && p.tag == sel.Process.Tag {
			select {
			case <-p.over:
				if !ended {
					continue
				}
			default:
			}
			return p, nil
		}
	}
	if sel.Process.PID != 0 {
		return nil, rpcf("not_found", "process with pid %d not found", sel.Process.PID)
	}
	return nil, rpcf("not_found", "process with tag %s not found", sel.Process.Tag)
}

func (s *stream) connect() {
	var sel selector
	if err := s.receive(&sel); err != nil {
		s.end(rpcf("invalid_argument", "%v", err))
		return
	}
	p, err := s.b.pick(sel, true)
	if err != nil {
		s.end(err)
		return
	}
	e := p.listen()
	defer p.leave(e)
	s.follow(p, e)
}

type input struct {
	Stdin []byte `json:"stdin"`
	PTY   []byte `json:"pty"`
}

func (p *process) write(in input) error {
	if p.proc.Stdin == nil {
		return rpcf("failed_precondition", "stdin not enabled or closed")
	}
	p.input.Lock()
	defer p.input.Unlock()
	if _, err := p.proc.Stdin.Write(in.Stdin); err != nil {
		return rpcf("internal", "error writing to stdin: %v", err)
	}
	return nil
}

// input is the client stream StreamInput.
func (s *stream) input() {
	var p *process
	for {
		var msg struct {
			Start *selector `json:"start"`
			Data  *struct {
				Input input `json:"input"`
			} `json:"data"`
		}
		err := s.receive(&msg)
		switch {
		case errors.Is(err, io.EOF):
			if s.send(0, map[string]any{}) == nil {
				s.end(nil)
			}
			return
		case err != nil:
			s.end(rpcf("invalid_argument", "%v", err))
			return
		case msg.Start != nil:
			if p, err = s.b.pick(*msg.Start, false); err != nil {
				s.end(err)
				return
			}
		case msg.Data != nil && p == nil:
			s.end(rpcf("invalid_argument", "the first message must name the process"))
			return
		case msg.Data != nil:
			if err := p.write(msg.Data.Input); err != nil {
				s.end(err)
				return
			}
		}
	}
}

func (c *call) listProcesses() {
	c.b.procs.mu.Lock()
	var list []any
	var pids []int
	for pid, p := range c.b.procs.all {
		select {
		case <-p.over:
		default:
			pids = append(pids, pid)
		}
	}
	sort.Ints(pids)
	for _, pid := range pids {
		p := c.b.procs.all[pid]
		v := map[string]any{"config": p.config, "pid": pid}
		if p.tag != "" {
			v["tag"] = p.tag
		}
		list = append(list, v)
	}
	c.b.procs.mu.Unlock()
	if list == nil {
		c.ok(map[string]any{})
		return
	}
	c.ok(map[string]any{"processes": list})
}

// process decodes a request that names a process.
func (c *call) process(into any) *process {
	var sel selector
	if !c.decode(&sel) || !c.decode(into) {
		return nil
	}
	p, err := c.b.pick(sel, false)
	if err != nil {
		c.refuse(err)
		return nil
	}
	return p
}

func (c *call) sendInput() {
	var in struct {
		Input input `json:"input"`
	}
	p := c.process(&in)
	if p == nil {
		return
	}
	if err := p.write(in.Input); err != nil {
		c.refuse(err)
		return
	}
	c.ok(map[string]any{})
}

func (c *call) closeStdin() {
	p := c.process(&struct{}{})
	if p == nil {
		return
	}
	if p.proc.Stdin != nil {
		_ = p.proc.Stdin.Close() // closing twice is fine
	}
	c.ok(map[string]any{})
}

func (c *call) sendSignal() {
	var in struct {
		Signal any `json:"signal"`
	}
	p := c.process(&in)
	if p == nil {
		return
	}
	sig := 0
	switch in.Signal {
	case "SIGNAL_SIGTERM", float64(15):
		sig = 15
	case "SIGNAL_SIGKILL", float64(9):
		sig = 9
	default:
		c.refuse(rpcf("unimplemented", "signal %v is not supported", in.Signal))
		return
	}
	if err := p.proc.Signal(sig); err != nil {
		c.refuse(rpcf("not_found", "process with pid %d not found", p.pid))
		return
	}
	c.ok(map[string]any{})
}
