// Package relay carries the byte stream between a host and an exec server over
// a service that offers only commands and files: it can be cut at any moment and
// taken up again without a lost or repeated byte.
//
// In the sandbox a daemon holds the exec server and keeps what the host has not
// confirmed. An attachment, a short-lived command whose standard output the
// service streams, brings frames down; frames go up through the attachment's
// standard input or, where commands have none, as files of a directory.
//
// A frame is one kind byte, a big-endian uint64 offset, a big-endian uint32
// length and the payload. As text each frame down is one line of base64.
package relay

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The first arguments that make a program an attachment and the daemon. They
// show in process lists and so say nothing of their purpose.
const (
	AttachArg = "--init-attach"
	HoldArg   = "--init-hold"
)

// Names in the daemon's directory.
const (
	SocketName = "s"
	InboxName  = "in"
	LockName   = "l"
)

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames.
const (
	Greeting Kind = 'H' // down: a JSON Hello; first on every attachment
	Data     Kind = 'D' // both: payload at offset
	Ack      Kind = 'A' // both: everything before offset arrived
	Ended    Kind = 'X' // down: the exec server is gone
	Close    Kind = 'E' // up: the end of a file of frames; offset is their length in bytes
)

// Hello is what the daemon says of itself.
type Hello struct {
	// PID of the daemon; /proc/PID/exe is the program that cannot have been
	// replaced since it started.
	PID int `json:"pid"`
	// Env is the environment that the service gave to the first attachment.
	Env []string `json:"env"`
	// User is the owner of the uploaded program: the service's default user.
	User User `json:"user"`
	// Workdir is what was made of the working directory: "" is well, otherwise
	// why not.
	Workdir string `json:"workdir,omitempty"`
	// Shells are those of ShellPaths that exist, before any command ran.
	Shells map[string]Shell `json:"shells"`
}

// Shell is a shell as it was found, with symlinks followed.
type Shell struct {
	Mode uint32 `json:"mode"` // permission bits
	Size int64  `json:"size"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// ShellPaths are the places where Hello.Shells are looked for.
var ShellPaths = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh"}

// User is an identity as the exec server resolves it.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Home   string   `json:"home"`
	Shell  string   `json:"shell"`
}

// MaxPayload bounds the payload of one frame, in bytes.
const MaxPayload = 1 << 20

const headLen = 1 + 8 + 4

// ErrFrame is returned for what is no frame.
var ErrFrame = errors.New("relay: a malformed frame")

// Append appends a frame.
func Append(b []byte, k Kind, offset uint64, payload []byte) []byte {
	b = append(b, byte(k))
	b = binary.BigEndian.AppendUint64(b, offset)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// AppendText appends a frame as a line of text.
func AppendText(b []byte, k Kind, offset uint64, payload []byte) []byte {
	b = base64.StdEncoding.AppendEncode(b, Append(nil, k, offset, payload))
	return append(b, '\n')
}

// Seal makes frames the content of a file: a file without its last frame is not
// whole.
func Seal(frames []byte) []byte { return Append(frames, Close, uint64(len(frames)), nil) }

// Lot reads the frames of a file and reports whether it is whole.
func Lot(body []byte) ([]Frame, bool) {
	var frames []Frame
	r := bytes.NewReader(body)
	for {
		at := uint64(len(body) - r.Len())
		f, err := Read(r)
		switch {
		case err != nil:
			return nil, false
		case f.Kind == Close:
			return frames, f.Offset == at && r.Len() == 0
		}
		frames = append(frames, f)
	}
}

// Frame is one decoded frame.
type Frame struct {
	Kind    Kind
	Offset  uint64
	Payload []byte
}

// Read reads one frame. A stream that ends between two frames is io.EOF.
func Read(r io.Reader) (Frame, error) {
	var head [headLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head[9:])
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("%w: %d bytes", ErrFrame, n)
	}
	f := Frame{Kind: Kind(head[0]), Offset: binary.BigEndian.Uint64(head[1:]), Payload: make([]byte, n)}
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// TextReader turns lines of base64 into the bytes of frames.
type TextReader struct {
	r    *bufio.Reader
	rest []byte
}

// NewTextReader reads lines from r.
func NewTextReader(r io.Reader) *TextReader { return &TextReader{r: bufio.NewReaderSize(r, 64<<10)} }

// maxLine bounds a line, in bytes.
const maxLine = (MaxPayload+headLen+2)/3*4 + 2

// Read implements io.Reader.
func (t *TextReader) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		var line []byte
		for {
			part, err := t.r.ReadSlice('\n')
			line = append(line, part...)
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				if len(line) > 0 && errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return 0, err
			}
			if len(line) > maxLine {
				return 0, ErrFrame
			}
		}
		body, err := base64.StdEncoding.AppendDecode(nil, line[:len(line)-1])
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrFrame, err)
		}
		t.rest = body
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}
