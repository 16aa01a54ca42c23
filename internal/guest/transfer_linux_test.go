package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

// entry is one line of a tar that a test makes.
type entry struct {
	name string
	kind byte
	body string
	link string
	mode int64
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.body)), Linkname: e.link, Mode: e.mode, Uid: 77, Gid: 77, ModTime: time.Unix(1e9, 0)}
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

// manifest describes a tree: name, type, mode, owner, content or target.
func manifest(t *testing.T, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		v := fmt.Sprintf("%v %d:%d", st.Mode(), sys.Uid, sys.Gid)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			v = "link " + target
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			v += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		rel, err := filepath.Rel(root, p)
		m[rel] = v
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openDir returns a directory that every user can enter, as t.TempDir is not.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTransferRoundTrip(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		uid, gid := os.Getuid(), os.Getgid()
		if uid == 0 {
			uid, gid = 12345, 23456
		}
		dir := openDir(t)
		names := []string{"a\nb", " x ", "-rf", "\u00e9", "e\u0301", "\xff", "$(touch x)", ".hidden", strings.Repeat("n", 200)}
		es := []entry{
			{name: "./", kind: tar.TypeDir, mode: 0o700},
			{name: "empty/", kind: tar.TypeDir, mode: 0o755},
			{name: "closed/", kind: tar.TypeDir, mode: 0o500},
			{name: "closed/file", body: "x", mode: 0o400},
			{name: "run.sh", body: "#!/bin/sh\n", mode: 0o6755},
			{name: "deep/er/file", body: strings.Repeat("0123456789", 50000)},
			{name: "none", body: ""},
			{name: "link", kind: tar.TypeSymlink, link: "/etc/passwd"},
			{name: "dangling", kind: tar.TypeSymlink, link: "../../no\xffwhere"},
			{name: "hard", kind: tar.TypeLink, link: "./deep/er/file"},
		}
		for _, n := range names {
			es = append(es, entry{name: n, body: "body of " + n})
		}
		target := filepath.Join(dir, "new", "target")
		got, err := g.Put(t.Context(), target, bytes.NewReader(archive(t, es...)), guest.PutOptions{UID: uint32(uid), GID: uint32(gid)})
		if err != nil || got.Entries != int64(len(es)) {
			t.Fatalf("put: %+v, %v", got, err)
		}
		m := manifest(t, dir)
		own := fmt.Sprintf(" %d:%d", uid, gid)
		for name, want := range map[string]string{
			"new": "drwxr-xr-x" + own, "new/target": "drwxr-xr-x" + own, "new/target/empty": "drwxr-xr-x" + own,
			"new/target/closed": "dr-x------" + own, "new/target/deep": "drwxr-xr-x" + own,
			"new/target/link": "link /etc/passwd", "new/target/dangling": "link ../../no\xffwhere",
		} {
			if m[name] != want {
				t.Errorf("%s: %q, want %q", name, m[name], want)
			}
		}
		if v := m["new/target/run.sh"]; !strings.HasPrefix(v, "-rwxr-xr-x"+own) {
			t.Errorf("run.sh: %q", v)
		}
		if m["new/target/hard"] != m["new/target/deep/er/file"] {
			t.Errorf("hard link: %q", m["new/target/hard"])
		}
		if len(m) != len(es)+4-1+1 { // dir, new, target, deep, er; "./" is target
			t.Errorf("%d files: %q", len(m), slices.Sorted(maps.Keys(m)))
		}

		var b bytes.Buffer
		back, err := g.Get(t.Context(), target, &b, guest.GetOptions{})
		if err != nil || len(back.Warnings) > 0 {
			t.Fatalf("get: %+v, %v", back, err)
		}
		again := filepath.Join(dir, "again")
		if _, err := g.Put(t.Context(), again, &b, guest.PutOptions{UID: uint32(uid), GID: uint32(gid)}); err != nil {
			t.Fatal(err)
		}
		if a, b := manifest(t, target), manifest(t, again); !maps.Equal(a, b) {
			t.Errorf("round trip:\n%q\n%q", a, b)
		}
		if st, err := os.Stat(filepath.Join(again, "none")); err != nil || st.ModTime().Unix() != 1e9 {
			t.Errorf("time: %v, %v", st, err)
		}
	})
}

