package terminal

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/record"
	"assay/report"
	"assay/sandbox"

	"github.com/aymanbagabas/go-udiff"
)

// The bounds of one page; the record holds the rest.
const (
	maxOutputLines  = 15
	maxDetailLines  = 20
	maxDiffLines    = 200 // of one file
	maxDiffBytes    = 256 << 10
	maxDiffFiles    = 50
	maxPageCommands = 30
	maxFactLine     = 400
)

// Page writes everything that is recorded of one attempt. Parts that are not
// there have no section; parts that cannot be read say so. The error is that of
// w.
func Page(w io.Writer, pg *report.Page, o Options) error {
	p := newPrinter(w, o)
	a := pg.Attempt
	p.pageHead(pg)
	if a.Error != nil {
		p.pageError(a.Error)
	}
	p.checks(a.Checks)
	if len(a.Diagnostics) > 0 {
		p.heading("DIAGNOSTICS")
		for _, d := range a.Diagnostics {
			p.diagnostic(d)
			if len(d.Data) > 0 {
				p.line("    ", clip(clean(string(d.Data)), maxFactLine))
			}
		}
	}
	p.facts(a.Facts)
	p.phases(a.Phases)
	p.timeline(a)
	p.conversation(pg)
	p.commands(pg)
	p.diff(pg)
	p.events(pg)
	p.sandboxBlock(a.Sandbox)
	p.usage(a)
	if len(a.Trimmed) > 0 {
		p.heading("SHORTENED")
		p.wrap("  ", strings.Join(a.Trimmed, ", "))
	}
	return p.b.Flush()
}

func (p *printer) pageHead(pg *report.Page) {
	a := pg.Attempt
	p.linef("%s  %s#%d  %s", p.paint("1", clean(string(a.Experiment))), clean(string(a.Eval)), a.Ordinal, a.Locator)
	p.linef("run %s  attempt %s", a.Run, a.ID)
	p.line("verdict: ", p.verdict(a.Verdict, 0))
	if pg.Why != "" {
		p.wrap("why: ", pg.Why)
	}
	if c := report.Deciding(a); c != nil && c.Environment != "" {
		p.wrap("note: ", "the environment lacks something: "+c.Environment)
	}
	p.linef("started %s%s", a.StartedAt.UTC().Format(time.RFC3339), took(a))
	if g := a.Agent; g != nil {
		p.line("agent ", strings.Join(strings.Fields(clean(g.Name+" "+g.Version+" "+g.Model)), " "))
		for _, k := range slices.Sorted(maps.Keys(g.Details)) {
			p.line("  ", clip(clean(k+" "+fmt.Sprint(g.Details[k])), maxFactLine))
		}
	}
}

func took(a *record.Attempt) string {
	s := ", duration unknown"
	switch {
	case a.CensoredMS != nil:
		s = ", cut off at its limit of " + duration(*a.CensoredMS)
	case a.DurationMS != nil:
		s = ", took " + duration(*a.DurationMS)
	}
	if a.QueuedMS != nil {
		s += ", queued " + duration(*a.QueuedMS)
	}
	return s
}

func (p *printer) pageError(e *record.ErrorInfo) {
	p.heading("ERROR")
	p.wrap("  ", errorLine(e))
	if e.Cause != "" {
		p.wrap("  ", "cause: "+e.Cause)
	}
	if e.Class != "" || e.Scope != "" {
		p.wrap("  ", strings.TrimSpace("class: "+e.Class+" scope: "+e.Scope))
	}
	if t := e.Timeout; t != nil {
		p.linef("  limit: %s %s, set by %s", clean(t.Limit), duration(t.ValueMS), clean(t.Layer))
	}
	if e.Fix != "" {
		p.wrap("  ", "fix: "+e.Fix)
	}
	if pr := e.Prepare; pr != nil {
		p.wrap("  ", "prepare: "+pr.Headline)
		p.wrap("    ", fmt.Sprintf("stage: %s, class: %s", pr.Stage, pr.Class))
		p.wrap("    ", "cause: "+pr.Cause)
		if len(pr.Levels) > 0 {
			p.wrap("    ", "levels: "+strings.Join(pr.Levels, ", "))
		}
		if pr.Log != "" {
			p.block("    | ", pr.Log, maxOutputLines, true)
		}
	}
}

