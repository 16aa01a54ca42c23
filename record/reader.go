package record

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"assay/fault"
	"assay/ref"
)

// Status says what is known about the end of a run.
type Status string

// The statuses.
const (
	StatusEnded       Status = "ended"       // it has an End
	StatusRunning     Status = "running"     // its process lives
	StatusInterrupted Status = "interrupted" // its process is gone
	StatusUnfinished  Status = "unfinished"  // no end, and no way to tell from here
)

// Problem is a part of the record that cannot be read. It concerns that part
// alone.
type Problem struct {
	Run     ref.RunID     `json:"run"`
	Attempt ref.AttemptID `json:"attempt,omitempty"`
	File    string        `json:"file"` // below the root
	Message string        `json:"message"`
}

// Error describes the problem.
func (p *Problem) Error() string { return p.File + ": " + p.Message }

// StoredRun is a run as it lies in the record.
type StoredRun struct {
	Run
	Status  Status
	End     *End // nil while unfinished
	Members []Member
	// Problems are unreadable parts of the run itself, not of its attempts.
	Problems []*Problem
}

// Completion is how the run ended: that of its End, Interrupted when its process
// died, else "".
func (r *StoredRun) Completion() Completion {
	switch {
	case r.End != nil:
		return r.End.Completion
	case r.Status == StatusInterrupted:
		return Interrupted
	}
	return ""
}

// AttemptRef names an attempt and the run that executed it.
type AttemptRef struct {
	Run     ref.RunID
	Attempt ref.AttemptID
}

// Reader reads a root. It takes no lock, never waits for a writer and sees only
// what was sealed. It follows no link out of the root. It is safe for
// concurrent use.
type Reader struct {
	path  string
	root  *os.Root
	parts parts
}

// parts says how much of an attempt is read.
type parts uint8

const (
	whole parts = iota
	withoutOwnPage
	forPlan
)

// brief is an attempt without the parts that only its own page needs. They are
// the larger half, and skipping them is much cheaper than decoding them.
type brief struct {
	*Attempt
	Turns    skipped `json:"turns"`
	Identity skipped `json:"identity"`
}

type skipped struct{}

// UnmarshalJSON takes any value and keeps nothing.
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// maxDocument bounds what is read as one JSON document.
const maxDocument = 64 << 20

// OpenReader opens the record at root. A root that is not there is
// record-root-missing, one of another format record-format-invalid.
func OpenReader(root string) (*Reader, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, ioError(err, root, "find record root "+root)
	}
	missing := func() error {
		return fault.Configf(CodeRootMissing, "run `assay exp` first, or name the record with --record <dir>", "no record at %s", abs)
	}
	info, err := os.Stat(abs)
	if err == nil && !info.IsDir() {
		return nil, fault.Configf(CodeFormatInvalid, "give --record a folder", "record root %s is not a folder", abs)
	}
	var r *os.Root
	if err == nil {
		r, err = os.OpenRoot(abs)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, missing()
	case err != nil:
		return nil, readError(err, abs, "open record "+abs)
	}
	reader := &Reader{path: abs, root: r}
	if err := reader.check(missing); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return reader, nil
}

func (r *Reader) check(missing func() error) error {
	data, err := readFile(r.root, rootFile)
	if err == nil {
		return checkFormat(r.path, data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return readError(err, r.path, "read "+rootFile)
	}
	if fresh, err := inspect(r.path); err != nil || !fresh {
		return err // not fresh: it was made just now
	}
	return missing()
}

func readError(err error, root, what string) *fault.Error {
	e := &fault.Error{Class: fault.Config, Code: CodeIO, What: what, Err: err, Fix: "check the file system of " + root}
	if errors.Is(err, fs.ErrPermission) {
		e.Fix = "make " + root + " readable for this user"
	}
	return e
}

// Brief returns a view of the same reader whose attempts come without Turns and
// Identity. Only the reader itself is to be closed.
func (r *Reader) Brief() *Reader {
	return &Reader{path: r.path, root: r.root, parts: withoutOwnPage}
}

// Sketch returns a view of the same reader whose attempts come with what a plan
// needs alone: the ids, slot, verdict, times and Identity. Only the reader itself
// is to be closed.
func (r *Reader) Sketch() *Reader { return &Reader{path: r.path, root: r.root, parts: forPlan} }

// Close releases the folder handle.
func (r *Reader) Close() error { return r.root.Close() }

// Path is the absolute path of the root.
func (r *Reader) Path() string { return r.path }

// readFile reads a regular file; it never blocks on a pipe that lies there.
func readFile(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	if info.Size() > maxDocument {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", name, info.Size(), maxDocument)
	}
	// One byte more than the size makes the read that finds the end unnecessary.
	buf := make([]byte, 0, info.Size()+1)
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, 512)
		}
		if int64(len(buf)) > maxDocument {
			return nil, fmt.Errorf("%s is longer than %d bytes", name, maxDocument)
		}
	}
}

