// Package dash draws an invocation on a terminal: permanent lines that scroll
// away, and below them one panel that is redrawn in place.
//
// It is a renderer of its own, on three escape sequences (cursor up, home,
// erase below), rather than one of a terminal framework: a framework takes the
// input in raw mode, and then Ctrl-C and Ctrl-Z are its business. Here the
// terminal stays in its line mode with only the echo off, so the kernel turns
// Ctrl-C into the SIGINT that the command line waits for, a crash leaves little
// to repair, and nothing starts before there is something to draw.
//
// Rules: one writer; every frame is one write and at most one row less than the
// screen is high; no panel row reaches the last column, so that none wraps; at
// most four frames a second; a change of size repaints the whole screen,
// because terminals disagree on where they move what was drawn.
package dash

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"

	"assay/internal/board"
	"assay/internal/emit"
	"assay/internal/event"
)

const (
	// framePeriod is the shortest time between two frames.
	framePeriod = 250 * time.Millisecond
	// expanded is how many red attempts are shown above the panel; the rest are
	// counted, and grouped by cause in the summary.
	expanded = 10
)

// Options of a view.
type Options struct {
	board.Options
	// Input is the terminal whose echo is off while the view lives, normally
	// standard input: typed keys would move the panel. nil, or a file that is no
	// terminal, leaves all input alone.
	Input *os.File
	// Summary takes the summary when the run is over; nil is the terminal.
	Summary io.Writer
	// Size returns columns and rows; nil asks the terminal.
	Size func() (columns, rows int)
	// NoColor draws without colours, as NO_COLOR asks.
	NoColor bool
}

// Usable reports whether a live view can be drawn on w: a terminal that knows
// more than lines, outside of CI. env looks up an environment variable.
func Usable(w *os.File, env func(string) string) bool {
	return w != nil && term.IsTerminal(w.Fd()) && env("TERM") != "dumb" && env("TERM") != "" && env("CI") == ""
}

// View draws events. It is safe for concurrent use.
type View struct {
	o       Options
	out     *emit.Output
	summary *emit.Output
	pump    *emit.Pump
	tty     *tty

	mu      sync.Mutex // guards the rest: the pump and the job control draw
	board   *board.Board
	screen  screen
	pending []string // permanent lines that wait for the next frame
	final   []string // the summary
	red     int      // attempts shown as red
	dirty   bool
	drawn   time.Time // of the last frame
	closed  bool
}

// New returns a view that draws on the terminal w. Close ends it and leaves the
// terminal as it was; where the process must go at once, Restore does that part.
func New(w io.Writer, o Options) *View {
	if o.Size == nil {
		o.Size = sizeOf(w)
	}
	v := &View{o: o, out: emit.NewOutput(w), board: board.New(o.Options)}
	v.summary = v.out
	if o.Summary != nil {
		v.summary = emit.NewOutput(o.Summary)
	}
	v.tty = openTTY(o.Input, v.suspend, v.resume)
	v.pump = emit.NewPump(v.each, framePeriod, v.tick)
	return v
}

func sizeOf(w io.Writer) func() (int, int) {
	return func() (int, int) {
		if f, ok := w.(interface{ Fd() uintptr }); ok {
			if columns, rows, err := term.GetSize(f.Fd()); err == nil && columns > 0 && rows > 0 {
				return columns, rows
			}
		}
		return 80, 24
	}
}

// Handle takes an event and returns soon. After Close it does nothing.
func (v *View) Handle(e event.Event) { v.pump.Handle(e) }

// Err is the first failure of an output so far, or nil.
func (v *View) Err() error {
	if err := v.out.Err(); err != nil {
		return err
	}
	return v.summary.Err()
}

// Close removes the panel, prints what is pending and the summary, restores the
// terminal and returns the first failure of an output.
func (v *View) Close() error {
	err := v.pump.Close()
	v.mu.Lock()
	if !v.closed {
		v.closed = true
		v.write(v.screen.frame(v.pending, nil))
		v.pending = nil
		if len(v.final) > 0 {
			_, _ = io.WriteString(v.summary, "\n"+strings.Join(v.final, "\n")+"\n")
		}
	}
	v.mu.Unlock()
	v.tty.close()
	if err != nil {
		return err
	}
	return v.Err()
}

// Restore gives the terminal its modes back at once, whatever else hangs. It
// draws nothing and may be called from anywhere, any number of times.
func (v *View) Restore() { v.tty.restore() }

func (v *View) each(e event.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	first := v.board.Started().IsZero()
	lines := v.board.Apply(e)
	v.dirty = true
	switch e.(type) {
	case event.End:
		for _, l := range lines {
			v.final = append(v.final, paint(l, v.o.NoColor))
		}
	case event.AttemptDone:
		v.result(lines)
	default:
		for _, l := range lines {
			if l.Kind != board.Begun && l.Kind != board.Done { // the panel shows these
				v.pending = append(v.pending, paint(l, v.o.NoColor))
			}
		}
	}
	if first && !v.board.Started().IsZero() {
		v.draw(time.Now())
	}
}

// result keeps the lines of a red attempt, the first few of them.
func (v *View) result(lines []board.Line) {
	if len(lines) == 0 || lines[0].Kind != board.Problem {
		return
	}
	v.red++
	switch {
	case v.red <= expanded:
		for _, l := range lines {
			v.pending = append(v.pending, paint(l, v.o.NoColor))
		}
	case v.red == expanded+1:
		v.pending = append(v.pending, "further failures are counted below and grouped at the end")
	}
}

func (v *View) tick() {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	v.tty.keepQuiet()
	columns, rows := v.o.Size()
	if v.dirty || now.Sub(v.drawn) >= time.Second || !v.screen.fits(columns, rows) {
		v.draw(now)
	}
}

// draw writes pending lines and the panel, if they differ from what is there.
func (v *View) draw(now time.Time) {
	columns, rows := v.o.Size()
	v.screen.resize(columns, rows)
	var panel []string
	if v.tty.foreground() && !v.board.Ended() {
		panel = layout(v.board, v.o, columns, rows, now)
	}
	v.write(v.screen.frame(v.pending, panel))
	v.pending, v.dirty, v.drawn = nil, false, now
}

// write ignores a failure: it stays in out, the run goes on, Close reports it.
func (v *View) write(frame string) {
	if frame != "" {
		_, _ = io.WriteString(v.out, frame)
	}
}

// suspend removes the panel and stops the process; nothing is drawn in between.
func (v *View) suspend(stop func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.write(v.screen.frame(v.pending, nil))
	v.pending = nil
	stop()
}

// resume draws again after the process was continued.
func (v *View) resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed && !v.board.Started().IsZero() {
		v.draw(time.Now())
	}
}
