package server

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/supervise"
	"assay/internal/guest/wire"
)

func session() int { return supervise.Session() }

func sweep() int { return supervise.End() }

type server struct {
	conn   *wire.Conn
	ledger Ledger
	first  bool // this is process 1, so that kill(-1) reaches the sandbox only
	reaper *reaper
	crew   *crew
	users  users
	oom    oomCounter
	keep   atomic.Bool
	order  chan struct{} // closed by shutdown
	life   life
	once   sync.Once
}

type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// serve runs the server until its input ends or it is told to stop.
func serve(o Options) int {
	if err := supervise.Harden(3); err != nil {
		return 1
	}
	s := &server{ledger: o.Ledger, first: os.Getpid() == 1, order: make(chan struct{}), life: life{expired: make(chan struct{})}}
	s.reaper = newReaper()
	s.crew = newCrew(s.reaper, o.Apart)
	s.oom.open()
	s.crew.fill() // ready by the time the first command is here
	s.conn = wire.NewConn(stdio{o.In, o.Out}, s.accept)
	err := s.conn.SendHello(wire.Hello{
		PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		First: s.first, OS: runtime.GOOS, Arch: runtime.GOARCH,
	})
	if err == nil {
		_, err = s.conn.ReadHello()
	}
	if err != nil {
		s.endAll()
		return 1
	}
	s.conn.Start()
	select {
	case <-s.order:
	case <-s.life.expired:
		return s.expire()
	case <-s.conn.Dead():
		if s.keep.Load() {
			<-s.life.expired // until then the reaper lives on
			return s.expire()
		}
	}
	s.endAll()
	return 0
}

// expire ends the sandbox because its time is over.
func (s *server) expire() int {
	s.endAll()
	return wire.ExitExpired
}

// endAll kills every process that belongs to the sandbox.
func (s *server) endAll() {
	if s.first && os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL) // and the exit of process 1 ends the rest
		return
	}
	s.crew.dismiss()
	// The supervisors kill their own trees; what they had let go is below us.
	_, _ = s.endProcesses(nil, true)
}

// accept runs in the connection's reader.
func (s *server) accept(st *wire.Stream, op wire.Op, body []byte) {
	go func() {
		defer st.Close()
		s.handle(st, op, body)
	}()
}

func (s *server) handle(st *wire.Stream, op wire.Op, body []byte) {
	switch op {
	case wire.OpExec:
		req := &wire.ExecRequest{}
		run(st, body, req, func() wire.Message { return s.exec(st, req) })
	case wire.OpPut:
		defer widen()()
		req := &wire.PutRequest{}
		run(st, body, req, func() wire.Message { return put(st, req) })
	case wire.OpGet:
		defer widen()()
		req := &wire.GetRequest{}
		run(st, body, req, func() wire.Message { return get(st, req) })
	case wire.OpStat:
		req := &wire.PathRequest{}
		run(st, body, req, func() wire.Message { return stat(req.Path) })
	case wire.OpLookup:
		req := &wire.PathRequest{}
		run(st, body, req, func() wire.Message { return s.users.lookup(req.Path) })
	case wire.OpList:
		run(st, body, &wire.Empty{}, func() wire.Message { return s.list() })
	case wire.OpEnd:
		req := &wire.PIDs{}
		run(st, body, req, func() wire.Message { return s.end(req.Keep) })
	case wire.OpPorts:
		run(st, body, &wire.Empty{}, func() wire.Message { return ports() })
	case wire.OpLedger:
		defer widen()()
		run(st, body, &wire.Empty{}, func() wire.Message { return s.serveLedger(st) })
	case wire.OpDigest:
		req := &wire.Names{}
		run(st, body, req, func() wire.Message { return digest(req.Paths) })
	case wire.OpKeep:
		run(st, body, &wire.Empty{}, func() wire.Message { s.keep.Store(true); return &wire.Result{} })
	case wire.OpShutdown:
		run(st, body, &wire.Empty{}, func() wire.Message { return &wire.Result{} })
		s.conn.Flush()
		s.once.Do(func() { close(s.order) })
	case wire.OpLive:
		req := &wire.LiveRequest{}
		run(st, body, req, func() wire.Message { return s.life.live(req) })
	case wire.OpRemove:
		req := &wire.PathRequest{}
		run(st, body, req, func() wire.Message { return remove(req.Path) })
	default:
		_ = st.SendReply(&wire.Result{Code: wire.CodeUnimplemented, What: "unknown operation"})
	}
}

// long is when an operation is taken for one that has much to read.
const long = 20 * time.Millisecond

// widen lets this process, which starts with one processor, use all of them once
// an operation takes long. The caller calls the result at its end.
func widen() func() bool {
	return time.AfterFunc(long, func() { runtime.GOMAXPROCS(runtime.NumCPU()) }).Stop
}

// run decodes a request, carries it out and sends the reply, unless do has sent
// it and returns nil.
func run(st *wire.Stream, body []byte, req wire.Message, do func() wire.Message) {
	if err := wire.Unmarshal(body, req); err != nil {
		_ = st.SendReply(&wire.Result{Code: wire.CodeOther, What: err.Error()})
		return
	}
	if reply := do(); reply != nil {
		if err := st.SendReply(reply); err != nil && st.Err() == nil {
			_ = st.SendReply(&wire.Result{Code: wire.CodeTooLarge, What: err.Error()})
		}
	}
}

func (s *server) serveLedger(st *wire.Stream) wire.Message {
	if s.ledger == nil {
		_ = st.CloseWrite(0)
		return &wire.Result{Code: wire.CodeUnimplemented, What: "this guest has no ledger"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-st.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	req, err := io.ReadAll(io.LimitReader(st.Reader(0), maxLedgerRequest+1))
	if err == nil && len(req) > maxLedgerRequest {
		err = errors.New("ledger request is too long")
	}
	if err == nil {
		err = s.ledger(ctx, req, st.Writer(0))
	}
	_ = st.CloseWrite(0) // fails only with the stream
	r := resultOf(err, "ledger")
	return &r
}

// resultOf turns an error into a result by its errno.
func resultOf(err error, what string) wire.Result {
	if err == nil {
		return wire.Result{}
	}
	if r := (coded{}); errors.As(err, &r) {
		return wire.Result{Code: r.code, What: r.what}
	}
	code := wire.CodeOther
	var e unix.Errno
	if errors.As(err, &e) {
		switch e {
		case unix.ENOENT:
			code = wire.CodeNotFound
		case unix.EACCES, unix.EPERM, unix.EROFS:
			code = wire.CodePermission
		case unix.EISDIR:
			code = wire.CodeIsDirectory
		case unix.ENOTDIR:
			code = wire.CodeNotDirectory
		case unix.ENOSPC, unix.EDQUOT:
			code = wire.CodeNoSpace
		case unix.EFBIG, unix.ENAMETOOLONG:
			code = wire.CodeTooLarge
		}
	}
	return wire.Result{Code: code, What: what + ": " + err.Error()}
}

// coded is an error that knows its code.
type coded struct{ code, what string }

func (c coded) Error() string { return c.what }

// tick is the pause between looks at /proc while processes are being killed.
const tick = 2 * time.Millisecond
