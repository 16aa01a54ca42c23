package schema

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"assay/agent"
	"assay/fault"
	"assay/internal/projectfile"
	"assay/sandbox"
)

type boxSpec struct {
	Image  string            `yaml:"image" required:"true" min:"1" doc:"The image."`
	Args   map[string]string `yaml:"args"`
	Memory int64             `yaml:"memory" format:"size"`
	Warm   []sandbox.Command `yaml:"warm"`
}

type scriptFile struct {
	Commands []string `yaml:"commands" required:"true" doc:"What runs."`
}

func options() Options {
	box := func(kind string) sandbox.Definition {
		return sandbox.Definition{Kind: kind, Spec: func() any { return new(boxSpec) }}
	}
	type run struct {
		Run string            `yaml:"run" min:"1"`
		Env map[string]string `yaml:"env" keys:"env"`
	}
	return Options{
		Kinds: projectfile.Kinds{
			Sandboxes: sandbox.NewRegistry(box("docker"), box("local")),
			Agents: agent.NewRegistry(
				agent.Definition{Name: "nop", Options: func() any { return &struct{}{} }},
				agent.Definition{Name: "command", Options: func() any { return new(run) }},
			),
		},
		Shapes: map[string]any{"fake": scriptFile{}},
	}
}

var targets = map[string]func() any{
	"project":    func() any { return new(projectfile.Project) },
	"experiment": func() any { return new(projectfile.Experiment) },
	"eval":       func() any { return new(projectfile.Eval) },
	"group":      func() any { return new(projectfile.Group) },
	"fake":       func() any { return new(scriptFile) },
}

func compile(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	raw, err := For(name, options())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name+".json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name + ".json") // also holds it to the meta-schema
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Reader and schema give the same verdict on the structure of every document.
func TestSchemaAgreesWithReader(t *testing.T) {
	raw, err := os.ReadFile("testdata/documents.txt")
	if err != nil {
		t.Fatal(err)
	}
	compiled := map[string]*jsonschema.Schema{}
	for name := range targets {
		compiled[name] = compile(t, name)
	}
	count := map[string]int{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		verdict, rest, _ := strings.Cut(line, " ")
		kind, doc, _ := strings.Cut(strings.TrimSpace(rest), " ")
		good := verdict == "good"
		count[verdict+" "+kind]++
		root, problems := projectfile.Parse([]byte(doc))
		if len(problems) > 0 {
			t.Errorf("%s: %v", line, problems)
			continue
		}
		problems = projectfile.Decode(root, targets[kind](), options().Kinds)
		if good != (len(problems) == 0) {
			t.Errorf("reader: %s\n\t%v", line, problems)
		}
		if err := compiled[kind].Validate(instance(t, root)); good != (err == nil) {
			t.Errorf("schema: %s\n\t%v", line, err)
		}
	}
	for kind := range targets {
		if count["good "+kind] == 0 || count["bad "+kind] == 0 {
			t.Errorf("no good or no bad documents for %s: %v", kind, count)
		}
	}
}

// instance is a document as the JSON Schema library wants it.
func instance(t *testing.T, n *projectfile.Node) any {
	t.Helper()
	v, ok := n.Value()
	if !ok {
		t.Fatalf("no JSON value at %d:%d", n.Line, n.Column)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every field of every schema says what it is for, so that an editor can.
func TestEveryFieldIsDescribed(t *testing.T) {
	for name := range targets {
		raw, err := For(name, options())
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		for field, v := range doc["properties"].(map[string]any) {
			if s, _ := v.(map[string]any)["description"].(string); s == "" {
				t.Errorf("%s: the field %s is not described", name, field)
			}
		}
	}
}

func TestUnknownSchema(t *testing.T) {
	_, err := For("evil", options())
	if fault.CodeOf(err) != "schema-unknown" || !strings.Contains(fault.FixOf(err), "eval, experiment, fake, group, plugin, project") {
		t.Errorf("got %v, fix %q", err, fault.FixOf(err))
	}
}
