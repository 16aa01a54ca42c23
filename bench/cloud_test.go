package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay"
	"assay/agent/script"
	"assay/internal/event"
	"assay/internal/guest/guesttest"
	"assay/internal/plan"
	"assay/internal/run"
	"assay/record"
	"assay/sandbox"
	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2bapi"
	"assay/sandbox/e2b/e2btest"
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/vercelapi"
	"assay/sandbox/vercel/verceltest"
)

// service is the double of a cloud service.
type service struct {
	name     string
	limit    float64 // requests of an attempt beyond the agent's own
	layer    sandbox.Layer
	requests func() []string
}

func services(tb testing.TB) []service {
	tb.Helper()
	guest := guesttest.Build(tb)
	e, v := e2btest.New(tb), verceltest.New(tb)
	ep := e2b.New(e2b.Options{Client: &e2bapi.Client{Key: e2btest.Key, APIURL: e.URL, SandboxURL: e.URL}, Guest: guest})
	vp := vercel.New(vercel.Options{Guest: guest, Client: &vercelapi.Client{BaseURL: v.URL, Credentials: func() (vercelapi.Credentials, error) {
		return vercelapi.Credentials{Token: verceltest.Token, TeamID: verceltest.Team, ProjectID: verceltest.Project}, nil
	}}})
	tb.Cleanup(func() { _, _ = ep.Close(), vp.Close() }) // idle connections only
	return []service{
		{"e2b", 8, sandbox.From(sandbox.Template{Provider: ep, Spec: e2b.Spec{Template: "base"}}), e.Requests},
		{"vercel", 10, sandbox.From(sandbox.Template{Provider: vp, Spec: vercel.Spec{Runtime: vercel.DefaultRuntime}}), v.Requests},
	}
}

// spent runs attempts one after the other, whose agent runs so many commands, and
// returns the requests that were sent for the run.
func (s service) spent(tb testing.TB, attempts, commands int, checks ...assay.Check) []string {
	tb.Helper()
	turn := script.Turn{}
	for i := range commands {
		turn.Commands = append(turn.Commands, fmt.Sprintf("echo hi > out%d.txt", i))
	}
	suite := &assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Sandbox: s.layer.SetupCommands(sandbox.Command{Shell: "echo set up"}), Attempts: attempts, Agent: script.Agent{Turns: []script.Turn{turn}}}},
		Evals:       []assay.Eval{{ID: "e", Prompt: "go", Files: map[string]string{"seed.txt": "a\n", "d/more.txt": "b\n"}, Checks: append([]assay.Check{{Changed: "out0.txt"}}, checks...)}},
	}
	ctx := context.Background()
	p, err := plan.Link(ctx, suite, plan.Selection{MaxConcurrency: 1}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	w, err := record.Open(filepath.Join(tb.TempDir(), "record"), "bench")
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	before := len(s.requests())
	out, err := run.Run(ctx, run.Options{Plan: p, Writer: w, Force: ctx, Env: os.LookupEnv, Owner: sandbox.Owner{PID: os.Getpid()}, Sink: func(event.Event) {}})
	if err != nil || out.Red {
		tb.Fatalf("%+v, %v", out, err)
	}
	return s.requests()[before:]
}

// attempt is the requests of one more attempt in a run, beyond those of the
// agent's command. A busy machine may split one, so that the best of three
// counts.
func (s service) attempt(tb testing.TB, checks ...assay.Check) float64 {
	tb.Helper()
	best := 1000.0
	for range 3 {
		one, three := s.spent(tb, 1, 1, checks...), s.spent(tb, 3, 1, checks...)
		more := s.spent(tb, 1, 2, checks...)
		each := float64(len(three)-len(one)) / 2
		best = min(best, each-max(0, float64(len(more)-len(one))))
		if best <= s.limit {
			tb.Logf("%s: %.1f requests per attempt; a run of one: %q", s.name, best, one)
			break
		}
		tb.Logf("%s: %.1f requests per attempt; a run of one: %q", s.name, best, one)
	}
	return best
}

// TestCloudRequests holds an attempt (create, set-up, files, baseline, agent,
// diff, destroy) to its requests: 8 for E2B and 10 for Vercel beyond the agent's
// own commands. A count does not depend on the machine.
func TestCloudRequests(t *testing.T) {
	for _, s := range services(t) {
		t.Run(s.name, func(t *testing.T) {
			if n := s.attempt(t); n > s.limit {
				t.Errorf("%.1f requests, the target is %.0f", n, s.limit)
			}
		})
	}
}

// BenchmarkCloudRequests prints the requests of an attempt, without and with a
// check that runs a command.
func BenchmarkCloudRequests(b *testing.B) {
	for _, s := range services(b) {
		b.Run(s.name, func(b *testing.B) {
			var bare, checked float64
			for b.Loop() {
				bare = s.attempt(b)
				checked = s.attempt(b, assay.Check{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "test -f out0.txt"}}})
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(bare, "requests/attempt")
			b.ReportMetric(checked, "requests/attempt-with-a-run-check")
		})
	}
}

// BenchmarkCloud100 holds 100 sandboxes of a double at once. Target: under
// 150 MB. The double is not counted: it is this process.
func BenchmarkCloud100(b *testing.B) {
	e, v := e2btest.New(b), verceltest.New(b)
	for name, value := range map[string]string{
		"E2B_API_KEY": e2btest.Key, "E2B_API_URL": e.URL, "E2B_SANDBOX_URL": e.URL, "VERCEL_SANDBOX_API_URL": v.URL,
		"VERCEL_TOKEN": verceltest.Token, "VERCEL_TEAM_ID": verceltest.Team, "VERCEL_PROJECT_ID": verceltest.Project,
	} {
		b.Setenv(name, value)
	}
	for _, at := range []struct {
		name, sandbox string
		live          func(key, value string) []string
	}{{"e2b", "e2b: {template: base}", e.Sandboxes}, {"vercel", "vercel: {runtime: node24}", v.Sandboxes}} {
		b.Run(at.name, func(b *testing.B) {
			dir := b.TempDir()
			// The last sandbox starts after some 30 s, because creates are paced.
			write(b, filepath.Join(dir, "experiments", "x.yaml"), "agent: {command: {run: 'echo hi > out.txt; sleep 60'}}\nsandbox: {"+at.sandbox+"}\nattempts: 100\n")
			write(b, filepath.Join(dir, "evals", "e.eval.yaml"), "prompt: go\nchecks: [{changed: out.txt}]\n")
			var us []usage
			most := 0
			for b.Loop() {
				done, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					for {
						select {
						case <-done:
							return
						case <-time.After(100 * time.Millisecond):
							most = max(most, len(at.live("", "")))
						}
					}
				}()
				us = append(us, measure(b, dir, strings.Fields("exp --rerun=all --max-concurrency 100")...))
				close(done)
				<-ended
			}
			report(b, us)
			b.ReportMetric(float64(most), "sandboxes-at-once")
		})
	}
}
