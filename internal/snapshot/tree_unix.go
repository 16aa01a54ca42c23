//go:build unix

package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// OSTree is a directory of this machine. It resolves every path element by
// element from a descriptor of the root, never through a link.
type OSTree struct {
	root   *os.File
	direct bool // openBeneath resolves a whole path in one call
	temp   atomic.Uint64
}

var _ WriteTree = (*OSTree)(nil)

// OpenTree opens the directory root. No element of root may be a symbolic link:
// resolve them first (filepath.EvalSymlinks) and keep the result, so that a
// link planted later cannot move the tree.
func OpenTree(root string) (*OSTree, error) {
	if !filepath.IsAbs(root) {
		return nil, &fs.PathError{Op: "open", Path: root, Err: errors.New("the path is not absolute")}
	}
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	for _, e := range strings.FieldsFunc(filepath.Clean(root), func(r rune) bool { return r == '/' }) {
		next, err := openDirAt(fd, e)
		unix.Close(fd)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: root, Err: err}
		}
		fd = next
	}
	t := &OSTree{root: os.NewFile(uintptr(fd), root)}
	t.direct = canOpenBeneath(fd)
	return t, nil
}

// Close releases the descriptor of the root.
func (t *OSTree) Close() error { return t.root.Close() }

func (t *OSTree) fd() int { return int(t.root.Fd()) }

// dirFlags open a directory for use as a base only; O_RDONLY would need read
// permission on each parent.
const dirFlags = openPath | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openDirAt(fd int, name string) (int, error) {
	return retryEINTR(func() (int, error) { return unix.Openat(fd, name, dirFlags, 0) })
}

