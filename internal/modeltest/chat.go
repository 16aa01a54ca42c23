package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// chatAPI is the OpenAI Chat Completions API.
type chatAPI struct{}

func readChat(body []byte) (request, error) {
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role      string          `json:"role"`
			Content   json.RawMessage `json:"content"`
			ToolCalls []struct {
				ID string `json:"id"`
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name       string `json:"name"`
				Parameters struct {
					Properties map[string]any `json:"properties"`
				} `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, err
	}
	r := request{model: in.Model, stream: in.Stream, cwd: findCwd(string(body))}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Function.Name, props: t.Function.Parameters.Properties})
	}
	for _, m := range in.Messages {
		e := entry{role: m.Role, text: contentText(m.Content)}
		if e.role == "user" {
			e.text = userText(e.text)
		}
		for _, c := range m.ToolCalls {
			e.ids = append(e.ids, c.ID)
		}
		r.history = append(r.history, e)
	}
	return r, nil
}

func (chatAPI) finish(out reply) string {
	switch {
	case out.stop == "max_tokens":
		return "length"
	case out.stop == "refusal":
		return "content_filter"
	case len(out.calls) > 0:
		return "tool_calls"
	default:
		return "stop"
	}
}

func (chatAPI) usage(u Usage) map[string]any {
	in := u.Input + u.CacheRead + u.CacheWrite
	return map[string]any{
		"prompt_tokens": in, "completion_tokens": u.Output, "total_tokens": in + u.Output,
		"prompt_tokens_details":     map[string]any{"cached_tokens": u.CacheRead},
		"completion_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning},
	}
}

func (chatAPI) calls(out reply) []map[string]any {
	var list []map[string]any
	for i, c := range out.calls {
		raw, err := json.Marshal(object(c.input))
		if err != nil {
			raw = []byte("{}")
		}
		list = append(list, map[string]any{"index": i, "id": c.id, "type": "function", "function": map[string]any{"name": c.tool.name, "arguments": string(raw)}})
	}
	return list
}

func (a chatAPI) chunk(req request, id string, delta map[string]any, finish any) map[string]any {
	return map[string]any{
		"id": "chatcmpl-" + id, "object": "chat.completion.chunk", "model": req.model,
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
	}
}

func (a chatAPI) reply(w http.ResponseWriter, req request, out reply) {
	if !req.stream {
		msg := map[string]any{"role": "assistant", "content": out.text}
		if out.thinking != "" {
			msg["reasoning_content"] = out.thinking
		}
		if calls := a.calls(out); len(calls) > 0 {
			msg["tool_calls"] = calls
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"id": "chatcmpl-" + out.id, "object": "chat.completion", "model": req.model, "usage": a.usage(out.usage),
			"choices": []any{map[string]any{"index": 0, "message": msg, "finish_reason": a.finish(out)}},
		})
		return
	}
	ev := newEvents(w, false)
	ev.send("", a.chunk(req, out.id, map[string]any{"role": "assistant", "content": ""}, nil))
	if out.thinking != "" {
		ev.send("", a.chunk(req, out.id, map[string]any{"reasoning_content": out.thinking}, nil))
	}
	if out.text != "" {
		ev.send("", a.chunk(req, out.id, map[string]any{"content": out.text}, nil))
	}
	if calls := a.calls(out); len(calls) > 0 {
		ev.send("", a.chunk(req, out.id, map[string]any{"tool_calls": calls}, nil))
	}
	ev.send("", a.chunk(req, out.id, map[string]any{}, a.finish(out)))
	ev.send("", map[string]any{"id": "chatcmpl-" + out.id, "object": "chat.completion.chunk", "model": req.model, "choices": []any{}, "usage": a.usage(out.usage)})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (a chatAPI) broken(w http.ResponseWriter, req request, f Fail) {
	ev := newEvents(w, false)
	ev.send("", a.chunk(req, "broken", map[string]any{"role": "assistant", "content": "this will be "}, nil))
	if f.StreamError {
		ev.send("", map[string]any{"error": map[string]any{"type": "overloaded_error", "code": "overloaded", "message": "scripted error in the stream"}})
	}
}
