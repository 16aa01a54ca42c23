package bench

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/agent"
	"assay/agent/script"
	"assay/internal/discover"
	"assay/internal/plan"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// BenchmarkCarry10k plans 10,000 slots against 10,000 recorded attempts, all of
// which hold: once as 1,000 evals of ten attempts, once as 10,000 evals. Target:
// under 1 s of CPU and 200 MB, discovery of the files included.
func BenchmarkCarry10k(b *testing.B) {
	for _, c := range []struct{ evals, attempts int }{{1000, 10}, {10_000, 1}} {
		b.Run(fmt.Sprintf("%dx%d", c.evals, c.attempts), func(b *testing.B) {
			dir := many(b, c.evals)
			write(b, filepath.Join(dir, "experiments", "x.yaml"), fmt.Sprintf("agent: nop\nsandbox: {fake: {}}\nattempts: %d\n", c.attempts))
			seal(b, dir)
			bin, err := program()
			if err != nil {
				b.Fatal(err)
			}
			cmd := exec.Command(bin, "exp", "--dry")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "(10000 carried, 0 to execute)") {
				b.Fatalf("not all are carried: %v %.300s", err, out)
			}
			b.ResetTimer()
			var us []usage
			for b.Loop() {
				us = append(us, measure(b, dir, "exp", "--dry"))
			}
			report(b, us)
		})
	}
}

// seal records a passed attempt for every slot of the project's plan.
func seal(b *testing.B, dir string) {
	b.Helper()
	suite, err := discover.Load(b.Context(), dir, discover.Options{Sandboxes: sandbox.NewRegistry(fake.Definition()), Agents: agent.NewRegistry(script.NopDefinition())})
	if err != nil {
		b.Fatal(err)
	}
	p, err := plan.Link(context.Background(), suite, plan.Selection{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	w, err := record.Open(filepath.Join(dir, ".assay", "record"), "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	run := record.Run{ID: ref.NewRun(), Experiment: "x", Invocation: ref.NewInvocation(), StartedAt: time.Now()}
	for _, s := range p.Slots() {
		run.Slots = append(run.Slots, record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal})
	}
	rw, err := w.StartRun(run)
	if err != nil {
		b.Fatal(err)
	}
	ms := int64(1234)
	work := make(chan *plan.Slot)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for s := range work {
				id := ref.NewAttempt()
				err := rw.Seal(record.Sealed{Attempt: record.Attempt{
					ID: id, Locator: ref.LocatorOf(id), Run: run.ID, Experiment: "x", Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal, Verdict: record.Passed,
					StartedAt: time.Now(), DurationMS: &ms, Identity: s.Identity,
					Phases: []record.Phase{{Name: "sandbox.create", MS: 400}, {Name: "eval.run", StartMS: 400, MS: 700}, {Name: "sandbox.stop", StartMS: 1100, MS: 100}},
					Checks: []record.Check{{Name: "test -f out exits 0", Kind: "run", Severity: record.Gate, Outcome: record.Matched}, {Name: "out was changed", Kind: "changed", Severity: record.Gate, Outcome: record.Matched}},
					Turns:  []record.Turn{{Session: 1, Turn: 1, Prompt: "Do the thing.", Reply: strings.Repeat("It is done. ", 100), Status: "completed", MS: 700}},
				}})
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, s := range p.Slots() {
		work <- s
	}
	close(work)
	wg.Wait()
	if err := rw.End(record.End{CompletedAt: time.Now(), Completion: record.Completed}); err != nil {
		b.Fatal(err)
	}
}
