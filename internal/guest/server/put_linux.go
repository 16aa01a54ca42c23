package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// put unpacks the records of channel 0.
func put(st *wire.Stream, req *wire.PutRequest) wire.Message {
	st.OnKill(func(time.Duration) { st.CancelReads(coded{wire.CodeCanceled, "put: cancelled"}) })
	x := &extractor{req: req, root: -1, parent: -1, members: map[string]inode{}}
	defer x.close()
	err := x.openRoot()
	if err == nil {
		err = x.run(bufio.NewReaderSize(st.Reader(0), 128<<10))
	}
	r := &wire.TransferReply{Result: resultOf(err, "put"), Entries: x.entries, Bytes: x.bytes}
	return r
}

// extractor unpacks one archive. It walks every name from the root by directory
// handles that follow no symbolic link, so that nothing in the tree, even when
// it changes meanwhile, leads outside.
type extractor struct {
	req     *wire.PutRequest
	root    int
	entries int64
	bytes   int64
	// members are the files of this archive: only to them may a hard link lead.
	members map[string]inode
	// dirs are the directories that this archive made and describes.
	dirs []wire.Record
	// parent is the directory of the last name, kept open.
	parent     int
	parentName string
}

type inode struct{ dev, ino uint64 }

func (x *extractor) close() {
	if x.parent >= 0 && x.parent != x.root {
		_ = unix.Close(x.parent)
	}
	if x.root >= 0 {
		_ = unix.Close(x.root)
	}
}

// openRoot opens the target and makes it and its parents where they are missing.
func (x *extractor) openRoot() error {
	dir := path.Clean(x.req.Dir)
	if !path.IsAbs(x.req.Dir) {
		return coded{wire.CodeOther, "put: the directory is not absolute"}
	}
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' || i == 1 && dir == "/" {
			continue
		}
		err := unix.Mkdir(dir[:i], 0o755)
		if err == nil {
			err = x.own(unix.AT_FDCWD, dir[:i])
		}
		if err != nil && err != unix.EEXIST && !existsDir(dir[:i]) {
			return fmt.Errorf("make %s: %w", dir[:i], err)
		}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	x.root = fd
	return nil
}

func existsDir(name string) bool {
	var st unix.Stat_t
	return unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// own gives a file to the owner of the transfer, unless it is his already.
func (x *extractor) own(dir int, name string) error {
	if os.Geteuid() != 0 && int(x.req.UID) == os.Geteuid() && int(x.req.GID) == os.Getegid() {
		return nil
	}
	return unix.Fchownat(dir, name, int(x.req.UID), int(x.req.GID), unix.AT_SYMLINK_NOFOLLOW)
}

func (x *extractor) run(r io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		rec, err := wire.ReadRecord(r)
		if err != nil {
			return broken("", err)
		}
		if rec.Kind == wire.KindEnd {
			return x.finishDirs()
		}
		name, err := cleanName(rec.Name)
		if err != nil {
			return broken(rec.Name, err)
		}
		x.entries++
		if x.req.MaxEntries > 0 && x.entries > x.req.MaxEntries {
			return coded{wire.CodeTooLarge, fmt.Sprintf("archive entry %q: more than %d entries", rec.Name, x.req.MaxEntries)}
		}
		rec.Name = name
		if err := x.entry(rec, r, buf); err != nil {
			return broken(name, err)
		}
	}
}

// broken names the entry that an error is about, and keeps its code.
func broken(name string, err error) error {
	if err == io.ErrUnexpectedEOF {
		err = coded{wire.CodeArchive, "the archive is cut"}
	}
	if name == "" {
		return err
	}
	what := fmt.Sprintf("archive entry %q: ", name)
	var c coded
	if errors.As(err, &c) {
		return coded{c.code, what + c.what}
	}
	return fmt.Errorf("%s%w", what, err)
}

func badEntry(what string) error { return coded{wire.CodeArchive, what} }

// cleanName returns the plain form of an entry's name, "." for the target.
func cleanName(name string) (string, error) {
	if name == "" || name[0] == '/' || strings.IndexByte(name, 0) >= 0 {
		return "", badEntry("the name is empty or absolute")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", badEntry("the name climbs")
		}
	}
	return path.Clean(name), nil
}

func (x *extractor) entry(rec *wire.Record, r io.Reader, buf []byte) error {
	if rec.Kind == wire.KindDir {
		return x.dir(rec)
	}
	if rec.Name == "." {
		return badEntry("the target itself can only be a directory")
	}
	dir, err := x.enter(path.Dir(rec.Name))
	if err != nil {
		return err
	}
	base := path.Base(rec.Name)
	switch rec.Kind {
	case wire.KindFile:
		return x.file(dir, base, rec, r, buf)
	case wire.KindSymlink:
		return x.place(dir, base, func(temp string) error {
			if err := unix.Symlinkat(rec.Link, dir, temp); err != nil {
				return err
			}
			return x.own(dir, temp)
		})
	case wire.KindHardlink:
		return x.hardlink(dir, base, rec)
	}
	return badEntry("this kind of entry is not allowed")
}

// enter returns a handle of a directory below the root, which it makes where it
// is missing. The handle is valid until the next call.
func (x *extractor) enter(name string) (int, error) {
	if x.parent >= 0 && x.parentName == name {
		return x.parent, nil
	}
	if x.parent >= 0 && x.parent != x.root {
		_ = unix.Close(x.parent)
	}
	x.parent = -1
	fd := x.root
	if name != "." {
		for part := range strings.SplitSeq(name, "/") {
			next, _, err := x.step(fd, part)
			if fd != x.root {
				_ = unix.Close(fd)
			}
			if err != nil {
				return -1, err
			}
			fd = next
		}
	}
	x.parent, x.parentName = fd, name
	return fd, nil
}

