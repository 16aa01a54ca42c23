// Package keep is the registry of sandboxes that outlive their run on purpose:
// one small file for each, written before the sandbox is let go, and removed only
// after it is known to be gone.
package keep

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/record"
	"assay/ref"
)

// The levels of keeping: what failed or was errored, or every attempt with a
// verdict.
const (
	Failed = "failed"
	All    = "all"
)

// CheckLevel refuses what is no level; "" keeps nothing.
func CheckLevel(level string) error {
	switch level {
	case "", Failed, All:
		return nil
	}
	return fault.Configf("usage", "Write --keep-sandbox, --keep-sandbox=failed or --keep-sandbox=all.", "--keep-sandbox=%s is not known", level)
}

// Wants reports whether a level keeps the sandbox of an attempt with a verdict.
func Wants(level string, v record.Verdict) bool {
	switch v {
	case record.Failed, record.Errored:
		return level != ""
	case record.Passed:
		return level == All
	}
	return false
}

// State is what a kept sandbox is doing.
type State string

// The states. A dormant sandbox costs no processor and no memory here.
const (
	Alive   State = "alive"
	Dormant State = "dormant"
	Expired State = "expired"
	Unknown State = "unknown"
)

// Entry is one kept sandbox.
type Entry struct {
	// ID is the entry's own id, from provider and sandbox.
	ID        string `json:"id"`
	SandboxID string `json:"sandboxId"`
	Provider  string `json:"provider"`

	Experiment ref.ExperimentID `json:"experimentId,omitempty"`
	Eval       ref.EvalID       `json:"evalId"`
	Ordinal    int              `json:"ordinal"`
	Attempt    ref.AttemptID    `json:"attempt"`
	Run        ref.RunID        `json:"run"`
	Locator    ref.Locator      `json:"locator"`
	Verdict    record.Verdict   `json:"verdict"`
	// Record is the record root that holds the attempt.
	Record string `json:"record,omitempty"`

	KeptAt time.Time `json:"keptAt"`
	// Workdir and User are those that commands run with; User "" is the start
	// point's.
	Workdir string `json:"workdir"`
	User    string `json:"user,omitempty"`
	// ExpiresAt is when the provider forgets it, absent for never.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	State     State      `json:"state"`
}

// IDOf is the id of the entry of a sandbox.
func IDOf(provider, sandboxID string) string {
	sum := sha256.Sum256([]byte(provider + "\x00" + sandboxID))
	return hex.EncodeToString(sum[:8])
}

// Now is the state at a moment: an entry whose time is over has expired, whatever
// its file says.
func (e Entry) Now(at time.Time) State {
	if e.ExpiresAt != nil && at.After(*e.ExpiresAt) {
		return Expired
	}
	return e.State
}

// Slot names the attempt for people.
func (e Entry) Slot() string {
	return fmt.Sprintf("%s %s#%d", e.Experiment, e.Eval, e.Ordinal)
}

// Registry is the folder of entries.
type Registry struct{ Dir string }

const suffix = ".json"

func (r Registry) file(id string) string { return filepath.Join(r.Dir, id+suffix) }

// Put writes an entry durably.
func (r Registry) Put(e Entry) error {
	if err := os.MkdirAll(r.Dir, atomicfile.DirMode); err != nil {
		return fmt.Errorf("make the registry of kept sandboxes: %w", err)
	}
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := (&atomicfile.Disk{}).Replace(r.file(e.ID), append(b, '\n')); err != nil {
		return fmt.Errorf("write the registry of kept sandboxes: %w", err)
	}
	return nil
}

// Forget removes an entry; one that is gone is no error.
func (r Registry) Forget(id string) error {
	err := os.Remove(r.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns the entries, oldest first. A file that cannot be read is an error
// beside the others.
func (r Registry) List() ([]Entry, error) {
	files, err := os.ReadDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	var errs []error
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), suffix)
		if !ok || strings.HasPrefix(id, ".") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(r.Dir, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in between
		}
		var e Entry
		if err == nil {
			err = json.Unmarshal(b, &e)
		}
		if err == nil && e.ID != id {
			err = fmt.Errorf("it is about %q", e.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(r.Dir, f.Name()), err))
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return a.KeptAt.Compare(b.KeptAt) })
	return out, errors.Join(errs...)
}

// Find returns the entry that a person means: by the start of its id, of its
// sandbox's id, or its locator.
func (r Registry) Find(name string) (Entry, error) {
	all, err := r.List()
	if err != nil && len(all) == 0 {
		return Entry{}, err
	}
	var fit []Entry
	for _, e := range all {
		if name != "" && (strings.HasPrefix(e.ID, name) || strings.HasPrefix(e.SandboxID, name) || string(e.Locator) == name) {
			fit = append(fit, e)
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		return Entry{}, fault.Configf("sandbox-unknown", "See `assay sandbox list`.", "no kept sandbox is called %q", name)
	}
	ids := make([]string, len(fit))
	for i, e := range fit {
		ids[i] = e.ID
	}
	return Entry{}, &fault.Error{Class: fault.Config, Code: CodeAmbiguous, What: fmt.Sprintf("%q is the start of several kept sandboxes: %s", name, strings.Join(ids, ", ")), Fix: "Give more of the id."}
}

// The codes of this package's errors that callers act on.
const (
	CodeAmbiguous = "sandbox-ambiguous"
	CodeBusy      = "sandbox-busy"
)

// Use is what a command does with a kept sandbox; it is written beside the entry
// while the command runs.
type Use struct {
	Holder     record.Owner `json:"holder"`
	Op         string       `json:"op"`
	AcquiredAt time.Time    `json:"acquiredAt"`
	TTL        int64        `json:"ttlMs"`
}

// useLimit is how long a command says that it will take at most. Nobody takes a
// sandbox from it after that: it shows a forgotten terminal.
const useLimit = 12 * time.Hour

// Lock gives one command at a time a kept sandbox. The lock ends with the
// process; the error of one that is held, CodeBusy, names its holder.
func (r Registry) Lock(id, op string) (release func(), err error) {
	if err := os.MkdirAll(r.Dir, atomicfile.DirMode); err != nil {
		return nil, err
	}
	file := filepath.Join(r.Dir, id+".use")
	l := flock.New(file, flock.SetPermissions(atomicfile.FileMode), flock.SetFlag(os.O_CREATE|os.O_RDWR))
	got, err := l.TryLock()
	if err != nil {
		return nil, err
	}
	if !got {
		what := ""
		var u Use
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &u) == nil {
			what = fmt.Sprintf(": `sandbox %s` of process %d on %s since %s", u.Op, u.Holder.PID, u.Holder.Host, u.AcquiredAt.Local().Format(time.TimeOnly))
		}
		return nil, fault.Configf(CodeBusy, "Wait until it has ended.", "another command uses the kept sandbox %s%s", id, what)
	}
	b, err := json.Marshal(Use{Holder: *record.CurrentOwner(), Op: op, AcquiredAt: time.Now().UTC(), TTL: useLimit.Milliseconds()})
	if err == nil {
		err = os.WriteFile(file, b, atomicfile.FileMode) // in place: it is the file that is locked
	}
	if err != nil {
		_ = l.Unlock()
		return nil, err
	}
	return func() {
		// The file stays: who opened it before must not lock another than who
		// comes later.
		_ = os.Truncate(file, 0)
		_ = l.Unlock()
	}, nil
}
