package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha1" //nolint:gosec // git's pack format
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/adler32"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync"
)

// A snapshot writes its new objects as one pack, uncompressed: a zlib stream of
// stored blocks is valid git and costs no more than a copy, and one pack
// appears or does not, where thousands of loose objects would appear one by one.
// Formats: gitformat-pack(5), RFC 1950, RFC 1951 section 3.2.4.

const (
	packHeaderSize = 12
	storedBlock    = 0xffff
)

// packWriter writes one pack to a temporary file.
type packWriter struct {
	f       *os.File
	w       *bufio.Writer
	offset  uint64
	crc     hash.Hash32
	entries []*packEntry
}

type packEntry struct {
	id     ID
	crc    uint32
	offset uint64
}

func newPackWriter(f *os.File) (*packWriter, error) {
	p := &packWriter{f: f, w: bufio.NewWriterSize(f, 256<<10), crc: crc32.NewIEEE()}
	// The count is put in by finish, when it is known.
	err := p.write(make([]byte, packHeaderSize))
	return p, err
}

func (p *packWriter) write(b []byte) error {
	p.crc.Write(b)
	p.offset += uint64(len(b))
	_, err := p.w.Write(b)
	return err
}

// contentError is a failure of the content to be stored, not of the store.
type contentError struct{ error }

func (e contentError) Unwrap() error { return e.error }

// add appends one object. After a contentError the pack is as before; after
// another error it is unusable.
func (p *packWriter) add(id ID, k Kind, size int64, content io.Reader) error {
	e := &packEntry{id: id, offset: p.offset}
	p.crc.Reset()
	if err := p.write(appendPackHeader(make([]byte, 0, 16), k, size)); err != nil {
		return err
	}
	err := writeStored(p.write, content, size)
	if bad := (contentError{}); errors.As(err, &bad) {
		if fatal := p.rewind(e.offset); fatal != nil {
			return fatal
		}
	}
	if err != nil {
		return err
	}
	e.crc = p.crc.Sum32()
	p.entries = append(p.entries, e)
	return nil
}

// writeStored writes size bytes of content as stored blocks and the checksum
// of a zlib stream. A failure of content is a contentError.
func writeStored(write func([]byte) error, content io.Reader, size int64) error {
	sum := adler32.New()
	buf := make([]byte, 5+min(size, storedBlock))
	for left := size; ; {
		n := min(left, storedBlock)
		block := buf[:5+n]
		if _, err := io.ReadFull(content, block[5:]); err != nil {
			return contentError{err}
		}
		left -= n
		copy(block, []byte{0, byte(n), byte(n >> 8), ^byte(n), ^byte(n >> 8)})
		if left == 0 {
			block[0] = 1
		}
		if err := write(block); err != nil {
			return err
		}
		sum.Write(block[5:])
		if left == 0 {
			return write(sum.Sum(nil))
		}
	}
}

// rewind drops everything from offset on.
func (p *packWriter) rewind(offset uint64) error {
	if err := p.w.Flush(); err != nil {
		return err
	}
	p.offset = offset
	if err := p.f.Truncate(int64(offset)); err != nil {
		return err
	}
	_, err := p.f.Seek(int64(offset), io.SeekStart)
	return err
}

// appendPackHeader appends an entry's type and size, and the zlib header.
func appendPackHeader(b []byte, k Kind, size int64) []byte {
	c := byte(k)<<4 | byte(size&0x0f)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, c|0x80)
		c = byte(size & 0x7f)
	}
	return append(b, c, 0x78, 0x01)
}

// finish completes the pack and returns its checksum and index.
func (p *packWriter) finish() (ID, []byte, error) {
	if err := p.w.Flush(); err != nil {
		return ID{}, nil, err
	}
	var head [packHeaderSize]byte
	copy(head[:], "PACK")
	binary.BigEndian.PutUint32(head[4:], 2)
	binary.BigEndian.PutUint32(head[8:], uint32(len(p.entries)))
	if _, err := p.f.WriteAt(head[:], 0); err != nil {
		return ID{}, nil, err
	}
	h := sha1.New()
	if _, err := io.CopyBuffer(h, io.NewSectionReader(p.f, 0, int64(p.offset)), make([]byte, 256<<10)); err != nil {
		return ID{}, nil, err
	}
	sum := ID(h.Sum(nil))
	if _, err := p.f.WriteAt(sum[:], int64(p.offset)); err != nil {
		return ID{}, nil, err
	}
	return sum, packIndex(p.entries, sum), nil
}

