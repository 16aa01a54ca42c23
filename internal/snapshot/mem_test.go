package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"assay/fault"
)

// memTree is a tree in memory that can misbehave between two calls.
type memTree struct {
	mu    sync.Mutex
	files map[string]memFile // directories too; "" is the root
	clock uint64
	// opened is called before a file is opened, read after its content was read.
	opened, read func(p string)
}

type memFile struct {
	mode    uint32
	content string
	version uint64
}

var _ WriteTree = (*memTree)(nil)

func newMemTree() *memTree { return &memTree{files: map[string]memFile{"": {mode: TypeDir | 0o755}}} }

func (m *memTree) set(p string, mode uint32, content string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	m.files[p] = memFile{mode, content, m.clock}
}

func (m *memTree) del(p string) { m.mu.Lock(); defer m.mu.Unlock(); delete(m.files, p) }

func (m *memTree) get(p string) (memFile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[p]
	if !ok {
		return f, &fs.PathError{Op: "lstat", Path: p, Err: fs.ErrNotExist}
	}
	return f, nil
}

func (f memFile) facts(p string) Facts {
	return Facts{Name: path.Base(p), Mode: f.mode, Size: int64(len(f.content)), Inode: f.version}
}

func (m *memTree) Lstat(p string) (Facts, error) { f, err := m.get(p); return f.facts(p), err }

func (m *memTree) ReadDir(dir string) ([]Facts, error) {
	if _, err := m.get(dir); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Facts
	for p, f := range m.files {
		if p != "" && join(strings.TrimSuffix(path.Dir(p), "."), path.Base(p)) == p && strings.TrimSuffix(path.Dir(p), ".") == dir {
			out = append(out, f.facts(p))
		}
	}
	return out, nil
}

type memOpen struct {
	tree *memTree
	path string
	*strings.Reader
	facts Facts
}

func (o memOpen) Close() error { return nil }
func (o memOpen) Stat() (Facts, error) {
	if o.Len() == 0 && o.facts.Size > 0 {
		if o.tree.read != nil {
			o.tree.read(o.path)
		}
		if f, err := o.tree.get(o.path); err == nil {
			return f.facts(o.path), nil
		}
	}
	return o.facts, nil
}

func (m *memTree) Open(p string) (File, error) {
	if m.opened != nil {
		m.opened(p)
	}
	f, err := m.get(p)
	if err != nil {
		return nil, err
	}
	if !f.facts(p).IsFile() {
		return nil, ErrNotRegular
	}
	return memOpen{m, p, strings.NewReader(f.content), f.facts(p)}, nil
}

func (m *memTree) Readlink(p string) (string, error) { f, err := m.get(p); return f.content, err }

func (m *memTree) Create(p string, r io.Reader, perm uint32, _ Owner) error {
	data, err := io.ReadAll(r)
	if err == nil {
		m.set(p, TypeFile|perm, string(data))
	}
	return err
}

func (m *memTree) Symlink(target, p string, _ Owner) error {
	m.set(p, TypeLink|0o777, target)
	return nil
}

func (m *memTree) Mkdir(p string, perm uint32) error { m.set(p, TypeDir|perm, ""); return nil }

func (m *memTree) Remove(p string) error {
	if below, _ := m.ReadDir(p); len(below) > 0 {
		return errors.New("directory not empty")
	}
	m.del(p)
	return nil
}

func (m *memTree) Chmod(p string, perm uint32) error {
	f, err := m.get(p)
	m.set(p, f.mode&TypeMask|perm, f.content)
	return err
}
func (m *memTree) Chown(string, Owner) error { return nil }
func (m *memTree) MayChown() bool            { return false }

