//go:build unix

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"assay/fault"
)

// DirStore is a store in a directory with the layout of a bare git repository.
// The directory has mode 0700 and belongs to the effective user. Nothing is
// fsynced: a store dies with its sandbox. A killed writer leaves at most
// temporary files, which the next writer removes.
type DirStore struct {
	dir string

	mu    sync.RWMutex
	packs map[string]*packReader
	order []*packReader // largest first: most look-ups end in the baseline
}

var _ Store = (*DirStore)(nil)

// OpenStore opens the store in dir and makes it if there is none. A directory
// that is a link, belongs to another user or is open to others is refused with
// the code "ledger-store-unsafe": somebody else could have prepared it.
func OpenStore(dir string) (*DirStore, error) {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		// An image without /tmp: everything that runs in it may need one.
		if err = os.MkdirAll(filepath.Dir(dir), 0o777); err == nil {
			err = os.Chmod(filepath.Dir(dir), 0o777|fs.ModeSticky)
		}
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, storeErr("make the store", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, storeErr("look at the store", err)
	}
	if uint32(st.Mode)&TypeMask != TypeDir || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, fault.Configf("ledger-store-unsafe", "remove "+dir,
			"%s is not a private directory of this user", dir)
	}
	return &DirStore{dir: dir, packs: map[string]*packReader{}}, nil
}

func storeErr(what string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return &fault.Error{
			Class: fault.Resource, Code: "enospc", What: "change ledger: " + what, Err: err,
			Fix: "give the sandbox more disk or exclude large paths with diff.ignore",
		}
	case err == nil:
		return nil
	}
	return &fault.Error{Code: "ledger-store-failed", What: "change ledger: " + what, Err: err}
}

func (s *DirStore) path(name string) string { return filepath.Join(s.dir, name) }

// Lock implements Store with flock(2), which the kernel releases when the
// holder dies.
func (s *DirStore) Lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, storeErr("open the lock", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, storeErr("take the lock", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	unlock := func() {
		s.closePacks()
		f.Close()
	}
	if err := s.prepare(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// prepare completes the layout, removes what a killed writer left and loads
// the indexes of new packs.
func (s *DirStore) prepare() error {
	if _, err := os.Lstat(s.path("HEAD")); err != nil {
		for _, d := range []string{"objects/pack", "objects/info", "refs/heads", "info"} {
			if err := os.MkdirAll(s.path(d), 0o700); err != nil {
				return storeErr("make the store", err)
			}
		}
		const config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n"
		if err := s.WriteFile("config", []byte(config)); err != nil {
			return err
		}
		// HEAD last: it makes the directory a repository.
		if err := s.WriteFile("HEAD", []byte("ref: refs/heads/main\n")); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(s.path("objects/pack"))
	if err != nil {
		return storeErr("list the store", err)
	}
	found := map[string]*packReader{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".idx")
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			if err := os.Remove(s.path("objects/pack/" + e.Name())); err != nil {
				return storeErr("clean the store", err)
			}
		case ok && s.packs[name] != nil:
			found[name] = s.packs[name]
		case ok:
			if found[name], err = s.loadPack(name); err != nil {
				return err
			}
		}
	}
	s.setPacks(found)
	return nil
}

func (s *DirStore) loadPack(name string) (*packReader, error) {
	index, err := os.ReadFile(s.path("objects/pack/" + name + ".idx"))
	if err != nil {
		return nil, storeErr("read a pack index", err)
	}
	return newPackReader(name, index)
}

func (s *DirStore) setPacks(packs map[string]*packReader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packs, s.order = packs, s.order[:0]
	for _, p := range packs {
		s.order = append(s.order, p)
	}
	slices.SortFunc(s.order, func(a, b *packReader) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.name, b.name))
	})
}

func (s *DirStore) closePacks() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.order {
		p.mu.Lock()
		if p.f != nil {
			p.f.Close()
			p.f = nil
		}
		p.mu.Unlock()
	}
}

func (s *DirStore) find(id ID) (*packReader, uint64, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.order {
		if o, ok := p.find(id); ok {
			return p, o, true
		}
	}
	return nil, 0, false
}

// Has implements Store.
func (s *DirStore) Has(id ID) bool {
	if _, _, ok := s.find(id); ok {
		return true
	}
	_, err := os.Lstat(s.loosePath(id))
	return err == nil
}

func (s *DirStore) loosePath(id ID) string {
	name := id.String()
	return s.path("objects/" + name[:2] + "/" + name[2:])
}

// Open implements Store. The lock must be held: unlocking closes the packs.
func (s *DirStore) Open(id ID) (Object, error) {
	p, offset, ok := s.find(id)
	if !ok {
		return openLoose(s.loosePath(id), id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		f, err := os.Open(s.path("objects/pack/" + p.name + ".pack"))
		if err != nil {
			return Object{}, corrupt("a pack is missing", err)
		}
		p.f = f
	}
	return openPacked(p.f, offset)
}

const headRef = "refs/heads/main"

// Head implements Store.
func (s *DirStore) Head() (ID, error) {
	data, err := s.ReadFile(headRef)
	if err != nil || len(data) == 0 {
		return ID{}, err
	}
	id, err := ParseID(strings.TrimSuffix(string(data), "\n"))
	if err != nil {
		return ID{}, corrupt("the head is malformed", err)
	}
	return id, nil
}

// SetHead implements Store.
func (s *DirStore) SetHead(id ID) error {
	// A kill does not split one write of a line. Replacing the file by a rename
	// would make some file systems (ext4) flush it to the disk.
	f, err := os.OpenFile(s.path(headRef), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return storeErr("write the head", err)
	}
	_, err = f.WriteAt([]byte(id.String()+"\n"), 0)
	return storeErr("write the head", errors.Join(err, f.Close()))
}

// WriteCache implements Store.
func (s *DirStore) WriteCache(data []byte) error {
	f, err := os.OpenFile(s.path(cacheFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return storeErr("write the cache", err)
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	return storeErr("write the cache", errors.Join(err, f.Close()))
}

// ReadFile implements Store.
func (s *DirStore) ReadFile(name string) ([]byte, error) {
	data, err := os.ReadFile(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, storeErr("read "+name, err)
}

const tempPrefix = "tmp_"

// WriteFile implements Store.
func (s *DirStore) WriteFile(name string, data []byte) error {
	temp := filepath.Join(filepath.Dir(s.path(name)), tempPrefix+filepath.Base(name))
	err := os.WriteFile(temp, data, 0o600)
	if err == nil {
		err = os.Rename(temp, s.path(name))
	}
	return storeErr("write "+name, err)
}
