package assay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"assay/agent"
	"assay/expect"
	"assay/fault"
	"assay/judge"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Host is what the engine gives a T. Authors never see it.
type Host interface {
	// Send delivers one message in a session and records its window.
	Send(ctx context.Context, session int, in agent.Input) (agent.Turn, error)
	// NewSession opens another conversation and returns its number.
	NewSession() int
	// Sandbox is nil for a direct agent.
	Sandbox() *sandbox.Sandbox
	// Notes is bound to phase eval.run.
	Notes() sandbox.Notes
	// Changes returns what the agent changed in the windows of turns from..to
	// (1-based, inclusive). partial says why the list is not complete, or "".
	Changes(ctx context.Context, from, to int) (rows []record.Row, partial string, err error)
	// Conclude ends the conversation: the agent's processes are ended where the
	// eval wants that, and hidden files are uploaded.
	Conclude(ctx context.Context) error
	// Judge asks the attempt's judge. What is in Judged is valid also with an
	// error.
	Judge(ctx context.Context, q judge.Question) (Judged, error)
	Facts() AttemptFacts
}

// AttemptFacts are the plain facts that an eval may read.
type AttemptFacts struct {
	Experiment      ref.ExperimentID
	Eval            ref.EvalID
	Ordinal         int
	Agent           string
	Model           string
	ReasoningEffort string
	Flags           map[string]any
	Coverage        agent.Coverage // of the agent in a normal turn
}

// T drives one attempt: it sends messages to the agent, reads what happened and
// makes checks. A send that fails, OrStop on a missed check, and Skip end the
// body at once, like FailNow of package testing; so call them from the body's
// own goroutine. Sends are served one at a time, whoever makes them. What a body
// that was given up still does has no effect on the attempt.
type T struct {
	host Host

	sending    sync.Mutex // held from the start of a send to its end
	mu         sync.Mutex
	turns      []*Turn
	assertions []*Assertion
	group      []string
	skip       string
	err        error // an execution error that ended the body
	concluded  bool
	closed     bool
	session    int
	lane       judgeLane
}

// Turn is one message and what came of it.
type Turn struct {
	agent.Turn
	// Number counts the attempt's turns from 1; Session its conversations.
	Number, Session int
	Prompt          string
	t               *T
}

// NewT returns a T over a host. It is for the engine.
func NewT(h Host) *T { return &T{host: h, session: 1} }

// halt ends the body.
func (t *T) halt(err error) {
	t.setErr(err)
	runtime.Goexit()
}

// live ends the calling goroutine when the attempt no longer waits for the body.
func (t *T) live() {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		runtime.Goexit()
	}
}

// Send delivers a message in the current session and waits for the agent's
// turn. An agent that failed at its task gives a Turn with that status; a send
// that failed ends the body, and the attempt is errored.
func (t *T) Send(ctx context.Context, text string, files ...string) *Turn {
	t.mu.Lock()
	session := t.session
	t.mu.Unlock()
	return t.send(ctx, session, agent.Input{Text: text, Files: files})
}

func (t *T) send(ctx context.Context, session int, in agent.Input) *Turn {
	t.sending.Lock()
	defer t.sending.Unlock()
	t.live()
	t.mu.Lock()
	concluded := t.concluded
	in.Turn = len(t.turns) + 1
	t.mu.Unlock()
	if concluded {
		t.halt(&fault.Error{Class: fault.Config, Code: "send-after-conclude", What: "a message was sent after the conversation was concluded", Fix: "Send every message before Conclude."})
	}
	turn, err := t.host.Send(ctx, session, in)
	out := &Turn{Turn: turn, Number: in.Turn, Session: session, Prompt: in.Text, t: t}
	if err != nil {
		out.Status = ""
	}
	t.live()
	t.mu.Lock()
	t.turns = append(t.turns, out)
	t.mu.Unlock()
	if err != nil {
		t.halt(err)
	}
	return out
}

// NewSession opens another conversation and makes it the current one. The
// returned Session stays usable whatever is opened later.
func (t *T) NewSession() *Session {
	t.sending.Lock()
	defer t.sending.Unlock()
	t.live()
	n := t.host.NewSession()
	t.mu.Lock()
	t.session = n
	t.mu.Unlock()
	return &Session{t: t, n: n}
}

// Session is one conversation.
type Session struct {
	t *T
	n int
}

// Send delivers a message in this conversation.
func (s *Session) Send(ctx context.Context, text string, files ...string) *Turn {
	return s.t.send(ctx, s.n, agent.Input{Text: text, Files: files})
}

// Reply is the last assistant message, or "".
func (t *T) Reply() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.turns) == 0 {
		return ""
	}
	return t.turns[len(t.turns)-1].Message
}

// Turns returns the turns so far.
func (t *T) Turns() []*Turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*Turn(nil), t.turns...)
}

// Events returns the events of all turns so far.
func (t *T) Events() []agent.Event {
	var evs []agent.Event
	for _, turn := range t.Turns() {
		evs = append(evs, turn.Events...)
	}
	return evs
}

