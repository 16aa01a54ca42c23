package carry_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/carry"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// world is a pair with something in every place, and the files that it names.
type world struct {
	dir  string
	pair carry.Pair
}

func write(t *testing.T, path, body string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func hook(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil }

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"e/workspace/a.txt": "a", "e/workspace/sub/b.txt": "b", "e/hidden/h.txt": "h", "e/solution/solve.sh": "s", "agent/skill.md": "k", "data/d.json": "1", "e/one.json": "1", "e/warm.sh": "w",
	} {
		write(t, filepath.Join(dir, name), body, 0o644)
	}
	if err := os.Symlink("a.txt", filepath.Join(dir, "e/workspace/link")); err != nil {
		t.Fatal(err)
	}
	yes := true
	return &world{dir: dir, pair: carry.Pair{
		Experiment: &assay.Experiment{ID: "x", Model: "m1", ReasoningEffort: "low", Flags: map[string]any{"variant": 1, "on": false}, SharedState: "k"},
		Agent: agent.Info{
			Name: "ag", Version: "1", Identity: map[string]any{"maxTurns": 8, "env": map[string]string{"A": "1"}}, SecretEnv: []string{"KEY"},
			Harness: sandbox.Harness{Name: "h", Version: "1"}, Files: []string{filepath.Join(dir, "agent")},
		},
		Eval: &assay.Eval{
			ID: "e", Tags: []string{"t"}, Metadata: map[string]any{"src": "a"}, Workspace: filepath.Join(dir, "e/workspace"), Files: map[string]string{"n.txt": "n"},
			Setup: []sandbox.Command{{Shell: "git init"}}, Teardown: []sandbox.Command{{Shell: "rm x"}}, Hidden: filepath.Join(dir, "e/hidden"),
			Turns:    []assay.TurnSpec{{Prompt: "one", Checks: []assay.Check{{Succeeded: true}}}, {Prompt: "two"}},
			Checks:   []assay.Check{{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "npm test"}}}, {Name: "file", File: &assay.FileCheck{Path: "f", Exists: &yes}}},
			Solution: &sandbox.Command{Shell: "sh solve.sh"}, SolutionDir: filepath.Join(dir, "e/solution"),
			Diff: assay.DiffRules{Ignore: []string{"tmp/**"}}, Revision: "1", Inputs: []string{"../data", "one.json"}, Dir: filepath.Join(dir, "e"),
		},
		Levels: []carry.Level{
			{Owner: "config", Layer: sandbox.NewLayer().Prepare(sandbox.Command{Shell: "npm ci"})},
			{Owner: "experiment", Layer: sandbox.NewLayer().Setup(hook).Revision("1").SetupCommands(sandbox.Command{Shell: "./warm.sh x", Host: true}, sandbox.Command{Shell: "opaque", ID: "warm", Revision: "1"}), Plugins: []assay.Plugin{{Name: "cache", Revision: "1", With: map[string]any{"size": 1}, Setup: []sandbox.Command{{Shell: "warm"}}}}},
			{Owner: "eval", Layer: sandbox.NewLayer().TeardownCommands(sandbox.Command{Shell: "save"})},
		},
		Settings: sandbox.Settings{User: "node", Workdir: "/app", Env: map[string]string{"CI": "1"}, SecretEnv: []string{"TOKEN"}, Path: []string{"/opt"}, Resources: sandbox.Resources{PIDs: 5}, Network: sandbox.Network{Mode: "none"}},
		Provider: "docker node:24", Key: "k1",
	}}
}