func TestTreeInMemory(t *testing.T) {
	tree, store := newMemTree(), NewMemStore()
	open := func(context.Context, Request) (Place, error) { return Place{Tree: tree, Store: store}, nil }
	do := func(r Request) Response {
		t.Helper()
		req, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := ServeWith(context.Background(), req, &out, open); err != nil {
			t.Fatal(err)
		}
		res, err := DecodeResponse(&out)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	tree.set("a", TypeFile|0o644, "one")
	tree.set("d", TypeDir|0o755, "")
	tree.set("d/b", TypeFile|0o600, "two")
	base := do(Request{Op: OpMark}).Commit
	tree.set("a", TypeFile|0o644, "uno")
	tree.del("d/b")
	tree.set("c", TypeLink|0o777, "a")
	c := do(Request{Op: OpCommit, Author: Agent}).Commit
	res := do(Request{Op: OpDiff, Content: true, Windows: []Window{{From: base.ID, To: c.ID}}})
	wantSummary(t, res.Windows[0].Changes, "modified a", "added c", "deleted d/b")
	do(Request{Op: OpReset, Commit: base.ID})
	if f, err := tree.get("d/b"); err != nil || f.content != "two" || f.mode != TypeFile|0o600 {
		t.Errorf("d/b is %+v, %v", f, err)
	}
}

// TestTreeInMotion changes files at the worst moments of a scan.
func TestTreeInMotion(t *testing.T) {
	large := strings.Repeat("x", wholeRead+1)
	tests := []struct {
		name         string
		content      string
		opened, read func(m *memTree, n int)
		want         string // content, "" for no file
		unstable     int
		code         string
	}{
		{name: "vanishes", content: "x", opened: func(m *memTree, _ int) { m.del("f") }},
		{name: "becomes a pipe", content: "x", opened: func(m *memTree, _ int) { m.set("f", TypeFIFO|0o644, "") }},
		{name: "becomes a link", content: "x", opened: func(m *memTree, _ int) { m.set("f", TypeLink|0o777, "to") }, want: "to"},
		{name: "changes once", content: "x", read: func(m *memTree, n int) {
			if n == 1 {
				m.set("f", TypeFile|0o644, "second")
			}
		}, want: "second"},
		{name: "keeps changing", content: "1", read: func(m *memTree, n int) { m.set("f", TypeFile|0o644, fmt.Sprint(n+1)) }, want: "3", unstable: 1},
		{name: "large, changes once", content: large, read: func(m *memTree, n int) {
			if n == 1 {
				m.set("f", TypeFile|0o644, large+"y")
			}
		}, want: large + "y"},
		{name: "large, keeps changing", content: large, opened: func(m *memTree, n int) {
			m.set("f", TypeFile|0o644, fmt.Sprint(n%10, large))
		}, code: "ledger-unstable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree, store := newMemTree(), NewMemStore()
			l := New(tree, store)
			tree.set("f", TypeFile|0o644, tt.content)
			var opens, reads atomic.Int64
			if tt.opened != nil {
				tree.opened = func(string) { tt.opened(tree, int(opens.Add(1))) }
			}
			if tt.read != nil {
				tree.read = func(string) { tt.read(tree, int(reads.Add(1))) }
			}
			c, stats, err := l.Mark(context.Background(), "m", Rules{})
			if fault.CodeOf(err) != tt.code {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				return
			}
			got := ""
			if entries, err := readTree(store, c.Tree); err != nil {
				t.Fatal(err)
			} else if len(entries) > 0 {
				data, err := readObject(store, entries[0].id, KindBlob)
				if err != nil {
					t.Fatal(err)
				}
				got = string(data)
			}
			if got != tt.want || stats.Unstable != tt.unstable {
				t.Errorf("content %.20q (%d bytes), unstable %d", got, len(got), stats.Unstable)
			}
		})
	}
}

func TestOneWriterAtATime(t *testing.T) {
	b := newBench(t)
	b.write("f", "0")
	base := b.mark()
	const writers, rounds = 4, 5
	commits := make(chan Commit, writers*rounds)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for range rounds {
				res, err := b.try(Request{Op: OpCommit, Author: Agent, Label: fmt.Sprint("w", w), AllowEmpty: true})
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				commits <- res.Commit
				if _, err := b.try(Request{Op: OpStatus}); err != nil {
					t.Errorf("reader %d: %v", w, err)
				}
			}
		})
	}
	group.Wait()
	close(commits)
	// The commits form one chain: none was lost, none overwritten.
	next := map[ID]ID{}
	for c := range commits {
		if _, twice := next[c.Parent]; twice {
			t.Errorf("two commits follow %s", c.Parent)
		}
		next[c.Parent] = c.ID
	}
	n := 0
	for id := base.ID; !next[id].IsZero(); id = next[id] {
		n++
	}
	if n != writers*rounds {
		t.Errorf("a chain of %d commits, want %d", n, writers*rounds)
	}
}

func TestCanceledScanStops(t *testing.T) {
	tree, store := newMemTree(), NewMemStore()
	for i := range 100 {
		tree.set(fmt.Sprint("f", i), TypeFile|0o644, "x")
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	tree.opened = func(string) { cancel(cause) }
	l := New(tree, store)
	if _, _, err := l.Mark(ctx, "m", Rules{}); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
	if head, err := store.Head(); err != nil || !head.IsZero() {
		t.Errorf("head %v, %v", head, err)
	}
	tree.opened = nil
	if _, stats, err := l.Mark(context.Background(), "m", Rules{}); err != nil || stats.Files != 100 {
		t.Errorf("after it: %+v, %v", stats, err)
	}
}

func TestSettled(t *testing.T) {
	now := time.Unix(1000, 500_000_001)
	at := func(d time.Duration) Facts { return Facts{ChangeTime: now.Add(-d).UnixNano()} }
	coarse := func(s int64) Facts { return Facts{ChangeTime: s * int64(time.Second)} }
	got := []bool{
		settled(at(0), now), settled(at(40*time.Millisecond), now), settled(at(60*time.Millisecond), now), settled(at(-time.Hour), now),
		settled(coarse(1000), now), settled(coarse(999), now), settled(coarse(998), now),
	}
	if want := []bool{false, false, true, false, false, false, true}; !slices.Equal(got, want) {
		t.Errorf("settled %v, want %v", got, want)
	}
}