// Usage sums what the agent reported; nil when it reported nothing.
func (t *T) Usage() *agent.Usage {
	var u *agent.Usage
	for _, turn := range t.Turns() {
		u = u.Add(turn.Usage)
	}
	return u
}

// Facts are the plain facts of this attempt.
func (t *T) Facts() AttemptFacts { return t.host.Facts() }

// Flags are the experiment's conditions.
func (t *T) Flags() map[string]any { return t.host.Facts().Flags }

// EvalSandbox is the sandbox as an eval sees it: everything but Stop.
type EvalSandbox struct{ *sandbox.Sandbox }

// Stop is not an eval's to call; it does nothing but say so.
func (EvalSandbox) Stop(context.Context) error {
	return fault.Configf("sandbox-stop-refused", "Remove the call: the engine stops the sandbox.", "an eval cannot stop its sandbox")
}

// Sandbox gives an eval the sandbox. For a direct agent the body ends with an
// error that names the agent.
func (t *T) Sandbox() EvalSandbox {
	t.live()
	s := t.host.Sandbox()
	if s == nil {
		t.halt(fault.Configf("sandbox-for-direct-agent", "Use an agent that runs in a sandbox, or do not touch t.Sandbox in this eval.", "agent %s runs without a sandbox", t.host.Facts().Agent))
	}
	return EvalSandbox{s}
}

// Progress, Diagnostic and Fact are the feedback channels, bound to eval.run.
func (t *T) Progress(p sandbox.Progress) { t.host.Notes().Progress(p) }

// Diagnostic records a problem; it never changes the verdict.
func (t *T) Diagnostic(d sandbox.Diagnostic) error { return t.host.Notes().Diagnostic(d) }

// Fact records a neutral fact of this attempt.
func (t *T) Fact(name string, value any) error { return t.host.Notes().Fact(name, value) }

// Skip ends the body; the attempt is skipped unless a check was missed.
func (t *T) Skip(reason string) {
	if reason == "" {
		reason = "skipped by the eval"
	}
	t.mu.Lock()
	t.skip = reason
	t.mu.Unlock()
	runtime.Goexit()
}

// Group gives the checks made in body a common title.
func (t *T) Group(title string, body func()) {
	t.mu.Lock()
	t.group = append(t.group, title)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.group = t.group[:len(t.group)-1]
		t.mu.Unlock()
	}()
	body()
}

// Conclude ends the conversation, uploads the eval's hidden files, and lets
// checks look at a sandbox that the agent no longer touches. The engine calls
// it after the body; a body that runs the hidden tests itself calls it before.
func (t *T) Conclude(ctx context.Context) {
	t.sending.Lock()
	defer t.sending.Unlock()
	t.live()
	t.mu.Lock()
	done := t.concluded
	t.concluded = true
	t.mu.Unlock()
	if done {
		return
	}
	err := t.host.Conclude(ctx)
	if fault.CodeOf(err) == CodeHiddenBlocked {
		// An agent must not escape its verdict by standing in the way of it.
		t.assert("hidden", "hidden files are in place", func(context.Context) (record.Check, error) {
			return no("what the agent left in the workdir stands in the way of the hidden files: %v", err)
		}).OrStop(ctx)
	}
	if err != nil {
		t.halt(err)
	}
}

// CodeHiddenBlocked is the code of a Host's Conclude when something in the
// workdir stands in the way of the hidden files.
const CodeHiddenBlocked = "hidden-blocked"

// Outcome is what a body came to.
type Outcome struct {
	Checks []record.Check
	Skip   string
	Turns  []*Turn
	Err    error
}

// RunBody runs the eval's body, finishes its checks, and returns what it came
// to. Panics of author code become errors. When ctx ends and the body does not
// return, it is abandoned after patience is closed. It is for the engine.
func (t *T) RunBody(ctx context.Context, body func(context.Context, *T) error, patience <-chan struct{}) Outcome {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				buf := make([]byte, 16<<10)
				buf = buf[:runtime.Stack(buf, false)]
				t.setErr(&fault.Error{Code: "eval-panic", What: fmt.Sprintf("the eval's code panicked: %v", p), Err: errors.New(string(buf))})
			}
		}()
		if err := body(ctx, t); err != nil {
			t.setErr(err)
		}
	}()
	select {
	case <-ended:
	case <-patience:
		t.setErr(fault.Cause(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return Outcome{Skip: t.skip, Turns: append([]*Turn(nil), t.turns...), Err: t.err}
}

func (t *T) setErr(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil && !t.closed {
		t.err = err
	}
}

// Finish evaluates the checks that wait for evidence and returns all of them in
// the order in which they were made. It is for the engine.
func (t *T) Finish(ctx context.Context) []record.Check {
	t.mu.Lock()
	as := append([]*Assertion(nil), t.assertions...)
	t.mu.Unlock()
	out := make([]record.Check, len(as))
	for i, a := range as {
		out[i] = a.result(ctx)
	}
	return out
}

// Check judges a value now.
func (t *T) Check(value any, m expect.Matcher) *Assertion {
	a := t.assert("value", m.Label, func(context.Context) (record.Check, error) { return matched(m.Match(value)), nil })
	a.measured = m.Measures
	a.result(context.Background())
	return a
}
