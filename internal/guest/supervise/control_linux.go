package supervise

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// controlFD is where a supervisor finds its end of the control socket.
const controlFD = 3

// The messages on a control socket: 1 byte kind, uint32 length, payload.
const (
	msgStart   = iota + 1 // to the supervisor, with three descriptors: wire.ExecRequest
	msgKill               // to the supervisor: wire.Kill grace
	msgStarted            // event
	msgRefused            // event: the command was not started; wire.Result
	msgExited             // event: the leader ended by itself
	msgKilled             // event: after msgKill, no process of the tree is left
)

const maxControl = wire.MaxRequest + 1024

// EventKind is what happened to a supervised command.
type EventKind uint8

// The kinds of events. For each command a supervisor sends Refused, or Started
// and then Exited or Killed; a program that is not there is Exited alone.
const (
	Started EventKind = msgStarted
	Refused EventKind = msgRefused
	Exited  EventKind = msgExited
	Killed  EventKind = msgKilled
)

// Event is a report of a supervisor.
type Event struct {
	Kind   EventKind
	PID    int         // Started: of the leader
	Refuse wire.Result // Refused
	// Known says that Status and Signal hold; always after Exited, and after
	// Killed when the leader had been started.
	Known  bool
	Status int
	Signal int
	// Idle says that the command left nothing behind and the supervisor takes
	// another one; after other last events it ends.
	Idle bool
}

// Last says whether no event of this command follows.
func (e *Event) Last() bool { return e.Kind != Started }

// Fields implements wire.Message.
func (e *Event) Fields(c *wire.Codec) {
	c.Num(&e.PID)
	e.Refuse.Fields(c)
	c.Bool(&e.Known)
	c.Num(&e.Status)
	c.Num(&e.Signal)
	c.Bool(&e.Idle)
}

type killOrder struct{ grace int64 }

func (k *killOrder) Fields(c *wire.Codec) { c.Int(&k.grace) }

func frame(kind byte, m wire.Message) []byte {
	body := wire.Marshal(m)
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)))
	return append(b, body...)
}

// readFrame reads one message of a control socket.
func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxControl {
		return 0, nil, fmt.Errorf("%w: control message of %d bytes", wire.ErrProtocol, n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return h[0], body, err
}

// Link is the parent's end of a supervisor's control socket. Closing it makes
// the supervisor kill its tree and end.
type Link struct{ f *os.File }

// NewLink returns the parent's end and the descriptor that the supervisor must
// get as descriptor 3. The caller closes the latter after the start.
func NewLink() (*Link, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return &Link{os.NewFile(uintptr(fds[0]), "control")}, os.NewFile(uintptr(fds[1]), "control"), nil
}

// Start hands the supervisor its command and the command's standard input,
// output and error. Call it again only after an Idle event.
func (l *Link) Start(req *wire.ExecRequest, files [3]*os.File) error {
	b := frame(msgStart, req)
	rights := unix.UnixRights(int(files[0].Fd()), int(files[1].Fd()), int(files[2].Fd()))
	rc, err := l.f.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	var sendErr error
	err = rc.Write(func(fd uintptr) bool {
		n, sendErr = unix.SendmsgN(int(fd), b, rights, nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN && sendErr != unix.EINTR
	})
	if err == nil {
		err = sendErr
	}
	if err != nil {
		return err
	}
	_, err = l.f.Write(b[n:])
	return err
}

// Kill orders the end of the whole tree: SIGTERM, grace later SIGKILL; without
// grace SIGKILL at once.
func (l *Link) Kill(grace time.Duration) error {
	_, err := l.f.Write(frame(msgKill, &killOrder{int64(grace)}))
	return err
}

// Next waits for the next event. io.EOF means that the supervisor is gone.
func (l *Link) Next() (Event, error) {
	kind, body, err := readFrame(l.f)
	if err != nil {
		// A supervisor that was killed shows as a reset or a cut message.
		return Event{}, io.EOF
	}
	e := Event{Kind: EventKind(kind)}
	if err := wire.Unmarshal(body, &e); err != nil {
		return Event{}, io.EOF
	}
	return e, nil
}

// Close closes the link.
func (l *Link) Close() { _ = l.f.Close() } // nothing is buffered
