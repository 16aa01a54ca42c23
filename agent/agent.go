// Package agent is the contract between the engine and the thing under test:
// what an agent is, what one send to it is, and the one event model that every
// adapter translates into. Package agenttest holds an implementation to it.
package agent

import (
	"context"
	"encoding/json"
	"sync"

	"assay/ref"
	"assay/sandbox"
)

// Agent drives one system under test. One value serves many attempts at once;
// what belongs to a conversation is kept in its Session.
type Agent interface {
	// Info returns plain facts. It is pure.
	Info() Info
	// Send delivers one message and returns when the agent's turn is over. An
	// agent that failed at its task is a Turn with Status Failed; an error
	// means that there is no turn to trust, and is a *SendError where the agent
	// knows more. Sends of one attempt are serialised by the engine. The end of
	// ctx ends everything the turn started.
	Send(ctx context.Context, s *Session, in Input) (Turn, error)
}

// Info is what an agent is, as plain data.
type Info struct {
	// Name is the name in YAML, such as "claude-code".
	Name string
	// Version is the pinned version of the tool, "" where there is none.
	Version string
	// Direct agents need no sandbox and get none.
	Direct bool
	// Harness is what the agent needs installed.
	Harness sandbox.Harness
	// Coverage is what the agent reports in a normal turn; a Turn may lower it.
	Coverage Coverage
	// Identity is declared data that encodes to JSON and enters carry: every
	// setting that changes behaviour, no secret.
	Identity any
	// SecretEnv names host variables whose values the agent may see.
	SecretEnv []string
	// Files are absolute host files and folders that the agent puts into the
	// sandbox, such as skills: their content enters carry.
	Files []string
	// Telemetry is true for an agent that can send spans; see Session.Telemetry.
	Telemetry bool
	// NeedsSolution is true for an agent that can only run evals with a
	// solution.
	NeedsSolution bool
	// Artifacts are files below the workdir that the agent writes as evidence.
	// They are never part of the diff.
	Artifacts []string
}

// Ensurer is an agent with something to install: Ensure probes for it, installs
// it when missing, probes again, and returns what was found.
type Ensurer interface {
	Ensure(ctx context.Context, s *Session) (Installed, error)
}

// Installed identifies what runs.
type Installed struct {
	Version string
	Details map[string]any
}

// Starter is an agent with per-attempt set-up after the baseline, such as
// configuration files. Teardown runs if and only if Setup was entered, also when
// it failed.
type Starter interface {
	Setup(ctx context.Context, s *Session) error
	Teardown(ctx context.Context, s *Session) error
}

// Session is one conversation of one attempt. NewSession of an attempt gives
// another with the same sandbox.
type Session struct {
	// Number counts the attempt's sessions from 1.
	Number int
	// Sandbox is nil for direct agents.
	Sandbox *sandbox.Sandbox
	// Scratch is a directory inside the sandbox, outside the workdir, for
	// files that must never be in the diff. It is made by the engine.
	Scratch         string
	Model           string
	ReasoningEffort string
	Flags           map[string]any
	Experiment      ref.ExperimentID
	Eval            ref.EvalID
	Attempt         ref.AttemptID
	Ordinal         int
	// Secrets are the values of Info.SecretEnv, by name.
	Secrets map[string]string
	// Telemetry is where spans go; nil where nobody receives them.
	Telemetry *Telemetry
	// Notes is bound to the phase in which the agent runs.
	Notes sandbox.Notes
	// Solution is the eval's solution, for the oracle agent only.
	Solution *sandbox.Command
	// SolutionDir is the host folder that holds the solution's files.
	SolutionDir string

	mu    sync.Mutex
	slots map[any]any
}

// Value returns what an adapter keeps with the session under key, made by init
// on first use.
func Value[T any](s *Session, key any, init func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.slots[key].(T); ok {
		return v
	}
	v := init()
	if s.slots == nil {
		s.slots = map[any]any{}
	}
	s.slots[key] = v
	return v
}

// Input is what is sent in one turn.
type Input struct {
	Text string
	// Files are host paths given with the message.
	Files []string
	// Turn counts the sends of the attempt from 1.
	Turn int
	// Answers reply to input requests, by request id.
	Answers map[string]string
}

// Status is how a turn ended.
type Status string

// The statuses.
const (
	Completed Status = "completed"
	Failed    Status = "failed"
	Waiting   Status = "waiting" // for answers to input requests
)

// Turn is the result of one send.
type Turn struct {
	Status Status
	// Message is the last assistant message.
	Message string
	// Events are in real order. User messages are recorded by the engine.
	Events []Event
	// Usage is what the agent reported; nil when it reported nothing.
	Usage *Usage
	// Coverage lowers the agent's normal coverage for this turn.
	Coverage *Coverage
	// Exit is the exit code of the agent's process, where it has one.
	Exit *int
	// StopReason is the agent's own word for why it stopped, such as
	// "end_turn" or "max_tokens".
	StopReason string
	// Reason says in one line why a turn failed.
	Reason string
	// Data is the answer of a product whose answer is structured.
	Data json.RawMessage
}

// Acceptance says whether a failed send had an effect.
type Acceptance string

// Only a rejected send may be repeated.
const (
	Rejected          Acceptance = "rejected" // provably not accepted
	Started           Acceptance = "started"
	AcceptanceUnknown Acceptance = "unknown"
)

// SendError is a send without a turn to trust, with what is known.
type SendError struct {
	Acceptance Acceptance
	Err        error
	// Events and Usage are what came before the failure.
	Events []Event
	Usage  *Usage
	Exit   *int
}

// Error is the cause's text.
func (e *SendError) Error() string { return "agent send failed: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *SendError) Unwrap() error { return e.Err }

// Level is how complete a channel of evidence is.
type Level string

// The levels; "" means None.
const (
	Complete Level = "complete"
	Partial  Level = "partial"
	None     Level = "none"
)

// Coverage says per channel how complete the evidence of a turn is. A check that
// something did not happen needs Complete.
type Coverage struct {
	Events   Level `json:"events,omitempty"`
	Actions  Level `json:"actions,omitempty"`
	Messages Level `json:"messages,omitempty"`
	Usage    Level `json:"usage,omitempty"`
	Status   Level `json:"status,omitempty"`
	Data     Level `json:"data,omitempty"`
}

// Worst returns, per channel, the lower of two coverages.
func (c Coverage) Worst(o Coverage) Coverage {
	w := func(a, b Level) Level {
		rank := func(l Level) int {
			switch l {
			case Complete:
				return 2
			case Partial:
				return 1
			default:
				return 0
			}
		}
		if rank(a) < rank(b) {
			return a
		}
		return b
	}
	return Coverage{w(c.Events, o.Events), w(c.Actions, o.Actions), w(c.Messages, o.Messages), w(c.Usage, o.Usage), w(c.Status, o.Status), w(c.Data, o.Data)}
}
