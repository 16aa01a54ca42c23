// Package archive moves file trees as plain tar streams: it packs host trees
// without following symlinks out of them, and unpacks streams that a sandbox
// made, which are hostile until proven otherwise.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"assay/fault"
)

// Limits bound what Extract accepts. Zero fields take the defaults.
type Limits struct {
	Bytes   int64 // all content; default 8 GiB
	File    int64 // one file; default 4 GiB
	Entries int   // default 1,000,000
	Path    int   // bytes of a name; default 4096
	Depth   int   // segments of a name; default 255
}

func (l Limits) orDefaults() Limits {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.Bytes, 8<<30)
	set(&l.File, 4<<30)
	if l.Entries == 0 {
		l.Entries = 1_000_000
	}
	if l.Path == 0 {
		l.Path = 4096
	}
	if l.Depth == 0 {
		l.Depth = 255
	}
	return l
}

// Stats counts what was moved.
type Stats struct {
	Files int
	Bytes int64
	// Skipped names entries that are no regular file, directory or symlink.
	Skipped []string
}

func refuse(name, why string) error {
	return &fault.Error{Class: fault.Config, Code: "archive-entry-refused", What: fmt.Sprintf("archive entry %q %s", name, why)}
}

// clean returns the entry's relative path, "." for the root itself.
func clean(h *tar.Header, lim Limits) (string, error) {
	name := h.Name
	if name == "" || strings.HasPrefix(name, "/") || strings.ContainsRune(name, 0) {
		return "", refuse(name, "has an absolute or empty name")
	}
	if len(name) > lim.Path {
		return "", refuse(name[:min(64, len(name))]+"…", "has a name that is too long")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", refuse(name, "leaves the target")
	}
	name = path.Clean(name)
	if strings.Count(name, "/") >= lim.Depth {
		return "", refuse(name[:min(64, len(name))]+"…", "is nested too deep")
	}
	return name, nil
}

// Extract unpacks a tar stream below root. Nothing outside root can change:
// names are rooted, symlinks are written as data and never followed, hard links
// reach only files of this archive, and devices and FIFOs are refused. Owners
// and setuid bits of the stream are ignored. Two entries of one name are
// refused. On error the files written so far stay: callers unpack into a fresh
// directory and remove it.
func Extract(r io.Reader, root *os.Root, lim Limits) (Stats, error) {
	return ExtractIgnoring(r, root, lim, nil)
}

// ExtractIgnoring is Extract without the entries that have one of the given
// base names anywhere in their path.
func ExtractIgnoring(r io.Reader, root *os.Root, lim Limits, ignore []string) (Stats, error) {
	lim = lim.orDefaults()
	x := extraction{root: root, lim: lim, seen: map[string]byte{}}
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return x.stats, x.finish()
		}
		if err != nil {
			return x.stats, fmt.Errorf("read the archive: %w", err)
		}
		if n >= lim.Entries {
			return x.stats, refuse(h.Name, fmt.Sprintf("is beyond the limit of %d entries", lim.Entries))
		}
		if slices.ContainsFunc(strings.Split(h.Name, "/"), func(seg string) bool { return slices.Contains(ignore, seg) }) {
			continue
		}
		if err := x.entry(h, tr); err != nil {
			return x.stats, err
		}
	}
}

type extraction struct {
	root  *os.Root
	lim   Limits
	stats Stats
	seen  map[string]byte // path → tar type
	dirs  []dirMode
}

type dirMode struct {
	name string
	mode fs.FileMode
}

func (x *extraction) entry(h *tar.Header, body io.Reader) error {
	name, err := clean(h, x.lim)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	if prev, dup := x.seen[name]; dup && (prev != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return refuse(h.Name, "occurs twice")
	}
	x.seen[name] = h.Typeflag
	if err := x.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := x.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		x.dirs = append(x.dirs, dirMode{name, fs.FileMode(h.Mode) & 0o777})
	case tar.TypeReg:
		return x.file(name, h, body)
	case tar.TypeSymlink:
		return x.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		target := path.Clean(h.Linkname)
		if x.seen[target] != tar.TypeReg {
			return refuse(h.Name, "is a hard link to something outside the archive")
		}
		return x.root.Link(target, name)
	case tar.TypeXGlobalHeader:
	default:
		return refuse(h.Name, "is a device, FIFO or other special file")
	}
	return nil
}

