package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"assay/sandbox"
)

func filePromises() []Promise {
	return []Promise{
		{"files-round-trip", filesRoundTrip},
		{"files-odd-names", filesOddNames},
		{"files-many", filesMany},
		{"files-large", filesLarge},
		{"put-replaces", putReplaces},
		{"put-makes-the-directory", putMakesDirectory},
		{"put-belongs-to-the-user", putOwner},
		{"put-strips-setuid", putStripsSetuid},
		{"put-refuses-hostile-archives", putHostile},
		{"put-cut-stream-leaves-no-partial-file", putCut},
		{"put-transport-failure-is-an-error", putTransport},
		{"get-one-file", getFile},
		{"get-never-follows-links", getLinks},
		{"get-missing-does-not-exist", getMissing},
		{"get-transport-failure-is-not-missing", getTransport},
		{"get-failing-reader-is-an-error", getReader},
	}
}

func filesRoundTrip(t testing.TB, h Harness) {
	b := start(t, h)
	tree := []entry{
		file("empty", ""), file(".dot", "x"), executable("run.sh", "#!/bin/sh\n"),
		file("bin", string(noise(70_000))+"\x00\r\n"), dir("hollow"), dir("d"), dir("d/e"), file("d/e/f", "deep\n"),
		link("to-file", "bin"), link("d/up", "../empty"), link("dangling", "no/where"), link("absolute", "/etc/hostname"),
	}
	b.put(b.dir, tree...)
	if d := manifestOf(tree...).diff(b.mustRead(b.dir)); d != "" {
		t.Errorf("the tree that came back differs:%s", d)
	}
}

func filesOddNames(t testing.TB, h Harness) {
	b := start(t, h)
	names := []string{
		" x ", "-rf", "a\nb", "caf\u00e9", "cafe\u0301 2", "$(touch x)", "*", "'", `"`, `back\slash`, "a\tb", ";rm", "~",
		strings.Repeat("n", 200), strings.Repeat("d/", 40) + "deep",
	}
	if !h.ShortNames {
		names = append(names, "bad\xff\xfe", "\xff")
	}
	var tree []entry
	for i, n := range names {
		tree = append(tree, file(n, fmt.Sprint("content ", i)))
	}
	b.put(b.dir, tree...)
	got := b.mustRead(b.dir)
	for k, v := range got {
		if v == "dir" {
			delete(got, k) // parents that the archive did not name
		}
	}
	if d := manifestOf(tree...).diff(got); d != "" {
		t.Errorf("names did not survive:%s", d)
	}
}

func filesMany(t testing.TB, h Harness) {
	b := start(t, h)
	var tree []entry
	for i := range 1500 {
		tree = append(tree, file(fmt.Sprintf("d%d/f%d", i%30, i), fmt.Sprint(i)))
	}
	b.put(b.dir, tree...)
	got := b.mustRead(b.dir)
	for i := range 30 {
		delete(got, fmt.Sprintf("d%d", i))
	}
	if d := manifestOf(tree...).diff(got); d != "" {
		t.Errorf("files are missing or changed:%.500s", d)
	}
}

func filesLarge(t testing.TB, h Harness) {
	b := start(t, h)
	big := file("big", string(noise(24<<20)))
	b.put(b.dir, big)
	if d := manifestOf(big).diff(b.mustRead(b.dir)); d != "" {
		t.Errorf("a large file differs:%s", d)
	}
}

func putReplaces(t testing.TB, h Harness) {
	b := start(t, h)
	ro := file("ro", "old")
	ro.Mode = 0o444
	b.put(b.dir, file("a", "a longer text than before"), ro, file("victim", "keep"), link("l", "victim"))
	b.put(b.dir, file("a", "new"), file("ro", "new"), file("l", "a file now"))
	want := manifestOf(file("a", "new"), file("ro", "new"), file("victim", "keep"), file("l", "a file now"))
	if d := want.diff(b.mustRead(b.dir)); d != "" {
		t.Errorf("replaced files differ:%s", d)
	}
}