func (w *world) identity(t *testing.T) *record.Identity {
	t.Helper()
	id, err := carry.NewPlanner(w.dir).Identity(w.pair)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Each change of an input changes the identity, and names that input alone.
func TestEveryInputCounts(t *testing.T) {
	file := func(name, body string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) { write(t, filepath.Join(w.dir, name), body, 0o644) }
	}
	pair := func(f func(*carry.Pair)) func(*testing.T, *world) {
		return func(_ *testing.T, w *world) { f(&w.pair) }
	}
	for _, c := range []struct {
		name   string
		change func(*testing.T, *world)
		want   string // the changed inputs
	}{
		{"experiment id", pair(func(p *carry.Pair) { p.Experiment.ID = "y" }), "experiment"},
		{"agent", pair(func(p *carry.Pair) { p.Agent.Name = "b" }), "agent"},
		{"agent version", pair(func(p *carry.Pair) { p.Agent.Version = "2" }), "agent version"},
		{"agent option", pair(func(p *carry.Pair) {
			p.Agent.Identity = map[string]any{"maxTurns": 9, "env": map[string]string{"A": "1"}}
		}), "agent maxTurns:"},
		{"agent option added", pair(func(p *carry.Pair) {
			p.Agent.Identity = map[string]any{"maxTurns": 8, "env": map[string]string{"A": "1"}, "mode": "x"}
		}), "agent mode:"},
		{"agent installs", pair(func(p *carry.Pair) { p.Agent.Harness.Version = "2" }), "agent harness"},
		{"agent secret name", pair(func(p *carry.Pair) { p.Agent.SecretEnv = []string{"KEY2"} }), "agent secretEnv"},
		{"agent file", file("agent/skill.md", "k2"), "agent files agent skill.md"},
		{"model", pair(func(p *carry.Pair) { p.Experiment.Model = "m2" }), "model"},
		{"effort", pair(func(p *carry.Pair) { p.Experiment.ReasoningEffort = "high" }), "reasoningEffort"},
		{"flag", pair(func(p *carry.Pair) { p.Experiment.Flags = map[string]any{"variant": 2, "on": false} }), "flags variant"},
		{"flag that is false removed", pair(func(p *carry.Pair) { p.Experiment.Flags = map[string]any{"variant": 1} }), "flags on"},
		{"flag of another kind", pair(func(p *carry.Pair) { p.Experiment.Flags = map[string]any{"variant": "1", "on": false} }), "flags variant"},
		{"reuse", pair(func(p *carry.Pair) { p.Experiment.SandboxReuse = true }), "sandboxReuse"},
		{"shared state", pair(func(p *carry.Pair) { p.Experiment.SharedState = "k2" }), "sharedState"},
		{"judge", pair(func(p *carry.Pair) { p.Judge = struct{ Model string }{"j"} }), "judge"},
		{"group", pair(func(p *carry.Pair) { p.Group = &assay.Group{ID: "g"} }), "group"},
		{"eval id", pair(func(p *carry.Pair) { p.Eval.ID = "e2" }), "eval"},
		{"tags", pair(func(p *carry.Pair) { p.Eval.Tags = nil }), "tags"},
		{"metadata", pair(func(p *carry.Pair) { p.Eval.Metadata = map[string]any{"src": "b"} }), "metadata src"},
		{"workspace file", file("e/workspace/a.txt", "A"), "workspace a.txt"},
		{"workspace file added", file("e/workspace/c.txt", "c"), "workspace c.txt"},
		{"workspace mode", func(t *testing.T, w *world) { write(t, filepath.Join(w.dir, "e/workspace/sub/b.txt"), "b", 0o755) }, "workspace sub/b.txt"},
		{"workspace link", func(t *testing.T, w *world) {
			link := filepath.Join(w.dir, "e/workspace/link")
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("sub/b.txt", link); err != nil {
				t.Fatal(err)
			}
		}, "workspace link"},
		{"inline file", pair(func(p *carry.Pair) { p.Eval.Files = map[string]string{"n.txt": "N"} }), "files n.txt"},
		{"setup", pair(func(p *carry.Pair) { p.Eval.Setup[0].Shell = "git init -q" }), "setup 1"},
		{"teardown", pair(func(p *carry.Pair) { p.Eval.Teardown[0].User = "root" }), "teardown 1"},
		{"prompt", pair(func(p *carry.Pair) { p.Eval.Turns[1].Prompt = "TWO" }), "turn 2"},
		{"session", pair(func(p *carry.Pair) { p.Eval.Turns[1].NewSession = true }), "turn 2 newSession"},
		{"check of a turn", pair(func(p *carry.Pair) { p.Eval.Turns[0].Checks[0].Soft = true }), "turn 1 check succeeded"},
		{"registered input", file("data/d.json", "{}"), "input data d.json"},
		{"registered file", file("e/one.json", "{}"), "input e/one.json"},
		{"hidden", file("e/hidden/h.txt", "H"), "hidden h.txt"},
		{"check", pair(func(p *carry.Pair) { p.Eval.Checks[0].Run.Exit = 1 }), "check run npm test"},
		{"check added", pair(func(p *carry.Pair) { p.Eval.Checks = append(p.Eval.Checks, assay.Check{Changed: "x"}) }), "check changed x"},
		{"order of checks", pair(func(p *carry.Pair) { slices.Reverse(p.Eval.Checks) }), "order of checks"},
		{"processes", pair(func(p *carry.Pair) { p.Eval.KeepProcesses = true }), "keepProcesses"},
		{"solution", pair(func(p *carry.Pair) { p.Eval.Solution.Shell = "bash solve.sh" }), "solution"},
		{"solution file", file("e/solution/solve.sh", "S"), "solution files solve.sh"},
		{"diff rules", pair(func(p *carry.Pair) { p.Eval.Diff.Include = []string{"x"} }), "diff include"},
		{"eval revision", pair(func(p *carry.Pair) { p.Eval.Revision = "2" }), "revision"},
		{"a func instead of turns", pair(func(p *carry.Pair) { p.Eval.Test = func(context.Context, *assay.T) error { return nil } }), "test"},
		{"start point", pair(func(p *carry.Pair) { p.Provider, p.Key = "docker node:25", "k2" }), "sandbox,sandbox key"},
		{"content of the start point", pair(func(p *carry.Pair) { p.Key = "k2" }), "sandbox key"},
		{"user", pair(func(p *carry.Pair) { p.Settings.User = "" }), "sandbox user"},
		{"workdir", pair(func(p *carry.Pair) { p.Settings.Workdir = "/w" }), "sandbox workdir"},
		{"variable", pair(func(p *carry.Pair) { p.Settings.Env["CI"] = "2" }), "sandbox env CI"},
		{"secret name", pair(func(p *carry.Pair) { p.Settings.SecretEnv = nil }), "sandbox secretEnv"},
		{"path", pair(func(p *carry.Pair) { p.Settings.Path = append(p.Settings.Path, "/x") }), "sandbox path"},
		{"limits", pair(func(p *carry.Pair) { p.Settings.Resources.PIDs = 6 }), "sandbox resources"},
		{"network", pair(func(p *carry.Pair) { p.Settings.Network.Mode = "default" }), "sandbox network"},
		{"prepare command", pair(func(p *carry.Pair) {
			p.Levels[0].Layer = sandbox.NewLayer().Prepare(sandbox.Command{Shell: "npm i"})
		}), "config sandbox prepare 1"},
		{"teardown of the layer", pair(func(p *carry.Pair) {
			p.Levels[2].Layer = p.Levels[2].Layer.TeardownCommands(sandbox.Command{Shell: "again"})
		}), "eval sandbox teardown 2"},
		{"hook", pair(func(p *carry.Pair) { p.Levels[2].Layer = p.Levels[2].Layer.Setup(hook) }), "eval sandbox setup 1"},
		{"revision of hooks", pair(func(p *carry.Pair) { p.Levels[1].Layer = p.Levels[1].Layer.Revision("2") }), "experiment sandbox revision"},
		{"file of a host command", file("e/warm.sh", "W"), "experiment sandbox setup 2 file e/warm.sh"},
		{"plugin revision", pair(func(p *carry.Pair) { p.Levels[1].Plugins[0].Revision = "2" }), "experiment plugin 1"},
		{"plugin key", pair(func(p *carry.Pair) { p.Levels[1].Plugins[0].Key = "b" }), "experiment plugin 1"},
		{"plugin config", pair(func(p *carry.Pair) { p.Levels[1].Plugins[0].With = map[string]any{"size": 2} }), "experiment plugin 1"},
		{"plugin command", pair(func(p *carry.Pair) { p.Levels[1].Plugins[0].Setup[0].Shell = "hot" }), "experiment plugin 1"},
		{"plugin shape", pair(func(p *carry.Pair) { p.Levels[1].Plugins[0].TeardownHook = hook }), "experiment plugin 1"},
		{"plugin moved", pair(func(p *carry.Pair) { p.Levels[1].Plugins, p.Levels[2].Plugins = nil, p.Levels[1].Plugins }), "eval plugin 1,experiment plugin 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			before := w.identity(t)
			c.change(t, w)
			after := w.identity(t)
			if carry.Equal(before, after) {
				t.Fatal("nothing changed")
			}
			var got []string
			for _, ch := range carry.Changes(before, after) {
				if ch.Old == ch.New {
					t.Errorf("%s changed from itself", ch.Input)
				}
				got = append(got, ch.Input)
			}
			if s := strings.Join(got, ","); s != c.want {
				t.Errorf("changed: %s, want %s", s, c.want)
			}
		})
	}
}

