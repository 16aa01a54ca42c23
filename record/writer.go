package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/ref"

	"github.com/gofrs/flock"
)

// Writer is the one writer of a root. It is safe for concurrent use. It knows no
// secrets: what it is given has been masked by whoever held them.
type Writer struct {
	root string
	lock *flock.Flock
	disk atomicfile.Disk

	mu     sync.Mutex
	closed bool
}

// Open makes the root when it is not there, takes its exclusive lock at once or
// fails with code record-root-busy, and removes what killed writers left in
// progress. Command says to others what holds the lock. Close releases it, and
// so does the death of the process.
func Open(root, command string) (*Writer, error) {
	root, err := canonical(root)
	if err != nil {
		return nil, ioError(err, root, "find record root "+root)
	}
	// A folder that is no record is refused before anything is made beside it.
	if _, err := inspect(root); err != nil {
		return nil, err
	}
	lock, err := lockRoot(root, command)
	if err != nil {
		return nil, err
	}
	w := &Writer{root: root, lock: lock}
	if err := w.prepare(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return w, nil
}

// prepare makes the root ready under the lock.
func (w *Writer) prepare() error {
	fresh, err := inspect(w.root)
	if err != nil {
		return err
	}
	made := false
	if fresh {
		if made, err = w.makeRoot(); err != nil {
			if made {
				_ = os.RemoveAll(w.root)
			}
			return ioError(err, w.root, "make record root "+w.root)
		}
	}
	// Nothing in .tmp was ever counted, and the lock says that nobody is at work.
	if err := os.RemoveAll(w.path(tmpDir)); err != nil {
		return ioError(err, w.root, "clear "+w.path(tmpDir))
	}
	for _, dir := range []string{tmpDir, runsDir} {
		if err := os.Mkdir(w.path(dir), atomicfile.DirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return ioError(err, w.root, "make "+w.path(dir))
		}
	}
	if err := w.disk.SyncDir(w.root); err != nil {
		return ioError(err, w.root, "sync "+w.root)
	}
	return nil
}

func (w *Writer) makeRoot() (made bool, err error) {
	switch err := os.Mkdir(w.root, atomicfile.DirMode); {
	case err == nil:
		made = true
	case !errors.Is(err, fs.ErrExist):
		return false, err
	}
	doc, err := json.Marshal(rootDoc{Format: Format, Writer: writerVersion(), ID: ref.New()})
	if err != nil {
		return made, err
	}
	if err := w.disk.Replace(w.path(rootFile), append(doc, '\n')); err != nil {
		return made, err
	}
	return made, w.disk.SyncDir(filepath.Dir(w.root))
}

// Root is the canonical path of the root.
func (w *Writer) Root() string { return w.root }

// Close releases the lock. It is idempotent. Runs without an End stay as they
// are and show as interrupted.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	return w.lock.Close()
}

func (w *Writer) path(elem ...string) string {
	return filepath.Join(append([]string{w.root}, elem...)...)
}

// RunWriter adds to one run. It is safe for concurrent use.
type RunWriter struct {
	w        *Writer
	id       ref.RunID
	declared map[SlotRef]bool

	sealing sync.RWMutex // End waits for the Seals under way
	mu      sync.Mutex   // guards members.ndjson and what follows
	members map[SlotRef]bool
	ended   bool
}

// StartRun declares a run durably, together with the slots that earlier results
// fill: a run that is killed at any instant has all of them or is not there. Its
// id must be fresh, its slots distinct; the owner is this process unless the run
// names one.
func (w *Writer) StartRun(run Run, members ...Member) (*RunWriter, error) {
	declared, err := checkRun(run)
	if err != nil {
		return nil, err
	}
	if run.Owner == nil {
		run.Owner = CurrentOwner()
	}
	data, err := encode(run)
	if err != nil {
		return nil, &fault.Error{
			Class: fault.Config, Code: CodeCoreInvalid, What: "declare run of " + string(run.Experiment), Err: err,
			Fix: "labels, flags and context must hold plain JSON values",
		}
	}
	r := &RunWriter{w: w, id: run.ID, declared: declared, members: map[SlotRef]bool{}}
	files := []atomicfile.File{{Name: runFile, Data: data}}
	if len(members) > 0 {
		lines, fresh, err := r.checkMembers(members)
		if err != nil {
			return nil, err
		}
		files = append(files, atomicfile.File{Name: membersFile, Data: lines})
		r.members = fresh
	}
	id := string(run.ID)
	err = w.disk.Publish(w.path(tmpDir, "run-"+id), w.path(runsDir, id), files, attemptsDir)
	if err != nil {
		return nil, ioError(err, w.root, "declare run "+id)
	}
	return r, nil
}

func checkRun(run Run) (map[SlotRef]bool, error) {
	if !ref.ValidID(string(run.ID)) {
		return nil, fault.Configf(CodeCoreInvalid, "", "run id %q is malformed", run.ID)
	}
	if err := ref.CheckPathID(string(run.Experiment)); err != nil {
		return nil, fault.Configf(CodeCoreInvalid, "", "experiment: %v", err)
	}
	declared := make(map[SlotRef]bool, len(run.Slots))
	for _, s := range run.Slots {
		if declared[s] {
			return nil, fault.Configf(CodeDuplicateSlot, "", "run %s declares slot %s#%d twice", run.ID, s.Eval, s.Ordinal)
		}
		declared[s] = true
	}
	return declared, nil
}

