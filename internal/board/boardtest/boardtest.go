// Package boardtest holds event sequences for the tests of all live views.
package boardtest

import (
	"fmt"
	"time"

	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

// Epoch is when every sequence starts.
var Epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Slot is a slot of an experiment.
func Slot(experiment, eval string, ordinal int) ref.Slot {
	return ref.Slot{Experiment: ref.ExperimentID(experiment), Eval: ref.EvalID(eval), Ordinal: ordinal}
}

// Locator is the n-th locator of a sequence.
func Locator(n int) ref.Locator { return ref.Locator(fmt.Sprintf("@1%012d", n)) }

// Attempt is a sealed attempt with that verdict; n makes its ids.
func Attempt(s ref.Slot, n int, v record.Verdict) *record.Attempt {
	ms, cost := int64(1500*n), 0.25
	in, out := int64(1000), int64(200)
	a := &record.Attempt{
		ID: ref.AttemptID(fmt.Sprintf("attempt%d", n)), Locator: Locator(n), Run: "run1", Experiment: s.Experiment, Eval: s.Eval,
		Ordinal: s.Ordinal, Verdict: v, StartedAt: Epoch, DurationMS: &ms, CostUSD: &cost,
		Usage: &record.Usage{InputTokens: &in, OutputTokens: &out},
	}
	switch v {
	case record.Failed:
		a.Checks = []record.Check{
			{Name: "builds", Kind: "command", Severity: record.Gate, Outcome: record.Matched},
			{Name: "greets", Kind: "file", Severity: record.Gate, Outcome: record.Mismatched, Detail: "expected \"hello\"\nreceived \"\x1b[31mbye\x1b[0m\" <&>"},
			{Name: "tidy", Kind: "command", Severity: record.Gate, Outcome: record.Mismatched, Detail: "exit 1"},
		}
	case record.Errored:
		a.Error = &record.ErrorInfo{
			Code: "engine-gone", Phase: "sandbox.create", Message: "the engine hung up\x1b]52;c;eA==\x07", Fix: "start the engine",
		}
		a.CostUSD, a.Usage = nil, nil
	case record.Skipped:
		a.Skip = "needs a network"
	}
	return a
}

// Story is a run that has every kind of event once: a reused slot, each
// verdict, a wait, diagnostics, run-level work that succeeds and fails, a spent
// budget, a halted eval, a slot without a result, captured control characters.
func Story() []event.Event {
	at := func(s int) time.Time { return Epoch.Add(time.Duration(s) * time.Second) }
	a, b, c := Slot("docker/base", "edit", 0), Slot("docker/base", "fix", 0), Slot("docker/base", "skip", 0)
	d, e, f := Slot("local", "edit", 0), Slot("local", "fix", 0), Slot("local", "late", 0)
	warn := record.Diagnostic{Code: "cache-cold", Level: "warning", Message: "the cache\x1b[2J is cold", Phase: "sandbox.setup", Key: "k", Count: 1}
	done := func(s ref.Slot, n int, v record.Verdict) event.Event {
		return event.AttemptDone{Time: at(20 + n), Slot: s, Attempt: Attempt(s, n, v)}
	}
	end := at(65)
	return []event.Event{
		event.Start{
			Time: Epoch, Invocation: "inv1", Total: 6, Reused: 1, Concurrency: 2,
			Experiments: []event.Experiment{
				{ID: "docker/base", Run: "run1", Agent: "codex", Model: "gpt", Sandbox: "docker: alpine:3.20", Slots: 3, Reused: 1, MaxConcurrency: 2},
				{ID: "local", Run: "run2", Agent: "oracle", Slots: 3},
			},
		},
		event.Carried{Slot: a, Verdict: record.Passed, Locator: Locator(90)},
		event.Check{Provider: "docker", Status: event.Started},
		event.Check{Provider: "docker", Status: event.Done},
		event.Check{Provider: "cloud", Status: event.Started},
		event.Check{Provider: "cloud", Status: event.Broken, Err: "401: bad token"},
		event.Prepare{Key: "k1", Provider: "docker", Label: "alpine:3.20", Status: event.Started},
		event.Prepare{Key: "k1", Provider: "docker", Label: "alpine:3.20", Status: event.Started, Stage: "image", Message: "layer 2/3"},
		event.Prepare{Key: "k1", Provider: "docker", Label: "alpine:3.20", Status: event.Done},
		event.Prepare{Key: "k2", Provider: "docker", Label: "nope:1", Status: event.Started},
		event.Prepare{
			Key: "k2", Provider: "docker", Label: "nope:1", Status: event.Broken, Stage: "image", Class: "config",
			Headline: "no such image", Levels: []string{"experiment docker/base"},
		},
		event.ExperimentHook{Experiment: "local", Hook: "setup", Status: event.Started},
		event.Queued{Slot: d, For: "experiment setup"},
		event.Progress{Slot: ref.Slot{Experiment: "local"}, Message: "migrating", Current: 3, Total: 9},
		event.ExperimentHook{Experiment: "local", Hook: "setup", Status: event.Done},
		event.AttemptStarted{Time: at(5), Slot: b, Attempt: "attempt1", Locator: Locator(1)},
		event.Phase{Slot: b, Name: "sandbox.setup"},
		event.Progress{Slot: b, Message: "unpacking\r\x1b[K", Current: 1, Total: 4},
		event.Diagnostic{Slot: b, Diagnostic: warn},
		event.AttemptStarted{Time: at(6), Slot: d, Attempt: "attempt2", Locator: Locator(2)},
		event.Phase{Slot: d, Name: "agent.run"},
		event.LockWait{Slot: e, Lock: "state db", Holder: "pid 7"},
		event.Diagnostic{Slot: d, Diagnostic: warn},
		event.Diagnostic{Slot: b, Diagnostic: warn},
		done(b, 1, record.Failed),
		done(d, 2, record.Passed),
		done(c, 3, record.Skipped),
		done(e, 4, record.Errored),
		event.Notice{Code: "provider-exclusive-serial", Level: "notice", Message: "local runs one attempt at a time"},
		event.Notice{Code: "provider-exclusive-serial", Level: "notice", Message: "local runs one attempt at a time"},
		event.Halted{Scope: "eval", Slot: f, Message: "the service is gone for good"},
		event.Budget{Experiment: "local", SpentUSD: 1.5, Limit: 1},
		event.NotRun{Slot: f, Reason: "budget"},
		event.ExperimentHook{Experiment: "local", Hook: "teardown", Status: event.Started},
		event.ExperimentHook{Experiment: "local", Hook: "teardown", Status: event.Broken, Err: "exit 3"},
		event.End{
			Time: end, RecordRoot: "/home/ada/project/.assay",
			Receipt: record.Receipt{
				InvocationID: "inv1", RunIDs: []ref.RunID{"run1", "run2"}, StartedAt: Epoch, CompletedAt: &end, Completion: record.Completed,
			},
		},
	}
}

// Crowd is n slots of one experiment, all active, the first fails of which fail
// for one cause; then the run ends.
func Crowd(n, fails int) (running, ending []event.Event) {
	running = append(running, event.Start{
		Time: Epoch, Invocation: "inv1", Total: n, Concurrency: n,
		Experiments: []event.Experiment{{ID: "crowd", Run: "run1", Agent: "codex", Slots: n}},
	})
	for i := range n {
		s := Slot("crowd", fmt.Sprintf("eval%02d", i), 0)
		running = append(running, event.AttemptStarted{Time: Epoch, Slot: s, Attempt: "x", Locator: Locator(i)}, event.Phase{Slot: s, Name: "agent.run"})
		v := record.Passed
		if i < fails {
			v = record.Failed
		}
		ending = append(ending, event.AttemptDone{Time: Epoch.Add(time.Minute), Slot: s, Attempt: Attempt(s, i, v)})
	}
	end := Epoch.Add(2 * time.Minute)
	ending = append(ending, event.End{
		Time: end, RecordRoot: "/home/ada/project/.assay",
		Receipt: record.Receipt{InvocationID: "inv1", StartedAt: Epoch, CompletedAt: &end, Completion: record.Completed},
	})
	return running, ending
}
