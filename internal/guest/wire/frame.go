// Package wire is the protocol between a host and the exec server inside a
// sandbox: length-prefixed frames, a small exact codec for control messages,
// and a connection that carries many streams, each with its own flow control.
//
// Neither side trusts the other further than this package checks: a frame that
// is too long, unknown or out of turn ends the connection.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is the protocol version. Both sides must speak the same one: the host
// ships the server that it talks to.
const Version = 2

// Limits of the protocol, in bytes.
const (
	// MaxPayload is the longest payload of one frame.
	MaxPayload = 256 << 10
	// Window is how much a sender may have under way per channel before the
	// receiver has consumed it.
	Window = 256 << 10
	// MaxRequest is the longest request message of a stream.
	MaxRequest = 8 << 20
	// MaxReply is the longest reply message of a stream.
	MaxReply = 16 << 20

	headerLen = 9
	chunkLen  = 64 << 10
)

// Type is the kind of a frame.
type Type uint8

// The frame types. Types with a 1 at the end belong to channel 1 of a stream
// (standard error), their neighbours to channel 0 (everything else).
const (
	TypeHello     Type = iota + 1 // stream 0: a Hello message, once, first
	TypeOpen                      // the last part of the request that opens a stream
	TypeOpenPart                  // an earlier part of that request
	TypeReply                     // the last part of the reply of a stream
	TypeReplyPart                 // an earlier part of that reply
	TypeData0                     // bytes of channel 0
	TypeData1                     // bytes of channel 1
	TypeEnd0                      // channel 0 has ended in this direction
	TypeEnd1                      // channel 1 has ended in this direction
	TypeCredit0                   // the receiver consumed uint32 bytes of channel 0
	TypeCredit1                   // the receiver consumed uint32 bytes of channel 1
	TypeKill                      // end the stream's work; payload: uint32 grace in milliseconds
	TypeReset                     // the sender forgets the stream
	TypePing                      // stream 0: up to 8 bytes, to be returned
	TypePong                      // stream 0: the bytes of a ping
	typeLimit
)

// Frame is one unit on the wire: 1 byte type, uint32 stream, uint32 length
// (both big endian), payload.
type Frame struct {
	Type    Type
	Stream  uint32
	Payload []byte
}

// ErrProtocol is in the chain of every error about a peer that breaks the
// protocol.
var ErrProtocol = errors.New("protocol violation")

// ReadFrame reads one frame. It returns io.EOF only between frames, and an error
// that wraps ErrProtocol for a type or length that the protocol does not have.
// The payload is freshly allocated.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Type: Type(h[0]), Stream: binary.BigEndian.Uint32(h[1:])}
	n := binary.BigEndian.Uint32(h[5:])
	if f.Type == 0 || f.Type >= typeLimit {
		return Frame{}, fmt.Errorf("%w: frame type %d", ErrProtocol, h[0])
	}
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, n)
	}
	if stream0 := f.Type == TypeHello || f.Type == TypePing || f.Type == TypePong; stream0 != (f.Stream == 0) {
		return Frame{}, fmt.Errorf("%w: frame type %d on stream %d", ErrProtocol, h[0], f.Stream)
	}
	if n == 0 {
		return f, nil
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// AppendFrame appends the encoding of f to b. The payload must not be longer
// than MaxPayload.
func AppendFrame(b []byte, f Frame) []byte {
	b = append(b, byte(f.Type))
	b = binary.BigEndian.AppendUint32(b, f.Stream)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Payload)))
	return append(b, f.Payload...)
}
