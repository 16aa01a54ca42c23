package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/testreq"
)

func TestWindowsAttributeChanges(t *testing.T) {
	b := newBench(t)
	b.write("task.txt", "do it")
	base := b.mark()
	if !base.Changed || base.Author != Baseline {
		t.Errorf("baseline %+v", base)
	}
	clean := b.do(Request{Op: OpCommit, Author: Eval, Label: "before turn1"}).Commit
	if clean.ID != base.ID || clean.Changed {
		t.Errorf("an unchanged tree made the commit %+v", clean)
	}
	b.write("agent.txt", "mine")
	one := b.do(Request{Op: OpCommit, Author: Agent, Label: "turn1", AllowEmpty: true}).Commit
	b.write("fixture.txt", "the eval's")
	eval := b.do(Request{Op: OpCommit, Author: Eval, Label: "before turn2"}).Commit
	two := b.do(Request{Op: OpCommit, Author: Agent, Label: "turn2", AllowEmpty: true}).Commit
	if two.Changed || two.Parent != eval.ID || one.Parent != base.ID || eval.Parent != one.ID {
		t.Errorf("chain broken: %+v %+v %+v", one, eval, two)
	}
	res := b.do(Request{Op: OpDiff, Windows: []Window{
		{Label: "turn1", From: one.Parent, To: one.ID}, {Label: "turn2", From: two.Parent, To: two.ID},
	}})
	wantSummary(t, res.Windows[0].Changes, "added agent.txt")
	wantSummary(t, res.Windows[1].Changes)
	if res.Windows[1].Label != "turn2" || res.Partial != "" || res.Windows[0].Added != 1 {
		t.Errorf("answer %+v", res)
	}
}

func TestKindsOfChange(t *testing.T) {
	b := newBench(t)
	for _, p := range []string{"keep", "edit", "mode", "gone", "tolink", "dir/file", "file"} {
		b.write(p, "content of "+p)
	}
	b.must(os.Symlink("keep", b.path("link")))
	b.mark()
	b.write("edit", "other")
	b.must(os.Chmod(b.path("mode"), 0o755))
	b.must(os.Remove(b.path("gone")))
	b.must(os.Remove(b.path("tolink")))
	b.must(os.Symlink("keep", b.path("tolink")))
	b.must(os.RemoveAll(b.path("dir")))
	b.write("dir", "now a file")
	b.must(os.Remove(b.path("file")))
	b.write("file/inside", "now a directory")
	b.must(os.Remove(b.path("link")))
	b.must(os.Symlink("edit", b.path("link")))
	b.must(os.Mkdir(b.path("empty"), 0o755))
	b.write("new", "")
	changes := b.turn()
	wantSummary(t, changes, "added dir", "deleted dir/file", "modified edit", "deleted file", "added file/inside",
		"deleted gone", "modified link", "modified mode", "added new", "modified tolink")
	for _, c := range changes {
		switch c.Path {
		case "mode":
			if c.Before.Mode != modeFile || c.After.Mode != modeExec || c.Before.Blob != c.After.Blob {
				t.Errorf("mode change %+v", c)
			}
		case "link":
			if *c.Before.Text != "keep" || *c.After.Text != "edit" || c.After.Mode != modeLink {
				t.Errorf("link change %+v %+v", c.Before, c.After)
			}
		case "edit":
			if *c.Before.Text != "content of edit" || *c.After.Text != "other" ||
				c.After.SHA256 != "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa" {
				t.Errorf("edit %+v %+v", c.Before, c.After)
			}
		}
	}
}

func TestNamesAreBytes(t *testing.T) {
	b := newBench(t)
	b.mark()
	var want []string
	for _, n := range oddNames {
		b.write(n+"d/"+n, "x")
		want = append(want, "added "+n+"d/"+n)
	}
	slices.Sort(want)
	wantSummary(t, b.turn(), want...)
}

