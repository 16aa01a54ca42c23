package claudecode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

func TestRealTurns(t *testing.T) {
	tr := real(t, nil)
	turn := tr.Turn("Please write hello.")
	if turn.Status != agent.Completed || turn.Message != "Wrote hello.txt." || turn.StopReason != "end_turn" {
		t.Errorf("turn = %q %q %q", turn.Status, turn.Message, turn.StopReason)
	}
	if got := codingtest.Tools(turn); !slices.Equal(got, []string{"write completed"}) {
		t.Errorf("tools = %q", got)
	}
	if body, err := tr.Box.ReadText(t.Context(), "hello.txt"); err != nil || body != "hi\n" {
		t.Errorf("hello.txt = %q, %v", body, err)
	}
	if u := turn.Usage; u == nil || *u.InputTokens != 800 || *u.CacheReadTokens != 1600 || *u.OutputTokens != 68 || u.CostUSD == nil {
		t.Errorf("usage of two calls = %+v", u)
	}
	// The conversation goes on, and what it costs is counted once.
	turn = tr.Turn("count")
	if turn.Message != "You said 2 things." {
		t.Errorf("second turn = %q", turn.Message)
	}
	if u := turn.Usage; u == nil || *u.InputTokens != 400 || *u.OutputTokens != 34 {
		t.Errorf("usage of the second turn = in %d out %d", *u.InputTokens, *u.OutputTokens)
	}
	if turn = tr.Turn("parallel and fail"); !slices.Equal(codingtest.Tools(turn), []string{"bash failed", "bash completed"}) {
		t.Errorf("tools = %q", codingtest.Tools(turn))
	}
	// A new session knows nothing of it.
	fresh, err := tr.Send(t.Context(), tr.NewSession(), "--help count")
	if err != nil || fresh.Message != "You said 1 things." {
		t.Errorf("new session = %q, %v", fresh.Message, err)
	}
	if codes := tr.Notes.Codes(); len(codes) > 0 {
		t.Errorf("diagnostics %q", codes)
	}
}

func TestRealFailures(t *testing.T) {
	tr := real(t, nil)
	for _, c := range []struct {
		text, code string
		class      fault.Class
		acceptance agent.Acceptance
	}{
		{"e401", "agent-auth", fault.Config, agent.Rejected},
		{"e404", "agent-model-unknown", fault.Config, agent.Rejected},
		{"e429", "agent-rate-limited", fault.Transient, agent.Rejected},
		{"e500", "agent-service-failed", fault.Transient, agent.Rejected},
		{"e529", "agent-overloaded", fault.Transient, agent.Rejected},
		{"quota", "agent-quota", fault.Config, agent.Rejected},
		{"cut stream", "agent-stream-cut", fault.Transient, agent.Rejected},
		{"work then cut", "agent-stream-cut", fault.Transient, agent.Started},
	} {
		t.Run(strings.ReplaceAll(c.text, " ", "-"), func(t *testing.T) {
			turn, err := tr.Send(t.Context(), tr.NewSession(), c.text)
			var se *agent.SendError
			if !errors.As(err, &se) {
				t.Fatalf("turn %+v, error %v; want a failed send", turn, err)
			}
			if fault.CodeOf(err) != c.code || fault.ClassOf(err) != c.class || se.Acceptance != c.acceptance {
				t.Errorf("%s %s %s: %v; want %s %s %s", fault.CodeOf(err), fault.ClassOf(err), se.Acceptance, err, c.code, c.class, c.acceptance)
			}
		})
	}
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
}

// TestRealSilence: a model that never answers is ended by the limit of silence,
// a tool that never ends by the end of the context, with its children.
func TestRealSilence(t *testing.T) {
	tr := real(t, func(a *Agent) { a.StallTimeout = 3 * time.Second })
	_, err := tr.Send(t.Context(), tr.Session, "silence")
	if fault.CodeOf(err) != "agent-stalled" || fault.ClassOf(err) != fault.Transient {
		t.Errorf("silence: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tr.Send(ctx, tr.NewSession(), "hang tool")
		done <- err
	}()
	await(t, filepath.Join(tr.Box.Workdir(), "started"), done)
	cancel()
	if err := <-done; fault.ClassOf(err) != fault.Canceled {
		t.Errorf("canceled: %v", err)
	}
	if out, err := tr.Box.RunShell(t.Context(), "pgrep -fx 'tail -f /dev/null' | while read p; do [ \"$(readlink /proc/$p/cwd)\" = \"$PWD\" ] && echo $p; done; true"); err != nil || out.Stdout != "" {
		t.Errorf("left behind: %q, %v", out.Stdout, err)
	}
}

// await returns when a file is there, or fails when the send ended first.
func await(t *testing.T, file string, done <-chan error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		select {
		case err := <-done:
			t.Fatalf("the send ended before %s was there: %v", file, err)
		case <-tick.C:
		}
	}
}

func TestRealExtensions(t *testing.T) {
	testreq.Need(t, "node")
	dir := t.TempDir()
	put := func(name, body string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("echo.js", codingtest.EchoServer)
	put("skills/greet/SKILL.md", "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n")
	put("market/.claude-plugin/marketplace.json", `{"name":"shop","owner":{"name":"o"},"plugins":[{"name":"fmt","source":"./fmt","version":"1.2.3"}]}`)
	put("market/fmt/.claude-plugin/plugin.json", `{"name":"fmt","version":"1.2.3"}`)
	put("market/fmt/skills/tidy/SKILL.md", "---\nname: tidy\ndescription: How to tidy.\n---\nTidy.\n")
	put("settings.json", `{"permissions":{"deny":["WebFetch"]}}`)
	tr := real(t, func(a *Agent) {
		a.Dir = dir
		a.MCPServers = []coding.MCPServer{{Name: "echo", Command: "node", Args: []string{filepath.Join(dir, "echo.js")}}}
		a.Skills = []coding.Skill{{Path: "skills/greet"}}
		a.Plugins = []coding.Plugin{{Name: "fmt", Marketplace: coding.Source{Path: "market"}}}
		a.SettingsFile = "settings.json"
		a.PostSetup = []string{`test -n "$CLAUDE_CONFIG_DIR"`}
	})
	turn := tr.Turn("mcp echo")
	if got := codingtest.Tools(turn); !slices.Equal(got, []string{"mcp__echo__say completed"}) {
		t.Errorf("tools = %q", got)
	}
	turn = tr.Turn("load skill")
	if !slices.ContainsFunc(turn.Events, func(e agent.Event) bool { return e.Type == agent.SkillLoaded && e.Name == "greet" }) {
		t.Errorf("no skill was loaded: %q", codingtest.Tools(turn))
	}
	items, _ := tr.Notes.Value("agent.manifest").([]coding.Item)
	at := slices.IndexFunc(items, func(i coding.Item) bool { return i.Kind == "plugin" })
	if at < 0 || items[at].Name != "fmt@shop" || items[at].Version != "1.2.3" || items[at].Digest == "" {
		t.Errorf("manifest = %+v", items)
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
