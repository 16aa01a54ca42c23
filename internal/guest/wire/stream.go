package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
)

// Stream is one operation in progress: a request, two channels of bytes in each
// direction, and a reply. Whoever holds it must call Close or Reset in the end.
type Stream struct {
	id   uint32
	conn *Conn
	done chan struct{} // closed by end
	got  chan struct{} // closed when the reply is complete

	mu     sync.Mutex
	cond   sync.Cond
	err    error
	stop   error // of CancelReads
	in     [2]inbox
	out    [2]outbox
	reply  []byte
	whole  bool
	killed bool
	grace  time.Duration
	onKill func(grace time.Duration)
}

type inbox struct {
	buf    []byte
	room   int // bytes that the peer may still send
	untold int // bytes taken and not yet credited
	ended  bool
}

type outbox struct {
	credit int
	ended  bool
}

func newStream(c *Conn, id uint32) *Stream {
	s := &Stream{id: id, conn: c, done: make(chan struct{}), got: make(chan struct{})}
	s.cond.L = &s.mu
	for i := range 2 {
		s.in[i].room, s.out[i].credit = Window, Window
	}
	return s
}

// Done is closed when the stream has been reset or the connection has ended.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Err returns why the stream ended, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Replied is closed when the reply has arrived.
func (s *Stream) Replied() <-chan struct{} { return s.got }

// Reply returns the bytes of the reply. Call it after Replied.
func (s *Stream) Reply() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reply
}

// Close forgets the stream on this side, without telling the peer.
func (s *Stream) Close() {
	s.conn.mu.Lock()
	delete(s.conn.streams, s.id)
	s.conn.mu.Unlock()
	s.end(ErrClosed)
}

// Reset forgets the stream on this side and tells the peer to do the same. It
// does not block: when the peer does not read, the message waits in the
// background until it can be sent or the connection ends.
func (s *Stream) Reset() {
	s.Close()
	s.conn.sendBehind(Frame{Type: TypeReset, Stream: s.id})
}

func (s *Stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.done)
	s.cond.Broadcast()
}

// Kill asks the peer to end the work of the stream, after SIGTERM and grace when
// grace is positive. It gives up when cancel is closed.
func (s *Stream) Kill(grace time.Duration, cancel <-chan struct{}) error {
	ms := uint32(min(max(grace.Milliseconds(), 0), 1<<31))
	return s.conn.send(Frame{Type: TypeKill, Stream: s.id, Payload: binary.BigEndian.AppendUint32(nil, ms)}, cancel)
}

// OnKill sets what a kill from the peer calls, in the reader's goroutine; one
// that came before is delivered at once. f must not block.
func (s *Stream) OnKill(f func(grace time.Duration)) {
	s.mu.Lock()
	s.onKill = f
	killed, grace := s.killed, s.grace
	s.mu.Unlock()
	if killed {
		f(grace)
	}
}

// SendReply sends the reply.
func (s *Stream) SendReply(m Message) error {
	b := Marshal(m)
	if len(b) > MaxReply {
		return fmt.Errorf("reply of %d bytes is too long", len(b))
	}
	return s.sendMessage(TypeReplyPart, TypeReply, b, s.done)
}

func (s *Stream) sendMessage(part, last Type, b []byte, cancel <-chan struct{}) error {
	for len(b) > MaxPayload {
		if err := s.conn.send(Frame{Type: part, Stream: s.id, Payload: b[:MaxPayload]}, cancel); err != nil {
			return err
		}
		b = b[MaxPayload:]
	}
	return s.conn.send(Frame{Type: last, Stream: s.id, Payload: b}, cancel)
}