// TestTreeCannotHideOrRun plants everything that makes a git program run code
// or leave files out.
func TestTreeCannotHideOrRun(t *testing.T) {
	testreq.Git(t)
	b := newBench(t)
	git(t, b.root, "init", "-q", ".")
	b.write("a.txt", "a")
	b.mark()
	ran := filepath.Join(t.TempDir(), "ran")
	evil := "sh -c 'touch " + ran + "'"
	for _, c := range [][2]string{
		{"core.fsmonitor", evil},
		{"filter.x.clean", evil},
		{"filter.x.smudge", evil},
		{"diff.x.textconv", evil},
		{"diff.external", evil},
		{"core.hooksPath", b.path("hooks")},
		{"core.excludesFile", b.path("all")},
		{"core.pager", evil},
	} {
		git(t, b.root, "config", c[0], c[1])
	}
	b.write(".gitattributes", "* filter=x diff=x -text\n")
	b.write(".gitignore", "*\n")
	b.write("all", "*\n")
	b.write(".git/info/exclude", "*\n")
	for _, h := range []string{"pre-commit", "post-commit", "post-index-change"} {
		b.write("hooks/"+h, "#!/bin/sh\ntouch "+ran+"\n")
		b.must(os.Chmod(b.path("hooks/"+h), 0o755))
	}
	b.write("bin/git", "#!/bin/sh\ntouch "+ran+"\n")
	b.must(os.Chmod(b.path("bin/git"), 0o755))
	t.Setenv("PATH", b.path("bin"))
	b.write("hidden.txt", "x")
	wantSummary(t, b.turn(), "added .gitattributes", "added .gitignore", "added all", "added bin/git", "added hidden.txt",
		"added hooks/post-commit", "added hooks/post-index-change", "added hooks/pre-commit")
	if _, err := os.Lstat(ran); err == nil {
		t.Error("the tree's code ran")
	}
}

func TestNestedRepository(t *testing.T) {
	for _, kind := range []string{"dir", "file"} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t)
			b.mark("ignored/**")
			b.must(os.MkdirAll(b.path("sub/repo"), 0o755))
			b.must(os.MkdirAll(b.path("ignored/repo/.git"), 0o755))
			b.must(os.MkdirAll(b.path("node_modules/repo/.git"), 0o755))
			if _, err := b.try(Request{Op: OpCommit, Author: Agent}); err != nil {
				t.Fatalf("an excluded repository is an error: %v", err)
			}
			if kind == "dir" {
				b.must(os.Mkdir(b.path("sub/repo/.git"), 0o755))
			} else {
				b.write("sub/repo/.git", "gitdir: elsewhere\n")
			}
			_, err := b.try(Request{Op: OpCommit, Author: Agent})
			path, _ := PathOf(err)
			if fault.CodeOf(err) != "ledger-nested-repository" || path != "sub/repo" || fault.FixOf(err) == "" ||
				fault.ClassOf(err) != fault.Config || !strings.Contains(err.Error(), `"sub/repo"`) {
				t.Errorf("error %v, path %q, fix %q", err, path, fault.FixOf(err))
			}
		})
	}
}

func TestSpecialFilesNeverBlock(t *testing.T) {
	b := newBench(t)
	b.mark()
	b.must(unix.Mkfifo(b.path("pipe"), 0o644))
	b.must(unix.Mknod(b.path("sock"), unix.S_IFSOCK|0o644, 0))
	b.write("real", "x")
	res := b.do(Request{Op: OpCommit, Author: Agent})
	if res.Stats.Special != 2 || !slices.Equal(res.Stats.SpecialPaths, []Raw{"pipe", "sock"}) || res.Stats.Files != 1 {
		t.Errorf("stats %+v", res.Stats)
	}
}

func TestElision(t *testing.T) {
	b := newBench(t)
	b.mark()
	b.write("large", strings.Repeat("x", 1<<20+1))
	b.write("limit", strings.Repeat("x", 1<<20))
	b.write("binary", "a\x00b")
	b.write("latin1", "caf\xe9")
	b.write("late-nul", strings.Repeat("x", 8000)+"\x00")
	for _, c := range b.turn() {
		want := map[Raw]Elision{"large": ElidedSize, "binary": ElidedBinary}[c.Path]
		if c.After.Elided != want || (c.After.Text == nil) != (want != "") || c.After.SHA256 == "" {
			t.Errorf("%s: elided %q, text %v", c.Path, c.After.Elided, c.After.Text != nil)
		}
		if c.Path == "latin1" && *c.After.Text != "caf\xe9" {
			t.Errorf("latin1 text %q", *c.After.Text)
		}
	}
}

