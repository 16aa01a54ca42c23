package local

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
	"slices"
	"strings"
	"syscall"

	"assay/fault"
	"assay/ref"
)

// Put unpacks a tar stream below dir, as this user. A link in the tree is never
// followed: an entry that would go through one is refused.
func (d *driver) Put(ctx context.Context, dir string, archive io.Reader) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := unpacking{root: root, files: map[string]bool{}}
	tr := tar.NewReader(archive)
	for {
		if err := d.ready(ctx); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
}

type unpacking struct {
	root  *os.Root
	files map[string]bool // regular files that this archive made
	made  []*tar.Header   // directories that this archive made
}

func refused(name, why string) error {
	return &fault.Error{Class: fault.Config, Code: "archive-entry-refused", What: fmt.Sprintf("archive entry %q %s", name, why)}
}

func (u *unpacking) entry(h *tar.Header, body io.Reader) error {
	if h.Name == "" || path.IsAbs(h.Name) || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return refused(h.Name, "leaves the target")
	}
	name := path.Clean(h.Name)
	if name == "." || h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := u.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.mkdir(name, h)
	case tar.TypeReg:
		u.files[name] = true
		return u.place(name, func(tmp string) error { return u.write(tmp, h, body) })
	case tar.TypeSymlink:
		return u.place(name, func(tmp string) error { return u.root.Symlink(h.Linkname, tmp) })
	case tar.TypeLink:
		target := path.Clean(h.Linkname)
		if !u.files[target] {
			return refused(h.Name, "is a hard link to something outside the archive")
		}
		if st, err := u.root.Lstat(target); err != nil || !st.Mode().IsRegular() {
			return refused(h.Name, "is a hard link to something that is gone")
		}
		return u.place(name, func(tmp string) error { return u.root.Link(target, tmp) })
	default:
		return refused(h.Name, "is a device, FIFO or other special file")
	}
}

// parents makes the missing directories above name.
func (u *unpacking) parents(name string) error {
	for i, c := range name {
		if c != '/' {
			continue
		}
		p := name[:i]
		st, err := u.root.Lstat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(p, 0o755); err != nil {
				return err
			}
		case err != nil:
			return err
		case !st.IsDir():
			return refused(name, "goes through a path that is no directory")
		}
	}
	return nil
}

// mkdir makes a directory. One that is there keeps its mode, and a link that is
// there stays: they are the user's.
func (u *unpacking) mkdir(name string, h *tar.Header) error {
	if st, err := u.root.Lstat(name); err == nil {
		if st.IsDir() {
			return nil
		}
		return refused(name, "is a directory where the tree has something else")
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	u.made = append(u.made, h)
	return nil
}

// finish sets the modes of new directories last, so that they can be filled.
func (u *unpacking) finish() error {
	for _, h := range slices.Backward(u.made) {
		if err := u.root.Chmod(path.Clean(h.Name), fs.FileMode(h.Mode)&0o777); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// place makes something under a temporary name and renames it when complete.
func (u *unpacking) place(name string, make func(tmp string) error) error {
	tmp := path.Join(path.Dir(name), ".tmp-"+ref.New())
	err := make(tmp)
	if err == nil {
		err = u.root.Rename(tmp, name)
	}
	if err != nil {
		_ = u.root.Remove(tmp) // it may not be there
	}
	return err
}

func (u *unpacking) write(tmp string, h *tar.Header, body io.Reader) error {
	f, err := u.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, body)
	if err == nil && n != h.Size {
		err = fmt.Errorf("archive entry %q is cut short", h.Name)
	}
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & 0o777)
	}
	return errors.Join(err, f.Close())
}

// Get streams a file or tree as tar. Links are entries; sockets, pipes and
// devices are left out.
func (d *driver) Get(ctx context.Context, p string, w io.Writer) error {
	if err := d.ready(ctx); err != nil {
		return err
	}
	p = filepath.Clean(p)
	st, err := os.Lstat(p)
	if err != nil {
		return absent(err)
	}
	tw := tar.NewWriter(w)
	if !st.IsDir() {
		if err := pack(tw, p, filepath.Base(p), st); err != nil {
			return err
		}
		return tw.Close()
	}
	err = filepath.WalkDir(p, func(full string, e fs.DirEntry, err error) error {
		if err == nil {
			err = d.ready(ctx)
		}
		if err != nil {
			return gone(err, full != p)
		}
		if full == p {
			return nil
		}
		rel, err := filepath.Rel(p, full)
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err == nil {
			err = pack(tw, full, filepath.ToSlash(rel), st)
		}
		return gone(err, true)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

// gone lets a file that vanished during a walk be left out.
func gone(err error, may bool) error {
	if may && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func pack(tw *tar.Writer, full, name string, st fs.FileInfo) error {
	h := &tar.Header{Name: name, Mode: int64(st.Mode().Perm()), ModTime: st.ModTime(), Format: tar.FormatPAX}
	switch {
	case st.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return tw.WriteHeader(h)
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(full)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return tw.WriteHeader(h)
	case !st.Mode().IsRegular():
		return nil
	}
	// The file may have been replaced since it was looked at.
	f, err := os.OpenFile(full, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if !now.Mode().IsRegular() {
		return fmt.Errorf("%s changed its type while it was read", full)
	}
	h.Typeflag, h.Size = tar.TypeReg, now.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(tw, f, h.Size); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s changed its size while it was read", full)
		}
		return err
	}
	return nil
}
