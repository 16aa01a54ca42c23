// Package terminal writes a report as text for people: the summary of a model
// and the page of one attempt.
//
// Text from sandboxes, agents and authors is stripped of control characters
// before it is written. Nothing is cut that a next command needs: ids and
// locators are always whole. Escape sequences are written only when colour is
// asked for.
package terminal

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"assay/record"
	"assay/report"
	"assay/sandbox"
)

// Options say how to write.
type Options struct {
	Color bool
	// Width wraps prose; 0 is 100 columns. Tables and ids are never cut to it.
	Width int
	// All lists every member of a group of equal failures.
	All bool
}

// maxMembers is how many slots of equal failures are listed without All.
const maxMembers = 5

// printer collects lines and keeps the first write error, which Flush returns.
type printer struct {
	b *bufio.Writer
	o Options
}

func newPrinter(w io.Writer, o Options) *printer {
	if o.Width <= 0 {
		o.Width = 100
	}
	return &printer{b: bufio.NewWriterSize(w, 64<<10), o: o}
}

func (p *printer) line(parts ...string) {
	for _, s := range parts {
		_, _ = p.b.WriteString(s)
	}
	_ = p.b.WriteByte('\n')
}

func (p *printer) linef(format string, args ...any) { p.line(fmt.Sprintf(format, args...)) }

func (p *printer) heading(s string) {
	p.line()
	p.line(p.paint("1", s))
}

