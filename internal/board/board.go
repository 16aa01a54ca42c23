// Package board folds the events of an invocation into the one state that all
// live views show, and into the lines that are appended once and stay. It is
// pure: no clock, no writer, no goroutine.
//
// The fold accepts any order. The counters add up to the total after every
// event; what an event cannot mean any more, such as a phase of a finished
// attempt, changes nothing. Text that was captured from elsewhere is freed of
// control characters on its way in.
package board

import (
	"time"

	"assay/internal/event"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Options is what the lines need to know of the command line.
type Options struct {
	// Command is what the user typed, such as "assay exp codex"; the retry line
	// repeats it. "" is "assay exp".
	Command string
	// Rerun is the command that runs again what failed, too; "" is Command with
	// --rerun.
	Rerun string
	// Show is the command that explains a result, "" is "assay show".
	Show string
}

// Board is the state. The zero value is not ready, use New. It is not safe for
// concurrent use.
type Board struct {
	o           Options
	started     bool
	start, end  time.Time
	ended       bool
	invocation  ref.InvocationID
	experiments []event.Experiment
	concurrency int
	total       int // as announced
	announced   int // reused, as announced

	slots  map[ref.Slot]*slot
	n      [states]int
	active []*slot // in order of dispatch
	steps  []step  // run-level work that goes on

	failures    []Failure
	causes      map[string]*cause
	causeOrder  []*cause
	diagnostics []Diagnostic
	diagnosed   map[string]int
	noticed     map[string]bool
	reused      map[record.Verdict]int
	notRun      []notRun
	spend       Spend
	interrupt   event.Interrupt
	conclusion  event.Conclusion
	completion  record.Completion
	recordRoot  string
}

// state is where a slot is.
type state int

const (
	queued state = iota
	waiting
	running
	notrun
	reused
	passed
	failed
	errored
	skipped
	states
)

// final reports whether a slot in state s has its result.
func (s state) final() bool { return s >= notrun }

// slot is what is known of one slot.
type slot struct {
	ref      ref.Slot
	state    state
	verdict  record.Verdict // of a final one
	reason   string         // of a notrun one
	live     bool           // among the active rows
	since    time.Time      // of dispatch, zero where unknown
	locator  ref.Locator
	phase    string
	waitsFor string
	progress string
}

// step is one piece of run-level work that goes on.
type step struct{ key, text, progress string }

// Failure is one finished attempt that needs a look.
type Failure struct {
	Slot    ref.Slot
	Locator ref.Locator
	Verdict record.Verdict // Failed or Errored
	// Cause is the reason in one line.
	Cause string
	// Fix is what the user can do, or "".
	Fix string
}

// Diagnostic is one dedupe key's first diagnostic and how often it came.
type Diagnostic struct {
	Slot                        ref.Slot
	Level, Code, Phase, Message string
	Count                       int
}

type cause struct {
	text     string
	verdict  record.Verdict
	locators []ref.Locator
}

type notRun struct {
	slot   ref.Slot
	reason string
}

// Spend is the cost and tokens of newly executed attempts. What nobody
// reported is not in the sums; Priced and Metered count what is.
type Spend struct {
	Executed      int
	USD           float64
	Priced        int
	Input, Output int64 // tokens, cached ones included in Input
	Metered       int
}

// New returns an empty board.
func New(o Options) *Board {
	if o.Command == "" {
		o.Command = "assay exp"
	}
	if o.Rerun == "" {
		o.Rerun = o.Command + " --rerun"
	}
	if o.Show == "" {
		o.Show = "assay show"
	}
	return &Board{
		o: o, slots: map[ref.Slot]*slot{}, causes: map[string]*cause{}, diagnosed: map[string]int{},
		noticed: map[string]bool{}, reused: map[record.Verdict]int{},
	}
}

// Apply folds e and returns the lines that it appends to the output for good.
func (b *Board) Apply(e event.Event) []Line {
	switch e := e.(type) {
	case event.Start:
		return b.begin(e)
	case event.Check:
		return b.check(e)
	case event.Prepare:
		return b.prepare(e)
	case event.ExperimentHook:
		return b.hook(e)
	case event.Queued:
		b.queue(e)
	case event.LockWait:
		return b.lockWait(e)
	case event.AttemptStarted:
		b.dispatch(e)
	case event.Phase:
		if s := b.slot(e.Slot); !s.state.final() {
			b.move(s, running)
			b.activate(s)
			s.phase, s.progress, s.waitsFor = e.Name, "", ""
		}
	case event.Progress:
		b.progress(e)
	case event.Diagnostic:
		return b.diagnose(e)
	case event.AttemptDone:
		return b.finish(e)
	case event.NotRun:
		b.drop(e)
	case event.Carried:
		return b.carry(e)
	case event.Notice:
		return b.notice(e)
	case event.Interrupt:
		return b.interrupted(e)
	case event.Halted:
		return b.halted(e)
	case event.Budget:
		return b.budget(e)
	case event.End:
		return b.finishAll(e)
	}
	return nil
}

// slot returns the slot called r. One that was never seen is queued.
func (b *Board) slot(r ref.Slot) *slot {
	s := b.slots[r]
	if s == nil {
		s = &slot{ref: r}
		b.slots[r] = s
		b.n[queued]++
	}
	return s
}

// move puts s into state to and keeps the counters.
func (b *Board) move(s *slot, to state) {
	b.n[s.state]--
	b.n[to]++
	s.state = to
	if to.final() {
		b.deactivate(s)
	}
}

func (b *Board) activate(s *slot) {
	if !s.live {
		s.live = true
		b.active = append(b.active, s)
	}
}

func (b *Board) deactivate(s *slot) {
	if !s.live {
		return
	}
	s.live = false
	for i, other := range b.active {
		if other == s {
			b.active = append(b.active[:i], b.active[i+1:]...)
			return
		}
	}
}

func (b *Board) begin(e event.Start) []Line {
	if b.started {
		return nil
	}
	b.started, b.start, b.invocation = true, e.Time, e.Invocation
	b.experiments, b.concurrency = e.Experiments, e.Concurrency
	b.total, b.announced = max(e.Total, 0), max(e.Reused, 0)
	return b.planLines()
}

func (b *Board) queue(e event.Queued) {
	s := b.slot(e.Slot)
	if s.state.final() {
		return
	}
	if e.For == "" || e.For == event.ForSlot {
		b.move(s, queued)
		s.waitsFor = ""
	} else {
		b.move(s, waiting)
		s.waitsFor = sandbox.Clean(e.For)
	}
	s.progress = ""
}

func (b *Board) dispatch(e event.AttemptStarted) {
	s := b.slot(e.Slot)
	if s.state.final() {
		return
	}
	if s.since.IsZero() {
		s.since = e.Time
	}
	s.locator = e.Locator
	b.move(s, running)
	b.activate(s)
	s.waitsFor = ""
}

func (b *Board) progress(e event.Progress) {
	text := sandbox.Clean(e.Message)
	if e.Total > 0 {
		text = join(text, counted(e.Current, e.Total))
	}
	if e.Slot.Eval == "" {
		for i := range b.steps {
			if b.steps[i].key == hookKey(e.Slot.Experiment, "setup") || b.steps[i].key == hookKey(e.Slot.Experiment, "teardown") {
				b.steps[i].progress = text
			}
		}
		return
	}
	// A status of an attempt that is not running came late.
	if s := b.slots[e.Slot]; s != nil && s.state == running {
		s.progress = text
	}
}

func (b *Board) drop(e event.NotRun) {
	s := b.slot(e.Slot)
	if s.state.final() {
		return
	}
	s.reason = sandbox.Clean(e.Reason)
	s.verdict = record.NotRun
	b.move(s, notrun)
	b.notRun = append(b.notRun, notRun{e.Slot, s.reason})
}

func (b *Board) carry(e event.Carried) []Line {
	s := b.slot(e.Slot)
	if s.state.final() {
		return nil
	}
	s.locator, s.verdict = e.Locator, e.Verdict
	b.move(s, reused)
	b.reused[e.Verdict]++
	return carriedLines(e)
}

// finish takes the result of an attempt. It is a fact of the record, so it
// also replaces a slot that was given up.
func (b *Board) finish(e event.AttemptDone) []Line {
	s := b.slot(e.Slot)
	if s.state.final() && s.state != notrun {
		return nil
	}
	if s.state == notrun {
		b.forgetNotRun(e.Slot)
	}
	a := e.Attempt
	if a == nil {
		a = &record.Attempt{Verdict: record.Errored, Error: &record.ErrorInfo{Code: "attempt-unknown", Message: "no result was given"}}
	}
	b.spend.add(a)
	s.verdict = a.Verdict
	if a.Locator != "" {
		s.locator = a.Locator
	}
	switch a.Verdict {
	case record.Passed:
		b.move(s, passed)
	case record.Failed:
		b.move(s, failed)
	case record.Skipped:
		b.move(s, skipped)
	case record.NotRun:
		s.reason = "interrupted"
		b.move(s, notrun)
		b.notRun = append(b.notRun, notRun{e.Slot, s.reason})
		return nil
	default: // what nobody knows is never a pass or a fail
		s.verdict = record.Errored
		b.move(s, errored)
	}
	return b.resultLines(s, a)
}

func (b *Board) forgetNotRun(r ref.Slot) {
	for i, n := range b.notRun {
		if n.slot == r {
			b.notRun = append(b.notRun[:i], b.notRun[i+1:]...)
			return
		}
	}
}

func (p *Spend) add(a *record.Attempt) {
	p.Executed++
	cost := a.CostUSD
	if u := a.Usage; u != nil {
		if cost == nil {
			cost = u.CostUSD
		}
		if u.InputTokens != nil || u.OutputTokens != nil || u.CacheReadTokens != nil || u.CacheCreationTokens != nil {
			p.Metered++
			p.Input += value(u.InputTokens) + value(u.CacheReadTokens) + value(u.CacheCreationTokens)
			p.Output += value(u.OutputTokens)
		}
	}
	if cost != nil {
		p.Priced++
		p.USD += *cost
	}
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func (b *Board) finishAll(e event.End) []Line {
	if b.ended {
		return nil
	}
	b.ended, b.end, b.steps = true, e.Time, nil
	b.conclusion, b.completion = e.Conclusion, e.Receipt.Completion
	b.recordRoot = sandbox.Clean(e.RecordRoot)
	return b.summaryLines()
}