// step opens one directory in dir and makes it where it is missing or where a
// symbolic link stands in its place.
func (x *extractor) step(dir int, part string) (fd int, made bool, err error) {
	for range 3 { // somebody may interfere between two steps, not for ever
		fd, err = unix.Openat(dir, part, dirFlags, 0)
		if err == nil {
			return fd, made, nil
		}
		var st unix.Stat_t
		if statErr := unix.Fstatat(dir, part, &st, unix.AT_SYMLINK_NOFOLLOW); statErr == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			if err := unix.Unlinkat(dir, part, 0); err != nil && err != unix.ENOENT {
				return -1, false, err
			}
		} else if err != unix.ENOENT {
			return -1, false, err
		}
		switch err := unix.Mkdirat(dir, part, 0o755); err {
		case nil:
			made = true
			if err := x.own(dir, part); err != nil {
				return -1, made, err
			}
		case unix.EEXIST:
		default:
			return -1, false, err
		}
	}
	return -1, made, err
}

func (x *extractor) dir(rec *wire.Record) error {
	if rec.Name == "." {
		return nil // the target keeps the mode it has, which may be /tmp's
	}
	dir, err := x.enter(path.Dir(rec.Name))
	if err != nil {
		return err
	}
	fd, made, err := x.step(dir, path.Base(rec.Name))
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	if made {
		x.dirs = append(x.dirs, *rec)
	}
	return nil
}

// finishDirs sets modes and times of new directories, children first: a
// directory may be read-only, and its time changes with its content.
func (x *extractor) finishDirs() error {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := &x.dirs[i]
		dir, err := x.enter(path.Dir(d.Name))
		if err != nil {
			return broken(d.Name, err)
		}
		fd, err := unix.Openat(dir, path.Base(d.Name), dirFlags, 0)
		if err != nil {
			return broken(d.Name, err)
		}
		err = finishFile(fd, d)
		_ = unix.Close(fd)
		if err != nil {
			return broken(d.Name, err)
		}
	}
	return nil
}

func finishFile(fd int, rec *wire.Record) error {
	if err := unix.Fchmod(fd, rec.Mode&0o777); err != nil {
		return err
	}
	t := unix.NsecToTimespec(rec.MTime)
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), []unix.Timespec{t, t}, 0)
}

// tempCount makes the names of half-written files unique in this process.
var tempCount atomic.Uint64

// place makes an entry under a temporary name and moves it into place, so that
// the final name never shows a part of it.
func (x *extractor) place(dir int, base string, make func(temp string) error) error {
	var temp string
	for try := 0; ; try++ {
		temp = ".~" + strconv.Itoa(os.Getpid()) + "." + strconv.FormatUint(tempCount.Add(1), 36)
		err := make(temp)
		if err == nil {
			break
		}
		if err != unix.EEXIST || try == 100 {
			if err != unix.EEXIST {
				_ = unix.Unlinkat(dir, temp, 0)
			}
			return err
		}
	}
	err := unix.Renameat(dir, temp, dir, base)
	if err != nil || x.leftover(dir, temp) {
		_ = unix.Unlinkat(dir, temp, 0)
	}
	if err == unix.EEXIST || err == unix.ENOTEMPTY {
		err = unix.EISDIR
	}
	return err
}

// leftover says whether a rename left its source, as it does between two names
// of one file.
func (x *extractor) leftover(dir int, temp string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, temp, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

func (x *extractor) file(dir int, base string, rec *wire.Record, r io.Reader, buf []byte) error {
	x.bytes += rec.Size
	if x.req.MaxBytes > 0 && x.bytes > x.req.MaxBytes {
		return coded{wire.CodeTooLarge, fmt.Sprintf("more than %d bytes", x.req.MaxBytes)}
	}
	var id inode
	err := x.place(dir, base, func(temp string) error {
		fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := writeExtents(fd, rec.Size, r, buf); err != nil {
			return err
		}
		if err := x.own(dir, temp); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		id = inode{uint64(st.Dev), st.Ino}
		return finishFile(fd, rec)
	})
	if err == nil {
		x.members[rec.Name] = id
	}
	return err
}

// writeExtents writes the content of a file; what no extent covers is a hole.
func writeExtents(fd int, size int64, r io.Reader, buf []byte) error {
	at := int64(0)
	for {
		off, n, err := wire.ReadExtent(r, at, size)
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.Ftruncate(fd, size)
		}
		at = off + n
		for off < at {
			b := buf[:min(int64(len(buf)), at-off)]
			if _, err := io.ReadFull(r, b); err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
			for len(b) > 0 {
				k, err := unix.Pwrite(fd, b, off)
				if err != nil {
					return err
				}
				b = b[k:]
				off += int64(k)
			}
		}
	}
}

// hardlink links to an earlier member and to nothing else: what was linked is
// compared with what was written.
func (x *extractor) hardlink(dir int, base string, rec *wire.Record) error {
	target, err := cleanName(rec.Link)
	if err != nil {
		return badEntry("the target of the hard link is outside")
	}
	id, ok := x.members[target]
	if !ok {
		return badEntry("the target of the hard link is not a file of this archive")
	}
	from, err := unix.Dup(dir) // enter below gives up the handle
	if err != nil {
		return err
	}
	defer unix.Close(from)
	targetDir, err := x.enter(path.Dir(target))
	if err != nil {
		return err
	}
	err = x.place(from, base, func(temp string) error {
		if err := unix.Linkat(targetDir, path.Base(target), from, temp, 0); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstatat(from, temp, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if (inode{uint64(st.Dev), st.Ino}) != id {
			return badEntry("the target of the hard link was replaced")
		}
		return nil
	})
	if err == nil {
		x.members[rec.Name] = id
	}
	return err
}
