package discover

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// boxSpec stands for a provider's options, with the tags that providers use.
type boxSpec struct {
	Image  string            `yaml:"image" required:"true" min:"1" doc:"The image."`
	Args   map[string]string `yaml:"args"`
	Memory int64             `yaml:"memory" format:"size"`
	Warm   []sandbox.Command `yaml:"warm"`
}

type box struct{ sandbox.Func }

// kinds are two providers and two agents.
func kinds() Options {
	define := func(kind string) sandbox.Definition {
		provider := &box{sandbox.Func{Name: kind}}
		return sandbox.Definition{
			Kind: kind, Spec: func() any { return new(boxSpec) },
			Template: func(spec any, dir string) (sandbox.Template, error) {
				s := *spec.(*boxSpec)
				if s.Image == "refused" {
					return sandbox.Template{}, fault.Configf("image-refused", "Choose another image.", "the image %s is refused", s.Image)
				}
				return sandbox.Template{Provider: provider, Spec: s, Dir: dir}, nil
			},
		}
	}
	options := struct {
		Run string            `yaml:"run" min:"1"`
		Env map[string]string `yaml:"env" keys:"env"`
	}{}
	return Options{
		Sandboxes: sandbox.NewRegistry(define("docker"), define("local")),
		Agents: agent.NewRegistry(
			agent.Definition{Name: "nop", Options: func() any { return &struct{}{} }, Agent: func(any, string) (agent.Agent, error) { return named("nop"), nil }},
			agent.Definition{Name: "command", Options: func() any { o := options; return &o }, Agent: func(any, string) (agent.Agent, error) { return named("command"), nil }},
		),
	}
}

// named is an agent with nothing but a name.
type named string

func (n named) Info() agent.Info { return agent.Info{Name: string(n)} }

func (named) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	return agent.Turn{Status: agent.Completed}, nil
}

// tree writes files below a fresh folder; a content of "->x" is a symlink to x.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		full := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if len(content) > 2 && content[:2] == "->" {
			if err := os.Symlink(content[2:], full); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