// Write sends p on a channel, as fast as the peer's credits allow. It fails when
// the stream ends.
func (s *Stream) Write(channel int, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k, err := s.claim(channel, min(len(p)-n, chunkLen))
		if err != nil {
			return n, err
		}
		if err := s.conn.send(Frame{Type: TypeData0 + Type(channel), Stream: s.id, Payload: p[n : n+k]}, s.done); err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// claim waits for credit and takes at most n bytes of it.
func (s *Stream) claim(channel, n int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.out[channel]
	for o.credit == 0 && s.err == nil && !o.ended {
		s.cond.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	if o.ended {
		return 0, ErrClosed
	}
	n = min(n, o.credit)
	o.credit -= n
	return n, nil
}

// CloseWrite ends a channel in this side's direction, once.
func (s *Stream) CloseWrite(channel int) error {
	s.mu.Lock()
	ended := s.out[channel].ended
	s.out[channel].ended = true
	s.cond.Broadcast()
	s.mu.Unlock()
	if ended {
		return nil
	}
	return s.conn.send(Frame{Type: TypeEnd0 + Type(channel), Stream: s.id}, s.done)
}

// Next waits for bytes of a channel and returns all that have arrived, or io.EOF
// after the peer ended the channel, or why the stream ended. Bytes that arrived
// before the stream ended are still returned first.
func (s *Stream) Next(channel int) ([]byte, error) {
	s.mu.Lock()
	in := &s.in[channel]
	for len(in.buf) == 0 && !in.ended && s.err == nil && s.stop == nil {
		s.cond.Wait()
	}
	if s.stop != nil {
		defer s.mu.Unlock()
		return nil, s.stop
	}
	if len(in.buf) == 0 {
		defer s.mu.Unlock()
		if in.ended {
			return nil, io.EOF
		}
		return nil, s.err
	}
	b := in.buf
	in.buf = nil
	credit := s.take(in, len(b))
	s.mu.Unlock()
	s.sendCredit(channel, credit)
	return b, nil
}

// CancelReads makes Next fail with err from now on. Replies can still be sent.
func (s *Stream) CancelReads(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = err
	s.cond.Broadcast()
}

// take books n consumed bytes and returns the credit to send now. The peer never
// stalls on what is held back, which is less than a quarter of the window.
func (s *Stream) take(in *inbox, n int) int {
	in.untold += n
	if in.untold < Window/4 {
		return 0
	}
	n = in.untold
	in.untold = 0
	in.room += n
	return n
}

func (s *Stream) sendCredit(channel, n int) {
	if n > 0 {
		// A dead connection shows in the next call.
		_ = s.conn.send(Frame{Type: TypeCredit0 + Type(channel), Stream: s.id, Payload: binary.BigEndian.AppendUint32(nil, uint32(n))}, s.done)
	}
}

// Reader returns a reader of a channel.
func (s *Stream) Reader(channel int) io.Reader { return &reader{s: s, channel: channel} }

type reader struct {
	s       *Stream
	channel int
	rest    []byte
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		b, err := r.s.Next(r.channel)
		if err != nil {
			return 0, err
		}
		r.rest = b
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Writer returns a writer to a channel.
func (s *Stream) Writer(channel int) io.Writer { return writer{s: s, channel: channel} }

type writer struct {
	s       *Stream
	channel int
}

func (w writer) Write(p []byte) (int, error) { return w.s.Write(w.channel, p) }

// receive handles a frame of the peer. It runs in the reader's goroutine.
func (s *Stream) receive(f Frame) error {
	switch f.Type {
	case TypeData0, TypeData1:
		return s.receiveData(int(f.Type-TypeData0), f.Payload)
	case TypeReply, TypeReplyPart:
		return s.receiveReply(f)
	case TypeKill:
		if len(f.Payload) != 4 || s.conn.accept == nil {
			return fmt.Errorf("%w: bad kill", ErrProtocol)
		}
		s.mu.Lock()
		s.killed, s.grace = true, time.Duration(binary.BigEndian.Uint32(f.Payload))*time.Millisecond
		kill, grace := s.onKill, s.grace
		s.mu.Unlock()
		if kill != nil {
			kill(grace)
		}
		return nil
	case TypeReset:
		s.end(ErrReset)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.cond.Broadcast()
	switch f.Type {
	case TypeEnd0, TypeEnd1:
		s.in[f.Type-TypeEnd0].ended = true
		return nil
	case TypeCredit0, TypeCredit1:
		o := &s.out[f.Type-TypeCredit0]
		if len(f.Payload) != 4 {
			return fmt.Errorf("%w: bad credit", ErrProtocol)
		}
		n := binary.BigEndian.Uint32(f.Payload)
		if n > uint32(Window-o.credit) {
			return fmt.Errorf("%w: credit over the window", ErrProtocol)
		}
		o.credit += int(n)
		return nil
	}
	return fmt.Errorf("%w: frame type %d on a stream", ErrProtocol, f.Type)
}

func (s *Stream) receiveData(channel int, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := &s.in[channel]
	if in.ended {
		return fmt.Errorf("%w: data after the end of a channel", ErrProtocol)
	}
	if len(p) > in.room {
		return fmt.Errorf("%w: data over the window", ErrProtocol)
	}
	in.room -= len(p)
	if in.buf == nil {
		in.buf = p
	} else {
		in.buf = append(in.buf, p...)
	}
	s.cond.Broadcast()
	return nil
}

func (s *Stream) receiveReply(f Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.accept != nil || s.whole || len(s.reply)+len(f.Payload) > MaxReply {
		return fmt.Errorf("%w: unexpected or long reply", ErrProtocol)
	}
	s.reply = append(s.reply, f.Payload...)
	if f.Type == TypeReply {
		s.whole = true
		close(s.got)
	}
	return nil
}
