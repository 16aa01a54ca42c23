package discover

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// benchEval is an eval of ordinary size.
const benchEval = `description: Fix the keyboard focus of Button
tags: [smoke, ui]
timeout: 10m
files:
  notes.txt: "inline text\n"
setup:
  - git init -q
prompt: |
  Make Button focusable with the keyboard.
  Do not touch the tests.
checks:
  - run: npm test
  - {file: src/Button.tsx, matches: 'tabIndex'}
  - changed: src/Button.tsx
  - {reply: {matches: '(?i)focus'}}
  - {run: npm run lint, soft: true, name: lint}
metadata: {source: acme-123}
`

func manyEvals(tb testing.TB, n int) string {
	dir := tb.TempDir()
	for i := range n {
		full := filepath.Join(dir, "evals", fmt.Sprintf("group-%02d", i%100), fmt.Sprintf("eval-%05d", i))
		if err := os.MkdirAll(full, 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(full, "eval.yaml"), []byte(benchEval), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// BenchmarkLoad10k loads ten thousand evals, each in a folder of its own, and
// reports the heap that the suite keeps.
func BenchmarkLoad10k(b *testing.B) {
	dir := manyEvals(b, 10_000)
	b.ReportAllocs()
	var kept uint64
	for b.Loop() {
		s, err := Load(context.Background(), dir, kinds())
		if err != nil || len(s.Evals) != 10_000 {
			b.Fatal(err)
		}
		b.StopTimer()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		kept = m.HeapAlloc
		runtime.KeepAlive(s)
		b.StartTimer()
	}
	b.ReportMetric(float64(kept)/(1<<20), "keptMiB")
}
