package main

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2btest"
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/verceltest"
)

// cloud is a double of a cloud service and how a project names it.
type cloud struct {
	sandbox string
	env     []string
	// live are the sandboxes that the service has, paused ones too, and kept what
	// holds a suspended one, by the service's own account.
	live, kept func() []string
	// run is the run that made a sandbox, by the service's own account.
	run func(id string) string
	// created counts the requests for a sandbox so far.
	created func() int
	// lost makes the service create the next sandbox and lose the answer.
	lost func()
}

func clouds(t *testing.T) map[string]cloud {
	t.Helper()
	e, v := e2btest.New(t), verceltest.New(t)
	e.AddTemplate(e2b.ClaudeCodeTemplate)
	creates := func(requests func() []string, paths ...string) func() int {
		return func() (n int) {
			for _, r := range requests() {
				if slices.Contains(paths, r) {
					n++
				}
			}
			return n
		}
	}
	return map[string]cloud{
		"e2b": {
			sandbox: "e2b: {template: base}",
			env:     []string{"E2B_API_KEY=" + e2btest.Key, "E2B_API_URL=" + e.URL, "E2B_SANDBOX_URL=" + e.URL},
			live:    func() []string { return e.Sandboxes("", "") }, kept: e.Paused,
			run:     func(id string) string { return e.Metadata(id)["assay.run"] },
			created: creates(e.Requests, "POST /sandboxes", "POST /v2/sandboxes"),
			lost: func() {
				e.Inject(e2btest.Fault{Method: http.MethodPost, Match: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/sandboxes") }, After: true, Status: 502, Times: 1})
			},
		},
		"vercel": {
			sandbox: "vercel: {runtime: node24}",
			env: []string{
				"VERCEL_SANDBOX_API_URL=" + v.URL, "VERCEL_TOKEN=" + verceltest.Token, "VERCEL_TEAM_ID=" + verceltest.Team, "VERCEL_PROJECT_ID=" + verceltest.Project,
			},
			live: func() []string { return v.Sandboxes("", "") }, kept: v.Snapshots,
			run:     func(name string) string { return vercel.Labels(v.Tags(name))["assay.run"] },
			created: creates(v.Requests, "POST /v2/sandboxes", "POST /v3/sandboxes"),
			lost: func() {
				v.Inject(verceltest.Fault{Method: http.MethodPost, Match: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/sandboxes") }, After: true, Status: 502, Times: 1})
			},
		},
	}
}

// nothing holds a cloud to have nothing left.
func (c cloud) nothing(t *testing.T) {
	t.Helper()
	if live, kept := c.live(), c.kept(); len(live)+len(kept) != 0 {
		t.Errorf("the service still has the sandboxes %q and keeps %q", live, kept)
	}
}

// killed starts an experiment that does not end, and kills it without warning
// once its sandbox is set up.
func (c cloud) killed(t *testing.T, dir, eval string) {
	t.Helper()
	write(t, dir, map[string]string{"experiments/slow.yaml": "agent: {command: {run: 'sleep 600'}}\nsandbox: {" + c.sandbox + ", setup: [{host: true, run: \"echo setup >> ../marks\"}]}\nevals: [" + eval + "]\n"})
	slow := cloudCommand(t, dir, c, "exp", "slow")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); marks(t, dir) != "setup"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("no sandbox was set up")
		}
	}
	if err := slow.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = slow.Wait() // it was killed
}

// TestClouds runs an experiment end to end on each cloud's double, and kills
// another in the middle: the next run is well, and nothing of it is left.
func TestClouds(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(quickstart(t), "quickstart")
			write(t, dir, map[string]string{"experiments/cloud.yaml": "agent:\n  command:\n    run: sh \"$ASSAY_AGENT_DIR/fix.sh\"\n    files: ../agent\nsandbox:\n  " + c.sandbox + "\n"})
			c.killed(t, dir, "add-file")
			left := c.live()
			if len(left) != 1 || c.run(left[0]) == "" {
				t.Fatalf("after the kill the service has %q", left)
			}
			out, _ := did(t, cloudCommand(t, dir, c, "exp", "cloud"), 1) // one eval is made to be red
			holds(t, out, "fix-greeting", "broken-promise")
			c.nothing(t)
			if n := c.created(); n != 4 {
				t.Errorf("%d sandboxes were asked for, by one attempt that was killed and three that ran", n)
			}
		})
	}
}

