package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// lateRead bounds the reading of events after a turn that a limit ended.
const lateRead = 3 * time.Second

// position is how far the events file of a sandbox was read. It belongs to the
// sandbox and not to a session: all sessions of an attempt write one file.
type position struct {
	size int
	sum  [sha256.Size]byte // of what was read
}

var positions sandbox.State[position]

// rest returns what was added to the file since p: all of it where the program
// began the file anew.
func (p position) rest(body []byte) []byte {
	if len(body) < p.size || sha256.Sum256(body[:p.size]) != p.sum {
		return body
	}
	return body[p.size:]
}

func at(body []byte) position { return position{len(body), sha256.Sum256(body)} }

// skipOld passes over what was in the file before the first turn.
func (a Agent) skipOld(ctx context.Context, s *agent.Session) error {
	if _, known := positions.Get(s.Sandbox); known {
		return nil
	}
	body, err := s.Sandbox.ReadBytes(ctx, a.Events)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the agent's events: %w", err)
	}
	positions.Set(s.Sandbox, at(body))
	return nil
}

// events returns the lines that were added since the last turn, and the
// coverage of the turn where it is below the agent's normal one.
func (a Agent) events(ctx context.Context, s *agent.Session) ([]agent.Event, *agent.Coverage, error) {
	if a.Events == "" {
		return nil, nil, nil
	}
	if limit := (*fault.Timeout)(nil); ctx.Err() != nil {
		if !errors.As(fault.Cause(ctx), &limit) {
			return nil, nil, nil
		}
		// What the agent did and used until its time was over is evidence.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateRead)
		defer cancel()
		ctx = late
	}
	body, err := s.Sandbox.ReadBytes(ctx, a.Events)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &agent.Coverage{Messages: agent.Complete, Status: agent.Complete}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent's events: %w", err)
	}
	p, _ := positions.Get(s.Sandbox)
	rest := p.rest(body)
	events, bad, err := agent.ReadEvents(bytes.NewReader(rest))
	positions.Set(s.Sandbox, at(body))
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent's events: %w", err)
	}
	// The engine records what it sent itself.
	events = slices.DeleteFunc(events, func(e agent.Event) bool { return e.Type == agent.MessageEvent && e.Role == "user" })
	c := a.Info().Coverage
	if !slices.ContainsFunc(events, func(e agent.Event) bool { return e.Usage != nil }) {
		c.Usage = agent.None
	}
	if !paired(events) {
		c.Actions = agent.Partial
	}
	if len(rest) == 0 && p.size > 0 {
		// Either nothing was added or the same was written anew.
		c.Events, c.Actions = agent.Partial, agent.Partial
	}
	if bad > 0 {
		_ = s.Notes.Diagnostic(sandbox.Diagnostic{Code: "agent-events-bad-lines", Level: sandbox.Warning, Message: fmt.Sprintf("%d lines of the agent's events file are no events", bad), DedupeKey: "agent-events-bad-lines"})
		c = c.Worst(agent.Coverage{Events: agent.Partial, Actions: agent.Partial, Messages: agent.Partial, Usage: agent.Partial, Status: agent.Complete, Data: agent.Complete})
	}
	if c == a.Info().Coverage {
		return events, nil, nil
	}
	return events, &c, nil
}

// paired reports whether every operation has one start and one end, in this
// order, under an id of its own.
func paired(events []agent.Event) bool {
	running, ended := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		switch e.Type {
		case agent.OperationStarted:
			if e.ID == "" || running[e.ID] || ended[e.ID] {
				return false
			}
			running[e.ID] = true
		case agent.OperationFinished:
			if !running[e.ID] {
				return false
			}
			delete(running, e.ID)
			ended[e.ID] = true
		}
	}
	return len(running) == 0
}
