package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Link is how a service moves frames.
type Link interface {
	// Attach starts an attachment whose frames continue at offset from, and
	// returns them as bytes. Closing the reader ends it. An error that matches
	// ErrGone is final.
	Attach(ctx context.Context, from uint64) (io.ReadCloser, error)
	// Send brings whole frames up; it may return before they arrived. After an
	// error a new attachment is made, the frames are sent again, and the daemon
	// drops what it has.
	Send(ctx context.Context, frames []byte) error
}

// Staller is a Link that has another way to send. Stalled is called when what
// was sent has not arrived for StallAfter, before a new attachment is made.
type Staller interface{ Stalled() }

// StallAfter is how long what was sent may take to arrive. The daemon confirms
// at once: the exec server never grants more than it takes.
const StallAfter = 10 * time.Second

// ErrGone is matched by errors that say that the sandbox is no more.
var ErrGone = errors.New("the sandbox is gone")

// Options tune a Tunnel.
type Options struct {
	// Patience is how long the tunnel tries to come back after a cut. 0 means
	// one minute.
	Patience time.Duration
	// Idle is how long nothing may come down before a connection counts as
	// dead; the daemon speaks every Heartbeat. 0 means three Heartbeats.
	Idle time.Duration
	// Linger is how long a write waits, at least twice, for others to travel with
	// it; 0 does not wait.
	Linger time.Duration
}

// Heartbeat is the longest silence of a daemon.
const Heartbeat = 15 * time.Second

// maxPending bounds what Write takes before something arrived, in bytes.
const maxPending = 4 << 20

// ackEvery is how much may come down before the daemon is told, in bytes: it
// keeps what is not confirmed.
const ackEvery = 1 << 20

// Tunnel is the host's end: a stream of bytes to and from the exec server that
// survives cuts. Read and Write may be used by one goroutine each; Close by any.
type Tunnel struct {
	link   Link
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	pr     *io.PipeReader
	pw     *io.PipeWriter
	wg     sync.WaitGroup
	hello  chan struct{}

	mu       sync.Mutex
	greeting Hello
	greeted  bool
	err      error
	pending  []byte // written, not confirmed
	base     uint64 // offset of pending[0]
	sent     uint64 // offset up to which pending was sent on this attachment
	room     chan struct{}
	work     chan struct{}
	received uint64
	told     uint64
	attached bool
	cut      context.CancelFunc // of the attachment
	cuts     int
}

// NewTunnel returns a tunnel that does nothing until Start.
func NewTunnel(link Link, o Options) *Tunnel {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Idle == 0 {
		o.Idle = 3 * Heartbeat
	}
	t := &Tunnel{link: link, o: o, hello: make(chan struct{}), room: make(chan struct{}, 1), work: make(chan struct{}, 1)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.pr, t.pw = io.Pipe()
	return t
}

// First waits for the first bytes that are written and returns them as frames
// that Start will not send again, for links that can deliver them early.
func (t *Tunnel) First(ctx context.Context) ([]byte, error) {
	select {
	case <-t.work:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.ctx.Done():
		return nil, t.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	frames := Append(nil, Data, t.base, t.pending)
	t.sent = t.base + uint64(len(t.pending))
	return frames, nil
}

// Start begins to move bytes.
func (t *Tunnel) Start() {
	t.wg.Go(t.down)
	t.wg.Go(t.up)
}

// Greeting waits for the daemon's word.
func (t *Tunnel) Greeting(ctx context.Context) (Hello, error) {
	select {
	case <-t.hello:
	case <-t.ctx.Done():
		return Hello{}, t.Err()
	case <-ctx.Done():
		return Hello{}, context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.greeting, nil
}

// Err says why the tunnel ended, or nil.
func (t *Tunnel) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Cuts is how often the tunnel came back.
func (t *Tunnel) Cuts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cuts
}

// Read reads what the exec server wrote.
func (t *Tunnel) Read(p []byte) (int, error) { return t.pr.Read(p) }

// Write queues bytes for the exec server.
func (t *Tunnel) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		t.mu.Lock()
		if t.err != nil {
			err := t.err
			t.mu.Unlock()
			return n, err
		}
		k := min(maxPending-len(t.pending), len(p))
		t.pending = append(t.pending, p[:k]...)
		t.mu.Unlock()
		n, p = n+k, p[k:]
		poke(t.work)
		if len(p) == 0 {
			break
		}
		select {
		case <-t.room:
		case <-t.ctx.Done():
		}
	}
	return n, nil
}

// Close ends the tunnel and waits for its goroutines.
func (t *Tunnel) Close() error {
	t.fail(io.ErrClosedPipe)
	_ = t.pr.CloseWithError(io.ErrClosedPipe) // never fails
	t.wg.Wait()
	return nil
}

func (t *Tunnel) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.cancel()
	_ = t.pw.CloseWithError(err) // never fails
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// firstPause is the pause after a first cut; it doubles up to maxPause.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 3 * time.Second
)

