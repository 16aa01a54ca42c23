package board_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"assay/internal/board"
	"assay/internal/board/boardtest"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
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
		t.Errorf("%s differs (-want +got):\n%s", path, d)
	}
}

// check holds the counters to their promise.
func check(t interface{ Fatalf(string, ...any) }, b *board.Board, after event.Event) {
	c := b.Counts()
	sum := 0
	for _, n := range []int{c.Reused, c.Running, c.Waiting, c.Queued, c.Passed, c.Failed, c.Errored, c.Skipped, c.NotRun} {
		if n < 0 {
			t.Fatalf("negative counter after %#v: %+v", after, c)
		}
		sum += n
	}
	if sum != c.Total {
		t.Fatalf("after %#v the counters make %d of %d: %+v", after, sum, c.Total, c)
	}
	if rows, all := b.Active(1 << 20); len(rows) != all || all > c.Running+c.Waiting+c.Queued {
		t.Fatalf("%d of %d active rows for %+v after %#v", len(rows), all, c, after)
	}
}

// anyEvent draws an event about one of a few slots, in no order and of no
// sense.
func anyEvent(t *rapid.T) event.Event {
	s := boardtest.Slot("x", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "eval"), rapid.IntRange(0, 2).Draw(t, "ordinal"))
	v := rapid.SampledFrom([]record.Verdict{record.Passed, record.Failed, record.Errored, record.Skipped, record.NotRun, "?", ""}).Draw(t, "verdict")
	return rapid.SampledFrom([]event.Event{
		event.Start{Total: rapid.IntRange(-1, 12).Draw(t, "total"), Reused: rapid.IntRange(-1, 12).Draw(t, "reused")},
		event.Queued{Slot: s, For: rapid.SampledFrom([]string{"", event.ForSlot, "experiment setup"}).Draw(t, "for")},
		event.LockWait{Slot: s, Lock: "l"},
		event.AttemptStarted{Slot: s},
		event.Phase{Slot: s, Name: "agent.run"},
		event.Progress{Slot: s, Message: "m"},
		event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 1, v)},
		event.AttemptDone{Slot: s},
		event.NotRun{Slot: s, Reason: "halted"},
		event.Carried{Slot: s, Verdict: v},
		event.Interrupt{Level: 1},
		event.End{},
	}).Draw(t, "event")
}

func TestCountersAddUpInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := board.New(board.Options{})
		for range rapid.IntRange(0, 60).Draw(t, "length") {
			e := anyEvent(t)
			b.Apply(e)
			check(t, b, e)
		}
	})
}

// A valid sequence in any interleaving ends with the classes it was made of.
func TestShuffledStoryEndsTheSame(t *testing.T) {
	for seed := range uint64(200) {
		events := boardtest.Story()
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		b := board.New(board.Options{})
		for _, e := range events {
			b.Apply(e)
			check(t, b, e)
		}
		want := board.Counts{Total: 6, Reused: 1, Passed: 1, Failed: 1, Errored: 1, Skipped: 1, NotRun: 1}
		if got := b.Counts(); got != want {
			t.Fatalf("seed %d: %+v, want %+v", seed, got, want)
		}
		if rows, _ := b.Active(9); len(rows) != 0 {
			t.Fatalf("seed %d: finished attempts are active: %v", seed, rows)
		}
	}
}

func TestStoryLines(t *testing.T) {
	b := board.New(board.Options{Command: "assay exp docker"})
	var out strings.Builder
	for _, e := range boardtest.Story() {
		for _, l := range b.Apply(e) {
			fmt.Fprintf(&out, "%2d %s\n", l.Kind, l.Text)
			for _, r := range l.Text {
				if r < 0x20 || r == 0x7f {
					t.Errorf("control character %q in %q", r, l.Text)
				}
			}
		}
	}
	golden(t, "story.golden", out.String())
}

func TestActiveRowsKeepTheirClockAndName(t *testing.T) {
	s := boardtest.Slot("x", "a", 0)
	b := board.New(board.Options{})
	at := boardtest.Epoch
	text := func() string {
		rows, _ := b.Active(1)
		if len(rows) != 1 || !rows[0].Since.Equal(at) {
			t.Fatalf("rows %+v, want one since %v", rows, at)
		}
		return rows[0].Text
	}
	for _, step := range []struct {
		e    event.Event
		want string
	}{
		{event.AttemptStarted{Slot: s, Time: at}, "Starting"},
		{event.Phase{Slot: s, Name: "sandbox.setup"}, "Sandbox setup"},
		{event.Progress{Slot: s, Message: "cloning", Current: 1, Total: 3}, "cloning 1/3"},
		{event.Queued{Slot: s, For: "backing off 2s"}, "Waiting for backing off 2s"},
		{event.Progress{Slot: s, Message: "late"}, "Waiting for backing off 2s"},
		{event.AttemptStarted{Slot: s, Time: at.Add(time.Hour)}, "Sandbox setup"},
		{event.Phase{Slot: s, Name: "com.acme.own"}, "com.acme.own"},
	} {
		b.Apply(step.e)
		if got := text(); got != step.want {
			t.Errorf("after %#v the row says %q, want %q", step.e, got, step.want)
		}
	}
}

