//go:build unix

package snapshot

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func askDrift(t *testing.T, q DriftQuery) Drift {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "work")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	req, err := Request{Op: OpDrift, Root: root, Store: filepath.Join(dir, "store"), Drift: q}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Serve(context.Background(), req, &out); err != nil {
		t.Fatal(err)
	}
	res, err := DecodeResponse(&out)
	if err != nil {
		t.Fatal(err)
	}
	if res.Drift.At == 0 {
		t.Fatal("the answer has no time")
	}
	return res.Drift
}

func TestDrift(t *testing.T) {
	home, lib := t.TempDir(), t.TempDir()
	put := func(p string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(home, "old"))
	put(filepath.Join(home, "work/task"))
	put(filepath.Join(lib, "a/b/c/old"))
	// Change times are the kernel's: the moment asked for must be a later tick.
	since := tick(t)
	if d := askDrift(t, DriftQuery{Since: since, Dirs: []DriftDir{{Path: home}, {Path: lib, Depth: 2}, {Path: "/is/not/there"}}}); d.Changed != 0 || len(d.Paths) != 0 || d.Partial {
		t.Fatalf("nothing changed, but %+v", d)
	}
	put(filepath.Join(home, ".config/tool"))
	put(filepath.Join(home, "work/task")) // the working tree has a proof of its own
	put(filepath.Join(lib, "a/b/c/new"))  // too deep to be seen, and it changes only c
	put(filepath.Join(lib, "a/new"))      // seen, and so is the changed a
	if err := os.Symlink("old", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	d := askDrift(t, DriftQuery{Since: since, Dirs: []DriftDir{{Path: home}, {Path: lib, Depth: 2}}, Skip: []string{filepath.Join(home, "work")}})
	var got []string
	for _, p := range d.Paths {
		rel := strings.TrimPrefix(strings.TrimPrefix(string(p), home+"/"), lib+"/")
		got = append(got, rel)
	}
	slices.Sort(got)
	if want := []string{".config/tool", "a", "a/new", "link"}; !slices.Equal(got, want) || d.Changed != 4 {
		t.Errorf("changed %d: %v, want %v", d.Changed, got, want)
	}
}

// tick returns a moment after everything before it, by the clock of the file
// system.
func tick(t *testing.T) int64 {
	t.Helper()
	f := filepath.Join(t.TempDir(), "tick")
	at := func() int64 {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(f, time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
		tree, err := OpenTree(filepath.Dir(f))
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		facts, err := tree.Lstat("tick")
		if err != nil {
			t.Fatal(err)
		}
		return facts.ChangeTime
	}
	first := at()
	for {
		if now := at(); now > first {
			return now - 1
		}
	}
}

func TestDriftOfADirectoryItself(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	since := tick(t)
	ask := func() Drift { return askDrift(t, DriftQuery{Since: since, Dirs: []DriftDir{{Path: dir, Depth: -1}}}) }
	if d := ask(); d.Changed != 0 {
		t.Errorf("nothing changed, but %+v", d)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if d := ask(); d.Changed != 1 || string(d.Paths[0]) != dir {
		t.Errorf("a file was added: %+v", d)
	}
}

func TestDriftIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range driftPaths + 20 {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("x", i+1)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := askDrift(t, DriftQuery{Since: 1, Dirs: []DriftDir{{Path: dir}}})
	if d.Changed != driftPaths+20 || len(d.Paths) != driftPaths {
		t.Errorf("%d changed, %d named", d.Changed, len(d.Paths))
	}
}

func TestDriftSeesListeners(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED, needs linux: /proc/net/tcp")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if d := askDrift(t, DriftQuery{}); !slices.Contains(d.Ports, port) {
		t.Errorf("port %d listens, seen are %v", port, d.Ports)
	}
	l.Close()
	if d := askDrift(t, DriftQuery{}); slices.Contains(d.Ports, port) {
		t.Errorf("port %d is closed and still seen", port)
	}
}
