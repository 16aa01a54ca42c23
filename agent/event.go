package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// EventType names what happened in a turn. Types that are not listed here are
// kept as they are, never dropped and never fatal.
type EventType string

// The event types.
const (
	MessageEvent      EventType = "message"            // Role, Text
	OperationStarted  EventType = "operation.started"  // ID, Kind, Name, Input
	OperationFinished EventType = "operation.finished" // ID, Status, Output
	SkillLoaded       EventType = "skill.loaded"       // Name
	InputRequested    EventType = "input.requested"    // ID, Text
	Thinking          EventType = "thinking"           // Text
	ContextInjected   EventType = "context.injected"   // Text
	Compaction        EventType = "compaction"
	ErrorEvent        EventType = "error" // Text
	UsageEvent        EventType = "usage" // Usage
)

// Event is one thing that happened in a turn. Its JSON form, one object a line,
// is also what a `command` agent may write into its events file.
type Event struct {
	Type EventType `json:"type"`
	At   time.Time `json:"at,omitzero"`
	// Role is "assistant" or "user" for messages.
	Role string `json:"role,omitempty"`
	Text string `json:"text,omitempty"`
	// ID pairs the start and the end of an operation within a turn.
	ID string `json:"id,omitempty"`
	// Kind is "tool" (also when empty) or "subagent".
	Kind string `json:"kind,omitempty"`
	// Name is the canonical tool, subagent or skill name.
	Name   string          `json:"name,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	// Status of a finished operation: "completed", "failed" or "rejected".
	Status string `json:"status,omitempty"`
	Usage  *Usage `json:"usage,omitempty"`
	// Raw is the original of an event whose type is not known here.
	Raw json.RawMessage `json:"raw,omitempty"`
	// Turn is the send it belongs to, from 1; set by the engine.
	Turn int `json:"turn,omitempty"`
}

// Usage counts tokens in buckets that exclude each other: InputTokens are the
// uncached ones, ReasoningTokens are part of OutputTokens. A bucket that nobody
// reported is nil.
type Usage struct {
	InputTokens         *int64   `json:"inputTokens,omitempty"`
	CacheReadTokens     *int64   `json:"cacheReadTokens,omitempty"`
	CacheCreationTokens *int64   `json:"cacheCreationTokens,omitempty"`
	OutputTokens        *int64   `json:"outputTokens,omitempty"`
	ReasoningTokens     *int64   `json:"reasoningTokens,omitempty"`
	Requests            *int64   `json:"requests,omitempty"`
	CostUSD             *float64 `json:"costUSD,omitempty"`
}

// Add returns the sum; a bucket is present when either side has it.
func (u *Usage) Add(o *Usage) *Usage {
	if u == nil {
		return o
	}
	if o == nil {
		return u
	}
	return &Usage{
		add(u.InputTokens, o.InputTokens), add(u.CacheReadTokens, o.CacheReadTokens), add(u.CacheCreationTokens, o.CacheCreationTokens),
		add(u.OutputTokens, o.OutputTokens), add(u.ReasoningTokens, o.ReasoningTokens), add(u.Requests, o.Requests), add(u.CostUSD, o.CostUSD),
	}
}

// Check returns an error that names a bucket whose value is no possible amount:
// below zero, not a number or without end. Such a value came from something that
// the agent wrote; a sum or a budget that took it in would mean nothing.
func (u *Usage) Check() error {
	if u == nil {
		return nil
	}
	for _, b := range []struct {
		name  string
		value *int64
	}{
		{"inputTokens", u.InputTokens},
		{"cacheReadTokens", u.CacheReadTokens},
		{"cacheCreationTokens", u.CacheCreationTokens},
		{"outputTokens", u.OutputTokens},
		{"reasoningTokens", u.ReasoningTokens},
		{"requests", u.Requests},
	} {
		if b.value != nil && *b.value < 0 {
			return fmt.Errorf("%s is %d", b.name, *b.value)
		}
	}
	if c := u.CostUSD; c != nil && (math.IsNaN(*c) || math.IsInf(*c, 0) || *c < 0) {
		return fmt.Errorf("costUSD is %g", *c)
	}
	return nil
}

// Tokens is the sum of all buckets that were reported, and whether any was.
func (u *Usage) Tokens() (int64, bool) {
	if u == nil {
		return 0, false
	}
	var sum int64
	known := false
	for _, p := range []*int64{u.InputTokens, u.CacheReadTokens, u.CacheCreationTokens, u.OutputTokens} {
		if p != nil {
			sum, known = sum+*p, true
		}
	}
	return sum, known
}

func add[N int64 | float64](a, b *N) *N {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	s := *a + *b
	return &s
}

// MaxEventLine is the longest event line that is read; the rest of a longer one
// is skipped and counted as a bad line.
const MaxEventLine = 8 << 20

// ReadEvents reads event lines until EOF. Lines that are no JSON object with a
// type, or that tell an impossible usage, are counted in bad and do not end the
// reading; events of unknown type are kept with their original in Raw. The error
// is one of r.
func ReadEvents(r io.Reader) (events []Event, bad int, err error) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		line, tooLong, rerr := readLine(br, MaxEventLine)
		if tooLong {
			bad++
		} else if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 {
			if ev, ok := parseEvent(trimmed); ok {
				events = append(events, ev)
			} else {
				bad++
			}
		}
		if errors.Is(rerr, io.EOF) {
			return events, bad, nil
		}
		if rerr != nil {
			return events, bad, rerr
		}
	}
}

func parseEvent(line []byte) (Event, bool) {
	var ev Event
	if err := json.Unmarshal(line, &ev); err != nil {
		// A known envelope with a field of another shape is kept raw.
		var head struct {
			Type EventType `json:"type"`
		}
		if json.Unmarshal(line, &head) != nil || head.Type == "" || head.Type == UsageEvent {
			return Event{}, false // usage that cannot be read is not zero usage
		}
		return Event{Type: head.Type, Raw: bytes.Clone(line)}, true
	}
	if ev.Usage.Check() != nil {
		return Event{}, false
	}
	switch ev.Type {
	case "":
		return Event{}, false
	case MessageEvent, OperationStarted, OperationFinished, SkillLoaded, InputRequested, Thinking, ContextInjected, Compaction, ErrorEvent, UsageEvent:
	default:
		ev.Raw = bytes.Clone(line)
	}
	return ev, true
}

// readLine returns one line without its newline; a line over limit is read to
// its end and reported as too long.
func readLine(br *bufio.Reader, limit int) (line []byte, tooLong bool, err error) {
	for {
		part, err := br.ReadSlice('\n')
		if !tooLong {
			if len(line)+len(part) > limit {
				line, tooLong = nil, true
			} else {
				line = append(line, part...)
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimSuffix(line, []byte("\n")), tooLong, err
	}
}
