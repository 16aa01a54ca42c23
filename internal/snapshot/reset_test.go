package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"assay/fault"
	"assay/internal/testreq"
)

// seed makes a tree with one of everything a mark has to keep.
func (b *bench) seed() {
	b.Helper()
	for _, p := range []string{"a.txt", "dir/b.txt", "dir/deep/c.txt", "ro/d.txt", "run.sh", "\xff\nname", "other/e.txt"} {
		b.write(p, "content of "+p)
	}
	b.must(os.Symlink("a.txt", b.path("link")))
	b.must(os.Symlink("/etc", b.path("etc")))
	b.must(os.Mkdir(b.path("empty"), 0o750))
	b.must(unix.Chmod(b.path("run.sh"), 0o4755))
	b.must(os.Chmod(b.path("dir/b.txt"), 0o640))
	b.must(os.Chmod(b.path("ro"), 0o555))
	b.must(unix.Chmod(b.path("other"), 0o1777))
	b.write("node_modules/dep/index.js", "cache")
	b.write(".git/HEAD", "ref: refs/heads/main\n")
}

// tricks are what an agent can leave behind. A trick must change the tree.
var tricks = map[string]func(b *bench){
	"edit":                 func(b *bench) { b.write("a.txt", "other") },
	"same size":            func(b *bench) { b.write("a.txt", "CONTENT OF a.txt") },
	"delete":               func(b *bench) { b.must(os.RemoveAll(b.path("dir"))) },
	"add":                  func(b *bench) { b.write("new/deep/er/file", "x"); b.write("dir/new", "x") },
	"empty dirs":           func(b *bench) { b.must(os.MkdirAll(b.path("n1/n2"), 0o755)); b.must(os.Remove(b.path("empty"))) },
	"mode":                 func(b *bench) { b.must(os.Chmod(b.path("a.txt"), 0o777)) },
	"mode git cannot tell": func(b *bench) { b.must(os.Chmod(b.path("dir/b.txt"), 0o600)) },
	"setuid":               func(b *bench) { b.must(os.Chmod(b.path("run.sh"), 0o755)) },
	"closed dirs": func(b *bench) {
		b.must(os.Chmod(b.path("dir/deep"), 0))
		b.must(os.Chmod(b.path("dir"), 0o311))
		b.must(os.Chmod(b.root, 0))
	},
	"closed file": func(b *bench) { b.must(os.Chmod(b.path("a.txt"), 0)) },
	"read-only": func(b *bench) {
		b.must(os.Chmod(b.path("ro"), 0o755))
		b.write("ro/new", "x")
		b.must(os.Remove(b.path("ro/d.txt")))
		b.must(os.Chmod(b.path("ro"), 0o500))
	},
	"file to dir": func(b *bench) {
		b.must(os.Remove(b.path("a.txt")))
		b.write("a.txt/in/side", "x")
		b.write("a.txt/node_modules/x", "x")
	},
	"dir to file": func(b *bench) { b.must(os.RemoveAll(b.path("dir"))); b.write("dir", "x") },
	"dir to link": func(b *bench) { b.must(os.RemoveAll(b.path("dir"))); b.must(os.Symlink("other", b.path("dir"))) },
	"link to dir": func(b *bench) {
		b.must(os.Remove(b.path("link")))
		b.must(os.Mkdir(b.path("link"), 0o755))
		b.write("link/x", "x")
	},
	"file to link": func(b *bench) { b.must(os.Remove(b.path("a.txt"))); b.must(os.Symlink("run.sh", b.path("a.txt"))) },
	"link target":  func(b *bench) { b.must(os.Remove(b.path("etc"))); b.must(os.Symlink("/", b.path("etc"))) },
	"fifo": func(b *bench) {
		b.must(os.Remove(b.path("a.txt")))
		b.must(unix.Mkfifo(b.path("a.txt"), 0o644))
		b.must(unix.Mkfifo(b.path("p"), 0o644))
	},
	"socket":    func(b *bench) { b.must(unix.Mknod(b.path("dir/s"), unix.S_IFSOCK|0o644, 0)) },
	"hard link": func(b *bench) { b.must(os.Link(b.path("a.txt"), b.path("second"))); b.write("second", "changed both") },
	"repository": func(b *bench) {
		b.write("clone/.git/HEAD", "x")
		b.write("clone/f", "x")
		b.write("dir/.git", "gitdir: x")
	},
	"odd names": func(b *bench) {
		for _, n := range oddNames {
			b.write("odd"+n+"/"+n, "x")
		}
	},
	"case": func(b *bench) { b.write("A.TXT", "x"); b.write("DIR/B.txt", "x") },
	"root": func(b *bench) { b.must(os.Chmod(b.path("ro"), 0o755)); b.must(os.RemoveAll(b.root)); b.write("x", "x") },
	"owner": func(b *bench) {
		if os.Geteuid() == 0 {
			for _, p := range []string{"a.txt", "dir", "run.sh", "link"} {
				b.must(os.Lchown(b.path(p), 1234, 4321))
			}
		}
		b.must(os.Chmod(b.path("run.sh"), 0o755))
	},
}

