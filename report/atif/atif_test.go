package atif_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"assay/agent"
	"assay/record"
	"assay/report/atif"
)

func num(n int64) *int64 { return &n }

func events(list []agent.Event, end error) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for _, e := range list {
			b, err := json.Marshal(e)
			if !yield(b, err) {
				return
			}
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

func conversation() (*record.Attempt, []agent.Event) {
	cost := 0.25
	a := &record.Attempt{
		ID: "a1", Locator: "@1", Experiment: "x", Eval: "e", Verdict: record.Passed, CostUSD: &cost,
		Agent: &record.AgentInfo{Name: "claude-code", Version: "2.1.207", Model: "m1"},
		Usage: &record.Usage{InputTokens: num(400), CacheReadTokens: num(800), OutputTokens: num(34)},
		Turns: []record.Turn{
			{Session: 1, Turn: 1, Usage: &record.Usage{InputTokens: num(400), CacheReadTokens: num(800), OutputTokens: num(34), ReasoningTokens: num(7)}},
			{Session: 1, Turn: 2},
		},
	}
	return a, []agent.Event{
		{Type: agent.MessageEvent, Role: "user", Text: "do it", Turn: 1},
		{Type: agent.Thinking, Text: "hm", Turn: 1},
		{Type: agent.MessageEvent, Role: "assistant", Text: "Running.", Turn: 1},
		{Type: agent.OperationStarted, ID: "i", Name: "bash", Input: json.RawMessage(`{"command":"ls"}`), Turn: 1},
		{Type: agent.OperationStarted, ID: "j", Name: "odd", Input: json.RawMessage(`"text"`), Turn: 1},
		{Type: agent.OperationFinished, ID: "j", Status: "failed", Output: json.RawMessage(`{"no":1}`), Turn: 1},
		{Type: agent.OperationFinished, ID: "i", Status: "completed", Output: json.RawMessage(`"a.txt"`), Turn: 1},
		{Type: agent.OperationStarted, ID: "k", Name: "bash", Turn: 1},
		{Type: agent.MessageEvent, Role: "assistant", Text: "Done.", Turn: 1},
		{Type: "brand-new", Turn: 1},
		{Type: agent.MessageEvent, Role: "user", Text: "again", Turn: 2},
		{Type: agent.OperationStarted, ID: "i", Name: "read", Input: json.RawMessage(`{}`), Turn: 2}, // ids restart
		{Type: agent.OperationFinished, ID: "i", Status: "completed", Output: json.RawMessage(`"x"`), Turn: 2},
		{Type: agent.OperationFinished, ID: "lost", Output: json.RawMessage(`"y"`), Turn: 2},
		{Type: agent.SkillLoaded, Name: "greet", Turn: 2},
	}
}

func write(t *testing.T, a *record.Attempt, seq iter.Seq2[json.RawMessage, error]) map[string]any {
	t.Helper()
	var b bytes.Buffer
	if err := atif.Write(&b, a, seq); err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile("testdata/atif-v1.7.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(doc); err != nil {
		t.Errorf("%v\n%s", err, b.String())
	}
	var out map[string]any
	if err := json.Unmarshal(b.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTrajectory(t *testing.T) {
	a, list := conversation()
	doc := write(t, a, events(list, nil))
	steps := doc["steps"].([]any)
	type row struct {
		source, message string
		calls, results  int
		prompt          float64
	}
	want := []row{
		{source: "user", message: "do it"},
		{source: "agent", message: "Running.", calls: 2, results: 2},
		{source: "agent", calls: 1},
		{source: "agent", message: "Done.", prompt: 1200},
		{source: "user", message: "again"},
		{source: "agent", calls: 1, results: 1},
		{source: "system", results: 1},
		{source: "system"},
	}
	if len(steps) != len(want) {
		t.Fatalf("%d steps, want %d: %v", len(steps), len(want), steps)
	}
	for i, w := range want {
		s := steps[i].(map[string]any)
		got := row{source: s["source"].(string), message: s["message"].(string)}
		if c, ok := s["tool_calls"].([]any); ok {
			got.calls = len(c)
		}
		if o, ok := s["observation"].(map[string]any); ok {
			got.results = len(o["results"].([]any))
		}
		if m, ok := s["metrics"].(map[string]any); ok {
			got.prompt = m["prompt_tokens"].(float64)
		}
		if got != w || s["step_id"].(float64) != float64(i+1) {
			t.Errorf("step %d = %+v, want %+v", i+1, got, w)
		}
	}
	final := doc["final_metrics"].(map[string]any)
	if final["total_prompt_tokens"] != 1200.0 || final["total_cost_usd"] != 0.25 || final["total_steps"] != 8.0 {
		t.Errorf("final metrics %v", final)
	}
}

// TestMissing: what is not known is not there, and the notes say what is lost.
func TestMissing(t *testing.T) {
	a, list := conversation()
	a.Usage, a.CostUSD, a.Agent = nil, nil, nil
	doc := write(t, a, events(list[:1], errors.New("damaged")))
	if final := doc["final_metrics"].(map[string]any); len(final) != 1 {
		t.Errorf("final metrics %v", final)
	}
	if doc["notes"] != "the events cannot be read further: damaged" {
		t.Errorf("notes %v", doc["notes"])
	}
}
