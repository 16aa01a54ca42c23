//go:build unix

package snapshot

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of one drift: paths that are named, and entries that are looked at.
const (
	driftPaths   = 100
	driftEntries = 200_000
)

// drift looks at directories of this machine. What cannot be read is left out:
// the answer is a hint for people, and nothing is decided by it.
func drift(ctx context.Context, q DriftQuery) Drift {
	d := &drifter{ctx: ctx, since: q.Since, left: driftEntries}
	for _, dir := range q.Dirs {
		real, err := filepath.EvalSymlinks(dir.Path)
		if err != nil {
			continue
		}
		if d.skip = nil; slices.Contains(q.Skip, real) {
			continue
		}
		for _, s := range q.Skip {
			if rel, err := filepath.Rel(real, s); err == nil && filepath.IsLocal(rel) {
				d.skip = append(d.skip, rel)
			}
		}
		tree, err := OpenTree(real)
		if err != nil {
			continue
		}
		d.root, d.deepest = real, dir.Depth
		if f, err := tree.Lstat(""); err == nil && dir.Depth < 0 {
			d.look(f, "")
		} else {
			d.walk(tree, "", 1)
		}
		tree.Close()
	}
	d.out.Ports = listening("/proc/net/tcp", "/proc/net/tcp6")
	d.out.At = time.Now().UnixNano()
	return d.out
}

type drifter struct {
	ctx     context.Context
	since   int64
	left    int // entries that may still be looked at
	root    string
	deepest int
	skip    []string
	out     Drift
}

func (d *drifter) walk(t *OSTree, dir string, depth int) {
	kids, err := t.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range kids {
		if d.left--; d.left < 0 || d.ctx.Err() != nil {
			d.out.Partial = true
			return
		}
		p := join(dir, f.Name)
		if slices.Contains(d.skip, p) {
			continue
		}
		d.look(f, p)
		if f.IsDir() && (d.deepest == 0 || depth < d.deepest) {
			d.walk(t, p, depth+1)
		}
	}
}

// look notes a path that changed.
func (d *drifter) look(f Facts, p string) {
	at := f.ChangeTime
	if f.IsDir() {
		at = f.ModTime // an overlay changes the other when a directory is first looked at
	}
	if at <= d.since || f.IsDir() && d.deepest == 0 {
		return
	}
	if d.out.Changed++; len(d.out.Paths) < driftPaths {
		d.out.Paths = append(d.out.Paths, Raw(filepath.Join(d.root, p)))
	}
}

// listening reads the ports of sockets in the state LISTEN (0A) from tables of
// the form of proc(5)'s /proc/net/tcp.
func listening(tables ...string) []int {
	var ports []int
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for l := range strings.Lines(string(b)) {
			f := strings.Fields(l)
			if len(f) < 4 || f[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && !slices.Contains(ports, int(n)) {
				ports = append(ports, int(n))
			}
		}
	}
	slices.Sort(ports)
	return ports
}
