package coding

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// Parser reads the event lines of one turn. Its methods are called one at a
// time.
type Parser interface {
	// Line reads one line; it never fails.
	Line(line []byte)
	// Ended reports whether the agent has said that its turn is over.
	Ended() bool
	// Abort returns why the turn must be ended at once, or nil.
	Abort() error
	// Script returns what was collected.
	Script() *Transcript
}

// Process is one run of a CLI.
type Process struct {
	Argv []string
	Env  map[string]string
	// Stdin is the message; it is closed after it.
	Stdin string
	Label string
	// Stall ends a turn in which the agent says nothing for that long while no
	// tool runs; 0 is DefaultStall, negative is never.
	Stall time.Duration
}

// DefaultStall and Grace are the limits of silence: while the model is asked,
// and after the agent said that it is done.
const (
	DefaultStall = 10 * time.Minute
	Grace        = 10 * time.Second
)

var errForced = errors.New("the agent said that its turn was over and did not exit")

// Ran is how a process ended.
type Ran struct {
	Exit *int // nil when it was ended by us
	OOM  bool
	// Forced is true when the process did not exit after the end of its turn.
	Forced bool
	// Stderr is the end of what it wrote there, cleaned to one line.
	Stderr string
	// Err is why there is no exit: a limit, a cancellation, a broken sandbox.
	Err error
}

// Run runs a CLI and feeds its output to the parser.
func Run(ctx context.Context, s *agent.Session, p Process, parser Parser) Ran {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watch{parser: parser, stall: p.Stall, grace: Grace, cancel: cancel}
	if w.stall == 0 {
		w.stall = DefaultStall
	}
	parser.Script().Now = time.Now
	w.lines = lines{limit: agent.MaxEventLine, each: parser.Line, long: parser.Script().Bad}
	w.begin()
	res, err := s.Sandbox.RunCommand(ctx, p.Argv, sandbox.CommandOptions{
		Env: p.Env, Stdin: strings.NewReader(p.Stdin), Stdout: w, OutputLimit: 64 << 10,
		Sensitive: slices.Collect(maps.Values(s.Secrets)), Label: p.Label,
	})
	w.end()
	out := Ran{OOM: res.OOM, Stderr: sandbox.Tail(res.Stderr, 400)}
	switch {
	case err == nil:
		code := res.Code
		out.Exit = &code
	case errors.Is(w.why, errForced) && s.Sandbox.Unusable() == nil:
		out.Forced = true
	default:
		out.Err = err
		if own := (*fault.Error)(nil); errors.As(w.why, &own) {
			// Why it was ended comes before what came of ending it.
			out.Err = &fault.Error{Class: own.Class, Code: own.Code, Fix: own.Fix, Err: err}
		}
	}
	return out
}

// watch feeds lines to a parser and ends what falls silent.
type watch struct {
	mu           sync.Mutex
	lines        lines
	parser       Parser
	stall, grace time.Duration
	cancel       context.CancelCauseFunc
	timer        *time.Timer
	last         time.Time
	over         bool
	why          error // why the watch itself ended the process
}

// kill ends the process. It is called with the lock held.
func (w *watch) kill(why error) {
	if w.why == nil {
		w.why = why
		w.cancel(why)
	}
}

// Write reads what the agent printed.
func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.lines.Write(p)
	if why := w.parser.Abort(); why != nil {
		w.kill(why)
	}
	w.last = time.Now()
	if w.parser.Ended() {
		w.arm(w.grace)
	}
	return n, err
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	w.arm(w.stall)
}

// arm sets the timer. It is called with the lock held.
func (w *watch) arm(d time.Duration) {
	if w.timer != nil {
		w.timer.Stop()
	}
	if d > 0 && !w.over {
		w.timer = time.AfterFunc(d, w.fire)
	}
}

func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	limit := w.stall
	if w.parser.Ended() {
		limit = w.grace
	}
	quiet := time.Since(w.last)
	switch {
	case quiet < limit:
		w.arm(limit - quiet)
	case w.parser.Ended():
		w.kill(errForced)
	case w.parser.Script().Running():
		w.arm(limit) // a tool may be silent for as long as it likes
	default:
		w.kill(&fault.Error{Class: fault.Transient, Code: "agent-stalled", What: fmt.Sprintf("the agent said nothing for %s while no tool ran", w.stall), Fix: "See whether the model's service answers; raise stallTimeout if it is slow.", Err: &fault.Timeout{Limit: "agent-stall", Value: w.stall, Layer: "agent"}})
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.lines.close()
}

// Message is the text of a message. Files that come with it are put beside the
// agent, outside of the workdir, and named at its end.
func Message(ctx context.Context, s *agent.Session, in agent.Input) (string, error) {
	text := in.Text
	for i, name := range FileNames(in.Files) {
		at := path.Join(s.Scratch, "files", strconv.Itoa(in.Turn), name)
		if err := s.Sandbox.UploadFile(ctx, in.Files[i], at); err != nil {
			return "", &agent.SendError{Acceptance: agent.Rejected, Err: err}
		}
		if i == 0 {
			text += "\n\nFiles:"
		}
		text += "\n" + at
	}
	return text, nil
}

// FileNames are the names under which files of a message lie side by side in one
// folder: their own, and with a number before the extension where several have
// the same.
func FileNames(files []string) []string {
	names := make([]string, len(files))
	taken := map[string]bool{}
	for _, f := range files {
		taken[filepath.Base(f)] = true
	}
	first := map[string]bool{}
	for i, f := range files {
		name := filepath.Base(f)
		if !first[name] {
			first[name], names[i] = true, name
			continue
		}
		ext := filepath.Ext(name)
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(filepath.Base(f), ext), n, ext)
		}
		taken[name], names[i] = true, name
	}
	return names
}
