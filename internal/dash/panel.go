package dash

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"assay/internal/board"
)

const (
	reset  = "\x1b[0m"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

// paint gives a permanent line its colour.
func paint(l board.Line, noColor bool) string {
	style := ""
	switch l.Kind {
	case board.Problem:
		style = red
	case board.Warning:
		style = yellow
	case board.Next:
		style = bold
	case board.Conclusion:
		style = bold + green
		if l.Red {
			style = bold + red
		}
	}
	return styled(l.Text, style, noColor)
}

func styled(text, style string, noColor bool) string {
	if noColor || style == "" || text == "" {
		return text
	}
	return style + text + reset
}

// layout makes the panel for a terminal of that size: at most rows - 1 rows, on
// larger screens two thirds, each narrower than the screen. What matters most
// stays longest when there is no room: counters, title, run-level work,
// attempts, cost.
func layout(b *board.Board, o Options, columns, rows int, now time.Time) []string {
	width := columns - 1
	room := rows - 1
	if rows > 15 {
		room = rows * 2 / 3
	}
	if width < 1 || room < 1 {
		return nil
	}
	counters := wrap(counterParts(b.Counts()), width)
	if len(counters) > room {
		counters = counters[:room]
	}
	room -= len(counters)
	var out []string
	if room > 0 {
		out = append(out, styled(title(b, o, width, now), bold, o.NoColor))
		room--
	}
	out = append(out, counters...)
	foot := b.Spend().SpendText()
	if foot != "" && room > 2 {
		room--
	} else {
		foot = ""
	}
	steps := clipRows(b.Steps(), min(room, 4), "running")
	room -= len(steps)
	for _, s := range append(steps, attempts(b, room, now)...) {
		out = append(out, ansi.Truncate("  "+s, width, "…"))
	}
	if foot != "" {
		out = append(out, styled(ansi.Truncate(foot, width, "…"), dim, o.NoColor))
	}
	return out
}

// title is the command with the elapsed time at the right.
func title(b *board.Board, o Options, width int, now time.Time) string {
	command := o.Command
	if command == "" {
		command = "assay exp"
	}
	clock := seconds(now.Sub(b.Started()))
	if b.Started().IsZero() {
		clock = ""
	}
	if level := b.Interrupted(); level > 0 {
		clock = strings.TrimSpace("interrupted " + clock)
	}
	command = ansi.Truncate(command, max(width-ansi.StringWidth(clock)-1, 0), "…")
	gap := max(width-ansi.StringWidth(command)-ansi.StringWidth(clock), 1)
	return ansi.Truncate(command+strings.Repeat(" ", gap)+clock, width, "…")
}

// counterParts names the total and every class that is not empty, so that they
// add up in every frame.
func counterParts(c board.Counts) []string {
	parts := []string{fmt.Sprintf("%d/%d done", c.Finished(), c.Total)}
	for _, p := range []struct {
		n    int
		name string
	}{
		{c.Passed, "passed"},
		{c.Failed, "failed"},
		{c.Errored, "errored"},
		{c.Skipped, "skipped"},
		{c.Reused, "carried"},
		{c.NotRun, "not run"},
		{c.Running, "running"},
		{c.Waiting, "waiting"},
		{c.Queued, "queued"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	return parts
}

// wrap puts parts on as few rows as fit.
func wrap(parts []string, width int) []string {
	var rows []string
	for _, p := range parts {
		if n := len(rows); n > 0 && len(rows[n-1])+2+len(p) <= width {
			rows[n-1] += "  " + p
			continue
		}
		rows = append(rows, ansi.Truncate(p, width, "…"))
	}
	return rows
}

// clipRows returns at most room rows, the last of them telling how many are
// left out.
func clipRows(rows []string, room int, what string) []string {
	room = max(room, 0)
	if len(rows) <= room {
		return rows
	}
	if room == 0 {
		return nil
	}
	return append(rows[:room-1:room-1], fmt.Sprintf("… %d more %s", len(rows)-room+1, what))
}

// attempts are the active rows: elapsed, slot, what it does.
func attempts(b *board.Board, room int, now time.Time) []string {
	rows, all := b.Active(max(room, 0))
	var out []string
	for _, r := range rows {
		clock := ""
		if !r.Since.IsZero() {
			clock = seconds(now.Sub(r.Since))
		}
		out = append(out, fmt.Sprintf("%6s  %s  %s", clock, board.SlotName(r.Slot), r.Text))
	}
	if all > room && room > 0 {
		out[room-1] = fmt.Sprintf("… %d more active", all-room+1)
	}
	return out
}

// seconds is an elapsed time that changes at most once a second.
func seconds(d time.Duration) string {
	d = max(d, 0)
	if d < time.Minute {
		return fmt.Sprintf("%ds", int(d.Seconds()))
	}
	return board.Elapsed(d)
}