func TestReset(t *testing.T) {
	for name, trick := range tricks {
		t.Run(name, func(t *testing.T) { checkReset(t, trick) })
	}
}

func checkReset(t *testing.T, trick func(*bench)) {
	b := newBench(t)
	b.seed()
	want := manifest(t, b.root)
	base := b.mark()
	trick(b)
	// A window between the trick and the reset must not matter; it may fail.
	_, _ = b.try(Request{Op: OpCommit, Author: Agent, Label: "turn1", AllowEmpty: true})
	res := b.do(Request{Op: OpReset, Commit: base.ID})
	if res.Tree != base.Tree || res.Stats.Written+res.Stats.Removed+res.Stats.Adjusted == 0 {
		t.Errorf("answer %+v", res)
	}
	got := manifest(t, b.root)
	if d := diffLines(want, got); d != "" && !strings.Contains(t.Name(), "/root") {
		t.Errorf("not restored:\n%s", d)
	}
	if again := b.do(Request{Op: OpReset, Commit: base.ID}).Stats; again.Written+again.Removed+again.Adjusted != 0 {
		t.Errorf("a second reset still had work: %+v", again)
	}
}

func TestResetKeepsWhatIsExcluded(t *testing.T) {
	b := newBench(t)
	b.seed()
	base := b.mark("cache/**", "/tmp-clone")
	kept := []string{"node_modules/new/x.js", ".git/objects/x", "cache/big", "tmp-clone/.git/HEAD", "new/node_modules/y"}
	for _, p := range kept {
		b.write(p, "kept")
	}
	b.write("new/gone", "x")
	b.do(Request{Op: OpReset, Commit: base.ID})
	for _, p := range kept {
		if _, err := os.Lstat(b.path(p)); err != nil {
			t.Errorf("%s did not survive: %v", p, err)
		}
	}
	if _, err := os.Lstat(b.path("new/gone")); err == nil {
		t.Error("new/gone is still there")
	}
}

func TestResetNeverLeavesTheTree(t *testing.T) {
	b := newBench(t)
	b.seed()
	base := b.mark()
	outside := t.TempDir()
	for _, p := range []string{"b.txt", "deep", "keep"} {
		b.must(os.WriteFile(filepath.Join(outside, p), []byte("outside"), 0o644))
	}
	want := manifest(t, outside)
	b.must(os.RemoveAll(b.path("dir")))
	b.must(os.Symlink(outside, b.path("dir")))
	b.must(os.Symlink(outside, b.path("new")))
	b.must(os.Remove(b.path("a.txt")))
	b.must(os.Link(outside+"/keep", b.path("a.txt")))
	b.do(Request{Op: OpReset, Commit: base.ID})
	if d := diffLines(want, manifest(t, outside)); d != "" {
		t.Errorf("the reset changed another place:\n%s", d)
	}
}

