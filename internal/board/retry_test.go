package board_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"assay/internal/board"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

// The retry line is the command that does something about what is red: a failed
// result would be carried.
func TestRetryRunsAgainWhatFailed(t *testing.T) {
	slot := ref.Slot{Experiment: "x", Eval: "e"}
	done := func(v record.Verdict) event.Event {
		return event.AttemptDone{Slot: slot, Attempt: &record.Attempt{Verdict: v}}
	}
	for name, c := range map[string]struct {
		last event.Event
		end  event.Conclusion
		want string
	}{
		"passed":      {done(record.Passed), "", ""},
		"failed":      {done(record.Failed), "", "Retry: assay exp x --rerun"},
		"errored":     {done(record.Errored), "", "Retry: assay exp x"},
		"reused fail": {event.Carried{Slot: slot, Verdict: record.Failed}, "", "Retry: assay exp x --rerun"},
		"interrupted": {done(record.Failed), event.ConcludedInterrupted, "Retry: assay exp x"},
		"not run":     {event.NotRun{Slot: slot, Reason: "budget"}, "", "Retry: assay exp x"},
	} {
		b := board.New(board.Options{Command: "assay exp x"})
		b.Apply(event.Start{Time: time.Unix(1, 0), Total: 1})
		b.Apply(c.last)
		got := ""
		for _, l := range b.Apply(event.End{Time: time.Unix(2, 0), Conclusion: c.end}) {
			if strings.HasPrefix(l.Text, "Retry") {
				got = l.Text
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	b := board.New(board.Options{Command: "a", Rerun: "a --other"})
	b.Apply(event.Start{Total: 1})
	b.Apply(done(record.Failed))
	if lines := b.Apply(event.End{}); !slices.ContainsFunc(lines, func(l board.Line) bool { return l.Text == "Retry: a --other" }) {
		t.Errorf("the command that was given is not there: %v", lines)
	}
}
