package fake

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"assay/fault"
)

// Put unpacks a tar stream below dir.
func (m *machine) Put(ctx context.Context, dir string, archive io.Reader) error {
	if err := m.ready(ctx, &m.p.put, "put", m.script.Faults.Put); err != nil {
		return err
	}
	if err := m.makeDirs(path.Clean(dir)); err != nil {
		return err
	}
	u := unpacking{m: m, dir: m.tree.realpath(path.Clean(dir), super), files: map[string]bool{}}
	tr := tar.NewReader(archive)
	for {
		if err := m.interrupted(ctx); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
}

func (m *machine) ready(ctx context.Context, t *trip, op string, f Fault) error {
	if err := m.usable(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return t.next(ctx, op, f)
}

func (m *machine) interrupted(ctx context.Context) error {
	if err := m.usable(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

type unpacking struct {
	m     *machine
	dir   string
	files map[string]bool // regular files that this archive made
}

func refused(name, why string) error {
	return &fault.Error{Class: fault.Config, Code: "archive-entry-refused", What: fmt.Sprintf("archive entry %q %s", name, why)}
}

func (u *unpacking) entry(h *tar.Header, body io.Reader) error {
	if h.Name == "" || path.IsAbs(h.Name) || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return refused(h.Name, "leaves the target")
	}
	name := path.Clean(h.Name)
	perm := uint32(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		return u.node(name, func(old *node, t *tree) (*node, error) {
			if old != nil && old.kind == directory {
				old.perm = perm
				return old, nil
			}
			return u.fresh(directory, perm), nil
		})
	case tar.TypeReg:
		data, err := io.ReadAll(io.LimitReader(body, maxFile+1))
		if err == nil && int64(len(data)) != h.Size {
			err = fmt.Errorf("archive entry %q is cut short", h.Name)
		}
		if err != nil {
			return err
		}
		u.files[name] = true
		return u.node(name, func(_ *node, t *tree) (*node, error) {
			n := u.fresh(regular, perm)
			n.data = data
			return n, nil
		})
	case tar.TypeSymlink:
		return u.node(name, func(_ *node, t *tree) (*node, error) {
			n := u.fresh(symlink, 0o777)
			n.target = h.Linkname
			return n, nil
		})
	case tar.TypeLink:
		target := path.Clean(h.Linkname)
		if !u.files[target] {
			return refused(h.Name, "is a hard link to something outside the archive")
		}
		return u.node(name, func(_ *node, t *tree) (*node, error) {
			at, err := t.walk(path.Join(u.dir, target), super, false)
			if err != nil || at.node == nil || at.node.kind != regular {
				return nil, refused(h.Name, "is a hard link to something that is gone")
			}
			return at.node, nil
		})
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return refused(h.Name, "is a device, FIFO or other special file")
	}
}

func (u *unpacking) fresh(k kind, perm uint32) *node {
	return u.m.tree.make(k, perm, cred{u.m.def.uid, u.m.def.gid})
}

// node puts what made returns at a name below the directory. Links and files
// that stand where a directory is needed are replaced, never followed.
func (u *unpacking) node(name string, made func(old *node, t *tree) (*node, error)) error {
	t := u.m.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.walk(u.dir, super, true)
	if err != nil {
		return err
	}
	if at.node == nil || at.node.kind != directory {
		return fail("open", u.dir, syscall.ENOTDIR)
	}
	parent := at.node
	if name == "." {
		return nil
	}
	segments := strings.Split(name, "/")
	for _, s := range segments[:len(segments)-1] {
		k := parent.kids[s]
		if k == nil || k.kind != directory {
			k = u.fresh(directory, 0o755)
			parent.kids[s] = k
			t.touched(parent)
		}
		parent = k
	}
	last := segments[len(segments)-1]
	if len(last) > 255 {
		return fail("open", name, syscall.ENAMETOOLONG)
	}
	old := parent.kids[last]
	n, err := made(old, t)
	if err != nil {
		return err
	}
	if old != nil && old.kind == directory && n.kind != directory {
		return fail("open", name, syscall.EISDIR)
	}
	parent.kids[last] = n
	t.touched(parent)
	return nil
}

// Get streams a file or tree as tar.
func (m *machine) Get(ctx context.Context, p string, w io.Writer) error {
	if err := m.ready(ctx, &m.p.get, "get", m.script.Faults.Get); err != nil {
		return err
	}
	p = path.Clean(p)
	i, err := m.tree.stat(p, super, false)
	if err != nil {
		return absent(err)
	}
	tw := tar.NewWriter(w)
	if i.isDir() {
		err = m.packDir(ctx, tw, p, "")
	} else {
		err = m.packOne(tw, p, path.Base(p), i)
	}
	if err != nil {
		return err
	}
	return tw.Close()
}

func (m *machine) packDir(ctx context.Context, tw *tar.Writer, dir, prefix string) error {
	if err := m.interrupted(ctx); err != nil {
		return err
	}
	kids, err := m.tree.readDir(dir, super)
	if err != nil {
		return err
	}
	for _, k := range kids {
		name := prefix + k.name
		if err := m.packOne(tw, dir+"/"+k.name, name, k); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if k.isDir() {
			if err := m.packDir(ctx, tw, dir+"/"+k.name, name+"/"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (m *machine) packOne(tw *tar.Writer, full, name string, i info) error {
	h := &tar.Header{Name: name, Mode: int64(i.perm), ModTime: time.Unix(0, i.mtime), Uid: i.uid, Gid: i.gid, Format: tar.FormatPAX}
	switch i.kind {
	case directory:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, i.target
	case regular:
		data, err := m.tree.readFile(full, super)
		if err != nil {
			return err
		}
		h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	default:
		return nil // devices do not travel
	}
	return tw.WriteHeader(h)
}