// TestCloudPrune removes what a killed run has left, when somebody asks and not
// while it may live.
func TestCloudPrune(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"assay.yaml": "name: x\n", "evals/e.eval.yaml": "prompt: go\n"})
			c.killed(t, dir, "e")
			left := c.live()
			out, _ := did(t, cloudCommand(t, dir, c, "sandbox", "list", "--orphans"), 0)
			holds(t, out, left[0])
			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "prune"), 0)
			holds(t, out, "1 "+name+" sandbox")
			c.nothing(t)
			if n := c.created(); n != 1 {
				t.Errorf("%d sandboxes were asked for", n)
			}
		})
	}
}

// TestCloudReuse serves all attempts with one sandbox, whose life is confirmed
// for each.
func TestCloudReuse(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"assay.yaml": "name: x\n",
				"experiments/x.yaml": "agent: {command: {run: 'test ! -e made && cat tool >made'}}\nattempts: 3\nsandboxReuse: true\nmaxConcurrency: 1\ntimeout: 5m\n" +
					"sandbox: {" + c.sandbox + ", lifetime: 20m, setup: [\"echo tool >tool\"]}\n",
				"evals/e.eval.yaml": "prompt: go\nchecks: [{file: made, equals: \"tool\\n\"}, {changed: made}]\n",
			})
			out, _ := did(t, cloudCommand(t, dir, c, "exp", "x"), 0)
			holds(t, out, "3 attempts used 1 sandbox")
			c.nothing(t)
			if n := c.created(); n != 1 {
				t.Errorf("%d sandboxes were asked for", n)
			}
		})
	}
}

// TestCloudKeep keeps a sandbox at rest at the service, enters it, and ends it.
func TestCloudKeep(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"assay.yaml":           "name: x\n",
				"experiments/x.yaml":   "agent: {command: {run: 'echo hi >made'}}\nsandbox: {" + c.sandbox + "}\n",
				"evals/bad.eval.yaml":  "prompt: go\nchecks: [{file: missing, exists: true}]\n",
				"evals/good.eval.yaml": "prompt: go\nchecks: [{changed: made}]\n",
			})
			out, _ := did(t, cloudCommand(t, dir, c, "exp", "x", "--keep-sandbox"), 1)
			holds(t, out, "kept the sandbox of x bad#0 (failed)")
			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "list"), 0)
			// A service may have another name for what sleeps again.
			at := slices.IndexFunc(strings.Fields(out), func(f string) bool { return strings.HasPrefix(f, "@") })
			if at < 0 {
				t.Fatalf("no locator in %s", out)
			}
			id := strings.Fields(out)[at]
			holds(t, out, name, "dormant", "x bad#0")
			if kept := c.kept(); len(kept) != 1 {
				t.Fatalf("the service keeps %q", kept)
			}
			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "prune"), 0)
			if strings.Contains(out, name) {
				t.Errorf("what is kept was pruned: %s", out)
			}

			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "enter", id, "--", "sh", "-c", "cat made; echo more >more"), 0)
			holds(t, out, "hi\n")
			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "enter", id, "--", "cat", "more"), 0)
			holds(t, out, "more\n")
			if kept := c.kept(); len(kept) != 1 {
				t.Errorf("after it was entered the service keeps %q", kept)
			}
			// A visitor that dies leaves what it woke: no orphan, and it can be stopped.
			visit := cloudCommand(t, dir, c, "sandbox", "enter", id, "--", "sh", "-c", "echo here; sleep 600")
			await(t, lines(t, visit), "here")
			if err := visit.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = visit.Wait() // it was killed
			out, _ = did(t, cloudCommand(t, dir, c, "sandbox", "stop", id), 0)
			holds(t, out, "stopped ")
			did(t, cloudCommand(t, dir, c, "sandbox", "prune"), 0)
			c.nothing(t)
		})
	}
}

// TestCloudLostAnswer loses the answer to a create that the service carried out:
// what it made is found and removed before another try.
func TestCloudLostAnswer(t *testing.T) {
	for name, c := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"assay.yaml":         "name: x\n",
				"experiments/x.yaml": "agent: {command: {run: 'echo hi >made'}}\nsandbox: {" + c.sandbox + "}\n",
				"evals/e.eval.yaml":  "prompt: go\nchecks: [{changed: made}]\n",
			})
			c.lost()
			done := make(chan int)
			most := make(chan int)
			go func() { // how many there are at once
				n := 0
				for {
					select {
					case <-done:
						most <- n
						return
					case <-time.After(5 * time.Millisecond):
						n = max(n, len(c.live()))
					}
				}
			}()
			did(t, cloudCommand(t, dir, c, "exp", "x"), 0)
			done <- 0
			if n := <-most; n != 1 {
				t.Errorf("there were %d sandboxes at once", n)
			}
			c.nothing(t)
			if n := c.created(); n != 2 {
				t.Errorf("%d sandboxes were asked for, want the lost one and another", n)
			}
		})
	}
}
