package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"assay/fault"
)

// Reset makes the tree what it was at commit and proves it: afterwards the
// digest of the tree is the commit's. Excluded paths and the root's .git stay,
// unless they lie in the way of something to restore. At a mark, modes, owners
// (as root) and empty directories come back too.
//
// The tree must be a WriteTree and idle: what a process writes meanwhile makes
// the proof fail with the code "ledger-reset-failed".
func (l *Ledger) Reset(ctx context.Context, commit ID) (State, error) {
	w, ok := l.tree.(WriteTree)
	if !ok {
		return State{}, &fault.Error{Code: "ledger-reset-failed", What: "this working tree cannot be written"}
	}
	unlock, err := l.store.Lock(ctx)
	if err != nil {
		return State{}, err
	}
	defer unlock()
	r := reset{ctx: ctx, ledger: l, tree: w, now: map[string]*node{}, opened: map[string]uint32{}, chown: w.MayChown()}
	if err := r.load(commit); err != nil {
		return State{}, err
	}
	match, err := l.rules(false, Rules{})
	if err != nil {
		return State{}, err
	}
	if err := r.openUp(match); err != nil {
		return State{}, r.failed(err)
	}
	s, root, tree, err := l.scan(ctx, &scan{match: match, wreck: true, want: func(p string) bool { _, ok := r.files[p]; return ok }})
	if err != nil {
		return State{}, err
	}
	r.index(root)
	if err := r.apply(); err != nil {
		return State{}, r.failed(err)
	}
	state := State{Commit: r.commit, Tree: tree, Stats: s.stats}
	if r.stats.Written+r.stats.Removed+r.stats.Adjusted > 0 || tree != r.commit.Tree {
		// What the first scan learned spares the second one reading it again.
		known, _ := s.newCache(root)
		if state, err = l.compareWith(ctx, r.commit, &scan{match: match, cache: known}); err != nil {
			return State{}, err
		}
	}
	state.Stats.Written, state.Stats.Removed, state.Stats.Adjusted = r.stats.Written, r.stats.Removed, r.stats.Adjusted
	if state.Dirty {
		return state, r.failed(fmt.Errorf("the tree is %s and not %s afterwards", state.Tree, r.commit.Tree))
	}
	return state, nil
}

// reset is one run of Reset.
type reset struct {
	ctx    context.Context
	ledger *Ledger
	tree   WriteTree
	chown  bool

	commit Commit
	files  map[string]treeEntry // wanted, by path
	dirs   map[string]bool      // wanted directories
	facts  map[string]attrs     // of a mark, else empty

	now map[string]*node // what is there, by path
	// opened are directories that were made accessible for the work, with the
	// permissions to give back.
	opened map[string]uint32
	stats  Stats
}

func (r *reset) failed(err error) error {
	if fault.CodeOf(err) != "" || r.ctx.Err() != nil {
		return err
	}
	f := &fault.Error{
		Code: "ledger-reset-failed", What: "the working tree cannot be restored", Err: err,
		Fix: "stop this sandbox and create another one",
	}
	if p, ok := PathOf(err); ok {
		return pathFault(fault.Unknown, f.Code, f.Fix, p, "cannot be restored", err)
	}
	return f
}

// load reads what is wanted.
func (r *reset) load(commit ID) error {
	c, err := r.ledger.marked(commit)
	if err != nil {
		return err
	}
	_, d, err := r.ledger.commit(c.ID)
	if err != nil {
		return err
	}
	r.commit, r.files, r.dirs = c, map[string]treeEntry{}, map[string]bool{"": true}
	if err := r.flatten(c.Tree, ""); err != nil {
		return err
	}
	if d.facts.IsZero() {
		return nil
	}
	data, err := readObject(r.ledger.store, d.facts, KindBlob)
	if err != nil {
		return err
	}
	if r.facts, err = decodeFacts(data); err != nil {
		return err
	}
	for p, a := range r.facts {
		if a.mode&TypeMask == TypeDir {
			r.dirs[p] = true
		}
	}
	return nil
}

func (r *reset) flatten(tree ID, dir string) error {
	entries, err := readTree(r.ledger.store, tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := join(dir, e.name)
		if e.mode != modeTree {
			r.files[p] = e
			continue
		}
		r.dirs[p] = true
		if err := r.flatten(e.id, p); err != nil {
			return err
		}
	}
	return nil
}

const dirAccess = 0o700

// openUp makes directories that the agent closed accessible again, as far as
// the scan needs it and we own them. Root needs none of it.
func (r *reset) openUp(match *matcher) error {
	if r.chown {
		return nil
	}
	var visit func(dir string, elems []string, st state) error
	visit = func(dir string, elems []string, st state) error {
		f, err := r.tree.Lstat(dir)
		if err != nil || !f.IsDir() {
			return nil
		}
		if f.Mode&dirAccess != dirAccess {
			if err := r.tree.Chmod(dir, f.Mode&0o7777|dirAccess); err != nil {
				return err
			}
			r.opened[dir] = f.Mode & 0o7777
		}
		entries, err := r.tree.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() || dir == "" && e.Name == ".git" {
				continue
			}
			below := append(elems, e.Name)
			in := match.enter(st, below, true)
			if !in.captured() && !match.descend(below) {
				continue
			}
			if err := visit(join(dir, e.Name), below, in); err != nil {
				return err
			}
		}
		return nil
	}
	return visit("", nil, state{})
}

func (r *reset) index(n *node) {
	if n.gone {
		return
	}
	r.now[n.path] = n
	for _, k := range n.kids {
		r.index(k)
	}
}

