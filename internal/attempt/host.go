package attempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/archive"
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
func (a *attempt) NewSession() int {
	n := 0
	if a.own(func() { n = a.session("agent.run").Number }) != nil {
		return 0
	}
	return n
}

// The policy of repeated sends: only those that were provably not accepted.
const (
	sendTries   = 4
	sendRetries = 8 // per attempt
	sendBase    = 5 * time.Second
)

// Send delivers one message, with a window of the ledger around it.
func (a *attempt) Send(ctx context.Context, session int, in agent.Input) (agent.Turn, error) {
	if cause := fault.Cause(ctx); cause != nil {
		return agent.Turn{}, a.notSent(in, cause)
	}
	var s *agent.Session
	if err := a.own(func() { s = a.sessions[session-1]; a.turns++ }); err != nil {
		return agent.Turn{}, err
	}
	start := time.Now()
	if a.ledger != nil && a.lostLedger() == nil {
		err := a.ledger.BeforeSend(ctx)
		if cause := fault.Cause(ctx); cause != nil {
			// Nothing was sent, so the windows before stay valid.
			return agent.Turn{}, a.notSent(in, cause)
		}
		if err != nil {
			a.lost(err)
		}
	}
	a.emit(event.Phase{Slot: a.slot.Ref, Name: "agent.run"})
	turn, err := a.sendWithRetry(ctx, s, in)
	if uerr := turn.Usage.Check(); uerr != nil {
		// A number that is none would break sums and budgets: unknown is better.
		turn.Usage = nil
		a.diagnostic("agent.run", sandbox.Diagnostic{Code: "agent-usage-invalid", Level: sandbox.Warning, Message: "the agent's usage is not recorded: " + uerr.Error()})
	}
	if left := a.own(func() {}); left != nil {
		return agent.Turn{}, left
	}
	a.emit(event.Phase{Slot: a.slot.Ref, Name: "eval.run"})
	a.closeWindow(ctx, s.Number, in.Turn)
	took := time.Since(start)
	if left := a.own(func() { a.keep(s, in, &turn, err, took) }); left != nil {
		return agent.Turn{}, left
	}
	if err != nil {
		return turn, a.notSent(in, err)
	}
	if turn.Status == agent.Failed {
		// Evidence for checks, and for people who look for the reason.
		a.diagnostic("agent.run", sandbox.Diagnostic{Code: "agent-turn-failed", Level: sandbox.Warning, Message: fmt.Sprintf("turn %d of the agent failed: %s", in.Turn, turn.Reason)})
	}
	return turn, nil
}

// notSent says that a message came to no turn.
func (a *attempt) notSent(in agent.Input, err error) error {
	return &fault.Error{
		Class: fault.ClassOf(err), Code: cause(err, "agent-send-failed"), Stage: "agent.run", Scope: fault.ScopeOf(err), Fix: fault.FixOf(err),
		What: fmt.Sprintf("send message %d to %s", in.Turn, a.info.Name), Err: err,
	}
}

// closeWindow ends the window of a turn, also when the send failed or timed out:
// what the agent did until then is evidence. An interrupted attempt needs none.
func (a *attempt) closeWindow(ctx context.Context, session, turn int) {
	if a.ledger == nil || a.lostLedger() != nil || a.sb.Unusable() != nil || interrupted(ctx) {
		return
	}
	closing, cancel := ctx, context.CancelFunc(func() {})
	if ctx.Err() != nil {
		closing, cancel = a.closing("evidence-limit", evidenceLimit)
	}
	defer cancel()
	err := a.ledger.AfterSend(closing, session, turn)
	if err != nil && closing == ctx && ctx.Err() != nil && !interrupted(ctx) {
		// The deadline cut the recording itself: what the agent did until then
		// is evidence all the same.
		again, cancel := a.closing("evidence-limit", evidenceLimit)
		defer cancel()
		err = a.ledger.AfterSend(again, session, turn)
	}
	if err != nil {
		a.lost(err)
		return
	}
	_ = a.own(func() { a.windows++ })
}

