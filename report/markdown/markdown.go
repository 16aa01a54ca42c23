// Package markdown writes the summary of one invocation as GitHub-flavoured
// Markdown: what a reader of a CI job wants to know first. It is folded from the
// events of the run and reads no files.
package markdown

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/board"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Bounds of a summary: a job's page has room for one megabyte.
const (
	maxReds  = 100
	maxLog   = 60 // lines
	maxCell  = 300
	maxSteps = 50
)

// Summary folds events. It is safe for concurrent use.
type Summary struct {
	mu      sync.Mutex
	order   []ref.ExperimentID
	rows    map[ref.ExperimentID]*row
	reds    []red
	hidden  int
	broken  []event.Prepare
	checks  []event.Check
	begun   time.Time
	end     *event.End
	failure error
}

// row is one experiment.
type row struct {
	agent, model                                      string
	passed, failed, errored, skipped, notRun, carried int
	cost                                              float64
	costs                                             int // attempts whose cost is known
}

// red is one attempt that is not green.
type red struct {
	slot     ref.Slot
	verdict  record.Verdict
	why, fix string
	locator  ref.Locator
}

// New returns an empty summary.
func New() *Summary { return &Summary{rows: map[ref.ExperimentID]*row{}} }

// Handle takes an event.
func (s *Summary) Handle(e event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := e.(type) {
	case event.Start:
		s.begun = e.Time
		for _, x := range e.Experiments {
			r := s.row(x.ID)
			r.agent, r.model = x.Agent, x.Model
		}
	case event.Check:
		if e.Status == event.Broken {
			s.checks = append(s.checks, e)
		}
	case event.Prepare:
		if e.Status == event.Broken {
			s.broken = append(s.broken, e)
		}
	case event.AttemptDone:
		s.attempt(e.Slot, e.Attempt)
	case event.Carried:
		s.row(e.Slot.Experiment).carried++
		s.count(e.Slot.Experiment, e.Verdict)
		if e.Verdict != record.Passed && e.Verdict != record.Skipped {
			s.addRed(red{slot: e.Slot, verdict: e.Verdict, why: "carried from an earlier run", locator: e.Locator})
		}
	case event.NotRun:
		s.row(e.Slot.Experiment).notRun++
	case event.End:
		s.end = &e
	}
}

// Failed tells why the invocation ended before its first attempt, or nil.
func (s *Summary) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *Summary) row(id ref.ExperimentID) *row {
	r := s.rows[id]
	if r == nil {
		r = &row{}
		s.rows[id] = r
		s.order = append(s.order, id)
	}
	return r
}

func (s *Summary) count(id ref.ExperimentID, v record.Verdict) {
	r := s.row(id)
	switch v {
	case record.Passed:
		r.passed++
	case record.Failed:
		r.failed++
	case record.Skipped:
		r.skipped++
	default:
		r.errored++
	}
}

func (s *Summary) attempt(slot ref.Slot, a *record.Attempt) {
	s.count(slot.Experiment, a.Verdict)
	if a.CostUSD != nil {
		r := s.row(slot.Experiment)
		r.cost += *a.CostUSD
		r.costs++
	}
	if a.Verdict == record.Passed || a.Verdict == record.Skipped {
		return
	}
	r := red{slot: slot, verdict: a.Verdict, locator: a.Locator}
	if a.Error != nil && a.Error.Prepare != nil {
		r.why = a.Error.Prepare.Headline // the section below has the rest
	} else {
		r.why, r.fix = board.Reason(a)
	}
	s.addRed(r)
}

func (s *Summary) addRed(r red) {
	if len(s.reds) == maxReds {
		s.hidden++
		return
	}
	s.reds = append(s.reds, r)
}

// String returns the summary as Markdown. It is empty before anything happened.
func (s *Summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if len(s.order) == 0 && len(s.broken) == 0 && len(s.checks) == 0 && s.failure == nil {
		return ""
	}
	fmt.Fprintf(&b, "## assay: %s\n", s.conclusion())
	if s.failure != nil {
		fmt.Fprintf(&b, "\n%s\n", cell(s.failure.Error(), 2*maxCell))
		if fix := fault.FixOf(s.failure); fix != "" {
			fmt.Fprintf(&b, "\n**fix:** %s\n", cell(fix, maxCell))
		}
	}
	s.table(&b)
	s.redList(&b)
	s.preparations(&b)
	if s.end != nil {
		fmt.Fprintf(&b, "\n%s. Results: %s\n", took(s.begun, s.end.Time), code(s.end.RecordRoot))
	}
	return b.String()
}

func (s *Summary) conclusion() string {
	switch {
	case s.failure != nil:
		return "nothing ran"
	case s.end == nil:
		return "not finished"
	case s.end.Conclusion != "":
		return string(s.end.Conclusion)
	}
	return string(s.end.Receipt.Completion)
}

