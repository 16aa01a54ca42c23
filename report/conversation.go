package report

import (
	"encoding/json"
	"strings"
	"time"
)

// Entry is one thing of an attempt's conversation, in the order in which it
// happened. A tool call and its result are one entry.
type Entry struct {
	// Turn counts the messages to the agent from 1.
	Turn int
	// Kind is "user", "assistant", "thinking", "tool" or "subagent"; every other
	// kind of event keeps its own name, such as "error" or "skill.loaded".
	Kind string
	// Name is the tool, the subagent or the skill.
	Name string
	// Text is a message, or what an event says.
	Text string
	// Input is a call's input and Output its result, as JSON or as text.
	Input, Output string
	// Status of a call is "completed", "failed" or "rejected"; "" is a call whose
	// end was not seen.
	Status string
	// Took is how long a call ran; nil where nobody told.
	Took *time.Duration
}

// The bounds of a conversation in memory; the record holds the rest.
const (
	maxEntries   = 5000
	maxEntryText = 32 << 10
)

type eventLine struct {
	truncation
	At     time.Time       `json:"at"`
	Role   string          `json:"role"`
	Text   string          `json:"text"`
	ID     string          `json:"id"`
	Kind   string          `json:"kind"`
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`
	Output json.RawMessage `json:"output"`
	Status string          `json:"status"`
	Turn   int             `json:"turn"`
}

// talk collects entries.
type talk struct {
	entries []Entry
	left    int // how many were too many
	open    map[callKey]started
}

// callKey names a call: ids may begin anew in each turn.
type callKey struct {
	turn int
	id   string
}

type started struct {
	entry int
	at    time.Time
}

func (t *talk) add(e *eventLine) {
	out := Entry{Turn: e.Turn, Kind: e.Type, Name: e.Name, Text: clipText(e.Text)}
	switch e.Type {
	case "message":
		out.Kind = e.Role
	case "usage":
		return // told by turn
	case "operation.started":
		out.Kind = e.Kind
		if out.Kind == "" {
			out.Kind = "tool"
		}
		out.Input = plainText(e.Input)
	case "operation.finished":
		key := callKey{e.Turn, e.ID}
		s, ok := t.open[key]
		if ok {
			delete(t.open, key)
			c := &t.entries[s.entry]
			c.Output, c.Status = plainText(e.Output), e.Status
			if took := e.At.Sub(s.at); !e.At.IsZero() && !s.at.IsZero() && took >= 0 {
				c.Took = &took
			}
			return
		}
		out.Kind, out.Output, out.Status = "result without its call", plainText(e.Output), e.Status
	}
	if len(t.entries) == maxEntries {
		t.left++
		return
	}
	if e.Type == "operation.started" {
		if t.open == nil {
			t.open = map[callKey]started{}
		}
		t.open[callKey{e.Turn, e.ID}] = started{len(t.entries), e.At}
	}
	t.entries = append(t.entries, out)
}

// plainText is a JSON string's content, else the JSON.
func plainText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return clipText(s)
	}
	return clipText(string(raw))
}

// clipText keeps the head and the tail of a text that is too long.
func clipText(s string) string {
	if len(s) <= maxEntryText {
		return s
	}
	return strings.ToValidUTF8(s[:maxEntryText/2], "") + "\n[…]\n" + strings.ToValidUTF8(s[len(s)-maxEntryText/2:], "")
}
