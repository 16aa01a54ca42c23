package bub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
)

// parser reads the entries of a tape, as Bub 0.4.0 keeps it: one JSON object a
// line with id, kind, payload, meta and date. Each call of the model ends with
// an event "run"; the turn is over with a run that asked for no tool.
type parser struct {
	script  *coding.Transcript
	usage   *agent.Usage
	pending []string // ids of the calls whose results come next
	calls   int      // calls since the last run
	total   int
	status  string // of the last run
	final   bool   // the last run asked for no tool
	failure *coding.Failure
}

func newParser() *parser { return &parser{script: &coding.Transcript{}} }

type entry struct {
	Kind    string          `json:"kind"`
	Payload json.RawMessage `json:"payload"`
	Date    string          `json:"date"`
}

type call struct {
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

func (p *parser) read(body []byte) {
	for line := range bytes.Lines(body) {
		p.Line(line)
	}
}

// Line reads one entry.
func (p *parser) Line(raw []byte) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return
	}
	var e entry
	if json.Unmarshal(raw, &e) != nil || e.Kind == "" {
		p.script.Bad()
		return
	}
	at, _ := time.Parse(time.RFC3339Nano, e.Date) // a date of another form is no time
	switch e.Kind {
	case "message":
		p.message(e, at, raw)
	case "tool_call":
		p.toolCall(e, at, raw)
	case "tool_result":
		p.toolResult(e, at, raw)
	case "error":
		var f struct {
			Kind    string `json:"kind"`
			Message string `json:"message"`
		}
		if json.Unmarshal(e.Payload, &f) != nil {
			p.script.Keep(e.Kind, raw)
			return
		}
		p.failure = &coding.Failure{Kind: f.Kind, Message: f.Message}
		p.script.Add(agent.Event{Type: agent.ErrorEvent, At: at, Text: strings.TrimSpace(f.Kind + ": " + f.Message)})
	case "anchor":
		var a struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(e.Payload, &a) == nil && a.Name != "session/start" {
			p.script.Add(agent.Event{Type: agent.Compaction, At: at, Text: a.Name})
		}
	case "system":
		// The prompt that every run begins with.
	case "event":
		p.event(e, raw)
	default:
		p.script.Keep(e.Kind, raw)
	}
}

func (p *parser) message(e entry, at time.Time, raw []byte) {
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(e.Payload, &m) != nil {
		p.script.Keep(e.Kind, raw)
		return
	}
	if m.Role == "assistant" {
		var text string
		if json.Unmarshal(m.Content, &text) != nil {
			p.script.Keep(e.Kind, raw)
			return
		}
		p.script.Add(agent.Event{Type: agent.MessageEvent, At: at, Role: "assistant", Text: text})
	}
}

func (p *parser) toolCall(e entry, at time.Time, raw []byte) {
	var t struct {
		Calls []call `json:"calls"`
	}
	if json.Unmarshal(e.Payload, &t) != nil {
		p.script.Keep(e.Kind, raw)
		return
	}
	p.pending = nil
	for _, c := range t.Calls {
		p.calls++
		p.total++
		if c.ID == "" {
			c.ID = fmt.Sprintf("call-%d", p.total)
		}
		input := c.Function.Arguments
		var text string
		if json.Unmarshal(input, &text) == nil && json.Valid([]byte(text)) {
			input = json.RawMessage(text)
		}
		name := coding.Canonical(c.Function.Name)
		p.pending = append(p.pending, c.ID)
		p.script.Add(agent.Event{Type: agent.OperationStarted, At: at, ID: c.ID, Name: name, Input: coding.Document(coding.CanonicalInput(name, input))})
	}
}

// toolResult pairs results with the calls before them, by position.
func (p *parser) toolResult(e entry, at time.Time, raw []byte) {
	var t struct {
		Results []json.RawMessage `json:"results"`
	}
	if json.Unmarshal(e.Payload, &t) != nil || len(t.Results) > len(p.pending) {
		p.script.Keep(e.Kind, raw)
		return
	}
	for i, r := range t.Results {
		status := "completed"
		var f struct {
			Kind    string `json:"kind"`
			Message string `json:"message"`
		}
		if json.Unmarshal(r, &f) == nil && f.Kind != "" && f.Message != "" {
			status = "failed" // an error document in place of a result
		}
		p.script.Add(agent.Event{Type: agent.OperationFinished, At: at, ID: p.pending[i], Status: status, Output: coding.Document(r)})
	}
	p.pending = p.pending[len(t.Results):]
}

func (p *parser) event(e entry, raw []byte) {
	var v struct {
		Name string `json:"name"`
		Data struct {
			Status string `json:"status"`
			Usage  *struct {
				Prompt     int64    `json:"prompt_tokens"`
				Completion int64    `json:"completion_tokens"`
				Cost       *float64 `json:"cost"`
				Details    struct {
					Cached int64 `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
				Output struct {
					Reasoning *int64 `json:"reasoning_tokens"`
				} `json:"completion_tokens_details"`
			} `json:"usage"`
		} `json:"data"`
	}
	if json.Unmarshal(e.Payload, &v) != nil {
		p.script.Keep(e.Kind, raw)
		return
	}
	if v.Name != "run" {
		if v.Name != "handoff" {
			p.script.Keep("event."+v.Name, raw)
		}
		return
	}
	p.status, p.final, p.calls = v.Data.Status, p.calls == 0, 0
	if u := v.Data.Usage; u != nil {
		p.usage = p.usage.Add(&agent.Usage{
			InputTokens: coding.Count(max(0, u.Prompt-u.Details.Cached)), CacheReadTokens: &u.Details.Cached,
			OutputTokens: &u.Completion, ReasoningTokens: u.Output.Reasoning, Requests: coding.Count(1), CostUSD: u.Cost,
		})
	}
}

// end says how the turn ended.
func (p *parser) end(ran coding.Ran) coding.End {
	e := coding.End{Usage: p.usage}
	switch {
	case p.status == "error":
		e.Said, e.Service = true, p.failure
		if e.Service == nil {
			e.Service = &coding.Failure{Message: "the run failed: " + ran.Stderr}
		}
		if coding.Overflow(e.Service.Kind + " " + e.Service.Message) {
			e.Failed, e.StopReason, e.Reason, e.Service = true, "context_overflow", "the conversation outgrew the model's context: "+e.Service.Message, nil
		}
	case p.status == "ok" && p.final && ran.Exit != nil && *ran.Exit == 0:
		e.Said, e.StopReason = true, "end_turn"
	}
	return e
}
