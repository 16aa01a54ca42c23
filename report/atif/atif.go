// Package atif writes the trajectory of one attempt in the Agent Trajectory
// Interchange Format, version 1.7 (the RFC 0001-trajectory-format of the Harbor
// project).
package atif

import (
	"encoding/json"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"assay/agent"
	"assay/record"
)

// Version is the version of the format that is written.
const Version = "ATIF-v1.7"

type trajectory struct {
	Version string         `json:"schema_version"`
	Session string         `json:"session_id"`
	Agent   agentInfo      `json:"agent"`
	Steps   []*step        `json:"steps"`
	Final   *finalMetrics  `json:"final_metrics,omitempty"`
	Notes   string         `json:"notes,omitempty"`
	Extra   map[string]any `json:"extra,omitempty"`
}

type agentInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Model   string `json:"model_name,omitempty"`
}

type step struct {
	ID          int            `json:"step_id"`
	Timestamp   string         `json:"timestamp,omitempty"`
	Source      string         `json:"source"` // "user", "agent", "system"
	Model       string         `json:"model_name,omitempty"`
	Message     string         `json:"message"`
	Reasoning   string         `json:"reasoning_content,omitempty"`
	Calls       []toolCall     `json:"tool_calls,omitempty"`
	Observation *observation   `json:"observation,omitempty"`
	Metrics     *metrics       `json:"metrics,omitempty"`
	Extra       map[string]any `json:"extra,omitempty"`
}

type toolCall struct {
	ID        string          `json:"tool_call_id"`
	Function  string          `json:"function_name"`
	Arguments json.RawMessage `json:"arguments"` // an object
}

type observation struct {
	Results []result `json:"results"`
}

type result struct {
	Call    string         `json:"source_call_id,omitempty"`
	Content string         `json:"content,omitempty"`
	Extra   map[string]any `json:"extra,omitempty"`
}

// metrics count as the format does: prompt tokens include cached ones. An
// absent number was reported by nobody.
type metrics struct {
	Prompt     *int64         `json:"prompt_tokens,omitempty"`
	Completion *int64         `json:"completion_tokens,omitempty"`
	Cached     *int64         `json:"cached_tokens,omitempty"`
	Cost       *float64       `json:"cost_usd,omitempty"`
	Extra      map[string]any `json:"extra,omitempty"`
}

type finalMetrics struct {
	Prompt     *int64   `json:"total_prompt_tokens,omitempty"`
	Completion *int64   `json:"total_completion_tokens,omitempty"`
	Cached     *int64   `json:"total_cached_tokens,omitempty"`
	Cost       *float64 `json:"total_cost_usd,omitempty"`
	Steps      int      `json:"total_steps"`
}

// Write writes the trajectory of an attempt as one JSON document. events are the
// attempt's recorded events in order, as record.Reader.Events yields them. What
// is missing from the record is missing from the trajectory, and its notes say
// so.
func Write(w io.Writer, a *record.Attempt, events iter.Seq2[json.RawMessage, error]) error {
	b := &builder{attempt: a, calls: map[string]*step{}}
	b.t = trajectory{Version: Version, Session: string(a.ID), Agent: agentInfo{Name: "unknown", Version: "unknown"}, Steps: []*step{}}
	if a.Agent != nil {
		b.t.Agent = agentInfo{Name: a.Agent.Name, Version: a.Agent.Version, Model: a.Agent.Model}
		if b.t.Agent.Version == "" {
			b.t.Agent.Version = "unknown"
		}
	}
	for raw, err := range events {
		if err != nil {
			b.note("the events cannot be read further: " + err.Error())
			break
		}
		b.add(raw)
	}
	b.finish()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(b.t)
}

// builder makes steps of events: one per message of the model, with the calls
// that follow it and their results.
type builder struct {
	t       trajectory
	attempt *record.Attempt
	turn    int
	current *step            // the model's step that is being made
	calls   map[string]*step // by turn and call, the step that made it
	notes   []string
}

func (b *builder) note(s string) { b.notes = append(b.notes, s) }

func (b *builder) step(source string, at time.Time) *step {
	s := &step{ID: len(b.t.Steps) + 1, Source: source}
	if !at.IsZero() {
		s.Timestamp = at.UTC().Format(time.RFC3339Nano)
	}
	b.t.Steps = append(b.t.Steps, s)
	return s
}

// agent returns the model's step that is being made, or begins one.
func (b *builder) agent(at time.Time) *step {
	if b.current == nil {
		b.current = b.step("agent", at)
		b.current.Model = b.t.Agent.Model
	}
	return b.current
}

