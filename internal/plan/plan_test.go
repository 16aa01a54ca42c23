package plan_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"assay"
	"assay/agent/script"
	"assay/fault"
	"assay/internal/plan"
	"assay/ref"
	"assay/sandbox"
)

// keyed is a provider that counts how often it is asked for a key.
type keyed struct {
	sandbox.Provider // nil: planning calls nothing else
	info             sandbox.Info
	keys             atomic.Int64
}

func (k *keyed) Info() sandbox.Info { i := k.info; i.Kind = "kind"; return i }

func (k *keyed) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	k.keys.Add(1)
	if t.Spec == "bad" {
		return "", errors.New("no such file")
	}
	return sandbox.Key(fmt.Sprint(t.Spec)), nil
}

func (k *keyed) Classify(error) fault.Class { return fault.Unknown }

func (k *keyed) from(spec string) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: k, Spec: spec})
}

func suite(exps, evals string, box sandbox.Layer) assay.Suite {
	s := assay.Suite{Defaults: assay.Defaults{Sandbox: box}}
	for id := range strings.FieldsSeq(exps) {
		s.Experiments = append(s.Experiments, assay.Experiment{ID: ref.ExperimentID(id), Agent: script.Nop{}})
	}
	for id := range strings.FieldsSeq(evals) {
		id, tag, _ := strings.Cut(id, "#")
		s.Evals = append(s.Evals, assay.Eval{ID: ref.EvalID(id), Prompt: "x", Tags: strings.Split(tag, ",")})
	}
	return s
}

func TestSelection(t *testing.T) {
	s := suite("compare compare/codex compare/claude solo deep/compare/x v2", "button/a#ui button/b#ui,slow buttons/c auth", (&keyed{}).from("s"))
	s.Experiments[3].Evals = []string{"button/"}
	for _, c := range []struct {
		name string
		sel  plan.Selection
		want string // slots, or the code of the error
	}{
		{"the exact id wins", plan.Selection{Experiment: "compare", Evals: []string{"auth"}}, "compare auth"},
		{"a directory", plan.Selection{Experiment: "compare/", Evals: []string{"auth"}}, "compare auth"},
		{"a directory at any depth", plan.Selection{Experiment: "deep", Evals: []string{"auth"}}, "deep/compare/x auth"},
		{"directory and start of a name", plan.Selection{Experiment: "compare/c", Evals: []string{"auth"}}, "compare/codex auth,compare/claude auth"},
		{"start of a name", plan.Selection{Experiment: "so", Evals: []string{"button"}}, "solo button/a,solo button/b"},
		{"path of a file", plan.Selection{Experiment: "./experiments/compare/codex.yaml", Evals: []string{"auth"}}, "compare/codex auth"},
		{"absolute path of a file", plan.Selection{Experiment: "/p/experiments/v2.yaml", Evals: []string{"auth"}}, "v2 auth"},
		{"a file is no prefix", plan.Selection{Experiment: "experiments/compare/co.yaml"}, "experiment-unknown"},
		{"unknown", plan.Selection{Experiment: "compere"}, "experiment-unknown"},
		{"one eval", plan.Selection{Experiment: "v2", Evals: []string{"button/a"}}, "v2 button/a"},
		{"prefix with slash", plan.Selection{Experiment: "v2", Evals: []string{"button/"}}, "v2 button/a,v2 button/b"},
		{"prefix without slash", plan.Selection{Experiment: "v2", Evals: []string{"button"}}, "v2 button/a,v2 button/b,v2 buttons/c"},
		{"prefixes keep discovery order", plan.Selection{Experiment: "v2", Evals: []string{"auth", "button/b"}}, "v2 button/b,v2 auth"},
		{"one prefix matches nothing", plan.Selection{Experiment: "v2", Evals: []string{"auth", "nope"}}, "eval-prefix-unmatched"},
		{"evals only narrow", plan.Selection{Experiment: "solo", Evals: []string{"auth"}}, "eval-prefix-unmatched"},
		{"a tag", plan.Selection{Experiment: "v2", Tags: []string{"slow"}}, "v2 button/b"},
		{"any of two tags", plan.Selection{Experiment: "v2", Tags: []string{"slow", "ui"}}, "v2 button/a,v2 button/b"},
		{"a tag that nothing has", plan.Selection{Experiment: "v2", Tags: []string{"x"}}, "nothing-selected"},
		{"all first attempts before any second", plan.Selection{Experiment: "solo", Attempts: 2}, "solo button/a,solo button/b,solo button/a#1,solo button/b#1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := plan.Link(t.Context(), &s, c.sel, nil)
			got := fault.CodeOf(err)
			if err == nil {
				var slots []string
				for _, sl := range p.Slots() {
					slots = append(slots, strings.TrimSuffix(sl.Ref.String(), "#0"))
				}
				got = strings.Join(slots, ",")
			}
			if got != c.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, c.want)
			}
			if c.want == "experiment-unknown" && !strings.Contains(fault.FixOf(err), "compare/codex") {
				t.Errorf("the remedy %q names nothing near", fault.FixOf(err))
			}
		})
	}
}