func TestWhatIsNoInput(t *testing.T) {
	for name, change := range map[string]func(*world){
		"attempts":        func(w *world) { w.pair.Experiment.Attempts = 7 },
		"early exit":      func(w *world) { w.pair.Experiment.EarlyExit = true },
		"concurrency":     func(w *world) { w.pair.Experiment.MaxConcurrency = 3 },
		"budget":          func(w *world) { w.pair.Experiment.Budget = 1 },
		"labels":          func(w *world) { w.pair.Experiment.Labels = map[string]any{"team": "web"} },
		"description":     func(w *world) { w.pair.Experiment.Description, w.pair.Eval.Description = "d", "d" },
		"timeouts":        func(w *world) { w.pair.Experiment.Timeout, w.pair.Eval.Timeout = time.Hour, time.Minute },
		"experiment hook": func(w *world) { w.pair.Experiment.SetupCommands = []sandbox.Command{{Shell: "up"}} },
		"selection":       func(w *world) { w.pair.Experiment.Evals = []string{"e"} },
		"lifetime":        func(w *world) { w.pair.Settings.Lifetime = time.Hour },
		"source":          func(w *world) { w.pair.Eval.Source, w.pair.Experiment.Source = "a", "b" },
		"opaque command": func(w *world) {
			w.pair.Levels[1].Layer = sandbox.NewLayer().Setup(hook).Revision("1").SetupCommands(sandbox.Command{Shell: "./warm.sh x", Host: true}, sandbox.Command{Shell: "other", ID: "warm", Revision: "1"})
		},
	} {
		w := newWorld(t)
		before := w.identity(t)
		change(w)
		if after := w.identity(t); !carry.Equal(before, after) {
			t.Errorf("%s changed %v", name, carry.Changes(before, after))
		}
	}
	w := newWorld(t)
	before := w.identity(t)
	write(t, filepath.Join(w.dir, "e/workspace/.git/HEAD"), "x", 0o644) // not uploaded
	if err := os.Chtimes(filepath.Join(w.dir, "e/workspace/a.txt"), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if after := w.identity(t); !carry.Equal(before, after) {
		t.Errorf("changed %v", carry.Changes(before, after))
	}
}

// Where the project lies and when it is planned is no input.
func TestTheSameElsewhere(t *testing.T) {
	a, b := newWorld(t).identity(t), newWorld(t).identity(t)
	if !carry.Equal(a, b) {
		t.Errorf("two equal projects differ in %v", carry.Changes(a, b))
	}
	if !maps.Equal(a.Inputs, b.Inputs) || a.Domain != carry.Domain || len(a.Digest) != 64 {
		t.Errorf("%+v", a)
	}
}

// The name and the value of an input cannot be confused with those of another.
func TestFieldsDoNotRunTogether(t *testing.T) {
	w := newWorld(t)
	w.pair.Settings.Env = map[string]string{"A": "b", "C": ""}
	one := w.identity(t)
	w.pair.Settings.Env = map[string]string{"A": "b\x00C"}
	if carry.Equal(one, w.identity(t)) {
		t.Error("two environments have one identity")
	}
}

func TestWithoutAnIdentityNothingHolds(t *testing.T) {
	id := newWorld(t).identity(t)
	other := *id
	other.Domain = "assay.carry/v0"
	for name, old := range map[string]*record.Identity{"none": nil, "of another recipe": &other, "same inputs, other digest": {Domain: id.Domain, Digest: "x", Inputs: id.Inputs}} {
		if carry.Equal(old, id) || len(carry.Changes(old, id)) == 0 {
			t.Errorf("%s holds, or nothing changed", name)
		}
	}
	if carry.Equal(nil, nil) {
		t.Error("two unknown identities are equal")
	}
}

func TestUnreadableFilesAreNamed(t *testing.T) {
	w := newWorld(t)
	w.pair.Eval.Hidden = filepath.Join(w.dir, "gone")
	_, err := carry.NewPlanner(w.dir).Identity(w.pair)
	if fault.CodeOf(err) != "carry-input-unreadable" || fault.FixOf(err) == "" || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("%v", err)
	}
}

