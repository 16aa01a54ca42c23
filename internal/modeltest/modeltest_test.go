package modeltest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

const script = `
models: [m1]
rules:
  - when: write
    steps:
      - {thinking: hm, text: Writing., calls: [{write: {path: a.txt, content: hi}}, {shell: "ls"}]}
      - {text: "Done after {userMessages}."}
  - {when: mcp, steps: [{calls: [{mcp: {server: s, tool: t, input: {x: 1}}}]}]}
  - {when: limited, steps: [{text: ok now, fail: {status: 429, retryAfter: 3, times: 1}}]}
  - {when: cut, steps: [{fail: {cut: true}}]}
  - {when: silent, steps: [{fail: {silence: true}}]}
  - {when: long, steps: [{text: half, stop: max_tokens}]}
`

func serve(t *testing.T) (*Server, string) {
	t.Helper()
	s, err := ParseScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	m := New(s)
	hs := httptest.NewServer(m)
	t.Cleanup(func() { m.Release(); hs.Close() })
	return m, hs.URL
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil && !strings.Contains(body, "cut") {
		t.Fatal(err)
	}
	return res, string(b)
}

// calls returns what a reply calls, as "name input", in each dialect.
func calls(t *testing.T, path, body string) (text string, out []string) {
	t.Helper()
	var doc struct {
		Content []struct {
			Type, Text, Name string
			Input            json.RawMessage
		}
		Output []struct {
			Type, Name, Namespace, Arguments, Input string
			Content                                 []struct{ Text string }
		}
		Choices []struct {
			Message struct {
				Content   string
				ToolCalls []struct {
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatalf("%s: %v in %s", path, err, body)
	}
	for _, c := range doc.Content {
		text += c.Text
		if c.Type == "tool_use" {
			out = append(out, c.Name+" "+string(c.Input))
		}
	}
	for _, o := range doc.Output {
		for _, c := range o.Content {
			text += c.Text
		}
		if strings.HasSuffix(o.Type, "_call") {
			out = append(out, o.Namespace+o.Name+" "+o.Arguments+o.Input)
		}
	}
	for _, c := range doc.Choices {
		text += c.Message.Content
		for _, f := range c.Message.ToolCalls {
			out = append(out, f.Function.Name+" "+f.Function.Arguments)
		}
	}
	return text, out
}

func TestDialects(t *testing.T) {
	m, url := serve(t)
	for _, c := range []struct {
		name, path, body, text string
		calls                  []string
	}{
		{
			"messages", "/v1/messages?beta=true",
			`{"model":"m1","system":"Primary working directory: /w\nMore","messages":[{"role":"user","content":[{"type":"text","text":"<system-reminder>mcp</system-reminder>"},{"type":"text","text":"please write"}]}],"tools":[{"name":"Write"},{"name":"Bash","input_schema":{"properties":{"description":{}}}}]}`,
			"Writing.",
			[]string{`Write {"content":"hi","file_path":"/w/a.txt"}`, `Bash {"command":"ls","description":"run a command"}`},
		},
		{
			"messages, second step", "/v1/messages",
			`{"model":"m1","messages":[{"role":"user","content":"write"},{"role":"assistant","content":[{"type":"text","text":"W"},{"type":"tool_use","id":"toolu_1_0_0"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1_0_0"}]}],"tools":[{"name":"Bash"}]}`,
			"Done after 1.", nil,
		},
		{
			"responses", "/v1/responses",
			`{"model":"m1","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context><cwd>/w</cwd></environment_context>"}]},{"type":"message","role":"user","content":[{"type":"input_text","text":"write"}]}],"tools":[{"type":"function","name":"exec_command"}]}`,
			"Writing.",
			[]string{`exec_command {"cmd":"printf %s 'hi' \u003e 'a.txt'"}`, `exec_command {"cmd":"ls"}`},
		},
		{
			"responses, custom tools", "/v1/responses",
			`{"model":"m1","input":[{"type":"additional_tools","tools":[{"type":"custom","name":"exec"},{"type":"custom","name":"apply_patch"}]},{"type":"message","role":"user","content":"write"}]}`,
			"Writing.",
			[]string{"apply_patch *** Begin Patch\n*** Add File: a.txt\n+hi\n*** End Patch\n", `exec const r = await tools.exec_command({"cmd":"ls"}); text(r)`},
		},
		{
			"responses, namespaces; split calls are one step", "/v1/responses",
			`{"model":"m1","input":[{"role":"user","content":"write"},{"type":"function_call","call_id":"call_1_0_0"},{"type":"function_call_output","call_id":"call_1_0_0"},{"type":"function_call","call_id":"call_1_0_1"},{"type":"function_call_output","call_id":"call_1_0_1"}],"tools":[{"type":"namespace","name":"mcp__s","tools":[{"type":"function","name":"t"}]}]}`,
			"Done after 1.", nil,
		},
		{
			"responses, mcp", "/v1/responses",
			`{"model":"m1","input":[{"role":"user","content":"mcp"}],"tools":[{"type":"namespace","name":"mcp__s","tools":[{"type":"function","name":"t"}]}]}`,
			"",
			[]string{`mcp__st {"x":1}`},
		},
		{
			"chat", "/v1/chat/completions",
			`{"model":"m1","messages":[{"role":"system","content":"Working directory: /w"},{"role":"user","content":"write"}],"tools":[{"function":{"name":"write","parameters":{"properties":{"filePath":{}}}}},{"function":{"name":"bash"}}]}`,
			"Writing.",
			[]string{`write {"content":"hi","filePath":"/w/a.txt"}`, `bash {"command":"ls"}`},
		},
		{"a side call", "/v1/chat/completions", `{"messages":[{"role":"user","content":"write"}]}`, "ok", nil},
		{"no rule", "/v1/chat/completions", `{"messages":[{"role":"user","content":"?"}],"tools":[{}]}`, "No rule of the script matches.", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, body := post(t, url+c.path, c.body)
			text, got := calls(t, c.path, body)
			if text != c.text || !slices.Equal(got, c.calls) {
				t.Errorf("%q %q; want %q %q", text, got, c.text, c.calls)
			}
		})
	}
	if got := m.Requests()[0]; got.User != "please write" || got.Rule != 0 || got.Step != 0 || !slices.Equal(got.Tools, []string{"Write", "Bash"}) {
		t.Errorf("request = %+v", got)
	}
}

// TestStreams: a streamed reply says the same as one that is not.
func TestStreams(t *testing.T) {
	_, url := serve(t)
	for _, c := range []struct{ path, body, want string }{
		{"/v1/messages", `{"stream":true,"messages":[{"role":"user","content":"write"}],"tools":[{"name":"Bash"}]}`, `"stop_reason":"tool_use"`},
		{"/v1/responses", `{"stream":true,"input":[{"role":"user","content":"write"}],"tools":[{"type":"function","name":"exec_command"}]}`, "event: response.completed"},
		{"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"write"}],"tools":[{"function":{"name":"bash"}}]}`, "data: [DONE]"},
		{"/v1/messages", `{"stream":true,"messages":[{"role":"user","content":"long"}],"tools":[{}]}`, `"stop_reason":"max_tokens"`},
		{"/v1/responses", `{"stream":true,"input":[{"role":"user","content":"long"}],"tools":[{"type":"function"}]}`, "event: response.incomplete"},
		{"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"long"}],"tools":[{}]}`, `"finish_reason":"length"`},
	} {
		res, body := post(t, url+c.path, c.body)
		if !strings.Contains(body, c.want) || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: no %q in %s", c.path, c.want, body)
		}
	}
	res, body := post(t, url+"/v1/messages", `{"stream":true,"messages":[{"role":"user","content":"cut"}],"tools":[{}]}`)
	if res.StatusCode != http.StatusOK || !strings.Contains(body, "message_start") || strings.Contains(body, "message_stop") {
		t.Errorf("cut: %s", body)
	}
}

func TestFailures(t *testing.T) {
	_, url := serve(t)
	const limited = `{"messages":[{"role":"user","content":"limited"}],"tools":[{}]}`
	res, body := post(t, url+"/v1/messages", limited)
	if res.StatusCode != 429 || res.Header.Get("Retry-After") != "3" || !strings.Contains(body, "rate_limit_error") {
		t.Errorf("first: %d %s", res.StatusCode, body)
	}
	if res, body = post(t, url+"/v1/messages", limited); res.StatusCode != 200 || !strings.Contains(body, "ok now") {
		t.Errorf("second: %d %s", res.StatusCode, body)
	}
	for _, p := range []string{"/nothing", "/v1/messages"} {
		if res, _ := post(t, url+p, "no JSON"); res.StatusCode != 404 && res.StatusCode != 400 {
			t.Errorf("%s: %d", p, res.StatusCode)
		}
	}
}

// TestSilence: a silent request ends with its client, and with the server.
func TestSilence(t *testing.T) {
	s, err := ParseScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := New(s)
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, l) }()
	body := []byte(`{"messages":[{"role":"user","content":"silent"}],"tools":[{}]}`)
	asked := make(chan error, 1)
	go func() {
		res, err := http.Post("http://"+l.Addr().String()+"/v1/messages", "application/json", bytes.NewReader(body))
		if err == nil {
			res.Body.Close()
		}
		asked <- err
	}()
	for len(m.Requests()) == 0 {
		select {
		case err := <-asked:
			t.Fatalf("answered: %v", err)
		default:
		}
	}
	stop()
	if err := <-asked; err == nil {
		t.Error("the silent request was answered")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestScriptErrors(t *testing.T) {
	for _, bad := range []string{
		"rules: [{steps: [{calls: [{}]}]}]", "rules: [{steps: [{calls: [{shell: a, tool: b}]}]}]", "rules: [{steps: [{stop: soon}]}]",
		"rules: [{steps: [{fail: {times: 2}}]}]", "rulez: []", "rules: {",
	} {
		if _, err := ParseScript(strings.NewReader(bad)); fault.CodeOf(err) != "model-script" || fault.FixOf(err) == "" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
