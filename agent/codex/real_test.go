package codex

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
	"assay/fault"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// real is the real CLI against a scripted model. It needs npm, and a registry
// when the CLI is not in this user's cache.
func real(t *testing.T, change func(*Agent)) *codingtest.Trial {
	t.Helper()
	_, url := codingtest.Model(t, codingtest.Script)
	a := Agent{
		BaseURL: url + "/v1", Prices: map[string]coding.Price{"gpt-5-scripted": {Input: 1, CacheRead: 0.1, Output: 10}},
		Args: []string{"-c", "model_providers.main.request_max_retries=1", "-c", "model_providers.main.stream_max_retries=1"},
	}
	if change != nil {
		change(&a)
	}
	return codingtest.Open(t, a, "gpt-5-scripted")
}

// TestRealInstall installs the pinned CLI once for all other tests.
func TestRealInstall(t *testing.T) { real(t, nil) }

func TestRealTurns(t *testing.T) {
	tr := real(t, nil)
	tr.Turns([]codingtest.Want{
		{Text: "Please write hello.", Message: "Wrote hello.txt.", Tools: []string{"bash completed"}, Input: 800, Output: 68},
		// The CLI counts whole threads; a turn is what it added.
		{Text: "count", Message: "You said 2 things.", Tools: nil, Input: 400, Output: 34},
	})
	if body, err := tr.Box.ReadText(t.Context(), "hello.txt"); err != nil || body != "hi\n" {
		t.Errorf("hello.txt = %q, %v", body, err)
	}
	turn := tr.Turn("parallel and fail")
	tools := codingtest.Tools(turn)
	slices.Sort(tools)
	if !slices.Equal(tools, []string{"bash completed", "bash failed"}) || turn.Coverage != nil {
		t.Errorf("tools = %q, coverage %+v", tools, turn.Coverage)
	}
	i := slices.IndexFunc(turn.Events, func(e agent.Event) bool { return e.Type == agent.OperationStarted })
	if in := string(turn.Events[i].Input); in != `{"command":"echo two"}` && in != `{"command":"echo out; exit 7"}` {
		t.Errorf("input = %s", in)
	}
	// A call of a tool that is not there leaves no event, and the turn says so.
	turn = tr.Turn("unknown tool")
	if turn.Message != "gave up" || turn.Coverage == nil || turn.Coverage.Actions != agent.Partial {
		t.Errorf("unknown tool: %q, coverage %+v", turn.Message, turn.Coverage)
	}
	fresh, err := tr.Send(t.Context(), tr.NewSession(), "--help count")
	if err != nil || fresh.Message != "You said 1 things." || fresh.Usage.CostUSD == nil || *fresh.Usage.CostUSD != (400+80+340)/1e6 {
		t.Errorf("new session = %q, %+v, %v", fresh.Message, fresh.Usage, err)
	}
}

func TestRealFailures(t *testing.T) {
	tr := real(t, nil)
	tr.Failures([]codingtest.Failed{
		{Text: "e401", Code: "agent-auth", Class: fault.Config, Acceptance: agent.Rejected},
		{Text: "e404", Code: "agent-model-unknown", Class: fault.Config, Acceptance: agent.Rejected},
		{Text: "e429", Code: "agent-rate-limited", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "e500", Code: "agent-overloaded", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "e529", Code: "agent-overloaded", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "quota", Code: "agent-rate-limited", Class: fault.Transient, Acceptance: agent.Rejected}, // it keeps the status only
		{Text: "cut stream", Code: "agent-stream-cut", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "stream error", Code: "agent-overloaded", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "work then cut", Code: "agent-stream-cut", Class: fault.Transient, Acceptance: agent.Started},
	})
}

func TestRealLimits(t *testing.T) {
	tr := real(t, nil)
	tr.Cancel()
	tr.Killed("codex")
}

func TestRealSilence(t *testing.T) {
	tr := real(t, func(a *Agent) { a.StallTimeout = 6 * time.Second })
	_, err := tr.Send(t.Context(), tr.NewSession(), "silence")
	if fault.CodeOf(err) != "agent-stalled" || fault.ClassOf(err) != fault.Transient {
		t.Errorf("silence: %v", err)
	}
}

func TestRealExtensions(t *testing.T) {
	testreq.Need(t, "node")
	dir := t.TempDir()
	put := func(name, body string) { codingtest.Put(t, dir, name, body) }
	put("echo.js", codingtest.EchoServer)
	put("skills/greet/SKILL.md", "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n")
	put("market/.agents/plugins/marketplace.json", `{"name":"shop","plugins":[{"name":"fmt","source":{"source":"local","path":"./fmt"},"policy":{"installation":"AVAILABLE"}}]}`)
	put("market/fmt/.codex-plugin/plugin.json", `{"name":"fmt","version":"1.2.3","description":"d","skills":"./skills"}`)
	put("market/fmt/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: How to tidy.\n---\nTidy.\n")
	put("config.toml", "hide_agent_reasoning = false\n\n[features]\n")
	tr := real(t, func(a *Agent) {
		a.Dir = dir
		a.MCPServers = []coding.MCPServer{{Name: "echo", Command: "node", Args: []string{filepath.Join(dir, "echo.js")}, Env: map[string]string{"A": `b"c`}}, {Name: "far", URL: codingtest.FarServer(t)}}
		a.Skills = []coding.Skill{{Path: "skills/greet"}}
		a.Plugins = []coding.Plugin{{Name: "fmt", Marketplace: coding.Source{Path: "market"}}}
		a.ConfigFile = "config.toml"
		a.PostSetup = []string{`test -n "$CODEX_HOME"`}
	})
	tr.Turns([]codingtest.Want{
		{Text: "mcp echo", Message: "echoed", Tools: []string{"mcp__echo__say completed"}},
		{Text: "mcp far", Message: "heard", Tools: []string{"mcp__far__say completed"}},
	})
	items, _ := tr.Notes.Value("agent.manifest").([]coding.Item)
	at := slices.IndexFunc(items, func(i coding.Item) bool { return i.Kind == "plugin" })
	if at < 0 || items[at].Name != "fmt@shop" || items[at].Version != "1.2.3" || items[at].Digest == "" {
		t.Errorf("manifest = %+v", items)
	}
}

func TestRealSpans(t *testing.T) { real(t, nil).Spans("Please write hello.", "tool") }
