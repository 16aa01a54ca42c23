// Package lease guards state outside of the project that only one run may use at
// a time: a key names it, and whoever holds the key's lease may restore, change
// and save it.
//
// Two files per key make a lease. The lock file is held by the kernel for as long
// as the owner's process lives, also while it is stopped; nothing is ever taken
// from a living process. The owner record is written after the lock was taken and
// removed before it is let go, but only when the state was saved: a record
// without a lock says that nobody knows in what condition the state is, and only
// an explicit recovery removes it.
package lease

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/record"
	"assay/ref"
)

// The codes of this package's errors.
const (
	CodeKey      = "shared-state-key"
	CodeRecovery = "state-lease-recovery-required"
	CodeAlive    = "state-lease-owner-alive"
	CodeToken    = "state-lease-token"
)

// grammar is that of keys.
var grammar = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]{0,127}$`)

// CheckKey refuses what is no key.
func CheckKey(key string) error {
	if grammar.MatchString(key) {
		return nil
	}
	return fault.Configf(CodeKey, "Use up to 128 of a-z, 0-9, '.', '_', '/' and '-', beginning with a letter or digit.", "%q is no key of a shared state", key)
}

// Record is the owner record of a lease.
type Record struct {
	Key string `json:"key"`
	// Token names this holding; a recovery has to repeat it.
	Token      string           `json:"token"`
	Owner      record.Owner     `json:"owner"`
	Experiment ref.ExperimentID `json:"experiment,omitempty"`
	Run        ref.RunID        `json:"run,omitempty"`
	AcquiredAt time.Time        `json:"acquiredAt"`
	// Uncleaned says why the lease was not released, "" while it is held.
	Uncleaned string `json:"uncleaned,omitempty"`
	// Heartbeat is when the owner last showed that it runs. Nothing is decided
	// by it.
	Heartbeat time.Time `json:"-"`
}

// String describes the holder for people.
func (r Record) String() string {
	if r.Token == "" {
		return ""
	}
	s := fmt.Sprintf("process %d on %s since %s", r.Owner.PID, r.Owner.Host, r.AcquiredAt.Local().Format(time.DateTime))
	if r.Experiment != "" {
		s += " for experiment " + string(r.Experiment)
	}
	return s
}

// Holder is who asks for a lease.
type Holder struct {
	Owner      record.Owner
	Experiment ref.ExperimentID
	Run        ref.RunID
}

// Dir holds the leases of a project. It is safe for concurrent use, also by
// several processes.
type Dir struct{ Path string }

// The pauses between looks at a lock that somebody else holds: the kernel wakes
// no waiter that can also be cancelled.
const (
	pollFirst = 2 * time.Millisecond
	pollMost  = 50 * time.Millisecond
	beat      = 5 * time.Second
)

// base is the path of a key's files without their suffix. Keys differ in case of
// nothing, but may be long and hold slashes.
func (d Dir) base(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(d.Path, hex.EncodeToString(sum[:12]))
}

// Lease is a held lease.
type Lease struct {
	rec  Record
	file string
	lock *flock.Flock

	once sync.Once
	quit chan struct{}
	done chan struct{}
	err  error
}

// Acquire takes the lease of a key and waits while another holds it; waiting is
// called once, with the other's record, before the first wait. A lease that was
// not released, because its owner died or could not clean up, is the error
// CodeRecovery.
func (d Dir) Acquire(ctx context.Context, key string, h Holder, waiting func(Record)) (*Lease, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.Path, atomicfile.DirMode); err != nil {
		return nil, fmt.Errorf("make the folder of leases: %w", err)
	}
	base := d.base(key)
	lock := flock.New(base+".lock", flock.SetPermissions(atomicfile.FileMode))
	for pause, told := pollFirst, false; ; pause = min(2*pause, pollMost) {
		got, err := lock.TryLock()
		if err != nil {
			return nil, &fault.Error{Class: fault.Config, Code: "state-lease-lock", What: "lock shared state " + key, Fix: "Put the project on a local file system.", Err: err}
		}
		if got {
			break
		}
		if !told && waiting != nil {
			told = true
			rec, _ := read(base) // nobody knows the holder while it writes its record
			waiting(rec)
		}
		select {
		case <-ctx.Done():
			return nil, fault.Cause(ctx)
		case <-time.After(pause):
		}
	}
	l, err := claim(base, key, h, lock)
	if err != nil {
		_ = lock.Unlock()
		return nil, err
	}
	return l, nil
}

// claim writes the owner record under the lock.
func claim(base, key string, h Holder, lock *flock.Flock) (*Lease, error) {
	old, err := read(base)
	if err == nil {
		return nil, recovery(old)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the lease of shared state %s: %w", key, err)
	}
	var token [12]byte
	_, _ = rand.Read(token[:]) // never fails
	l := &Lease{
		file: base + ".json", lock: lock, quit: make(chan struct{}), done: make(chan struct{}),
		rec: Record{Key: key, Token: hex.EncodeToString(token[:]), Owner: h.Owner, Experiment: h.Experiment, Run: h.Run, AcquiredAt: time.Now().UTC()},
	}
	if err := l.write(); err != nil {
		return nil, fmt.Errorf("write the lease of shared state %s: %w", key, err)
	}
	go l.beats()
	return l, nil
}

// recovery is the error of a lease whose state nobody vouches for.
func recovery(old Record) error {
	why := "its owner died before it was saved"
	if old.Uncleaned != "" {
		why = old.Uncleaned
	}
	return fault.Configf(CodeRecovery,
		fmt.Sprintf("Look at the state, then run `assay exp %s --teardown --recover-shared-state %s`.", old.Experiment, old.Key),
		"nobody knows the condition of shared state %s, last held by %s: %s", old.Key, old, why)
}

// beats shows by the time of the lock file that the owner runs. It changes no
// content and makes no file, so that it cannot bring a released lease back.
func (l *Lease) beats() {
	defer close(l.done)
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-l.quit:
			return
		case now := <-t.C:
			_ = os.Chtimes(l.lock.Path(), now, now) // for display only
		}
	}
}

func (l *Lease) write() error {
	b, err := json.Marshal(l.rec)
	if err != nil {
		return err
	}
	return (&atomicfile.Disk{}).Replace(l.file, append(b, '\n'))
}

// Record is the lease's owner record.
func (l *Lease) Record() Record { return l.rec }

// Release gives the lease back. With a reason why not everything could be cleaned
// up, the owner record stays and the next run needs a recovery. It may be called
// more than once; the first call counts.
func (l *Lease) Release(uncleaned string) error {
	l.once.Do(func() {
		close(l.quit)
		<-l.done
		if uncleaned != "" {
			l.rec.Uncleaned = uncleaned
			l.err = l.write()
		} else {
			l.err = os.Remove(l.file)
		}
		l.err = errors.Join(l.err, l.lock.Unlock())
	})
	return l.err
}

func read(base string) (Record, error) {
	b, err := os.ReadFile(base + ".json")
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("read %s.json: %w", base, err)
	}
	if st, err := os.Stat(base + ".lock"); err == nil {
		r.Heartbeat = st.ModTime()
	}
	return r, nil
}

// Left reports whether a key's lease was left without release, and by whom.
func (d Dir) Left(key string) (Record, bool) {
	r, err := read(d.base(key))
	if err != nil {
		return Record{}, false
	}
	return r, !d.held(key)
}

// held reports whether a process holds the lock of a key.
func (d Dir) held(key string) bool {
	lock := flock.New(d.base(key) + ".lock")
	got, err := lock.TryLock()
	if got {
		_ = lock.Unlock()
	}
	return err == nil && !got
}

// Inspect returns the owner record of a key and what is known of its owner; ok is
// false when there is none.
func (d Dir) Inspect(key string) (r Record, life record.Liveness, ok bool, err error) {
	if err := CheckKey(key); err != nil {
		return Record{}, "", false, err
	}
	r, err = read(d.base(key))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, "", false, nil
	}
	if err != nil {
		return Record{}, "", false, err
	}
	life = record.LivenessOf(&r.Owner)
	switch {
	case d.held(key):
		life = record.Live
	case life == record.Live && r.Uncleaned != "":
		life = record.Dead // it let go, though its process may live on
	}
	return r, life, true, nil
}

// Recover takes a lease that was left, in the name of h, when the token is that
// of its record and its owner does not live. The caller repairs the state and
// then releases it. On error nothing has changed.
func (d Dir) Recover(key, token string, h Holder) (*Lease, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	base := d.base(key)
	lock := flock.New(base+".lock", flock.SetPermissions(atomicfile.FileMode))
	got, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	old, rerr := read(base)
	switch {
	case errors.Is(rerr, fs.ErrNotExist):
		err = fault.Configf(CodeToken, "There is nothing to recover.", "shared state %s is not held", key)
	case rerr != nil:
		err = rerr
	case !got, old.Uncleaned == "" && record.LivenessOf(&old.Owner) == record.Live:
		err = fault.Configf(CodeAlive, "End that process first; a stopped one lives.", "shared state %s is held by %s, which lives", key, old)
	case old.Token != token:
		err = fault.Configf(CodeToken, "Repeat the token that the inspection prints.", "the owner token does not belong to the present holder of shared state %s", key)
	}
	if err != nil {
		if got {
			_ = lock.Unlock()
		}
		return nil, err
	}
	l := &Lease{file: base + ".json", lock: lock, rec: old, quit: make(chan struct{}), done: make(chan struct{})}
	l.rec.Owner, l.rec.Experiment, l.rec.Run = h.Owner, h.Experiment, h.Run
	go l.beats()
	return l, nil
}
