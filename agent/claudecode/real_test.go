package claudecode

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
	a := Agent{BaseURL: url, AllowRoot: true, Env: map[string]string{"CLAUDE_CODE_MAX_RETRIES": "1"}}
	if change != nil {
		change(&a)
	}
	return codingtest.Open(t, a, "claude-sonnet-4-6")
}

// TestRealInstall installs the pinned CLI once for all other tests.
func TestRealInstall(t *testing.T) { real(t, nil) }

func TestRealTurns(t *testing.T) {
	tr := real(t, nil)
	tr.Turns([]codingtest.Want{
		{Text: "Please write hello.", Message: "Wrote hello.txt.", Tools: []string{"write completed"}, Input: 800, Output: 68},
		// The conversation goes on, and what it costs is counted once.
		{Text: "count", Message: "You said 2 things.", Tools: nil, Input: 400, Output: 34},
		{Text: "parallel and fail", Message: "Both ran.", Tools: []string{"bash failed", "bash completed"}, Input: 800, Output: 68},
		{Text: "unknown tool", Message: "gave up", Tools: []string{"nonsense failed"}, Input: 0, Output: 0},
	})
	if body, err := tr.Box.ReadText(t.Context(), "hello.txt"); err != nil || body != "hi\n" {
		t.Errorf("hello.txt = %q, %v", body, err)
	}
	// A new session knows nothing of it; a message is never read as a flag.
	fresh, err := tr.Send(t.Context(), tr.NewSession(), "--help count")
	if err != nil || fresh.Message != "You said 1 things." || fresh.Usage.CostUSD == nil {
		t.Errorf("new session = %q, %+v, %v", fresh.Message, fresh.Usage, err)
	}
	if codes := tr.Notes.Codes(); len(codes) > 0 {
		t.Errorf("diagnostics %q", codes)
	}
}

func TestRealFailures(t *testing.T) {
	tr := real(t, nil)
	tr.Failures([]codingtest.Failed{
		{Text: "e401", Code: "agent-auth", Class: fault.Config, Acceptance: agent.Rejected},
		{Text: "e404", Code: "agent-model-unknown", Class: fault.Config, Acceptance: agent.Rejected},
		{Text: "e429", Code: "agent-rate-limited", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "e500", Code: "agent-service-failed", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "e529", Code: "agent-overloaded", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "quota", Code: "agent-quota", Class: fault.Config, Acceptance: agent.Rejected},
		{Text: "cut stream", Code: "agent-stream-cut", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "stream error", Code: "agent-stream-cut", Class: fault.Transient, Acceptance: agent.Rejected},
		{Text: "work then cut", Code: "agent-stream-cut", Class: fault.Transient, Acceptance: agent.Started},
	})
	turn, err := tr.Send(t.Context(), tr.NewSession(), "e429once")
	if err != nil || turn.Message != "after retry" {
		t.Errorf("one 429: %q, %v", turn.Message, err)
	}
	turn, err = tr.Send(t.Context(), tr.NewSession(), "refusal")
	if err != nil || turn.Status != agent.Failed || turn.StopReason != "refusal" {
		t.Errorf("refusal: %+v, %v", turn.Status, err)
	}
}

func TestRealLimits(t *testing.T) {
	tr := real(t, func(a *Agent) { a.MaxTurns = 2 })
	turn := tr.Turn("loop")
	if turn.Status != agent.Failed || turn.StopReason != "max_turns" {
		t.Errorf("turn = %s %s", turn.Status, turn.StopReason)
	}
	tr.Cancel()
	tr.Killed("claude")
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
	put("market/.claude-plugin/marketplace.json", `{"name":"shop","owner":{"name":"o"},"plugins":[{"name":"fmt","source":"./fmt","version":"1.2.3"}]}`)
	put("market/fmt/.claude-plugin/plugin.json", `{"name":"fmt","version":"1.2.3"}`)
	put("market/fmt/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: How to tidy.\n---\nTidy.\n")
	put("settings.json", `{"permissions":{"deny":["WebFetch"]}}`)
	tr := real(t, func(a *Agent) {
		a.Dir = dir
		a.MCPServers = []coding.MCPServer{{Name: "echo", Command: "node", Args: []string{filepath.Join(dir, "echo.js")}}, {Name: "far", URL: codingtest.FarServer(t)}}
		a.Skills = []coding.Skill{{Path: "skills/greet"}}
		a.Plugins = []coding.Plugin{{Name: "fmt", Marketplace: coding.Source{Path: "market"}}}
		a.SettingsFile = "settings.json"
		a.PostSetup = []string{`test -n "$CLAUDE_CONFIG_DIR"`}
	})
	tr.Turns([]codingtest.Want{
		{Text: "mcp echo", Message: "echoed", Tools: []string{"mcp__echo__say completed"}},
		{Text: "mcp far", Message: "heard", Tools: []string{"mcp__far__say completed"}},
	})
	turn := tr.Turn("load skill")
	if !slices.ContainsFunc(turn.Events, func(e agent.Event) bool { return e.Type == agent.SkillLoaded && e.Name == "greet" }) {
		t.Errorf("no skill was loaded: %q", codingtest.Tools(turn))
	}
	items, _ := tr.Notes.Value("agent.manifest").([]coding.Item)
	at := slices.IndexFunc(items, func(i coding.Item) bool { return i.Kind == "plugin" })
	if at < 0 || items[at].Name != "fmt@shop" || items[at].Version != "1.2.3" || items[at].Digest == "" {
		t.Errorf("manifest = %+v", items)
	}
}

// TestRealBrokenServer: an agent without a server that was declared for it is
// not the agent under test.
func TestRealBrokenServer(t *testing.T) {
	tr := real(t, func(a *Agent) { a.MCPServers = []coding.MCPServer{{Name: "echo", Command: "false"}} })
	_, err := tr.Send(t.Context(), tr.Session, "count")
	if fault.CodeOf(err) != "agent-mcp-failed" || fault.ClassOf(err) != fault.Config {
		t.Errorf("broken server: %s %s %v", fault.CodeOf(err), fault.ClassOf(err), err)
	}
}

func TestRealRoot(t *testing.T) {
	testreq.Root(t)
	tr := codingtest.Bare(t, Agent{}, "")
	_, err := Agent{}.Ensure(t.Context(), tr.Session)
	if fault.CodeOf(err) == "agent-ensure-failed" {
		testreq.Missing(t, codingtest.Need, err.Error())
	}
	if fault.CodeOf(err) != "agent-root-refused" || fault.FixOf(err) == "" {
		t.Errorf("as root: %v", err)
	}
}

func TestRealSpans(t *testing.T) { real(t, nil).Spans("Please write hello.", "claude_code.tool") }
