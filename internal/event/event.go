// Package event is the closed set of things that happen during an invocation.
// The engine emits them; views fold them and decide nothing. Facts take the
// record, not this road: an event may be shown late or, for progress, never.
package event

import (
	"time"

	"assay/record"
	"assay/ref"
)

// Event is one thing that happened.
type Event interface{ event() }

// Sink takes events. It is called from many goroutines, must not block for
// long, and keeps no reference to what it does not copy.
type Sink func(Event)

type mark struct{}

func (mark) event() {}

// Start opens an invocation: everything planned is known.
type Start struct {
	mark
	Time        time.Time
	Invocation  ref.InvocationID
	Experiments []Experiment
	Total       int // slots
	Reused      int // of them carried
	Concurrency int
}

// Experiment is one experiment of the plan.
type Experiment struct {
	ID             ref.ExperimentID
	Run            ref.RunID
	Agent, Model   string
	Sandbox        string // provider kind and start point, "" for direct agents
	Slots          int
	Reused         int
	MaxConcurrency int // 0: no gate
}

// Step is the status of a piece of run-level work.
type Step string

// The statuses.
const (
	Started Step = "started"
	Done    Step = "done"
	Broken  Step = "failed"
)

// Check is a provider's check before anything is prepared.
type Check struct {
	mark
	Provider string
	Status   Step
	Err      string
}

// Prepare is the preparation of one distinct start point.
type Prepare struct {
	mark
	Key, Provider, Label string // Label is printable, such as the image
	Status               Step
	Stage, Class         string
	Headline             string
	// Message is the progress of a started step, how a finished one came to be
	// there, such as "pulled", and the cause of a failed one.
	Message string
	// Log is the end of what a failed step printed.
	Log    string
	Levels []string
}

// ExperimentHook is the setup or teardown of an experiment on the host.
type ExperimentHook struct {
	mark
	Experiment ref.ExperimentID
	Hook       string // "setup" or "teardown"
	Status     Step
	Err        string
}

// ForSlot is Queued.For of a slot that waits for nothing but its turn.
const ForSlot = "a slot"

// Queued puts a slot (back) among those that wait. For says what for: ForSlot,
// or something else, such as "experiment setup" or "backing off 2s".
type Queued struct {
	mark
	Slot ref.Slot
	For  string
}

// LockWait tells that a slot waits for a lock that somebody else holds, such as
// the lease of a shared state. It ends with the slot's next event.
type LockWait struct {
	mark
	Slot         ref.Slot
	Lock, Holder string // Holder is printable, "" where nobody knows
}

// AttemptStarted begins an attempt: its clock runs.
type AttemptStarted struct {
	mark
	Time    time.Time
	Slot    ref.Slot
	Attempt ref.AttemptID
	Locator ref.Locator
}

// Phase says what an attempt does now.
type Phase struct {
	mark
	Slot ref.Slot
	Name string
}

// Progress is a short-lived status of an attempt, or of a run where Slot.Eval is
// empty.
type Progress struct {
	mark
	Slot           ref.Slot
	Message        string
	Current, Total int64
}

// Diagnostic is a recorded problem, sent once per dedupe key.
type Diagnostic struct {
	mark
	Slot       ref.Slot // Eval empty for a run's own
	Diagnostic record.Diagnostic
}

// AttemptDone ends an attempt. It is sent after the record holds it.
type AttemptDone struct {
	mark
	Time    time.Time
	Slot    ref.Slot
	Attempt *record.Attempt // sealed; not to be changed
}

// NotRun ends a slot without a result.
type NotRun struct {
	mark
	Slot   ref.Slot
	Reason string
}

// Carried fills a slot from the record.
type Carried struct {
	mark
	Slot    ref.Slot
	Verdict record.Verdict
	Locator ref.Locator
	// Origin is record.Accepted for a result that counts by somebody's word, else
	// record.Carried, which "" means too.
	Origin record.Origin
	// Run and Attempt are where the result lies.
	Run     ref.RunID
	Attempt ref.AttemptID
}

// Notice is something the user should see once, such as
// "provider-exclusive-serial".
type Notice struct {
	mark
	Code, Level, Message string
}

// Interrupt is a received signal: level 1 stops starting and cleans up, 2 stops
// sandboxes at once, 3 leaves.
type Interrupt struct {
	mark
	Signal string
	Level  int
}

// Halted stops further dispatch of a scope.
type Halted struct {
	mark
	Scope   string // eval, experiment, run
	Slot    ref.Slot
	Message string
}

// Budget tells that an experiment's budget is spent.
type Budget struct {
	mark
	Experiment      ref.ExperimentID
	SpentUSD, Limit float64
}

// Conclusion is the outcome of an invocation in one word. It agrees with the
// exit code.
type Conclusion string

// The conclusions. Interrupted is for a real signal only.
const (
	ConcludedPassed      Conclusion = "PASSED"
	ConcludedFailed      Conclusion = "FAILED"
	ConcludedErrored     Conclusion = "ERRORED"
	ConcludedIncomplete  Conclusion = "INCOMPLETE"
	ConcludedInterrupted Conclusion = "INTERRUPTED"
)

// End closes an invocation.
type End struct {
	mark
	Time    time.Time
	Receipt record.Receipt
	// Conclusion is the engine's; with "" a view works it out from the verdicts.
	Conclusion Conclusion
	// RecordRoot is where `show` finds the results.
	RecordRoot string
}
