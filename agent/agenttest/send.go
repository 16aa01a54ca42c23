package agenttest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

func sendPromises() []Promise {
	return []Promise{
		{"send-returns-the-turn", sendTurn},
		{"send-failed-task-is-a-turn", sendFailedTask},
		{"send-error-is-no-turn", sendError},
		{"send-lost-answer-is-not-rejected", sendLost},
		{"send-ctx-end-ends-everything", sendCtxEnd},
		{"send-ended-ctx-starts-nothing", sendEndedCtx},
		{"send-again-in-a-session", sendAgain},
		{"send-in-a-new-session", sendNewSession},
		{"send-attempts-share-nothing", sendParallel},
		{"send-leaves-the-workdir", sendWorkdir},
	}
}

// sendTurn: Send returns when the turn is over, with its status and message.
func sendTurn(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	turn := tr.turn(tr.first)
	if turn.Status != agent.Completed {
		t.Errorf("status %q, want completed; reason %q", turn.Status, turn.Reason)
	}
	if turn.Message != tr.Reply {
		t.Errorf("message %s, want %s", brief(turn.Message), brief(tr.Reply))
	}
	if turn.Reason != "" {
		t.Errorf("a completed turn gives a reason for a failure: %q", turn.Reason)
	}
}

// sendFailedTask: an agent that failed at its task is a Turn with status Failed
// and a reason, not an error.
func sendFailedTask(t testing.TB, h Harness) {
	tr := open(t, h, Fails)
	turn := tr.turn(tr.first)
	if turn.Status != agent.Failed || turn.Reason == "" {
		t.Errorf("status %q and reason %q, want failed and a reason", turn.Status, turn.Reason)
	}
}

func checkSendError(t testing.TB, turn agent.Turn, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, but a turn with status %q", turn.Status)
	}
	if !reflect.DeepEqual(turn, agent.Turn{}) {
		t.Errorf("a turn beside the error %v: %+v; what is known belongs into the SendError", err, turn)
	}
	var se *agent.SendError
	if !errors.As(err, &se) {
		return
	}
	switch se.Acceptance {
	case agent.Rejected, agent.Started, agent.AcceptanceUnknown:
	default:
		t.Errorf("there is no acceptance %q", se.Acceptance)
	}
	if se.Err == nil {
		t.Error("a SendError without a cause")
	}
}

// sendError: where nothing can be run there is no turn to trust, and Send says
// so with an error and nothing else.
func sendError(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	if tr.watch == nil {
		t.Skip("a direct agent has no sandbox that could fail")
	}
	tr.watch.set(refuse)
	before := tr.watch.operations()
	turn, err := tr.send(tr.ctx, tr.first, tr.Text)
	if err == nil && tr.watch.operations() == before {
		t.Skip("the agent asks nothing of its sandbox")
	}
	checkSendError(t, turn, err)
}

// sendLost: a send whose answer was lost may have had an effect: it is never
// called rejected, for only rejected sends are repeated.
func sendLost(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	if tr.watch == nil {
		t.Skip("a direct agent has no sandbox that could fail")
	}
	tr.watch.set(lose)
	before := tr.watch.operations()
	turn, err := tr.send(tr.ctx, tr.first, tr.Text)
	if err == nil && tr.watch.operations() == before {
		t.Skip("the agent asks nothing of its sandbox")
	}
	checkSendError(t, turn, err)
	var se *agent.SendError
	if errors.As(err, &se) && se.Acceptance == agent.Rejected {
		t.Errorf("a send that may have had an effect is called rejected: %v", err)
	}
}

// sendCtxEnd: the end of ctx ends the turn and all processes that it started,
// and the error keeps why it ended.
func sendCtxEnd(t testing.TB, h Harness) {
	tr := open(t, h, Hangs)
	ctx, cancel := context.WithCancelCause(tr.ctx)
	defer cancel(nil)
	type result struct {
		turn agent.Turn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		turn, err := tr.send(ctx, tr.first, tr.Text)
		done <- result{turn, err}
	}()
	tr.await("started")
	why := &fault.Timeout{Limit: "attempt-deadline", Value: time.Minute, Layer: "flag"}
	cancel(why)
	var r result
	select {
	case r = <-done:
	case <-tr.ctx.Done():
		t.Fatal("Send did not return after its context had ended")
	}
	checkSendError(t, r.turn, r.err)
	var limit *fault.Timeout
	if !errors.As(r.err, &limit) || limit != why {
		t.Errorf("the error does not tell why the context ended: %v", r.err)
	}
	var se *agent.SendError
	if errors.As(r.err, &se) && se.Acceptance == agent.Rejected {
		t.Errorf("a turn that ran is called rejected: %v", r.err)
	}
	if tr.box.Unusable() != nil {
		return // what could not be proven dead is never used again
	}
	p, ok := sandbox.As[sandbox.ProcessEnder](tr.box)
	if !ok {
		t.Skip("the sandbox cannot list its processes")
	}
	left, err := p.Processes(tr.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("the turn ended and %d of its processes go on: %+v", len(left), left)
	}
}

