package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/sandbox"
)

// tarReader is a tar that the engine streams.
type tarReader = tar.Reader

// hidden are the file systems of the running container that lie over the files
// that the engine's archive calls see: what is moved there with these calls comes
// from, or goes to, folders that nothing inside can see.
var hidden = []string{"/dev", "/proc", "/sys"}

// visible refuses a path that the engine's archive calls cannot reach: to say
// that it is absent, or that it was written, would be a lie.
func visible(paths ...string) error {
	for _, p := range paths {
		for _, root := range hidden {
			if p = path.Clean(p); p == root || strings.HasPrefix(p, root+"/") {
				return &fault.Error{
					Class: fault.Config, Code: "path-unreachable", Fix: "Read or write it with a command, or use a path on the container's own file system.",
					What: fmt.Sprintf("%s is on a file system of the running container that the engine cannot move files of", p),
				}
			}
		}
	}
	return nil
}

// fetch streams a path of the container to use. A missing path is an error that
// matches fs.ErrNotExist; the engine gives a missing container the same status.
func (d *plain) fetch(ctx context.Context, p string, use func(container.PathStat, *tarReader) error) error {
	if err := visible(p); err != nil {
		return err
	}
	err := d.e.download(ctx, d.id, p, func(st container.PathStat, r io.Reader) error {
		tr := tar.NewReader(r)
		if err := use(st, tr); err != nil {
			return err
		}
		// The engine may still fail after the last entry that use wanted.
		_, err := io.Copy(io.Discard, r)
		return err
	})
	return d.missing(ctx, p, err)
}

// missing tells a missing path from a missing container.
func (d *plain) missing(ctx context.Context, p string, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if ce := (callerError{}); errors.As(err, &ce) {
		return ce.err
	}
	switch statusOf(err) {
	case http.StatusNotFound:
	case http.StatusInternalServerError:
		// So the engine answers for a path that goes through a file.
		if !d.belowFile(ctx, p) {
			return d.failed(ctx, err)
		}
	default:
		return d.failed(ctx, err)
	}
	if err := d.failed(ctx, err); errors.Is(err, sandbox.ErrUnusable) {
		return err
	}
	if err := d.throughVisible(ctx, p); err != nil {
		return err
	}
	return &fault.Error{Class: fault.Config, Code: "not-found", What: p, Err: fs.ErrNotExist}
}

// throughVisible refuses a path with a parent that is a symlink to where the
// engine cannot look. The engine itself would call such a path missing.
func (d *plain) throughVisible(ctx context.Context, p string) error {
	for p = path.Dir(path.Clean(p)); p != "/" && p != "."; p = path.Dir(p) {
		if st, err := d.e.look(ctx, d.id, p); err == nil && st.LinkTarget != "" {
			return visible(st.LinkTarget)
		}
	}
	return nil
}

// belowFile reports whether a parent of p is known to be a file: then p does not
// exist.
func (d *plain) belowFile(ctx context.Context, p string) bool {
	for p = path.Dir(path.Clean(p)); p != "/" && p != "."; p = path.Dir(p) {
		st, err := d.e.look(ctx, d.id, p)
		if err == nil {
			return st.Mode.IsRegular()
		}
	}
	return false
}

// lookAt describes a path without following it.
func (d *plain) lookAt(ctx context.Context, p string) (container.PathStat, error) {
	if err := visible(p); err != nil {
		return container.PathStat{}, err
	}
	st, err := d.e.look(ctx, d.id, p)
	return st, d.missing(ctx, p, err)
}

// Get writes a tar of a path: a file under its base name, a directory as "./"
// and what is below it.
func (d *plain) Get(ctx context.Context, p string, w io.Writer) error {
	if err := d.alive(ctx); err != nil {
		return err
	}
	p = path.Clean(p)
	return d.fetch(ctx, p, func(st container.PathStat, tr *tarReader) error {
		tw := tar.NewWriter(w)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return tw.Close()
			}
			if err != nil {
				return err
			}
			if !renameEntry(h, st.Mode.IsDir()) {
				continue
			}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			if _, err := io.Copy(tw, tr); err != nil {
				return err
			}
		}
	})
}