func putMakesDirectory(t testing.TB, h Harness) {
	b := start(t, h)
	deep := b.dir + "/x/y z/w"
	b.put(deep, file("f", "1"))
	if d := manifestOf(file("f", "1")).diff(b.mustRead(deep)); d != "" {
		t.Errorf("Put into a missing directory:%s", d)
	}
	b.put(b.dir + "/only") // an empty archive still makes its directory
	if b.missing(b.dir + "/only") {
		t.Error("Put of an empty archive made no directory")
	}
}

func putOwner(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	root := file("sub/f", "1")
	root.Uid, root.Gid, root.Uname = 4711, 4712, "stranger"
	b.put(b.dir, root)
	b.sh(`cd "$1" && echo more >>sub/f && mv sub/f sub/g && mv sub moved && rm -r moved`, b.dir)
	b.put(b.dir, root)
	if _, ok := sandbox.AsDriver[sandbox.Stater](b.d); !ok {
		return
	}
	st, err := mustStater(b).Stat(b.ctx, b.dir+"/sub/f")
	if err != nil {
		t.Fatal(err)
	}
	if st.UID == 4711 || st.GID == 4712 {
		t.Errorf("a file belongs to %d:%d, the ids of the archive", st.UID, st.GID)
	}
}

func putStripsSetuid(t testing.TB, h Harness) {
	b := start(t, h)
	e := executable("tool", "#!/bin/sh\n")
	e.Mode = 0o6755
	b.put(b.dir, e)
	var buf bytes.Buffer
	if err := b.d.Get(b.ctx, b.dir+"/tool", &buf); err != nil {
		t.Fatal(err)
	}
	hd, err := tar.NewReader(&buf).Next()
	if err != nil {
		t.Fatal(err)
	}
	if hd.Mode&0o7777 != 0o755 {
		t.Errorf("mode 6755 arrived as %o, want 755", hd.Mode&0o7777)
	}
}

func putHostile(t testing.TB, h Harness) {
	b := start(t, h)
	outside := b.dir + "-outside"
	b.put(outside, file("victim", "untouched"))
	want := manifestOf(file("victim", "untouched"))
	name := outside[strings.LastIndex(outside, "/")+1:]
	for _, c := range []struct {
		name    string
		refuse  bool // an error is required; otherwise it is enough that nothing outside changes
		entries []entry
	}{
		{"parent", true, []entry{file("../"+name+"/victim", "evil")}},
		{"deep parent", true, []entry{file("a/../../"+name+"/new", "evil")}},
		{"absolute", true, []entry{file(outside+"/victim", "evil")}},
		{"through a link", false, []entry{link("l", "../"+name), file("l/victim", "evil")}},
		{"through an absolute link", false, []entry{link("l", outside), file("l/victim", "evil"), file("l/new", "evil")}},
		{"onto a link", false, []entry{link("l", "../"+name+"/victim"), file("l", "evil")}},
		{"hard link outside", true, []entry{special(tar.TypeLink, "hl", outside+"/victim"), file("hl", "evil")}},
		{"relative hard link outside", true, []entry{special(tar.TypeLink, "hl", "../"+name+"/victim")}},
		{"FIFO", true, []entry{special(tar.TypeFifo, "pipe", "")}},
		{"device", true, []entry{special(tar.TypeChar, "null", "")}},
	} {
		target := b.dir + "/" + strings.ReplaceAll(c.name, " ", "-")
		err := b.d.Put(b.ctx, target, bytes.NewReader(pack(t, c.entries...)))
		if c.refuse && err == nil {
			t.Errorf("%s: the archive was accepted", c.name)
		}
		if d := want.diff(b.mustRead(outside)); d != "" {
			t.Fatalf("%s: a file outside of the target changed:%s", c.name, d)
		}
	}
	// A link that was there before is not a way out either.
	b.put(b.dir, link("planted", "../"+name))
	_ = b.d.Put(b.ctx, b.dir, tarOf(t, file("planted/victim", "evil"))) // replaced or refused
	if d := want.diff(b.mustRead(outside)); d != "" {
		t.Errorf("planted link: a file outside of the target changed:%s", d)
	}
}

