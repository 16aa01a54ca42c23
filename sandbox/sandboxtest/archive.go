package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// entry is one member of a test archive.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body))}, body}
}

func executable(name, body string) entry {
	e := file(name, body)
	e.Mode = 0o755
	return e
}

func dir(name string) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimSuffix(name, "/") + "/", Mode: 0o755}, ""}
}

func link(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func special(kind byte, name, target string) entry {
	return entry{tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o644}, ""}
}

// pack is the bytes of an archive.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Format = tar.FormatPAX
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tarOf(t testing.TB, entries ...entry) io.Reader {
	t.Helper()
	return bytes.NewReader(pack(t, entries...))
}

// manifest describes a tree: each path with type, permission bits, content or
// target.
type manifest map[string]string

func describe(h *tar.Header, body string) string {
	switch h.Typeflag {
	case tar.TypeDir:
		return "dir"
	case tar.TypeSymlink:
		return "link to " + h.Linkname
	case tar.TypeReg:
		return fmt.Sprintf("file %o %d bytes %s", h.Mode&0o777, len(body), digest([]byte(body)))
	default:
		return fmt.Sprintf("type %q to %q", h.Typeflag, h.Linkname)
	}
}

func manifestOf(entries ...entry) manifest {
	m := manifest{}
	for _, e := range entries {
		if p := path.Clean(e.Name); p != "." {
			m[p] = describe(&e.Header, e.body)
		}
	}
	return m
}

func (m manifest) diff(got manifest) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if got[k] != m[k] {
			fmt.Fprintf(&out, "\n  %q: got %q, want %q", k, got[k], m[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := m[k]; !ok {
			fmt.Fprintf(&out, "\n  %q: unexpected %q", k, got[k])
		}
	}
	return out.String()
}

// read is Get decoded into a manifest.
func (b *box) read(p string) (manifest, error) {
	var buf bytes.Buffer
	if err := b.d.Get(b.ctx, p, &buf); err != nil {
		return nil, err
	}
	m := manifest{}
	r := tar.NewReader(&buf)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not a clean archive: %w", err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if path.IsAbs(h.Name) || slices.Contains(strings.Split(h.Name, "/"), "..") {
			return nil, fmt.Errorf("an entry has the name %q", h.Name)
		}
		if name := path.Clean(h.Name); name != "." {
			m[name] = describe(h, string(body))
		}
	}
}

func (b *box) mustRead(p string) manifest {
	b.t.Helper()
	m, err := b.read(p)
	if err != nil {
		b.t.Fatalf("Get %s: %v", p, err)
	}
	return m
}

func (b *box) put(dir string, entries ...entry) {
	b.t.Helper()
	if err := b.d.Put(b.ctx, dir, tarOf(b.t, entries...)); err != nil {
		b.t.Fatalf("Put: %v", err)
	}
}

// missing reports whether a path is absent.
func (b *box) missing(p string) bool {
	b.t.Helper()
	err := b.d.Get(b.ctx, p, io.Discard)
	if err != nil && !isMissing(err) {
		b.t.Fatalf("Get %s: %v", p, err)
	}
	return err != nil
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// failingReader delivers a prefix and then fails.
type failingReader struct {
	r   io.Reader
	err error
}

func (f *failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

// failingWriter takes a number of bytes and then fails.
type failingWriter struct{ left int }

var errSinkFull = errors.New("the reader went away")

func (f *failingWriter) Write(p []byte) (int, error) {
	if len(p) > f.left {
		return f.left, errSinkFull
	}
	f.left -= len(p)
	return len(p), nil
}
