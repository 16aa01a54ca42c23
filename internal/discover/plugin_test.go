package discover

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"assay"
	"assay/sandbox"
)

func TestPlugins(t *testing.T) {
	dir := tree(t, map[string]string{
		"plugins/cache.yaml":     "description: d\nrevision: \"1\"\nwith: {size: small, n: 1}\nsetup: [warm]\nteardown: [{run: cool, user: root}]\n",
		"plugins/unrelated.yaml": "this: is not ours\n",
		"experiments/x.yaml":     "agent: nop\nsandbox: {docker: {image: i}}\nplugins:\n  - cache\n  - {name: cache, key: big, revision: \"2\", with: {size: big}}\n  - {name: own, setup: [a], with: {k: v}}\n",
		"evals/e.eval.yaml":      "prompt: hi\nrevision: r7\ninputs: [data, one.json]\nplugins: [cache]\n",
		"evals/data/a":           "a",
		"evals/one.json":         "1",
		"evals/g/m.eval.yaml":    "prompt: hi\n",
		"evals/g/group.yaml":     "evals: [m]\nplugins: [{name: mock, teardown: [stop]}]\n",
	})
	s, err := Load(context.Background(), dir, kinds())
	if err != nil {
		t.Fatal(err)
	}
	cache := assay.Plugin{
		Name: "cache", Revision: "1", With: map[string]any{"size": "small", "n": int64(1)},
		Setup: []sandbox.Command{{Shell: "warm"}}, Teardown: []sandbox.Command{{Shell: "cool", User: "root"}},
	}
	big := cache
	big.Key, big.Revision, big.With = "big", "2", map[string]any{"size": "big", "n": int64(1)}
	own := assay.Plugin{Name: "own", Setup: []sandbox.Command{{Shell: "a"}}, Teardown: []sandbox.Command{}, With: map[string]any{"k": "v"}}
	if got := s.Experiments[0].Plugins; !reflect.DeepEqual(got, []assay.Plugin{cache, big, own}) {
		t.Errorf("experiment: %+v", got)
	}
	if got := s.Evals[0]; !reflect.DeepEqual(got.Plugins, []assay.Plugin{cache}) || got.Revision != "r7" || !reflect.DeepEqual(got.Inputs, []string{filepath.Join(dir, "evals/data"), filepath.Join(dir, "evals/one.json")}) {
		t.Errorf("eval: %+v, revision %q", got.Plugins, got.Revision)
	}
	if got := s.Groups[0].Plugins; len(got) != 1 || got[0].Name != "mock" {
		t.Errorf("group: %+v", got)
	}
}

func TestBrokenPlugins(t *testing.T) {
	const head = "agent: nop\nsandbox: {docker: {image: i}}\nplugins: "
	for body, want := range map[string]string{
		"[cahce]":                          "experiments/x.yaml plugin-unknown Did you mean cache?",
		"[cache, cache]":                   "experiments/x.yaml plugin-duplicate key",
		"[{name: cache, setup: [a]}]":      "experiments/x.yaml field-conflict Rename",
		"[{name: new}]":                    "experiments/x.yaml plugin-unknown Create",
		"[{name: new, setpu: [a]}]":        "experiments/x.yaml unknown-field setup",
		"[\"../x\"]":                       "experiments/x.yaml bad-value letters",
		"[broken, {name: broken, key: k}]": "plugins/broken.yaml unknown-field setup",
		"[idle]":                           "plugins/idle.yaml field-missing setup",
	} {
		dir := tree(t, map[string]string{
			"plugins/cache.yaml": "setup: [warm]\n", "plugins/broken.yaml": "setpu: [warm]\nteardown: [a]\n", "plugins/idle.yaml": "revision: \"1\"\n",
			"experiments/x.yaml": head + body + "\n", "evals/e.eval.yaml": "prompt: hi\n",
		})
		_, err := Load(context.Background(), dir, kinds())
		ps := ProblemsOf(err)
		if len(ps) != 1 {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := ps[0].File + " " + ps[0].Code + " " + ps[0].Message + " " + ps[0].Fix; !strings.HasPrefix(got, strings.Join(strings.Fields(want)[:2], " ")) || !strings.Contains(got, strings.Join(strings.Fields(want)[2:], " ")) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}
