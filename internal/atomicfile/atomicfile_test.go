package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var errInjected = errors.New("injected")

// count runs op without faults and returns how many steps it takes.
func count(t *testing.T, op func(d *Disk) error) int {
	t.Helper()
	n := 0
	if err := op(&Disk{Fault: func(Step, string) error { n++; return nil }}); err != nil {
		t.Fatal(err)
	}
	return n
}

// failing returns a disk whose n-th step fails.
func failing(n int) *Disk {
	return &Disk{Fault: func(Step, string) error {
		if n--; n == 0 {
			return errInjected
		}
		return nil
	}}
}

func TestReplaceKeepsTheOldFileWhenAnyStepFails(t *testing.T) {
	dir := t.TempDir()
	steps := count(t, func(d *Disk) error { return d.Replace(filepath.Join(dir, "counted"), []byte("x")) })
	if steps != 5 {
		t.Fatalf("Replace takes %d steps, want create, write, sync, rename, syncdir", steps)
	}
	for n := 1; n <= steps; n++ {
		sub := t.TempDir()
		path := filepath.Join(sub, "f")
		if err := (&Disk{}).Replace(path, []byte("old")); err != nil {
			t.Fatal(err)
		}
		err := failing(n).Replace(path, []byte("new content"))
		if !errors.Is(err, errInjected) {
			t.Fatalf("step %d: error %v", n, err)
		}
		got, rerr := os.ReadFile(path)
		if rerr != nil || string(got) != "old" && (n < steps || string(got) != "new content") {
			t.Errorf("step %d: file holds %q, %v", n, got, rerr)
		}
		if entries, _ := os.ReadDir(sub); len(entries) != 1 {
			t.Errorf("step %d: left %v", n, entries)
		}
	}
}

func TestPublishLeavesNothingWhenAnyStepFails(t *testing.T) {
	files := []File{{"a", []byte("aa")}, {"b", []byte("bb")}}
	steps := count(t, func(d *Disk) error {
		dir := t.TempDir()
		return d.Publish(filepath.Join(dir, "stage"), filepath.Join(dir, "target"), files, "sub")
	})
	for n := 1; n <= steps; n++ {
		dir := t.TempDir()
		err := failing(n).Publish(filepath.Join(dir, "stage"), filepath.Join(dir, "target"), files, "sub")
		if !errors.Is(err, errInjected) {
			t.Fatalf("step %d of %d: error %v", n, steps, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("step %d of %d: left %v", n, steps, entries)
		}
	}
}

func TestPublishNeverReplaces(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.Mkdir(target, 0o700); err != nil { // empty: rename(2) alone would replace it
		t.Fatal(err)
	}
	err := (&Disk{}).Publish(filepath.Join(dir, "stage"), target, []File{{"a", nil}})
	if !errors.Is(err, fs.ErrExist) {
		t.Fatalf("error %v, want ErrExist", err)
	}
	if entries, _ := os.ReadDir(target); len(entries) != 0 {
		t.Errorf("target holds %v", entries)
	}
}

func TestAppendCutsBackWhatItCouldNotWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := (&Disk{}).Append(path, []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ { // write, sync
		if err := failing(n).Append(path, []byte("two two two\n")); !errors.Is(err, errInjected) {
			t.Fatalf("step %d: error %v", n, err)
		}
		if got, _ := os.ReadFile(path); string(got) != "one\n" {
			t.Errorf("step %d: file holds %q", n, got)
		}
	}
	if err := (&Disk{}).Append(path, []byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "one\nthree\n" {
		t.Errorf("file holds %q", got)
	}
}

func TestModesAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	d := &Disk{}
	if err := d.Publish(filepath.Join(dir, "stage"), filepath.Join(dir, "t"), []File{{"a", nil}}, "sub"); err != nil {
		t.Fatal(err)
	}
	if err := d.Replace(filepath.Join(dir, "t", "r"), nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"t": 0o700, "t/sub": 0o700, "t/a": 0o600, "t/r": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestSyncDirIsSharedAndEachCallerGetsASyncThatBeganAfterIt(t *testing.T) {
	dir := t.TempDir()
	first := make(chan struct{})
	release := make(chan struct{})
	syncs := 0 // only one sync runs at a time
	d := &Disk{}
	d.Fault = func(Step, string) error {
		syncs++
		if syncs == 1 {
			close(first)
			<-release
		}
		return nil
	}
	var wg sync.WaitGroup
	call := func() {
		if err := d.SyncDir(dir); err != nil {
			t.Error(err)
		}
	}
	wg.Go(call)
	<-first
	const late = 20
	for range late { // all come after the first sync began: it must not serve them
		wg.Go(call)
	}
	waitUsers(t, d, dir, late+1)
	close(release)
	wg.Wait()
	if syncs < 2 || syncs > late/2 {
		t.Errorf("%d syncs for 1 + %d callers, want 2 or a few more for stragglers", syncs, late)
	}
	if len(d.dirs) != 0 {
		t.Errorf("%d folders are still held", len(d.dirs))
	}
}

// waitUsers returns once n calls are inside SyncDir.
func waitUsers(t *testing.T, d *Disk, dir string, n int) {
	t.Helper()
	for range 10_000 {
		d.mu.Lock()
		users := d.dirs[dir].users
		d.mu.Unlock()
		if users == n {
			return
		}
		time.Sleep(time.Millisecond) // polls a state; nothing is ordered by it
	}
	t.Fatal("the callers never arrived")
}

func BenchmarkPublish(b *testing.B) {
	dir := b.TempDir()
	d := &Disk{}
	data := make([]byte, 4096)
	files := []File{{"attempt.json", data}, {"commands.ndjson", data}, {"diff.json", data}, {"events.ndjson", data}}
	n := 0
	for b.Loop() {
		n++
		if err := d.Publish(filepath.Join(dir, "stage"), filepath.Join(dir, fmt.Sprint(n)), files); err != nil {
			b.Fatal(err)
		}
	}
}
