package agenttest

import (
	"encoding/json"
	"path"
	"reflect"
	"strings"
	"sync"
	"testing"

	"assay/agent"
)

func infoPromises() []Promise {
	return []Promise{
		{"info-is-pure", infoIsPure},
		{"info-identity-is-data", infoIdentity},
		{"info-names-what-is-needed", infoNames},
	}
}

// infoIsPure: every call of Info gives equal facts, from many goroutines at
// once, and what a caller does to them changes nothing.
func infoIsPure(t testing.TB, h Harness) {
	c := caseOf(t, h, Works)
	want := c.Agent.Info()
	var wg sync.WaitGroup
	same := make([]bool, 8)
	for i := range same {
		wg.Go(func() { same[i] = reflect.DeepEqual(want, c.Agent.Info()) })
	}
	wg.Wait()
	for _, ok := range same {
		if !ok {
			t.Fatalf("two calls of Info differ: %+v and %+v", want, c.Agent.Info())
		}
	}
	before, err := json.Marshal(want)
	if err != nil {
		t.Fatalf("Info does not encode: %v", err)
	}
	for _, list := range [][]string{want.SecretEnv, want.Artifacts, want.Harness.Install} {
		for i := range list {
			list[i] = "changed by the caller"
		}
	}
	after, err := json.Marshal(c.Agent.Info())
	if err != nil || string(after) != string(before) {
		t.Errorf("a caller changed what Info returns: %s, then %s (%v)", before, after, err)
	}
}

// infoIdentity: Identity encodes to JSON, the same every time, and holds no
// secret.
func infoIdentity(t testing.TB, h Harness) {
	b := ReadsSecret
	if h.Cases[b] == nil {
		b = Works
	}
	tr := bare(t, h, caseOf(t, h, b))
	first, err := json.Marshal(tr.Agent.Info().Identity)
	if err != nil {
		t.Fatalf("Identity does not encode to JSON: %v", err)
	}
	tr.ready()
	tr.turn(tr.first)
	second, err := json.Marshal(tr.Agent.Info().Identity)
	if err != nil || string(first) != string(second) {
		t.Errorf("Identity changed with use: %s, then %s (%v)", first, second, err)
	}
	for name, value := range tr.secrets {
		if strings.Contains(string(second), value) {
			t.Errorf("Identity holds the value of %s", name)
		}
	}
}

// infoNames: the agent has a name, artifacts lie below the workdir, and coverage
// uses the known levels.
func infoNames(t testing.TB, h Harness) {
	info := caseOf(t, h, Works).Agent.Info()
	if info.Name == "" || strings.ContainsAny(info.Name, " /\n") {
		t.Errorf("%q is no name", info.Name)
	}
	for _, a := range info.Artifacts {
		if a == "" || path.IsAbs(a) || path.Clean(a) != a || strings.HasPrefix(a, "..") || a == "." {
			t.Errorf("the artifact %q is no clean path below the workdir", a)
		}
	}
	c := info.Coverage
	for _, l := range []agent.Level{c.Events, c.Actions, c.Messages, c.Usage, c.Status, c.Data} {
		switch l {
		case "", agent.None, agent.Partial, agent.Complete:
		default:
			t.Errorf("there is no coverage level %q", l)
		}
	}
}
