package modeltest

import (
	"encoding/json"
	"net/http"
	"strings"
)

// messagesAPI is the Anthropic Messages API, version 2023-06-01.
type messagesAPI struct{}

func readMessages(body []byte) (request, error) {
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name   string `json:"name"`
			Schema struct {
				Properties map[string]any `json:"properties"`
			} `json:"input_schema"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, err
	}
	r := request{model: in.Model, stream: in.Stream, cwd: findCwd(string(body))}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Name, props: t.Schema.Properties})
	}
	for _, m := range in.Messages {
		e := entry{role: m.Role}
		var text string
		if json.Unmarshal(m.Content, &text) == nil {
			e.text = userText(text)
			r.history = append(r.history, e)
			continue
		}
		var blocks []struct {
			Type string `json:"type"`
			Text string `json:"text"`
			ID   string `json:"id"`
		}
		if err := json.Unmarshal(m.Content, &blocks); err != nil {
			return request{}, err
		}
		var parts []string
		for _, b := range blocks {
			switch b.Type {
			case "text":
				if t := userText(b.Text); t != "" {
					parts = append(parts, t)
				}
			case "tool_use":
				e.ids = append(e.ids, b.ID)
			}
		}
		e.text = strings.Join(parts, "\n")
		r.history = append(r.history, e)
	}
	return r, nil
}

func (messagesAPI) stopReason(out reply) string {
	switch {
	case out.stop != "":
		return out.stop
	case len(out.calls) > 0:
		return "tool_use"
	default:
		return "end_turn"
	}
}

func (messagesAPI) usage(u Usage) map[string]any {
	return map[string]any{"input_tokens": u.Input, "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite, "output_tokens": u.Output}
}

func (messagesAPI) blocks(out reply) []map[string]any {
	var blocks []map[string]any
	if out.thinking != "" {
		blocks = append(blocks, map[string]any{"type": "thinking", "thinking": out.thinking, "signature": "c2ln"})
	}
	if out.text != "" || len(out.calls) == 0 {
		blocks = append(blocks, map[string]any{"type": "text", "text": out.text})
	}
	for _, c := range out.calls {
		blocks = append(blocks, map[string]any{"type": "tool_use", "id": strings.Replace(c.id, "call_", "toolu_", 1), "name": c.tool.name, "input": object(c.input)})
	}
	return blocks
}

func object(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func (a messagesAPI) reply(w http.ResponseWriter, req request, out reply) {
	msg := map[string]any{"id": "msg_" + out.id, "type": "message", "role": "assistant", "model": req.model, "stop_sequence": nil}
	if !req.stream {
		msg["content"], msg["stop_reason"], msg["usage"] = a.blocks(out), a.stopReason(out), a.usage(out.usage)
		writeJSON(w, http.StatusOK, msg)
		return
	}
	ev := newEvents(w, true)
	a.start(ev, msg, out.usage)
	for i, b := range a.blocks(out) {
		var delta map[string]any
		begin := map[string]any{"type": b["type"]}
		switch b["type"] {
		case "thinking":
			begin["thinking"], begin["signature"] = "", ""
			delta = map[string]any{"type": "thinking_delta", "thinking": b["thinking"]}
		case "text":
			begin["text"] = ""
			delta = map[string]any{"type": "text_delta", "text": b["text"]}
		default:
			begin["id"], begin["name"], begin["input"] = b["id"], b["name"], map[string]any{}
			raw, err := json.Marshal(b["input"])
			if err != nil {
				raw = []byte("{}")
			}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(raw)}
		}
		ev.send("content_block_start", map[string]any{"index": i, "content_block": begin})
		ev.send("content_block_delta", map[string]any{"index": i, "delta": delta})
		if b["type"] == "thinking" {
			ev.send("content_block_delta", map[string]any{"index": i, "delta": map[string]any{"type": "signature_delta", "signature": b["signature"]}})
		}
		ev.send("content_block_stop", map[string]any{"index": i})
	}
	ev.send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": a.stopReason(out), "stop_sequence": nil}, "usage": a.usage(out.usage)})
	ev.send("message_stop", map[string]any{})
}

func (a messagesAPI) start(ev *events, msg map[string]any, u Usage) {
	first := a.usage(u)
	first["output_tokens"] = 1 // the real number comes at the end
	msg["content"], msg["stop_reason"], msg["usage"] = []any{}, nil, first
	ev.send("message_start", map[string]any{"message": msg})
}

func (a messagesAPI) broken(w http.ResponseWriter, req request, f Fail) {
	ev := newEvents(w, true)
	a.start(ev, map[string]any{"id": "msg_broken", "type": "message", "role": "assistant", "model": req.model, "stop_sequence": nil}, DefaultUsage())
	ev.send("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
	ev.send("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": "this will be "}})
	if f.StreamError {
		ev.send("error", map[string]any{"error": map[string]any{"type": "overloaded_error", "message": "scripted error in the stream"}})
	}
}
