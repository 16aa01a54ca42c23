package markdown_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"assay/fault"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
	"assay/report/markdown"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

func slot(x, e string, n int) ref.Slot {
	return ref.Slot{Experiment: ref.ExperimentID(x), Eval: ref.EvalID(e), Ordinal: n}
}

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func broken(log string) event.Prepare {
	return event.Prepare{
		Key: "k", Provider: "docker", Label: "./Dockerfile", Status: event.Broken, Stage: "dockerfile", Class: "config",
		Headline: "docker ./Dockerfile could not be prepared (config at dockerfile)", Message: "RUN make | tee <log>: exit code 2",
		Log: log, Levels: []string{"eval a", "eval b"},
	}
}

func TestSummary(t *testing.T) {
	s := markdown.New()
	s.Handle(broken("gcc: no such file\n```\nmake: *** [all] Error 2"))
	s.Handle(event.Start{Time: begun, Experiments: []event.Experiment{{ID: "ci/codex", Agent: "codex", Model: "m|1", Sandbox: "docker a:1"}, {ID: "quiet", Agent: "nop"}}})
	cost := 0.25
	s.Handle(event.AttemptDone{Slot: slot("ci/codex", "ok", 0), Attempt: &record.Attempt{Verdict: record.Passed, CostUSD: &cost}})
	s.Handle(event.AttemptDone{Slot: slot("ci/codex", "wrong", 0), Attempt: &record.Attempt{
		Verdict: record.Failed, Locator: "@1000000000001",
		Checks: []record.Check{{Name: "tests | <b>pass</b>", Severity: record.Gate, Outcome: record.Mismatched, Detail: "exit 1, see `log` @someone #12"}},
	}})
	s.Handle(event.AttemptDone{Slot: slot("ci/codex", "a", 0), Attempt: &record.Attempt{
		Verdict: record.Errored, Locator: "@1000000000002", Error: &record.ErrorInfo{Prepare: &record.PrepareError{Headline: "docker ./Dockerfile could not be prepared (config at dockerfile)"}},
	}})
	s.Handle(event.AttemptDone{Slot: slot("ci/codex", "lost", 0), Attempt: &record.Attempt{
		Verdict: record.Errored, Locator: "@1000000000003", Error: &record.ErrorInfo{Code: "gone", Message: "it is gone", Fix: "Start it."},
	}})
	s.Handle(event.AttemptDone{Slot: slot("ci/codex", "skip", 0), Attempt: &record.Attempt{Verdict: record.Skipped}})
	s.Handle(event.NotRun{Slot: slot("ci/codex", "late", 0), Reason: "budget"})
	s.Handle(event.Carried{Slot: slot("quiet", "old", 0), Verdict: record.Failed, Locator: "@1000000000004"})
	s.Handle(event.End{Time: begun.Add(95 * time.Second), Conclusion: event.ConcludedErrored, RecordRoot: "/p/.assay/record"})
	golden(t, "summary.golden", s.String())
}

func TestNothingRan(t *testing.T) {
	s := markdown.New()
	s.Handle(event.Check{Provider: "docker", Status: event.Broken, Err: "no engine answers"})
	s.Handle(broken(""))
	s.Failed(fault.Configf("x", "Start *it*.", "the <docker> sandbox is not ready"))
	golden(t, "nothing.golden", s.String())
}

func TestNothingHappened(t *testing.T) {
	if got := markdown.New().String(); got != "" {
		t.Errorf("%q", got)
	}
	s := markdown.New()
	s.Failed(errors.New("x"))
	if !strings.Contains(s.String(), "nothing ran") {
		t.Errorf("%q", s.String())
	}
}

func TestSummaryIsBounded(t *testing.T) {
	s := markdown.New()
	s.Handle(event.Start{Time: begun, Experiments: []event.Experiment{{ID: "x"}}})
	long := strings.Repeat("word ", 1000)
	for i := range 1000 {
		s.Handle(event.AttemptDone{Slot: slot("x", fmt.Sprint("e", i), 0), Attempt: &record.Attempt{Verdict: record.Errored, Error: &record.ErrorInfo{Code: "c", Message: long, Fix: long}}})
		if i < 200 {
			p := broken(strings.Repeat(long[:200]+"\n", 400))
			p.Message = long
			s.Handle(p)
		}
	}
	got := s.String()
	if len(got) > 1<<20 || !strings.Contains(got, "… and 900 more.") || !strings.Contains(got, "… and 150 more.") {
		t.Errorf("%d bytes", len(got))
	}
}