func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// open opens path with flags, following no link.
func (t *OSTree) open(p string, flags int) (int, error) {
	if p == "" {
		p = "."
	}
	if t.direct && len(p) < 4000 {
		fd, err := retryEINTR(func() (int, error) { return openBeneath(t.fd(), p, flags) })
		return fd, err
	}
	dir, name, done, err := t.parent(p)
	if err != nil {
		return -1, err
	}
	defer done()
	return retryEINTR(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
}

// parent opens the directory that holds p. done closes it.
func (t *OSTree) parent(p string) (dir int, name string, done func(), err error) {
	d, name := path.Split(p)
	d = strings.TrimSuffix(d, "/")
	if d == "" {
		return t.fd(), name, func() {}, nil
	}
	if t.direct && len(d) < 4000 {
		fd, err := t.open(d, dirFlags)
		if err != nil {
			return -1, "", nil, err
		}
		return fd, name, func() { unix.Close(fd) }, nil
	}
	fd := -1
	at := t.fd()
	for _, e := range strings.Split(d, "/") {
		next, err := openDirAt(at, e)
		if fd >= 0 {
			unix.Close(fd)
		}
		if err != nil {
			return -1, "", nil, err
		}
		fd, at = next, next
	}
	return fd, name, func() { unix.Close(fd) }, nil
}

// at runs f with the directory and name of p.
func (t *OSTree) at(op, p string, f func(dir int, name string) error) error {
	dir, name, done, err := t.parent(p)
	if err == nil {
		err = f(dir, name)
		for err == unix.EINTR {
			err = f(dir, name)
		}
		done()
	}
	return pathErr(op, p, err)
}

func pathErr(op, p string, err error) error {
	switch err {
	case nil:
		return nil
	case unix.ELOOP, unix.ENOTDIR:
		// A parent that is a link or a file: the path does not exist.
		err = fs.ErrNotExist
	}
	return &fs.PathError{Op: op, Path: p, Err: err}
}

func factsOf(name string, st *unix.Stat_t) Facts {
	return Facts{
		Name: name, Mode: uint32(st.Mode), Size: st.Size, Inode: st.Ino, UID: st.Uid, GID: st.Gid,
		ModTime: st.Mtim.Nano(), ChangeTime: st.Ctim.Nano(),
	}
}

// Lstat implements Tree.
func (t *OSTree) Lstat(p string) (Facts, error) {
	var st unix.Stat_t
	if p == "" {
		if err := unix.Fstat(t.fd(), &st); err != nil {
			return Facts{}, pathErr("lstat", p, err)
		}
		return factsOf("", &st), nil
	}
	err := t.at("lstat", p, func(dir int, name string) error {
		return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return factsOf(path.Base(p), &st), err
}

// ReadDir implements Tree.
func (t *OSTree) ReadDir(dir string) ([]Facts, error) {
	fd, err := t.open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err != nil {
		return nil, pathErr("readdir", dir, err)
	}
	defer unix.Close(fd)
	var names []string
	for buf := make([]byte, 16<<10); ; {
		n, err := retryEINTR(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil {
			return nil, pathErr("readdir", dir, err)
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	facts := make([]Facts, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		switch err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
		case nil:
			facts = append(facts, factsOf(name, &st))
		case unix.ENOENT:
		default:
			return nil, pathErr("lstat", path.Join(dir, name), err)
		}
	}
	return facts, nil
}

// osFile reads a regular file with plain calls: the runtime's poller would cost
// two more for each file.
type osFile int

func (f osFile) Read(p []byte) (int, error) {
	n, err := retryEINTR(func() (int, error) { return unix.Read(int(f), p) })
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

func (f osFile) Close() error { return unix.Close(int(f)) }

func (f osFile) Stat() (Facts, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f), &st)
	return factsOf("", &st), err
}

// Open implements Tree.
func (t *OSTree) Open(p string) (File, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := t.open(p, flags|openQuiet)
	if err == unix.EPERM && openQuiet != 0 {
		// Only the owner may leave the access time alone.
		fd, err = t.open(p, flags)
	}
	if err == unix.ELOOP || err == unix.ENXIO {
		return nil, &fs.PathError{Op: "open", Path: p, Err: ErrNotRegular}
	}
	if err != nil {
		return nil, pathErr("open", p, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint32(st.Mode)&TypeMask != TypeFile {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: p, Err: errors.Join(ErrNotRegular, err)}
	}
	return osFile(fd), nil
}

// Readlink implements Tree.
func (t *OSTree) Readlink(p string) (string, error) {
	var target string
	err := t.at("readlink", p, func(dir int, name string) error {
		for size := 256; ; size *= 2 {
			buf := make([]byte, size)
			n, err := unix.Readlinkat(dir, name, buf)
			if err != nil || n < size {
				target = string(buf[:max(n, 0)])
				return err
			}
		}
	})
	return target, err
}

// Create implements WriteTree.
func (t *OSTree) Create(p string, content io.Reader, perm uint32, own Owner) error {
	return t.at("create", p, func(dir int, name string) error {
		temp := t.tempName()
		fd, err := retryEINTR(func() (int, error) {
			return unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		})
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "file")
		_, err = io.Copy(f, content)
		if err == nil && own.Set {
			err = unix.Fchown(fd, int(own.UID), int(own.GID))
		}
		if err == nil {
			err = unix.Fchmod(fd, perm&0o7777)
		}
		err = errors.Join(err, f.Close())
		if err == nil {
			err = t.rename(dir, temp, name)
		}
		if err != nil {
			_ = unix.Unlinkat(dir, temp, 0)
		}
		return err
	})
}

// Symlink implements WriteTree.
func (t *OSTree) Symlink(target, p string, own Owner) error {
	return t.at("symlink", p, func(dir int, name string) error {
		temp := t.tempName()
		err := unix.Symlinkat(target, dir, temp)
		if err != nil {
			return err
		}
		if own.Set {
			err = unix.Fchownat(dir, temp, int(own.UID), int(own.GID), unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil {
			err = t.rename(dir, temp, name)
		}
		if err != nil {
			_ = unix.Unlinkat(dir, temp, 0)
		}
		return err
	})
}

// tempName is free for a single writer; a leftover of a killed one is a path
// that the next reset removes.
func (t *OSTree) tempName() string {
	return ".tmp-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(t.temp.Add(1), 10)
}

func (t *OSTree) rename(dir int, temp, name string) error {
	err := unix.Renameat(dir, temp, dir, name)
	if err == unix.EPERM && clearFlags(dir, name) {
		err = unix.Renameat(dir, temp, dir, name)
	}
	return err
}

// Mkdir implements WriteTree.
func (t *OSTree) Mkdir(p string, perm uint32) error {
	return t.at("mkdir", p, func(dir int, name string) error {
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			return err
		}
		return chmodAt(dir, name, perm)
	})
}

// Remove implements WriteTree.
func (t *OSTree) Remove(p string) error {
	return t.at("remove", p, func(dir int, name string) error {
		err := unlink(dir, name)
		if err == unix.EPERM && clearFlags(dir, name) {
			err = unlink(dir, name)
		}
		return err
	})
}

func unlink(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		// unlink(2) of a directory is EISDIR on Linux and EPERM by POSIX.
		if e := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); e != unix.ENOTDIR {
			err = e
		}
	}
	return err
}

// Chmod implements WriteTree.
func (t *OSTree) Chmod(p string, perm uint32) error {
	if p == "" {
		return pathErr("chmod", p, chmodFD(t.fd(), perm))
	}
	return t.at("chmod", p, func(dir int, name string) error {
		err := chmodAt(dir, name, perm)
		if err == unix.EPERM && clearFlags(dir, name) {
			err = chmodAt(dir, name, perm)
		}
		return err
	})
}

// Chown implements WriteTree.
func (t *OSTree) Chown(p string, own Owner) error {
	if p == "" {
		return pathErr("chown", p, unix.Fchownat(t.fd(), ".", int(own.UID), int(own.GID), 0))
	}
	return t.at("chown", p, func(dir int, name string) error {
		return unix.Fchownat(dir, name, int(own.UID), int(own.GID), unix.AT_SYMLINK_NOFOLLOW)
	})
}

// MayChown implements WriteTree: only root gives files away.
func (t *OSTree) MayChown() bool { return os.Geteuid() == 0 }
