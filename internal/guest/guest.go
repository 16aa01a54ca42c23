// Package guest is the host's side of the exec server that runs inside a
// sandbox: it starts commands and ends their whole process trees, moves files,
// and asks what is running.
//
// The host trusts the guest no further than frames with limits. When the guest
// ends or talks nonsense, every pending and later call returns an error for
// which errors.Is(err, ErrGone) holds, and the client is dead for ever.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"assay/fault"
	"assay/internal/guest/wire"
)

// Errors that callers test for with errors.Is.
var (
	// ErrGone: the guest has ended or broke the protocol; the sandbox is
	// unusable. What the call was doing may or may not have happened.
	ErrGone = errors.New("the sandbox's exec server is gone")
	// ErrUnproven: a command was to be ended and it is not proven that no
	// process of it is left; the sandbox must not be lent again.
	ErrUnproven = errors.New("the end of the process tree is not proven")
)

// Codes of the *fault.Error values that calls return when the guest refuses or
// fails. Not-found wraps fs.ErrNotExist and permission fs.ErrPermission.
const (
	CodeGone         = "guest-gone"
	CodeUnproven     = "guest-kill-unproven"
	CodeNotFound     = wire.CodeNotFound
	CodePermission   = wire.CodePermission
	CodeIsDirectory  = wire.CodeIsDirectory
	CodeNotDirectory = wire.CodeNotDirectory
	CodeTooLarge     = wire.CodeTooLarge
	CodeArchive      = wire.CodeArchive
	CodeArgsTooLong  = wire.CodeArgsTooLong
	CodeNoDir        = wire.CodeNoDir
	CodeNoUser       = wire.CodeNoUser
	CodeNoSwitch     = wire.CodeNoSwitch
	CodeFork         = wire.CodeFork
	CodeNoSpace      = wire.CodeNoSpace
	CodeChanged      = wire.CodeChanged
	CodeNotServed    = wire.CodeUnimplemented
	CodeOther        = wire.CodeOther
)

// DefaultConfirm is how long a cancelled call waits for the guest to confirm.
const DefaultConfirm = 5 * time.Second

// Options tune a client. The zero value is useful.
type Options struct {
	// Confirm is how long a cancelled call waits, beyond a command's own grace,
	// for the guest's word that the work has ended. 0 means DefaultConfirm.
	Confirm time.Duration
}

// Info says what a guest is and how it runs.
type Info struct {
	Version  int    // of the protocol
	PID      int    // in the sandbox's process namespace
	UID, GID uint32 // of the guest
	First    bool   // the guest is process 1 of its sandbox
	OS, Arch string // as Go names them
}

// Client talks to one guest. All methods are safe for concurrent use. No
// goroutine of it is left after Close, except one per Exec whose Stdin is still
// blocked in Read or whose output is still blocked in Write.
type Client struct {
	conn    *wire.Conn
	info    Info
	confirm time.Duration
}

// Dial says hello to the guest at the other end of rw and takes rw over: Close
// closes it, and so does a failed Dial. rw's Close must end blocked reads and
// writes. Cancelling ctx ends the wait for the guest's hello only.
func Dial(ctx context.Context, rw io.ReadWriteCloser, o Options) (*Client, error) {
	c := &Client{conn: wire.NewConn(rw, nil), confirm: o.Confirm}
	if c.confirm <= 0 {
		c.confirm = DefaultConfirm
	}
	type greeting struct {
		h   wire.Hello
		err error
	}
	got := make(chan greeting, 1)
	go func() {
		err := c.conn.SendHello(wire.Hello{})
		var h wire.Hello
		if err == nil {
			h, err = c.conn.ReadHello()
		}
		got <- greeting{h, err}
	}()
	var g greeting
	select {
	case g = <-got:
	case <-ctx.Done():
		c.conn.Close()
		<-got
		return nil, context.Cause(ctx)
	}
	if g.err != nil {
		c.conn.Close()
		return nil, gone("hello", g.err)
	}
	c.info = Info{Version: g.h.Version, PID: g.h.PID, UID: g.h.UID, GID: g.h.GID, First: g.h.First, OS: g.h.OS, Arch: g.h.Arch}
	c.conn.Start()
	return c, nil
}

// Info returns what the guest said of itself in its hello.
func (c *Client) Info() Info { return c.info }

// Done is closed when the guest is gone or Close was called.
func (c *Client) Done() <-chan struct{} { return c.conn.Dead() }

