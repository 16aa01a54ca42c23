// Package jsonstream prints an invocation as NDJSON: one event a line, told
// apart by "event", and exactly one last line with the receipt. docs/json.md
// describes every line for those who read them.
package jsonstream

import (
	"bytes"
	"encoding/json"
	"io"
	"time"

	"assay/internal/board"
	"assay/internal/emit"
	"assay/internal/event"
	"assay/record"
)

const (
	// Format names the stream in its first line.
	Format = "assay.exp-stream"
	// Version is raised when a line changes its meaning; new events and fields
	// do not raise it.
	Version = 1
	// Silence is how long the stream may stay quiet before a progress line.
	Silence = 30 * time.Second
)

// Options of a view; there are none yet.
type Options struct{}

// View prints events. It is safe for concurrent use; lines appear in the order
// in which Handle took the events.
type View struct {
	out  *emit.Output
	pump *emit.Pump
	// Owned by the pump's goroutine.
	board   *board.Board // for the counters of progress lines
	last    time.Time    // of the last output
	encoded error        // the first value that could not be encoded
}

// New returns a view that writes to w, one Write a line. Close ends it.
func New(w io.Writer, _ Options) *View {
	v := &View{out: emit.NewOutput(w), board: board.New(board.Options{}), last: time.Now()}
	v.pump = emit.NewPump(v.each, time.Second, v.tick)
	return v
}

// Handle takes an event and returns soon. After Close it does nothing.
func (v *View) Handle(e event.Event) { v.pump.Handle(e) }

// Close prints what is pending and returns the first failure; see emit.Quiet
// for a reader that left.
func (v *View) Close() error {
	if err := v.pump.Close(); err != nil {
		return err
	}
	if err := v.out.Err(); err != nil {
		return err
	}
	return v.encoded
}

// Err is the first failure of the output so far, or nil.
func (v *View) Err() error { return v.out.Err() }

func (v *View) each(e event.Event) {
	if v.board.Ended() {
		return // the receipt is the last line
	}
	if v.fresh(e) {
		for _, x := range translate(e) {
			v.print(x)
		}
	}
}

// fresh folds e and reports whether it says something new. A result is new
// while its slot has none; a message is new when the board appends it.
func (v *View) fresh(e event.Event) bool {
	var had record.Verdict
	switch e := e.(type) {
	case event.AttemptDone:
		// It is a fact of the record and replaces a slot that was given up.
		if had = v.board.Verdict(e.Slot); had == record.NotRun {
			had = ""
		}
	case event.NotRun:
		had = v.board.Verdict(e.Slot)
	case event.Carried:
		had = v.board.Verdict(e.Slot)
	case event.Check, event.LockWait, event.Halted, event.Budget:
	default:
		return len(v.board.Apply(e)) > 0
	}
	v.board.Apply(e)
	return had == ""
}

func (v *View) tick() {
	now := time.Now()
	if now.Sub(v.last) < Silence || v.board.Ended() || v.board.Started().IsZero() {
		return
	}
	v.print(progressLine(v.board, now))
}

func (v *View) print(x any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(x); err != nil {
		if v.encoded == nil {
			v.encoded = err
		}
		return
	}
	v.last = time.Now()
	// A failure stays in out; the run goes on and Close reports it.
	_, _ = v.out.Write(b.Bytes())
}
