package opencode

import (
	"path/filepath"
	"testing"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
	"assay/fault"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// TestRealInstall installs the pinned CLI once for the other test.
func TestRealInstall(t *testing.T) { codingtest.Open(t, Agent{}, "m1") }

// TestReal is one attempt of the real CLI, which takes seconds to start: two
// turns of one session with a tool, an MCP tool, and a failure. It needs npm, and
// a registry when the CLI is not in this user's cache.
func TestReal(t *testing.T) {
	testreq.Need(t, "node")
	dir := t.TempDir()
	codingtest.Put(t, dir, "echo.js", codingtest.EchoServer)
	m, url := codingtest.Model(t, codingtest.Script)
	tr := codingtest.Open(t, Agent{
		BaseURL: url + "/v1", Prices: map[string]coding.Price{"m1": {Input: 1, CacheRead: 0.1, Output: 5}},
		MCPServers: []coding.MCPServer{{Name: "echo", Command: "node", Args: []string{filepath.Join(dir, "echo.js")}}},
	}, "m1")
	tr.Turns([]codingtest.Want{
		{Text: "Please write hello.", Message: "Wrote hello.txt.", Tools: []string{"write completed"}, Input: 800, Output: 68},
		{Text: "count mcp echo", Message: "You said 2 things."},
	})
	turn := tr.Turn("parallel and fail")
	if got := codingtest.Tools(turn); len(got) != 2 || got[0] != "bash failed" || got[1] != "bash completed" {
		t.Errorf("tools = %q", got)
	}
	if turn.Usage.CostUSD == nil || *turn.Usage.CostUSD == 0 {
		t.Errorf("usage = %+v", turn.Usage)
	}
	fresh, err := tr.Send(t.Context(), tr.NewSession(), "mcp echo")
	if err != nil || fresh.Message != "echoed" || codingtest.Tools(fresh)[0] != "mcp__echo__say completed" {
		t.Errorf("new session: %q %q, %v", fresh.Message, codingtest.Tools(fresh), err)
	}
	tr.Failures([]codingtest.Failed{{Text: "e401", Code: "agent-auth", Class: fault.Config, Acceptance: agent.Rejected}})
	for _, r := range m.Requests() {
		if len(r.Tools) == 0 {
			t.Errorf("a model call that no event tells of: %q", r.User)
		}
	}
}
