//go:build unix

package discover

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe, a folder and an oversized file in the place of a definition are
// problems; none of them makes the loader wait.
func TestOddFiles(t *testing.T) {
	dir := tree(t, map[string]string{"evals/a.eval.yaml": goodEval, "evals/ok/eval.yaml": "prompt: {file: pipe}\n"})
	for _, p := range []string{"evals/pipe.eval.yaml", "evals/ok/pipe"} {
		if err := syscall.Mkfifo(filepath.Join(dir, p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	big := filepath.Join(dir, "evals/big.eval.yaml")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "evals/dir.eval.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "evals/a.eval.yaml"), filepath.Join(dir, "evals/link.eval.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(context.Background(), dir, kinds())
	var got []string
	for _, p := range ProblemsOf(err) {
		got = append(got, p.File+" "+p.Code)
	}
	want := "evals/big.eval.yaml file-too-large, evals/ok/eval.yaml path-kind, evals/pipe.eval.yaml file-unreadable"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
