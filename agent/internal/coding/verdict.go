package coding

import (
	"fmt"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// End is what an agent said about the end of its turn.
type End struct {
	// Said is true when it said anything: without it no turn is completed.
	Said bool
	// Failed turns ended normally and did not reach their goal: a limit of
	// turns or tokens, a refusal. Reason says why in one line.
	Failed bool
	Reason string
	// Service is a failure of the model's service or of the configuration; no
	// turn is to be trusted then.
	Service    *Failure
	StopReason string
	Usage      *agent.Usage
}

// Conclude makes the result of a turn out of what the process and its stream
// said. fresh is true for the first turn of a conversation: only there a
// rejected message leaves nothing behind.
func Conclude(s *agent.Session, name string, normal agent.Coverage, ran Ran, t *Transcript, end End, fresh bool) (agent.Turn, error) {
	lost := t.Lost()
	if lost != "" {
		note(s, "agent-events-lost", lost+" in the event stream of "+name)
	}
	if ran.Forced {
		note(s, "agent-forced-exit", name+" said that its turn was over and did not exit; it was ended")
	}
	fail := func(err error) (agent.Turn, error) {
		acceptance := agent.Started
		if fresh && !t.Answered && end.Service != nil {
			acceptance = agent.Rejected
		}
		return agent.Turn{}, &agent.SendError{Acceptance: acceptance, Err: err, Events: t.Events, Usage: end.Usage, Exit: ran.Exit}
	}
	if ran.OOM {
		return fail(&fault.Error{Class: fault.Resource, Code: "oom", What: "the agent was ended because memory ran out", Fix: "Raise `resources: {memory: …}` of the sandbox."})
	}
	if ran.Err != nil {
		return fail(ran.Err)
	}
	if end.Service != nil {
		return fail(end.Service.Judge())
	}
	if !end.Said {
		exit := "it was ended"
		if ran.Exit != nil {
			exit = fmt.Sprintf("exit %d", *ran.Exit)
		}
		if f := (Failure{Message: ran.Stderr}); ran.Stderr != "" {
			if j := f.Judge(); j.Code != "agent-failed" {
				j.What = fmt.Sprintf("%s ended without an end of its turn (%s): %s", name, exit, ran.Stderr)
				return fail(j)
			}
		}
		return fail(&fault.Error{Code: "agent-incomplete", What: fmt.Sprintf("%s ended without an end of its turn (%s): %s", name, exit, ran.Stderr), Fix: "See the agent's own text; an agent that was cut off has no answer to grade."})
	}
	turn := agent.Turn{
		Status: agent.Completed, Message: t.Message, Events: t.Events, Usage: end.Usage, Coverage: t.Coverage(normal),
		Exit: ran.Exit, StopReason: end.StopReason,
	}
	if end.Usage == nil && normal.Usage != "" && normal.Usage != agent.None {
		// Nobody counted, so an upper bound proves nothing.
		c := normal
		if turn.Coverage != nil {
			c = *turn.Coverage
		}
		c.Usage = agent.None
		turn.Coverage = &c
	}
	if end.Failed {
		turn.Status, turn.Reason = agent.Failed, end.Reason
	}
	return turn, nil
}

// note records a problem that changes no verdict.
func note(s *agent.Session, code, message string) {
	if s.Notes != nil {
		// A diagnostic that is refused is the engine's to report.
		_ = s.Notes.Diagnostic(sandbox.Diagnostic{Code: code, Level: sandbox.Warning, Message: message, DedupeKey: code + message})
	}
}

// Count returns a pointer to n.
func Count(n int64) *int64 { return &n }
