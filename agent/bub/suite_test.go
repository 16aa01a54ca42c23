package bub

import (
	"os"
	"path/filepath"
	"testing"

	"assay/agent"
	"assay/agent/agenttest"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
)

// interpreter stands in for the Python that runs Bub: asked for versions it
// names them, else it runs the stand-in.
const interpreter = `#!/bin/sh
if [ "$1" = - ]; then shift; for n; do echo "$n==0.4.0"; done; else shift; exec sh "$(dirname "$0")/bub.sh" "$@"; fi
`

// TestSuite holds the adapter to the promises of every agent, with the stand-in.
// Bub takes its message as an argument, so the promises about large texts have
// no case.
func TestSuite(t *testing.T) {
	dir := t.TempDir()
	body, err := os.ReadFile("testdata/bub.sh")
	if err != nil {
		t.Fatal(err)
	}
	codingtest.Put(t, dir, "bub.sh", string(body))
	codingtest.Put(t, dir, "interpreter", interpreter)
	codingtest.Put(t, dir, "bub", "#!"+filepath.Join(dir, "interpreter")+"\n")
	for _, name := range []string{"interpreter", "bub"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	works := agenttest.Case{Agent: Agent{}, Reply: "finished", Changes: []string{"answer.txt"}, Tools: []string{"write"}}
	with := func(text string, change func(*agenttest.Case)) func(testing.TB) agenttest.Case {
		return func(testing.TB) agenttest.Case {
			c := works
			c.Text = text
			if change != nil {
				change(&c)
			}
			return c
		}
	}
	bare := func(c *agenttest.Case) { c.Reply, c.Changes, c.Tools = "", nil, nil }
	agenttest.Run(t, agenttest.Harness{Driver: codingtest.Driver, Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{
		agenttest.Works:       with("work", nil),
		agenttest.Hangs:       with("hang", bare),
		agenttest.ReadsSecret: with("secret", bare),
		agenttest.ReportsUsage: with("count", func(c *agenttest.Case) {
			c.Usage = &agent.Usage{InputTokens: coding.Count(24), CacheReadTokens: coding.Count(0), OutputTokens: coding.Count(6), Requests: coding.Count(2)}
		}),
		agenttest.FailsSetup: with("work", func(c *agenttest.Case) { c.Agent = Agent{PostSetup: []string{"exit 3"}} }),
		agenttest.Absent:     with("work", func(c *agenttest.Case) { c.Agent = Agent{Version: "9.9.9"} }),
	}})
}