func TestConclusion(t *testing.T) {
	a0, a1 := boardtest.Slot("x", "a", 0), boardtest.Slot("x", "a", 1)
	done := func(s ref.Slot, v record.Verdict) event.Event {
		return event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 1, v)}
	}
	for _, c := range []struct {
		name   string
		events []event.Event
		want   event.Conclusion
	}{
		{"all passed", []event.Event{done(a0, record.Passed), done(a1, record.Passed)}, event.ConcludedPassed},
		{"failed once, then passed", []event.Event{done(a0, record.Failed), done(a1, record.Passed)}, event.ConcludedPassed},
		{"failed", []event.Event{done(a0, record.Failed), done(a1, record.Failed)}, event.ConcludedFailed},
		{"errored beats a pass", []event.Event{done(a0, record.Passed), done(a1, record.Errored)}, event.ConcludedErrored},
		{"early exit", []event.Event{done(a0, record.Passed), event.NotRun{Slot: a1, Reason: "early-exit"}}, event.ConcludedPassed},
		{"budget", []event.Event{done(a0, record.Passed), event.NotRun{Slot: a1, Reason: "budget"}}, event.ConcludedIncomplete},
		{"unheard of", []event.Event{done(a0, record.Passed)}, event.ConcludedIncomplete},
		{"reused failure", []event.Event{event.Carried{Slot: a0, Verdict: record.Failed}, event.Carried{Slot: a1, Verdict: record.Failed}}, event.ConcludedFailed},
		{"signal", []event.Event{done(a0, record.Failed), event.Interrupt{Signal: "SIGINT", Level: 1}}, event.ConcludedInterrupted},
		{"no signal", []event.Event{done(a0, record.Passed), event.NotRun{Slot: a1, Reason: "halted"}}, event.ConcludedIncomplete},
		{"the engine's word", []event.Event{event.End{Conclusion: event.ConcludedErrored}}, event.ConcludedErrored},
	} {
		b := board.New(board.Options{})
		b.Apply(event.Start{Total: 2})
		for _, e := range c.events {
			b.Apply(e)
		}
		if got := b.Conclusion(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got := board.New(board.Options{}).Conclusion(); got != event.ConcludedIncomplete {
		t.Errorf("nothing at all: %s", got)
	}
}

// 205 equal failures are one cause, and no locator that a command needs is cut.
func TestEqualCausesAreGrouped(t *testing.T) {
	b := board.New(board.Options{})
	running, ending := boardtest.Crowd(205, 205)
	var details, all int
	var last []board.Line
	for _, e := range append(running, ending...) {
		last = b.Apply(e)
		for _, l := range last {
			all++
			if l.Kind == board.Detail && strings.Contains(l.Text, "expected") {
				details++
			}
		}
	}
	if details != 3 {
		t.Errorf("the cause was told %d times, want 3", details)
	}
	var text strings.Builder
	for _, l := range last {
		text.WriteString(l.Text + "\n")
	}
	for _, want := range []string{"205 failed: greets: expected", "and 200 more", "Next: assay show @1000000000000", "Retry: assay exp"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

// A pass against which only soft checks speak says so.
func TestMissedSoftChecksShowInThePass(t *testing.T) {
	s := boardtest.Slot("x", "a", 0)
	soft := func(o record.Outcome) record.Check { return record.Check{Severity: record.Soft, Outcome: o} }
	for _, c := range []struct {
		verdict record.Verdict
		checks  []record.Check
		want    string
	}{
		{record.Passed, []record.Check{soft(record.Matched), soft(record.Unavailable)}, ""},
		{record.Passed, []record.Check{soft(record.Mismatched), soft(record.Matched)}, "(1 soft check missed)"},
		{record.Passed, []record.Check{soft(record.Mismatched), soft(record.Mismatched)}, "(2 soft checks missed)"},
		{record.Failed, []record.Check{soft(record.Mismatched)}, ""},
	} {
		a := boardtest.Attempt(s, 1, c.verdict)
		a.Checks = append(a.Checks, c.checks...)
		b := board.New(board.Options{})
		b.Apply(event.Start{Total: 1})
		line := b.Apply(event.AttemptDone{Slot: s, Attempt: a})[0].Text
		_, note, _ := strings.Cut(line, "(")
		if got := strings.TrimSuffix("("+note, "("); got != c.want {
			t.Errorf("%s with %+v: %q, want %q", c.verdict, c.checks, line, c.want)
		}
	}
}

func TestElapsed(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 4210 * time.Millisecond: "4.2s", 9999 * time.Millisecond: "10s", 59400 * time.Millisecond: "59s",
		59900 * time.Millisecond: "0m59s", 192 * time.Second: "3m12s", 62 * time.Minute: "1h02m",
	} {
		if got := board.Elapsed(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	b := board.New(board.Options{})
	running, _ := boardtest.Crowd(2, 0)
	for _, e := range running {
		b.Apply(e)
	}
	want := "still running after 1m05s: 2 attempts: 0 passed, 0 failed, 0 errored, 0 skipped, 0 carried, 0 not run, 2 running; longest: crowd eval00#0, Agent at work (1m05s)"
	if got := b.HeartbeatText(boardtest.Epoch.Add(65 * time.Second)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A sealed attempt is a fact: it replaces a slot that was given up, and nothing
// replaces it.
func TestSealedAttemptWins(t *testing.T) {
	s := boardtest.Slot("x", "a", 0)
	b := board.New(board.Options{})
	b.Apply(event.NotRun{Slot: s, Reason: "interrupted"})
	b.Apply(event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 1, record.Passed)})
	b.Apply(event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 2, record.Failed)})
	b.Apply(event.NotRun{Slot: s, Reason: "interrupted"})
	want := board.Counts{Total: 1, Passed: 1}
	if got := b.Counts(); got != want || b.Conclusion() != event.ConcludedPassed {
		t.Errorf("%+v %s, want %+v", got, b.Conclusion(), want)
	}
	for _, l := range b.Apply(event.End{}) {
		if strings.Contains(l.Text, "interrupted") {
			t.Errorf("the slot still counts as not run: %s", l.Text)
		}
	}
}
