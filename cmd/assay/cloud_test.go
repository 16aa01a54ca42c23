package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/sandbox/e2b/e2btest"
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/verceltest"
)

// cloud is a double of a cloud service and how a project names it.
type cloud struct {
	sandbox string
	env     []string
	live    func() []string
	// run is the run that made a sandbox, by the service's own account.
	run func(id string) string
}

func clouds(t *testing.T) map[string]cloud {
	t.Helper()
	e, v := e2btest.New(t), verceltest.New(t)
	return map[string]cloud{
		"e2b": {"e2b: {template: base}", []string{"E2B_API_KEY=" + e2btest.Key, "E2B_API_URL=" + e.URL, "E2B_SANDBOX_URL=" + e.URL}, func() []string { return e.Sandboxes("", "") }, func(id string) string { return e.Metadata(id)["assay.run"] }},
		"vercel": {"vercel: {runtime: node24}", []string{
			"VERCEL_SANDBOX_API_URL=" + v.URL, "VERCEL_TOKEN=" + verceltest.Token, "VERCEL_TEAM_ID=" + verceltest.Team, "VERCEL_PROJECT_ID=" + verceltest.Project,
		}, func() []string { return v.Sandboxes("", "") }, func(name string) string { return vercel.Labels(v.Tags(name))["assay.run"] }},
	}
}

// TestClouds runs an experiment end to end on each cloud's double, and kills
// another in the middle: the next run is well, and what is left behind carries
// its owner and the end of its life.
func TestClouds(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(quickstart(t), "quickstart")
			write := func(file, text string) {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("experiments/cloud.yaml", "agent:\n  command:\n    run: sh \"$ASSAY_AGENT_DIR/fix.sh\"\n    files: ../agent\nsandbox:\n  "+c.sandbox+"\n")
			write("experiments/slow.yaml", "agent:\n  command:\n    run: sleep 600\nsandbox:\n  "+c.sandbox+"\n")
			env := append([]string{"ASSAY_GUEST=" + guesttest.Build(t)}, c.env...)

			slow := command(t, dir, "exp", "slow")
			slow.Env = append(slow.Env, env...)
			if err := slow.Start(); err != nil {
				t.Fatal(err)
			}
			for limit := time.Now().Add(time.Minute); len(c.live()) == 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatal("no sandbox was created")
				}
			}
			if err := slow.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = slow.Wait() // it was killed
			killed := c.run(c.live()[0])
			if killed == "" {
				t.Error("a sandbox has no owner")
			}

			run := command(t, dir, "exp", "cloud")
			run.Env = append(run.Env, env...)
			out, err := run.CombinedOutput()
			for _, want := range []string{"fix-greeting", "broken-promise"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s is missing", want)
				}
			}
			if code := run.ProcessState.ExitCode(); code != 1 { // one eval is made to be red
				t.Errorf("exit %d, %v\n%s", code, err, out)
			}
			for _, id := range c.live() {
				if by := c.run(id); by != killed {
					t.Errorf("sandbox %s of run %s is left; that of the run that was killed is %s", id, by, killed)
				}
			}
		})
	}
}
