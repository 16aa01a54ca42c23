package modeltest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// responsesAPI is the OpenAI Responses API.
type responsesAPI struct{}

// responsesTool is a tool, or a namespace of tools.
type responsesTool struct {
	Type       string `json:"type"`
	Name       string `json:"name"`
	Parameters struct {
		Properties map[string]any `json:"properties"`
	} `json:"parameters"`
	Tools []responsesTool `json:"tools"`
}

func flatten(list []responsesTool, namespace string) []tool {
	var out []tool
	for _, t := range list {
		switch t.Type {
		case "namespace":
			out = append(out, flatten(t.Tools, t.Name)...)
		case "function", "custom":
			out = append(out, tool{name: t.Name, namespace: namespace, custom: t.Type == "custom", props: t.Parameters.Properties})
		}
	}
	return out
}

func readResponses(body []byte) (request, error) {
	var in struct {
		Model  string            `json:"model"`
		Stream bool              `json:"stream"`
		Tools  []responsesTool   `json:"tools"`
		Input  []json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, err
	}
	r := request{model: in.Model, stream: in.Stream, cwd: findCwd(string(body)), tools: flatten(in.Tools, "")}
	for _, raw := range in.Input {
		var item struct {
			Type    string          `json:"type"`
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			CallID  string          `json:"call_id"`
			Tools   []responsesTool `json:"tools"`
		}
		if err := json.Unmarshal(raw, &item); err != nil {
			return request{}, err
		}
		switch item.Type {
		case "message", "":
			e := entry{role: item.Role, text: contentText(item.Content)}
			if e.role == "user" {
				e.text = userText(e.text)
			}
			r.history = append(r.history, e)
		case "function_call", "custom_tool_call", "local_shell_call":
			r.history = append(r.history, entry{role: "assistant", ids: []string{item.CallID}})
		case "function_call_output", "custom_tool_call_output":
			r.history = append(r.history, entry{role: "tool"})
		case "additional_tools":
			r.tools = append(r.tools, flatten(item.Tools, "")...)
		}
	}
	return r, nil
}

// contentText joins the text of a message that is a string or a list of parts.
func contentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	texts := make([]string, 0, len(parts))
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func (responsesAPI) items(out reply) []map[string]any {
	var items []map[string]any
	if out.thinking != "" {
		items = append(items, map[string]any{"type": "reasoning", "id": "rs_" + out.id, "summary": []any{map[string]any{"type": "summary_text", "text": out.thinking}}, "encrypted_content": "ZW5j"})
	}
	if out.text != "" || len(out.calls) == 0 {
		items = append(items, map[string]any{"type": "message", "id": "msg_" + out.id, "role": "assistant", "status": "completed", "content": []any{map[string]any{"type": "output_text", "text": out.text, "annotations": []any{}}}})
	}
	for _, c := range out.calls {
		it := map[string]any{"id": "fc_" + c.id, "call_id": c.id, "name": c.tool.name, "status": "completed"}
		if c.tool.namespace != "" {
			it["namespace"] = c.tool.namespace
		}
		if c.tool.custom {
			it["type"], it["input"] = "custom_tool_call", c.free
		} else {
			raw, err := json.Marshal(object(c.input))
			if err != nil {
				raw = []byte("{}")
			}
			it["type"], it["arguments"] = "function_call", string(raw)
		}
		items = append(items, it)
	}
	return items
}

func (responsesAPI) document(req request, out reply, items []map[string]any) map[string]any {
	u := out.usage
	doc := map[string]any{
		"id": "resp_" + out.id, "object": "response", "model": req.model, "status": "completed", "output": items,
		"usage": map[string]any{
			"input_tokens": u.Input + u.CacheRead + u.CacheWrite, "input_tokens_details": map[string]any{"cached_tokens": u.CacheRead, "cache_write_tokens": u.CacheWrite},
			"output_tokens": u.Output, "output_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning},
			"total_tokens": u.Input + u.CacheRead + u.CacheWrite + u.Output,
		},
	}
	switch out.stop {
	case "max_tokens":
		doc["status"], doc["incomplete_details"] = "incomplete", map[string]any{"reason": "max_output_tokens"}
	case "refusal":
		doc["status"], doc["incomplete_details"] = "incomplete", map[string]any{"reason": "content_filter"}
	}
	return doc
}

func (a responsesAPI) reply(w http.ResponseWriter, req request, out reply) {
	items := a.items(out)
	doc := a.document(req, out, items)
	if !req.stream {
		writeJSON(w, http.StatusOK, doc)
		return
	}
	ev := newEvents(w, true)
	ev.send("response.created", map[string]any{"response": map[string]any{"id": doc["id"], "object": "response", "status": "in_progress", "output": []any{}}})
	for i, it := range items {
		ev.send("response.output_item.added", map[string]any{"output_index": i, "item": it})
		if it["type"] == "message" {
			ev.send("response.output_text.delta", map[string]any{"output_index": i, "content_index": 0, "item_id": it["id"], "delta": out.text})
		}
		ev.send("response.output_item.done", map[string]any{"output_index": i, "item": it})
	}
	ev.send(fmt.Sprintf("response.%s", doc["status"]), map[string]any{"response": doc})
}

func (a responsesAPI) broken(w http.ResponseWriter, _ request, f Fail) {
	ev := newEvents(w, true)
	ev.send("response.created", map[string]any{"response": map[string]any{"id": "resp_broken", "object": "response", "status": "in_progress", "output": []any{}}})
	ev.send("response.output_item.added", map[string]any{"output_index": 0, "item": map[string]any{"type": "message", "id": "msg_broken", "role": "assistant", "status": "in_progress", "content": []any{}}})
	ev.send("response.output_text.delta", map[string]any{"output_index": 0, "content_index": 0, "item_id": "msg_broken", "delta": "this will be "})
	if f.StreamError {
		ev.send("response.failed", map[string]any{"response": map[string]any{"id": "resp_broken", "object": "response", "status": "failed", "error": map[string]any{"code": "server_is_overloaded", "message": "scripted error in the stream"}}})
	}
}
