package claudecode

import (
	"encoding/json"
	"strings"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
)

// parser reads the lines of `claude -p --output-format stream-json --verbose`,
// as versions 2.1.197 to 2.1.332 write them. One message of the model is one
// line per block; a turn ends with a line `result`, of which the last counts.
type parser struct {
	script    *coding.Transcript
	sessionID string

	servers  []string // MCP servers that must connect
	abort    error
	results  []result
	answered bool   // the model said something since it was last asked
	failure  string // the CLI's word for the last failure of a call
	rejected map[string]bool
	skills   map[string]string // call → skill
}

func newParser(servers []string) *parser {
	return &parser{script: &coding.Transcript{}, servers: servers, rejected: map[string]bool{}, skills: map[string]string{}}
}

// tokens are the counts of one model, in the CLI's own buckets, which exclude
// each other.
type tokens struct {
	Input         int64   `json:"inputTokens"`
	Output        int64   `json:"outputTokens"`
	CacheRead     int64   `json:"cacheReadInputTokens"`
	CacheCreation int64   `json:"cacheCreationInputTokens"`
	CostUSD       float64 `json:"costUSD"`
}

type result struct {
	Subtype        string            `json:"subtype"`
	IsError        bool              `json:"is_error"`
	Status         *int              `json:"api_error_status"`
	Result         *string           `json:"result"`
	Errors         []string          `json:"errors"`
	StopReason     string            `json:"stop_reason"`
	TerminalReason string            `json:"terminal_reason"`
	Models         map[string]tokens `json:"modelUsage"`
	Since          map[string]tokens `json:"model_usage_since_last_result"`
	Turns          *int64            `json:"num_turns"`
}

