package fake

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kind is what a node is.
type kind uint8

const (
	regular kind = iota
	directory
	symlink
	nullDevice
	zeroDevice
)

// node is one file of a tree. Its fields belong to the tree's lock. The bytes
// of data below its length never change: a write replaces the slice or appends.
type node struct {
	kind         kind
	perm         uint32 // twelve permission bits
	uid, gid     int
	data         []byte
	target       string
	kids         map[string]*node
	mtime, ctime int64 // nanoseconds since 1970
	ino          uint64
}

// tree is a file system in memory.
type tree struct {
	mu   sync.RWMutex
	root *node
	inos uint64
	tick int64
}

// cred is who does something.
type cred struct{ uid, gid int }

var super = cred{}

func newTree() *tree {
	t := &tree{}
	t.root = t.make(directory, 0o755, super)
	return t
}

// now is the time, never twice the same, so that each change shows.
func (t *tree) now() int64 {
	t.tick = max(t.tick+1, time.Now().UnixNano())
	return t.tick
}

func (t *tree) make(k kind, perm uint32, who cred) *node {
	t.inos++
	n := &node{kind: k, perm: perm & 0o7777, uid: who.uid, gid: who.gid, ino: t.inos}
	n.mtime = t.now()
	n.ctime = n.mtime
	if k == directory {
		n.kids = map[string]*node{}
	}
	return n
}

func (t *tree) touched(n *node) {
	n.mtime = t.now()
	n.ctime = n.mtime
}

// may reports whether who has all of the rwx bits on n.
func (n *node) may(who cred, bits uint32) bool {
	switch {
	case who.uid == 0:
		return bits&1 == 0 || n.kind == directory || n.perm&0o111 != 0
	case who.uid == n.uid:
		return n.perm>>6&bits == bits
	case who.gid == n.gid:
		return n.perm>>3&bits == bits
	default:
		return n.perm&bits == bits
	}
}

func fail(op, p string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: p, Err: errno}
}

// spot is where a path leads: its parent, its name there, and the node, which
// is nil when only the last element is missing.
type spot struct {
	parent *node
	name   string
	node   *node
}

// walk resolves an absolute path. It follows links in the middle, and at the
// end when follow is set. The caller holds the lock.
func (t *tree) walk(p string, who cred, follow bool) (spot, error) {
	return t.step(p, who, follow, 0)
}

func (t *tree) step(p string, who cred, follow bool, links int) (spot, error) {
	at := spot{parent: t.root, name: "/", node: t.root}
	stack := []*node{t.root}
	names := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
	where := "/"
	for i, name := range names {
		dir := stack[len(stack)-1]
		last := i == len(names)-1
		if name == "." {
			continue
		}
		if name == ".." {
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			where = path.Dir(where)
			at = spot{parent: stack[max(len(stack)-2, 0)], name: path.Base(where), node: stack[len(stack)-1]}
			continue
		}
		if dir.kind != directory {
			return at, fail("open", p, syscall.ENOTDIR)
		}
		if len(name) > 255 {
			return at, fail("open", p, syscall.ENAMETOOLONG)
		}
		if !dir.may(who, 1) {
			return at, fail("open", p, syscall.EACCES)
		}
		n := dir.kids[name]
		if n == nil {
			if last {
				return spot{parent: dir, name: name}, nil
			}
			return at, fail("open", p, syscall.ENOENT)
		}
		if n.kind == symlink && (!last || follow) {
			if links >= 40 {
				return at, fail("open", p, syscall.ELOOP)
			}
			target := n.target
			if !path.IsAbs(target) {
				target = where + "/" + target
			}
			if !last {
				target += "/" + strings.Join(names[i+1:], "/")
			}
			return t.step(target, who, follow, links+1)
		}
		where = path.Join(where, name)
		at = spot{parent: dir, name: name, node: n}
		stack = append(stack, n)
	}
	if strings.HasSuffix(p, "/") && at.node != nil && at.node.kind != directory && at.node.kind != symlink {
		return at, fail("open", p, syscall.ENOTDIR)
	}
	return at, nil
}

// info is a copy of a node's facts.
type info struct {
	name         string
	kind         kind
	perm         uint32
	uid, gid     int
	size         int64
	target       string
	mtime, ctime int64
	ino          uint64
}

func (n *node) info(name string) info {
	i := info{name: name, kind: n.kind, perm: n.perm, uid: n.uid, gid: n.gid, size: int64(len(n.data)), target: n.target, mtime: n.mtime, ctime: n.ctime, ino: n.ino}
	if n.kind == symlink {
		i.size = int64(len(n.target))
	}
	return i
}

func (i info) isDir() bool { return i.kind == directory }

func (i info) modTime() time.Time { return time.Unix(0, i.mtime) }

// stat returns the facts of a path.
func (t *tree) stat(p string, who cred, follow bool) (info, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.walk(p, who, follow)
	if err != nil {
		return info{}, err
	}
	if at.node == nil {
		return info{}, fail("stat", p, syscall.ENOENT)
	}
	return at.node.info(at.name), nil
}

