package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kind is the type of an archive record.
type Kind uint8

// The kinds of records. KindEnd closes an archive, so that one that was cut is
// never taken for a whole one.
const (
	KindFile Kind = iota + 1
	KindDir
	KindSymlink
	KindHardlink
	KindEnd
)

// MaxRecord is the longest header of an archive record, and so bounds names and
// link targets.
const MaxRecord = 16 << 10

// Record is the header of one file in transit. The archive format is ours and
// not tar, so that the server needs no tar code and holes need no bytes: a file
// record is followed by extents, each an 8-byte offset and an 8-byte length (big
// endian) and the bytes, in ascending order; an extent of length 0 ends the file.
type Record struct {
	Kind  Kind
	Name  string // slash-separated, relative; "." is the target itself
	Link  string // target of a link
	Mode  uint32 // permission bits
	Size  int64
	MTime int64 // nanoseconds since 1970
}

// Fields implements Message.
func (m *Record) Fields(c *Codec) {
	k := int(m.Kind)
	c.Num(&k)
	if k < 0 || k > int(KindEnd) {
		c.fail("record kind")
		return
	}
	m.Kind = Kind(k)
	c.Str(&m.Name)
	c.Str(&m.Link)
	c.ID(&m.Mode)
	c.Int(&m.Size)
	c.Int(&m.MTime)
}

// WriteRecord writes the header of a record.
func WriteRecord(w io.Writer, r *Record) error {
	body := Marshal(r)
	if len(body) > MaxRecord {
		return fmt.Errorf("name or link target of %d bytes is too long", len(body))
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// ReadRecord reads the header of a record. An early end of r is
// io.ErrUnexpectedEOF.
func ReadRecord(r io.Reader) (*Record, error) {
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, noEOF(err)
	}
	n := binary.BigEndian.Uint32(h[:])
	if n > MaxRecord {
		return nil, fmt.Errorf("%w: record of %d bytes", ErrProtocol, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, noEOF(err)
	}
	rec := &Record{}
	if err := Unmarshal(b, rec); err != nil {
		return nil, err
	}
	if rec.Kind == 0 || rec.Size < 0 {
		return nil, fmt.Errorf("%w: bad record", ErrProtocol)
	}
	return rec, nil
}

// WriteExtent writes the header of an extent; n bytes must follow.
func WriteExtent(w io.Writer, off, n int64) error {
	b := binary.BigEndian.AppendUint64(nil, uint64(off))
	_, err := w.Write(binary.BigEndian.AppendUint64(b, uint64(n)))
	return err
}

// ReadExtent reads the header of the next extent of a file of the given size and
// checks that it lies at or after prev, the end of the one before. n is 0 at the
// end of the file.
func ReadExtent(r io.Reader, prev, size int64) (off, n int64, err error) {
	var b [16]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, 0, noEOF(err)
	}
	off = int64(binary.BigEndian.Uint64(b[:8]))
	n = int64(binary.BigEndian.Uint64(b[8:]))
	if n < 0 || off < prev || off > size || n > size-off {
		return 0, 0, fmt.Errorf("%w: extent outside of its file", ErrProtocol)
	}
	return off, n, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
