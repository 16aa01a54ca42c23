// Package script has the agents that need no model: Agent plays fixed turns,
// Oracle runs an eval's own solution, Nop does nothing. They hold an eval to its
// word: it must pass with the oracle and fail with the nop.
package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// Agent plays fixed turns.
type Agent struct {
	Turns []Turn `yaml:"turns" json:"turns"`
}

// Turn is one fixed turn: commands that run in the workdir, then a reply.
type Turn struct {
	Commands []string `yaml:"commands" json:"commands,omitempty"`
	Reply    string   `yaml:"reply" json:"reply,omitempty"`
}

// Definition lets YAML name the scripted agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name: "script", Summary: "plays fixed turns: commands and a reply",
		Options: func() any { return new(Agent) },
		Agent: func(options any, _ string) (agent.Agent, error) {
			a := *options.(*Agent)
			if len(a.Turns) == 0 {
				return nil, fault.Configf("agent-script-empty", "Give it `turns:`, each with commands and a reply, or use the agent `nop`.", "the script agent has no turns")
			}
			return a, nil
		},
	}
}

var full = agent.Coverage{
	Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete,
	Usage: agent.None, Status: agent.Complete,
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	return agent.Info{Name: "script", Identity: a, Coverage: full}
}

// Send plays the turn of the message's number.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	if in.Turn < 1 || in.Turn > len(a.Turns) {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: fault.Configf("agent-script-ended", "Add a turn to the script.", "the script has %d turns, the eval sends message %d", len(a.Turns), in.Turn)}
	}
	t := a.Turns[in.Turn-1]
	return play(ctx, s, t.Commands, t.Reply, sandbox.CommandOptions{})
}

// play runs commands, each reported as a call of the tool bash.
func play(ctx context.Context, s *agent.Session, commands []string, reply string, opts sandbox.CommandOptions) (agent.Turn, error) {
	turn := agent.Turn{Status: agent.Completed, Message: reply}
	for i, c := range commands {
		id := fmt.Sprintf("call-%d", i+1)
		input, err := json.Marshal(map[string]string{"command": c})
		if err != nil {
			return agent.Turn{}, err
		}
		turn.Events = append(turn.Events, agent.Event{Type: agent.OperationStarted, ID: id, Name: "bash", Input: input})
		res, err := s.Sandbox.RunShell(ctx, c, opts)
		if err != nil {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: err, Events: turn.Events}
		}
		if res.OOM {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Events: turn.Events, Err: &fault.Error{Class: fault.Resource, Code: "oom", What: "a command of the agent was ended because memory ran out", Fix: "Raise `resources: {memory: …}` of the sandbox."}}
		}
		output, err := json.Marshal(strings.ToValidUTF8(res.Stdout+res.Stderr, "\uFFFD"))
		if err != nil {
			return agent.Turn{}, err
		}
		status := "completed"
		if res.Code != 0 {
			status = "failed"
			turn.Status, turn.Reason = agent.Failed, fmt.Sprintf("%s: exit %d: %s", sandbox.Tail(c, 120), res.Code, sandbox.Tail(res.Stderr, 240))
		}
		turn.Events = append(turn.Events, agent.Event{Type: agent.OperationFinished, ID: id, Status: status, Output: output})
		if res.Code != 0 {
			break
		}
	}
	turn.Events = append(turn.Events, agent.Event{Type: agent.MessageEvent, Role: "assistant", Text: turn.Message})
	return turn, nil
}

// Oracle runs the eval's solution in its first turn and does nothing later.
type Oracle struct{}

// OracleDefinition lets YAML name the oracle.
func OracleDefinition() agent.Definition {
	return agent.Definition{
		Name: "oracle", Summary: "runs the eval's solution",
		Options: func() any { return &struct{}{} },
		Agent:   func(any, string) (agent.Agent, error) { return Oracle{}, nil },
	}
}

// Info describes the agent.
func (Oracle) Info() agent.Info {
	return agent.Info{Name: "oracle", Coverage: full, NeedsSolution: true}
}

// Send runs the solution.
func (Oracle) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	if s.Solution == nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: fault.Configf("eval-solution-missing", "Give the eval a `solution:`, or leave it out of this experiment.", "eval %s has no solution for the oracle to run", s.Eval)}
	}
	if in.Turn > 1 {
		return agent.Turn{Status: agent.Completed, Events: []agent.Event{{Type: agent.MessageEvent, Role: "assistant"}}}, nil
	}
	c := *s.Solution
	opts := sandbox.CommandOptions{Cwd: c.Cwd, Env: c.Env, User: c.User, Timeout: c.Timeout}
	if s.SolutionDir != "" {
		dir := path.Join(s.Scratch, "solution")
		if err := s.Sandbox.UploadDirectory(ctx, s.SolutionDir, dir); err != nil {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: err}
		}
		opts.Env = map[string]string{"SOLUTION_DIR": dir}
		for k, v := range c.Env {
			opts.Env[k] = v
		}
	}
	script := c.Shell
	if len(c.Argv) > 0 {
		script = sandbox.Quote(c.Argv)
	}
	if script == "" {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: errors.New("the solution is empty")}
	}
	return play(ctx, s, []string{script}, "The solution ran.", opts)
}

// Nop does nothing and replies with an empty message.
type Nop struct{}

// NopDefinition lets YAML name the nop.
func NopDefinition() agent.Definition {
	return agent.Definition{
		Name: "nop", Summary: "does nothing and replies with an empty message",
		Options: func() any { return &struct{}{} },
		Agent:   func(any, string) (agent.Agent, error) { return Nop{}, nil },
	}
}

// Info describes the agent.
func (Nop) Info() agent.Info { return agent.Info{Name: "nop", Coverage: full} }

// Send replies with an empty message.
func (Nop) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	return agent.Turn{Status: agent.Completed, Events: []agent.Event{{Type: agent.MessageEvent, Role: "assistant"}}}, nil
}

var (
	_ agent.Agent = Agent{}
	_ agent.Agent = Oracle{}
	_ agent.Agent = Nop{}
)