// paint wraps s in an SGR sequence when colour is on.
func (p *printer) paint(sgr, s string) string {
	if !p.o.Color || s == "" {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

func (p *printer) verdict(v record.Verdict, pad int) string {
	sgr := map[record.Verdict]string{record.Passed: "32", record.Failed: "31", record.Errored: "35", record.Skipped: "33", record.NotRun: "2"}[v]
	return p.paint(sgr, string(v)) + strings.Repeat(" ", max(0, pad-len(v)))
}

// wrap writes one paragraph of raw text, cleaned, folded at the width. The first
// line begins with indent, the others as far to the right.
func (p *printer) wrap(indent, text string) {
	room := max(20, p.o.Width-utf8.RuneCountInString(indent))
	line, n := indent, 0
	for word := range strings.FieldsSeq(sandbox.StripControl(text)) {
		w := utf8.RuneCountInString(word)
		if n > 0 && n+1+w > room {
			p.line(line)
			line, n = strings.Repeat(" ", utf8.RuneCountInString(indent)), 0
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+word, n+w
	}
	if n > 0 {
		p.line(line)
	}
}

// block writes raw text of several lines, cleaned, at most limit lines: its end
// when tail is set, else its beginning.
func (p *printer) block(indent, text string, limit int, tail bool) {
	lines := strings.Split(strings.TrimRight(sandbox.StripControl(text), "\n"), "\n")
	left := len(lines) - limit
	if left > 0 && tail {
		p.linef("%s… %d lines before", indent, left)
		lines = lines[left:]
	} else if left > 0 {
		lines = lines[:limit]
	}
	for _, l := range lines {
		p.line(indent, clip(l, 500))
	}
	if left > 0 && !tail {
		p.linef("%s… %d more lines", indent, left)
	}
}

// clean makes raw text fit for a part of one line.
func clean(s string) string { return sandbox.Clean(s) }

func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return strconv.FormatInt(ms, 10) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	return d.Round(time.Second).String()
}

func money(usd float64) string {
	if usd != 0 && usd < 0.01 {
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// table writes rows in columns as wide as their widest cell; the last column is
// not padded. Cells are clean text; paint colours a padded cell.
func (p *printer) table(rows [][]string, paint func(col int, row []string, cell string) string) {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(" ")
		last := len(row) - 1
		for last > 0 && row[last] == "" {
			last--
		}
		for i, c := range row[:last+1] {
			pad := widths[i] - utf8.RuneCountInString(c)
			if widths[i] == 0 {
				continue
			}
			line.WriteString(" ")
			if paint != nil {
				c = paint(i, row, c)
			}
			line.WriteString(c)
			if i < last {
				line.WriteString(strings.Repeat(" ", pad+1))
			}
		}
		p.line(line.String())
	}
}

// Summary writes the default page: a table for each run, equal failures once,
// and the totals. The error is that of w.
func Summary(w io.Writer, m *report.Model, o Options) error {
	p := newPrinter(w, o)
	if len(m.Runs) == 0 {
		p.linef("no results in %s", clean(m.Root))
	}
	for i, r := range m.Runs {
		if i > 0 {
			p.line()
		}
		p.run(r, len(m.Runs) == 1 || o.All)
	}
	p.groups(m.Groups)
	if len(m.Problems) > 0 {
		p.heading("UNREADABLE")
		for _, pr := range m.Problems {
			p.wrap("  ", pr.Error())
		}
	}
	if len(m.Runs) > 1 {
		p.heading("TOTAL")
		p.totals(&m.Totals)
	}
	if loc := firstFailure(m); loc != "" {
		p.line()
		p.linef("Details: assay show %s", loc)
	}
	return p.b.Flush()
}

func firstFailure(m *report.Model) string {
	for _, g := range m.Groups {
		for _, member := range g.Members {
			if member.Locator != "" {
				return string(member.Locator)
			}
		}
	}
	return ""
}

func (p *printer) run(r *report.Run, whole bool) {
	state := string(r.Completion)
	if state == "" {
		state = string(r.Status)
	}
	p.linef("%s  run %s  %s  started %s", p.paint("1", clean(string(r.Experiment))), r.ID, state, r.StartedAt.UTC().Format("2006-01-02 15:04:05Z"))
	if r.Error != nil {
		p.wrap("  ", "error: "+errorLine(r.Error))
		if r.Error.Fix != "" {
			p.wrap("  ", "fix: "+r.Error.Fix)
		}
	}
	many := false
	for i := range r.Slots {
		many = many || r.Slots[i].Ordinal > 0
	}
	rows := make([][]string, 0, len(r.Slots))
	for i := range r.Slots {
		rows = append(rows, slotRow(&r.Slots[i], many))
	}
	p.table(rows, func(col int, row []string, cell string) string {
		if col == 1 {
			return p.verdict(record.Verdict(cell), 0)
		}
		return cell
	})
	p.lanes(r.Lanes(), whole)
	for _, d := range r.Diagnostics {
		p.diagnostic(d)
	}
	p.totals(&r.Totals)
}

// slotRow is eval, verdict, locator, time, cost, origin, why.
func slotRow(s *report.Slot, ordinals bool) []string {
	eval := clean(string(s.Eval))
	if ordinals {
		eval += "#" + strconv.Itoa(s.Ordinal)
	}
	took, cost, origin := "", "", ""
	if a := s.Result; a != nil {
		switch {
		case a.CensoredMS != nil:
			took = ">" + duration(*a.CensoredMS)
		case a.DurationMS != nil:
			took = duration(*a.DurationMS)
		}
		if a.CostUSD != nil {
			cost = money(*a.CostUSD)
		}
	}
	if s.Origin == record.Carried || s.Origin == record.Accepted {
		origin = string(s.Origin)
	}
	return []string{eval, string(s.Verdict), string(s.Locator), took, cost, origin, clip(clean(s.Why), 240)}
}

func (p *printer) groups(groups []report.Group) {
	if len(groups) == 0 {
		return
	}
	p.heading("FAILURES")
	for _, g := range groups {
		count := ""
		if n := len(g.Members); n > 1 {
			count = fmt.Sprintf(" ×%d", n)
		}
		p.line("  ", p.verdict(g.Verdict, 0), count)
		p.wrap("    ", g.Why)
		if g.Fix != "" {
			p.wrap("    ", "fix: "+g.Fix)
		}
		shown := len(g.Members)
		if !p.o.All {
			shown = min(shown, maxMembers)
		}
		for _, m := range g.Members[:shown] {
			p.linef("    %s  %s  %s#%d", m.Locator, clean(string(m.Run.Experiment)), clean(string(m.Eval)), m.Ordinal)
		}
		if left := len(g.Members) - shown; left > 0 {
			p.linef("    … %d more", left)
		}
	}
}

// totals writes every class that is not empty, so that they add up to the
// declared slots, and each rate with what it stands on.
func (p *printer) totals(t *report.Totals) {
	var parts []string
	for _, c := range []struct {
		n    int
		word string
	}{{t.Passed, "passed"}, {t.Failed, "failed"}, {t.Errored, "errored"}, {t.Skipped, "skipped"}, {t.NotRun, "not run"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.word))
		}
	}
	if t.SoftFailed > 0 {
		parts = append(parts, fmt.Sprintf("%d passed with soft failures", t.SoftFailed))
	}
	if t.Carried > 0 {
		parts = append(parts, fmt.Sprintf("%d carried", t.Carried))
	}
	if len(parts) == 0 {
		parts = append(parts, "no slots")
	}
	line := "  " + strings.Join(parts, ", ")
	if rate, n := t.PassRate(); n > 0 {
		line += fmt.Sprintf(" · pass rate %s%% (%d of %d measured)", strconv.FormatFloat(100*rate, 'f', 1, 64), n, t.Slots())
	} else {
		line += fmt.Sprintf(" · pass rate unknown (0 of %d measured)", t.Slots())
	}
	p.line(line)
	var known []string
	if mean, ok := t.Duration.Mean(); ok {
		known = append(known, fmt.Sprintf("mean time %s (%d of %d)", duration(int64(mean)), t.Duration.Known, t.Duration.Of))
	}
	if t.Tokens.Known > 0 {
		known = append(known, fmt.Sprintf("%.0f tokens (%d of %d)", t.Tokens.Sum, t.Tokens.Known, t.Tokens.Of))
	}
	if t.CostUSD.Known > 0 {
		known = append(known, fmt.Sprintf("%s (%d of %d)", money(t.CostUSD.Sum), t.CostUSD.Known, t.CostUSD.Of))
	}
	if len(known) > 0 {
		p.line("  ", strings.Join(known, " · "))
	}
}

func (p *printer) diagnostic(d record.Diagnostic) {
	text := d.Level + " " + d.Code
	if d.Phase != "" {
		text += " in " + d.Phase
	}
	if d.Count > 1 {
		text += fmt.Sprintf(" ×%d", d.Count)
	}
	p.wrap("  ", text+": "+d.Message)
}

func errorLine(e *record.ErrorInfo) string {
	parts := []string{}
	for _, s := range []string{e.Phase, e.Code, e.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}
