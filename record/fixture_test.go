package record

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"assay/ref"
)

// -fixture writes the record of this version's format anew. Fixtures of older
// versions are never written again: they prove that old records stay readable.
var updateFixture = flag.Bool("fixture", false, "write testdata/v1 anew")

func fixtureID(name string) string {
	return "01jz0000000000000000000000"[:26-len(name)] + name
}

func ptr[T any](v T) *T { return &v }

// TestFixture reads the committed record and holds it to what wrote it.
func TestFixture(t *testing.T) {
	root := filepath.Join("testdata", "v1")
	if *updateFixture {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		writeFixture(t, root)
		_ = os.Remove(root + lockSuffix)
	}
	all := allSlots(t, mustReader(t, root))
	if len(all) != 3 {
		t.Fatalf("%d runs, want 3", len(all))
	}
	want := [][]Verdict{{Passed, Failed, Failed}, {Passed, Passed, Failed, Failed, Errored, Errored, Skipped, NotRun, Passed}, {Passed, NotRun, NotRun}}
	for i, rs := range all {
		if len(rs.Problems) > 0 || len(rs.Slots) != len(want[i]) {
			t.Fatalf("run %d: %d slots, problems %v", i, len(rs.Slots), rs.Problems)
		}
		for j, s := range rs.Slots {
			got := NotRun
			if s.Attempt != nil {
				got = s.Attempt.Verdict
				if fold := s.Attempt.Fold(); fold != got {
					t.Errorf("run %d slot %d: stored %s, folds to %s", i, j, got, fold)
				}
			}
			if got != want[i][j] {
				t.Errorf("run %d slot %d: %s, want %s", i, j, got, want[i][j])
			}
		}
	}
	if all[0].Run.Status != StatusEnded || all[1].Run.Status != StatusEnded || all[2].Run.Status != StatusUnfinished {
		t.Errorf("statuses %s, %s, %s", all[0].Run.Status, all[1].Run.Status, all[2].Run.Status)
	}
}

