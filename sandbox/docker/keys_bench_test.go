package docker

import (
	"fmt"
	"testing"

	"assay/sandbox"
)

// BenchmarkPlan200Dockerfiles is the part of planning that builds cost: the keys
// of 200 Dockerfiles over one context of a thousand files.
func BenchmarkPlan200Dockerfiles(b *testing.B) {
	files := map[string]string{".dockerignore": "**/*.log\n"}
	for i := range 1000 {
		files[fmt.Sprintf("src/%d/file%d.txt", i%50, i)] = fmt.Sprint("content ", i)
	}
	for i := range 200 {
		files[fmt.Sprintf("env/%d.Dockerfile", i)] = fmt.Sprintf("FROM a\nRUN echo %d\nCOPY . /x\n", i)
	}
	dir := folder(b, files)
	p := New(Options{})
	for b.Loop() {
		seen, ctx := map[sandbox.Key]bool{}, sandbox.WithMemo(b.Context())
		for i := range 200 {
			key, err := p.Key(ctx, sandbox.Template{Provider: p, Dir: dir, Spec: Spec{Dockerfile: fmt.Sprintf("env/%d.Dockerfile", i), Context: "."}}, sandbox.Harness{})
			if err != nil {
				b.Fatal(err)
			}
			seen[key] = true
		}
		if len(seen) != 200 {
			b.Fatalf("%d keys", len(seen))
		}
	}
}
