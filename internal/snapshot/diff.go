package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"assay/fault"
)

// Diff tells what changed in each window, in the order given, to v. It returns
// CapReached if there were more windows than the limit, else "". It reads the
// store only, so the tree may change meanwhile.
func (l *Ledger) Diff(ctx context.Context, windows []Window, content bool, limits Limits, v Visitor) (string, error) {
	unlock, err := l.store.Lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	limits = limits.withDefaults()
	partial := ""
	if len(windows) > limits.Windows {
		windows, partial = windows[:limits.Windows], CapReached
	}
	for _, w := range windows {
		if err := l.window(ctx, w, content, limits, v); err != nil {
			return "", err
		}
	}
	return partial, nil
}

func (l *Ledger) window(ctx context.Context, w Window, content bool, limits Limits, v Visitor) error {
	from, err := l.treeOf(w.From)
	if err != nil {
		return err
	}
	if w.To.IsZero() {
		return fault.Configf("ledger-bad-request", "", "the window %q has no end", w.Label)
	}
	to, err := l.treeOf(w.To)
	if err != nil {
		return err
	}
	if v.Window != nil {
		if err := v.Window(w); err != nil {
			return err
		}
	}
	d := differ{ctx: ctx, store: l.store, content: content, limits: limits, v: v, out: WindowDiff{Window: w}}
	if err := d.trees(from, to, ""); err != nil {
		return err
	}
	if v.End == nil {
		return nil
	}
	return v.End(d.out)
}

func (l *Ledger) treeOf(commit ID) (ID, error) {
	if commit.IsZero() {
		return emptyTree, nil
	}
	c, _, err := l.commit(commit)
	return c.Tree, err
}

// readTree returns the entries of a tree; the empty tree needs no object.
func readTree(s Store, id ID) ([]treeEntry, error) {
	if id == emptyTree || id.IsZero() {
		return nil, nil
	}
	data, err := readObject(s, id, KindTree)
	if err != nil {
		return nil, err
	}
	return decodeTree(data)
}

type differ struct {
	ctx     context.Context
	store   Store
	content bool
	limits  Limits
	v       Visitor
	out     WindowDiff
	text    int64
}

// trees compares two directories, either of which may be zero. Equal subtrees
// are not opened: the cost is that of what changed.
func (d *differ) trees(a, b ID, dir string) error {
	if a == b {
		return nil
	}
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	before, err := readTree(d.store, a)
	if err != nil {
		return err
	}
	after, err := readTree(d.store, b)
	if err != nil {
		return err
	}
	for len(before) > 0 || len(after) > 0 {
		c := 0
		switch {
		case len(after) == 0:
			c = -1
		case len(before) == 0:
			c = 1
		default:
			c = compareEntries(before[0], after[0])
		}
		var x, y *treeEntry
		if c <= 0 {
			x, before = &before[0], before[1:]
		}
		if c >= 0 {
			y, after = &after[0], after[1:]
		}
		if err := d.entries(x, y, dir); err != nil {
			return err
		}
	}
	return nil
}

// entries compares two entries of the same name and sort; one may be nil.
func (d *differ) entries(x, y *treeEntry, dir string) error {
	if x != nil && y != nil && x.id == y.id && x.mode == y.mode {
		return nil
	}
	one := x
	if one == nil {
		one = y
	}
	path := join(dir, one.name)
	if one.mode != modeTree {
		return d.file(x, y, path)
	}
	var a, b ID
	if x != nil {
		a = x.id
	}
	if y != nil {
		b = y.id
	}
	return d.trees(a, b, path)
}

func (d *differ) file(x, y *treeEntry, path string) error {
	c := Change{Path: Raw(path)}
	switch {
	case x == nil:
		c.Status = Added
		d.out.Added++
	case y == nil:
		c.Status = Deleted
		d.out.Deleted++
	default:
		c.Status = Modified
		d.out.Modified++
	}
	if d.out.Added+d.out.Modified+d.out.Deleted > d.limits.Changes {
		d.out.Partial = CapReached
		return nil
	}
	var err error
	if c.Before, err = d.side(x); err != nil {
		return err
	}
	if c.After, err = d.side(y); err != nil {
		return err
	}
	if d.v.Change == nil {
		return nil
	}
	return d.v.Change(c)
}

func (d *differ) side(e *treeEntry) (*Side, error) {
	if e == nil {
		return nil, nil
	}
	if d.ctx.Err() != nil {
		return nil, context.Cause(d.ctx)
	}
	o, err := openVerified(d.store, e.id, KindBlob)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	s := &Side{Mode: e.mode, Size: o.Size, Blob: e.id}
	if !d.content {
		return s, nil
	}
	return s, d.read(s, o)
}

// binaryProbe is how far git looks for a NUL.
const binaryProbe = 8000

// read fills in digest, kind and, within the limits, text.
func (d *differ) read(s *Side, o Object) error {
	var kept bytes.Buffer
	keep := max(d.limits.BlobBytes, binaryProbe)
	sum := sha256.New()
	_, err := io.CopyBuffer(io.MultiWriter(sum, &capped{&kept, keep}), onlyReader{o}, make([]byte, min(o.Size+1, 256<<10)))
	if err != nil {
		return err
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	head := kept.Bytes()[:min(kept.Len(), binaryProbe)]
	s.Binary = bytes.IndexByte(head, 0) >= 0
	switch {
	case s.Binary:
		s.Elided = ElidedBinary
	case o.Size > d.limits.BlobBytes:
		s.Elided = ElidedSize
	case d.text+o.Size > d.limits.TextBytes:
		s.Elided = ElidedBudget
		d.out.Partial = CapReached
	default:
		d.text += o.Size
		text := Raw(kept.String())
		s.Text = &text
	}
	return nil
}

type onlyReader struct{ io.Reader }

// capped keeps the first bytes written to it.
type capped struct {
	b    *bytes.Buffer
	left int64
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.left)
	c.b.Write(p[:n])
	c.left -= n
	return len(p), nil
}
