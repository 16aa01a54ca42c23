package testimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tree is a root file system to be: entries by path without a leading slash.
// Written as tar it is the same bytes for the same content, whatever the
// host's times, owners and walking order.
type tree struct{ entries map[string]entry }

type entry struct {
	mode fs.FileMode // type and permissions
	uid  int         // also the gid
	link string      // target of a symlink
	data []byte      // content of a file without src
	src  string      // host file that holds the content
}

// epoch is the time of every entry.
var epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func newTree() *tree { return &tree{entries: map[string]entry{}} }

// skeleton returns what both busybox and slice have: merged /usr, users root
// and node, a temporary folder.
func skeleton(shell string) *tree {
	t := newTree()
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "etc", "run", "var/tmp"} {
		t.dir(d, 0o755, 0)
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		t.symlink(l, "usr/"+l)
	}
	t.dir("tmp", 0o777|fs.ModeSticky, 0)
	t.dir("var/tmp", 0o777|fs.ModeSticky, 0)
	t.dir("root", 0o700, 0)
	t.dir("home/node", 0o755, 1000)
	t.text("etc/passwd", "root:x:0:0:root:/root:"+shell+"\nnode:x:1000:1000::/home/node:"+shell+"\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	t.text("etc/group", "root:x:0:\nnode:x:1000:\nnogroup:x:65534:\n")
	t.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	return t
}

// add puts an entry, and the folders above it that are not there yet.
func (t *tree) add(name string, e entry) {
	for d := filepath.Dir(name); d != "."; d = filepath.Dir(d) {
		if _, ok := t.entries[d]; !ok {
			t.entries[d] = entry{mode: fs.ModeDir | 0o755}
		}
	}
	t.entries[name] = e
}

func (t *tree) dir(name string, perm fs.FileMode, uid int) {
	t.add(name, entry{mode: fs.ModeDir | perm, uid: uid})
}

func (t *tree) symlink(name, target string) {
	t.add(name, entry{mode: fs.ModeSymlink | 0o777, link: target})
}

func (t *tree) text(name, content string) {
	t.add(name, entry{mode: 0o644, data: []byte(content)})
}

// file puts the host file src, its links followed, under name. Setuid bits are
// dropped: the root of a test container needs none.
func (t *tree) file(name, src string) error {
	real, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	fi, err := os.Stat(real)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", real)
	}
	perm := fs.FileMode(0o644)
	if fi.Mode()&0o111 != 0 {
		perm = 0o755
	}
	t.add(name, entry{mode: perm, src: real})
	return nil
}

// copyDir puts the host folder src under name, its inner links kept.
func (t *tree) copyDir(name, src string) error {
	return filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		dst := filepath.Join(name, rel)
		switch {
		case d.IsDir():
			t.dir(dst, 0o755, 0)
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			t.symlink(dst, target)
			return nil
		case d.Type().IsRegular():
			return t.file(dst, p)
		}
		return nil
	})
}

// merged returns where a host path lives in a root with merged /usr.
func merged(path string) string {
	p := strings.TrimPrefix(filepath.Clean(path), "/")
	for _, top := range []string{"bin/", "sbin/", "lib/", "lib32/", "lib64/", "libx32/"} {
		if strings.HasPrefix(p, top) {
			return "usr/" + p
		}
	}
	return p
}

// writeTar writes the tree. A host file that occurs under several names is
// stored once, the rest are hard links: some systems ship all of coreutils as
// one program.
func (t *tree) writeTar(w io.Writer) error {
	tw := tar.NewWriter(w)
	first := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[name]
		h := &tar.Header{
			Name: name, Mode: int64(e.mode.Perm()), Uid: e.uid, Gid: e.uid,
			ModTime: epoch, Format: tar.FormatPAX, Typeflag: tar.TypeReg,
		}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		var err error
		switch {
		case e.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
			err = tw.WriteHeader(h)
		case e.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
			err = tw.WriteHeader(h)
		case e.src != "" && first[e.src] != "":
			h.Typeflag, h.Linkname = tar.TypeLink, first[e.src]
			err = tw.WriteHeader(h)
		case e.src != "":
			first[e.src] = name
			err = writeHostFile(tw, h, e.src)
		default:
			err = writeContent(tw, h, int64(len(e.data)), bytes.NewReader(e.data))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tw.Close()
}

func writeHostFile(tw *tar.Writer, h *tar.Header, src string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return writeContent(tw, h, fi.Size(), f)
}

func writeContent(tw *tar.Writer, h *tar.Header, size int64, r io.Reader) error {
	h.Size = size
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(tw, r)
	return err
}