func TestTimeoutOfTheNearestLevel(t *testing.T) {
	names := []string{"flag", "experiment", "eval", "config"}
	for set := range 16 {
		var d [4]time.Duration
		want, layer := time.Duration(0), ""
		for i := 3; i >= 0; i-- {
			if set&(1<<i) != 0 {
				d[i] = time.Duration(i+1) * time.Minute
				want, layer = d[i], names[i]
			}
		}
		s := suite("x", "e", (&keyed{}).from("s"))
		s.Experiments[0].Timeout, s.Evals[0].Timeout, s.Defaults.Timeout = d[1], d[2], d[3]
		p, err := plan.Link(t.Context(), &s, plan.Selection{Timeout: d[0]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if sl := p.Slots()[0]; sl.Timeout != want || sl.TimeoutLayer != layer {
			t.Errorf("%v: %s of %q, want %s of %q", d, sl.Timeout, sl.TimeoutLayer, want, layer)
		}
	}
}

func TestWhoSaysWhereTheSandboxStarts(t *testing.T) {
	k := &keyed{}
	cmd := sandbox.Command{Shell: "true"}
	for _, c := range []struct {
		name                    string
		config, profile, ex, ev bool
		want                    string // spec of the owner or code
	}{
		{"none", false, false, false, false, "sandbox.template-missing"},
		{"config", true, false, false, false, "config"},
		{"profile over config", true, true, false, false, "profile"},
		{"experiment over profile", true, true, true, false, "ex"},
		{"eval over config", true, false, false, true, "ev"},
		{"eval over profile", false, true, false, true, "ev"},
		{"experiment and eval", true, true, true, true, "sandbox.template-conflict"},
	} {
		layer := func(on bool, spec string) sandbox.Layer {
			l := sandbox.NewLayer()
			if on {
				l = k.from(spec)
			}
			return l.Env(map[string]string{"LAST": spec, spec: "1"}).Path("/" + spec).Prepare(cmd)
		}
		s := suite("x", "e", layer(c.config, "config"))
		s.Profiles = map[string]sandbox.Layer{"p": layer(c.profile, "profile")}
		s.Experiments[0].Profile, s.Experiments[0].Sandbox, s.Evals[0].Sandbox = "p", layer(c.ex, "ex"), layer(c.ev, "ev")
		p, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
		if err != nil {
			if fault.CodeOf(err) != c.want || !strings.Contains(err.Error(), "experiment x × eval e") {
				t.Errorf("%s: %v, want %s", c.name, err, c.want)
			}
			continue
		}
		sl := p.Slots()[0]
		if sl.Environment.Template.Spec != c.want {
			t.Errorf("%s: starts from %v, want %s", c.name, sl.Environment.Template.Spec, c.want)
		}
		if e := sl.Settings; e.Env["LAST"] != "ev" || len(e.Env) != 5 || strings.Join(e.Path, "") != "/ev/ex/profile/config" {
			t.Errorf("%s: settings %+v", c.name, e)
		}
		for i, v := range sl.Layers {
			_, bears := v.Layer.Template()
			replaced := i != sl.Owner && []bool{c.config, c.profile, c.ex, c.ev}[i]
			if bears != (i == sl.Owner) || (len(v.Layer.PrepareSteps()) == 0) != replaced {
				t.Errorf("%s: level %s bears %v and has %d commands, replaced %v", c.name, v.Name, bears, len(v.Layer.PrepareSteps()), replaced)
			}
		}
	}
}

func TestUnsupportedIsRefused(t *testing.T) {
	for code, l := range map[string]func(sandbox.Layer) sandbox.Layer{
		"sandbox.user-unsupported":    func(l sandbox.Layer) sandbox.Layer { return l.User("node") },
		"sandbox.network-unsupported": func(l sandbox.Layer) sandbox.Layer { return l.Network(sandbox.Network{Mode: "none"}) },
		"sandbox.limits-unsupported":  func(l sandbox.Layer) sandbox.Layer { return l.Resources(sandbox.Resources{PIDs: 5}) },
		"command-path-managed":        func(l sandbox.Layer) sandbox.Layer { return l.Env(map[string]string{"PATH": "/x"}) },
	} {
		for _, able := range []bool{false, true} {
			k := &keyed{}
			if able {
				k.info = sandbox.Info{Users: sandbox.UsersAny, Network: true, Limits: true}
			}
			s := suite("x", "e", l(k.from("s")))
			_, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
			if refused := fault.CodeOf(err) == code; refused != (!able || code == "command-path-managed") || refused && (fault.FixOf(err) == "" || fault.ClassOf(err) != fault.Config) {
				t.Errorf("%s, able %v: %v", code, able, err)
			}
		}
	}
}

func TestAllProblemsAtOnceAndKeysOnce(t *testing.T) {
	k := &keyed{}
	s := suite("a b c", "e1 e2 e3 e4 e5 e6 e7", k.from("good"))
	s.Experiments[1].Sandbox = k.from("bad")
	s.Experiments[2].Sandbox = k.from("good").User("node")
	_, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
	if err == nil || strings.Count(err.Error(), "no such file") != 1 || strings.Count(err.Error(), "cannot run commands as user node") != 1 || !strings.Contains(err.Error(), "and 2 more") {
		t.Errorf("error %v", err)
	}
	if n := k.keys.Load(); n != 2 {
		t.Errorf("%d keys were asked for, want one for each declaration: 2", n)
	}
}

// big is ten thousand evals.
func big() assay.Suite {
	s := suite("x", "", (&keyed{}).from("s"))
	for i := range 10_000 {
		s.Evals = append(s.Evals, assay.Eval{ID: ref.EvalID(fmt.Sprintf("group-%d/eval-%d", i/100, i)), Prompt: "x"})
	}
	return s
}

func BenchmarkLink10k(b *testing.B) {
	s := big()
	b.ReportAllocs()
	for b.Loop() {
		p, err := plan.Link(b.Context(), &s, plan.Selection{}, nil)
		if err != nil || len(p.Slots()) != 10_000 {
			b.Fatal(err)
		}
	}
}

func TestLinkOfTenThousandIsSmall(t *testing.T) {
	s := big()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p, err := plan.Link(t.Context(), &s, plan.Selection{}, nil)
	runtime.ReadMemStats(&after)
	if err != nil || len(p.Slots()) != 10_000 || len(p.Environments) != 1 {
		t.Fatal(err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 150<<20 {
		t.Errorf("planning ten thousand evals allocated %d MiB", n>>20)
	}
}
