package snapshot

import (
	"bytes"
	"context"
	"io"
	"maps"
	"sync"
)

// Store keeps objects, the head, and small named files. Reading methods may be
// called from several goroutines; one writer at a time holds the lock.
type Store interface {
	// Lock makes the caller the only user until unlock; it waits until ctx ends.
	Lock(ctx context.Context) (unlock func(), err error)
	// Has tells whether the object is there.
	Has(id ID) bool
	// Open returns the object's content; what it returns is not verified.
	Open(id ID) (Object, error)
	// Begin collects new objects.
	Begin() (Batch, error)
	// Head returns the newest commit, zero if there is none.
	Head() (ID, error)
	SetHead(id ID) error
	// ReadFile returns a named file's content, nil if there is none; WriteFile
	// replaces it atomically.
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte) error
	// WriteCache is WriteFile for the scan cache, which may break: it has a
	// checksum and can be rebuilt.
	WriteCache(data []byte) error
}

// Object is an object of a store. Close it.
type Object struct {
	Kind Kind
	Size int64
	io.ReadCloser
}

// Batch is a set of new objects; they exist for others after Commit.
type Batch interface {
	// Put adds an object unless it exists. Content must yield size bytes; they
	// are not verified. Safe for concurrent use.
	Put(id ID, k Kind, size int64, content io.Reader) error
	// Has tells whether the object is in the batch or in the store.
	Has(id ID) bool
	// Commit makes the objects visible, all or none, and returns their number.
	Commit() (int, error)
	// Discard forgets them. It does nothing after Commit.
	Discard()
}

// MemStore is a store in memory.
type MemStore struct {
	busy chan struct{}

	mu      sync.RWMutex
	objects map[ID]memObject
	files   map[string][]byte
	head    ID
}

type memObject struct {
	kind Kind
	data []byte
}

var _ Store = (*MemStore)(nil)

// NewMemStore returns an empty store.
func NewMemStore() *MemStore {
	return &MemStore{busy: make(chan struct{}, 1), objects: map[ID]memObject{}, files: map[string][]byte{}}
}

// Lock implements Store.
func (s *MemStore) Lock(ctx context.Context) (func(), error) {
	select {
	case s.busy <- struct{}{}:
		return func() { <-s.busy }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Has implements Store.
func (s *MemStore) Has(id ID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.objects[id]
	return ok
}

// Open implements Store.
func (s *MemStore) Open(id ID) (Object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.objects[id]
	if !ok {
		return Object{}, missing(id)
	}
	return Object{Kind: o.kind, Size: int64(len(o.data)), ReadCloser: io.NopCloser(bytes.NewReader(o.data))}, nil
}

func missing(id ID) error { return corrupt("object "+id.String()+" is missing", nil) }

// Head implements Store.
func (s *MemStore) Head() (ID, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.head, nil
}

// SetHead implements Store.
func (s *MemStore) SetHead(id ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head = id
	return nil
}

// ReadFile implements Store.
func (s *MemStore) ReadFile(name string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.files[name], nil
}

// WriteFile implements Store.
func (s *MemStore) WriteFile(name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = bytes.Clone(data)
	return nil
}

// WriteCache implements Store.
func (s *MemStore) WriteCache(data []byte) error { return s.WriteFile(cacheFile, data) }

// Begin implements Store.
func (s *MemStore) Begin() (Batch, error) {
	return &memBatch{store: s, objects: map[ID]memObject{}}, nil
}

type memBatch struct {
	store   *MemStore
	mu      sync.Mutex
	objects map[ID]memObject
}

func (b *memBatch) Has(id ID) bool {
	b.mu.Lock()
	_, ok := b.objects[id]
	b.mu.Unlock()
	return ok || b.store.Has(id)
}

func (b *memBatch) Put(id ID, k Kind, size int64, content io.Reader) error {
	if b.Has(id) {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(content, size+1))
	if err == nil && int64(len(data)) != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[id] = memObject{k, data}
	return nil
}

func (b *memBatch) Commit() (int, error) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	maps.Copy(b.store.objects, b.objects)
	n := len(b.objects)
	b.objects = nil
	return n, nil
}

func (b *memBatch) Discard() { b.objects = nil }
