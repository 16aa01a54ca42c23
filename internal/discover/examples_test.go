package discover

import (
	"context"
	"os"
	"testing"

	"assay/builtin"
	"assay/sandbox"
)

// The examples that ship load with what ships.
func TestExamplesLoad(t *testing.T) {
	var defs []sandbox.Definition
	shipped := builtin.Sandboxes()
	for _, k := range shipped.Kinds() {
		d, _ := shipped.Lookup(k)
		defs = append(defs, d)
	}
	if _, ok := shipped.Lookup("local"); !ok {
		defs = append(defs, sandbox.Definition{
			Kind: "local", Spec: func() any {
				return &struct {
					Dir string `yaml:"dir"`
				}{}
			},
			Template: func(any, string) (sandbox.Template, error) { return sandbox.Template{}, nil },
		})
	}
	dirs, err := os.ReadDir("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for _, d := range dirs {
		dir := "../../examples/" + d.Name()
		if !exists(dir+"/evals") && !exists(dir+"/experiments") {
			continue // a program of its own
		}
		s, err := Load(context.Background(), dir, Options{Sandboxes: sandbox.NewRegistry(defs...), Agents: builtin.Agents()})
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		loaded++
		for _, e := range s.Evals {
			if len(e.Checks) == 0 && len(e.Turns) == 0 {
				t.Errorf("%s: %s checks nothing", dir, e.ID)
			}
			if d.Name() == "quickstart" && e.Solution == nil {
				t.Errorf("%s: %s has no solution", dir, e.ID)
			}
		}
	}
	if loaded == 0 {
		t.Error("no example was loaded")
	}
}
