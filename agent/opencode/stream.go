package opencode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
)

// parser reads the lines of `opencode run --format json`, as version 1.18.33
// writes them. There is no line for the end of a turn: it is over when the
// process ends and the last step stopped for another reason than tool calls.
type parser struct {
	script    *coding.Transcript
	servers   []string
	session   string
	reason    string // of the last step
	failure   *failure
	usage     *agent.Usage
	cost      float64
	steps     int64
	subagents bool
}

func newParser(servers []string) *parser {
	return &parser{script: &coding.Transcript{}, servers: servers}
}

type failure struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
		Status  int    `json:"statusCode"`
		Body    string `json:"responseBody"`
	} `json:"data"`
}

type line struct {
	Type    string          `json:"type"`
	Session string          `json:"sessionID"`
	Part    json.RawMessage `json:"part"`
	Error   *failure        `json:"error"`
}

type part struct {
	Text   string  `json:"text"`
	Reason string  `json:"reason"`
	Cost   float64 `json:"cost"`
	Tokens *struct {
		Input     int64 `json:"input"`
		Output    int64 `json:"output"`
		Reasoning int64 `json:"reasoning"`
		Cache     struct {
			Read  int64 `json:"read"`
			Write int64 `json:"write"`
		} `json:"cache"`
	} `json:"tokens"`
	Tool   string `json:"tool"`
	CallID string `json:"callID"`
	State  struct {
		Status   string          `json:"status"`
		Input    json.RawMessage `json:"input"`
		Output   json.RawMessage `json:"output"`
		Error    string          `json:"error"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
		Time struct {
			Start int64 `json:"start"`
			End   int64 `json:"end"`
		} `json:"time"`
	} `json:"state"`
}

// Ended reports that the last step was the last of the turn.
func (p *parser) Ended() bool { return p.reason != "" && p.reason != "tool-calls" }

// Abort is always nil: nothing in the stream is worth ending a turn for.
func (p *parser) Abort() error { return nil }

// Script returns the events.
func (p *parser) Script() *coding.Transcript { return p.script }

// Line reads one line.
func (p *parser) Line(raw []byte) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return
	}
	var l line
	if err := json.Unmarshal(raw, &l); err != nil || l.Type == "" {
		p.script.Bad()
		return
	}
	if l.Session != "" {
		p.session = l.Session
	}
	var pt part
	if len(l.Part) > 0 && json.Unmarshal(l.Part, &pt) != nil {
		p.script.Keep(l.Type, raw)
		return
	}
	switch l.Type {
	case "step_start":
		p.reason = ""
	case "text":
		p.script.Say(pt.Text)
	case "reasoning":
		p.script.Add(agent.Event{Type: agent.Thinking, Text: pt.Text})
	case "tool_use":
		p.tool(pt)
	case "step_finish":
		p.step(pt)
	case "error":
		if l.Error != nil {
			p.failure = l.Error
			p.script.Add(agent.Event{Type: agent.ErrorEvent, Text: l.Error.Name + ": " + l.Error.Data.Message})
		}
	default:
		p.script.Keep(l.Type, raw)
	}
}

func (p *parser) step(pt part) {
	p.reason, p.cost = pt.Reason, p.cost+pt.Cost
	p.steps++
	if t := pt.Tokens; t != nil {
		// Output is without what was reasoned.
		p.usage = p.usage.Add(&agent.Usage{
			InputTokens: coding.Count(t.Input), CacheReadTokens: coding.Count(t.Cache.Read), CacheCreationTokens: coding.Count(t.Cache.Write),
			OutputTokens: coding.Count(t.Output + t.Reasoning), ReasoningTokens: coding.Count(t.Reasoning), Requests: coding.Count(1),
		})
	}
}

// tool adds a call, which is told of when it has ended.
func (p *parser) tool(pt part) {
	name, kind, input := mcpName(pt.Tool, p.servers), "", pt.State.Input
	var in struct {
		Tool     string `json:"tool"`
		Name     string `json:"name"`
		Subagent string `json:"subagent_type"`
	}
	_ = json.Unmarshal(input, &in) // a field that is not there stays empty
	status := "completed"
	switch {
	case pt.State.Status == "error" && strings.Contains(pt.State.Error, "rejected permission"):
		status = "rejected"
	case pt.State.Status == "error", pt.State.Metadata.Exit != nil && *pt.State.Metadata.Exit != 0:
		status = "failed"
	}
	switch {
	case pt.Tool == "invalid":
		name, status = coding.Canonical(in.Tool), "failed"
	case name == coding.ToolSubagent:
		kind, p.subagents = "subagent", true
		if in.Subagent != "" {
			name = in.Subagent
		}
	}
	at := func(ms int64) time.Time {
		if ms <= 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms).UTC()
	}
	p.script.Add(agent.Event{Type: agent.OperationStarted, At: at(pt.State.Time.Start), ID: pt.CallID, Kind: kind, Name: name, Input: coding.CanonicalInput(name, input)})
	out := pt.State.Output
	if len(out) == 0 || pt.State.Status == "error" {
		out = coding.Document(pt.State.Error)
	}
	p.script.Add(agent.Event{Type: agent.OperationFinished, At: at(pt.State.Time.End), ID: pt.CallID, Status: status, Output: out})
	if name == coding.ToolSkill && status == "completed" {
		p.script.Add(agent.Event{Type: agent.SkillLoaded, Name: in.Name})
	}
}

// end says how the turn ended. priced is false where the CLI knows no price and
// reports zero.
func (p *parser) end(ran coding.Ran, priced bool) coding.End {
	e := coding.End{Usage: p.usage, StopReason: p.reason}
	if priced && p.usage != nil {
		e.Usage.CostUSD = &p.cost
	}
	fail := func(stop, reason string) coding.End {
		e.Said, e.Failed, e.StopReason, e.Reason = true, true, stop, reason
		return e
	}
	switch {
	case p.reason == "length":
		return fail("max_tokens", "the model's answer was longer than its limit")
	case p.reason == "content-filter":
		return fail("refusal", "the model refused")
	case p.failure != nil:
		f := p.failure
		words := f.Data.Message
		if words == "" {
			words = f.Name
		}
		if f.Name == "ContextOverflowError" || coding.Overflow(words) {
			return fail("context_overflow", "the conversation outgrew the model's context: "+words)
		}
		e.Said, e.Service = true, &coding.Failure{Status: f.Data.Status, Kind: f.Name + " " + f.Data.Body, Message: words}
		return e
	case ran.Exit != nil && *ran.Exit != 0:
		e.Service = &coding.Failure{Message: fmt.Sprintf("exit %d: %s", *ran.Exit, ran.Stderr)}
		e.Said = p.Ended()
		return e
	}
	e.Said = p.Ended()
	return e
}
