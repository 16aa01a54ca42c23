package sandbox

import "assay/ref"

// Notes is how author code speaks to the run: the three feedback channels and
// nothing else. The engine owns phase, colour and stream; there is no way to
// choose them here. All methods are safe for concurrent use, and calls after
// the scope closed are ignored.
type Notes interface {
	// Experiment is the id of the experiment that this code runs for.
	Experiment() ref.ExperimentID
	// Progress shows a short-lived status. It is never recorded and may be
	// dropped under load.
	Progress(p Progress)
	// Diagnostic records a real problem or degradation. It never changes a
	// verdict: return an error where you cannot go on.
	Diagnostic(d Diagnostic) error
	// Fact records a neutral run-time fact under a reverse-domain name such as
	// "com.acme.cache". The stored JSON document has at most 65,536 bytes; a
	// name can be used once per attempt. Code "record-custom-fact-too-large"
	// and others tell what was refused; nothing is stored then.
	Fact(name string, value any) error
}

// Progress is a status line. Message is cut at 1 KiB; Total 0 means unknown.
type Progress struct {
	Message        string
	Current, Total int64
}

// Level is the level of a diagnostic.
type Level string

// The levels.
const (
	Warning Level = "warning"
	Error   Level = "error"
)

// Diagnostic is a problem worth keeping. Diagnostics with one DedupeKey fold
// into the first of them and a count.
type Diagnostic struct {
	// Code is a stable token, 1 to 64 of [a-z0-9-].
	Code  string
	Level Level
	// Message is cut at 4 KiB; Data must encode to at most 16 KiB of JSON.
	Message   string
	Data      any
	DedupeKey string
}

// Quiet is a Notes that drops everything, for tests and tools.
type Quiet struct{ ID ref.ExperimentID }

// Experiment returns ID.
func (q Quiet) Experiment() ref.ExperimentID { return q.ID }

// Progress drops p.
func (Quiet) Progress(Progress) {}

// Diagnostic drops d.
func (Quiet) Diagnostic(Diagnostic) error { return nil }

// Fact drops the fact.
func (Quiet) Fact(string, any) error { return nil }

var _ Notes = Quiet{}
