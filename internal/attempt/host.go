package attempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/event"
	"assay/internal/ledger"
	"assay/internal/redact"
	"assay/record"
	"assay/sandbox"
)

// Sandbox is nil for a direct agent.
func (a *attempt) Sandbox() *sandbox.Sandbox { return a.sb }

// Facts are the plain facts of the attempt.
func (a *attempt) Facts() assay.AttemptFacts {
	x := a.slot.Experiment
	return assay.AttemptFacts{
		Experiment: a.slot.Ref.Experiment, Eval: a.slot.Ref.Eval, Ordinal: a.slot.Ref.Ordinal, Agent: a.info.Name,
		Model: x.Def.Model, ReasoningEffort: x.Def.ReasoningEffort, Flags: x.Def.Flags, Coverage: a.info.Coverage,
	}
}

// NewSession opens another conversation.
func (a *attempt) NewSession() int { return a.session("agent.run").Number }

// The policy of repeated sends: only those that were provably not accepted.
const (
	sendTries   = 4
	sendRetries = 8 // per attempt
	sendBase    = 5 * time.Second
)

// Send delivers one message, with a window of the ledger around it.
func (a *attempt) Send(ctx context.Context, session int, in agent.Input) (agent.Turn, error) {
	s := a.sessions[session-1]
	a.turns++
	start := time.Now()
	if a.ledger != nil && a.noLedger == nil {
		if err := a.ledger.BeforeSend(ctx); err != nil {
			a.lost(err)
		}
	}
	a.emit(event.Phase{Slot: a.slot.Ref, Name: "agent.run"})
	turn, err := a.sendWithRetry(ctx, s, in)
	a.emit(event.Phase{Slot: a.slot.Ref, Name: "eval.run"})
	if a.ledger != nil && a.noLedger == nil && a.sb.Unusable() == nil {
		// The window is closed also when the send failed or timed out: what the
		// agent did until then is evidence.
		close, cancel := ctx, context.CancelFunc(func() {})
		if ctx.Err() != nil {
			close, cancel = a.closing("evidence-limit", evidenceLimit)
		}
		if lerr := a.ledger.AfterSend(close, s.Number, in.Turn); lerr != nil {
			a.lost(lerr)
		} else {
			a.windows++
		}
		cancel()
	}
	a.keep(s, in, &turn, err, time.Since(start))
	if err != nil {
		code := cause(err, "agent-send-failed")
		return turn, &fault.Error{Class: fault.ClassOf(err), Code: code, Stage: "agent.run", Scope: fault.ScopeOf(err), Fix: fault.FixOf(err), What: fmt.Sprintf("send message %d to %s", in.Turn, a.info.Name), Err: err}
	}
	return turn, nil
}

// lost notes that the ledger can no longer answer; checks that need it are
// unavailable, nothing else is.
func (a *attempt) lost(err error) {
	a.noLedger = err
	a.diagnostic("workspace.diff", sandbox.Diagnostic{Code: "workspace-diff-unavailable", Level: sandbox.Warning, Message: err.Error()})
}

func (a *attempt) sendWithRetry(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	for try := 1; ; try++ {
		var turn agent.Turn
		err := a.guarded(func() error {
			var err error
			turn, err = a.agent.Send(ctx, s, in)
			return err
		})
		var se *agent.SendError
		if err == nil || !errors.As(err, &se) || se.Acceptance != agent.Rejected || fault.ClassOf(se.Err) != fault.Transient ||
			try == sendTries || a.retries == sendRetries || ctx.Err() != nil {
			return turn, err
		}
		a.retries++
		a.diagnostic("agent.run", sandbox.Diagnostic{Code: "agent-send-retried", Level: sandbox.Warning, Message: err.Error(), DedupeKey: err.Error()})
		wait := time.Duration(rand.Int64N(int64(sendBase << (try - 1))))
		if yerr := a.backOff(ctx, fmt.Sprintf("the agent's service rejected the message, trying again in %s", wait.Round(time.Second)), wait); yerr != nil {
			return turn, errors.Join(yerr, err)
		}
	}
}

