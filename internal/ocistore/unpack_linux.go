package ocistore

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"assay/fault"
)

// The limits of one layer: what a small file can ask for must end somewhere.
const (
	maxEntries = 5_000_000
	maxBytes   = 256 << 30
)

const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	// opaqueAttr makes overlay not look below a directory; its value is "y".
	opaqueAttr = "user.overlay.opaque"
)

// unpacker writes one layer into a directory. Nothing outside of it is touched:
// every name goes through a handle that does not leave it.
type unpacker struct {
	root   *os.Root
	owners bool
	dirs   []*tar.Header // their modes and times come last
	n      int64
}

// unpack writes a layer's tar below dir and returns the bytes of its files.
func unpack(ctx context.Context, dir string, r io.Reader, owners bool) (int64, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = root.Close() }()
	u := &unpacker{root: root, owners: owners}
	tr := tar.NewReader(r)
	for i := 0; ; i++ {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		if i >= maxEntries {
			return 0, tooLarge("entries")
		}
		if err := u.entry(h, tr); err != nil {
			return 0, fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := u.finishDir(u.dirs[i]); err != nil {
			return 0, fmt.Errorf("entry %q: %w", u.dirs[i].Name, err)
		}
	}
	return u.n, nil
}

func tooLarge(what string) error {
	return fault.Configf("sandbox.image-too-large", "Use a smaller image.", "a layer of the image has too many %s", what)
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name := path.Clean("/" + h.Name)[1:]
	if !filepath.IsLocal(strings.TrimPrefix(h.Name, "/")) && name != "" {
		return fault.Configf("sandbox.image-invalid", "Rebuild the image.", "the name leads out of the image")
	}
	if name == "" {
		if h.Typeflag == tar.TypeDir {
			u.dirs = append(u.dirs, at(h, "."))
		}
		return nil
	}
	parent, base := path.Dir(name), path.Base(name)
	if err := u.root.MkdirAll(parent, 0o755); err != nil {
		// Something that is no directory stands in the way.
		return err
	}
	if base == opaqueMark {
		return u.opaque(parent)
	}
	if gone, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if strings.HasPrefix(base, ".wh..wh.") {
			return nil // other marks of an old file system
		}
		return u.whiteout(parent, gone)
	}
	old, err := u.root.Lstat(name)
	if err == nil && (h.Typeflag != tar.TypeDir || !old.IsDir()) {
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		u.dirs = append(u.dirs, at(h, name))
		return u.own(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.own(name, h)
	case tar.TypeLink:
		return u.root.Link(path.Clean("/" + h.Linkname)[1:], name)
	default:
		return nil // devices, pipes: a sandbox has its own
	}
}

func at(h *tar.Header, name string) *tar.Header {
	c := *h
	c.Name = name
	return &c
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	if u.n += h.Size; u.n > maxBytes {
		return tooLarge("bytes")
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	if err == nil && n != h.Size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && u.owners {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & 0o777)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

func (u *unpacker) own(name string, h *tar.Header) error {
	if !u.owners {
		return nil
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

// finishDir sets what would have hindered, or been changed by, the entries
// below. A directory that a later entry replaced keeps what that set.
func (u *unpacker) finishDir(h *tar.Header) error {
	st, err := u.root.Lstat(h.Name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if err := u.root.Chmod(h.Name, mode); err != nil {
		return err
	}
	return u.root.Chtimes(h.Name, h.ModTime, h.ModTime)
}

// whiteout marks that a name of a lower layer is gone. Linux lets anybody make
// this device since 5.8.
func (u *unpacker) whiteout(parent, name string) error {
	if name == "" || name == "." || name == ".." {
		return fault.Configf("sandbox.image-invalid", "Rebuild the image.", "the whiteout names nothing")
	}
	if err := u.root.RemoveAll(path.Join(parent, name)); err != nil {
		return err
	}
	d, err := u.root.Open(parent)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return unix.Mknodat(int(d.Fd()), name, unix.S_IFCHR, 0)
}

func (u *unpacker) opaque(dir string) error {
	d, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return unix.Fsetxattr(int(d.Fd()), opaqueAttr, []byte("y"), 0)
}
