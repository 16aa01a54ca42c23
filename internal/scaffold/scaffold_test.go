package scaffold

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"assay/builtin"
	"assay/fault"
	"assay/internal/discover"
	"assay/sandbox"
)

var all = []string{"AGENTS.md", "assay.yaml", "evals/hello/eval.yaml", "evals/hello/workspace/greet.sh", "experiments/demo.yaml", ".gitignore"}

// A new project loads, whatever its name and sandbox.
func TestInitMakesAProjectThatLoads(t *testing.T) {
	for _, kind := range Sandboxes() {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "deep", `odd "name": [x]`)
			res, err := Init(dir, Options{Sandbox: kind})
			if err != nil || !slices.Equal(res.Created, all) || res.Kept != nil {
				t.Fatalf("got %+v, %v", res, err)
			}
			kinds := builtin.Sandboxes()
			if _, ok := kinds.Lookup(kind); !ok {
				// Not built in yet: the line must at least be well formed.
				kinds = sandbox.NewRegistry(sandbox.Definition{Kind: kind, Spec: func() any { return &struct{}{} }, Template: func(any, string) (sandbox.Template, error) { return sandbox.Template{}, nil }})
			}
			s, err := discover.Load(context.Background(), dir, discover.Options{Sandboxes: kinds, Agents: builtin.Agents()})
			if err != nil {
				t.Fatal(err)
			}
			if s.Name != `odd "name": [x]` || len(s.Evals) != 1 || s.Evals[0].ID != "hello" || len(s.Evals[0].Checks) != 3 || s.Experiments[0].ID != "demo" {
				t.Errorf("got %+v", s)
			}
			if _, ok := s.Experiments[0].Sandbox.Template(); !ok {
				t.Error("the experiment has no sandbox")
			}
		})
	}
}

// The second time nothing changes, and a user's own files are never touched.
func TestInitKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	own := "my: file\n"
	if err := os.WriteFile(filepath.Join(dir, "assay.yaml"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("node_modules"), 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := Init(dir, Options{})
	if err != nil || !slices.Equal(res.Kept, []string{"assay.yaml"}) || !slices.Equal(res.Changed, []string{".gitignore"}) || len(res.Created) != 4 {
		t.Fatalf("got %+v, %v", res, err)
	}
	for name, want := range map[string]string{"assay.yaml": own, ".gitignore": "node_modules\n.assay/\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	res, err = Init(dir, Options{})
	if err != nil || len(res.Kept) != len(all) || res.Created != nil || res.Changed != nil {
		t.Errorf("again: %+v, %v", res, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// A failure in the middle leaves nothing.
func TestInitTakesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// experiments is the last folder that is made; as a file it stops the work.
	if err := os.WriteFile(filepath.Join(dir, "experiments"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := Init(dir, Options{})
	if fault.CodeOf(err) != "init-failed" || res.Created != nil {
		t.Fatalf("got %+v, %v", res, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestInitRefusesAnUnknownSandbox(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	_, err := Init(dir, Options{Sandbox: "dokcer"})
	if fault.CodeOf(err) != "init-sandbox-unknown" || !strings.Contains(fault.FixOf(err), "docker") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}
