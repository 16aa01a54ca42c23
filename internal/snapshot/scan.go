package snapshot

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // git's object format
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"assay/fault"
)

// Bounds of one scan. They keep a hostile tree from taking all memory; a real
// one is far below.
const (
	maxPaths     = 1_000_000
	maxPathBytes = 64 << 10
	// Larger files are read twice, in pieces, instead of once into memory.
	wholeRead = 1 << 20
	// A file that keeps changing is read this often.
	readTries = 3
)

// node is one path of a scanned tree.
type node struct {
	path  string
	facts Facts
	// id is the blob of a file or link, zero if the scan did not need it.
	id   ID
	kids []*node // of a directory, in git's order
	// onTheWay marks a directory that is excluded but leads to an included path.
	onTheWay bool
	// gone marks what vanished before it could be read.
	gone bool
	// fresh tells that the facts vouch for id.
	fresh bool
}

func (n *node) gitMode() uint32 {
	switch {
	case n.facts.IsDir():
		return modeTree
	case n.facts.IsLink():
		return modeLink
	case n.facts.Mode&0o100 != 0:
		return modeExec
	}
	return modeFile
}

// scan is one pass over a working tree.
type scan struct {
	tree  Tree
	match *matcher
	cache map[string]cached
	// batch receives new content; without one the scan only computes ids.
	batch Batch
	store Store
	// want limits reading to the paths it accepts; nil reads all.
	want func(path string) bool
	// wreck is a scan before a reset: a nested repository is a thing to
	// remove, and special files are kept in the result.
	wreck bool

	paths int
	todo  []*node
	mu    sync.Mutex // guards stats.Unstable while files are read
	stats Stats
}

// run scans the tree and returns its root.
func (s *scan) run(ctx context.Context) (*node, error) {
	facts, err := s.tree.Lstat("")
	if err != nil {
		return nil, pathFault(fault.Unknown, "ledger-read-failed", "", "", "look at the working tree", err)
	}
	root := &node{facts: facts}
	if err := s.walk(ctx, root, nil, state{}); err != nil {
		return nil, err
	}
	return root, s.read(ctx)
}

// walk lists dir and everything below it.
func (s *scan) walk(ctx context.Context, dir *node, elems []string, st state) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	entries, err := s.tree.ReadDir(dir.path)
	if errors.Is(err, fs.ErrNotExist) && dir.path != "" {
		dir.gone = true
		return nil
	}
	if err != nil {
		return unreadable(dir.path, err)
	}
	if s.paths += len(entries); s.paths > maxPaths {
		return fault.Configf("ledger-too-many-paths", "exclude generated directories with diff.ignore",
			"the working tree has more than %d paths", maxPaths)
	}
	for _, f := range entries {
		if dir.path == "" && f.Name == ".git" {
			continue
		}
		elems := append(elems, f.Name)
		in := s.match.enter(st, elems, f.IsDir())
		if f.Name == ".git" && (st.captured() || in.included) {
			if !s.wreck {
				return nested(dir.path)
			}
			in = st
		}
		if err := s.entry(ctx, dir, f, elems, in); err != nil {
			return err
		}
	}
	return nil
}

// sort puts the entries into git's order.
func (n *node) sort() {
	slices.SortFunc(n.kids, func(a, b *node) int {
		return compareNames(a.facts.Name, a.facts.IsDir(), b.facts.Name, b.facts.IsDir())
	})
}

func nested(dir string) error {
	return &fault.Error{
		Class: fault.Config, Code: "ledger-nested-repository",
		What: fmt.Sprintf("%q holds a git repository inside the working tree", dir),
		Fix:  "move the repository to the root of the working tree or add its directory to diff.ignore",
		Err:  &namedPath{fs.PathError{Op: "snapshot", Path: dir, Err: errors.New("its changes would be hidden")}},
	}
}