func TestLimitsSayPartial(t *testing.T) {
	b := newBench(t)
	base := b.mark()
	for i := range 10 {
		b.write(fmt.Sprintf("f%d", i), "12345")
	}
	c := b.do(Request{Op: OpCommit, Author: Agent}).Commit
	w := Window{From: base.ID, To: c.ID}
	tests := []struct {
		name            string
		limits          Limits
		listed, texts   int
		partial, answer string
		windows         int
	}{
		{"none", Limits{}, 10, 10, "", "", 2},
		{"changes", Limits{Changes: 3}, 3, 3, CapReached, "", 2},
		{"text", Limits{TextBytes: 22}, 10, 4, CapReached, "", 2},
		{"blob", Limits{BlobBytes: 4}, 10, 0, "", "", 2},
		{"windows", Limits{Windows: 1}, 10, 10, "", CapReached, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := b.do(Request{Op: OpDiff, Content: true, Limits: tt.limits, Windows: []Window{w, w}})
			if len(res.Windows) != tt.windows || res.Partial != tt.answer {
				t.Fatalf("%d windows, partial %q", len(res.Windows), res.Partial)
			}
			for _, d := range res.Windows {
				texts := 0
				for _, c := range d.Changes {
					if c.After.Text != nil {
						texts++
					}
				}
				if len(d.Changes) != tt.listed || texts != tt.texts || d.Partial != tt.partial || d.Added != 10 {
					t.Errorf("%d listed, %d texts, partial %q, %d added", len(d.Changes), texts, d.Partial, d.Added)
				}
			}
		})
	}
}

func TestRulesAreFrozen(t *testing.T) {
	b := newBench(t)
	b.mark("*.log")
	b.write("a.log", "x")
	b.write("b.txt", "x")
	res := b.do(Request{Op: OpCommit, Author: Agent, Rules: Rules{Ignore: []string{"*.txt"}}})
	if d := b.do(Request{Op: OpDiff, Windows: []Window{{From: res.Commit.Parent, To: res.Commit.ID}}}); true {
		wantSummary(t, d.Windows[0].Changes, "added b.txt")
	}
}