// parents makes the missing directories above name. A parent that this archive
// made as anything but a directory is refused, so that no entry goes through a
// symlink.
func (x *extraction) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	for i := range len(dir) + 1 {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		p := dir[:i]
		if t, ok := x.seen[p]; ok {
			if t != tar.TypeDir {
				return refuse(name, "goes through another entry that is no directory")
			}
			continue
		}
		if st, err := x.root.Lstat(p); err == nil {
			if !st.IsDir() {
				return refuse(name, "goes through a path that is no directory")
			}
		} else if err := x.root.Mkdir(p, 0o755); err != nil {
			return err
		}
		x.seen[p] = tar.TypeDir
	}
	return nil
}

func (x *extraction) file(name string, h *tar.Header, body io.Reader) error {
	if h.Size > x.lim.File || x.stats.Bytes+h.Size > x.lim.Bytes {
		return refuse(h.Name, "is larger than the limit")
	}
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, body)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode) & 0o777)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	x.stats.Files++
	x.stats.Bytes += n
	return err
}

// finish sets directory modes last, deepest first, so that a read-only
// directory can be filled. The owner always keeps access.
func (x *extraction) finish() error {
	for _, d := range slices.Backward(x.dirs) {
		if err := x.root.Chmod(d.name, d.mode|0o700); err != nil {
			return err
		}
	}
	return nil
}

// PackOptions tell Pack what to leave out.
type PackOptions struct {
	// Ignore are base names that are pruned at any depth.
	Ignore []string
	// Prefix is put before every name, such as "src".
	Prefix string
}

// PackDir writes the tree below dir as a tar stream to w. Symlinks that point
// out of dir are an error; those inside are kept as links. Anything but files,
// directories and symlinks is an error that names it. Names come in order, so
// equal trees give equal streams but for times.
func PackDir(w io.Writer, dir string, o PackOptions) (Stats, error) {
	var st Stats
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return st, err
	}
	tw := tar.NewWriter(w)
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p != root && slices.Contains(o.Ignore, d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := path.Join(o.Prefix, filepath.ToSlash(rel))
		if rel == "." && o.Prefix == "" {
			return nil
		}
		return packEntry(tw, &st, root, p, name, d)
	})
	if err != nil {
		return st, err
	}
	return st, tw.Close()
}

func packEntry(tw *tar.Writer, st *Stats, root, p, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case d.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return tw.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		full := target
		if !filepath.IsAbs(full) {
			full = filepath.Join(filepath.Dir(p), full)
		}
		if rel, err := filepath.Rel(root, full); err != nil || !filepath.IsLocal(rel) && rel != "." {
			return &fault.Error{Class: fault.Config, Code: "symlink-escapes", What: fmt.Sprintf("symlink %s points outside of %s, to %s", p, root, target), Fix: "Replace the symlink with the file it points to."}
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return tw.WriteHeader(h)
	case info.Mode().IsRegular():
		return packFile(tw, st, p, h)
	default:
		return &fault.Error{Class: fault.Config, Code: "not-a-regular-file", What: fmt.Sprintf("%s is no regular file, directory or symlink", p), Fix: "Remove it from the folder that is uploaded."}
	}
}

// PackFile writes one host file to tw under h.Name; size comes from the open
// file, so that a file that changes meanwhile is an error and never a torn
// stream.
func packFile(tw *tar.Writer, st *Stats, p string, h *tar.Header) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s changed its type while it was read", p)
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(tw, f, h.Size)
	if err != nil {
		return fmt.Errorf("%s changed its size while it was read: %w", p, err)
	}
	st.Files++
	st.Bytes += n
	return nil
}

// PackOne writes one host file under the given name as a whole tar stream.
func PackOne(w io.Writer, hostPath, name string) (Stats, error) {
	var st Stats
	info, err := os.Stat(hostPath)
	if err != nil {
		return st, err
	}
	if !info.Mode().IsRegular() {
		return st, &fault.Error{Class: fault.Config, Code: "not-a-regular-file", What: hostPath + " is no regular file"}
	}
	tw := tar.NewWriter(w)
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := packFile(tw, &st, hostPath, h); err != nil {
		return st, err
	}
	return st, tw.Close()
}

// File is one file of PackFiles.
type File struct {
	Name string
	Mode fs.FileMode // permission bits; 0 means 0644
	Body []byte
}

// PackFiles writes in-memory files as a tar stream.
func PackFiles(w io.Writer, files ...File) error {
	tw := tar.NewWriter(w)
	for _, f := range files {
		mode := f.Mode.Perm()
		if mode == 0 {
			mode = 0o644
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: int64(mode), Size: int64(len(f.Body)), ModTime: time.Now(), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.Body); err != nil {
			return err
		}
	}
	return tw.Close()
}
