package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"assay/fault"
	"assay/internal/guest/wire"
)

// maxArgs bounds the bytes of all arguments and variables together; Linux allows
// a quarter of the stack limit, commonly 2 MiB.
const maxArgs = 6 << 20

// ExecRequest is a command to run in the sandbox.
type ExecRequest struct {
	// Argv is the program and its arguments. A program without a slash is looked
	// up in the PATH of Env; entries of PATH that are relative count from Dir.
	Argv []string
	// Dir is the absolute working directory. Empty means "/".
	Dir string
	// Env is the complete environment, "NAME=value" each.
	Env []string
	// UID, GID and Groups are the identity, as Lookup resolves it.
	UID, GID uint32
	Groups   []uint32
	// NoNewPrivs forbids the command to gain privileges (sudo stops working).
	NoNewPrivs bool
	// Stdin is copied to the command and then closed; nil is an empty input.
	// Exec does not wait for a Read that is still blocked when the command has
	// ended: that one goroutine stays until the Read returns, and what it read
	// is lost.
	Stdin io.Reader
	// Stdout and Stderr get the output, in order per stream, in calls that do
	// not overlap per stream. A slow writer slows the command and nothing else.
	// nil discards. Unless Exec returned early because ctx ended or the guest
	// is gone while a Write was blocked, no Write is under way when it returns.
	Stdout, Stderr io.Writer
	// Grace is the time between SIGTERM and SIGKILL when ctx ends; 0 means
	// SIGKILL at once.
	Grace time.Duration
}

// Exit says how a command's leader ended.
type Exit struct {
	// Code is the exit code. 126 means that the program could not be executed
	// and 127 that there is none, each with a message on Stderr, as a shell has
	// it. After a signal it is 128 plus the number of the signal.
	Code int
	// Signal is the name of the signal that ended the leader, or empty.
	Signal string
	// OOM says that the sandbox's memory limit killed a process while the
	// command ran (evidence from the cgroup, not proof about this process).
	OOM bool
}

// Exec runs a command and returns how its leader ended. A non-zero exit is not
// an error. Processes that the command left in the background keep running and
// do not hold up the return.
//
// When ctx ends first, the whole process tree is killed, Exec waits for the
// guest's word (bounded by Grace plus Options.Confirm) and returns the cause of
// ctx; when the word does not come or the guest cannot vouch for the tree, the
// error also wraps ErrUnproven and the sandbox must be retired. When the leader
// had already ended by itself, its exit wins over ctx; an exit code and the cause
// of ctx never come together.
//
// An error from a writer or from Stdin does not stop the command; it is returned,
// with the Exit, after the command has ended.
func (c *Client) Exec(ctx context.Context, req ExecRequest) (Exit, error) {
	if err := checkExec(&req); err != nil {
		return Exit{}, err
	}
	s, err := c.open(ctx, wire.OpExec, &wire.ExecRequest{
		Argv: req.Argv, Dir: req.Dir, Env: req.Env, UID: req.UID, GID: req.GID, Groups: req.Groups,
		Stdin: req.Stdin != nil, NoNewPrivs: req.NoNewPrivs,
	})
	if err != nil {
		return Exit{}, err
	}
	defer s.Close()
	out := [2]*sink{newSink(s, 0, req.Stdout), newSink(s, 1, req.Stderr)}
	run := &execution{c: c, s: s, sinks: out, grace: req.Grace}
	if req.Stdin != nil {
		go run.feed(req.Stdin)
	}
	return run.wait(ctx)
}

func checkExec(req *ExecRequest) error {
	bad := func(what string) error {
		return &fault.Error{Class: fault.Config, Code: "bad-command", What: what}
	}
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return bad("a command needs a program")
	}
	if req.Dir == "" {
		req.Dir = "/"
	}
	if !strings.HasPrefix(req.Dir, "/") {
		return bad(fmt.Sprintf("working directory %q is not absolute", req.Dir))
	}
	size := len(req.Dir)
	for _, list := range [][]string{req.Argv, req.Env, {req.Dir}} {
		for _, v := range list {
			if strings.IndexByte(v, 0) >= 0 {
				return bad("an argument, variable or directory contains a NUL byte")
			}
			size += len(v) + 9
		}
	}
	if size > maxArgs {
		return &fault.Error{
			Class: fault.Config, Code: CodeArgsTooLong, Fix: "pass long input through standard input or a file",
			What: fmt.Sprintf("arguments and environment of %d bytes are too long", size),
		}
	}
	return nil
}

// execution is a started command.
type execution struct {
	c     *Client
	s     *wire.Stream
	sinks [2]*sink
	grace time.Duration
	input atomic.Pointer[error] // of Stdin's reader
}

