package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"assay/record"
	"assay/ref"
	"assay/report"
)

func sharedRun() *report.Run {
	use := func(eval ref.EvalID, ordinal, sandbox, use int, reset int64, fact string) report.Slot {
		ms := int64(300)
		a := &record.Attempt{Eval: eval, Ordinal: ordinal, Verdict: record.Passed, DurationMS: &ms, Sandbox: &record.Sandbox{Provider: "native", ID: "box-" + string(rune('a'+sandbox)), Ordinal: sandbox, Use: use, Reused: use > 1}}
		if use > 1 {
			a.Phases = []record.Phase{{Name: "sandbox.reset", MS: reset}}
			a.Facts = record.Facts{"assay.sandbox.drift": {Value: json.RawMessage(fact)}}
		}
		return report.Slot{Eval: eval, Ordinal: ordinal, Origin: record.Executed, Verdict: record.Passed, Result: a}
	}
	own := use("own", 0, 0, 1, 0, "")
	own.Result.Sandbox.Ordinal = 0
	carried := use("old", 0, 1, 9, 0, "{}")
	carried.Origin = record.Carried
	return &report.Run{ID: ref.RunID(id("R1")), Experiment: "x", StartedAt: time.Unix(0, 0), Completion: record.Completed, Slots: []report.Slot{
		use("b", 0, 2, 1, 0, ""), use("a", 1, 1, 2, 12, `{"use":1,"changed":3,"ports":[8080,9090]}`), use("a", 0, 1, 1, 0, ""), use("b", 1, 1, 3, 9, `{"use":2,"changed":0}`), own, carried,
	}}
}

func TestLanesAreShown(t *testing.T) {
	show := func(runs ...*report.Run) string {
		var b bytes.Buffer
		if err := Summary(&b, &report.Model{Runs: runs}, Options{}); err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(b.String(), "  sandbox 1 ")
		return "  sandbox 1 " + text
	}
	want := `  sandbox 1  native box-b  3 attempts
     use 1  passed  a#0  300ms  new
     use 2  passed  a#1  300ms  reset 12ms, outside the workdir: 3 changed, listening: 8080 9090
     use 3  passed  b#1  300ms  reset 9ms
  sandbox 2  native box-c  1 attempt
     use 1  passed  b#0  300ms  new
`
	if got := show(sharedRun()); !strings.HasPrefix(got, want) {
		t.Errorf("one run:\n%s\nwant\n%s", got, want)
	}
	if got := show(sharedRun(), sharedRun()); !strings.HasPrefix(got, "  sandbox 1  native box-b  3 attempts\n  sandbox 2  native box-c  1 attempt\n") {
		t.Errorf("several runs:\n%s", got)
	}
}

func TestLimitsAreReadable(t *testing.T) {
	for _, c := range []struct {
		name string
		v    any
		want string
	}{{"memory", float64(64 << 20), "64 MiB"}, {"disk", float64(1536 << 20), "1536 MiB"}, {"pids", float64(100000), "100000"}, {"cpus", 0.5, "0.5"}, {"x", "y", "y"}} {
		if got := limit(c.name, c.v); got != c.want {
			t.Errorf("%s %v is %q, want %q", c.name, c.v, got, c.want)
		}
	}
}
