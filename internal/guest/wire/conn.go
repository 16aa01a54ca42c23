package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Errors of a connection and its streams.
var (
	// ErrClosed: this side closed the connection.
	ErrClosed = errors.New("connection closed")
	// ErrReset: the other side gave the stream up.
	ErrReset = errors.New("stream reset")
)

const (
	maxStreams = 4096
	sendQueue  = 16
)

// Conn carries streams over one byte stream. Create it with NewConn, exchange
// hellos, then call Start. All methods are safe for concurrent use.
//
// The reading side never waits for a consumer: what it buffers is bounded by the
// windows of the streams, so one slow consumer stalls nobody else.
type Conn struct {
	rw     io.ReadWriteCloser
	r      *bufio.Reader
	accept func(s *Stream, op Op, req []byte)
	out    chan outgoing
	dead   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	err     error
	streams map[uint32]*Stream
	last    uint32            // highest stream id seen or given out
	opening map[uint32][]byte // requests of which parts are still missing
	pings   map[uint64]chan struct{}
	pingSeq uint64
}

type outgoing struct {
	frame []byte
	sent  chan struct{} // closed when everything up to here is written, if not nil
}

// NewConn returns a connection over rw, whose Close must end blocked reads and
// writes. accept is called for each stream that the peer opens, in the reader's
// goroutine, and must not block; nil refuses streams, as a client does.
func NewConn(rw io.ReadWriteCloser, accept func(s *Stream, op Op, req []byte)) *Conn {
	return &Conn{
		rw: rw, r: bufio.NewReaderSize(rw, chunkLen), accept: accept,
		out: make(chan outgoing, sendQueue), dead: make(chan struct{}),
		streams: map[uint32]*Stream{}, opening: map[uint32][]byte{}, pings: map[uint64]chan struct{}{},
	}
}

// SendHello writes h at once. Call it before Start.
func (c *Conn) SendHello(h Hello) error {
	h.Magic, h.Version = HelloMagic, Version
	_, err := c.rw.Write(AppendFrame(nil, Frame{Type: TypeHello, Payload: Marshal(&h)}))
	return err
}

// ReadHello reads the peer's hello and refuses another protocol or version. Call
// it before Start.
func (c *Conn) ReadHello() (Hello, error) {
	var h Hello
	f, err := ReadFrame(c.r)
	if err != nil {
		return h, err
	}
	if f.Type != TypeHello {
		return h, fmt.Errorf("%w: no hello", ErrProtocol)
	}
	if err := Unmarshal(f.Payload, &h); err != nil {
		return h, err
	}
	if h.Magic != HelloMagic || h.Version != Version {
		return h, fmt.Errorf("%w: the peer speaks version %d, not %d", ErrProtocol, h.Version, Version)
	}
	return h, nil
}

// Start begins to serve the connection.
func (c *Conn) Start() {
	c.wg.Go(c.readLoop)
	c.wg.Go(c.writeLoop)
}

// Dead is closed when the connection has ended.
func (c *Conn) Dead() <-chan struct{} { return c.dead }

// Err returns why the connection ended, or nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for its goroutines. Streams fail with
// ErrClosed.
func (c *Conn) Close() {
	c.fail(ErrClosed)
	c.wg.Wait()
}

// Flush waits until everything sent so far has been written.
func (c *Conn) Flush() {
	sent := make(chan struct{})
	select {
	case c.out <- outgoing{sent: sent}:
	case <-c.dead:
		return
	}
	select {
	case <-sent:
	case <-c.dead:
	}
}

// Ping sends a ping; the channel is closed when its pong arrives.
func (c *Conn) Ping() (pong <-chan struct{}, forget func()) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.pingSeq++
	id := c.pingSeq
	c.pings[id] = ch
	c.mu.Unlock()
	forget = func() {
		c.mu.Lock()
		delete(c.pings, id)
		c.mu.Unlock()
	}
	c.sendBehind(Frame{Type: TypePing, Payload: binary.BigEndian.AppendUint64(nil, id)})
	return ch, forget
}