func (s *Summary) table(b *strings.Builder) {
	if len(s.order) == 0 {
		return
	}
	b.WriteString("\n| experiment | agent | passed | failed | errored | skipped | not run | pass rate | cost |\n")
	b.WriteString("|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, id := range s.order {
		r := s.rows[id]
		// What could not be measured is in no rate.
		rate := "—"
		if n := r.passed + r.failed; n > 0 {
			rate = fmt.Sprintf("%d%% of %d", 100*r.passed/n, n)
		}
		cost := "—"
		if r.costs > 0 {
			cost = fmt.Sprintf("$%.2f", r.cost)
		}
		agent := r.agent
		if r.model != "" {
			agent += " " + r.model
		}
		name := cell(string(id), maxCell)
		if r.carried > 0 {
			name += fmt.Sprintf(" (%d carried)", r.carried)
		}
		fmt.Fprintf(b, "| %s | %s | %d | %d | %d | %d | %d | %s | %s |\n", name, cell(agent, maxCell),
			r.passed, r.failed, r.errored, r.skipped, r.notRun, rate, cost)
	}
}

func (s *Summary) redList(b *strings.Builder) {
	if len(s.reds) == 0 {
		return
	}
	b.WriteString("\n### Not green\n\n| eval | verdict | why | details |\n|---|---|---|---|\n")
	reds := slices.Clone(s.reds)
	slices.SortStableFunc(reds, func(a, b red) int { return strings.Compare(a.slot.String(), b.slot.String()) })
	for _, r := range reds {
		why := cell(r.why, maxCell)
		if r.fix != "" {
			why += "<br>**fix:** " + cell(r.fix, maxCell)
		}
		details := ""
		if r.locator != "" {
			details = code("assay show " + string(r.locator))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", cell(r.slot.String(), maxCell), r.verdict, why, details)
	}
	if s.hidden > 0 {
		fmt.Fprintf(b, "\n… and %d more.\n", s.hidden)
	}
}

func (s *Summary) preparations(b *strings.Builder) {
	if len(s.broken)+len(s.checks) == 0 {
		return
	}
	b.WriteString("\n### Sandboxes that could not be prepared\n")
	for _, c := range s.checks {
		fmt.Fprintf(b, "\n**%s cannot be used**: %s\n", cell(c.Provider, maxCell), cell(c.Err, 2*maxCell))
	}
	for i, p := range s.broken {
		if i == maxSteps {
			fmt.Fprintf(b, "\n… and %d more.\n", len(s.broken)-i)
			break
		}
		fmt.Fprintf(b, "\n**%s**\n\n- stage: %s\n- class: %s\n- set by: %s\n- cause: %s\n", cell(p.Headline, maxCell), cell(p.Stage, maxCell), cell(p.Class, maxCell),
			cell(strings.Join(p.Levels, ", "), maxCell), cell(p.Message, 2*maxCell))
		if p.Log != "" {
			fmt.Fprintf(b, "\n<details><summary>log</summary>\n\n%s\n\n</details>\n", fenced(p.Log))
		}
	}
}

// cell is text that stands in a table or a line as it is: Markdown and HTML in it
// mean nothing.
func cell(s string, limit int) string {
	s = sandbox.Clean(s)
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit-1]) + "…"
	}
	var b strings.Builder
	for _, r := range s {
		switch r {
		case '&':
			b.WriteString("&amp;")
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '\\', '`', '*', '_', '[', ']', '|', '#', '~', '@', '$', '!':
			// "@" would call for a person, "#" link an issue, "$" begin a formula.
			if r == '@' || r == '#' || r == '$' {
				fmt.Fprintf(&b, "&#%d;", r)
				continue
			}
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// code is text in a code span, which shows everything as it is.
func code(s string) string {
	s = strings.ReplaceAll(sandbox.Clean(s), "|", "\\|")
	if strings.Contains(s, "`") {
		return "`` " + s + " ``"
	}
	return "`" + s + "`"
}

// fenced is a block of code that nothing in it can end.
func fenced(s string) string {
	lines := strings.Split(s, "\n")
	if over := len(lines) - maxLog; over > 0 {
		lines = append([]string{fmt.Sprintf("… %d lines before", over)}, lines[over:]...)
	}
	fence := "```"
	for _, l := range lines {
		for strings.Contains(l, fence) {
			fence += "`"
		}
	}
	return fence + "text\n" + strings.Join(lines, "\n") + "\n" + fence
}

func took(from, to time.Time) string {
	if from.IsZero() {
		return "Done"
	}
	return "Took " + to.Sub(from).Round(time.Second).String()
}