// access reports whether who has the rwx bits on a path.
func (t *tree) access(p string, who cred, bits uint32) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.walk(p, who, true)
	return err == nil && at.node != nil && at.node.may(who, bits)
}

// readDir lists a directory by name.
func (t *tree) readDir(p string, who cred) ([]info, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.walk(p, who, true)
	switch {
	case err != nil:
		return nil, err
	case at.node == nil:
		return nil, fail("open", p, syscall.ENOENT)
	case at.node.kind != directory:
		return nil, fail("open", p, syscall.ENOTDIR)
	case !at.node.may(who, 4):
		return nil, fail("open", p, syscall.EACCES)
	}
	out := make([]info, 0, len(at.node.kids))
	for _, name := range slices.Sorted(maps.Keys(at.node.kids)) {
		out = append(out, at.node.kids[name].info(name))
	}
	return out, nil
}

// readFile returns the content of a regular file; it must not be changed.
func (t *tree) readFile(p string, who cred) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	at, err := t.walk(p, who, true)
	switch {
	case err != nil:
		return nil, err
	case at.node == nil:
		return nil, fail("open", p, syscall.ENOENT)
	case at.node.kind == directory:
		return nil, fail("read", p, syscall.EISDIR)
	case !at.node.may(who, 4):
		return nil, fail("open", p, syscall.EACCES)
	}
	return at.node.data[:len(at.node.data):len(at.node.data)], nil
}

// change runs f with the lock on the place a path leads to, whose parent who
// may write.
func (t *tree) change(op, p string, who cred, f func(at spot) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.walk(p, who, false)
	if err != nil {
		return err
	}
	if at.node == t.root {
		return fail(op, p, syscall.EBUSY)
	}
	if !at.parent.may(who, 3) {
		return fail(op, p, syscall.EACCES)
	}
	if at.parent.perm&0o1000 != 0 && at.node != nil && who.uid != 0 && who.uid != at.node.uid && who.uid != at.parent.uid {
		return fail(op, p, syscall.EPERM)
	}
	return f(at)
}

func (t *tree) add(at spot, n *node) {
	at.parent.kids[at.name] = n
	t.touched(at.parent)
}

func (t *tree) drop(at spot) {
	delete(at.parent.kids, at.name)
	t.touched(at.parent)
}

func (t *tree) mkdir(p string, perm uint32, who cred) error {
	return t.change("mkdir", p, who, func(at spot) error {
		if at.node != nil {
			return fail("mkdir", p, syscall.EEXIST)
		}
		t.add(at, t.make(directory, perm, who))
		return nil
	})
}

// mkdirAll makes p and its missing parents.
func (t *tree) mkdirAll(p string, perm uint32, who cred) error {
	if i, err := t.stat(p, who, true); err == nil {
		if !i.isDir() {
			return fail("mkdir", p, syscall.ENOTDIR)
		}
		return nil
	}
	if dir := path.Dir(p); dir != p {
		if err := t.mkdirAll(dir, perm, who); err != nil {
			return err
		}
	}
	if err := t.mkdir(p, perm, who); err != nil && !isErrno(err, syscall.EEXIST) {
		return err
	}
	return nil
}

func (t *tree) symlink(target, p string, who cred) error {
	return t.change("symlink", p, who, func(at spot) error {
		if at.node != nil {
			return fail("symlink", p, syscall.EEXIST)
		}
		n := t.make(symlink, 0o777, who)
		n.target = target
		t.add(at, n)
		return nil
	})
}

func (t *tree) link(old, p string, who cred) error {
	return t.change("link", p, who, func(at spot) error {
		from, err := t.walk(old, who, false)
		switch {
		case err != nil:
			return err
		case from.node == nil:
			return fail("link", old, syscall.ENOENT)
		case from.node.kind == directory:
			return fail("link", old, syscall.EPERM)
		case at.node != nil:
			return fail("link", p, syscall.EEXIST)
		}
		t.add(at, from.node)
		return nil
	})
}

// remove deletes one file or empty directory.
func (t *tree) remove(p string, who cred) error {
	return t.change("remove", p, who, func(at spot) error {
		switch {
		case at.node == nil:
			return fail("remove", p, syscall.ENOENT)
		case at.node.kind == directory && len(at.node.kids) > 0:
			return fail("remove", p, syscall.ENOTEMPTY)
		}
		t.drop(at)
		return nil
	})
}

// removeAll deletes a tree.
func (t *tree) removeAll(p string, who cred) error {
	i, err := t.stat(p, who, false)
	if err != nil {
		return err
	}
	if i.isDir() {
		kids, err := t.readDir(p, who)
		if err != nil {
			return err
		}
		for _, k := range kids {
			if err := t.removeAll(p+"/"+k.name, who); err != nil {
				return err
			}
		}
	}
	return t.remove(p, who)
}