// Open starts a stream with a request. It fails when the connection is dead,
// when the request is too long, or when cancel is closed first.
func (c *Conn) Open(op Op, req Message, cancel <-chan struct{}) (*Stream, error) {
	body := append([]byte{byte(op)}, Marshal(req)...)
	if len(body) > MaxRequest {
		return nil, fmt.Errorf("request of %d bytes is too long", len(body))
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	s := newStream(c, c.last)
	c.streams[s.id] = s
	c.mu.Unlock()
	if err := s.sendMessage(TypeOpenPart, TypeOpen, body, cancel); err != nil {
		s.Reset() // a part of the request may be out
		return nil, err
	}
	return s, nil
}

// send queues a frame. It fails when the connection is dead or cancel is closed.
func (c *Conn) send(f Frame, cancel <-chan struct{}) error {
	select {
	case c.out <- outgoing{frame: AppendFrame(make([]byte, 0, headerLen+len(f.Payload)), f)}:
		return nil
	case <-c.dead:
		return c.Err()
	case <-cancel:
		return ErrReset
	}
}

// sendBehind queues a frame without blocking: when the peer does not read, the
// frame waits in the background until it fits or the connection ends.
func (c *Conn) sendBehind(f Frame) {
	select {
	case c.out <- outgoing{frame: AppendFrame(nil, f)}:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil { // else Close may already wait
		c.wg.Go(func() { _ = c.send(f, nil) }) // fails only with the connection
	}
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	streams := c.streams
	c.streams = map[uint32]*Stream{}
	close(c.dead)
	c.mu.Unlock()
	_ = c.rw.Close() // only to end blocked reads and writes
	for _, s := range streams {
		s.end(err)
	}
}

func (c *Conn) writeLoop() {
	w := bufio.NewWriterSize(c.rw, chunkLen)
	for {
		select {
		case o := <-c.out:
			if err := c.writeAll(w, o); err != nil {
				c.fail(err)
				return
			}
		case <-c.dead:
			return
		}
	}
}

// writeAll writes o and all that is queued behind it, then flushes.
func (c *Conn) writeAll(w *bufio.Writer, o outgoing) error {
	for {
		if _, err := w.Write(o.frame); err != nil {
			return err
		}
		if o.sent != nil {
			if err := w.Flush(); err != nil {
				return err
			}
			close(o.sent)
		}
		select {
		case o = <-c.out:
		default:
			return w.Flush()
		}
	}
}

func (c *Conn) readLoop() {
	for {
		f, err := ReadFrame(c.r)
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Conn) dispatch(f Frame) error {
	switch f.Type {
	case TypeHello:
		return fmt.Errorf("%w: second hello", ErrProtocol)
	case TypePing:
		if len(f.Payload) > 8 {
			return fmt.Errorf("%w: long ping", ErrProtocol)
		}
		return c.send(Frame{Type: TypePong, Payload: f.Payload}, nil)
	case TypePong:
		if len(f.Payload) == 8 {
			c.mu.Lock()
			id := binary.BigEndian.Uint64(f.Payload)
			if ch := c.pings[id]; ch != nil {
				close(ch)
				delete(c.pings, id)
			}
			c.mu.Unlock()
		}
		return nil
	case TypeOpen, TypeOpenPart:
		return c.open(f)
	}
	c.mu.Lock()
	s, known := c.streams[f.Stream], f.Stream <= c.last
	if f.Type == TypeReset {
		delete(c.opening, f.Stream) // given up before the request was whole
	}
	c.mu.Unlock()
	if s == nil {
		if !known && f.Type != TypeReset {
			return fmt.Errorf("%w: frame for unopened stream %d", ErrProtocol, f.Stream)
		}
		return nil // of a stream that this side has finished with
	}
	return s.receive(f)
}

// open collects the request of a new stream and hands it to accept.
func (c *Conn) open(f Frame) error {
	if c.accept == nil {
		return fmt.Errorf("%w: stream opened by a server", ErrProtocol)
	}
	c.mu.Lock()
	body, begun := c.opening[f.Stream]
	switch {
	case !begun && c.streams[f.Stream] != nil:
		// Requests of concurrent callers may arrive in any order of their
		// streams, so that is all that can be said of the number.
		c.mu.Unlock()
		return fmt.Errorf("%w: stream %d opened twice", ErrProtocol, f.Stream)
	case len(body)+len(f.Payload) > MaxRequest, len(c.opening)+len(c.streams) > maxStreams:
		c.mu.Unlock()
		return fmt.Errorf("%w: request or number of streams over the limit", ErrProtocol)
	}
	c.last = max(c.last, f.Stream)
	body = append(body, f.Payload...)
	if f.Type == TypeOpenPart {
		c.opening[f.Stream] = body
		c.mu.Unlock()
		return nil
	}
	delete(c.opening, f.Stream)
	if len(body) == 0 {
		c.mu.Unlock()
		return fmt.Errorf("%w: empty request", ErrProtocol)
	}
	s := newStream(c, f.Stream)
	c.streams[s.id] = s
	c.mu.Unlock()
	c.accept(s, Op(body[0]), body[1:])
	return nil
}
