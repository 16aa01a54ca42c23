package terminal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"assay/record"
	"assay/ref"
	"assay/report"
)

// BenchmarkShow10k is what `show` does over a record of 10,000 attempts, all of
// them current.
func BenchmarkShow10k(b *testing.B) {
	root := filepath.Join(b.TempDir(), "record")
	w, err := record.Open(root, "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	for exp := range 10 {
		run := record.Run{ID: ref.NewRun(), Experiment: ref.ExperimentID(fmt.Sprintf("exp-%d", exp)), StartedAt: time.Unix(1_700_000_000, 0)}
		for i := range 1000 {
			run.Slots = append(run.Slots, record.SlotRef{Eval: ref.EvalID(fmt.Sprintf("evals/case-%04d", i))})
		}
		if _, err := w.StartRun(run); err != nil {
			b.Fatal(err)
		}
		for i, s := range run.Slots {
			id := ref.NewAttempt()
			ms := int64(i)
			// Written as Seal writes it, without 10,000 syncs.
			data, err := json.Marshal(record.Attempt{
				ID: id, Locator: ref.LocatorOf(id), Run: run.ID, Experiment: run.Experiment, Eval: s.Eval, Verdict: record.Passed, DurationMS: &ms,
				Checks: make([]record.Check, 6), Phases: make([]record.Phase, 6), Turns: []record.Turn{{Prompt: fmt.Sprintf("%02000d", 0), Reply: fmt.Sprintf("%02000d", 0)}},
			})
			dir := filepath.Join(root, "runs", string(run.ID), "attempts", string(id))
			if err := errors.Join(err, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "attempt.json"), data, 0o600)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		r, err := record.OpenReader(root)
		if err != nil {
			b.Fatal(err)
		}
		m, err := report.Build(b.Context(), r, report.Selection{})
		if err == nil {
			err = Summary(io.Discard, m, Options{})
		}
		if err := errors.Join(err, r.Close()); err != nil || m.Totals.Passed != 10_000 {
			b.Fatal(err, m.Totals)
		}
	}
}
