package discover

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"assay"
	"assay/fault"
	"assay/ref"
	"assay/sandbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const goodEval = "prompt: do it\nchecks: [{run: 'true'}]\n"

func TestLoadEveryField(t *testing.T) {
	dir := tree(t, map[string]string{
		"assay.yaml": "name: demo\ndefaults:\n  sandbox: {docker: {image: base:1}}\n  timeout: 20m\n" +
			"profiles:\n  heavy: {sandbox: {docker: {image: big:1}, resources: {memory: 8GiB, cpus: 1.5, pids: 10, disk: 1TiB}}}\n" +
			"maxConcurrency: 4\nrecord: out\njudge: {model: m, baseUrl: 'https://x.example', apiKeyEnv: KEY}\n",
		"experiments/team/a.yaml": "description: d\nagent: {command: {run: go, env: {A: b}}}\nmodel: m\nreasoningEffort: high\nflags: {v: [1, 2.5, null, true]}\nlabels: {team: web, n: 3}\n" +
			"evals: [fix/]\nattempts: 3\nearlyExit: true\ntimeout: 90s\nbudget: 5\nmaxConcurrency: 1\nprofile: heavy\nsandboxReuse: true\nsharedState: {key: k/1}\nsetup: [./up]\nteardown: [./down]\n",
		"evals/fix/button/eval.yaml": `description: e
tags: [smoke]
sandbox:
  user: node
  lifetime: 60m
  env: {CI: "1"}
  secretEnv: [TOKEN]
  path: [/opt/bin]
  workdir: /app
  network: {allow: [api.example.com, "*.x.example"]}
  prepare: [npm ci]
  setup: [corepack enable, {argv: [./warm, "1"], name: warm, cwd: sub, env: {B: c}, user: root, timeout: 1s, host: true, id: i, revision: "2"}]
  teardown: [./save]
timeout: 10m
files: {notes.txt: "inline\n"}
setup: [git init -q]
turns:
  - prompt: {file: step1.md}
    checks: [{reply: {contains: done}}]
  - {prompt: Now add a test., newSession: true}
hidden: ./hidden
checks:
  - {run: npm test, exit: 2, stdout: {contains: ok}, stderr: {equals: ""}}
  - {file: a.json, json: {n: 1, s: {contains: x}}}
  - {file: b}
  - {file: c, exists: false, name: gone, soft: true, optional: true, stop: true}
  - {changed: src/**}
  - {deleted: old}
  - {unchanged: "tests/**"}
  - {noChanges: true}
  - {calledTool: {name: bash, input: {command: {contains: npm}}, output: {matches: ok}, status: completed, count: 2}}
  - {notCalledTool: {name: web_search}}
  - {toolOrder: [a, b]}
  - {usedNoTools: true}
  - {noFailedActions: true}
  - {maxToolCalls: 0}
  - {maxTokens: 200000}
  - {maxCost: 0.5}
  - {succeeded: true}
  - {event: thinking}
  - {notEvent: error}
solution: ./solution/solve.sh
teardown: [pkill vite]
diff: {ignore: ["tmp/**"], include: [node_modules/x/**]}
metadata: {source: acme-123}
`,
		"evals/fix/button/step1.md":          "first\n",
		"evals/fix/button/workspace/a.txt":   "a",
		"evals/fix/button/hidden/t.sh":       "true",
		"evals/fix/button/solution/solve.sh": "#!/usr/bin/env python3\n",
		"evals/fix/two.eval.yaml":            goodEval,
		"evals/fix/group.yaml":               "evals: [two, button]\nsandbox: {docker: {image: g}}\n",
	})
	s, err := Load(context.Background(), dir, kinds())
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "demo" || s.MaxConcurrency != 4 || s.Record != filepath.Join(dir, "out") || s.Defaults.Timeout != 20*time.Minute || s.Root != dir {
		t.Errorf("suite: %+v", s)
	}
	if r := s.Profiles["heavy"].Settings().Resources; r != (sandbox.Resources{CPUs: 1.5, Memory: 8 << 30, PIDs: 10, Disk: 1 << 40}) {
		t.Errorf("resources: %+v", r)
	}
	x := s.Experiments[0]
	x.Agent, x.Sandbox = nil, sandbox.Layer{}
	wantX := assay.Experiment{
		ID: "team/a", Description: "d", Model: "m", ReasoningEffort: "high", Flags: map[string]any{"v": []any{int64(1), 2.5, nil, true}},
		Labels: map[string]any{"team": "web", "n": int64(3)}, Evals: []string{"fix/"}, Attempts: 3, EarlyExit: true, Timeout: 90 * time.Second,
		Budget: 5, MaxConcurrency: 1, Profile: "heavy", SandboxReuse: true, SharedState: "k/1",
		SetupCommands: []sandbox.Command{{Shell: "./up"}}, TeardownCommands: []sandbox.Command{{Shell: "./down"}}, Source: "experiments/team/a.yaml",
	}
	if !reflect.DeepEqual(x, wantX) {
		t.Errorf("experiment:\n got %+v\nwant %+v", x, wantX)
	}
	e := s.Evals[0]
	l := e.Sandbox
	e.Sandbox = sandbox.Layer{}
	one, two, zero, tokens, cost := 2, 2, 0, int64(200000), 0.5
	yes, no, none := true, false, ""
	base := filepath.Join(dir, "evals/fix/button")
	wantE := assay.Eval{
		ID: "fix/button", Description: "e", Tags: []string{"smoke"}, Timeout: 10 * time.Minute, Workspace: filepath.Join(base, "workspace"),
		Files: map[string]string{"notes.txt": "inline\n"}, Setup: []sandbox.Command{{Shell: "git init -q"}},
		Turns: []assay.TurnSpec{
			{Prompt: "first\n", Checks: []assay.Check{{Reply: &assay.ValueMatch{Contains: "done"}}}},
			{Prompt: "Now add a test.", NewSession: true},
		},
		Hidden: filepath.Join(base, "hidden"),
		Checks: []assay.Check{
			{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "npm test"}, Exit: one, Stdout: &assay.ValueMatch{Contains: "ok"}, Stderr: &assay.ValueMatch{Equals: &none}}},
			{File: &assay.FileCheck{Path: "a.json", Match: &assay.ValueMatch{JSON: map[string]any{"n": int64(1), "s": assay.ValueMatch{Contains: "x"}}}}},
			{File: &assay.FileCheck{Path: "b", Exists: &yes}},
			{File: &assay.FileCheck{Path: "c", Exists: &no}, Name: "gone", Soft: true, Optional: true, Stop: true},
			{Changed: "src/**"},
			{Deleted: "old"},
			{Unchanged: "tests/**"},
			{NoChanges: true},
			{CalledTool: &assay.ToolMatch{Name: "bash", Input: map[string]any{"command": assay.ValueMatch{Contains: "npm"}}, Output: &assay.ValueMatch{Matches: "ok"}, Status: "completed", Count: &two}},
			{NotCalledTool: &assay.ToolMatch{Name: "web_search"}},
			{ToolOrder: []string{"a", "b"}},
			{UsedNoTools: true},
			{NoFailedActions: true},
			{MaxToolCalls: &zero},
			{MaxTokens: &tokens},
			{MaxCost: &cost},
			{Succeeded: true},
			{Event: "thinking"},
			{NotEvent: "error"},
		},
		Solution:    &sandbox.Command{Shell: `/usr/bin/env python3 "$SOLUTION_DIR"/'solve.sh'`, Name: "solution"},
		SolutionDir: filepath.Join(base, "solution"),
		Teardown:    []sandbox.Command{{Shell: "pkill vite"}},
		Diff:        assay.DiffRules{Ignore: []string{"tmp/**"}, Include: []string{"node_modules/x/**"}},
		Metadata:    map[string]any{"source": "acme-123"}, Dir: base, Source: "evals/fix/button/eval.yaml",
	}
	if !reflect.DeepEqual(e, wantE) {
		t.Errorf("eval: %s", cmp.Diff(wantE, e, cmp.Exporter(func(reflect.Type) bool { return true })))
	}
	wantSettings := sandbox.Settings{
		User: "node", Lifetime: time.Hour, Env: map[string]string{"CI": "1"}, SecretEnv: []string{"TOKEN"}, Path: []string{"/opt/bin"},
		Workdir: "/app", Network: sandbox.Network{Mode: "allow", Allow: []string{"api.example.com", "*.x.example"}},
	}
	if got := l.Settings(); !reflect.DeepEqual(got, wantSettings) {
		t.Errorf("layer: %+v", got)
	}
	wantSetup := []sandbox.Step{
		{Command: sandbox.Command{Shell: "corepack enable"}},
		{Command: sandbox.Command{Argv: []string{"./warm", "1"}, Name: "warm", Cwd: "sub", Env: map[string]string{"B": "c"}, User: "root", Timeout: time.Second, Host: true, ID: "i", Revision: "2"}},
	}
	if got := l.SetupSteps(); !reflect.DeepEqual(got, wantSetup) {
		t.Errorf("setup: %+v", got)
	}
	if len(l.PrepareSteps()) != 1 || len(l.TeardownSteps()) != 1 {
		t.Errorf("prepare %v, teardown %v", l.PrepareSteps(), l.TeardownSteps())
	}
	g := s.Groups[0]
	if g.ID != "fix" || !reflect.DeepEqual(g.Evals, []ref.EvalID{"fix/two", "fix/button"}) || g.OnUnavailable != "stop-group" {
		t.Errorf("group: %+v", g)
	}
	tmpl, ok := s.Defaults.Sandbox.Template()
	if !ok || tmpl.Spec.(boxSpec).Image != "base:1" || tmpl.Dir != dir {
		t.Errorf("default template: %+v", tmpl)
	}
}

