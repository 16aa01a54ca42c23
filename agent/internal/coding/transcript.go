package coding

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"assay/agent"
)

// The bounds of what a turn keeps. A stream of any length is read; what is over
// a bound is cut, and the coverage says so.
const (
	maxPayload = 256 << 10 // of one event's text, input, output or original
	maxTurn    = 32 << 20  // of all payloads of a turn
	stub       = 1 << 10   // what is left of a payload once maxTurn is reached
	maxEvents  = 200_000
)

// Transcript collects the events of one turn.
type Transcript struct {
	Events []agent.Event
	// Message is the last text of the assistant.
	Message string
	// Answered is true once the model produced anything: text, thinking or a
	// call. Until then the service provably did not accept the message.
	Answered bool
	// Now, when set, gives the time of events that tell none.
	Now func() time.Time

	open    map[string]int // operations that run, by id
	bytes   int
	bad     int
	cut     int
	dropped int
}

// Add appends an event and keeps the books about operations and messages.
func (t *Transcript) Add(e agent.Event) {
	if e.At.IsZero() && t.Now != nil {
		e.At = t.Now()
	}
	switch e.Type {
	case agent.MessageEvent:
		if e.Role == "assistant" {
			t.Message, t.Answered = e.Text, true
		}
	case agent.Thinking:
		t.Answered = true
	case agent.OperationStarted:
		t.Answered = true
		if t.open == nil {
			t.open = map[string]int{}
		}
		t.open[e.ID]++
	case agent.OperationFinished:
		delete(t.open, e.ID)
	}
	if len(t.Events) >= maxEvents {
		t.dropped++
		return
	}
	e.Text = t.text(e.Text)
	e.Input, e.Output, e.Raw = t.document(e.Input), t.document(e.Output), t.document(e.Raw)
	t.Events = append(t.Events, e)
}

// Say adds a message of the assistant.
func (t *Transcript) Say(text string) {
	t.Add(agent.Event{Type: agent.MessageEvent, Role: "assistant", Text: text})
}

// Start adds the start of an operation.
func (t *Transcript) Start(id, kind, name string, input any) {
	t.Add(agent.Event{Type: agent.OperationStarted, ID: id, Kind: kind, Name: name, Input: Document(input)})
}

// Finish adds the end of an operation.
func (t *Transcript) Finish(id, status string, output any) {
	t.Add(agent.Event{Type: agent.OperationFinished, ID: id, Status: status, Output: Document(output)})
}

// Keep adds an event whose meaning is not known here, with its original.
func (t *Transcript) Keep(typ string, line []byte) {
	t.Add(agent.Event{Type: agent.EventType(typ), Raw: bytes.Clone(line)})
}

// Bad counts a line that is no event.
func (t *Transcript) Bad() { t.bad++ }

// Running reports whether an operation has started and not ended.
func (t *Transcript) Running() bool { return len(t.open) > 0 }

// Coverage lowers what the agent reports in a normal turn by what this one
// lost, or returns nil.
func (t *Transcript) Coverage(normal agent.Coverage) *agent.Coverage {
	if t.bad == 0 && t.cut == 0 && t.dropped == 0 && !t.Running() {
		return nil
	}
	c := normal
	low := agent.Coverage{Events: agent.Partial, Actions: agent.Partial, Messages: normal.Messages, Usage: normal.Usage, Status: normal.Status, Data: normal.Data}
	if t.bad > 0 || t.dropped > 0 {
		low.Messages = agent.Partial
	}
	c = c.Worst(low)
	return &c
}

// Lost says what was lost, for a diagnostic, or "".
func (t *Transcript) Lost() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{t.bad, "lines are no events"}, {t.cut, "payloads were too long and were cut"}, {t.dropped, "events were too many and were dropped"}} {
		if p.n > 0 {
			parts = append(parts, plural(p.n, p.what))
		}
	}
	return strings.Join(parts, ", ")
}

func (t *Transcript) room(n int) int {
	limit := maxPayload
	if t.bytes > maxTurn {
		limit = stub
	}
	if n > limit {
		t.cut++
		n = limit
	}
	t.bytes += n
	return n
}

func (t *Transcript) text(s string) string {
	if n := t.room(len(s)); n < len(s) {
		return middle(s, n)
	}
	return s
}

// document cuts a document that is too long to a string with its head and tail.
func (t *Transcript) document(d json.RawMessage) json.RawMessage {
	n := t.room(len(d))
	if n == len(d) {
		return d
	}
	var s string
	if json.Unmarshal(d, &s) != nil {
		s = string(d)
	}
	return Document(middle(s, n))
}

// middle returns the head and the tail of s, about n bytes, with a count of what
// is not there.
func middle(s string, n int) string {
	head, tail := s[:n/2], s[len(s)-n/2:]
	for len(head) > 0 && !utf8.RuneStart(s[len(head)]) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return head + "\n[" + plural(len(s)-len(head)-len(tail), "bytes dropped") + "]\n" + tail
}

// Document encodes v; a value that has no JSON form is null.
func Document(v any) json.RawMessage {
	if raw, ok := v.(json.RawMessage); ok {
		if len(raw) == 0 {
			return nil
		}
		return bytes.Clone(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