// dirNames lists the real folders in name whose names are ids, sorted.
func dirNames(root *os.Root, name string) ([]string, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && ref.ValidID(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Runs returns every declared run, oldest first by start and id. Runs whose
// declaration cannot be read are returned as problems.
func (r *Reader) Runs(ctx context.Context) ([]*StoredRun, []*Problem, error) {
	ids, err := dirNames(r.root, runsDir)
	if err != nil {
		return nil, nil, readError(err, r.path, "list runs of "+r.path)
	}
	runs := make([]*StoredRun, len(ids))
	problems := make([]*Problem, len(ids))
	err = parallel(ctx, len(ids), func(i int) {
		runs[i], problems[i] = r.readRun(ref.RunID(ids[i]))
	})
	if err != nil {
		return nil, nil, err
	}
	runs = slices.DeleteFunc(runs, func(s *StoredRun) bool { return s == nil })
	problems = slices.DeleteFunc(problems, func(p *Problem) bool { return p == nil })
	slices.SortFunc(runs, func(a, b *StoredRun) int {
		return cmpRuns(&a.Run, &b.Run)
	})
	return runs, problems, nil
}

func cmpRuns(a, b *Run) int {
	if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
		return c
	}
	return strings.Compare(string(a.ID), string(b.ID))
}

// Run returns one run; code record-run-not-found when it is not there.
func (r *Reader) Run(id ref.RunID) (*StoredRun, error) {
	notFound := fault.Configf(CodeRunNotFound, "`assay show` lists the runs", "run %q is not in %s", string(id), r.path)
	if !ref.ValidID(string(id)) {
		return nil, notFound
	}
	if info, err := r.root.Lstat(filepath.Join(runsDir, string(id))); err != nil || !info.IsDir() {
		return nil, notFound
	}
	run, problem := r.readRun(id)
	if problem != nil {
		return nil, &fault.Error{Class: fault.Config, Code: CodeCoreInvalid, What: "read run " + string(id), Err: problem}
	}
	return run, nil
}

func (r *Reader) readRun(id ref.RunID) (*StoredRun, *Problem) {
	dir := runsDir + "/" + string(id)
	s := &StoredRun{}
	if p := r.decode(id, "", dir+"/"+runFile, &s.Run); p != nil {
		return nil, p
	}
	if s.ID != id {
		return nil, &Problem{Run: id, File: dir + "/" + runFile, Message: fmt.Sprintf("it is the declaration of run %q", string(s.ID))}
	}
	// The end is read before the members: a run that ended adds none.
	end := &End{}
	switch p, missing := r.decodeOptional(id, "", dir+"/"+endFile, end); {
	case missing:
		s.Status = map[life]Status{alive: StatusRunning, dead: StatusInterrupted, lifeUnknown: StatusUnfinished}[lifeOf(s.Owner)]
		if s.Status == StatusInterrupted {
			// The process may have ended the run between the two looks.
			if p, missing := r.decodeOptional(id, "", dir+"/"+endFile, end); !missing && p == nil {
				s.Status, s.End = StatusEnded, end
			}
		}
	case p != nil:
		s.Status, s.Problems = StatusUnfinished, append(s.Problems, p)
	default:
		s.Status, s.End = StatusEnded, end
	}
	members, p := r.readMembers(id, dir+"/"+membersFile)
	s.Members = members
	if p != nil {
		s.Problems = append(s.Problems, p)
	}
	return s, nil
}

// readMembers reads the members that were written whole: a last line without
// its newline is one that a killed writer did not finish.
func (r *Reader) readMembers(id ref.RunID, name string) ([]Member, *Problem) {
	data, err := readFile(r.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Problem{Run: id, File: name, Message: message(err)}
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var members []Member
	bad := 0
	for line := range bytes.Lines(data) {
		var m Member
		if json.Unmarshal(line, &m) != nil || !ref.ValidID(string(m.Run)) || !ref.ValidID(string(m.Attempt)) {
			bad++
			continue
		}
		members = append(members, m)
	}
	if bad > 0 {
		return members, &Problem{Run: id, File: name, Message: fmt.Sprintf("%d lines cannot be read", bad)}
	}
	return members, nil
}

func (r *Reader) decode(run ref.RunID, attempt ref.AttemptID, name string, v any) *Problem {
	p, missing := r.decodeOptional(run, attempt, name, v)
	if missing {
		return &Problem{Run: run, Attempt: attempt, File: name, Message: "it is missing"}
	}
	return p
}

func (r *Reader) decodeOptional(run ref.RunID, attempt ref.AttemptID, name string, v any) (p *Problem, missing bool) {
	data, err := readFile(r.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return &Problem{Run: run, Attempt: attempt, File: name, Message: message(err)}, false
	}
	return nil, false
}

// message is the innermost text of an error, without paths of this machine.
func message(err error) string {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// AttemptRefs lists the sealed attempts of a run, oldest id first, without
// reading them.
func (r *Reader) AttemptRefs(run ref.RunID) ([]AttemptRef, error) {
	names, err := dirNames(r.root, runsDir+"/"+string(run)+"/"+attemptsDir)
	if err != nil {
		return nil, readError(err, r.path, "list attempts of run "+string(run))
	}
	refs := make([]AttemptRef, len(names))
	for i, n := range names {
		refs[i] = AttemptRef{Run: run, Attempt: ref.AttemptID(n)}
	}
	return refs, nil
}

// Attempt reads one sealed attempt. Code record-attempt-not-found when it is not
// there, record-attempt-unreadable when it is damaged.
func (r *Reader) Attempt(at AttemptRef) (*Attempt, error) {
	if !ref.ValidID(string(at.Run)) || !ref.ValidID(string(at.Attempt)) {
		return nil, fault.Configf(CodeAttemptNotFound, "`assay show --run <id>` lists the attempts", "no attempt %q in run %q", string(at.Attempt), string(at.Run))
	}
	a, p := r.readAttempt(r.root, dirOf(at), at)
	if p == nil {
		return a, nil
	}
	if _, err := r.root.Lstat(dirOf(at)); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Configf(CodeAttemptNotFound, "`assay show --run <id>` lists the attempts", "no attempt %s in run %s", at.Attempt, at.Run)
	}
	return nil, &fault.Error{Class: fault.Config, Code: CodeAttemptUnreadable, What: "read attempt " + string(at.Attempt), Err: p}
}

func dirOf(at AttemptRef) string {
	return runsDir + "/" + string(at.Run) + "/" + attemptsDir + "/" + string(at.Attempt)
}

// readAttempt reads the attempt in dir below root, which may be a part of the
// record's root.
func (r *Reader) readAttempt(root *os.Root, dir string, at AttemptRef) (*Attempt, *Problem) {
	problem := func(text string) *Problem {
		return &Problem{Run: at.Run, Attempt: at.Attempt, File: dirOf(at) + "/" + attemptFile, Message: text}
	}
	data, err := readFile(root, dir+"/"+attemptFile)
	if err != nil {
		return nil, problem(message(err))
	}
	a := &Attempt{}
	switch r.parts {
	case forPlan:
		err = sketch(data, a)
	case withoutOwnPage:
		err = json.Unmarshal(data, &brief{Attempt: a})
	default:
		err = json.Unmarshal(data, a)
	}
	if err != nil {
		return nil, problem(message(err))
	}
	if a.ID != at.Attempt || a.Run != at.Run {
		return nil, problem(fmt.Sprintf("it is attempt %q of run %q", string(a.ID), string(a.Run)))
	}
	switch a.Verdict {
	case Passed, Failed, Errored, Skipped:
		return a, nil
	}
	return nil, problem(fmt.Sprintf("unknown verdict %q", string(a.Verdict)))
}

// Attempts reads attempts in the given order, several at a time. A damaged
// attempt comes with its *Problem as the error and does not end the sequence;
// any other error is the last.
func (r *Reader) Attempts(ctx context.Context, refs []AttemptRef) iter.Seq2[*Attempt, error] {
	return func(yield func(*Attempt, error) bool) {
		const window = 512 // bounds what is decoded but not yet taken
		type result struct {
			a *Attempt
			p *Problem
		}
		folders := folderCache{r: r}
		defer folders.close()
		for start := 0; start < len(refs); start += window {
			part := refs[start:min(start+window, len(refs))]
			results := make([]result, len(part))
			folders.open(part)
			err := parallel(ctx, len(part), func(i int) {
				root, dir := folders.of(part[i])
				results[i].a, results[i].p = r.readAttempt(root, dir, part[i])
			})
			if err != nil {
				yield(nil, err)
				return
			}
			for _, res := range results {
				var err error
				if res.p != nil {
					err = res.p
				}
				if !yield(res.a, err) {
					return
				}
			}
		}
	}
}

// folderCache keeps the attempts folders of the runs that are being read open,
// so that an attempt costs two path steps instead of five.
type folderCache struct {
	r     *Reader
	roots map[ref.RunID]*os.Root
}

func (c *folderCache) open(refs []AttemptRef) {
	next := map[ref.RunID]*os.Root{}
	for _, at := range refs {
		if _, ok := next[at.Run]; ok {
			continue
		}
		if root, ok := c.roots[at.Run]; ok {
			next[at.Run] = root
			delete(c.roots, at.Run)
			continue
		}
		if len(next) < 64 { // file handles; other runs take the long way
			root, err := c.r.root.OpenRoot(runsDir + "/" + string(at.Run) + "/" + attemptsDir)
			if err == nil {
				next[at.Run] = root
			}
		}
	}
	c.close()
	c.roots = next
}

func (c *folderCache) of(at AttemptRef) (*os.Root, string) {
	if root, ok := c.roots[at.Run]; ok {
		return root, string(at.Attempt)
	}
	return c.r.root, dirOf(at)
}

func (c *folderCache) close() {
	for _, root := range c.roots {
		_ = root.Close()
	}
	c.roots = nil
}

// Find returns the attempt with a locator. Code locator-not-found when there is
// none, locator-ambiguous when two attempts share it.
func (r *Reader) Find(ctx context.Context, loc ref.Locator) (AttemptRef, error) {
	ids, err := dirNames(r.root, runsDir)
	if err != nil {
		return AttemptRef{}, readError(err, r.path, "list runs of "+r.path)
	}
	var found []AttemptRef
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return AttemptRef{}, context.Cause(ctx)
		}
		refs, err := r.AttemptRefs(ref.RunID(id))
		if err != nil {
			return AttemptRef{}, err
		}
		for _, at := range refs {
			if ref.LocatorOf(at.Attempt) == loc {
				found = append(found, at)
			}
		}
	}
	switch len(found) {
	case 0:
		return AttemptRef{}, fault.Configf(CodeLocatorNotFound, "`assay show` lists the locators", "no attempt %s in %s", loc, r.path)
	case 1:
		return found[0], nil
	}
	return AttemptRef{}, fault.Configf(CodeLocatorAmbiguous, fmt.Sprintf("use --run %s --page attempt-%s", found[0].Run, found[0].Attempt),
		"locator %s names %d attempts", loc, len(found))
}

