package docker

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"assay/sandbox"
)

// stream is the attached standard streams of a container's first process: Read
// is its standard output, Write its standard input. What it says on standard
// error is kept for messages.
//
// The engine sends both outputs in one stream, as frames with a header of 8
// bytes: stream number, three zeros, length (big endian).
// Source: https://docs.docker.com/reference/api/engine/version/v1.41/#operation/ContainerAttach
type stream struct {
	h      *client.HijackedResponse
	left   uint32 // of the frame of standard output that is being read
	said   *sandbox.Output
	closed sync.Once
}

// saidLimit is how much of standard error is kept.
const saidLimit = 8 << 10

func newStream(h *client.HijackedResponse) *stream {
	return &stream{h: h, said: sandbox.NewOutput(saidLimit)}
}

// Read is called by one goroutine at a time.
func (s *stream) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if uint32(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.h.Reader.Read(p)
	s.left -= uint32(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// next reads frame headers until one of standard output.
func (s *stream) next() error {
	var h [8]byte
	if _, err := io.ReadFull(s.h.Reader, h[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(h[4:])
	switch stdcopy.StdType(h[0]) {
	case stdcopy.Stdout:
		s.left = n
		return nil
	case stdcopy.Stderr:
		_, err := io.CopyN(s.said, s.h.Reader, int64(n))
		return err
	case stdcopy.Systemerr:
		_, err := io.CopyN(s.said, s.h.Reader, int64(n))
		if err == nil {
			err = fmt.Errorf("the engine ended the stream: %s", s.words())
		}
		return err
	default:
		return fmt.Errorf("the engine's stream has a frame of unknown type %d", h[0])
	}
}

func (s *stream) Write(p []byte) (int, error) { return s.h.Conn.Write(p) }

// Close ends the connection, and with it blocked reads and writes.
func (s *stream) Close() error {
	s.closed.Do(func() { s.h.Close() })
	return nil
}

// words is the end of what the process said on standard error, on one line.
func (s *stream) words() string { return sandbox.Tail(s.said.String(), 240) }
