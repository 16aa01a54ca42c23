// Package plain prints an invocation line by line for logs, pipes and CI:
// ordered, append-only, without escape sequences, boxes or cursor movement, and
// with a heartbeat where nothing else was said for a while.
package plain

import (
	"io"
	"strings"
	"time"

	"assay/internal/board"
	"assay/internal/emit"
	"assay/internal/event"
)

// Silence is how long a log may stay quiet before a heartbeat.
const Silence = 30 * time.Second

// Options of a view.
type Options struct {
	board.Options
}

// View prints events. It is safe for concurrent use; lines appear in the order
// in which Handle took the events.
type View struct {
	out  *emit.Output
	pump *emit.Pump
	// Owned by the pump's goroutine.
	board *board.Board
	last  time.Time // of the last output
}

// New returns a view that writes to w, one Write for each event that says
// something. Close ends it.
func New(w io.Writer, o Options) *View {
	v := &View{out: emit.NewOutput(w), board: board.New(o.Options), last: time.Now()}
	v.pump = emit.NewPump(v.each, time.Second, v.tick)
	return v
}

// Handle takes an event and returns soon. After Close it does nothing.
func (v *View) Handle(e event.Event) { v.pump.Handle(e) }

// Close prints what is pending and returns the first failure of the output; see
// emit.Quiet for a reader that left.
func (v *View) Close() error {
	if err := v.pump.Close(); err != nil {
		return err
	}
	return v.out.Err()
}

// Err is the first failure of the output so far, or nil.
func (v *View) Err() error { return v.out.Err() }

func (v *View) each(e event.Event) {
	lines := v.board.Apply(e)
	if len(lines) == 0 {
		return
	}
	var b strings.Builder
	for _, l := range lines {
		if l.Kind == board.Conclusion {
			b.WriteString("\n")
		}
		b.WriteString(l.Text)
		b.WriteString("\n")
	}
	v.print(b.String())
}

func (v *View) tick() {
	now := time.Now()
	if now.Sub(v.last) < Silence || v.board.Ended() || v.board.Started().IsZero() {
		return
	}
	v.print(v.board.HeartbeatText(now) + "\n")
}

func (v *View) print(text string) {
	v.last = time.Now()
	// A failure stays in out; the run goes on and Close reports it.
	_, _ = io.WriteString(v.out, text)
}
