package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"assay/fault"
	"assay/internal/archive"
)

type entry struct {
	kind byte
	name string
	link string
	mode int64
	body string
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Mode: e.mode, Format: tar.FormatPAX, Uid: 4711}
		if e.kind == tar.TypeReg {
			h.Size = int64(len(e.body))
		}
		if err := w.WriteHeader(h); err != nil {
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

// extract unpacks into a directory inside of a fresh one, with a victim beside
// it, and returns both.
func extract(t *testing.T, stream []byte, lim archive.Limits, ignore ...string) (outer string, st archive.Stats, err error) {
	t.Helper()
	outer = t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(outer, "in"), 0o755), os.WriteFile(filepath.Join(outer, "victim"), []byte("untouched"), 0o644)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(outer, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	st, err = archive.ExtractIgnoring(bytes.NewReader(stream), root, lim, ignore)
	return outer, st, err
}

func TestExtractRefusesHostileEntries(t *testing.T) {
	reg := func(name string) entry { return entry{tar.TypeReg, name, "", 0o644, "evil"} }
	for _, c := range []struct {
		name    string
		entries []entry
	}{
		{"parent", []entry{reg("../victim")}},
		{"hidden parent", []entry{reg("a/../../victim")}},
		{"absolute", []entry{reg("/tmp/victim")}},
		{"through a link", []entry{{tar.TypeSymlink, "l", "..", 0, ""}, reg("l/victim")}},
		{"through a deep link", []entry{{tar.TypeDir, "d/", "", 0o755, ""}, {tar.TypeSymlink, "d/l", "../..", 0, ""}, reg("d/l/victim")}},
		{"onto a link", []entry{{tar.TypeSymlink, "l", "../victim", 0, ""}, reg("l")}},
		{"directory onto a link", []entry{{tar.TypeSymlink, "l", "..", 0, ""}, {tar.TypeDir, "l/", "", 0o777, ""}}},
		{"hard link outside", []entry{{tar.TypeLink, "h", "../victim", 0, ""}}},
		{"hard link to a link", []entry{{tar.TypeSymlink, "l", "../victim", 0, ""}, {tar.TypeLink, "h", "l", 0, ""}}},
		{"hard link before its target", []entry{{tar.TypeLink, "h", "f", 0, ""}, reg("f")}},
		{"twice", []entry{reg("f"), reg("f")}},
		{"FIFO", []entry{{tar.TypeFifo, "p", "", 0o644, ""}}},
		{"device", []entry{{tar.TypeChar, "c", "", 0o644, ""}}},
		{"below a file", []entry{reg("f"), reg("f/g")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			outer, _, err := extract(t, pack(t, c.entries...), archive.Limits{})
			if fault.CodeOf(err) != "archive-entry-refused" {
				t.Errorf("got %v", err)
			}
			if b, rerr := os.ReadFile(filepath.Join(outer, "victim")); rerr != nil || string(b) != "untouched" {
				t.Errorf("the file outside is %q, %v", b, rerr)
			}
			if left, _ := os.ReadDir(outer); len(left) != 2 {
				t.Errorf("beside the target there is now %v", left)
			}
		})
	}
}

func TestExtractLimits(t *testing.T) {
	many := make([]entry, 5)
	for i := range many {
		many[i] = entry{tar.TypeReg, strings.Repeat("x", i+1), "", 0o644, "12345"}
	}
	for name, lim := range map[string]archive.Limits{
		"bytes": {Bytes: 24}, "file": {File: 4}, "entries": {Entries: 4}, "path": {Path: 4}, "none": {Bytes: 25, File: 5, Entries: 5, Path: 5},
	} {
		_, st, err := extract(t, pack(t, many...), lim)
		if name == "none" && (err != nil || st.Files != 5 || st.Bytes != 25) || name != "none" && fault.CodeOf(err) != "archive-entry-refused" {
			t.Errorf("limit %s: %+v, %v", name, st, err)
		}
	}
	deep := pack(t, entry{tar.TypeReg, strings.Repeat("d/", 10) + "f", "", 0o644, "1"})
	if _, _, err := extract(t, deep, archive.Limits{Depth: 10}); fault.CodeOf(err) != "archive-entry-refused" {
		t.Errorf("depth: %v", err)
	}
	if _, _, err := extract(t, deep, archive.Limits{Depth: 11}); err != nil {
		t.Errorf("depth that is allowed: %v", err)
	}
}

func TestExtractModesAndIgnore(t *testing.T) {
	stream := pack(t,
		entry{tar.TypeDir, "ro/", "", 0o555, ""}, entry{tar.TypeReg, "ro/f", "", 0o4755, "1"},
		entry{tar.TypeDir, "node_modules/", "", 0o755, ""}, entry{tar.TypeReg, "node_modules/x", "", 0o644, "1"},
		entry{tar.TypeReg, "a/node_modules/y", "", 0o644, "1"}, entry{tar.TypeSymlink, "l", "nowhere", 0, ""}, entry{tar.TypeLink, "h", "ro/f", 0, ""})
	outer, st, err := extract(t, stream, archive.Limits{}, "node_modules")
	if err != nil || st.Files != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	in := filepath.Join(outer, "in")
	f, err := os.Stat(in + "/ro/f")
	if err != nil || f.Mode() != 0o755 {
		t.Errorf("mode 4755 became %v, %v", f.Mode(), err)
	}
	if d, err := os.Stat(in + "/ro"); err != nil || d.Mode().Perm() != 0o755 {
		t.Errorf("a read-only folder became %v, %v", d.Mode(), err)
	}
	for _, p := range []string{"node_modules", "a"} {
		if _, err := os.Lstat(filepath.Join(in, p)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if h, err := os.Stat(in + "/h"); err != nil || !os.SameFile(f, h) {
		t.Errorf("a hard link inside of the archive: %v", err)
	}
}

func TestExtractCutStream(t *testing.T) {
	whole := pack(t, entry{tar.TypeReg, "f", "", 0o644, strings.Repeat("x", 5000)})
	for _, at := range []int{100, 512, 1000, 5000} {
		if _, _, err := extract(t, whole[:at], archive.Limits{}); err == nil {
			t.Errorf("a stream cut after %d bytes was accepted", at)
		}
	}
}

func TestPackDirRoundTrip(t *testing.T) {
	src := t.TempDir()
	names := []string{"a\nb", " x ", "-rf", "caf\u00e9", "cafe\u0301 2", "bad\xff", ".dot"}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(src, n), []byte(n), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(src+"/hollow", 0o755), os.Symlink("-rf", src+"/l"), os.Mkdir(src+"/skip", 0o755), os.WriteFile(src+"/skip/f", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	st, err := archive.PackDir(&b, src, archive.PackOptions{Ignore: []string{"skip"}, Prefix: "pre"})
	if err != nil || st.Files != len(names) {
		t.Fatalf("%+v, %v", st, err)
	}
	outer, _, err := extract(t, b.Bytes(), archive.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		p := filepath.Join(outer, "in/pre", n)
		body, err := os.ReadFile(p)
		info, serr := os.Stat(p)
		if err != nil || serr != nil || string(body) != n || info.Mode() != 0o640 {
			t.Errorf("%q came back as %q, %v, %v", n, body, info, err)
		}
	}
	if got, err := os.Readlink(filepath.Join(outer, "in/pre/l")); err != nil || got != "-rf" {
		t.Errorf("a link came back as %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(outer, "in/pre/hollow")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outer, "in/pre/skip")); err == nil {
		t.Error("an ignored folder travelled")
	}
}

func TestPackRefusals(t *testing.T) {
	src := t.TempDir()
	for name, c := range map[string]struct {
		make func(p string) error
		code string
	}{
		"relative link out": {func(p string) error { return os.Symlink("../../x", p) }, "symlink-escapes"},
		"absolute link out": {func(p string) error { return os.Symlink("/etc/passwd", p) }, "symlink-escapes"},
		"sibling by prefix": {func(p string) error { return os.Symlink("../"+filepath.Base(src)+"-evil/x", p) }, "symlink-escapes"},
		"pipe":              {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "not-a-regular-file"},
	} {
		p := filepath.Join(src, "entry")
		if err := c.make(p); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.PackDir(io.Discard, src, archive.PackOptions{}); fault.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := archive.PackDir(io.Discard, src+"/missing", archive.PackOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
	if _, err := archive.PackOne(io.Discard, src, "x"); fault.CodeOf(err) != "not-a-regular-file" {
		t.Errorf("a folder as one file: %v", err)
	}
}

// FuzzExtract feeds any stream: nothing outside of the target may change.
func FuzzExtract(f *testing.F) {
	f.Add(pack(f, entry{tar.TypeReg, "../victim", "", 0o644, "evil"}))
	f.Add(pack(f, entry{tar.TypeSymlink, "l", "..", 0, ""}, entry{tar.TypeReg, "l/victim", "", 0o644, "evil"}))
	f.Add(pack(f, entry{tar.TypeDir, "d/", "", 0o700, ""}, entry{tar.TypeReg, "d/f", "", 0o777, "1"}, entry{tar.TypeLink, "h", "d/f", 0, ""}))
	f.Fuzz(func(t *testing.T, stream []byte) {
		outer, _, _ := extract(t, stream, archive.Limits{Bytes: 1 << 20, Entries: 100})
		if b, err := os.ReadFile(filepath.Join(outer, "victim")); err != nil || string(b) != "untouched" {
			t.Errorf("the file outside is %q, %v", b, err)
		}
		if left, _ := os.ReadDir(outer); len(left) != 2 {
			t.Errorf("beside the target there is now %v", left)
		}
	})
}
