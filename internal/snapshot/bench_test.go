package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"assay/internal/testreq"
)

// fill makes 20,000 files of 2 kB in 1,000 directories: 40 MB.
func (b *bench) fill() {
	b.Helper()
	content := bytes.Repeat([]byte("some text of a source file, "), 2048/28+1)[:2048]
	for d := range 1000 {
		dir := fmt.Sprintf("%s/pkg%02d/sub%03d", b.root, d/20, d)
		b.must(os.MkdirAll(dir, 0o755))
		for f := range 20 {
			b.must(os.WriteFile(fmt.Sprintf("%s/file%d.go", dir, f), fmt.Appendf(nil, "// %d %d\n%s", d, f, content), 0o644))
		}
	}
}

func (b *bench) change(round int) {
	b.Helper()
	for i := range 90 {
		d := i * 11
		p := fmt.Sprintf("%s/pkg%02d/sub%03d/file%d.go", b.root, d/20, d, i%20)
		b.must(os.WriteFile(p, fmt.Appendf(nil, "changed %d %d\n", round, i), 0o644))
	}
}

func (b *bench) git(args ...string) {
	b.Helper()
	git(b, b.root, append([]string{
		"--git-dir=" + b.root + "-git", "--work-tree=" + b.root,
		"-c", "core.excludesFile=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
	}, args...)...)
}

// versus measures ours and git's way to the same end in the same run.
func versus(b *testing.B, prepare func(w *bench), each func(w *bench, i int), ours, theirs func(w *bench)) {
	testreq.Git(b)
	w := newBench(b)
	w.fill()
	git(b, w.root, "init", "-q", "--bare", w.root+"-git")
	if prepare != nil {
		prepare(w)
	}
	var a, g time.Duration
	for i := 0; b.Loop(); i++ {
		if each != nil {
			each(w, 2*i)
		}
		start := time.Now()
		ours(w)
		a += time.Since(start)
		if each != nil {
			each(w, 2*i+1)
		}
		start = time.Now()
		theirs(w)
		g += time.Since(start)
	}
	b.ReportMetric(float64(a.Milliseconds())/float64(b.N), "ms/ours")
	b.ReportMetric(float64(g.Milliseconds())/float64(b.N), "ms/git")
	b.ReportMetric(float64(a)/float64(g), "ours/git")
	b.ReportMetric(0, "ns/op")
}

func both(w *bench) {
	w.mark()
	w.git("add", "-A", "-f", ".")
	w.git("commit", "-q", "-m", "baseline")
	w.settle()
	w.git("status", "--porcelain")
}

func BenchmarkBaseline20k(b *testing.B) {
	versus(b, nil, func(w *bench, _ int) {
		w.must(os.RemoveAll(w.store))
		w.must(os.RemoveAll(w.root + "-git"))
		git(b, w.root, "init", "-q", "--bare", w.root+"-git")
	}, func(w *bench) { w.mark() }, func(w *bench) {
		w.git("add", "-A", "-f", ".")
		w.git("commit", "-q", "-m", "baseline")
	})
}

func BenchmarkUnchanged20k(b *testing.B) {
	versus(b, both, nil, func(w *bench) {
		w.do(Request{Op: OpCommit, Author: Agent, AllowEmpty: true})
	}, func(w *bench) {
		w.git("add", "-A", "-f", ".")
		w.git("commit", "-q", "--allow-empty", "-m", "turn")
	})
}

func BenchmarkChanges20k(b *testing.B) {
	versus(b, both, func(w *bench, i int) { w.change(i) }, func(w *bench) {
		if got := w.turn(); len(got) != 90 {
			w.Fatalf("%d changes", len(got))
		}
	}, func(w *bench) {
		w.git("add", "-A", "-f", ".")
		w.git("commit", "-q", "-m", "turn")
		w.git("diff", "HEAD~", "HEAD")
	})
}

func BenchmarkReset20k(b *testing.B) {
	var base Commit
	versus(b, func(w *bench) { both(w); base = w.mark() }, func(w *bench, i int) { w.change(i) }, func(w *bench) {
		if s := w.do(Request{Op: OpReset, Commit: base.ID}).Stats; s.Written < 90 {
			w.Fatalf("stats %+v", s)
		}
	}, func(w *bench) {
		w.git("reset", "-q", "--hard")
		w.git("clean", "-q", "-f", "-d", "-x")
	})
}

func BenchmarkSmallTurn(b *testing.B) {
	w := newBench(b)
	for i := range 20 {
		w.write(fmt.Sprint("f", i), "content")
	}
	w.mark()
	w.settle()
	i := 0
	for b.Loop() {
		i++
		w.write("f1", fmt.Sprint(i))
		w.do(Request{Op: OpCommit, Author: Agent})
	}
}

// BenchmarkFloor20k is the walk alone, the least a snapshot can cost.
func BenchmarkFloor20k(b *testing.B) {
	w := newBench(b)
	w.fill()
	for b.Loop() {
		n := 0
		w.must(filepath.Walk(w.root, func(string, os.FileInfo, error) error { n++; return nil }))
	}
}