func TestText(t *testing.T) {
	n := 0
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, ""},
		{"", ""},
		{"a", "a"},
		{0, ""},
		{&n, "0"},
		{[]string{"a", "b"}, `["a", "b"]`},
		{map[string]any{"b": 1, "a": true, "c d": nil}, `{a: true, b: 1, "c d": null}`},
		{assay.Check{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "x", Timeout: time.Minute}}, Soft: true}, `{run: {command: {shell: "x", timeout: 1m0s}}, soft: true}`},
		{assay.Plugin{Name: "p", SetupHook: hook}, `{name: "p", setupHook: func}`},
		{struct{ A *int }{}, ""},
	} {
		if got := carry.Text(c.v); got != c.want {
			t.Errorf("%#v gives %s, want %s", c.v, got, c.want)
		}
	}
	loop := map[string]any{}
	loop["self"] = loop
	if got := carry.Text(loop); !strings.Contains(got, "…") {
		t.Error("a value that refers to itself has no end")
	}
}

func TestFilesAreReadOnce(t *testing.T) {
	w := newWorld(t)
	p := carry.NewPlanner(w.dir)
	first, err := p.Identity(w.pair)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.dir, "e/workspace/a.txt"), "changed while it is planned", 0o644)
	other := *w.pair.Experiment
	w.pair.Experiment = &other
	again, err := p.Identity(w.pair)
	if err != nil || !carry.Equal(first, again) {
		t.Errorf("one plan sees two states of a file: %v %v", carry.Changes(first, again), err)
	}
}

func BenchmarkIdentity(b *testing.B) {
	x := &assay.Experiment{ID: "x", Model: "m", Flags: map[string]any{"a": 1}}
	l := sandbox.NewLayer().Prepare(sandbox.Command{Shell: "npm ci"})
	p := carry.NewPlanner("")
	b.ReportAllocs()
	for b.Loop() {
		e := &assay.Eval{ID: ref.EvalID("e"), Prompt: "do it", Checks: []assay.Check{{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "npm test"}}}, {Changed: "f"}}}
		if _, err := p.Identity(carry.Pair{Experiment: x, Agent: agent.Info{Name: "a"}, Eval: e, Levels: []carry.Level{{Owner: "config", Layer: l}}, Provider: "fake", Key: "k"}); err != nil {
			b.Fatal(err)
		}
	}
}
