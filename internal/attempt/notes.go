package attempt

import (
	"encoding/json"
	"regexp"
	"runtime"
	"time"

	"assay/fault"
	"assay/internal/event"
	"assay/internal/redact"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// notes are the feedback channels of an attempt, bound to one phase.
type notes struct {
	a     *attempt
	phase string
}

// Notes is bound to the body's phase.
func (a *attempt) Notes() sandbox.Notes { return notes{a, "eval.run"} }

func (n notes) Experiment() ref.ExperimentID { return n.a.slot.Ref.Experiment }

func (n notes) Progress(p sandbox.Progress) {
	n.a.mu.Lock()
	closed := n.a.closed
	n.a.mu.Unlock()
	if !closed {
		n.a.emit(event.Progress{Slot: n.a.slot.Ref, Message: clip(sandbox.Clean(n.a.red.String(p.Message)), 1024), Current: p.Current, Total: p.Total})
	}
}

func (n notes) Diagnostic(d sandbox.Diagnostic) error {
	if err := CheckDiagnostic(d); err != nil {
		return err
	}
	phase := n.phase
	if phase == "sandbox.create" {
		// A provider keeps these channels for as long as its sandbox lives.
		phase = n.a.current()
	}
	n.a.diagnostic(phase, d)
	return nil
}

func (n notes) Fact(name string, value any) error {
	if err := record.CheckFactName(name); err != nil {
		return err
	}
	f, err := record.NewFact(value, time.Now())
	if err != nil {
		return err
	}
	return n.a.fact(name, f)
}

// fact keeps a fact once.
func (a *attempt) fact(name string, f record.Fact) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if _, dup := a.facts[name]; dup {
		return &fault.Error{Class: fault.Config, Code: "record-custom-fact-duplicate", What: "the fact " + name + " was already recorded for this attempt", Fix: "Put several values into one JSON array."}
	}
	a.facts[name] = f
	return nil
}

var diagnosticCode = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// CheckDiagnostic refuses a diagnostic that cannot be kept.
func CheckDiagnostic(d sandbox.Diagnostic) error {
	if !diagnosticCode.MatchString(d.Code) {
		return fault.Configf("diagnostic-invalid", "Use 1 to 64 of a-z, 0-9 and -.", "the diagnostic code %q is no stable token", d.Code)
	}
	if d.Level != sandbox.Warning && d.Level != sandbox.Error {
		return fault.Configf("diagnostic-invalid", "Use sandbox.Warning or sandbox.Error.", "the diagnostic level %q does not exist", d.Level)
	}
	if d.Data != nil {
		b, err := json.Marshal(d.Data)
		if err != nil {
			return fault.Wrap(err, fault.Config, "diagnostic-invalid", "the data of diagnostic "+d.Code)
		}
		if len(b) > 16<<10 {
			return fault.Configf("diagnostic-invalid", "Keep the data below 16 KiB, or record a fact.", "the data of diagnostic %s has %d bytes", d.Code, len(b))
		}
	}
	return nil
}

// Fold adds a diagnostic to a list: one with a known dedupe key is only counted.
// fresh tells whether it was added.
func Fold(list []record.Diagnostic, phase string, d sandbox.Diagnostic) (out []record.Diagnostic, fresh bool) {
	if d.DedupeKey != "" {
		for i := range list {
			if list[i].Key == d.DedupeKey && list[i].Code == d.Code {
				list[i].Count++
				return list, false
			}
		}
	}
	rd := record.Diagnostic{Phase: phase, Code: d.Code, Level: string(d.Level), Message: clip(sandbox.StripControl(d.Message), 4096), Key: d.DedupeKey, Count: 1}
	if d.Data != nil {
		if b, err := json.Marshal(d.Data); err == nil {
			rd.Data = b
		}
	}
	return append(list, rd), true
}

func (a *attempt) diagnostic(phase string, d sandbox.Diagnostic) {
	d.Message = a.red.String(d.Message)
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	var fresh bool
	a.diags, fresh = Fold(a.diags, phase, d)
	var last record.Diagnostic
	if fresh {
		last = a.diags[len(a.diags)-1]
	}
	a.mu.Unlock()
	if fresh {
		redact.Value(a.red, &last) // its data too: events are shown before the record is sealed
		a.emit(event.Diagnostic{Slot: a.slot.Ref, Diagnostic: last})
	}
}

func stack() string {
	buf := make([]byte, 16<<10)
	return string(buf[:runtime.Stack(buf, false)])
}