// packIndex makes a version 2 index.
func packIndex(entries []*packEntry, pack ID) []byte {
	slices.SortFunc(entries, func(a, b *packEntry) int { return bytes.Compare(a.id[:], b.id[:]) })
	b := make([]byte, 0, 8+1024+28*len(entries)+40)
	b = append(b, 0xff, 't', 'O', 'c', 0, 0, 0, 2)
	n := 0
	for first := range 256 {
		for n < len(entries) && int(entries[n].id[0]) == first {
			n++
		}
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	for _, e := range entries {
		b = append(b, e.id[:]...)
	}
	for _, e := range entries {
		b = binary.BigEndian.AppendUint32(b, e.crc)
	}
	var large []uint64
	for _, e := range entries {
		if e.offset < 1<<31 {
			b = binary.BigEndian.AppendUint32(b, uint32(e.offset))
			continue
		}
		b = binary.BigEndian.AppendUint32(b, 1<<31|uint32(len(large)))
		large = append(large, e.offset)
	}
	for _, o := range large {
		b = binary.BigEndian.AppendUint64(b, o)
	}
	b = append(b, pack[:]...)
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

// packReader finds objects in one pack by its index, which stays as the bytes
// of the file: opening a store must not cost time for each object.
type packReader struct {
	name  string // without ".pack"
	index []byte
	count int

	mu sync.Mutex
	f  *os.File
}

func newPackReader(name string, index []byte) (*packReader, error) {
	const fixed = 8 + 1024 + 40
	if len(index) < fixed || !bytes.HasPrefix(index, []byte("\xfftOc\x00\x00\x00\x02")) {
		return nil, corrupt("a pack index is malformed", nil)
	}
	sum := sha1.Sum(index[:len(index)-20])
	if !bytes.Equal(sum[:], index[len(index)-20:]) {
		return nil, corrupt("a pack index has a wrong checksum", nil)
	}
	p := &packReader{name: name, index: index, count: int(binary.BigEndian.Uint32(index[8+1020:]))}
	if p.count < 0 || p.count > (len(index)-fixed)/28 {
		return nil, corrupt("a pack index is malformed", nil)
	}
	return p, nil
}

// find returns the offset of an object in the pack.
func (p *packReader) find(id ID) (uint64, bool) {
	ids := p.index[8+1024:]
	lo, hi := 0, p.count
	for lo < hi {
		mid := (lo + hi) / 2
		switch c := bytes.Compare(ids[mid*20:mid*20+20], id[:]); {
		case c == 0:
			return p.offset(mid)
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

func (p *packReader) offset(i int) (uint64, bool) {
	table := p.index[8+1024+24*p.count:]
	o := binary.BigEndian.Uint32(table[4*i:])
	if o < 1<<31 {
		return uint64(o), true
	}
	at := 4*p.count + 8*int(o&^(1<<31))
	if at+8 > len(table)-40 {
		return 0, false
	}
	return binary.BigEndian.Uint64(table[at:]), true
}

// openPacked opens the object at an offset of the pack f.
func openPacked(f *os.File, offset uint64) (Object, error) {
	br := bufio.NewReaderSize(io.NewSectionReader(f, int64(offset), 1<<62), 8<<10)
	c, err := br.ReadByte()
	if err != nil {
		return Object{}, corrupt("a pack ends early", err)
	}
	o := Object{Kind: Kind(c >> 4 & 7), Size: int64(c & 0x0f)}
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = br.ReadByte(); err != nil || shift > 50 {
			return Object{}, corrupt("a pack entry is malformed", err)
		}
		o.Size |= int64(c&0x7f) << shift
	}
	if o.Kind < KindCommit || o.Kind > KindBlob {
		return Object{}, corrupt(fmt.Sprintf("a pack entry has type %d", o.Kind), nil)
	}
	if h, err := br.Peek(2); err != nil || h[0] != 0x78 || h[1] != 0x01 {
		return Object{}, corrupt("a pack entry was not written by this program", err)
	}
	_, _ = br.Discard(2)
	o.ReadCloser = io.NopCloser(&storedReader{br: br})
	return o, nil
}

// storedReader reads a zlib stream of stored blocks. It leaves the checksum to
// the reader of the object, who knows a better one: the id.
type storedReader struct {
	br    *bufio.Reader
	left  int
	final bool
}

func (s *storedReader) Read(b []byte) (int, error) {
	for s.left == 0 {
		if s.final {
			return 0, io.EOF
		}
		var h [5]byte
		if _, err := io.ReadFull(s.br, h[:]); err != nil {
			return 0, corrupt("a pack ends early", err)
		}
		n := binary.LittleEndian.Uint16(h[1:])
		if h[0]&^1 != 0 || n != ^binary.LittleEndian.Uint16(h[3:]) {
			return 0, corrupt("a pack entry is damaged", nil)
		}
		s.left, s.final = int(n), h[0] == 1
	}
	n, err := s.br.Read(b[:min(len(b), s.left)])
	s.left -= n
	if err != nil {
		err = corrupt("a pack ends early", err)
	}
	return n, err
}