// renameEntry gives an entry of the engine's archive, whose names start with the
// base name of the path, the name that Get promises. It is false for what has no
// place in an archive.
func renameEntry(h *tar.Header, dir bool) bool {
	below := func(name string) string {
		name = strings.TrimPrefix(name, "/")
		if !dir {
			return path.Base(name)
		}
		_, rest, _ := strings.Cut(name, "/")
		return "./" + rest
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink, tar.TypeDir:
	case tar.TypeLink:
		h.Linkname = below(h.Linkname)
	default:
		return false
	}
	h.Name = below(h.Name)
	h.Mode &= 0o777
	h.Uname, h.Gname, h.PAXRecords, h.Format = "", "", nil, tar.FormatPAX
	return true
}

// digest hashes one file, following symlinks.
func (d *plain) digest(ctx context.Context, p string) (string, error) {
	for range maxLinks {
		sum, link := "", ""
		err := d.fetch(ctx, p, func(_ container.PathStat, tr *tarReader) error {
			h, err := tr.Next()
			if err != nil {
				return err
			}
			switch h.Typeflag {
			case tar.TypeSymlink:
				link = h.Linkname
				return nil
			case tar.TypeReg:
				s := sha256.New()
				_, err := io.Copy(s, tr)
				sum = hex.EncodeToString(s.Sum(nil))
				return err
			}
			return fault.Configf("not-a-regular-file", "", "%s is no regular file", p)
		})
		if err != nil || link == "" {
			return sum, err
		}
		if !path.IsAbs(link) {
			link = path.Join(path.Dir(p), link)
		}
		p = path.Clean(link)
	}
	return "", fmt.Errorf("%s: too many levels of symlinks", p)
}

// mkdir makes a directory with its missing parents, which belong to u. With own
// set, a directory that exists is handed over to u, its mode kept.
func (d *plain) mkdir(ctx context.Context, dir string, mode int64, u plainUser, own bool) error {
	base, missing, err := d.ancestry(ctx, dir)
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		if !own {
			return nil
		}
		st, err := d.lookAt(ctx, dir)
		if err != nil {
			return err
		}
		if !st.Mode.IsDir() {
			return fault.Configf("sandbox.workdir", "Choose another directory.", "%s is no directory", dir)
		}
		base, missing, mode = path.Dir(dir), []string{path.Base(dir)}, int64(st.Mode.Perm())
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	if err := writeDirs(tw, missing, mode, u); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return d.failed(ctx, d.e.upload(ctx, d.id, base, &b))
}