// TestResetRandom resets after random damage and compares everything.
func TestResetRandom(t *testing.T) {
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 60 {
			return
		}
		dir, err := os.MkdirTemp(t.TempDir(), "case")
		if err != nil {
			rt.Fatal(err)
		}
		b := &bench{TB: t, root: filepath.Join(dir, "work"), store: filepath.Join(dir, "store")}
		b.must(os.Mkdir(b.root, 0o755))
		growTree(rt, b.root, 0)
		want := manifest(t, b.root)
		base := b.mark()
		for range 2 {
			entries, err := os.ReadDir(b.root)
			b.must(err)
			for i, e := range entries {
				if rapid.Bool().Draw(rt, fmt.Sprint("remove", i)) {
					b.must(os.RemoveAll(b.path(e.Name())))
				}
			}
			growTree(rt, b.root, 0)
			b.do(Request{Op: OpCommit, Author: Agent, AllowEmpty: true})
		}
		b.do(Request{Op: OpReset, Commit: base.ID})
		if d := diffLines(want, manifest(t, b.root)); d != "" {
			rt.Fatalf("not restored:\n%s", d)
		}
	})
}

func TestResetToATurn(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	b.mark()
	b.write("f", "2")
	b.write("g", "2")
	b.must(os.Chmod(b.path("g"), 0o755))
	turn := b.do(Request{Op: OpCommit, Author: Agent}).Commit
	b.write("f", "3")
	b.must(os.Chmod(b.path("g"), 0o644))
	if res := b.do(Request{Op: OpReset, Commit: turn.ID}); res.Tree != turn.Tree {
		t.Errorf("answer %+v", res)
	}
}

func TestDamagedStoreIsNoticed(t *testing.T) {
	damage := func(t *testing.T, what func(b *bench)) {
		b := newBench(t)
		b.write("f", "the old content of f")
		for i := range looseCount {
			b.write(fmt.Sprintf("many/%d", i), fmt.Sprint(i))
		}
		base := b.mark()
		b.write("f", "the new content of f")
		c := b.do(Request{Op: OpCommit, Author: Agent}).Commit
		what(b)
		requests := []Request{
			{Op: OpDiff, Content: true, Windows: []Window{{From: base.ID, To: c.ID}}},
			{Op: OpReset, Commit: base.ID},
		}
		for _, r := range requests {
			if _, err := b.try(r); fault.CodeOf(err) != "ledger-corrupt" {
				t.Errorf("%s: %v", r.Op, err)
			}
		}
		if data, _ := os.ReadFile(b.path("f")); string(data) != "the new content of f" {
			t.Errorf("the file is %q", data)
		}
	}
	packs := func(b *bench, ext string) []string {
		m, err := filepath.Glob(b.store + "/objects/pack/*" + ext)
		b.must(err)
		if len(m) == 0 {
			b.Fatal("there is no pack to damage")
		}
		return m
	}
	t.Run("forged blob", func(t *testing.T) {
		damage(t, func(b *bench) {
			for _, p := range packs(b, ".pack") {
				data, err := os.ReadFile(p)
				b.must(err)
				data = bytes.ReplaceAll(data, []byte("the old"), []byte("teh old"))
				b.must(os.Chmod(p, 0o600))
				b.must(os.WriteFile(p, data, 0o600))
			}
		})
	})
	t.Run("cut pack", func(t *testing.T) {
		damage(t, func(b *bench) {
			for _, p := range packs(b, ".pack") {
				b.must(os.Truncate(p, 40))
			}
		})
	})
	t.Run("cut index", func(t *testing.T) {
		damage(t, func(b *bench) {
			for _, p := range packs(b, ".idx") {
				b.must(os.Truncate(p, 1100))
			}
		})
	})
	t.Run("no loose objects", func(t *testing.T) {
		damage(t, func(b *bench) {
			loose, err := filepath.Glob(b.store + "/objects/??/*")
			b.must(err)
			if len(loose) < 3 {
				b.Fatalf("%d loose objects for a blob, a tree and a commit", len(loose))
			}
			for _, p := range loose {
				b.must(os.Truncate(p, 15))
			}
		})
	})
	t.Run("no packs", func(t *testing.T) {
		damage(t, func(b *bench) {
			for _, p := range append(packs(b, ".idx"), packs(b, ".pack")...) {
				b.must(os.Remove(p))
			}
		})
	})
}