func (n *node) holds(other *node) bool {
	if n == other {
		return true
	}
	for _, k := range n.kids {
		if k.kind == directory && k.holds(other) {
			return true
		}
	}
	return false
}

func (t *tree) rename(from, to string, who cred) error {
	return t.change("rename", from, who, func(src spot) error {
		if src.node == nil {
			return fail("rename", from, syscall.ENOENT)
		}
		dst, err := t.walk(to, who, false)
		switch {
		case err != nil:
			return err
		case dst.node == src.node:
			return nil
		case !dst.parent.may(who, 3):
			return fail("rename", to, syscall.EACCES)
		case src.node.kind == directory && src.node.holds(dst.parent):
			return fail("rename", to, syscall.EINVAL)
		case dst.node != nil && dst.node.kind == directory && (src.node.kind != directory || len(dst.node.kids) > 0):
			return fail("rename", to, syscall.EEXIST)
		case dst.node != nil && dst.node.kind != directory && src.node.kind == directory:
			return fail("rename", to, syscall.ENOTDIR)
		}
		t.drop(src)
		t.add(dst, src.node)
		return nil
	})
}

// setattr changes a node's facts; only its owner may.
func (t *tree) setattr(op, p string, who cred, follow bool, f func(n *node)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.walk(p, who, follow)
	switch {
	case err != nil:
		return err
	case at.node == nil:
		return fail(op, p, syscall.ENOENT)
	case who.uid != 0 && who.uid != at.node.uid:
		return fail(op, p, syscall.EPERM)
	}
	f(at.node)
	at.node.ctime = t.now()
	return nil
}

func (t *tree) chmod(p string, perm uint32, who cred) error {
	return t.setattr("chmod", p, who, true, func(n *node) { n.perm = perm & 0o7777 })
}

func (t *tree) chown(p string, to, who cred) error {
	return t.setattr("chown", p, who, false, func(n *node) { n.uid, n.gid = to.uid, to.gid })
}

// How a file is opened.
type openMode struct {
	read, write, create, trunc, appending, excl bool
}

// open opens a file. Directories cannot be opened.
func (t *tree) open(p string, m openMode, perm uint32, who cred) (*handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.walk(p, who, true)
	if err != nil {
		return nil, err
	}
	n := at.node
	switch {
	case n == nil && !m.create:
		return nil, fail("open", p, syscall.ENOENT)
	case n == nil:
		if !at.parent.may(who, 3) {
			return nil, fail("open", p, syscall.EACCES)
		}
		n = t.make(regular, perm, who)
		t.add(at, n)
		return &handle{t: t, n: n, mode: m}, nil
	case m.excl:
		return nil, fail("open", p, syscall.EEXIST)
	case n.kind == directory:
		return nil, fail("open", p, syscall.EISDIR)
	}
	var need uint32
	if m.read {
		need |= 4
	}
	if m.write {
		need |= 2
	}
	if !n.may(who, need) {
		return nil, fail("open", p, syscall.EACCES)
	}
	if m.trunc && n.kind == regular {
		n.data = nil
		t.touched(n)
	}
	return &handle{t: t, n: n, mode: m}, nil
}

// place puts a complete regular file at p, whatever non-directory is there.
func (t *tree) place(p string, data []byte, perm uint32, who cred) error {
	return t.change("open", p, who, func(at spot) error {
		if at.node != nil && at.node.kind == directory {
			return fail("open", p, syscall.EISDIR)
		}
		n := t.make(regular, perm, who)
		n.data = data
		t.add(at, n)
		return nil
	})
}

// handle is an open file.
type handle struct {
	t    *tree
	n    *node
	mode openMode
	off  int64
}

func (h *handle) Read(b []byte) (int, error) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	switch h.n.kind {
	case nullDevice:
		return 0, io.EOF
	case zeroDevice:
		clear(b)
		return len(b), nil
	}
	if !h.mode.read {
		return 0, syscall.EBADF
	}
	if h.off >= int64(len(h.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, h.n.data[h.off:])
	h.off += int64(n)
	return n, nil
}

func (h *handle) Write(b []byte) (int, error) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if h.n.kind != regular {
		return len(b), nil
	}
	if !h.mode.write {
		return 0, syscall.EBADF
	}
	size := int64(len(h.n.data))
	if h.mode.appending {
		h.off = size
	}
	if size+int64(len(b)) > maxFile {
		return 0, syscall.EFBIG
	}
	switch {
	case h.off == size:
		h.n.data = append(h.n.data, b...)
	default:
		data := bytes.Clone(h.n.data)
		if gap := h.off + int64(len(b)) - int64(len(data)); gap > 0 {
			data = append(data, make([]byte, gap)...)
		}
		copy(data[h.off:], b)
		h.n.data = data
	}
	h.off += int64(len(b))
	h.t.touched(h.n)
	return len(b), nil
}

// maxFile bounds one file in memory.
const maxFile = 1 << 30

func isErrno(err error, errno syscall.Errno) bool {
	e, ok := err.(*fs.PathError)
	return ok && e.Err == errno
}
