package agenttest

import (
	"encoding/json"
	"reflect"
	"testing"

	"assay/agent"
	"assay/fault"
)

func lifePromises() []Promise {
	return []Promise{
		{"ensure-is-idempotent", ensureAgain},
		{"ensure-installs-what-is-missing", ensureMissing},
		{"ensure-absent-names-the-remedy", ensureAbsent},
		{"ensure-broken-sandbox-is-an-error", ensureBroken},
		{"setup-is-idempotent", setupAgain},
		{"teardown-after-failed-setup", teardownFailed},
		{"teardown-is-idempotent", teardownAgain},
	}
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func ensurer(t testing.TB, h Harness, b Behaviour) (*trial, agent.Ensurer) {
	t.Helper()
	tr := bare(t, h, caseOf(t, h, b))
	e, ok := tr.Agent.(agent.Ensurer)
	if !ok {
		t.Skip("the agent has nothing to install")
	}
	return tr, e
}

// ensureAgain: Ensure finds the same the second time.
func ensureAgain(t testing.TB, h Harness) {
	tr, e := ensurer(t, h, Works)
	first, err := e.Ensure(tr.ctx, tr.first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := e.Ensure(tr.ctx, tr.first)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("Ensure found %+v, then %+v (%v)", first, second, err)
	}
}

// ensureMissing: Ensure installs what is missing, probes again and returns what
// was found; what is there is not installed again.
func ensureMissing(t testing.TB, h Harness) {
	tr, e := ensurer(t, h, Missing)
	first, err := e.Ensure(tr.ctx, tr.first)
	if err != nil {
		t.Fatalf("what is missing was not installed: %v", err)
	}
	n := len(tr.watch.commands())
	second, err := e.Ensure(tr.ctx, tr.first)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("Ensure found %+v, then %+v (%v)", first, second, err)
	}
	if again := len(tr.watch.commands()) - n; again >= n {
		t.Errorf("Ensure ran %d commands to install and %d when all was there", n, again)
	}
	if turn := tr.turn(tr.first); turn.Message != tr.Reply {
		t.Errorf("after the installation the reply is %s, want %s", brief(turn.Message), brief(tr.Reply))
	}
}

// ensureAbsent: what is missing and cannot be installed is an error that names
// the remedy.
func ensureAbsent(t testing.TB, h Harness) {
	tr, e := ensurer(t, h, Absent)
	got, err := e.Ensure(tr.ctx, tr.first)
	if err == nil {
		t.Fatalf("no error, but %+v", got)
	}
	if fault.CodeOf(err) == "" || fault.FixOf(err) == "" {
		t.Errorf("the error has the code %q and the remedy %q: %v", fault.CodeOf(err), fault.FixOf(err), err)
	}
}

// ensureBroken: a sandbox that fails is an error and never reads as "not
// installed" or "installed".
func ensureBroken(t testing.TB, h Harness) {
	tr, e := ensurer(t, h, Works)
	tr.watch.set(refuse)
	if got, err := e.Ensure(tr.ctx, tr.first); err == nil {
		t.Errorf("the sandbox fails and Ensure found %+v", got)
	}
}

func starter(t testing.TB, h Harness, b Behaviour) (*trial, agent.Starter) {
	t.Helper()
	tr := bare(t, h, caseOf(t, h, b))
	s, ok := tr.Agent.(agent.Starter)
	if !ok {
		t.Skip("the agent has no set-up")
	}
	if e, ok := tr.Agent.(agent.Ensurer); ok {
		if _, err := e.Ensure(tr.ctx, tr.first); err != nil {
			t.Fatalf("Ensure: %v", err)
		}
	}
	return tr, s
}

// setupAgain: Setup twice is Setup once.
func setupAgain(t testing.TB, h Harness) {
	tr, s := starter(t, h, Works)
	for i := range 2 {
		if err := s.Setup(tr.ctx, tr.first); err != nil {
			t.Fatalf("Setup %d: %v", i+1, err)
		}
	}
	tr.same(tr.turn(tr.first), 1)
	if err := s.Teardown(tr.ctx, tr.first); err != nil {
		t.Errorf("Teardown: %v", err)
	}
}

// teardownFailed: Teardown works after a Setup that failed.
func teardownFailed(t testing.TB, h Harness) {
	tr, s := starter(t, h, FailsSetup)
	if err := s.Setup(tr.ctx, tr.first); err == nil {
		t.Error("Setup was to fail and did not")
	}
	if err := s.Teardown(tr.ctx, tr.first); err != nil {
		t.Errorf("Teardown after a failed Setup: %v", err)
	}
}

// teardownAgain: Teardown twice is Teardown once.
func teardownAgain(t testing.TB, h Harness) {
	tr, s := starter(t, h, Works)
	if err := s.Setup(tr.ctx, tr.first); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := s.Teardown(tr.ctx, tr.first); err != nil {
			t.Errorf("Teardown %d: %v", i+1, err)
		}
	}
}
