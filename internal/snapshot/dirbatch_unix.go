//go:build unix

package snapshot

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A batch of few objects becomes loose objects, a larger one a pack: every
// pack has an index that each later request loads.
const (
	looseCount = 64
	looseBytes = 4 << 20
)

// Begin implements Store.
func (s *DirStore) Begin() (Batch, error) { return &dirBatch{store: s, ids: map[ID]bool{}}, nil }

type dirBatch struct {
	store *DirStore

	mu    sync.Mutex
	ids   map[ID]bool
	small []smallObject // until there is a pack
	bytes int64
	pack  *packWriter
	err   error
}

type smallObject struct {
	id   ID
	kind Kind
	data []byte
}

func (b *dirBatch) Has(id ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ids[id] || b.store.Has(id)
}

func (b *dirBatch) Put(id ID, k Kind, size int64, content io.Reader) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || b.ids[id] || b.store.Has(id) {
		return b.err
	}
	err := b.put(id, k, size, content)
	if bad := (contentError{}); errors.As(err, &bad) {
		return bad.error
	}
	if err != nil {
		b.err = storeErr("write objects", err)
		return b.err
	}
	b.ids[id] = true
	return nil
}

func (b *dirBatch) put(id ID, k Kind, size int64, content io.Reader) error {
	if b.pack == nil && len(b.small) < looseCount && b.bytes+size <= looseBytes {
		data := make([]byte, size)
		if _, err := io.ReadFull(content, data); err != nil {
			return contentError{err}
		}
		b.small = append(b.small, smallObject{id, k, data})
		b.bytes += size
		return nil
	}
	if b.pack == nil {
		if err := b.startPack(); err != nil {
			return err
		}
	}
	return b.pack.add(id, k, size, content)
}

func (b *dirBatch) startPack() error {
	f, err := os.CreateTemp(b.store.path("objects/pack"), tempPrefix+"pack_")
	if err != nil {
		return err
	}
	if b.pack, err = newPackWriter(f); err != nil {
		return err
	}
	for _, o := range b.small {
		if err := b.pack.add(o.id, o.kind, int64(len(o.data)), bytes.NewReader(o.data)); err != nil {
			return err
		}
	}
	b.small = nil
	return nil
}

func (b *dirBatch) Commit() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	if b.pack != nil {
		return len(b.ids), b.commitPack()
	}
	// Objects come before those that refer to them: a killed writer leaves
	// whole objects that nothing names.
	for _, o := range b.small {
		if err := b.store.writeLoose(o); err != nil {
			return 0, storeErr("write an object", err)
		}
	}
	return len(b.ids), nil
}

func (s *DirStore) writeLoose(o smallObject) error {
	temp := s.path("objects/pack/" + tempPrefix + "loose")
	if err := os.WriteFile(temp, encodeLoose(o), 0o400); err != nil {
		return err
	}
	to := s.loosePath(o.id)
	err := os.Rename(temp, to)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		err = os.Rename(temp, to)
	}
	return err
}

// encodeLoose makes the zlib stream of a loose object: header and content.
func encodeLoose(o smallObject) []byte {
	body := append(objectHeader(o.kind, int64(len(o.data))), o.data...)
	var b bytes.Buffer
	b.Write([]byte{0x78, 0x01})
	write := func(p []byte) error { b.Write(p); return nil }
	// A buffer takes everything and body has its full length: no error.
	_ = writeStored(write, bytes.NewReader(body), int64(len(body)))
	return b.Bytes()
}

// openLoose opens a loose object.
func openLoose(path string, id ID) (Object, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Object{}, missing(id)
	}
	if err != nil {
		return Object{}, storeErr("read an object", err)
	}
	o, err := readLooseHeader(f)
	if err != nil {
		f.Close()
	}
	return o, err
}

func readLooseHeader(f *os.File) (Object, error) {
	var zlib [2]byte
	raw := bufio.NewReader(f)
	if _, err := io.ReadFull(raw, zlib[:]); err != nil || zlib != [2]byte{0x78, 0x01} {
		return Object{}, corrupt("an object was not written by this program", err)
	}
	br := bufio.NewReader(&storedReader{br: raw})
	head, err := br.ReadString(0)
	kind, size, _ := strings.Cut(strings.TrimSuffix(head, "\x00"), " ")
	n, err2 := strconv.ParseInt(size, 10, 64)
	if err != nil || err2 != nil || n < 0 {
		return Object{}, corrupt("an object is malformed", errors.Join(err, err2))
	}
	o := Object{Size: n, ReadCloser: struct {
		io.Reader
		io.Closer
	}{br, f}}
	for k := KindCommit; k <= KindBlob; k++ {
		if k.String() == kind {
			o.Kind = k
		}
	}
	return o, nil
}

func (b *dirBatch) commitPack() error {
	sum, index, err := b.pack.finish()
	if err == nil {
		err = b.pack.f.Close()
	}
	name := "pack-" + sum.String()
	base := "objects/pack/" + name
	if err == nil {
		err = os.Rename(b.pack.f.Name(), b.store.path(base+".pack"))
	}
	if err != nil {
		return storeErr("write a pack", err)
	}
	b.pack = nil
	// The index makes the pack visible, so it comes second.
	if err := b.store.WriteFile(base+".idx", index); err != nil {
		return err
	}
	p, err := newPackReader(name, index)
	if err != nil {
		return err
	}
	packs := map[string]*packReader{name: p}
	for _, p := range b.store.order {
		packs[p.name] = p
	}
	b.store.setPacks(packs)
	return nil
}

func (b *dirBatch) Discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.small = nil
	if b.pack != nil {
		b.pack.f.Close()
		os.Remove(b.pack.f.Name())
		b.pack = nil
	}
}