func TestPutIntoStickyDirectory(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "switching users")
	g := guesttest.Start(t, true)
	dir := openDir(t)
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Put(t.Context(), dir, bytes.NewReader(archive(t, entry{name: "./", kind: tar.TypeDir, mode: 0o755}, entry{name: "f"})), guest.PutOptions{UID: 12345, GID: 12345}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o777 || st.Mode()&fs.ModeSticky == 0 {
		t.Errorf("the target's mode changed: %v, %v", st.Mode(), err)
	}
	if r := sh(t, g, "mv f g", func(r *guest.ExecRequest) { r.Dir, r.UID, r.GID = dir, 12345, 12345 }); r.Code != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestPutFollowsNoLink(t *testing.T) {
	g := guesttest.Start(t, false)
	dir, outside := openDir(t), openDir(t)
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "victim"), "up": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	own := guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	put := archive(
		t,
		entry{name: "dir/f", body: "in"}, entry{name: "file", body: "in"}, entry{name: "up/f", body: "in"},
		// A link of the archive itself is no way out either.
		entry{name: "sub", kind: tar.TypeSymlink, link: outside}, entry{name: "sub/f", body: "in"},
	)
	if _, err := g.Put(t.Context(), dir, bytes.NewReader(put), own); err != nil {
		t.Fatal(err)
	}
	if m := manifest(t, outside); len(m) != 1 {
		t.Errorf("outside: %q", m)
	}
	for _, name := range []string{"dir/f", "file", "up/f", "sub/f"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "in" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if st, err := os.Lstat(filepath.Join(dir, filepath.Dir(name))); err != nil || !st.IsDir() {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

func TestPutRefuses(t *testing.T) {
	g := guesttest.Start(t, false)
	own := guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	limited := own
	limited.MaxBytes, limited.MaxEntries = 10, 2
	secret := filepath.Join(openDir(t), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole := archive(t, entry{name: "a", body: strings.Repeat("x", 5000)}, entry{name: "b", body: strings.Repeat("y", 5000)})
	tests := []struct {
		name    string
		tar     []byte
		o       guest.PutOptions
		code    string
		mention string
	}{
		{"climb", archive(t, entry{name: "../evil"}), own, guest.CodeArchive, `"../evil"`},
		{"climb inside", archive(t, entry{name: "a/../../evil"}), own, guest.CodeArchive, `"a/../../evil"`},
		{"absolute", archive(t, entry{name: "/tmp/evil"}), own, guest.CodeArchive, `"/tmp/evil"`},
		{"fifo", archive(t, entry{name: "pipe", kind: tar.TypeFifo}), own, guest.CodeArchive, `"pipe"`},
		{"device", archive(t, entry{name: "null", kind: tar.TypeChar}), own, guest.CodeArchive, `"null"`},
		{"hard link outside", archive(t, entry{name: "h", kind: tar.TypeLink, link: secret}), own, guest.CodeArchive, `"h"`},
		{"hard link to a stranger", archive(t, entry{name: "h", kind: tar.TypeLink, link: "old"}), own, guest.CodeArchive, `"h"`},
		{"hard link to a link", archive(t, entry{name: "l", kind: tar.TypeSymlink, link: secret}, entry{name: "h", kind: tar.TypeLink, link: "l"}), own, guest.CodeArchive, `"h"`},
		{"bytes", archive(t, entry{name: "big", body: "0123456789a"}), limited, guest.CodeTooLarge, `"big"`},
		{"entries", archive(t, entry{name: "1"}, entry{name: "2"}, entry{name: "three"}), limited, guest.CodeTooLarge, `"three"`},
		{"long name", archive(t, entry{name: strings.Repeat("n", 300)}), own, guest.CodeTooLarge, "nnn"},
		{"file as directory", archive(t, entry{name: "old/f"}), own, guest.CodeNotDirectory, `"old/f"`},
		{"directory as file", archive(t, entry{name: "olddir"}), own, guest.CodeIsDirectory, `"olddir"`},
		{"cut in a file", whole[:3000], own, guest.CodeArchive, "unexpected EOF"},
		{"cut between files", whole[:512+5120], own, guest.CodeArchive, "unexpected EOF"},
		{"nothing", nil, own, guest.CodeArchive, "unexpected EOF"},
		{"no tar", bytes.Repeat([]byte("junk"), 1000), own, guest.CodeArchive, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := openDir(t)
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "old"), nil, 0o644), os.Mkdir(filepath.Join(dir, "olddir"), 0o755)); err != nil {
				t.Fatal(err)
			}
			_, err := g.Put(t.Context(), dir, bytes.NewReader(tt.tar), tt.o)
			if fault.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.mention) {
				t.Errorf("err = %v (%s), want %s", err, fault.CodeOf(err), tt.code)
			}
			for name := range manifest(t, dir) {
				if strings.Contains(name, ".~") {
					t.Errorf("left over: %s", name)
				}
			}
			if tt.name == "cut in a file" {
				if _, err := os.Lstat(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a partial file has its final name: %v", err)
				}
			}
		})
	}
	if err := g.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPutCancelAndFailingReader(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	own := guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	head := archive(t, entry{name: "f", body: strings.Repeat("x", 1<<20)})[:1<<19]
	ctx, cancel := context.WithCancelCause(t.Context())
	why, boom := errors.New("enough"), errors.New("boom")
	_, err := g.Put(ctx, dir, io.MultiReader(bytes.NewReader(head), readerFunc(func([]byte) (int, error) {
		cancel(why)
		<-ctx.Done()
		return 0, nil
	})), own)
	if !errors.Is(err, why) {
		t.Errorf("err = %v", err)
	}
	_, err = g.Put(t.Context(), dir, io.MultiReader(bytes.NewReader(head), errReader{boom}), own)
	if !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	if m := manifest(t, dir); len(m) != 1 {
		t.Errorf("left over: %q", m)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTransferSparse(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	name := filepath.Join(dir, "sparse")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	_, err = f.WriteAt([]byte("middle"), size/2+1)
	if err := errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := g.Get(context.Background(), name, w, guest.GetOptions{})
		w.CloseWithError(err)
		done <- err
	}()
	got, err := g.Put(t.Context(), filepath.Join(dir, "copy"), r, guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	if err := errors.Join(err, <-done); err != nil || got.Bytes != size {
		t.Fatal(got, err)
	}
	a, err1 := os.ReadFile(name)
	b, err2 := os.ReadFile(filepath.Join(dir, "copy", "sparse"))
	if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
		t.Fatal("contents differ", err1, err2)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "copy", "sparse"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes on disk, %v", st.Blocks*512, err)
	}
	if _, err := g.Get(t.Context(), name, io.Discard, guest.GetOptions{MaxBytes: 1 << 20}); fault.CodeOf(err) != guest.CodeTooLarge {
		t.Errorf("err = %v", err)
	}
}

func TestGet(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "tree/node_modules/x"), 0o755))
	must(os.MkdirAll(filepath.Join(dir, "tree/sub/node_modules"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "tree/f"), []byte("content"), 0o640))
	must(os.Symlink("/etc", filepath.Join(dir, "tree/etc")))
	must(syscall.Mkfifo(filepath.Join(dir, "tree/pipe"), 0o644))
	must(os.Symlink("tree/f", filepath.Join(dir, "link")))
	must(os.Symlink("tree", filepath.Join(dir, "dirlink")))
	tests := []struct {
		name  string
		path  string
		o     guest.GetOptions
		names string
		code  string
		warns int
	}{
		{"file", "tree/f", guest.GetOptions{}, "f", "", 0},
		{"link", "link", guest.GetOptions{}, "link", "", 0},
		{"followed link", "link", guest.GetOptions{Follow: true}, "link", "", 0},
		{"tree", "tree", guest.GetOptions{}, "./ ./etc ./f ./node_modules/ ./node_modules/x/ ./sub/ ./sub/node_modules/", "", 1},
		{"ignore", "tree", guest.GetOptions{Ignore: []string{"node_modules", "pipe"}}, "./ ./etc ./f ./sub/", "", 0},
		{"directory link", "dirlink", guest.GetOptions{}, "dirlink", "", 0},
		{"followed directory link", "dirlink", guest.GetOptions{Follow: true, Ignore: []string{"node_modules", "pipe", "sub", "etc"}}, "./ ./f", "", 0},
		{"missing", "no", guest.GetOptions{}, "", guest.CodeNotFound, 0},
		{"below a file", "tree/f/x", guest.GetOptions{}, "", guest.CodeNotFound, 0},
		{"directory for a file", "tree", guest.GetOptions{File: true}, "", guest.CodeIsDirectory, 0},
		{"too large", "tree", guest.GetOptions{MaxBytes: 6}, "", guest.CodeTooLarge, 0},
		{"fifo", "tree/pipe", guest.GetOptions{}, "", guest.CodeOther, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			got, err := g.Get(t.Context(), filepath.Join(dir, tt.path), &b, tt.o)
			if fault.CodeOf(err) != tt.code {
				t.Fatalf("err = %v", err)
			}
			if errors.Is(err, fs.ErrNotExist) != (tt.code == guest.CodeNotFound) {
				t.Errorf("not-found is wrong for %v", err)
			}
			var names []string
			r := tar.NewReader(&b)
			for tt.code == "" {
				h, err := r.Next()
				if err == io.EOF {
					break
				}
				must(err)
				names = append(names, h.Name)
				if body, err := io.ReadAll(r); err != nil || h.Typeflag == tar.TypeReg && string(body) != "content" {
					t.Errorf("%s: %q, %v", h.Name, body, err)
				}
			}
			if strings.Join(names, " ") != tt.names || len(got.Warnings) != tt.warns {
				t.Errorf("got %q, %q", names, got.Warnings)
			}
		})
	}
	boom := errors.New("boom")
	if _, err := g.Get(t.Context(), filepath.Join(dir, "tree"), errWriter{boom}, guest.GetOptions{}); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := g.Get(ctx, "/usr", writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), guest.GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestGetPermission(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "switching users")
	dir := openDir(t)
	if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := guesttest.StartCommand(t, false, "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", guesttest.Build(t), "--init")
	_, err := g.Get(t.Context(), filepath.Join(dir, "secret"), io.Discard, guest.GetOptions{})
	if fault.CodeOf(err) != guest.CodePermission || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("err = %v", err)
	}
	_, err = g.Put(t.Context(), dir, bytes.NewReader(archive(t, entry{name: "f"})), guest.PutOptions{UID: 12345, GID: 12345})
	if fault.CodeOf(err) != guest.CodePermission {
		t.Errorf("err = %v", err)
	}
	// The rest works without privileges too.
	if r := sh(t, g, "id -u", func(r *guest.ExecRequest) { r.UID, r.GID = 12345, 12345 }); r.out != "12345\n" {
		t.Errorf("got %+v", r)
	}
	if _, err := trySh(t.Context(), g, "id -u"); fault.CodeOf(err) != guest.CodeNoSwitch {
		t.Errorf("switching to root: %v", err)
	}
}

func TestPutManyFiles(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	es := make([]entry, 0, 5000)
	for i := range 5000 {
		es = append(es, entry{name: fmt.Sprintf("d%d/f%d", i%50, i), body: "x"})
	}
	got, err := g.Put(t.Context(), dir, bytes.NewReader(archive(t, es...)), guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	if err != nil || got.Entries != 5000 || got.Bytes != 5000 {
		t.Errorf("got %+v, %v", got, err)
	}
	back, err := g.Get(t.Context(), dir, io.Discard, guest.GetOptions{})
	if err != nil || back.Entries != 5051 || back.Bytes != 5000 {
		t.Errorf("got %+v, %v", back, err)
	}
}

// The guest's answer may arrive before the sender has said that it is done.
func TestPutsThatAreAnsweredAtOnce(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := t.TempDir()
	for range 2000 {
		if _, err := g.Put(t.Context(), dir, bytes.NewReader(make([]byte, 1024)), guest.PutOptions{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}); err != nil {
			t.Fatal(err)
		}
	}
}
