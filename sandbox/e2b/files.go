package e2b

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
)

// file is one match of a COPY's source.
type file struct {
	full string
	rel  string // with slashes; "" is the folder itself
}

// files finds what a COPY copies, in the order in which it is hashed: matches of
// the source, and below every folder that matches, everything that no pattern
// ignores. Symlinked folders are not entered.
func (b *Builder) files(s step) ([]file, error) {
	root, err := filepath.Abs(b.dir)
	if err != nil {
		return nil, err
	}
	ignore, err := b.ignored()
	if err != nil {
		return nil, err
	}
	pattern := path.Clean(s.Args[0])
	found := map[string]file{}
	err = filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); rel == "." {
			rel = ""
		}
		if rel != "" && childrenIgnored(ignore, rel) {
			if d.IsDir() {
				if !isIgnored(ignore, rel) && selected(pattern, rel) {
					found[full] = file{full, rel}
				}
				return fs.SkipDir
			}
		}
		if selected(pattern, rel) && (rel == "" || !isIgnored(ignore, rel)) {
			found[full] = file{full, rel}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]file, 0, len(found))
	for _, f := range found {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b file) int { return strings.Compare(a.full, b.full) })
	if len(out) == 0 {
		return nil, fmt.Errorf("no files found in %s", filepath.Join(root, s.Args[0]))
	}
	return out, nil
}

// selected reports whether a source selects a path: itself, or by a folder
// above it.
func selected(pattern, rel string) bool {
	if pattern == "." {
		return true
	}
	if rel == "" {
		return false
	}
	for p := rel; p != "."; p = path.Dir(p) {
		if ok, err := doublestar.Match(pattern, p); err == nil && ok {
			return true
		}
	}
	return false
}

// isIgnored follows the glob package of npm: a pattern names paths relative to
// the folder, and what is below an ignored folder is only ignored by "/**".
func isIgnored(ignore []string, rel string) bool {
	for _, p := range ignore {
		if ok, err := doublestar.Match(strings.TrimSuffix(path.Clean(p), "/"), rel); err == nil && ok {
			return true
		}
	}
	return false
}

// childrenIgnored reports whether everything below a path is ignored.
func childrenIgnored(ignore []string, rel string) bool {
	for _, p := range ignore {
		above, ok := strings.CutSuffix(path.Clean(p), "/**")
		if !ok {
			continue
		}
		if m, err := doublestar.Match(above, rel); err == nil && m {
			return true
		}
	}
	return false
}

// hashFiles is the hash under which E2B's SDKs cache files.
func hashFiles(src, dest string, files []file, follow bool) (string, error) {
	h := sha256.New()
	_, _ = io.WriteString(h, "COPY "+src+" "+dest) // never fails
	stats := func(st fs.FileInfo) error {
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("this system does not tell the mode of files")
		}
		_, _ = io.WriteString(h, strconv.FormatUint(uint64(sys.Mode), 10)+strconv.FormatInt(st.Size(), 10))
		return nil
	}
	for _, f := range files {
		_, _ = io.WriteString(h, f.rel)
		st, err := os.Lstat(f.full)
		if err != nil {
			return "", err
		}
		if st.Mode()&fs.ModeSymlink != 0 {
			target, terr := os.Stat(f.full)
			if !follow || terr != nil || !target.Mode().IsRegular() && !target.IsDir() {
				link, err := os.Readlink(f.full)
				if err == nil {
					err = stats(st)
				}
				if err != nil {
					return "", err
				}
				_, _ = io.WriteString(h, link)
				continue
			}
			st = target
		}
		if err := stats(st); err != nil {
			return "", err
		}
		if st.Mode().IsRegular() {
			if err := copyFile(h, f.full); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func copyFile(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// packFiles writes the gzipped tar of files into a temporary file, whose length
// an upload must know. The caller removes it.
func packFiles(files []file, follow bool) (_ *os.File, err error) {
	out, err := os.CreateTemp("", "template-*.tar.gz")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close(), os.Remove(out.Name()))
		}
	}()
	z := gzip.NewWriter(out)
	tw := tar.NewWriter(z)
	for _, f := range files {
		if err := packFile(tw, f, follow); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		return nil, err
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, err
}

func packFile(tw *tar.Writer, f file, follow bool) error {
	if f.rel == "" {
		return nil
	}
	st, err := os.Lstat(f.full)
	if err != nil {
		return err
	}
	link := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		if target, terr := os.Stat(f.full); follow && terr == nil {
			st = target
		} else if link, err = os.Readlink(f.full); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.Format = f.rel, 0, 0, "", "", tar.FormatPAX
	if st.IsDir() {
		h.Name += "/"
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return copyFile(tw, f.full)
}