// The order is that of the files' paths by code points: neither numbers nor
// locales nor the order of completion matter.
func TestOrderAndIds(t *testing.T) {
	dir := tree(t, map[string]string{
		"evals/2-b/eval.yaml": goodEval, "evals/10-a/eval.yaml": goodEval, "evals/é.eval.yaml": goodEval, "evals/Z.eval.yaml": goodEval,
		"evals/a/eval.yaml": goodEval, "evals/a/b/eval.yaml": goodEval, "evals/a/workspace/deep/eval.yaml": "no eval: [",
		"evals/a/b/.git/x/eval.yaml": goodEval, "evals/node_modules/x/eval.yaml": goodEval, "evals/.assay/x/eval.yaml": goodEval,
		"evals/named/eval.yaml": "workspace: ./start\nprompt: p\n", "evals/named/start/inner.eval.yaml": "broken: yes\n",
		"evals/loop": "->../evals", "experiments/x/y.yaml": "agent: nop\nevals: '*'\n", "experiments/readme.md": "x",
	})
	s, err := Load(context.Background(), dir, kinds())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range s.Evals {
		ids = append(ids, string(e.ID))
	}
	if got, want := strings.Join(ids, " "), "10-a 2-b Z a/b a named é"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if s.Experiments[0].ID != "x/y" || !reflect.DeepEqual(s.Experiments[0].Evals, []string{"*"}) {
		t.Errorf("experiment %+v", s.Experiments[0])
	}
	if s.Evals[4].Workspace != filepath.Join(dir, "evals/a/workspace") {
		t.Errorf("the default workspace of a is %q", s.Evals[4].Workspace)
	}
}