type line struct {
	Type      string          `json:"type"`
	Subtype   string          `json:"subtype"`
	Session   string          `json:"session_id"`
	Parent    string          `json:"parent_tool_use_id"`
	Synthetic bool            `json:"isSynthetic"`
	Error     json.RawMessage `json:"error"`
	ToolUse   string          `json:"tool_use_id"`
	Servers   []struct {
		Name   string `json:"name"`
		Status string `json:"status"`
	} `json:"mcp_servers"`
	Message *struct {
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`
}

type block struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	ToolUse  string          `json:"tool_use_id"`
	IsError  bool            `json:"is_error"`
	Content  json.RawMessage `json:"content"`
}

// Ended reports a result line. More may follow it.
func (p *parser) Ended() bool { return len(p.results) > 0 }

// Abort returns why nothing more is worth waiting for.
func (p *parser) Abort() error { return p.abort }

// Script returns the events.
func (p *parser) Script() *coding.Transcript { return p.script }

// Line reads one line.
func (p *parser) Line(raw []byte) {
	if len(strings.TrimSpace(string(raw[:min(len(raw), 64)]))) == 0 && len(raw) <= 64 {
		return
	}
	var l line
	if err := json.Unmarshal(raw, &l); err != nil || l.Type == "" {
		p.script.Bad()
		return
	}
	if l.Session != "" {
		p.sessionID = l.Session
	}
	switch l.Type {
	case "assistant":
		p.assistant(l, raw)
	case "user":
		p.user(l, raw)
	case "result":
		var r result
		if json.Unmarshal(raw, &r) != nil {
			p.script.Bad()
			return
		}
		p.results = append(p.results, r)
	case "system":
		p.system(l, raw)
	default:
		p.script.Keep(l.Type, raw)
	}
}

func (p *parser) system(l line, raw []byte) {
	switch l.Subtype {
	case "init":
		status := map[string]string{}
		for _, m := range l.Servers {
			status[m.Name] = m.Status
		}
		for _, name := range p.servers {
			if at := status[name]; at != "connected" && p.abort == nil {
				if at == "" {
					at = "not known to the CLI"
				}
				p.abort = &fault.Error{Class: fault.Config, Code: "agent-mcp-failed", What: "the MCP server " + name + " is " + at, Fix: "See whether its command runs in the sandbox, or its address can be reached from there."}
			}
		}
	case "compact_boundary":
		p.script.Add(agent.Event{Type: agent.Compaction})
	case "api_retry":
		p.answered = false
		p.failure = text(l.Error)
		p.script.Keep("system.api_retry", raw)
	case "permission_denied":
		p.rejected[l.ToolUse] = true
		p.script.Keep("system.permission_denied", raw)
	default:
		p.script.Keep("system."+l.Subtype, raw)
	}
}

func (p *parser) assistant(l line, raw []byte) {
	if l.Message == nil {
		p.script.Bad()
		return
	}
	blocks, ok := content(l.Message.Content)
	if !ok {
		p.script.Keep("assistant", raw)
		return
	}
	if l.Message.Model == "<synthetic>" {
		// The CLI's own words about a call that failed.
		p.failure = text(l.Error)
		for _, b := range blocks {
			p.script.Add(agent.Event{Type: agent.ErrorEvent, Text: b.Text})
		}
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if l.Parent != "" {
				p.script.Add(agent.Event{Type: "subagent.message", ID: l.Parent, Text: b.Text})
				continue
			}
			p.answered = p.answered || b.Text != ""
			p.script.Say(b.Text)
		case "thinking":
			p.script.Add(agent.Event{Type: agent.Thinking, Text: b.Thinking})
		case "tool_use":
			p.answered = p.answered || l.Parent == ""
			p.call(b)
		default:
			p.script.Keep("assistant."+b.Type, raw)
		}
	}
}

func (p *parser) call(b block) {
	name := coding.Canonical(b.Name)
	switch name {
	case coding.ToolSubagent:
		var in struct {
			Type string `json:"subagent_type"`
		}
		_ = json.Unmarshal(b.Input, &in) // a call without a type has the general name
		if in.Type != "" {
			name = in.Type
		}
		p.script.Start(b.ID, "subagent", name, b.Input)
		return
	case coding.ToolSkill:
		var in map[string]json.RawMessage
		input := coding.CanonicalInput(name, b.Input)
		if json.Unmarshal(input, &in) == nil {
			p.skills[b.ID] = text(in["name"])
		}
	}
	p.script.Start(b.ID, "", name, coding.CanonicalInput(name, b.Input))
}

func (p *parser) user(l line, raw []byte) {
	if l.Message == nil {
		p.script.Bad()
		return
	}
	p.answered = false // what comes next answers this
	blocks, ok := content(l.Message.Content)
	if !ok {
		p.script.Keep("user", raw)
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "tool_result":
			status := "completed"
			switch {
			case p.rejected[b.ToolUse]:
				status = "rejected"
			case b.IsError:
				status = "failed"
			}
			p.script.Finish(b.ToolUse, status, flat(b.Content))
			if name := p.skills[b.ToolUse]; name != "" && status == "completed" {
				p.script.Add(agent.Event{Type: agent.SkillLoaded, Name: name})
			}
		case "text":
			p.script.Add(agent.Event{Type: agent.ContextInjected, Text: b.Text})
		default:
			p.script.Keep("user."+b.Type, raw)
		}
	}
}

// content reads a message's content, a text or a list of blocks.
func content(raw json.RawMessage) ([]block, bool) {
	if s := text(raw); s != "" {
		return []block{{Type: "text", Text: s}}, true
	}
	var blocks []block
	return blocks, json.Unmarshal(raw, &blocks) == nil
}

func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// flat is a tool's output as text where it is nothing but text.
func flat(raw json.RawMessage) any {
	if s := text(raw); s != "" || len(raw) == 0 {
		return s
	}
	var blocks []block
	if json.Unmarshal(raw, &blocks) != nil {
		return raw
	}
	parts := make([]string, 0, len(blocks))
	for _, b := range blocks {
		if b.Type != "text" {
			return raw
		}
		parts = append(parts, b.Text)
	}
	return strings.Join(parts, "\n")
}

// end says how the turn ended.
func (p *parser) end() coding.End {
	if len(p.results) == 0 {
		return coding.End{}
	}
	r := p.results[len(p.results)-1]
	e := coding.End{Said: true, Usage: p.usage(), StopReason: r.StopReason}
	words := strings.Join(r.Errors, "; ")
	if r.Result != nil && *r.Result != "" {
		words = *r.Result
	}
	if !r.IsError {
		if !p.answered && words == "" {
			e.Service = &coding.Failure{Kind: "stream closed", Message: "the model's answer broke off and nothing came instead"}
			return e
		}
		if r.Result != nil && *r.Result != "" {
			p.script.Message = *r.Result
		}
		return e
	}
	fail := func(stop, reason string) coding.End {
		e.Failed, e.Reason = true, reason
		if stop != "" {
			e.StopReason = stop
		}
		return e
	}
	switch {
	case r.Subtype == "error_max_turns" || r.TerminalReason == "max_turns":
		return fail("max_turns", "the limit of model calls was reached")
	case r.Subtype == "error_max_budget_usd" || r.TerminalReason == "budget_exhausted":
		return fail("max_budget", "the limit of the budget was reached")
	case r.StopReason == "refusal":
		return fail("refusal", "the model refused: "+words)
	case r.TerminalReason == "prompt_too_long" || coding.Overflow(words):
		return fail("context_overflow", "the conversation outgrew the model's context: "+words)
	case r.StopReason == "max_tokens" || p.failure == "max_output_tokens":
		return fail("max_tokens", "the model's answer was longer than its limit: "+words)
	}
	e.Service = &coding.Failure{Kind: p.failure, Message: words}
	if r.Status != nil {
		e.Service.Status = *r.Status
	}
	return e
}

// counts are what the CLI counted for this process: since the last result where
// it says so (there modelUsage goes on over --resume), else modelUsage.
func (p *parser) counts() map[string]tokens {
	sum := map[string]tokens{}
	since := false
	for _, r := range p.results {
		for m, t := range r.Since {
			since = true
			s := sum[m]
			sum[m] = tokens{s.Input + t.Input, s.Output + t.Output, s.CacheRead + t.CacheRead, s.CacheCreation + t.CacheCreation, s.CostUSD + t.CostUSD}
		}
	}
	if since || len(p.results) == 0 {
		return sum
	}
	return p.results[len(p.results)-1].Models
}

func (p *parser) usage() *agent.Usage {
	models := p.counts()
	if len(models) == 0 {
		return nil
	}
	var t tokens
	for _, m := range models {
		t = tokens{t.Input + m.Input, t.Output + m.Output, t.CacheRead + m.CacheRead, t.CacheCreation + m.CacheCreation, t.CostUSD + m.CostUSD}
	}
	u := &agent.Usage{InputTokens: &t.Input, OutputTokens: &t.Output, CacheReadTokens: &t.CacheRead, CacheCreationTokens: &t.CacheCreation}
	if t.CostUSD > 0 {
		u.CostUSD = &t.CostUSD
	}
	return u
}