// Err returns nil while the client is usable, and an error that wraps ErrGone
// afterwards.
func (c *Client) Err() error {
	if err := c.conn.Err(); err != nil {
		return gone("", err)
	}
	return nil
}

// Close ends the connection and with it, unless Keep was called, the guest and
// every process in its sandbox. It does not wait for their end. It may be called
// more than once.
func (c *Client) Close() error {
	c.conn.Close()
	return nil
}

// Ping waits until the guest answers.
func (c *Client) Ping(ctx context.Context) error {
	pong, forget := c.conn.Ping()
	defer forget()
	select {
	case <-pong:
		return nil
	case <-c.conn.Dead():
		return gone("ping", c.conn.Err())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Keep makes the sandbox's processes, the guest included, outlive the end of the
// connection. It cannot be taken back.
func (c *Client) Keep(ctx context.Context) error {
	var r wire.Result
	return c.ask(ctx, wire.OpKeep, &wire.Empty{}, &r, &r)
}

// Shutdown makes the guest end every process it can see and then itself. It
// returns when the guest has confirmed the order or is gone.
func (c *Client) Shutdown(ctx context.Context) error {
	var r wire.Result
	err := c.ask(ctx, wire.OpShutdown, &wire.Empty{}, &r, &r)
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// ask runs an operation that is one request and one reply, whose result part is r.
func (c *Client) ask(ctx context.Context, op wire.Op, req, reply wire.Message, r *wire.Result) error {
	s, err := c.open(ctx, op, req)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := c.await(ctx, s); err != nil {
		s.Reset()
		return err
	}
	return c.decode(s, reply, r)
}

func (c *Client) open(ctx context.Context, op wire.Op, req wire.Message) (*wire.Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s, err := c.conn.Open(op, req, ctx.Done())
	switch {
	case err == nil:
		return s, nil
	case c.conn.Err() != nil:
		return nil, gone("open", err)
	case ctx.Err() != nil:
		// A part of the request may be out, so the stream cannot be used, but
		// the guest starts nothing before it has seen the whole of it.
		return nil, context.Cause(ctx)
	}
	return nil, &fault.Error{Class: fault.Config, Code: CodeArgsTooLong, What: "start an operation", Err: err}
}

// await waits for the reply of s.
func (c *Client) await(ctx context.Context, s *wire.Stream) error {
	select {
	case <-s.Replied():
		return nil
	default:
	}
	select {
	case <-s.Replied():
		return nil
	case <-s.Done():
		return c.ended(s)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended turns the end of a stream without a reply into an error. A reply that
// came just before counts.
func (c *Client) ended(s *wire.Stream) error {
	select {
	case <-s.Replied():
		return nil
	default:
	}
	err := s.Err()
	if err == nil {
		err = wire.ErrReset
	}
	return gone("", err)
}

// decode reads a reply. One that does not decode ends the client.
func (c *Client) decode(s *wire.Stream, reply wire.Message, r *wire.Result) error {
	if err := wire.Unmarshal(s.Reply(), reply); err != nil {
		c.conn.Close()
		return gone("reply", err)
	}
	return resultError(*r)
}

func gone(what string, cause error) error {
	if errors.Is(cause, ErrGone) {
		return cause
	}
	return &fault.Error{Code: CodeGone, What: what, Err: fmt.Errorf("%w: %w", ErrGone, cause)}
}

// resultError turns a result into an error, or nil.
func resultError(r wire.Result) error {
	if r.Code == "" {
		return nil
	}
	e := &fault.Error{Code: r.Code, What: r.What}
	switch r.Code {
	case CodeNotFound:
		e.Class, e.Err = fault.Config, fs.ErrNotExist
	case CodePermission:
		e.Class, e.Err = fault.Config, fs.ErrPermission
	case CodeIsDirectory, CodeNotDirectory, CodeTooLarge, CodeArchive, CodeArgsTooLong, CodeNoDir:
		e.Class = fault.Config
	case CodeNoUser:
		e.Class, e.Fix = fault.Config, "name a user that the image has, or a numeric uid"
	case CodeNoSwitch:
		e.Class, e.Fix = fault.Config, "run the sandbox as root, or leave the user as it is"
	case CodeFork:
		e.Class, e.Fix = fault.Resource, "raise the sandbox's process or memory limit"
	case CodeNoSpace:
		e.Class, e.Fix = fault.Resource, "free disk space or raise the sandbox's disk limit"
	case wire.CodeCanceled:
		e.Class, e.Err = fault.Canceled, context.Canceled
	}
	return e
}