func writeFixture(t *testing.T, root string) {
	w := mustOpen(t, root)
	base := time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)
	owner := &Owner{Host: "elsewhere.invalid", PID: 4242}
	newRun := func(n int, experiment string, slots ...SlotRef) (*RunWriter, Run) {
		run := Run{
			ID: ref.RunID(fixtureID(fmt.Sprintf("r%d", n))), Experiment: ref.ExperimentID(experiment),
			Invocation: ref.InvocationID(fixtureID(fmt.Sprintf("n%d", n))), StartedAt: base.Add(time.Duration(n) * time.Hour), Slots: slots, Owner: owner,
			Labels: map[string]any{"team": "tools"}, Context: map[string]any{"agent": "claude-code", "model": "m-1"}, Tool: "1.0.0",
		}
		return mustStart(t, w, run), run
	}
	count := 0
	seal := func(rw *RunWriter, run Run, slot int, fill func(*Attempt), large ...Sealed) Attempt {
		count++
		id := ref.AttemptID(fixtureID(fmt.Sprintf("a%02d", count)))
		a := Attempt{
			ID: id, Locator: ref.LocatorOf(id), Run: run.ID, Experiment: run.Experiment, Eval: run.Slots[slot].Eval, Ordinal: run.Slots[slot].Ordinal,
			StartedAt: run.StartedAt.Add(time.Minute), DurationMS: ptr(int64(12_345)), Agent: &AgentInfo{Name: "claude-code", Version: "2.1", Model: "m-1"},
			Sandbox: &Sandbox{Provider: "docker", Engine: "docker 27.1", ID: "f00dcafe", Use: 1, Key: "k-1", User: "node", Workdir: "/workspace", Network: "default", Limits: map[string]any{"memory": "2g"}},
			Phases:  []Phase{{Name: "sandbox.create", MS: 400}, {Name: "agent.send", StartMS: 400, MS: 11_000}, {Name: "grade", StartMS: 11_400, MS: 945}},
			Checks:  []Check{{Name: "tests pass", Kind: "command", Severity: Gate, Outcome: Matched}},
			Turns:   []Turn{{Session: 1, Turn: 1, Prompt: "Fix the failing test.", Reply: "I changed add.go.", Status: "completed", MS: 11_000, Exit: ptr(0)}},
		}
		fill(&a)
		a.Verdict = a.Fold()
		s := Sealed{}
		if len(large) > 0 {
			s = large[0]
		}
		s.Attempt = a
		mustSeal(t, rw, s)
		return a
	}
	bad := func(a *Attempt) {
		a.Checks[0].Outcome, a.Checks[0].Detail = Mismatched, "go test ./...\nexpected exit 0, received exit 1\nFAIL\texample.com/add"
	}

	evals := func(names ...string) (slots []SlotRef) {
		for _, n := range names {
			slots = append(slots, SlotRef{Eval: ref.EvalID(n)})
		}
		return slots
	}
	old, oldRun := newRun(1, "local/claude", evals("basic/fix", "basic/rename", "only/here")...)
	seal(old, oldRun, 0, func(*Attempt) {})
	seal(old, oldRun, 1, bad)
	seal(old, oldRun, 2, bad)
	mustEnd(t, old, End{CompletedAt: oldRun.StartedAt.Add(time.Minute), Completion: Completed})

	slots := evals("basic/fix", "basic/polite", "basic/rename", "basic/rename2", "infra/one", "infra/judge", "later", "never", "only/carried")
	rw, run := newRun(2, "ci/codex", slots...)
	seal(rw, run, 0, func(a *Attempt) {
		a.Usage = &Usage{InputTokens: ptr(int64(1200)), CacheReadTokens: ptr(int64(30_000)), OutputTokens: ptr(int64(800)), Requests: ptr(int64(7))}
		a.CostUSD = ptr(0.0421)
		a.Diff = &DiffSummary{Changes: []Change{{Path: "add.go", Status: "modified"}, {Path: "logo.png", Status: "added"}}}
		a.Facts = Facts{"com.example.cache": {ObservedAt: a.StartedAt, Value: json.RawMessage(`{"bytes":0}`)}}
		a.Identity = &Identity{Domain: "d1", Digest: "sha256:00", Inputs: map[string]string{"model": "m-1"}}
	}, Sealed{Diff: &Diff{Windows: []Window{{Label: "turn1", Rows: []Row{
		{Path: "add.go", Status: "modified", Before: &Side{Mode: "100644", Size: 47, Text: ptr("package add\n\nfunc Add(a, b int) int { return a - b }\n")}, After: &Side{Mode: "100644", Size: 47, Text: ptr("package add\n\nfunc Add(a, b int) int { return a + b }\n")}},
		{Path: "logo.png", Status: "added", After: &Side{Mode: "100644", Size: 2048, Digest: "sha256:aa", Binary: true, Elided: true}},
	}}}}})
	seal(rw, run, 1, func(a *Attempt) {
		a.Checks = append(a.Checks, Check{Name: "polite", Kind: "judge", Severity: Soft, Outcome: Mismatched, Value: ptr(0.3), Threshold: ptr(0.7), Detail: "0.3 is below 0.7"})
	})
	failing := Sealed{
		Commands: []json.RawMessage{
			json.RawMessage(`{"summary":"npm ci","cwd":"/workspace","start":"2026-05-04T12:01:00Z","durationNs":2000000000,"exit":0,"outcome":"ok"}`),
			json.RawMessage(`{"summary":"go test ./...","cwd":"/workspace","user":"node","start":"2026-05-04T12:01:05Z","durationNs":900000000,"exit":1,"outcome":"observed","stdout":"--- FAIL: TestAdd\n\u001b[31mwant 3\u001b[0m, got -1\nFAIL\n"}`),
		},
		Events: []json.RawMessage{json.RawMessage(`{"type":"message","role":"assistant","text":"ok"}`), json.RawMessage(`{"type":"operation.started","id":"1","name":"file_edit"}`), json.RawMessage(`{"type":"operation.started","id":"2","name":"file_edit"}`)},
	}
	seal(rw, run, 2, func(a *Attempt) {
		bad(a)
		a.Turns[0].Reply = "\x1b]52;c;aGk=\x07done\u202e gnihtyreve"
		a.Diagnostics = []Diagnostic{{Phase: "sandbox.setup", Code: "cache-cold", Level: "warning", Message: "the module cache is empty", Data: json.RawMessage(`{"dir":"/go"}`), Key: "cache", Count: 3}}
	}, failing)
	seal(rw, run, 3, bad)
	seal(rw, run, 4, func(a *Attempt) {
		a.Checks, a.Turns, a.Phases, a.DurationMS = nil, nil, []Phase{{Name: "sandbox.prepare", MS: 9000, Outcome: "failed"}}, nil
		a.Error = &ErrorInfo{
			Code: "sandbox.prepare-failed", Phase: "sandbox.prepare", Message: "image example.com/x:1 does not exist", Class: "config", Scope: "eval", Fix: "check the image name in sandbox.image",
			Prepare: &PrepareError{Headline: "image missing", Stage: "image", Class: "config", Cause: "manifest unknown", Log: "pulling\nmanifest unknown", Levels: []string{"experiment ci/codex"}},
		}
	})
	seal(rw, run, 5, func(a *Attempt) {
		a.DurationMS, a.CensoredMS = nil, ptr(int64(600_000))
		a.Checks = append(a.Checks, Check{Name: "grade", Kind: "judge", Severity: Gate, Outcome: Unavailable, Reason: "judge-key-missing"})
	})
	seal(rw, run, 6, func(a *Attempt) { a.Skip, a.Checks = "needs a display", nil })
	if err := rw.Member(Member{SlotRef: slots[8], Origin: Carried, Run: oldRun.ID, Attempt: ref.AttemptID(fixtureID("a01"))}); err != nil {
		t.Fatal(err)
	}
	mustEnd(t, rw, End{
		CompletedAt: run.StartedAt.Add(5 * time.Minute), Completion: Interrupted, NotRun: []NotRunSlot{{SlotRef: slots[7], Reason: "budget"}},
		Diagnostics: []Diagnostic{{Code: "budget-spent", Level: "warning", Message: "the budget of $1 is spent", Count: 1}},
	})

	open, openRun := newRun(3, "local/claude", evals("basic/fix", "basic/rename", "basic/new")...)
	seal(open, openRun, 0, func(*Attempt) {})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustEnd(tb testing.TB, rw *RunWriter, e End) {
	tb.Helper()
	if err := rw.End(e); err != nil {
		tb.Fatal(err)
	}
}