func (p *printer) checks(checks []record.Check) {
	if len(checks) == 0 {
		return
	}
	p.heading("CHECKS")
	for i := range checks {
		c := &checks[i]
		sgr := map[record.Outcome]string{record.Matched: "32", record.Mismatched: "31", record.Unavailable: "35"}[c.Outcome]
		line := "  " + p.paint(sgr, string(c.Outcome)) + strings.Repeat(" ", max(0, 12-len(c.Outcome))) + string(c.Severity)
		if c.Optional {
			line += " optional"
		}
		line += "  " + clean(c.Name)
		if c.Kind != "" && c.Kind != c.Name {
			line += " (" + clean(c.Kind) + ")"
		}
		if c.Group != "" {
			line += " in " + clean(c.Group)
		}
		if c.Turn > 0 {
			line += " after turn " + strconv.Itoa(c.Turn)
		}
		if c.Value != nil {
			line += fmt.Sprintf("  value %g", *c.Value)
		}
		if c.Threshold != nil {
			line += fmt.Sprintf("  threshold %g", *c.Threshold)
		}
		p.line(line)
		for _, text := range []string{c.Environment, c.Reason, c.Detail} {
			if text != "" {
				p.block("      ", text, maxDetailLines, false)
			}
		}
	}
}

func (p *printer) facts(facts record.Facts) {
	if len(facts) == 0 {
		return
	}
	p.heading("FACTS")
	for _, name := range slices.Sorted(maps.Keys(facts)) {
		p.linef("  %s = %s", clean(name), clip(clean(string(facts[name].Value)), maxFactLine))
	}
}

func (p *printer) phases(phases []record.Phase) {
	if len(phases) == 0 {
		return
	}
	p.heading("PHASES")
	rows := make([][]string, len(phases))
	for i, ph := range phases {
		rows[i] = []string{clean(ph.Name), "at " + duration(ph.StartMS), duration(ph.MS), clean(ph.Outcome)}
	}
	p.table(rows, nil)
}

func (p *printer) commands(pg *report.Page) {
	missing := pg.Missing["commands"]
	if len(pg.Commands) == 0 && missing == "" {
		return
	}
	p.heading(fmt.Sprintf("COMMANDS that did not succeed (%d of %d)", len(pg.Commands), pg.CommandCount))
	for i, c := range pg.Commands {
		if i == maxPageCommands {
			p.linef("  … %d more", len(pg.Commands)-i)
			break
		}
		p.line("  ", commandLine(&c))
		if c.Error != "" {
			p.wrap("      ", c.Error)
		}
		for _, out := range []struct{ name, text string }{{"out", c.Stdout}, {"err", c.Stderr}} {
			if strings.TrimSpace(out.text) != "" {
				p.block("      "+out.name+" | ", out.text, maxOutputLines, true)
			}
		}
		if c.Dropped > 0 {
			p.linef("      %d bytes of output were not kept", c.Dropped)
		}
	}
	if missing != "" {
		p.wrap("  ", "not all commands are readable: "+missing)
	}
}

func commandLine(c *sandbox.CommandRecord) string {
	how := "never ended"
	switch {
	case c.OOM:
		how = "out of memory"
	case c.Signal != "":
		how = c.Signal
	case c.Exit != nil:
		how = "exit " + strconv.Itoa(*c.Exit)
	}
	return fmt.Sprintf("%s  %s  %s", clean(how), duration(c.Duration.Milliseconds()), clean(c.Summary))
}

func (p *printer) diff(pg *report.Page) {
	summary, missing := pg.Attempt.Diff, pg.Missing["diff"]
	if summary == nil && pg.Diff == nil && missing == "" {
		return
	}
	p.heading("CHANGES BY THE AGENT")
	if summary != nil {
		if len(summary.Changes) == 0 && summary.Partial == "" {
			p.line("  none")
		}
		for _, c := range summary.Changes {
			p.linef("  %-8s  %s", clean(c.Status), clean(c.Path))
		}
		if summary.Partial != "" {
			p.wrap("  ", "the list is not complete: "+summary.Partial)
		}
	}
	if missing != "" {
		p.wrap("  ", "the contents cannot be read: "+missing)
	}
	if pg.Diff == nil {
		return
	}
	files := 0
	for _, win := range pg.Diff.Windows {
		if len(win.Rows) == 0 {
			continue
		}
		p.line()
		p.line("  ", clean(win.Label))
		for i := range win.Rows {
			if files++; files > maxDiffFiles {
				p.linef("    … more files are in the record")
				return
			}
			p.row(&win.Rows[i])
		}
	}
	if pg.Diff.Partial != "" {
		p.wrap("  ", "the contents are not complete: "+pg.Diff.Partial)
	}
}

