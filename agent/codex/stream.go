package codex

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"assay/agent"
	"assay/agent/internal/coding"
)

// parser reads the lines of `codex exec --json`, as versions 0.144.1 to 0.171.0
// write them. A turn ends with turn.completed or turn.failed; a line `error`
// before that is a retry, and an item of type error is a warning.
type parser struct {
	script  *coding.Transcript
	thread  string
	usage   *usage // of the whole thread
	ended   bool
	failure string
	started map[string]bool
}

func newParser() *parser {
	return &parser{script: &coding.Transcript{}, started: map[string]bool{}}
}

// usage is cumulative over a thread; input includes what was cached, output
// what was reasoned.
type usage struct {
	Input      int64 `json:"input_tokens"`
	CacheRead  int64 `json:"cached_input_tokens"`
	CacheWrite int64 `json:"cache_write_input_tokens"`
	Output     int64 `json:"output_tokens"`
	Reasoning  int64 `json:"reasoning_output_tokens"`
}

type line struct {
	Type    string          `json:"type"`
	Thread  string          `json:"thread_id"`
	Usage   *usage          `json:"usage"`
	Message string          `json:"message"`
	Item    json.RawMessage `json:"item"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`
}

type item struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Status  string `json:"status"`
	Text    string `json:"text"`
	Message string `json:"message"`

	Command string `json:"command"`
	Output  string `json:"aggregated_output"`
	Exit    *int   `json:"exit_code"`

	Changes []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"changes"`

	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    json.RawMessage `json:"result"`
	Error     json.RawMessage `json:"error"`

	Query  string          `json:"query"`
	Prompt string          `json:"prompt"`
	Items  json.RawMessage `json:"items"`
	States json.RawMessage `json:"agents_states"`
}

// Ended reports the end of the turn.
func (p *parser) Ended() bool { return p.ended }

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
	switch l.Type {
	case "thread.started":
		p.thread = l.Thread
	case "turn.started":
	case "turn.completed":
		p.ended = true
		if l.Usage != nil {
			p.usage = l.Usage
		}
	case "turn.failed":
		p.ended, p.failure = true, "the turn failed"
		if l.Error != nil && l.Error.Message != "" {
			p.failure = l.Error.Message
		}
	case "error":
		p.script.Add(agent.Event{Type: agent.ErrorEvent, Text: l.Message})
	case "item.started", "item.updated", "item.completed":
		var it item
		if json.Unmarshal(l.Item, &it) != nil {
			p.script.Keep(l.Type, raw)
			return
		}
		p.item(it, l.Type == "item.completed", raw)
	default:
		p.script.Keep(l.Type, raw)
	}
}

// skillFile is how a skill is loaded: the model reads its file by a command.
var skillFile = regexp.MustCompile(`skills/(?:\.system/)?([A-Za-z0-9][A-Za-z0-9._-]*)/SKILL\.md`)

func (p *parser) item(it item, done bool, raw []byte) {
	switch it.Type {
	case "agent_message":
		if done {
			p.script.Say(it.Text)
		}
	case "reasoning":
		if done {
			p.script.Add(agent.Event{Type: agent.Thinking, Text: it.Text})
		}
	case "error":
		if done {
			p.script.Add(agent.Event{Type: "warning", Text: it.Message})
		}
	case "command_execution":
		command := coding.Unwrap(it.Command)
		p.operation(it, done, "", coding.ToolBash, map[string]any{"command": command}, it.Output)
		if m := skillFile.FindStringSubmatch(command); m != nil && done && it.Status == "completed" {
			p.script.Add(agent.Event{Type: agent.SkillLoaded, Name: m[1]})
		}
	case "file_change":
		for i, c := range it.Changes {
			name := map[string]string{"add": coding.ToolWrite, "delete": coding.ToolDelete}[c.Kind]
			if name == "" {
				name = coding.ToolEdit
			}
			one := it
			one.ID = fmt.Sprintf("%s.%d", it.ID, i)
			p.operation(one, done, "", name, map[string]any{"path": c.Path}, "")
		}
	case "mcp_tool_call":
		p.operation(it, done, "", coding.MCPTool(it.Server, it.Tool), it.Arguments, mcpOutput(it))
	case "web_search":
		p.operation(it, done, "", coding.ToolWebSearch, map[string]any{"query": it.Query}, "")
	case "todo_list":
		p.operation(it, done, "", coding.ToolTodo, map[string]any{"items": it.Items}, "")
	case "collab_tool_call":
		p.operation(it, done, "subagent", coding.Canonical(it.Tool), map[string]any{"prompt": it.Prompt}, it.States)
	default:
		p.script.Keep("item."+it.Type, raw)
	}
}

// operation adds the start of an item once, and its end when it is done.
func (p *parser) operation(it item, done bool, kind, name string, input, output any) {
	if !p.started[it.ID] {
		p.started[it.ID] = true
		p.script.Start(it.ID, kind, name, input)
	}
	if !done {
		return
	}
	status := "completed"
	switch it.Status {
	case "failed":
		status = "failed"
	case "declined":
		status = "rejected"
	}
	p.script.Finish(it.ID, status, output)
}

// mcpOutput is the text of a result that is nothing but text, else the result.
func mcpOutput(it item) any {
	var res struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
	}
	if json.Unmarshal(it.Result, &res) != nil || res.Content == nil {
		if len(it.Error) > 0 && string(it.Error) != "null" {
			return it.Error
		}
		return it.Result
	}
	parts := make([]string, 0, len(res.Content))
	for _, c := range res.Content {
		if c.Type != "text" {
			return it.Result
		}
		parts = append(parts, c.Text)
	}
	return strings.Join(parts, "\n")
}

// end says how the turn ended. before is what the thread had spent until then.
func (p *parser) end(before usage) coding.End {
	e := coding.End{Said: p.ended, Usage: p.spent(before)}
	if !p.ended {
		return e
	}
	if p.failure == "" {
		e.StopReason = "end_turn"
		return e
	}
	fail := func(stop, reason string) coding.End {
		e.Failed, e.StopReason, e.Reason = true, stop, reason+": "+p.failure
		return e
	}
	switch {
	case coding.Overflow(p.failure):
		return fail("context_overflow", "the conversation outgrew the model's context")
	case strings.Contains(p.failure, "max_output_tokens"):
		return fail("max_tokens", "the model's answer was longer than its limit")
	case strings.Contains(p.failure, "content_filter"):
		return fail("refusal", "the model refused")
	}
	e.Service = &coding.Failure{Message: p.failure}
	return e
}

// spent is the usage of this turn, in buckets that exclude each other.
func (p *parser) spent(before usage) *agent.Usage {
	if p.usage == nil {
		return nil
	}
	d := usage{
		p.usage.Input - before.Input, p.usage.CacheRead - before.CacheRead, p.usage.CacheWrite - before.CacheWrite,
		p.usage.Output - before.Output, p.usage.Reasoning - before.Reasoning,
	}
	if d.Input < 0 || d.Output < 0 {
		d = *p.usage // the thread was counted anew
	}
	u := &agent.Usage{
		InputTokens: coding.Count(max(0, d.Input-d.CacheRead-d.CacheWrite)), CacheReadTokens: &d.CacheRead,
		OutputTokens: &d.Output, ReasoningTokens: &d.Reasoning,
	}
	if d.CacheWrite != 0 {
		u.CacheCreationTokens = &d.CacheWrite
	}
	return u
}