// apply removes, then restores from the top down, then sets the attributes of
// directories from the bottom up, because a mode may forbid the work below it.
func (r *reset) apply() error {
	if err := r.removeAdded(); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(r.dirs)) {
		if err := r.dir(p); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(r.files)) {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := r.file(p, r.files[p]); err != nil {
			return err
		}
	}
	dirs := slices.Sorted(maps.Keys(r.dirs))
	for _, p := range slices.Backward(dirs) {
		if err := r.dirAttrs(p); err != nil {
			return err
		}
	}
	return nil
}

// removeAdded deletes what is there and not wanted, deepest first.
func (r *reset) removeAdded() error {
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(r.now))) {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		n := r.now[p]
		_, wantFile := r.files[p]
		switch dir := n.facts.IsDir(); {
		case p == "" || dir && r.dirs[p] || dir && n.onTheWay || !dir && wantFile:
			continue
		case dir && wantFile:
			// Excluded things inside lie in the way of the file.
			if err := r.removeAll(p); err != nil {
				return err
			}
		default:
			err := r.remove(p)
			if err != nil && dir && r.occupied(p) {
				// What is left inside is what snapshots leave out, so it stays.
				continue
			}
			if err != nil {
				return err
			}
			r.stats.Removed++
		}
		delete(r.now, p)
	}
	return nil
}

func (r *reset) occupied(dir string) bool {
	entries, err := r.tree.ReadDir(dir)
	return err == nil && len(entries) > 0
}

func (r *reset) remove(p string) error {
	err := r.tree.Remove(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeAll deletes a directory with everything in it.
func (r *reset) removeAll(p string) error {
	f, err := r.tree.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if f.IsDir() {
		if !r.chown && f.Mode&dirAccess != dirAccess {
			if err := r.tree.Chmod(p, f.Mode&0o7777|dirAccess); err != nil {
				return err
			}
		}
		entries, err := r.tree.ReadDir(p)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := r.removeAll(join(p, e.Name)); err != nil {
				return err
			}
		}
	}
	r.stats.Removed++
	return r.remove(p)
}

// dir makes a wanted directory. Its parent was made before.
func (r *reset) dir(p string) error {
	if n := r.now[p]; p == "" || (n != nil && n.facts.IsDir()) {
		return nil
	}
	f, err := r.tree.Lstat(p)
	switch {
	case err == nil && f.IsDir():
		return nil
	case err == nil:
		// Something excluded took the place.
		if err := r.remove(p); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := r.tree.Mkdir(p, 0o755); err != nil {
		return err
	}
	r.stats.Written++
	return nil
}

// file restores one file or link.
func (r *reset) file(p string, want treeEntry) error {
	n := r.now[p]
	a, known := r.facts[p]
	if n != nil && !n.gone && n.id == want.id && !n.facts.IsDir() && (n.gitMode() == modeLink) == (want.mode == modeLink) {
		return r.fileAttrs(n, want, a, known)
	}
	if n == nil {
		// A directory that was not scanned, such as an excluded one, may be in the way.
		if f, err := r.tree.Lstat(p); err == nil && f.IsDir() {
			if err := r.removeAll(p); err != nil {
				return err
			}
		}
	}
	own := r.owner(a, known)
	r.stats.Written++
	if want.mode == modeLink {
		target, err := readObject(r.ledger.store, want.id, KindBlob)
		if err != nil {
			return err
		}
		return r.tree.Symlink(string(target), p, own)
	}
	o, err := openVerified(r.ledger.store, want.id, KindBlob)
	if err != nil {
		return err
	}
	defer o.Close()
	return r.tree.Create(p, o, wantPerm(want, a, known), own)
}

func wantPerm(want treeEntry, a attrs, known bool) uint32 {
	if known {
		return a.mode & 0o7777
	}
	return want.mode & 0o777
}

func (r *reset) owner(a attrs, known bool) Owner {
	return Owner{Set: known && r.chown, UID: a.uid, GID: a.gid}
}

// fileAttrs restores mode and owner of a file whose content is right.
func (r *reset) fileAttrs(n *node, want treeEntry, a attrs, known bool) error {
	adjusted := false
	if own := r.owner(a, known); own.Set && (own.UID != n.facts.UID || own.GID != n.facts.GID) {
		if err := r.tree.Chown(n.path, own); err != nil {
			return err
		}
		// chown(2) may clear set-id bits, so the mode follows.
		n.facts.Mode &^= 0o6000
		adjusted = true
	}
	perm := wantPerm(want, a, known)
	// Without facts only the bit that git knows is compared.
	wrong := n.facts.Mode&0o7777 != perm
	if !known {
		wrong = n.gitMode() != want.mode
	}
	if wrong && !n.facts.IsLink() {
		if err := r.tree.Chmod(n.path, perm); err != nil {
			return err
		}
		adjusted = true
	}
	if adjusted {
		r.stats.Adjusted++
	}
	return nil
}

// dirAttrs restores mode and owner of a wanted directory.
func (r *reset) dirAttrs(p string) error {
	a, known := r.facts[p]
	f, err := r.tree.Lstat(p)
	if err != nil {
		return err
	}
	if own := r.owner(a, known); own.Set && (own.UID != f.UID || own.GID != f.GID) {
		if err := r.tree.Chown(p, own); err != nil {
			return err
		}
		r.stats.Adjusted++
	}
	perm, opened := r.opened[p]
	switch {
	case known:
		perm = a.mode & 0o7777
	case !opened:
		return nil
	}
	if f.Mode&0o7777 == perm {
		return nil
	}
	if !opened {
		r.stats.Adjusted++
	}
	return r.tree.Chmod(p, perm)
}