// down keeps an attachment and hands on what it brings.
func (t *Tunnel) down() {
	pause, since := firstPause, time.Now()
	for {
		well := false
		err := t.attach(func() { well = true })
		if well { // until now: patience begins with the cut
			pause, since = firstPause, time.Now()
		}
		switch {
		case t.ctx.Err() != nil:
			return
		case errors.Is(err, ErrGone):
			t.fail(err)
			return
		case time.Since(since) > t.o.Patience:
			t.fail(fmt.Errorf("the connection to the sandbox broke and could not be restored for %s: %w", t.o.Patience, err))
			return
		}
		select {
		case <-t.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// attach runs one attachment to its end. alive is called for what it brings.
func (t *Tunnel) attach(alive func()) error {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	t.mu.Lock()
	from := t.received
	t.cut = cancel
	t.mu.Unlock()
	rc, err := t.link.Attach(ctx, from)
	if err != nil {
		return err
	}
	silence := time.AfterFunc(t.o.Idle, cancel)
	defer silence.Stop()
	// Closing ends a blocked read, whoever ends the attachment.
	stop := context.AfterFunc(ctx, func() { _ = rc.Close() })
	defer func() {
		cancel()
		stop()
		_ = rc.Close() // the read error says what happened
		t.mu.Lock()
		t.attached = false
		t.mu.Unlock()
	}()
	for {
		f, err := Read(rc)
		if err != nil {
			return fmt.Errorf("read from the sandbox: %w", err)
		}
		silence.Reset(t.o.Idle)
		if err := t.take(f, alive); err != nil {
			return err
		}
	}
}

func (t *Tunnel) take(f Frame, alive func()) error {
	switch f.Kind {
	case Greeting:
		var h Hello
		if err := json.Unmarshal(f.Payload, &h); err != nil {
			return fmt.Errorf("%w: %w", ErrFrame, err)
		}
		alive()
		t.mu.Lock()
		t.confirm(f.Offset)
		again := t.greeted
		t.greeting, t.greeted = h, true
		if again {
			t.cuts++
			t.sent = t.base // what is not confirmed may be lost
		}
		t.attached = true
		t.mu.Unlock()
		if !again {
			close(t.hello)
		}
		poke(t.work)
		return nil
	case Ack:
		t.mu.Lock()
		t.confirm(f.Offset)
		t.mu.Unlock()
		poke(t.room)
		return nil
	case Ended:
		return fmt.Errorf("%w: its exec server ended", ErrGone)
	case Data:
		return t.deliver(f)
	default:
		return fmt.Errorf("%w: kind %q", ErrFrame, f.Kind)
	}
}

// deliver hands bytes to the reader, without those that came before.
func (t *Tunnel) deliver(f Frame) error {
	t.mu.Lock()
	have := t.received
	t.mu.Unlock()
	if f.Offset > have {
		return fmt.Errorf("%w: bytes %d to %d are missing", ErrFrame, have, f.Offset)
	}
	if skip := have - f.Offset; skip < uint64(len(f.Payload)) {
		body := f.Payload[skip:]
		if _, err := t.pw.Write(body); err != nil {
			return err
		}
		t.mu.Lock()
		t.received += uint64(len(body))
		due := t.received-t.told >= ackEvery
		t.mu.Unlock()
		if due {
			poke(t.work)
		}
	}
	return nil
}

// confirm forgets what arrived. The caller holds mu.
func (t *Tunnel) confirm(upTo uint64) {
	if upTo <= t.base || upTo > t.base+uint64(len(t.pending)) {
		return
	}
	t.pending = t.pending[upTo-t.base:]
	t.base = upTo
	t.sent = max(t.sent, upTo)
	if len(t.pending) == 0 {
		t.pending = nil // let go of the array
	}
}

// up sends what is written.
func (t *Tunnel) up() {
	pause := firstPause
	stall := time.AfterFunc(StallAfter, t.stalled)
	defer stall.Stop()
	for {
		select {
		case <-t.work:
		case <-t.ctx.Done():
			return
		}
		t.linger()
		frames, upTo, told := t.batch()
		if frames == nil {
			continue
		}
		if err := t.link.Send(t.ctx, frames); err != nil {
			// A part of a frame may have arrived, so the attachment is spent.
			t.mu.Lock()
			t.attached = false
			t.cut()
			t.mu.Unlock()
			select {
			case <-t.ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, maxPause)
			continue
		}
		pause = firstPause
		t.mu.Lock()
		t.sent, t.told = max(t.sent, upTo), max(t.told, told)
		more := t.base+uint64(len(t.pending)) > t.sent
		t.mu.Unlock()
		stall.Reset(StallAfter)
		if more {
			poke(t.work)
		}
	}
}

// linger waits until nothing more is written for a while: what belongs together
// travels together. A stream of bytes does not wait for its end.
func (t *Tunnel) linger() {
	if t.o.Linger <= 0 {
		return
	}
	have, quiet := -1, 0
	for range 8 {
		t.mu.Lock()
		n := len(t.pending)
		t.mu.Unlock()
		if quiet++; n != have {
			quiet = 0
		}
		if have = n; quiet == 2 {
			return
		}
		select {
		case <-time.After(t.o.Linger):
		case <-t.ctx.Done():
			return
		}
	}
}

// stalled looks whether what was sent arrived.
func (t *Tunnel) stalled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.attached || t.sent == t.base {
		return
	}
	if s, ok := t.link.(Staller); ok {
		s.Stalled()
	}
	t.attached = false
	t.cut()
}

// batch is everything that is to be sent now, as frames, and the offsets that
// they reach. It is nil when there is nothing or nobody to send it to.
func (t *Tunnel) batch() (frames []byte, upTo, told uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.attached {
		return nil, 0, 0
	}
	upTo, told = t.sent, t.received
	rest := t.pending[t.sent-t.base:]
	if len(rest) == 0 && told-t.told < ackEvery {
		return nil, 0, 0
	}
	if told > t.told {
		frames = Append(frames, Ack, told, nil)
	}
	for len(rest) > 0 {
		n := min(len(rest), 256<<10)
		frames = Append(frames, Data, upTo, rest[:n])
		upTo, rest = upTo+uint64(n), rest[n:]
	}
	return frames, upTo, told
}