func putCut(t testing.TB, h Harness) {
	b := start(t, h)
	whole := pack(t, file("cut", string(noise(300_000))))
	for _, at := range []int{1000, 100_000, len(whole) - 4096} {
		target := fmt.Sprintf("%s/%d", b.dir, at)
		if err := b.d.Put(b.ctx, target, bytes.NewReader(whole[:at])); err == nil {
			t.Errorf("an archive cut after %d bytes was accepted", at)
		}
		if !b.missing(target + "/cut") {
			t.Errorf("an archive cut after %d bytes left a file under its final name", at)
		}
	}
	lost := errors.New("the source failed")
	if err := b.d.Put(b.ctx, b.dir+"/source", &failingReader{bytes.NewReader(whole[:200_000]), lost}); err == nil {
		t.Error("a source that fails is no error")
	}
	if !b.missing(b.dir + "/source/cut") {
		t.Error("a source that failed left a file under its final name")
	}
}

func putTransport(t testing.TB, h Harness) {
	b := broken(t, h, PutFails)
	if err := b.d.Put(b.ctx, b.dir, tarOf(t, file("f", string(noise(100_000))))); err == nil {
		t.Error("a broken transport during Put is no error")
	}
}

func getFile(t testing.TB, h Harness) {
	b := start(t, h)
	b.put(b.dir, file("a b", "1"), executable("x", "2"))
	if d := manifestOf(file("a b", "1")).diff(b.mustRead(b.dir + "/a b")); d != "" {
		t.Errorf("Get of one file:%s", d)
	}
	if d := manifestOf(executable("x", "2")).diff(b.mustRead(b.dir + "/x")); d != "" {
		t.Errorf("Get of one file:%s", d)
	}
}

func getLinks(t testing.TB, h Harness) {
	b := start(t, h)
	b.put(b.dir, file("f", "secret"), dir("real"), file("real/g", "1"), link("l", "f"), link("dl", "real"))
	if d := manifestOf(link("l", "f")).diff(b.mustRead(b.dir + "/l")); d != "" {
		t.Errorf("Get of a link to a file:%s", d)
	}
	got := b.mustRead(b.dir)
	if got["dl"] != "link to real" || got["dl/g"] != "" {
		t.Errorf("Get of a tree went through a link: %v", got)
	}
}

func getMissing(t testing.TB, h Harness) {
	b := start(t, h)
	b.put(b.dir, file("f", "1"))
	for _, p := range []string{b.dir + "/missing", b.dir + "/no/such/dir", "/no-such-dir/x"} {
		if err := b.d.Get(b.ctx, p, io.Discard); !isMissing(err) {
			t.Errorf("Get of the missing %s: %v, want an error that matches fs.ErrNotExist", p, err)
		}
	}
}

func getTransport(t testing.TB, h Harness) {
	b := broken(t, h, GetFails)
	err := b.d.Get(b.ctx, b.d.Workdir(), io.Discard)
	if err == nil {
		t.Fatal("a broken transport during Get is no error")
	}
	if isMissing(err) {
		t.Errorf("a broken transport looks like a missing file: %v", err)
	}
}

func getReader(t testing.TB, h Harness) {
	b := start(t, h)
	b.put(b.dir, file("f", string(noise(400_000))))
	if err := b.d.Get(b.ctx, b.dir+"/f", &failingWriter{left: 50_000}); err == nil || isMissing(err) {
		t.Errorf("a reader that went away gave %v", err)
	}
	if b.missing(b.dir + "/f") {
		t.Error("the file is gone")
	}
}

func mustStater(b *box) sandbox.Stater {
	s, _ := sandbox.AsDriver[sandbox.Stater](b.d)
	return s
}