func TestBadRequests(t *testing.T) {
	b := newBench(t)
	if _, err := b.try(Request{Op: OpStatus}); fault.CodeOf(err) != "ledger-not-marked" {
		t.Errorf("status without a mark: %v", err)
	}
	b.mark()
	tests := map[string]Request{
		"op":     {Op: "push"},
		"author": {Op: OpCommit, Author: "mallory"},
		"label":  {Op: OpCommit, Author: Agent, Label: "a\n\nFacts: x"},
		"window": {Op: OpDiff, Windows: []Window{{}}},
		"verify": {Op: OpVerify},
	}
	for name, r := range tests {
		if _, err := b.try(r); fault.CodeOf(err) != "ledger-bad-request" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.try(Request{Op: OpVerify, Commit: ID{1}}); fault.CodeOf(err) != "ledger-corrupt" {
		t.Errorf("unknown commit: %v", err)
	}
	c := newBench(t)
	if _, err := c.try(Request{Op: OpMark, Rules: Rules{Ignore: []string{"!x"}}}); fault.CodeOf(err) != "ledger-bad-pattern" {
		t.Errorf("bad pattern: %v", err)
	}
}

// settle waits until an unchanged tree is recognised by its facts alone.
func (b *bench) settle() Stats {
	b.Helper()
	for start := time.Now(); ; {
		if s := b.do(Request{Op: OpStatus}).Stats; s.Hashed == 0 {
			return s
		}
		if time.Since(start) > 10*time.Second {
			b.Fatal("an unchanged tree is read again and again")
		}
	}
}

func TestCacheSeesEveryEdit(t *testing.T) {
	b := newBench(t)
	b.write("f", "aaaa")
	b.write("g", "gggg")
	b.mark()
	// Same size within the same tick of the clock, many times.
	for i := range 200 {
		b.must(os.WriteFile(b.path("f"), fmt.Appendf(nil, "%04d", i), 0o644))
		if c := b.do(Request{Op: OpCommit, Author: Agent}).Commit; !c.Changed {
			t.Fatalf("edit %d was not seen", i)
		}
	}
	b.settle()
	// A forged modification time does not hide an edit.
	var st unix.Stat_t
	b.must(unix.Stat(b.path("g"), &st))
	b.must(os.WriteFile(b.path("g"), []byte("GGGG"), 0o644))
	at := time.Unix(0, st.Mtim.Nano())
	b.must(os.Chtimes(b.path("g"), at, at))
	wantSummary(t, b.turn(), "modified g")
}

func TestDamagedCacheIsRebuilt(t *testing.T) {
	b := newBench(t)
	b.write("f", "aaaa")
	base := b.mark()
	b.settle()
	whole, err := os.ReadFile(b.store + "/" + cacheFile)
	b.must(err)
	if len(decodeCache(whole)) != 1 {
		t.Fatalf("the cache of one file has %d entries", len(decodeCache(whole)))
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)-10] ^= 1
	for name, data := range map[string][]byte{"empty": {}, "cut": whole[:len(whole)/2], "flipped": flipped, "other": []byte("scan0001garbage")} {
		b.must(os.WriteFile(b.store+"/"+cacheFile, data, 0o600))
		if res := b.do(Request{Op: OpStatus}); res.Dirty || res.Tree != base.Tree || res.Stats.Hashed != 1 {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

func TestStatusRecordsNothing(t *testing.T) {
	b := newBench(t)
	b.write("f", "1")
	base := b.mark()
	b.write("f", "2")
	for range 2 {
		if res := b.do(Request{Op: OpStatus}); !res.Dirty || res.Commit.ID != base.ID {
			t.Errorf("status %+v", res)
		}
	}
	// What status hashed but did not store must still be stored by the commit.
	b.write("g", strings.Repeat("g", 2<<20))
	b.do(Request{Op: OpStatus})
	if got := b.turn(); len(got) != 2 || *got[0].After.Text != "2" || got[1].After.Size != 2<<20 {
		t.Errorf("changes %q", summary(got))
	}
	if res := b.do(Request{Op: OpVerify, Commit: base.ID}); !res.Dirty {
		t.Error("verify says that nothing changed")
	}
}

func TestStoreInsideTheTreeIsLeftOut(t *testing.T) {
	b := newBench(t)
	b.store = b.path("st[o]re")
	b.write("f", "1")
	b.mark()
	wantSummary(t, b.turn())
	b.write("sto", "x")
	wantSummary(t, b.turn(), "added sto")
}

func TestUnsafeStoreIsRefused(t *testing.T) {
	b := newBench(t)
	b.must(os.Mkdir(b.store, 0o700))
	b.must(os.Chmod(b.store, 0o755))
	if _, err := b.try(Request{Op: OpMark}); fault.CodeOf(err) != "ledger-store-unsafe" {
		t.Errorf("open to others: %v", err)
	}
	b.must(os.Rename(b.store, b.store+"2"))
	b.must(os.Chmod(b.store+"2", 0o700))
	b.must(os.Symlink(b.store+"2", b.store))
	if _, err := b.try(Request{Op: OpMark}); fault.CodeOf(err) != "ledger-store-unsafe" {
		t.Errorf("a link: %v", err)
	}
}

func TestRootReplaced(t *testing.T) {
	b := newBench(t)
	b.write("a/f", "1")
	base := b.mark()
	elsewhere := t.TempDir()
	b.must(os.WriteFile(elsewhere+"/precious", []byte("x"), 0o644))
	b.must(os.RemoveAll(b.root))
	wantSummary(t, b.turn(), "deleted a/f")
	b.must(os.Symlink(elsewhere, b.root))
	if _, err := b.try(Request{Op: OpCommit, Author: Agent}); fault.CodeOf(err) != "ledger-root-replaced" {
		t.Errorf("a link as root: %v", err)
	}
	if res := b.do(Request{Op: OpReset, Commit: base.ID}); res.Tree != base.Tree {
		t.Errorf("reset %+v", res)
	}
	if _, err := os.Lstat(elsewhere + "/precious"); err != nil {
		t.Errorf("the reset followed the link: %v", err)
	}
	if data, err := os.ReadFile(b.path("a/f")); err != nil || string(data) != "1" {
		t.Errorf("a/f is %q, %v", data, err)
	}
}
