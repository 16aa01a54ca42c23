package atomicfile

import (
	"os"
	"sync"
)

// dirSync joins the syncs of one folder that are asked for at the same time:
// one sync that begins after a call serves that call.
type dirSync struct {
	mu   sync.Mutex
	next *dirSyncRound // not begun yet; nil when nobody waits
	busy sync.Mutex    // held while a sync runs
	// users counts the calls that hold this value; guarded by Disk.mu.
	users int
}

type dirSyncRound struct {
	once sync.Once
	err  error
}

// SyncDir makes earlier renames, creations and removals in the folder durable.
// Calls for one folder that wait at the same time share one sync.
func (d *Disk) SyncDir(path string) error {
	d.mu.Lock()
	if d.dirs == nil {
		d.dirs = map[string]*dirSync{}
	}
	s := d.dirs[path]
	if s == nil {
		s = &dirSync{}
		d.dirs[path] = s
	}
	s.users++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(d.dirs, path)
		}
	}()

	s.mu.Lock()
	if s.next == nil {
		s.next = &dirSyncRound{}
	}
	r := s.next
	s.mu.Unlock()

	s.busy.Lock()
	defer s.busy.Unlock()
	r.once.Do(func() {
		s.mu.Lock()
		s.next = nil // who comes from now on may be too late for this sync
		s.mu.Unlock()
		r.err = d.syncDirNow(path)
	})
	return r.err
}

func (d *Disk) syncDirNow(path string) error {
	if err := d.fault(SyncDir, path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = syncFolder(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