// ID is the id of the run.
func (r *RunWriter) ID() ref.RunID { return r.id }

// Seal records one attempt, durably and whole, or returns an error and leaves
// nothing that a reader could see. The attempt must fill a declared slot.
// Explanations that are too large are shortened and named in Attempt.Trimmed;
// they never keep the verdict and the facts from being recorded.
func (r *RunWriter) Seal(s Sealed) error {
	r.sealing.RLock()
	defer r.sealing.RUnlock()
	a := s.Attempt
	if err := r.checkAttempt(a); err != nil {
		return err
	}
	files, err := attemptFiles(s)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: CodeCoreInvalid, What: "record attempt " + string(a.ID), Err: err}
	}
	id := string(a.ID)
	err = r.w.disk.Publish(r.w.path(tmpDir, "attempt-"+id), r.w.path(runsDir, string(r.id), attemptsDir, id), files)
	if err != nil {
		return ioError(err, r.w.root, "record attempt "+id)
	}
	return nil
}

func (r *RunWriter) checkAttempt(a Attempt) error {
	slot := SlotRef{Eval: a.Eval, Ordinal: a.Ordinal}
	r.mu.Lock()
	ended, taken := r.ended, r.members[slot]
	r.mu.Unlock()
	switch {
	case !ref.ValidID(string(a.ID)):
		return fault.Configf(CodeCoreInvalid, "", "attempt id %q is malformed", a.ID)
	case a.Run != r.id:
		return fault.Configf(CodeCoreInvalid, "", "attempt %s belongs to run %q, not to %s", a.ID, a.Run, r.id)
	case a.Locator != ref.LocatorOf(a.ID):
		return fault.Configf(CodeCoreInvalid, "", "attempt %s has locator %q, not its own", a.ID, a.Locator)
	case !r.declared[slot]:
		return fault.Configf(CodeCoreInvalid, "", "attempt %s fills slot %s#%d, which run %s did not declare", a.ID, a.Eval, a.Ordinal, r.id)
	case taken:
		return fault.Configf(CodeDuplicateSlot, "", "slot %s#%d of run %s has its result already", a.Eval, a.Ordinal, r.id)
	case ended:
		return fault.Configf(CodeRunEnded, "", "run %s has ended", r.id)
	}
	switch a.Verdict {
	case Passed, Failed, Errored, Skipped:
		return nil
	}
	return fault.Configf(CodeCoreInvalid, "", "attempt %s has no verdict but %q", a.ID, a.Verdict)
}

// Member records that a slot has the result of an earlier attempt.
func (r *RunWriter) Member(m Member) error { return r.Members([]Member{m}) }

// Members records several slots in one durable step: all of them or none.
func (r *RunWriter) Members(ms []Member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return fault.Configf(CodeRunEnded, "", "run %s has ended", r.id)
	}
	lines, fresh, err := r.checkMembers(ms)
	if err != nil || len(ms) == 0 {
		return err
	}
	if err := r.w.disk.Append(r.w.path(runsDir, string(r.id), membersFile), lines); err != nil {
		return ioError(err, r.w.root, "record members of run "+string(r.id))
	}
	for s := range fresh {
		r.members[s] = true
	}
	return nil
}

// checkMembers encodes members that fill declared slots without a result.
func (r *RunWriter) checkMembers(ms []Member) ([]byte, map[SlotRef]bool, error) {
	var lines bytes.Buffer
	fresh := make(map[SlotRef]bool, len(ms))
	for _, m := range ms {
		switch {
		case !r.declared[m.SlotRef]:
			return nil, nil, fault.Configf(CodeCoreInvalid, "", "run %s did not declare slot %s#%d", r.id, m.Eval, m.Ordinal)
		case r.members[m.SlotRef] || fresh[m.SlotRef]:
			return nil, nil, fault.Configf(CodeDuplicateSlot, "", "slot %s#%d of run %s has its result already", m.Eval, m.Ordinal, r.id)
		case !ref.ValidID(string(m.Run)) || !ref.ValidID(string(m.Attempt)):
			return nil, nil, fault.Configf(CodeCoreInvalid, "", "slot %s#%d refers to run %q, attempt %q", m.Eval, m.Ordinal, m.Run, m.Attempt)
		}
		fresh[m.SlotRef] = true
		line, err := json.Marshal(m)
		if err != nil {
			return nil, nil, err
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	return lines.Bytes(), fresh, nil
}

// End completes the run. Diagnostics and facts that are too large are treated
// as in Seal. A run ends once; when End fails it may be tried again.
func (r *RunWriter) End(e End) error {
	r.sealing.Lock()
	defer r.sealing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return fault.Configf(CodeRunEnded, "", "run %s has ended", r.id)
	}
	trimEnd(&e)
	data, err := encode(e)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: CodeCoreInvalid, What: "end run " + string(r.id), Err: err}
	}
	if err := r.w.disk.ReplaceVia(r.w.path(tmpDir), r.w.path(runsDir, string(r.id), endFile), data); err != nil {
		return ioError(err, r.w.root, "end run "+string(r.id))
	}
	r.ended = true
	return nil
}

// encode returns v as one line of JSON.
func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}
