package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"assay"
	"assay/agent/script"
	"assay/fault"
	"assay/internal/plan"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// fixed is a provider that cannot switch users.
func fixed() *sandbox.Func {
	return &sandbox.Func{Name: "fixed", Make: func(context.Context, sandbox.FuncOptions) (sandbox.Driver, error) {
		return nil, errors.New("planning makes no sandbox")
	}}
}

type noUsers struct{ *sandbox.Func }

func (p noUsers) Info() sandbox.Info {
	i := p.Func.Info()
	i.Users = sandbox.UsersNone
	return i
}

// all splits a joined error.
func all(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func TestProblemsOfDefinitionsNameNoPair(t *testing.T) {
	_, err := plan.Link(t.Context(), &assay.Suite{
		Experiments: []assay.Experiment{{ID: "x"}, {ID: "x", Agent: script.Nop{}}},
		Evals:       []assay.Eval{{ID: "e"}},
	}, plan.Selection{}, nil)
	want := map[string]string{
		"experiment-agent-missing": "experiment x has no agent",
		"duplicate-id":             "experiment id x is defined twice: in Go code and in Go code",
		"eval-body":                "eval e has no body, or two",
	}
	for _, e := range all(err) {
		if want[fault.CodeOf(e)] != e.Error() {
			t.Errorf("%s: %q, want %q", fault.CodeOf(e), e, want[fault.CodeOf(e)])
		}
		delete(want, fault.CodeOf(e))
	}
	for code := range want {
		t.Errorf("%s is not told", code)
	}
}

func TestCommandsThatCouldOnlyFailAreRefused(t *testing.T) {
	user := sandbox.Command{Shell: "whoami", User: "root"}
	path := sandbox.Command{Shell: "x", Env: map[string]string{"PATH": "/opt"}}
	layer := func(l sandbox.Layer) assay.Suite {
		return assay.Suite{Experiments: []assay.Experiment{{ID: "x", Agent: script.Nop{}, Sandbox: l}}, Evals: []assay.Eval{{ID: "e", Prompt: "go"}}}
	}
	base := sandbox.From(sandbox.Template{Provider: noUsers{fixed()}, Spec: "spec"})
	free := fake.New(fake.Script{}).Layer()
	eval := func(l sandbox.Layer, e assay.Eval) assay.Suite {
		s := layer(l)
		e.ID, e.Prompt = "e", "go"
		if len(e.Turns) > 0 {
			e.Prompt = ""
		}
		s.Evals = []assay.Eval{e}
		return s
	}
	for _, c := range []struct {
		name  string
		suite assay.Suite
		code  string
	}{
		{"setup", layer(base.SetupCommands(user)), "sandbox.user-unsupported"},
		{"prepare", layer(base.Prepare(user)), "sandbox.user-unsupported"},
		{"teardown", layer(base.TeardownCommands(user)), "sandbox.user-unsupported"},
		{"eval setup", eval(base, assay.Eval{Setup: []sandbox.Command{user}}), "sandbox.user-unsupported"},
		{"eval teardown", eval(base, assay.Eval{Teardown: []sandbox.Command{user}}), "sandbox.user-unsupported"},
		{"check", eval(base, assay.Eval{Checks: []assay.Check{{Run: &assay.RunCheck{Command: user}}}}), "sandbox.user-unsupported"},
		{"check of a turn", eval(base, assay.Eval{Turns: []assay.TurnSpec{{Prompt: "go", Checks: []assay.Check{{Run: &assay.RunCheck{Command: user}}}}}}), "sandbox.user-unsupported"},
		{"on the host", layer(free.SetupCommands(sandbox.Command{Shell: "x", Host: true, User: "root"})), "host-user-unsupported"},
		{"PATH", layer(free.SetupCommands(path)), "command-path-managed"},
		{"PATH on the host", layer(free.SetupCommands(sandbox.Command{Shell: "x", Host: true, Env: path.Env})), ""},
		{"a provider that can", layer(free.SetupCommands(user)), ""},
		{"a hook", layer(base.Setup(func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil })), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := plan.Link(t.Context(), &c.suite, plan.Selection{}, nil)
			if fault.CodeOf(err) != c.code {
				t.Fatalf("error %v, want the code %q", err, c.code)
			}
			if err != nil && (!strings.Contains(err.Error(), "(experiment x × eval e)") || fault.FixOf(err) == "" || fault.ClassOf(err) != fault.Config) {
				t.Errorf("%v (fix %q)", err, fault.FixOf(err))
			}
		})
	}
}

func TestFilesOfAnEvalAreLookedAtOnce(t *testing.T) {
	l := fake.New(fake.Script{}).Layer()
	s := assay.Suite{Root: t.TempDir(), Evals: []assay.Eval{{ID: "e", Prompt: "go", Workspace: "/nowhere/at-all"}}}
	for _, id := range []string{"a", "b", "c"} {
		s.Experiments = append(s.Experiments, assay.Experiment{ID: ref.ExperimentID(id), Agent: script.Nop{}, Sandbox: l})
	}
	_, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
	if n := len(all(err)); n != 1 || fault.CodeOf(err) != "eval-files" || strings.HasSuffix(err.Error(), ")") {
		t.Errorf("%d errors: %v", n, err)
	}
}

func TestTagsNarrow(t *testing.T) {
	s := assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: script.Nop{}, Sandbox: fake.New(fake.Script{}).Layer()}},
		Evals:       []assay.Eval{{ID: "a", Prompt: "go", Tags: []string{"smoke"}}, {ID: "b", Prompt: "go"}, {ID: "c", Prompt: "go", Tags: []string{"slow", "web"}}},
	}
	for want, tags := range map[string][]string{"a b c": nil, "a": {"smoke"}, "a c": {"web", "smoke"}, "": {"none"}} {
		p, err := plan.Link(t.Context(), &s, plan.Selection{Tags: tags}, nil)
		if want == "" {
			if fault.CodeOf(err) != "nothing-selected" {
				t.Errorf("tags %q: %v", tags, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, slot := range p.Slots() {
			got = append(got, string(slot.Ref.Eval))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("tags %q select %q, want %q", tags, got, want)
		}
	}
}