// lostLedger is why the ledger cannot answer any more, or nil.
func (a *attempt) lostLedger() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.noLedger
}

// lost notes that the ledger can no longer answer; checks that need it are
// unavailable, nothing else is.
func (a *attempt) lost(err error) {
	a.mu.Lock()
	if !a.closed {
		a.noLedger = err
	}
	a.mu.Unlock()
	a.diagnostic("workspace.diff", sandbox.Diagnostic{Code: "workspace-diff-unavailable", Level: sandbox.Warning, Message: err.Error()})
}

func (a *attempt) sendWithRetry(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	for try := 1; ; try++ {
		turns := make(chan agent.Turn, 1)
		err := Bounded(ctx, func(ctx context.Context) error {
			turn, err := a.agent.Send(ctx, s, in)
			turns <- turn
			return err
		})
		var turn agent.Turn
		select {
		case turn = <-turns:
		default: // it was left behind, or it panicked
		}
		var se *agent.SendError
		if err == nil || !errors.As(err, &se) || se.Acceptance != agent.Rejected || fault.ClassOf(se.Err) != fault.Transient ||
			try == sendTries || ctx.Err() != nil {
			return turn, err
		}
		spent := true
		if left := a.own(func() {
			if spent = a.retries == sendRetries; !spent {
				a.retries++
			}
		}); left != nil || spent {
			return turn, err
		}
		a.diagnostic("agent.run", sandbox.Diagnostic{Code: "agent-send-retried", Level: sandbox.Warning, Message: err.Error(), DedupeKey: err.Error()})
		wait := time.Duration(rand.Int64N(int64(sendBase << (try - 1))))
		if yerr := a.backOff(ctx, fmt.Sprintf("the agent's service rejected the message, trying again in %s", wait.Round(time.Second)), wait); yerr != nil {
			return turn, errors.Join(yerr, err)
		}
	}
}

// keep records a turn, its events and its usage. It is called in own.
func (a *attempt) keep(s *agent.Session, in agent.Input, turn *agent.Turn, err error, took time.Duration) {
	var se *agent.SendError
	if errors.As(err, &se) {
		turn.Events, turn.Usage, turn.Exit = append(turn.Events, se.Events...), turn.Usage.Add(se.Usage), se.Exit
	}
	for i := range turn.Events {
		turn.Events[i].Turn = in.Turn
	}
	a.events = append(a.events, agent.Event{Type: agent.MessageEvent, Role: "user", Text: in.Text, Turn: in.Turn})
	a.events = append(a.events, turn.Events...)
	rt := record.Turn{
		Session: s.Number, Turn: in.Turn, Prompt: in.Text, Reply: turn.Message, Status: string(turn.Status),
		StopReason: turn.StopReason, Exit: turn.Exit, MS: took.Milliseconds(), Usage: (*record.Usage)(turn.Usage),
	}
	if err != nil {
		rt.Status = ""
	}
	a.rec.Turns = append(a.rec.Turns, rt)
	now := time.Now()
	a.sent = append(a.sent, sentTurn{in.Turn, now.Add(-took), now})
	sum := (*agent.Usage)(a.rec.Usage).Add(turn.Usage)
	a.rec.Usage = (*record.Usage)(sum)
	if sum != nil && sum.CostUSD != nil {
		a.rec.CostUSD = sum.CostUSD
	}
}

// Changes returns what the agent changed in turns from..to.
func (a *attempt) Changes(ctx context.Context, from, to int) ([]record.Row, string, error) {
	a.mu.Lock()
	windows, lost := a.windows, a.noLedger
	a.mu.Unlock()
	if from > windows && to >= from && lost == nil {
		return nil, "", &fault.Error{Code: "workspace-diff-unavailable", What: fmt.Sprintf("what the agent changed in turn %d was not recorded", from)}
	}
	d, err := a.diff(ctx, from, min(to, windows))
	if err != nil {
		return nil, "", err
	}
	return ledger.Union(d), d.Partial, nil
}