// writeDirs writes directories, each below the one before; the last gets mode.
func writeDirs(tw *tar.Writer, names []string, mode int64, u plainUser) error {
	for i := range names {
		m := int64(0o755)
		if i == len(names)-1 {
			m = mode
		}
		h := &tar.Header{Typeflag: tar.TypeDir, Name: strings.Join(names[:i+1], "/") + "/", Mode: m, Uid: int(u.uid), Gid: int(u.gid), ModTime: time.Now(), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
	}
	return nil
}

// ancestry returns the deepest directory above or at dir that exists, and the
// names that are missing below it.
func (d *plain) ancestry(ctx context.Context, dir string) (base string, missing []string, err error) {
	base = path.Clean(dir)
	for base != "/" {
		st, err := d.lookAt(ctx, base)
		if err == nil {
			if st.LinkTarget != "" {
				err = visible(st.LinkTarget)
			}
			if err != nil {
				return "", nil, err
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
		missing = append(missing, path.Base(base))
		base = path.Dir(base)
	}
	slices.Reverse(missing)
	return base, missing, nil
}

// Put unpacks a tar below dir. The archive is read to its end and checked before
// the engine sees any of it, so that one that is cut or refused changes nothing.
// Symlinks that stand in the way inside the container are refused: the engine
// would follow them.
func (d *plain) Put(ctx context.Context, dir string, archive io.Reader) error {
	if err := d.alive(ctx); err != nil {
		return err
	}
	base, missing, err := d.ancestry(ctx, dir)
	if err != nil {
		return err
	}
	spool, err := os.CreateTemp("", "archive-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = spool.Close(); _ = os.Remove(spool.Name()) }()
	tw := tar.NewWriter(spool)
	if err := writeDirs(tw, missing, 0o755, d.user); err != nil {
		return err
	}
	prefix := strings.Join(missing, "/")
	parents, err := repack(tw, archive, prefix, d.user)
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if len(missing) == 0 {
		if err := d.noLinks(ctx, base, parents); err != nil {
			return err
		}
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return d.failed(ctx, d.e.upload(ctx, d.id, base, spool))
}

// noLinks refuses names whose existing parents are symlinks.
func (d *plain) noLinks(ctx context.Context, base string, parents []string) error {
	absent := map[string]bool{}
	for _, p := range parents {
		if absent[path.Dir(p)] {
			absent[p] = true
			continue
		}
		st, err := d.lookAt(ctx, path.Join(base, p))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			absent[p] = true
		case err != nil:
			return err
		case st.Mode&fs.ModeSymlink != 0:
			return badArchive(p, "goes through a symlink of the sandbox")
		}
	}
	return nil
}

func badArchive(name, why string) error {
	return &fault.Error{Class: fault.Config, Code: "bad-archive", What: fmt.Sprintf("archive entry %q %s", name, why)}
}

// repack copies a tar with every name below prefix, every owner set to u and
// set-id bits dropped. It returns the directories that entries stand in, parents
// first.
func repack(tw *tar.Writer, archive io.Reader, prefix string, u plainUser) ([]string, error) {
	end := &tailReader{r: archive}
	tr := tar.NewReader(end)
	kinds := map[string]byte{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		out, err := checkedEntry(h, kinds)
		if err != nil {
			return nil, err
		}
		if out.Name == "." && prefix == "" {
			continue // the target exists and keeps what it is
		}
		out.Name = path.Join(prefix, out.Name)
		if out.Typeflag == tar.TypeDir {
			out.Name += "/"
		}
		if out.Typeflag == tar.TypeLink {
			out.Linkname = path.Join(prefix, out.Linkname)
		}
		out.Uid, out.Gid = int(u.uid), int(u.gid)
		if err := tw.WriteHeader(out); err != nil {
			return nil, err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
	}
	_, _ = io.CopyN(io.Discard, end, 1<<20)
	if end.zeros < 1024 {
		return nil, badArchive("", "is missing: the archive was cut")
	}
	return parentsOf(kinds), nil
}

// checkedEntry returns a clean header, or refuses the entry.
func checkedEntry(h *tar.Header, kinds map[string]byte) (*tar.Header, error) {
	if h.Name == "" || strings.HasPrefix(h.Name, "/") || strings.ContainsRune(h.Name, 0) || slices.Contains(strings.Split(h.Name, "/"), "..") {
		return nil, badArchive(h.Name, "has a name that is absolute or climbs")
	}
	out := &tar.Header{Typeflag: h.Typeflag, Name: path.Clean(h.Name), Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatPAX}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		out.Typeflag, out.Size = tar.TypeReg, h.Size
	case tar.TypeDir:
	case tar.TypeSymlink:
		out.Linkname = h.Linkname
	case tar.TypeLink:
		out.Linkname = path.Clean(h.Linkname)
		if kinds[out.Linkname] != tar.TypeReg {
			return nil, badArchive(h.Name, "is a hard link to something outside the archive")
		}
	default:
		return nil, badArchive(h.Name, "is a device, FIFO or other special file")
	}
	for p := path.Dir(out.Name); p != "."; p = path.Dir(p) {
		if k, ok := kinds[p]; ok && k != tar.TypeDir {
			return nil, badArchive(h.Name, "goes through another entry that is no directory")
		}
	}
	kinds[out.Name] = out.Typeflag
	return out, nil
}

// parentsOf lists the directories that names stand in, parents first.
func parentsOf(kinds map[string]byte) []string {
	dirs := map[string]bool{}
	for name, k := range kinds {
		if k == tar.TypeDir {
			dirs[name] = true
		}
		for p := path.Dir(name); p != "."; p = path.Dir(p) {
			dirs[p] = true
		}
	}
	delete(dirs, ".")
	out := make([]string, 0, len(dirs))
	for p := range dirs {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b string) int {
		if n := strings.Count(a, "/") - strings.Count(b, "/"); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	return out
}

// tailReader counts the zero bytes at the end of what was read: an archive ends
// with two blocks of them, and package tar does not miss them.
type tailReader struct {
	r     io.Reader
	zeros int
}

func (t *tailReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	for i := n - 1; i >= 0; i-- {
		if p[i] != 0 {
			t.zeros = n - 1 - i
			return n, err
		}
	}
	t.zeros += n
	return n, err
}