// row writes one changed file as a unified diff, or why its text is not there.
func (p *printer) row(r *record.Row) {
	path := clean(r.Path)
	before, okBefore := sideText(r.Before)
	after, okAfter := sideText(r.After)
	if !okBefore || !okAfter {
		p.linef("    %s  %s  %s", clean(r.Status), path, sizes(r))
		return
	}
	if r.Before != nil && r.After != nil && r.Before.Mode != r.After.Mode {
		p.linef("    %s: mode %s to %s", path, clean(r.Before.Mode), clean(r.After.Mode))
	}
	from, to := "a/"+path, "b/"+path
	if r.Before == nil {
		from = "/dev/null"
	}
	if r.After == nil {
		to = "/dev/null"
	}
	text := strings.TrimRight(udiff.Unified(from, to, before, after), "\n")
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if l == "" && len(lines) == 1 {
			break
		}
		if i == maxDiffLines {
			p.linef("    … %d more lines", len(lines)-i)
			break
		}
		l = clip(sandbox.StripControl(l), 500)
		switch {
		case strings.HasPrefix(l, "+"):
			l = p.paint("32", l)
		case strings.HasPrefix(l, "-"):
			l = p.paint("31", l)
		}
		p.line("    ", l)
	}
}

// sideText is the text of a side; false when it is not in the record or too
// large to compare. A side that is not there is empty.
func sideText(s *record.Side) (string, bool) {
	switch {
	case s == nil:
		return "", true
	case s.Text == nil || len(*s.Text) > maxDiffBytes:
		return "", false
	}
	return *s.Text, true
}

func sizes(r *record.Row) string {
	one := func(s *record.Side) string {
		switch {
		case s == nil:
			return "nothing"
		case s.Binary:
			return fmt.Sprintf("%d bytes, binary", s.Size)
		case s.Elided:
			return fmt.Sprintf("%d bytes, text not recorded", s.Size)
		}
		return fmt.Sprintf("%d bytes", s.Size)
	}
	return one(r.Before) + " → " + one(r.After)
}

func (p *printer) events(pg *report.Page) {
	missing := pg.Missing["events"]
	if len(pg.Events) == 0 && missing == "" {
		return
	}
	p.heading("EVENTS")
	rows := make([][]string, len(pg.Events))
	for i, e := range pg.Events {
		rows[i] = []string{strconv.Itoa(e.Count), clean(e.Type), clean(e.Name)}
	}
	p.table(rows, nil)
	if missing != "" {
		p.wrap("  ", "not all events are readable: "+missing)
	}
}

func (p *printer) sandboxBlock(s *record.Sandbox) {
	if s == nil {
		return
	}
	p.heading("SANDBOX")
	var rows [][]string
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, clean(value)})
		}
	}
	add("provider", s.Provider)
	add("engine", s.Engine)
	add("id", s.ID)
	if s.Ordinal > 0 {
		add("number", strconv.Itoa(s.Ordinal))
	}
	add("use", strconv.Itoa(s.Use))
	if s.Reused {
		add("reused", "yes")
	}
	if s.Kept {
		add("kept", "yes")
	}
	add("key", s.Key)
	add("from", s.From)
	add("user", s.User)
	add("workdir", s.Workdir)
	add("network", s.Network)
	for _, k := range slices.Sorted(maps.Keys(s.Limits)) {
		add("limit "+clean(k), limit(k, s.Limits[k]))
	}
	for _, k := range slices.Sorted(maps.Keys(s.Details)) {
		add(clean(k), s.Details[k])
	}
	p.table(rows, nil)
}

// limit renders a limit of a sandbox; memory and disk are bytes.
func limit(name string, v any) string {
	f, ok := v.(float64)
	switch {
	case !ok:
		return fmt.Sprint(v)
	case name == "memory" || name == "disk":
		return fmt.Sprintf("%.4g MiB", f/(1<<20))
	default:
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
}

func (p *printer) usage(a *record.Attempt) {
	text := usageLine(a.Usage, a.CostUSD)
	if text == "" {
		return
	}
	p.heading("USAGE")
	p.line("  ", text)
}

// usageLine tells what was reported, and nothing else.
func usageLine(u *record.Usage, cost *float64) string {
	var parts []string
	if u != nil {
		for _, b := range []struct {
			name string
			n    *int64
		}{
			{"input", u.InputTokens},
			{"cache read", u.CacheReadTokens},
			{"cache write", u.CacheCreationTokens},
			{"output", u.OutputTokens},
			{"reasoning", u.ReasoningTokens},
			{"requests", u.Requests},
		} {
			if b.n != nil {
				parts = append(parts, fmt.Sprintf("%s %d", b.name, *b.n))
			}
		}
		if cost == nil {
			cost = u.CostUSD
		}
	}
	if cost != nil {
		parts = append(parts, "cost "+money(*cost))
	}
	return strings.Join(parts, ", ")
}