// sendEndedCtx: with a context that has ended nothing is run.
func sendEndedCtx(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	ctx, cancel := context.WithCancel(tr.ctx)
	cancel()
	var before map[string]string
	if tr.watch != nil {
		before = tr.workdir()
	}
	turn, err := tr.send(ctx, tr.first, tr.Text)
	if err != nil {
		checkSendError(t, turn, err)
	} else if len(tr.Tools)+len(tr.Changes) > 0 {
		t.Errorf("a turn, status %q, came of a context that had ended", turn.Status)
	}
	if tr.watch != nil && !reflect.DeepEqual(before, tr.workdir()) {
		t.Error("the agent worked although the context had ended")
	}
}

// sendAgain: a second message in a session is a second turn, with its own events
// and nothing of the first.
func sendAgain(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	several(t, tr.Case, 2)
	for i := 1; i <= 2; i++ {
		tr.same(tr.turn(tr.first), i)
	}
}

// same checks that a turn is exactly what the case says.
func (tr *trial) same(turn agent.Turn, n int) {
	tr.t.Helper()
	if turn.Status != agent.Completed || turn.Message != tr.Reply {
		tr.t.Errorf("turn %d: status %q and message %s, want completed and %s", n, turn.Status, brief(turn.Message), brief(tr.Reply))
	}
	if got := calls(turn.Events); !slices.Equal(got, tr.Tools) {
		tr.t.Errorf("turn %d reports the calls %q, want %q", n, got, tr.Tools)
	}
	if !reflect.DeepEqual(turn.Usage, tr.Usage) {
		tr.t.Errorf("turn %d reports the usage %+v, want %+v", n, turn.Usage, tr.Usage)
	}
}

// sendNewSession: another session of the attempt, in the same sandbox, starts
// afresh; going back to the first goes on there.
func sendNewSession(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	several(t, tr.Case, 3)
	second := tr.session(2)
	for i, s := range []*agent.Session{tr.first, second, tr.first} {
		tr.same(tr.turn(s), i+1)
	}
}

// sendParallel: one agent value serves many attempts at once, and none sees
// anything of another.
func sendParallel(t testing.TB, h Harness) {
	c := caseOf(t, h, Digests)
	trials := make([]*trial, 3)
	for i := range trials {
		trials[i] = bare(t, h, c)
		trials[i].ready()
	}
	type answer struct {
		turn agent.Turn
		err  error
		text string
	}
	got := make([][2]answer, len(trials))
	done := make(chan struct{})
	for i, tr := range trials {
		go func() {
			defer func() { done <- struct{}{} }()
			for n := range got[i] {
				text := token()
				turn, err := tr.send(tr.ctx, tr.first, text)
				got[i][n] = answer{turn, err, text}
			}
		}()
	}
	for range trials {
		<-done
	}
	for i := range got {
		for n, a := range got[i] {
			if a.err != nil || a.turn.Message != digest(a.text) {
				t.Errorf("attempt %d, turn %d: error %v and reply %s, want the digest %s of its own message", i+1, n+1, a.err, brief(a.turn.Message), digest(a.text))
			}
		}
	}
}

// sendWorkdir: what changes in the workdir is the agent's own work and its
// declared artifacts; the adapter keeps its files in Scratch.
func sendWorkdir(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	if tr.watch == nil {
		t.Skip("a direct agent has no workdir")
	}
	before := tr.workdir()
	tr.turn(tr.first)
	after := tr.workdir()
	allowed := append(slices.Clone(tr.Changes), tr.Agent.Info().Artifacts...)
	for name, sum := range after {
		if before[name] != sum && !slices.Contains(allowed, name) {
			t.Errorf("%s was changed and is not the agent's work", name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok && !slices.Contains(allowed, name) {
			t.Errorf("%s was deleted and is not the agent's work", name)
		}
	}
	for _, name := range tr.Changes {
		if before[name] == after[name] {
			t.Errorf("the agent was to change %s and did not", name)
		}
	}
}