// TestUnprivileged repeats what root's powers hide as another user.
func TestUnprivileged(t *testing.T) {
	testreq.Root(t)
	asNobody(t, "resets")
	asNobody(t, "unreadable")
}

func nobodyResets() error {
	dir, err := os.MkdirTemp("", "nobody")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var failed error
	for name, trick := range tricks {
		t := &childTB{dir: filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))}
		if err := os.Mkdir(t.dir, 0o700); err != nil {
			return err
		}
		err := t.run(func() {
			b := &bench{TB: t, root: t.dir + "/work", store: t.dir + "/store"}
			b.must(os.Mkdir(b.root, 0o755))
			b.seed()
			want := manifest(t, b.root)
			base := b.mark()
			trick(b)
			b.do(Request{Op: OpReset, Commit: base.ID})
			if d := diffLines(want, manifest(t, b.root)); d != "" && name != "root" {
				t.Fatalf("not restored:\n%s", d)
			}
			b.must(os.Chmod(b.path("ro"), 0o755))
		})
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", name, err)
		}
	}
	if failed != nil {
		return failed
	}
	// A commit that is no mark keeps no modes; a directory that was opened for
	// the work gets back the one it had.
	t := &childTB{dir: dir}
	return t.run(func() {
		b := &bench{TB: t, root: dir + "/work", store: dir + "/store"}
		b.must(os.Mkdir(b.root, 0o755))
		b.mark()
		b.write("d/f", "1")
		turn := b.do(Request{Op: OpCommit, Author: Agent}).Commit
		b.write("d/f", "2")
		b.must(os.Chmod(b.path("d"), 0o500))
		b.do(Request{Op: OpReset, Commit: turn.ID})
		f, err := os.Stat(b.path("d"))
		b.must(err)
		b.must(os.Chmod(b.path("d"), 0o755))
		if f.Mode().Perm() != 0o500 {
			t.Fatalf("the directory has mode %v", f.Mode())
		}
	})
}

func nobodyUnreadable() error {
	dir, err := os.MkdirTemp("", "nobody")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &childTB{dir: dir}
	return t.run(func() {
		b := &bench{TB: t, root: dir + "/work", store: dir + "/store"}
		b.must(os.Mkdir(b.root, 0o755))
		b.mark()
		b.write("closed/secret", "x")
		b.must(os.Chmod(b.path("closed/secret"), 0))
		check := func(want string) {
			_, err := b.try(Request{Op: OpCommit, Author: Agent})
			if p, _ := PathOf(err); fault.CodeOf(err) != "ledger-unreadable" || p != want || fault.FixOf(err) == "" {
				t.Fatalf("error %v, path %q, want %q", err, p, want)
			}
		}
		check("closed/secret")
		b.must(os.Chmod(b.path("closed"), 0o311))
		check("closed")
		b.must(os.Chmod(b.path("closed"), 0o755))
	})
}

func TestResetWaitsForTheLockUntilCanceled(t *testing.T) {
	b := newBench(t)
	base := b.mark()
	store, err := OpenStore(b.store)
	b.must(err)
	unlock, err := store.Lock(context.Background())
	b.must(err)
	defer unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	req, err := Request{Op: OpReset, Root: b.root, Store: b.store, Commit: base.ID}.Encode()
	b.must(err)
	var out bytes.Buffer
	b.must(Serve(ctx, req, &out))
	if _, err := DecodeResponse(&out); fault.ClassOf(err) != fault.Canceled {
		t.Errorf("error %v of class %v", err, fault.ClassOf(err))
	}
}
