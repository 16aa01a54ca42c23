package agenttest

import (
	"reflect"
	"slices"
	"testing"

	"assay/agent"
)

func evidencePromises() []Promise {
	return []Promise{
		{"events-are-the-turn", eventsAreTheTurn},
		{"events-user-messages-are-the-engines", eventsNoUser},
		{"events-junk-is-counted-not-fatal", func(t testing.TB, h Harness) { eventsDamaged(t, h, Junk) }},
		{"events-half-line-is-counted-not-fatal", func(t testing.TB, h Harness) { eventsDamaged(t, h, HalfLine) }},
		{"events-huge-line-is-counted-not-fatal", func(t testing.TB, h Harness) { eventsDamaged(t, h, HugeLine) }},
		{"usage-buckets-exclude-each-other", usageBuckets},
		{"usage-absent-stays-absent", usageAbsent},
		{"coverage-only-falls", coverageFalls},
		{"coverage-actions-are-complete-and-paired", coverageActions},
		{"coverage-lost-call-is-not-complete", coverageLost},
	}
}

// eventsAreTheTurn: the last assistant message is among the events and is the
// turn's message.
func eventsAreTheTurn(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	turn := tr.turn(tr.first)
	if tr.coverage(turn).Messages != agent.Complete {
		t.Skip("the agent does not claim to report all messages")
	}
	var last *agent.Event
	for i, e := range turn.Events {
		if e.Type == agent.MessageEvent && e.Role == "assistant" {
			last = &turn.Events[i]
		}
	}
	if last == nil || last.Text != turn.Message {
		t.Errorf("the last assistant message of the events is %+v, the turn's message is %s", last, brief(turn.Message))
	}
}

// eventsNoUser: user messages are recorded by the engine, not by the agent.
func eventsNoUser(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	for _, e := range tr.turn(tr.first).Events {
		if e.Type == agent.MessageEvent && e.Role == "user" {
			t.Errorf("the agent reports the user's message %s", brief(e.Text))
		}
	}
}

// eventsDamaged: a damaged event stream is no failed send. What is sound in it
// is reported, events of unknown type too, and coverage says that something may
// be missing.
func eventsDamaged(t testing.TB, h Harness, b Behaviour) {
	tr := open(t, h, b)
	turn := tr.turn(tr.first)
	if got := calls(turn.Events); !slices.Equal(got, tr.Tools) {
		t.Errorf("the calls %q are reported, want %q", got, tr.Tools)
	}
	c := tr.coverage(turn)
	if c.Events == agent.Complete || c.Actions == agent.Complete || c.Usage == agent.Complete {
		t.Errorf("the stream was damaged and the coverage is still %+v", c)
	}
	if tr.Unknown == "" {
		return
	}
	i := slices.IndexFunc(turn.Events, func(e agent.Event) bool { return e.Type == tr.Unknown })
	if i < 0 || len(turn.Events[i].Raw) == 0 {
		t.Errorf("the event of the unknown type %q is not kept with its original", tr.Unknown)
	}
}

// usageBuckets: buckets are what was reported, each in its own, and a bucket
// that nobody reported is nil.
func usageBuckets(t testing.TB, h Harness) {
	tr := open(t, h, ReportsUsage)
	turn := tr.turn(tr.first)
	if turn.Usage == nil || !reflect.DeepEqual(turn.Usage, tr.Usage) {
		t.Errorf("usage %s, want %s", show(turn.Usage), show(tr.Usage))
	}
}

// usageAbsent: an agent that reported nothing has no usage, not zero, and does
// not claim to know it.
func usageAbsent(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	turn := tr.turn(tr.first)
	if tr.Usage != nil {
		t.Skip("the agent always reports usage")
	}
	if turn.Usage != nil {
		t.Errorf("nothing was reported and the usage is %s", show(turn.Usage))
	}
	if tr.coverage(turn).Usage == agent.Complete {
		t.Errorf("nothing was reported and the coverage of usage is complete")
	}
}

// coverageFalls: a turn may lower the agent's normal coverage and never raises
// it.
func coverageFalls(t testing.TB, h Harness) {
	for _, b := range []Behaviour{Works, Fails, Junk, HalfLine, LosesCall, ReportsUsage} {
		if h.Cases[b] == nil {
			continue
		}
		tr := open(t, h, b)
		turn := tr.turn(tr.first)
		normal := tr.Agent.Info().Coverage.Worst(agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete, Data: agent.Complete})
		if turn.Coverage != nil && rank(normal.Worst(*turn.Coverage)) != rank(*turn.Coverage) {
			t.Errorf("%s: the turn's coverage %+v is above the agent's %+v", b, *turn.Coverage, normal)
		}
	}
}

// rank is a coverage with its two spellings of none made one.
func rank(c agent.Coverage) agent.Coverage {
	for _, l := range []*agent.Level{&c.Events, &c.Actions, &c.Messages, &c.Usage, &c.Status, &c.Data} {
		if *l == "" {
			*l = agent.None
		}
	}
	return c
}

// coverageActions: an agent that claims to report all actions reports each tool
// call, in order, and its one end, under one id.
func coverageActions(t testing.TB, h Harness) {
	tr := open(t, h, Works)
	turn := tr.turn(tr.first)
	if tr.coverage(turn).Actions != agent.Complete {
		t.Skip("the agent does not claim to report all actions")
	}
	if got := calls(turn.Events); !slices.Equal(got, tr.Tools) {
		t.Errorf("the calls %q are reported, the agent made %q", got, tr.Tools)
	}
	running, ended := map[string]bool{}, map[string]bool{}
	for _, e := range turn.Events {
		switch e.Type {
		case agent.OperationStarted:
			if e.ID == "" || running[e.ID] || ended[e.ID] {
				t.Errorf("the id %q of a started call is empty or used before", e.ID)
			}
			running[e.ID] = true
		case agent.OperationFinished:
			if !running[e.ID] {
				t.Errorf("the end of a call %q that does not run", e.ID)
			}
			switch e.Status {
			case "completed", "failed", "rejected":
			default:
				t.Errorf("a call ended with the status %q", e.Status)
			}
			delete(running, e.ID)
			ended[e.ID] = true
		}
	}
	if len(running) > 0 {
		t.Errorf("%d calls have no end and the coverage is complete", len(running))
	}
}

// coverageLost: when the end of a call was not reported, the coverage of actions
// is not complete.
func coverageLost(t testing.TB, h Harness) {
	tr := open(t, h, LosesCall)
	turn := tr.turn(tr.first)
	if len(calls(turn.Events)) == 0 {
		t.Error("the call that has no end is not reported at all")
	}
	if tr.coverage(turn).Actions == agent.Complete {
		t.Error("a call has no end and the coverage of actions is complete")
	}
}