// diff exports windows once and remembers them.
func (a *attempt) diff(ctx context.Context, from, to int) (*record.Diff, error) {
	key := [2]int{from, to}
	a.mu.Lock()
	lost, known := a.noLedger, a.diffs[key]
	a.mu.Unlock()
	if lost != nil {
		return nil, &fault.Error{Code: "workspace-diff-unavailable", Fix: fault.FixOf(lost), What: "the agent's changes are not known", Err: lost}
	}
	if known != nil {
		return known, nil
	}
	d, err := a.ledger.Export(ctx, from, to)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.diffs[key] = d
	}
	return d, nil
}

// Conclude ends what the agent left running, unless the eval wants it alive,
// and uploads the hidden files.
func (a *attempt) Conclude(ctx context.Context) error {
	if a.sb == nil {
		return nil
	}
	a.closeTelemetry() // before the agent's processes are ended: the receiver may be beside them
	e := a.slot.Eval
	if !e.KeepProcesses {
		fetched := a.prefetch(ctx)
		err := a.endProcesses(ctx)
		<-fetched
		if err != nil {
			return err
		}
	}
	if e.Hidden == "" {
		return nil
	}
	p, err := a.measure(ctx, "workspace.hidden", func(ctx context.Context) error {
		if !a.slot.Environment.Info.Reset {
			// The next attempt works in the same tree and must not see them.
			if err := a.unhide(ctx, e.Hidden, ""); err != nil {
				return err
			}
		}
		err := a.sb.UploadDirectory(ctx, e.Hidden, "")
		if err != nil && ctx.Err() == nil && a.sb.Unusable() == nil && fault.ClassOf(err) != fault.Transient && fault.ClassOf(err) != fault.Resource && a.packs(e.Hidden) {
			// The transport works and the source can be packed: what is in the
			// way stands in the workdir, and only the agent put it there.
			return &fault.Error{Code: assay.CodeHiddenBlocked, What: "the hidden files cannot be put in place", Err: err}
		}
		return err
	})
	if left := a.own(func() { a.rec.Phases = append(a.rec.Phases, *p) }); left != nil {
		return left
	}
	return err
}

// prefetch begins to export the whole diff, which every attempt needs in the end,
// where that disturbs nobody. A failure is told to who needs it.
func (a *attempt) prefetch(ctx context.Context) (done <-chan struct{}) {
	a.mu.Lock()
	windows, lost := a.windows, a.noLedger
	a.mu.Unlock()
	c := make(chan struct{})
	if windows == 0 || lost != nil || !a.aside() {
		close(c)
		return c
	}
	go func() {
		defer close(c)
		_ = a.guarded(func() error { // it is asked again where it is needed
			_, err := a.diff(ctx, 1, windows)
			return err
		})
	}()
	return c
}

// packs reports whether a host folder can be packed for an upload.
func (a *attempt) packs(dir string) bool {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(a.slot.Eval.Dir, dir)
	}
	_, err := archive.PackDir(io.Discard, dir, archive.PackOptions{})
	return err == nil
}

// unhide makes the closing work remove what an upload of the host folder dir to
// below is about to add. What is there already stays.
func (a *attempt) unhide(ctx context.Context, dir, below string) error {
	full := dir
	if !filepath.IsAbs(full) {
		full = filepath.Join(a.slot.Eval.Dir, full)
	}
	entries, err := os.ReadDir(full)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(below, e.Name())
		there, err := a.sb.PathExists(ctx, p)
		if err != nil {
			return err
		}
		if there {
			if e.IsDir() {
				if err := a.unhide(ctx, filepath.Join(dir, e.Name()), p); err != nil {
					return err
				}
			}
			continue
		}
		if err := a.own(func() {
			a.push(undo{phase: "sandbox.cleanup", code: "hidden-not-removed", do: func(ctx context.Context) error { return a.sb.Remove(ctx, p) }})
		}); err != nil {
			return err
		}
	}
	return nil
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
	a.rec.Spans, a.rec.SpansLeft = a.spans, a.spansLeft
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