// Diff reads the large part of an attempt's changes; nil when it has none.
func (r *Reader) Diff(at AttemptRef) (*Diff, error) {
	d := &Diff{}
	p, missing := r.decodeOptional(at.Run, at.Attempt, dirOf(at)+"/"+diffFile, d)
	if missing {
		return nil, nil
	}
	if p != nil {
		return nil, p
	}
	return d, nil
}

// Events yields the recorded events of an attempt, one JSON object each; a line
// of type "truncated" stands for events that are not in the record.
func (r *Reader) Events(at AttemptRef) iter.Seq2[json.RawMessage, error] {
	return r.lines(at, eventsFile)
}

// Commands yields the recorded commands of an attempt, as Events does.
func (r *Reader) Commands(at AttemptRef) iter.Seq2[json.RawMessage, error] {
	return r.lines(at, commandsFile)
}

func (r *Reader) lines(at AttemptRef, name string) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		file := dirOf(at) + "/" + name
		fail := func(err error) {
			yield(nil, &Problem{Run: at.Run, Attempt: at.Attempt, File: file, Message: message(err)})
		}
		f, err := r.root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			fail(err)
			return
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			fail(errors.Join(err, fmt.Errorf("%s is no regular file", name)))
			return
		}
		br := bufio.NewReaderSize(io.LimitReader(f, 2*maxDocument), 64<<10)
		for {
			line, err := br.ReadBytes('\n')
			if line = bytes.TrimSpace(line); len(line) > 0 {
				if !json.Valid(line) {
					fail(errors.New("a line is not JSON"))
					return
				}
				if !yield(line, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				fail(err)
				return
			}
		}
	}
}

// parallel calls do for 0..n-1 on as many goroutines as there are processors
// and waits for all. It stops early when ctx ends and returns its cause.
func parallel(ctx context.Context, n int, do func(i int)) error {
	workers := min(runtime.GOMAXPROCS(0), (n+31)/32) // a few files are not worth a goroutine
	var mu sync.Mutex
	next := 0
	take := func() (int, int) {
		const batch = 16
		mu.Lock()
		defer mu.Unlock()
		from := next
		next = min(next+batch, n)
		return from, next
	}
	work := func() {
		for {
			from, to := take()
			if from == to || ctx.Err() != nil {
				return
			}
			for i := from; i < to; i++ {
				do(i)
			}
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
