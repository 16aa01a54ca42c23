package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

const (
	maxDepth    = 1000
	maxWarnings = 100
)

// get packs a file or a tree as records on channel 0.
func get(st *wire.Stream, req *wire.GetRequest) wire.Message {
	p := &packer{req: req, w: bufio.NewWriterSize(st.Writer(0), 128<<10), buf: make([]byte, 64<<10)}
	err := p.run()
	if err == nil {
		err = p.w.Flush()
	}
	_ = st.CloseWrite(0) // fails only with the stream
	if p.skipped > maxWarnings {
		p.warnings = append(p.warnings, fmt.Sprintf("and %d more", p.skipped-maxWarnings))
	}
	return &wire.TransferReply{Result: resultOf(err, "get"), Entries: p.entries, Bytes: p.bytes, Warnings: p.warnings}
}

type packer struct {
	req      *wire.GetRequest
	w        *bufio.Writer
	buf      []byte
	entries  int64
	bytes    int64
	skipped  int
	warnings []string
}

func (p *packer) warn(name, why string) {
	p.skipped++
	if p.skipped <= maxWarnings {
		p.warnings = append(p.warnings, fmt.Sprintf("%q left out: %s", name, why))
	}
}

func (p *packer) run() error {
	name := p.req.Path
	if !path.IsAbs(name) {
		return coded{wire.CodeOther, "get: the path is not absolute"}
	}
	name = path.Clean(name)
	flags := unix.AT_SYMLINK_NOFOLLOW
	if p.req.Follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, name, &st, flags); err != nil {
		if err == unix.ENOTDIR {
			err = unix.ENOENT // a parent is a file, so there is no such path
		}
		return fmt.Errorf("%q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if p.req.File {
			return fmt.Errorf("%q: %w", name, unix.EISDIR)
		}
		open := dirFlags
		if p.req.Follow {
			open &^= unix.O_NOFOLLOW
		}
		fd, err := unix.Open(name, open, 0)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if err := p.tree(fd, ".", &st, 0); err != nil {
			return err
		}
		return wire.WriteRecord(p.w, &wire.Record{Kind: wire.KindEnd})
	}
	dir, err := unix.Open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer unix.Close(dir)
	if err := p.leaf(dir, path.Base(name), path.Base(name), &st, p.req.Follow); err != nil {
		return err
	}
	if p.skipped > 0 {
		return coded{wire.CodeOther, fmt.Sprintf("%q is neither a file nor a directory", name)}
	}
	return wire.WriteRecord(p.w, &wire.Record{Kind: wire.KindEnd})
}

func record(kind wire.Kind, name string, st *unix.Stat_t) *wire.Record {
	return &wire.Record{Kind: kind, Name: name, Mode: st.Mode & 0o777, MTime: unix.TimespecToNsec(st.Mtim)}
}

// tree packs a directory, which it takes over, and all below it.
func (p *packer) tree(fd int, name string, st *unix.Stat_t, depth int) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if depth > maxDepth {
		return coded{wire.CodeTooLarge, fmt.Sprintf("%q: more than %d levels", name, maxDepth)}
	}
	p.entries++
	if err := wire.WriteRecord(p.w, record(wire.KindDir, name, st)); err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	slices.Sort(names)
	for _, base := range names {
		if slices.Contains(p.req.Ignore, base) {
			continue
		}
		if err := p.child(fd, base, name+"/"+base, depth); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) child(dir int, base, name string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil // removed since the listing
	}
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return p.leaf(dir, base, name, &st, false)
	}
	fd, err := unix.Openat(dir, base, dirFlags, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return p.tree(fd, name, &st, depth+1)
}

// leaf packs anything but a directory.
func (p *packer) leaf(dir int, base, name string, st *unix.Stat_t, follow bool) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(dir, base, name, follow)
	case unix.S_IFLNK:
		target, err := readlinkat(dir, base)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		p.entries++
		rec := record(wire.KindSymlink, name, st)
		rec.Link, rec.Mode = target, 0o777
		return wire.WriteRecord(p.w, rec)
	case unix.S_IFSOCK:
		p.warn(name, "a socket")
	case unix.S_IFIFO:
		p.warn(name, "a FIFO")
	default:
		p.warn(name, "a device")
	}
	return nil
}

func readlinkat(dir int, base string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, base, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// file packs a regular file with its holes. The open cannot block and what was
// opened is looked at again, because the name may have changed its meaning.
func (p *packer) file(dir int, base, name string, follow bool) error {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat(dir, base, flags, 0)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return coded{wire.CodeChanged, fmt.Sprintf("%q was replaced while it was read", name)}
	}
	p.bytes += st.Size
	if p.req.MaxBytes > 0 && p.bytes > p.req.MaxBytes {
		return coded{wire.CodeTooLarge, fmt.Sprintf("%q: more than %d bytes", name, p.req.MaxBytes)}
	}
	p.entries++
	rec := record(wire.KindFile, name, &st)
	rec.Size = st.Size
	if err := wire.WriteRecord(p.w, rec); err != nil {
		return err
	}
	if err := p.content(fd, st.Size); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return coded{wire.CodeChanged, fmt.Sprintf("%q became shorter while it was read", name)}
		}
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

func (p *packer) content(fd int, size int64) error {
	for off := int64(0); off < size; {
		end := size
		// A file system without holes answers with an error: all is data.
		if data, err := unix.Seek(fd, off, unix.SEEK_DATA); err == nil {
			off = min(data, size)
			if hole, err := unix.Seek(fd, off, unix.SEEK_HOLE); err == nil {
				end = min(hole, size)
			}
		} else if err == unix.ENXIO {
			// No data from here on, or the file has become shorter.
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			if st.Size < size {
				return io.ErrUnexpectedEOF
			}
			break
		}
		for off < end {
			n, err := unix.Pread(fd, p.buf[:min(int64(len(p.buf)), end-off)], off)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
			if err := wire.WriteExtent(p.w, off, int64(n)); err != nil {
				return err
			}
			if _, err := p.w.Write(p.buf[:n]); err != nil {
				return err
			}
			off += int64(n)
		}
	}
	return wire.WriteExtent(p.w, size, 0)
}

// stat describes a path without following it.
func stat(name string) wire.Message {
	r := &wire.StatReply{}
	if !path.IsAbs(name) {
		r.Result = wire.Result{Code: wire.CodeOther, What: fmt.Sprintf("stat: %q is not absolute", name)}
		return r
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		if err == unix.ENOTDIR {
			err = unix.ENOENT // a parent is a file, so there is no such path
		}
		r.Result = resultOf(err, fmt.Sprintf("stat %q", name))
		return r
	}
	r.Mode, r.Size, r.UID, r.GID = st.Mode&0o7777, st.Size, st.Uid, st.Gid
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		r.Type = "file"
	case unix.S_IFDIR:
		r.Type = "dir"
	case unix.S_IFLNK:
		r.Type = "symlink"
		target, err := readlinkat(unix.AT_FDCWD, name)
		if err != nil {
			r.Result = resultOf(err, fmt.Sprintf("stat %q", name))
		}
		r.Target = target
	default:
		r.Type = "other"
	}
	return r
}
