package board

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"assay/internal/event"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Bounds of the summary: how many causes, locators of one cause and slots of
// one reason it names. The rest is a count, and `show` has it.
const (
	maxCauses   = 10
	maxLocators = 5
	maxSlots    = 5
)

// HeartbeatText is a line that tells that work goes on, for a log that was
// silent.
func (b *Board) HeartbeatText(now time.Time) string {
	text := "still running"
	if !b.start.IsZero() {
		text += " after " + Elapsed(now.Sub(b.start))
	}
	text += ": " + b.Counts().String()
	rows, _ := b.Active(1)
	switch {
	case len(rows) > 0:
		text += fmt.Sprintf("; longest: %s, %s", SlotName(rows[0].Slot), rows[0].Text)
		if !rows[0].Since.IsZero() {
			text += " (" + Elapsed(now.Sub(rows[0].Since)) + ")"
		}
	case len(b.steps) > 0:
		text += "; " + b.Steps()[0]
	}
	return sandbox.Clean(text)
}

// SummaryText is the conclusion and the counters in one line.
func (b *Board) SummaryText() string {
	return string(b.Conclusion()) + "  " + b.Counts().String()
}

// summaryLines is what stays when the run is over.
func (b *Board) summaryLines() []Line {
	lines := []Line{{Kind: Conclusion, Text: b.SummaryText(), Red: b.Conclusion() != event.ConcludedPassed}}
	add := func(format string, args ...any) {
		lines = append(lines, Line{Kind: Summary, Text: "  " + sandbox.Clean(fmt.Sprintf(format, args...))})
	}
	if b.n[reused] > 0 {
		add("carried: %s", verdicts(b.reused))
	}
	if text := b.newText(); text != "" {
		add("executed now: %s", text)
	}
	for _, g := range b.notRunGroups() {
		add("not run, %s", g)
	}
	for _, d := range b.diagnostics {
		if d.Count > 1 {
			add("%s %s came %d times", d.Level, d.Code, d.Count)
		}
	}
	lines = append(lines, b.causeLines()...)
	return append(lines, b.nextLines()...)
}

// newText tells time, cost and tokens of what was executed now.
func (b *Board) newText() string {
	if b.spend.Executed == 0 {
		return ""
	}
	parts := []string{plural(b.spend.Executed, "attempt")}
	if !b.start.IsZero() && b.end.After(b.start) {
		parts[0] += " in " + Elapsed(b.end.Sub(b.start))
	}
	if t := b.spend.SpendText(); t != "" {
		parts = append(parts, t)
	}
	return strings.Join(parts, ", ")
}

func verdicts(n map[record.Verdict]int) string {
	var parts []string
	for _, v := range []record.Verdict{record.Passed, record.Failed, record.Errored, record.Skipped, record.NotRun} {
		if n[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[v], v))
		}
	}
	return strings.Join(parts, ", ")
}

// notRunGroups names the slots without a result, one text per reason.
func (b *Board) notRunGroups() []string {
	var order []string
	by := map[string][]ref.Slot{}
	for _, n := range b.notRun {
		if by[n.reason] == nil {
			order = append(order, n.reason)
		}
		by[n.reason] = append(by[n.reason], n.slot)
	}
	var out []string
	for _, reason := range order {
		slots := by[reason]
		names := make([]string, 0, maxSlots)
		for _, s := range slots[:min(maxSlots, len(slots))] {
			names = append(names, s.String())
		}
		text := fmt.Sprintf("%s: %d (%s", reason, len(slots), strings.Join(names, ", "))
		if more := len(slots) - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		out = append(out, text+")")
	}
	return out
}

// causeLines groups what went wrong by its cause, the most frequent first.
func (b *Board) causeLines() []Line {
	causes := slices.Clone(b.causeOrder)
	slices.SortStableFunc(causes, func(x, y *cause) int { return len(y.locators) - len(x.locators) })
	var lines []Line
	for i, c := range causes {
		if i == maxCauses {
			lines = append(lines, Line{Kind: Summary, Text: fmt.Sprintf("  … and %s", plural(len(causes)-i, "further cause"))})
			break
		}
		lines = append(lines, Line{Kind: Problem, Text: fmt.Sprintf("  %d %s: %s", len(c.locators), c.verdict, c.text)})
		names := make([]string, 0, maxLocators)
		for _, l := range c.locators[:min(maxLocators, len(c.locators))] {
			names = append(names, string(l))
		}
		text := strings.Join(names, " ")
		if more := len(c.locators) - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, indented("%s", text))
	}
	return lines
}

// nextLines are the commands that the user may want next.
func (b *Board) nextLines() []Line {
	var lines []Line
	if b.recordRoot != "" {
		lines = append(lines, Line{Kind: Next, Text: "Results: " + b.recordRoot})
	}
	if len(b.failures) > 0 {
		lines = append(lines, Line{Kind: Next, Text: fmt.Sprintf("Next: %s %s", b.o.Show, b.failures[0].Locator)})
	}
	switch b.Conclusion() {
	case event.ConcludedPassed:
	case event.ConcludedInterrupted, event.ConcludedIncomplete:
		// The same command goes on where it stopped: what has a result is carried.
		lines = append(lines, Line{Kind: Next, Text: "Retry: " + b.o.Command})
	default:
		retry := b.o.Command
		if b.n[failed]+b.reused[record.Failed] > 0 {
			retry = b.o.Rerun // a failed result is one, and would be carried
		}
		lines = append(lines, Line{Kind: Next, Text: "Retry: " + retry})
	}
	return lines
}
