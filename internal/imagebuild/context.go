package imagebuild

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"assay/fault"
	"assay/sandbox"
)

// The kinds of entries of a context.
const (
	dirEntry  = 'd'
	fileEntry = 'f'
	linkEntry = 'l'
)

// entry is one thing of a context.
type entry struct {
	name string // with slashes, relative to the context
	kind rune
	exec bool
	link string
	size int64
	sum  string // of a file's content
}

// stateDir is the folder in which this program keeps its results. It changes
// with every run and is never part of a context.
const stateDir = ".assay"

// ignored returns the patterns of what is left out: those of the file beside the
// Dockerfile, named like it, where there is one, else those of the context's
// .dockerignore.
func ignored(s Source) ([]string, error) {
	names := []string{filepath.Join(s.Context, ".dockerignore")}
	if s.Dockerfile != "" {
		names = append([]string{s.Dockerfile + ".dockerignore"}, names...)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Config, "sandbox.build-context", "read the ignore file")
		}
		patterns, err := ignorefile.ReadAll(f)
		_ = f.Close()
		if err != nil {
			return nil, fault.Wrap(err, fault.Config, "sandbox.build-context", "read "+name)
		}
		return append(patterns, stateDir), nil
	}
	return []string{stateDir}, nil
}

// listing is what a context holds, in order of the names.
type listing struct {
	files  []entry
	digest string
	at     map[string]int // by name
}

// listed identifies a listing under a memo.
type listed struct{ root, patterns string }

// list lists what a context holds after the patterns. Where the context of the
// call has a memo, folders that many Dockerfiles share are read once.
func list(ctx context.Context, root string, patterns []string) (*listing, error) {
	return sandbox.Memo(ctx, listed{root, strings.Join(patterns, "\n")}, func() (*listing, error) {
		files, err := scan(ctx, root, patterns)
		if err != nil {
			return nil, err
		}
		l := &listing{files: files, at: make(map[string]int, len(files))}
		h := sha256.New()
		for i, f := range files {
			l.at[f.name] = i
			for _, w := range []string{f.name, string(f.kind), f.link, f.sum, fmt.Sprint(f.exec)} {
				fmt.Fprintf(h, "%d:%s", len(w), w)
			}
		}
		l.digest = hex.EncodeToString(h.Sum(nil))
		return l, nil
	})
}

func scan(ctx context.Context, root string, patterns []string) ([]entry, error) {
	if fi, err := os.Stat(root); err != nil || !fi.IsDir() {
		if err == nil {
			err = errors.New("it is no folder")
		}
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox.build-context", What: "the build context " + root, Fix: "Let `context:` name a folder.", Err: err}
	}
	pm, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox.build-context", What: "a pattern of the ignore file of " + root, Fix: "Correct the .dockerignore file.", Err: err}
	}
	w := walker{root: root, pm: pm, parents: map[string]patternmatcher.MatchInfo{}}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || p == root {
			return err
		}
		return w.visit(p, d)
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Config, "sandbox.build-context", "read the build context "+root)
	}
	return w.list(), nil
}

type walker struct {
	root    string
	pm      *patternmatcher.PatternMatcher
	parents map[string]patternmatcher.MatchInfo
	found   []entry
}

func (w *walker) visit(p string, d fs.DirEntry) error {
	rel, err := filepath.Rel(w.root, p)
	if err != nil {
		return err
	}
	name := filepath.ToSlash(rel)
	out, info, err := w.pm.MatchesUsingParentResults(rel, w.parents[path.Dir(name)])
	if err != nil {
		return err
	}
	if d.IsDir() {
		w.parents[name] = info
		if out && !w.wantedBelow(name) {
			return filepath.SkipDir
		}
	}
	if out {
		return nil
	}
	e := entry{name: name}
	switch t := d.Type(); {
	case t.IsDir():
		e.kind = dirEntry
	case t&fs.ModeSymlink != 0:
		e.kind = linkEntry
		e.link, err = os.Readlink(p)
	case t.IsRegular():
		e.kind = fileEntry
		fi, ferr := d.Info()
		if ferr != nil {
			return ferr
		}
		e.exec, e.size = fi.Mode()&0o111 != 0, fi.Size()
		e.sum, err = sumOf(p, fi)
	default:
		return nil // sockets, pipes and devices are no content
	}
	w.found = append(w.found, e)
	return err
}

// wantedBelow reports whether an exception to the patterns may want something of
// a folder that is left out.
func (w *walker) wantedBelow(dir string) bool {
	if !w.pm.Exclusions() {
		return false
	}
	for _, p := range w.pm.Patterns() {
		text := filepath.ToSlash(p.String())
		if p.Exclusion() && (strings.HasPrefix(text+"/", dir+"/") || strings.ContainsAny(text, "*?[")) {
			return true
		}
	}
	return false
}

// list adds the folders that what was found lies in.
func (w *walker) list() []entry {
	have := map[string]bool{}
	for _, e := range w.found {
		have[e.name] = true
	}
	for _, e := range slices.Clone(w.found) {
		for d := path.Dir(e.name); d != "." && !have[d]; d = path.Dir(d) {
			have[d] = true
			w.found = append(w.found, entry{name: d, kind: dirEntry})
		}
	}
	slices.SortFunc(w.found, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return w.found
}

// sums remembers the content of files that look unchanged, so that a context
// that many Dockerfiles share is read once.
var sums = struct {
	sync.Mutex
	of map[string]remembered
}{of: map[string]remembered{}}

type remembered struct {
	info fs.FileInfo
	sum  string
}

// settled is how old a file must be for its time of change to tell that it did
// not change: file systems count time coarsely.
const settled = 2 * time.Second

func sumOf(p string, fi fs.FileInfo) (string, error) {
	sums.Lock()
	r, ok := sums.of[p]
	sums.Unlock()
	if ok && os.SameFile(r.info, fi) && r.info.Size() == fi.Size() && r.info.ModTime().Equal(fi.ModTime()) {
		return r.sum, nil
	}
	at := time.Now()
	f, err := os.Open(p)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if at.Sub(fi.ModTime()) > settled {
		sums.Lock()
		sums.of[p] = remembered{fi, sum}
		sums.Unlock()
	}
	return sum, nil
}

// epoch is the time of every file of a context: what a build makes of equal
// content is equal.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// writeTar writes a context. A file that is not what it was is errChanged.
func writeTar(w io.Writer, root string, files []entry, add map[string][]byte) error {
	tw := tar.NewWriter(w)
	for _, f := range files {
		if _, replaced := add[f.name]; replaced {
			continue
		}
		if err := writeEntry(tw, root, f); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(add)) {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(add[name])), ModTime: epoch, Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(add[name]); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeEntry(tw *tar.Writer, root string, e entry) error {
	h := &tar.Header{Name: e.name, ModTime: epoch, Format: tar.FormatPAX, Mode: 0o755}
	switch e.kind {
	case dirEntry:
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		return tw.WriteHeader(h)
	case linkEntry:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return tw.WriteHeader(h)
	}
	h.Typeflag, h.Size = tar.TypeReg, e.size
	if !e.exec {
		h.Mode = 0o644
	}
	f, err := os.Open(filepath.Join(root, filepath.FromSlash(e.name)))
	if err != nil {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	defer func() { _ = f.Close() }()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(tw, sum), io.LimitReader(f, e.size))
	if err != nil {
		return err
	}
	if n != e.size || hex.EncodeToString(sum.Sum(nil)) != e.sum {
		return fmt.Errorf("%w: %s", errChanged, e.name)
	}
	return nil
}