// entry takes one entry of dir into the result.
func (s *scan) entry(ctx context.Context, dir *node, f Facts, elems []string, st state) error {
	n := &node{path: join(dir.path, f.Name), facts: f, onTheWay: !st.captured()}
	if len(n.path) > maxPathBytes {
		return fault.Configf("ledger-path-too-long", "remove or exclude it with diff.ignore",
			"a path below %.80q is longer than %d bytes", n.path, maxPathBytes)
	}
	switch {
	case f.IsDir():
		if !st.captured() && !s.match.descend(elems) {
			return nil
		}
		if err := s.walk(ctx, n, elems, st); err != nil {
			return err
		}
		if !st.captured() && len(n.kids) == 0 {
			return nil
		}
	case !st.captured():
		return nil
	case f.IsFile() || f.IsLink():
		s.stats.Files++
		s.stats.Bytes += f.Size
		s.known(n)
	default:
		s.special(n)
		if !s.wreck {
			return nil
		}
	}
	if !n.gone {
		dir.kids = append(dir.kids, n)
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// known takes the blob of an unchanged file from the cache, or leaves the file
// to be read.
func (s *scan) known(n *node) {
	if s.want != nil && !s.want(n.path) {
		return
	}
	if c, ok := s.cache[n.path]; ok && c.stamp == stampOf(n.facts) {
		n.id, n.fresh = c.id, true
		return
	}
	s.todo = append(s.todo, n)
}

func (s *scan) special(n *node) {
	s.stats.Special++
	if len(s.stats.SpecialPaths) < 20 {
		s.stats.SpecialPaths = append(s.stats.SpecialPaths, Raw(n.path))
	}
}

func unreadable(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return pathFault(fault.Config, "ledger-unreadable", "make it readable for the sandbox's user or add it to diff.ignore",
			path, "cannot be read", err)
	}
	return pathFault(fault.Unknown, "ledger-read-failed", "", path, "cannot be read", err)
}

// read hashes the files whose content is not known, two at a time.
func (s *scan) read(ctx context.Context) error {
	workers := min(2, runtime.GOMAXPROCS(0), len(s.todo))
	if len(s.todo) < 16 {
		workers = min(1, len(s.todo))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *node)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			r := reader{scan: s, buf: make([]byte, wholeRead+1), hash: sha1.New()}
			for n := range next {
				if err := r.node(n); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for _, n := range s.todo {
		select {
		case next <- n:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	group.Wait()
	s.stats.Hashed = len(s.todo)
	return context.Cause(ctx)
}

// reader reads files one after the other.
type reader struct {
	scan *scan
	buf  []byte
	hash hash.Hash
}

func (r *reader) sum(k Kind, size int64, content []byte) ID {
	r.hash.Reset()
	r.hash.Write(objectHeader(k, size))
	r.hash.Write(content)
	return ID(r.hash.Sum(nil))
}

// errMoved tells that a file changed while it was read.
var errMoved = errors.New("the file changed while it was read")

func (r *reader) node(n *node) error {
	for try := 1; ; try++ {
		now := time.Now()
		err := r.content(n)
		moved := errors.Is(err, errMoved)
		switch {
		case err == nil:
			n.fresh = settled(n.facts, now) && (r.scan.batch != nil || r.scan.store.Has(n.id))
			return nil
		case moved && try >= readTries && !n.id.IsZero():
			// What was read is a state the file was in; it is not cached.
			r.scan.mu.Lock()
			r.scan.stats.Unstable++
			r.scan.mu.Unlock()
			return nil
		case r.scan.wreck && errors.Is(err, fs.ErrPermission):
			// Closed by the agent: it will be written anew.
			n.id = ID{}
			return nil
		case !moved && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotRegular):
			return err
		case try >= 10*readTries:
			return pathFault(fault.Unknown, "ledger-unstable", "end the processes that write to the working tree",
				n.path, "changes faster than it can be read", err)
		case moved:
			continue
		}
		if there, err := r.again(n); !there || err != nil {
			n.gone = true
			return err
		}
	}
}

// again looks at a path anew after its type changed under the reader. It
// returns false when there is no file or link any more.
func (r *reader) again(n *node) (bool, error) {
	f, err := r.scan.tree.Lstat(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, unreadable(n.path, err)
	}
	n.facts = f
	return f.IsFile() || f.IsLink(), nil
}

// content reads one file or link and stores it. On errMoved n.id is set if
// something whole was read.
func (r *reader) content(n *node) error {
	n.id = ID{}
	if n.facts.IsLink() {
		target, err := r.scan.tree.Readlink(n.path)
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return unreadable(n.path, err)
			}
			// Not a link any more (EINVAL), or gone.
			return fmt.Errorf("%w: %w", ErrNotRegular, err)
		}
		n.id = r.sum(KindBlob, int64(len(target)), []byte(target))
		return r.put(n.id, int64(len(target)), strings.NewReader(target))
	}
	f, err := r.scan.tree.Open(n.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotRegular) {
			return err
		}
		return unreadable(n.path, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return unreadable(n.path, err)
	}
	before.Name = n.facts.Name
	n.facts = before
	if before.Size > wholeRead {
		return r.large(n, f, before)
	}
	size, err := readFull(f, r.buf)
	if err != nil {
		return unreadable(n.path, err)
	}
	if size > wholeRead {
		return errMoved
	}
	n.id = r.sum(KindBlob, int64(size), r.buf[:size])
	if err := r.put(n.id, int64(size), bytes.NewReader(r.buf[:size])); err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return unreadable(n.path, err)
	}
	if int64(size) != before.Size || stampOf(after) != stampOf(before) {
		return errMoved
	}
	return nil
}