func (b *builder) add(raw json.RawMessage) {
	var e agent.Event
	if json.Unmarshal(raw, &e) != nil {
		b.note("an event of another shape is left out")
		return
	}
	if e.Turn != b.turn {
		b.endTurn()
		b.turn = e.Turn
	}
	switch e.Type {
	case agent.MessageEvent:
		b.message(e)
	case agent.Thinking:
		if b.current != nil && (b.current.Message != "" || len(b.current.Calls) > 0) {
			b.current = nil
		}
		s := b.agent(e.At)
		s.Reasoning = join(s.Reasoning, e.Text)
	case agent.OperationStarted:
		b.call(e)
	case agent.OperationFinished:
		b.result(e)
	case agent.ContextInjected, agent.InputRequested, agent.ErrorEvent, agent.Compaction, agent.SkillLoaded:
		s := b.step("system", e.At)
		s.Message, s.Extra = e.Text, map[string]any{"event": string(e.Type)}
		if e.Name != "" {
			s.Extra["name"] = e.Name
		}
		b.current = nil
	case "truncated":
		b.note("some events were too many to be recorded")
	}
}

func (b *builder) message(e agent.Event) {
	if e.Role == "user" {
		b.step("user", e.At).Message = e.Text
		b.current = nil
		return
	}
	// A second text, or one after calls, is another reply of the model.
	if b.current != nil && (b.current.Message != "" || len(b.current.Calls) > 0) {
		b.current = nil
	}
	b.agent(e.At).Message = e.Text
}

func (b *builder) key(id string) string { return strconv.Itoa(b.turn) + "\x00" + id }

func (b *builder) call(e agent.Event) {
	if b.current != nil && b.current.Observation != nil {
		b.current = nil // the results are in: what follows is another reply
	}
	s := b.agent(e.At)
	args := e.Input
	var object map[string]json.RawMessage
	if json.Unmarshal(args, &object) != nil || object == nil {
		wrapped, err := json.Marshal(map[string]any{"input": e.Input})
		if err != nil || len(e.Input) == 0 {
			wrapped = json.RawMessage("{}")
		}
		args = wrapped
	}
	s.Calls = append(s.Calls, toolCall{ID: e.ID, Function: e.Name, Arguments: args})
	b.calls[b.key(e.ID)] = s
}

func (b *builder) result(e agent.Event) {
	r := result{Call: e.ID, Content: content(e.Output)}
	if e.Status != "" {
		r.Extra = map[string]any{"status": e.Status}
	}
	s, ok := b.calls[b.key(e.ID)]
	if !ok { // a result without its call belongs to nobody
		s = b.step("system", e.At)
		s.Extra = map[string]any{"event": string(e.Type)}
		r.Call = ""
	}
	if s.Observation == nil {
		s.Observation = &observation{}
	}
	s.Observation.Results = append(s.Observation.Results, r)
}

// endTurn puts the usage of a turn on its last step of the agent.
func (b *builder) endTurn() {
	defer func() { b.current = nil }()
	for _, t := range b.attempt.Turns {
		if t.Turn != b.turn {
			continue
		}
		for i := len(b.t.Steps) - 1; i >= 0; i-- {
			if s := b.t.Steps[i]; s.Source == "agent" && s.Metrics == nil {
				s.Metrics = metricsOf(t.Usage)
				return
			}
		}
	}
}

func (b *builder) finish() {
	b.endTurn()
	a := b.attempt
	m := metricsOf(a.Usage)
	f := &finalMetrics{Steps: len(b.t.Steps), Cost: a.CostUSD}
	if m != nil {
		f.Prompt, f.Completion, f.Cached = m.Prompt, m.Completion, m.Cached
		if f.Cost == nil {
			f.Cost = m.Cost
		}
	}
	b.t.Final = f
	b.t.Notes = strings.Join(b.notes, "; ")
	b.t.Extra = map[string]any{"eval": a.Eval, "experiment": a.Experiment, "attempt": a.Locator, "verdict": a.Verdict}
}

func metricsOf(u *record.Usage) *metrics {
	if u == nil {
		return nil
	}
	m := &metrics{Completion: u.OutputTokens, Cached: u.CacheReadTokens, Cost: u.CostUSD}
	for _, p := range []*int64{u.InputTokens, u.CacheReadTokens, u.CacheCreationTokens} {
		if p != nil {
			sum := *p
			if m.Prompt != nil {
				sum += *m.Prompt
			}
			m.Prompt = &sum
		}
	}
	if u.ReasoningTokens != nil {
		m.Extra = map[string]any{"reasoning_tokens": *u.ReasoningTokens}
	}
	if m.Prompt == nil && m.Completion == nil && m.Cost == nil && m.Extra == nil {
		return nil
	}
	return m
}

// content is an output as text: a JSON string's content, else the JSON.
func content(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n" + b
}