func (e *execution) wait(ctx context.Context) (Exit, error) {
	err := e.c.await(ctx, e.s)
	canceled := err != nil && !errors.Is(err, ErrGone)
	limit, stop := context.WithCancel(ctx)
	defer stop()
	if canceled {
		// The caller's context is spent; confirming has a limit of its own.
		limit, stop = context.WithTimeout(context.WithoutCancel(ctx), max(e.grace, 0)+e.c.confirm)
		defer stop()
		_ = e.s.Kill(e.grace, limit.Done()) // a dead connection shows in await
		if err := e.c.await(limit, e.s); err != nil {
			e.abandon()
			cause := context.Cause(ctx)
			if errors.Is(err, ErrGone) {
				cause = fmt.Errorf("%w: %w", cause, err)
			}
			return Exit{}, unproven(cause, "the guest did not confirm the kill")
		}
	} else if err != nil {
		e.drain(ctx)
		e.abandon()
		return Exit{}, err
	}
	var r wire.ExecReply
	if err := e.c.decode(e.s, &r, &r.Result); err != nil {
		e.abandon()
		if r.Code == wire.CodeUnproven {
			return Exit{}, unproven(err, "the command may run on")
		}
		return Exit{}, err
	}
	exit := exitOf(&r)
	if r.Killed {
		cause := context.Cause(ctx)
		if cause == nil { // the guest claims a kill that nobody asked for
			e.c.conn.Close()
			return Exit{}, gone("exec", wire.ErrProtocol)
		}
		e.drain(limit)
		e.abandon()
		if !r.Proven {
			return Exit{OOM: r.OOM}, unproven(cause, "the guest could not prove that every process ended")
		}
		return Exit{OOM: r.OOM}, cause
	}
	if !r.Exited {
		e.c.conn.Close()
		return Exit{}, gone("exec", wire.ErrProtocol)
	}
	return exit, e.finish(ctx, limit)
}

// finish waits for the rest of the output after a normal exit. The exit is
// known, so a ctx that ends meanwhile takes effect only if output is stuck.
func (e *execution) finish(ctx, limit context.Context) error {
	if !e.drain(limit) && e.c.conn.Err() == nil && ctx.Err() != nil {
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), e.c.confirm)
		defer stop()
		e.drain(bounded)
	}
	var errs []error
	for _, k := range e.sinks {
		switch {
		case k.complete.Load():
			if k.err != nil {
				errs = append(errs, k.err)
			}
		case e.c.conn.Err() != nil:
			e.abandon()
			return gone("output", e.c.conn.Err())
		default:
			e.abandon()
			return fmt.Errorf("output not delivered: %w", context.Cause(ctx))
		}
	}
	if p := e.input.Load(); p != nil {
		errs = append(errs, *p)
	}
	return errors.Join(errs...)
}

// drain waits until both outputs are complete and says whether they are. It
// gives up when ctx ends or both sinks have stopped.
func (e *execution) drain(ctx context.Context) bool {
	for _, k := range e.sinks {
		select {
		case <-k.done:
		case <-ctx.Done():
			select {
			case <-k.done:
			default:
				return false
			}
		}
	}
	return e.sinks[0].complete.Load() && e.sinks[1].complete.Load()
}

// abandon gives the stream up: no new Write is begun.
func (e *execution) abandon() {
	for _, k := range e.sinks {
		k.stopped.Store(true)
	}
	e.s.Reset()
}

func exitOf(r *wire.ExecReply) Exit {
	x := Exit{Code: r.Status, OOM: r.OOM}
	if r.Signal != 0 {
		x.Signal, x.Code = signalName(r.Signal), 128+r.Signal
	}
	return x
}

func unproven(cause error, what string) error {
	return &fault.Error{Code: CodeUnproven, What: what, Err: fmt.Errorf("%w: %w", ErrUnproven, cause)}
}

// sink delivers one output of a command to its writer.
type sink struct {
	done     chan struct{}
	stopped  atomic.Bool // no further Write
	complete atomic.Bool // everything up to the end was delivered
	err      error       // of the writer; read after complete
}

func newSink(s *wire.Stream, channel int, w io.Writer) *sink {
	k := &sink{done: make(chan struct{})}
	go func() {
		defer close(k.done)
		for {
			b, err := s.Next(channel)
			if err != nil {
				k.complete.Store(err == io.EOF)
				return
			}
			if w == nil || k.err != nil || k.stopped.Load() {
				continue
			}
			if _, err := w.Write(b); err != nil {
				k.err = fmt.Errorf("deliver output: %w", err)
			}
		}
	}()
	return k
}

// feed copies r to standard input. It ends when r does or when the stream does.
func (e *execution) feed(r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := e.s.Write(0, buf[:n]); err != nil {
				return // the command is over
			}
		}
		if err != nil {
			if err != io.EOF {
				err = fmt.Errorf("read standard input: %w", err)
				e.input.Store(&err)
			}
			_ = e.s.CloseWrite(0) // fails only when the command is over
			return
		}
	}
}

var signals = [...]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	16: "SIGSTKFLT", 17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU",
	23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO",
	30: "SIGPWR", 31: "SIGSYS",
}

// signalName names a signal by Linux's numbers, whatever the host's are.
func signalName(n int) string {
	if n > 0 && n < len(signals) {
		return signals[n]
	}
	return fmt.Sprintf("SIG%d", n)
}