func readFull(r io.Reader, buf []byte) (int, error) {
	n, err := io.ReadFull(r, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}

func (r *reader) put(id ID, size int64, content io.Reader) error {
	if r.scan.batch == nil {
		return nil
	}
	return r.scan.batch.Put(id, KindBlob, size, content)
}

// large hashes a file in pieces and reads it a second time to store it.
func (r *reader) large(n *node, f File, before Facts) error {
	r.hash.Reset()
	r.hash.Write(objectHeader(KindBlob, before.Size))
	size, err := io.CopyBuffer(onlyWriter{r.hash}, io.LimitReader(f, before.Size), r.buf)
	if err != nil {
		return unreadable(n.path, err)
	}
	after, err := f.Stat()
	if err != nil {
		return unreadable(n.path, err)
	}
	if size != before.Size {
		return errMoved
	}
	id := ID(r.hash.Sum(nil))
	if r.scan.batch != nil && !r.scan.batch.Has(id) {
		again, err := r.scan.tree.Open(n.path)
		if err != nil {
			return errMoved
		}
		defer again.Close()
		content := newVerifier(again, id, KindBlob, size)
		if err := r.put(id, size, content); err != nil {
			if content.failed {
				return errMoved
			}
			return err
		}
	}
	// A file that only grows (a log) is whole up to the size it had.
	n.id = id
	if stampOf(after) != stampOf(before) {
		return errMoved
	}
	return nil
}

// onlyWriter hides other methods, so that io.CopyBuffer uses the buffer.
type onlyWriter struct{ io.Writer }

// verifier passes on exactly the content of an object; it withholds the last
// piece when the content is another one.
type verifier struct {
	r      io.Reader
	id     ID
	left   int64
	hash   hash.Hash
	failed bool
}

var errOtherContent = errors.New("the content is not the object's")

func newVerifier(r io.Reader, id ID, k Kind, size int64) *verifier {
	v := &verifier{r: r, id: id, left: size, hash: sha1.New()}
	v.hash.Write(objectHeader(k, size))
	return v
}

func (v *verifier) Read(b []byte) (int, error) {
	if v.failed {
		return 0, errOtherContent
	}
	if v.left == 0 {
		return 0, io.EOF
	}
	n, err := v.r.Read(b[:min(int64(len(b)), v.left)])
	v.hash.Write(b[:n])
	v.left -= int64(n)
	if v.left > 0 && err == nil {
		return n, nil
	}
	if v.left > 0 {
		if errors.Is(err, io.EOF) {
			v.failed = true
			err = errOtherContent
		}
		return n, err
	}
	if ID(v.hash.Sum(nil)) != v.id {
		v.failed = true
		return 0, errOtherContent
	}
	return n, nil
}

// build makes the tree objects of a scanned directory. A directory without
// files makes none.
func (s *scan) build(dir *node) (id ID, files int, err error) {
	// A type that changed while files were read moves the entry.
	dir.sort()
	var entries []treeEntry
	for _, n := range dir.kids {
		switch {
		case n.gone:
			continue
		case n.facts.IsDir():
			sub, count, err := s.build(n)
			if err != nil {
				return ID{}, 0, err
			}
			if count == 0 {
				continue
			}
			n.id = sub
			files += count
		case n.facts.IsFile() || n.facts.IsLink():
			files++
		default:
			continue
		}
		entries = append(entries, treeEntry{mode: n.gitMode(), name: n.facts.Name, id: n.id})
	}
	data := encodeTree(entries)
	id = hashObject(KindTree, data)
	if s.batch != nil && !s.batch.Has(id) {
		err = s.batch.Put(id, KindTree, int64(len(data)), bytes.NewReader(data))
	}
	return id, files, err
}

// newCache returns the cache after the scan and whether it differs.
func (s *scan) newCache(root *node) (map[string]cached, bool) {
	next := make(map[string]cached, len(s.cache))
	differs := false
	var visit func(n *node)
	visit = func(n *node) {
		for _, k := range n.kids {
			visit(k)
		}
		if n.fresh && !n.gone {
			c := cached{stampOf(n.facts), n.id}
			next[n.path] = c
			differs = differs || s.cache[n.path] != c
		}
	}
	visit(root)
	return next, differs || len(next) != len(s.cache)
}
