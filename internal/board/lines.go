package board

import (
	"fmt"
	"strings"
	"time"

	"assay/internal/event"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Kind says what a line is; a view chooses colour and omission by it.
type Kind uint8

// The kinds.
const (
	Plan       Kind = iota // what will run
	Begun                  // run-level work started
	Done                   // run-level work ended well
	Result                 // an attempt that passed or was skipped, a reused one
	Problem                // an attempt that failed or is errored, broken run-level work, halted dispatch
	Detail                 // belongs to the Problem above it
	Warning                // a diagnostic
	Notice                 // something to know
	Conclusion             // the first line of the summary
	Summary                // its further lines
	Next                   // commands to go on with
)

// Line is one permanent line of output: printable text without control
// characters or a line end.
type Line struct {
	Kind Kind
	Text string
	// Red marks a Conclusion that is not PASSED.
	Red bool
}

// Bounds of one line of captured text, in bytes.
const (
	causeLimit   = 400
	messageLimit = 1000
	// sameLimit is how many attempts of one cause are shown with it; later ones
	// refer to the first.
	sameLimit = 3
)

func one(k Kind, format string, args ...any) []Line {
	return []Line{{Kind: k, Text: sandbox.Clean(fmt.Sprintf(format, args...))}}
}

// indented is a Detail line.
func indented(format string, args ...any) Line {
	return Line{Kind: Detail, Text: "    " + sandbox.Clean(fmt.Sprintf(format, args...))}
}

func (b *Board) planLines() []Line {
	text := "plan: " + plural(b.total, "attempt")
	if b.announced > 0 {
		text += fmt.Sprintf(" (%d carried)", b.announced)
	}
	text += " of " + plural(len(b.experiments), "experiment")
	if b.concurrency > 0 {
		text += fmt.Sprintf(", %d at a time", b.concurrency)
	}
	lines := one(Plan, "%s", text)
	for _, e := range b.experiments {
		parts := []string{}
		for _, p := range []struct{ name, value string }{{"agent", e.Agent}, {"model", e.Model}, {"sandbox", e.Sandbox}} {
			if p.value != "" {
				parts = append(parts, p.name+" "+p.value)
			}
		}
		n := plural(e.Slots, "attempt")
		if e.Reused > 0 {
			n += fmt.Sprintf(" (%d carried)", e.Reused)
		}
		parts = append(parts, n)
		if e.MaxConcurrency > 0 {
			parts = append(parts, fmt.Sprintf("at most %d at a time", e.MaxConcurrency))
		}
		lines = append(lines, Line{Kind: Plan, Text: "  " + sandbox.Clean(string(e.ID)+": "+strings.Join(parts, ", "))})
	}
	return lines
}

// startStep notes run-level work and reports whether it is new.
func (b *Board) startStep(key, text, progress string) bool {
	for i := range b.steps {
		if b.steps[i].key == key {
			b.steps[i].progress = sandbox.Clean(progress)
			return false
		}
	}
	b.steps = append(b.steps, step{key, sandbox.Clean(text), sandbox.Clean(progress)})
	return true
}

func (b *Board) endStep(key string) {
	for i := range b.steps {
		if b.steps[i].key == key {
			b.steps = append(b.steps[:i], b.steps[i+1:]...)
			return
		}
	}
}

func (b *Board) check(e event.Check) []Line {
	key := "check " + e.Provider
	if e.Status == event.Started {
		b.startStep(key, "Checking "+e.Provider, "")
		return nil
	}
	b.endStep(key)
	if e.Status == event.Broken {
		return one(Problem, "%s cannot be used: %s", e.Provider, clip(e.Err, messageLimit))
	}
	return nil
}

func (b *Board) prepare(e event.Prepare) []Line {
	key, what := "prepare "+e.Key, join(e.Provider, e.Label)
	switch e.Status {
	case event.Started:
		if b.startStep(key, "Preparing "+what, join(e.Stage, e.Message)) {
			return one(Begun, "preparing %s", what)
		}
		return nil
	case event.Done:
		b.endStep(key)
		if e.Message != "" {
			return one(Done, "prepared %s: %s", what, e.Message)
		}
		return one(Done, "prepared %s", what)
	}
	b.endStep(key)
	lines := one(Problem, "could not prepare %s: %s", what, clip(e.Headline, messageLimit))
	if e.Stage != "" || e.Class != "" {
		lines = append(lines, indented("stage %s, class %s", e.Stage, e.Class))
	}
	if len(e.Levels) > 0 {
		lines = append(lines, indented("declared by %s", strings.Join(e.Levels, ", ")))
	}
	if e.Message != "" && !strings.Contains(e.Headline, e.Message) {
		lines = append(lines, indented("cause: %s", clip(e.Message, prepareCause)))
	}
	if e.Log != "" {
		log := strings.Split(e.Log, "\n")
		for _, l := range log[max(0, len(log)-logLines):] {
			lines = append(lines, indented("| %s", clip(l, messageLimit)))
		}
	}
	return lines
}

// What is shown of why a sandbox could not be prepared; the record has the rest.
const (
	prepareCause = 600
	logLines     = 12
)

func hookKey(id ref.ExperimentID, hook string) string { return "hook " + hook + " " + string(id) }

func (b *Board) hook(e event.ExperimentHook) []Line {
	key := hookKey(e.Experiment, e.Hook)
	what := fmt.Sprintf("experiment %s of %s", e.Hook, e.Experiment)
	switch e.Status {
	case event.Started:
		if b.startStep(key, "Experiment "+e.Hook+" of "+string(e.Experiment), "") {
			return one(Begun, "%s started", what)
		}
		return nil
	case event.Done:
		b.endStep(key)
		return one(Done, "%s done", what)
	}
	b.endStep(key)
	return one(Problem, "%s failed: %s", what, clip(e.Err, messageLimit))
}

func (b *Board) lockWait(e event.LockWait) []Line {
	s := b.slot(e.Slot)
	if s.state.final() {
		return nil
	}
	b.move(s, waiting)
	s.waitsFor = sandbox.Clean("lock " + e.Lock)
	text := "waiting for " + s.waitsFor
	if e.Holder != "" {
		text += ", held by " + e.Holder
	}
	if !b.firstTime("lock " + text) {
		return nil
	}
	return one(Notice, "%s (%s)", text, e.Slot)
}

// firstTime reports whether key comes for the first time.
func (b *Board) firstTime(key string) bool {
	first := !b.noticed[key]
	b.noticed[key] = true
	return first
}

func (b *Board) diagnose(e event.Diagnostic) []Line {
	d := e.Diagnostic
	key := string(e.Slot.Experiment) + "\x00" + d.Code + "\x00" + d.Key
	if d.Key == "" {
		key += "\x00" + d.Message
	}
	n := max(d.Count, 1)
	if i, ok := b.diagnosed[key]; ok {
		b.diagnostics[i].Count += n
		return nil
	}
	b.diagnosed[key] = len(b.diagnostics)
	b.diagnostics = append(b.diagnostics, Diagnostic{
		Slot: e.Slot, Level: sandbox.Clean(d.Level), Code: sandbox.Clean(d.Code), Phase: sandbox.Clean(d.Phase),
		Message: clip(sandbox.Clean(d.Message), messageLimit), Count: n,
	})
	where := string(e.Slot.Experiment)
	if e.Slot.Eval != "" {
		where = SlotName(e.Slot)
	}
	if d.Phase != "" {
		where = strings.TrimPrefix(where+", "+d.Phase, ", ")
	}
	if where != "" {
		where = " (" + where + ")"
	}
	return one(Warning, "%s: %s: %s%s", d.Level, d.Code, clip(d.Message, messageLimit), where)
}

func (b *Board) notice(e event.Notice) []Line {
	if !b.firstTime("notice " + e.Code + "\x00" + e.Message) {
		return nil
	}
	level, kind := e.Level, Notice
	if level == "" {
		level = "notice"
	}
	if level == "warning" || level == "error" {
		kind = Warning
	}
	return one(kind, "%s: %s: %s", level, e.Code, clip(e.Message, messageLimit))
}

func (b *Board) interrupted(e event.Interrupt) []Line {
	if e.Level <= b.interrupt.Level {
		return nil
	}
	b.interrupt = e
	what := "nothing new starts, running attempts are stopped and cleaned up; once more stops the sandboxes at once"
	switch e.Level {
	case 1:
	case 2:
		what = "sandboxes are stopped at once; once more leaves without waiting"
	default:
		what = "leaving now"
	}
	return one(Warning, "interrupted by %s: %s", e.Signal, what)
}

func (b *Board) halted(e event.Halted) []Line {
	scope := e.Scope
	switch {
	case e.Scope == "eval":
		scope = fmt.Sprintf("eval %s of %s", e.Slot.Eval, e.Slot.Experiment)
	case e.Scope == "experiment":
		scope = fmt.Sprintf("experiment %s", e.Slot.Experiment)
	}
	return one(Problem, "dispatch-halted: nothing more of this %s starts: %s", scope, clip(e.Message, messageLimit))
}

func (b *Board) budget(e event.Budget) []Line {
	return one(Warning, "budget_exhausted: %s has spent $%.2f of $%.2f, nothing more of it starts", e.Experiment, e.SpentUSD, e.Limit)
}

// carriedLines lists a reused result that is not green; the plan has counted
// the others.
func carriedLines(e event.Carried) []Line {
	if e.Verdict == record.Passed {
		return nil
	}
	return []Line{{Kind: Result, Text: fmt.Sprintf("%-8s %s  (carried)  %s", e.Verdict, SlotName(e.Slot), e.Locator)}}
}

// resultLines is the line of a finished attempt and, where it is red, the
// reason.
func (b *Board) resultLines(s *slot, a *record.Attempt) []Line {
	text := fmt.Sprintf("%-8s %s", s.verdict, SlotName(s.ref))
	switch {
	case a.DurationMS != nil:
		text += "  " + Elapsed(time.Duration(*a.DurationMS)*time.Millisecond)
	case a.CensoredMS != nil:
		text += "  cut off at " + Elapsed(time.Duration(*a.CensoredMS)*time.Millisecond)
	}
	if s.locator != "" {
		text += "  " + string(s.locator)
	}
	if s.verdict == record.Skipped && a.Skip != "" {
		text += "  (" + clip(sandbox.Clean(a.Skip), causeLimit) + ")"
	}
	if n := softMisses(a); s.verdict == record.Passed && n > 0 {
		// A pass that only its soft checks speak against is not shown as a plain one.
		text += fmt.Sprintf("  (%s missed)", plural(n, "soft check"))
	}
	head := Line{Kind: Result, Text: text}
	if s.verdict != record.Failed && s.verdict != record.Errored {
		return []Line{head}
	}
	head.Kind = Problem
	why, more, fix := reason(a)
	b.failures = append(b.failures, Failure{Slot: s.ref, Locator: s.locator, Verdict: s.verdict, Cause: why, Fix: fix})
	key := string(s.verdict) + "\x00" + why
	c := b.causes[key]
	if c == nil {
		c = &cause{text: why, verdict: s.verdict}
		b.causes[key] = c
		b.causeOrder = append(b.causeOrder, c)
	}
	c.locators = append(c.locators, s.locator)
	if len(c.locators) > sameLimit {
		return []Line{head, indented("same reason as %s", c.locators[0])}
	}
	lines := []Line{head, indented("%s%s", why, more)}
	if fix != "" {
		lines = append(lines, indented("fix: %s", fix))
	}
	return lines
}

// softMisses counts the checks that decide nothing and were missed.
func softMisses(a *record.Attempt) int {
	n := 0
	for i := range a.Checks {
		if c := &a.Checks[i]; c.Severity == record.Soft && c.Outcome == record.Mismatched {
			n++
		}
	}
	return n
}

// reason is the primary cause of a red attempt in one line, a note on further
// ones, and what the user can do. The phase is the error's own: a failed check
// has none.
func reason(a *record.Attempt) (why, more, fix string) {
	if e := a.Error; e != nil {
		parts := []string{}
		for _, p := range []string{e.Phase, e.Code, e.Message} {
			if p = sandbox.Clean(p); p != "" {
				parts = append(parts, p)
			}
		}
		return clip(strings.Join(parts, ": "), causeLimit), "", clip(sandbox.Clean(e.Fix), causeLimit)
	}
	want := record.Mismatched
	if a.Verdict != record.Failed {
		want = record.Unavailable
	}
	var first *record.Check
	n := 0
	for i := range a.Checks {
		c := &a.Checks[i]
		if c.Severity != record.Gate || c.Outcome != want || c.Optional && want == record.Unavailable {
			continue
		}
		if n++; first == nil {
			first = c
		}
	}
	if first == nil {
		return "no reason was recorded", "", ""
	}
	why = first.Name
	if why == "" {
		why = first.Kind
	}
	if d := first.Detail; d != "" {
		why += ": " + d
	} else if first.Reason != "" {
		why += ": " + first.Reason
	}
	if n > 1 {
		more = fmt.Sprintf(" (and %d more)", n-1)
	}
	return clip(sandbox.Clean(why), causeLimit), more, ""
}