// keep records a turn, its events and its usage.
func (a *attempt) keep(s *agent.Session, in agent.Input, turn *agent.Turn, err error, took time.Duration) {
	var se *agent.SendError
	if errors.As(err, &se) {
		turn.Events, turn.Usage, turn.Exit = append(turn.Events, se.Events...), turn.Usage.Add(se.Usage), se.Exit
	}
	for i := range turn.Events {
		turn.Events[i].Turn = in.Turn
	}
	a.mu.Lock()
	a.events = append(a.events, agent.Event{Type: agent.MessageEvent, Role: "user", Text: in.Text, Turn: in.Turn})
	a.events = append(a.events, turn.Events...)
	a.mu.Unlock()
	rt := record.Turn{
		Session: s.Number, Turn: in.Turn, Prompt: in.Text, Reply: turn.Message, Status: string(turn.Status),
		StopReason: turn.StopReason, Exit: turn.Exit, MS: took.Milliseconds(), Usage: (*record.Usage)(turn.Usage),
	}
	if err != nil {
		rt.Status = ""
	}
	a.rec.Turns = append(a.rec.Turns, rt)
	sum := (*agent.Usage)(a.rec.Usage).Add(turn.Usage)
	a.rec.Usage = (*record.Usage)(sum)
	if sum != nil && sum.CostUSD != nil {
		a.rec.CostUSD = sum.CostUSD
	}
}

// Changes returns what the agent changed in turns from..to.
func (a *attempt) Changes(ctx context.Context, from, to int) ([]record.Row, string, error) {
	if from > a.windows && to >= from && a.noLedger == nil {
		return nil, "", &fault.Error{Code: "workspace-diff-unavailable", What: fmt.Sprintf("what the agent changed in turn %d was not recorded", from)}
	}
	d, err := a.diff(ctx, from, min(to, a.windows))
	if err != nil {
		return nil, "", err
	}
	return ledger.Union(d), d.Partial, nil
}

// diff exports windows once and remembers them.
func (a *attempt) diff(ctx context.Context, from, to int) (*record.Diff, error) {
	if a.noLedger != nil {
		return nil, &fault.Error{Code: "workspace-diff-unavailable", Fix: fault.FixOf(a.noLedger), What: "the agent's changes are not known", Err: a.noLedger}
	}
	key := [2]int{from, to}
	if d, ok := a.diffs[key]; ok {
		return d, nil
	}
	d, err := a.ledger.Export(ctx, from, to)
	if err != nil {
		return nil, err
	}
	a.diffs[key] = d
	return d, nil
}

// Conclude ends what the agent left running, unless the eval wants it alive,
// and uploads the hidden files.
func (a *attempt) Conclude(ctx context.Context) error {
	if a.sb == nil {
		return nil
	}
	e := a.slot.Eval
	if !e.KeepProcesses {
		if err := a.endProcesses(ctx); err != nil {
			return err
		}
	}
	if e.Hidden == "" {
		return nil
	}
	return a.timed(ctx, "workspace.hidden", func(ctx context.Context) error {
		return a.sb.UploadDirectory(ctx, e.Hidden, "")
	})
}

func (a *attempt) endProcesses(ctx context.Context) error {
	ps, err := a.sb.EndProcesses(ctx)
	if fault.CodeOf(err) == "processes-unsupported" {
		a.diagnostic("eval.run", sandbox.Diagnostic{Code: "processes-unsupported", Level: sandbox.Warning, Message: "this sandbox cannot end the agent's processes before grading: " + err.Error()})
		return nil
	}
	if err != nil {
		return err
	}
	if len(ps) == 0 {
		return nil
	}
	f, err := record.NewFact(ps[:min(len(ps), 50)], time.Now())
	if err != nil {
		return err
	}
	return a.fact("assay.processes.ended", f)
}

// seal fixes the record: late feedback is ignored from here on, and every
// secret is masked in the one place through which all of it goes.
func (a *attempt) seal() record.Sealed {
	a.mu.Lock()
	a.closed = true
	a.rec.Diagnostics, a.rec.Facts = a.diags, a.facts
	s := record.Sealed{Attempt: a.rec, Commands: a.commands}
	events := a.events
	a.mu.Unlock()
	if d, ok := a.diffs[[2]int{1, a.windows}]; ok && a.windows > 0 {
		s.Diff = d
		sum := &record.DiffSummary{Changes: []record.Change{}, Partial: d.Partial}
		for _, r := range ledger.Union(d) {
			sum.Changes = append(sum.Changes, record.Change{Path: r.Path, Status: r.Status})
		}
		s.Attempt.Diff = sum
	}
	for _, e := range events {
		if b, err := json.Marshal(e); err == nil {
			s.Events = append(s.Events, b)
		}
	}
	redact.Value(a.red, &s)
	return s
}
