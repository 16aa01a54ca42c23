package fake

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"syscall"

	"assay/internal/snapshot"
)

// Track implements sandbox.Tracker: the ledger reads the tree in memory and
// keeps its objects beside it, out of the agent's reach.
func (m *machine) Track(ctx context.Context, request []byte, response io.Writer) error {
	if err := m.usable(); err != nil {
		return err
	}
	return snapshot.ServeWith(ctx, request, response, func(_ context.Context, r snapshot.Request) (snapshot.Place, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		store := m.stores[r.Store]
		if store == nil {
			store = snapshot.NewMemStore()
			m.stores[r.Store] = store
		}
		root := r.Root
		if root == "" {
			root = m.workdir
		}
		return snapshot.Place{Tree: &workTree{m.tree, m.tree.realpath(root, super)}, Store: store}, nil
	})
}

// workTree is a part of the tree as the ledger sees it. It acts as root.
type workTree struct {
	t    *tree
	root string
}

// at resolves a relative path; a link in the middle is a path that is not there.
// The caller holds the lock.
func (w *workTree) at(p string) (spot, error) {
	at, err := w.t.walk(w.root, super, true)
	if err != nil || at.node == nil || p == "" {
		if err == nil && at.node == nil {
			err = fs.ErrNotExist
		}
		return at, err
	}
	n := at.node
	for i, name := range splitPath(p) {
		if i > 0 {
			n = at.node
		}
		if n == nil || n.kind != directory {
			return spot{}, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		}
		at = spot{parent: n, name: name, node: n.kids[name]}
	}
	return at, nil
}

func splitPath(p string) []string {
	var out []string
	for p != "" {
		i := 0
		for i < len(p) && p[i] != '/' {
			i++
		}
		out = append(out, p[:i])
		p = p[min(i+1, len(p)):]
	}
	return out
}

func facts(i info) snapshot.Facts {
	kinds := map[kind]uint32{regular: snapshot.TypeFile, directory: snapshot.TypeDir, symlink: snapshot.TypeLink, nullDevice: 0o020000, zeroDevice: 0o020000}
	return snapshot.Facts{
		Name: i.name, Mode: kinds[i.kind] | i.perm, Size: i.size, ModTime: i.mtime, ChangeTime: i.ctime,
		Inode: i.ino, UID: uint32(i.uid), GID: uint32(i.gid),
	}
}

func (w *workTree) look(p string) (*node, info, error) {
	at, err := w.at(p)
	if err != nil {
		return nil, info{}, err
	}
	if at.node == nil {
		return nil, info{}, &fs.PathError{Op: "lstat", Path: p, Err: fs.ErrNotExist}
	}
	name := at.name
	if p == "" {
		name = ""
	}
	return at.node, at.node.info(name), nil
}

// Lstat implements snapshot.Tree.
func (w *workTree) Lstat(p string) (snapshot.Facts, error) {
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	_, i, err := w.look(p)
	return facts(i), err
}

// ReadDir implements snapshot.Tree.
func (w *workTree) ReadDir(p string) ([]snapshot.Facts, error) {
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	n, _, err := w.look(p)
	if err != nil {
		return nil, err
	}
	if n.kind != directory {
		return nil, &fs.PathError{Op: "readdir", Path: p, Err: syscall.ENOTDIR}
	}
	out := make([]snapshot.Facts, 0, len(n.kids))
	for name, k := range n.kids {
		out = append(out, facts(k.info(name)))
	}
	return out, nil
}

// Open implements snapshot.Tree.
func (w *workTree) Open(p string) (snapshot.File, error) {
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	n, _, err := w.look(p)
	if err != nil {
		return nil, err
	}
	if n.kind != regular {
		return nil, snapshot.ErrNotRegular
	}
	return &openFile{Reader: bytes.NewReader(n.data), w: w, n: n}, nil
}

type openFile struct {
	*bytes.Reader
	w *workTree
	n *node
}

func (f *openFile) Stat() (snapshot.Facts, error) {
	f.w.t.mu.RLock()
	defer f.w.t.mu.RUnlock()
	return facts(f.n.info("")), nil
}

func (f *openFile) Close() error { return nil }

// Readlink implements snapshot.Tree.
func (w *workTree) Readlink(p string) (string, error) {
	w.t.mu.RLock()
	defer w.t.mu.RUnlock()
	n, _, err := w.look(p)
	if err == nil && n.kind != symlink {
		err = &fs.PathError{Op: "readlink", Path: p, Err: syscall.EINVAL}
	}
	if err != nil {
		return "", err
	}
	return n.target, nil
}

// edit changes the entry at p with the lock held.
func (w *workTree) edit(p string, f func(at spot) error) error {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	at, err := w.at(p)
	if err == nil && p == "" {
		err = &fs.PathError{Op: "edit", Path: p, Err: syscall.EBUSY}
	}
	if err != nil {
		return err
	}
	return f(at)
}

func (w *workTree) replace(p string, k kind, perm uint32, own snapshot.Owner, fill func(n *node)) error {
	return w.edit(p, func(at spot) error {
		if at.node != nil && at.node.kind == directory {
			return &fs.PathError{Op: "create", Path: p, Err: syscall.EISDIR}
		}
		who := super
		if own.Set {
			who = cred{int(own.UID), int(own.GID)}
		}
		n := w.t.make(k, perm, who)
		fill(n)
		w.t.add(at, n)
		return nil
	})
}

// Create implements snapshot.WriteTree.
func (w *workTree) Create(p string, content io.Reader, perm uint32, own snapshot.Owner) error {
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return w.replace(p, regular, perm, own, func(n *node) { n.data = data })
}

// Symlink implements snapshot.WriteTree.
func (w *workTree) Symlink(target, p string, own snapshot.Owner) error {
	return w.replace(p, symlink, 0o777, own, func(n *node) { n.target = target })
}

// Mkdir implements snapshot.WriteTree.
func (w *workTree) Mkdir(p string, perm uint32) error {
	return w.edit(p, func(at spot) error {
		if at.node != nil {
			return &fs.PathError{Op: "mkdir", Path: p, Err: fs.ErrExist}
		}
		w.t.add(at, w.t.make(directory, perm, super))
		return nil
	})
}

// Remove implements snapshot.WriteTree.
func (w *workTree) Remove(p string) error {
	return w.edit(p, func(at spot) error {
		switch {
		case at.node == nil:
			return &fs.PathError{Op: "remove", Path: p, Err: fs.ErrNotExist}
		case len(at.node.kids) > 0:
			return &fs.PathError{Op: "remove", Path: p, Err: syscall.ENOTEMPTY}
		}
		w.t.drop(at)
		return nil
	})
}

func (w *workTree) alter(p string, f func(n *node)) error {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	n, _, err := w.look(p)
	if err != nil {
		return err
	}
	f(n)
	n.ctime = w.t.now()
	return nil
}

// Chmod implements snapshot.WriteTree.
func (w *workTree) Chmod(p string, perm uint32) error {
	return w.alter(p, func(n *node) { n.perm = perm & 0o7777 })
}

// Chown implements snapshot.WriteTree.
func (w *workTree) Chown(p string, own snapshot.Owner) error {
	if !own.Set {
		return nil
	}
	return w.alter(p, func(n *node) { n.uid, n.gid = int(own.UID), int(own.GID) })
}

// MayChown implements snapshot.WriteTree.
func (w *workTree) MayChown() bool { return true }

var _ snapshot.WriteTree = (*workTree)(nil)
