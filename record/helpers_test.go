package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"assay/internal/testreq"
	"assay/ref"
)

// childEnv makes the test binary play a part in another process.
const childEnv = "RECORD_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "seal":
		sealForever(os.Args[1])
	case "contend":
		contend(os.Args[1])
	}
	testreq.Main(m)
}

var epoch = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func testRun(experiment string, slots int) Run {
	r := Run{ID: ref.NewRun(), Experiment: ref.ExperimentID(experiment), Invocation: ref.NewInvocation(), StartedAt: epoch}
	for i := range slots {
		r.Slots = append(r.Slots, SlotRef{Eval: ref.EvalID(fmt.Sprintf("basic/eval-%04d", i)), Ordinal: 0})
	}
	return r
}

func testAttempt(run Run, slot int, verdict Verdict) Attempt {
	id := ref.NewAttempt()
	ms := int64(1200 + slot)
	a := Attempt{
		ID: id, Locator: ref.LocatorOf(id), Run: run.ID, Experiment: run.Experiment,
		Eval: run.Slots[slot].Eval, Ordinal: run.Slots[slot].Ordinal, Verdict: verdict,
		StartedAt: run.StartedAt.Add(time.Second), DurationMS: &ms,
		Phases: []Phase{{Name: "sandbox.create", MS: 300}, {Name: "agent.send", StartMS: 300, MS: 800}},
		Checks: []Check{{Name: "go test ./...", Kind: "command", Severity: Gate, Outcome: Matched}},
		Turns:  []Turn{{Session: 1, Turn: 1, Prompt: "fix the bug", Reply: "done", Status: "completed", MS: 800}},
	}
	if verdict == Failed {
		a.Checks[0].Outcome, a.Checks[0].Detail = Mismatched, "expected exit 0, received exit 1"
	}
	return a
}

func mustOpen(tb testing.TB, root string) *Writer {
	tb.Helper()
	w, err := Open(root, "test")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = w.Close() })
	return w
}

func mustStart(tb testing.TB, w *Writer, run Run) *RunWriter {
	tb.Helper()
	rw, err := w.StartRun(run)
	if err != nil {
		tb.Fatal(err)
	}
	return rw
}

func mustSeal(tb testing.TB, rw *RunWriter, s Sealed) {
	tb.Helper()
	if err := rw.Seal(s); err != nil {
		tb.Fatal(err)
	}
}

func mustReader(tb testing.TB, root string) *Reader {
	tb.Helper()
	r, err := OpenReader(root)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

// allSlots reads every run with its slots.
func allSlots(tb testing.TB, r *Reader) []*RunSlots {
	tb.Helper()
	runs, problems, err := r.Runs(tb.Context())
	if err != nil || len(problems) > 0 {
		tb.Fatal(err, problems)
	}
	var out []*RunSlots
	for rs, err := range r.Slots(tb.Context(), runs) {
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, rs)
	}
	return out
}

// tree maps each file below root to its content.
func tree(tb testing.TB, root string) map[string]string {
	tb.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			files[rel+"/"] = ""
			return nil
		}
		data, err := os.ReadFile(path)
		files[rel] = string(data)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

func raws(n int, format string) []json.RawMessage {
	out := make([]json.RawMessage, n)
	for i := range out {
		out[i] = json.RawMessage(fmt.Sprintf(format, i))
	}
	return out
}