func TestRoot(t *testing.T) {
	dir := tree(t, map[string]string{
		"outer/assay.yaml": "name: n\n", "outer/sub/evals/a.eval.yaml": goodEval, "plain/experiments/x.yaml": "agent: nop\n", "plain/src/f": "", "none/f": "",
	})
	for _, tc := range []struct{ from, want, code string }{
		{"outer", "outer", ""},
		{"outer/sub/evals", "outer", ""}, // assay.yaml wins over a nearer evals/
		{"plain/src", "plain", ""},
		{"missing", "", "project-missing"},
		{"none/f", "", "project-missing"},
	} {
		got, err := Root(filepath.Join(dir, tc.from))
		if fault.CodeOf(err) != tc.code || tc.code == "" && got != filepath.Join(dir, tc.want) {
			t.Errorf("%s: got %s, %v", tc.from, got, err)
		}
	}
	_, err := Load(context.Background(), filepath.Join(dir, "none"), kinds())
	if fault.ClassOf(err) != fault.Config || !strings.Contains(fault.FixOf(err), "assay init") {
		t.Errorf("a folder that is no project: %v, fix %q", err, fault.FixOf(err))
	}
}

// Every mistake of a broken project is reported, in one error, with its place.
func TestBrokenProject(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/broken")); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"evals/escape/link":         os.TempDir(),
		"evals/dangling.eval.yaml":  "nowhere",
		"evals/outside.eval.yaml":   "/etc/hostname",
		"experiments/in-circle":     ".",
		"evals/escape-ws/workspace": os.TempDir(),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"evals/latin1.eval.yaml": "prompt: caf\xe9\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Load(context.Background(), dir, kinds())
	if fault.ClassOf(err) != fault.Config || fault.CodeOf(err) != "project-invalid" {
		t.Fatalf("got %v", err)
	}
	var b strings.Builder
	for _, p := range ProblemsOf(err) {
		if p.Fix == "" || p.Code == "" || p.File == "" {
			t.Errorf("incomplete: %+v", p)
		}
		b.WriteString(p.Code + "\t" + strings.ReplaceAll(p.String(), os.TempDir(), "$TMP") + "\n")
	}
	golden := "testdata/broken.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestErrorIsBounded(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files["evals/"+strings.Repeat("x", i+1)+".eval.yaml"] = "promt: x\n"
	}
	_, err := Load(context.Background(), tree(t, files), kinds())
	text := err.Error()
	if n := strings.Count(text, "\n"); n != maxShown+1 || !strings.Contains(text, "400 problems in 200 files") || !strings.Contains(text, "and 350 more") {
		t.Errorf("%d lines: %s", n, text)
	}
	if len(ProblemsOf(err)) != 400 {
		t.Errorf("%d problems", len(ProblemsOf(err)))
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Load(ctx, tree(t, map[string]string{"evals/a.eval.yaml": goodEval}), kinds())
	if fault.ClassOf(err) != fault.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMerge(t *testing.T) {
	files := assay.Suite{Name: "f", Evals: []assay.Eval{{ID: "a", Source: "evals/a.eval.yaml"}}, Experiments: []assay.Experiment{{ID: "x"}}, Profiles: map[string]sandbox.Layer{"p": {}}}
	program := assay.Suite{Name: "g", MaxConcurrency: 3, Evals: []assay.Eval{{ID: "b"}}, Profiles: map[string]sandbox.Layer{"q": {}}, Groups: []assay.Group{{ID: "g"}}}
	s, err := Merge(files, program)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "f" || s.MaxConcurrency != 3 || len(s.Evals) != 2 || s.Evals[1].ID != "b" || len(s.Profiles) != 2 || len(s.Groups) != 1 || len(s.Experiments) != 1 {
		t.Errorf("got %+v", s)
	}
	program.Evals = append(program.Evals, assay.Eval{ID: "a"}, assay.Eval{ID: "b"})
	program.Profiles["p"] = sandbox.Layer{}
	_, err = Merge(files, program)
	var codes []string
	for _, p := range ProblemsOf(err) {
		codes = append(codes, p.File+" "+p.Code)
	}
	if got, want := strings.Join(codes, ", "), "Go program duplicate-id, assay.yaml duplicate-id, evals/a.eval.yaml duplicate-id"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
