package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"assay/internal/testreq"
)

var oddNames = []string{
	"a", "b.txt", "a.b", "a-b", "ab", "README", "readme", "a\nb", " x ", "-rf", "\xc3\xa9", "e\xcc\x81", "\xff",
	"$(touch x)", ";rm", "\"", "\\", "x\ty", "*", "[a]", "0",
}

// growTree makes a random tree of files, links and directories.
func growTree(rt *rapid.T, dir string, depth int) {
	for i := range rapid.IntRange(0, 5).Draw(rt, "entries") {
		p := dir + "/" + rapid.SampledFrom(oddNames).Draw(rt, fmt.Sprint("name", i))
		if _, err := os.Lstat(p); err == nil {
			continue
		}
		var err error
		switch kind := rapid.IntRange(0, 5).Draw(rt, "kind"); {
		case kind == 0 && depth < 4:
			if err = os.Mkdir(p, 0o755); err == nil {
				growTree(rt, p, depth+1)
			}
		case kind == 1:
			err = os.Symlink(rapid.SampledFrom([]string{"a", "/etc/passwd", "..", "\xff", "no\nwhere"}).Draw(rt, "target"), p)
		default:
			size := rapid.SampledFrom([]int{0, 1, 20, 65535, 65536, 70000, 1<<20 + 1}).Draw(rt, "size")
			data := rapid.SliceOfN(rapid.Byte(), min(size, 30), min(size, 30)).Draw(rt, "data")
			content := make([]byte, size)
			copy(content, data)
			mode := rapid.SampledFrom([]os.FileMode{0o644, 0o755, 0o600, 0o711}).Draw(rt, "mode")
			if err = os.WriteFile(p, content, 0o644); err == nil {
				err = os.Chmod(p, mode)
			}
		}
		if err != nil {
			rt.Fatal(err)
		}
	}
}

func TestTreesAreGits(t *testing.T) {
	testreq.Git(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 40 {
			// Each case runs five programs; forty trees are enough.
			return
		}
		dir, err := os.MkdirTemp(t.TempDir(), "case")
		if err != nil {
			rt.Fatal(err)
		}
		b := &bench{TB: t, root: filepath.Join(dir, "work"), store: filepath.Join(dir, "store")}
		b.must(os.Mkdir(b.root, 0o755))
		growTree(rt, b.root, 0)
		first := b.mark()
		growTree(rt, b.root, 0)
		second := b.do(Request{Op: OpCommit, Author: Agent, Label: "turn1", AllowEmpty: true}).Commit

		index := filepath.Join(dir, "theirs.git")
		git(t, dir, "init", "-q", "--bare", index)
		git(t, b.root, "--git-dir="+index, "--work-tree="+b.root, "-c", "core.autocrlf=false", "-c", "core.excludesFile=/dev/null", "add", "-A", "-f", ".")
		theirs := strings.TrimSpace(git(t, b.root, "--git-dir="+index, "write-tree"))
		if second.Tree.String() != theirs {
			rt.Fatalf("tree %s, git says %s", second.Tree, theirs)
		}
		git(t, dir, "--git-dir="+b.store, "fsck", "--strict", "--full")
		want := git(t, dir, "--git-dir="+index, "ls-tree", "-r", "-z", theirs)
		if got := git(t, dir, "--git-dir="+b.store, "ls-tree", "-r", "-z", "HEAD"); got != want {
			rt.Fatalf("ls-tree\n got %q\nwant %q", got, want)
		}
		names := git(t, dir, "--git-dir="+b.store, "diff", "-z", "--no-renames", "--name-status", first.ID.String(), second.ID.String())
		res := b.do(Request{Op: OpDiff, Windows: []Window{{From: first.ID, To: second.ID}}})
		var ours strings.Builder
		for _, c := range res.Windows[0].Changes {
			letter := map[Status]string{Added: "A", Modified: "M", Deleted: "D"}[c.Status]
			if c.Status == Modified && (c.Before.Mode == modeLink) != (c.After.Mode == modeLink) {
				letter = "T"
			}
			ours.WriteString(letter + "\x00" + string(c.Path) + "\x00")
		}
		if ours.String() != names {
			rt.Fatalf("diff\n got %q\nwant %q", ours.String(), names)
		}
	})
}

func TestGitReadsTheStore(t *testing.T) {
	testreq.Git(t)
	b := newBench(t)
	big := strings.Repeat("0123456789abcdef", 20000)
	b.write("big", big)
	b.write("a/x.txt", "one\n")
	for i := range looseCount {
		b.write(fmt.Sprintf("many/%d", i), fmt.Sprint(i))
	}
	b.mark()
	b.write("a/x.txt", "two\n")
	b.do(Request{Op: OpCommit, Author: Agent, Label: "turn1"})
	if got := git(t, b.store, "--git-dir="+b.store, "cat-file", "blob", "HEAD:big"); got != big {
		t.Errorf("cat-file gives %d bytes that are not the file's", len(got))
	}
	if got := git(t, b.store, "--git-dir="+b.store, "log", "--format=%an %s"); got != "agent turn1\nbaseline baseline\n" {
		t.Errorf("log: %q", got)
	}
	git(t, b.store, "--git-dir="+b.store, "fsck", "--strict", "--full")
	packs, err := filepath.Glob(b.store + "/objects/pack/*.idx")
	b.must(err)
	if len(packs) != 1 {
		t.Fatalf("%d packs for a large and a small commit", len(packs))
	}
	for _, p := range packs {
		git(t, b.store, "verify-pack", p)
	}
}
