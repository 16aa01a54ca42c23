// Package bench measures the whole program against the least that the same work
// costs without it, in one run, as ratios. `./dev bench` runs it; bench/README.md
// says what is compared and what the targets are.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"assay"
	"assay/agent/script"
	"assay/internal/event"
	"assay/internal/guest/guesttest"
	"assay/internal/plan"
	"assay/internal/run"
	"assay/internal/testreq"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// program builds the command once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bench-*")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "assay")
	out, err := exec.Command("go", "build", "-o", bin, "assay/cmd/assay").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

// usage is what a child process cost.
type usage struct {
	wall, cpu time.Duration
	rss       int64 // bytes, the largest it was
}

// measure runs the command in a project and returns what it cost.
func measure(b *testing.B, dir string, args ...string) usage {
	b.Helper()
	bin, err := program()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ASSAY_GUEST="+guesttest.Build(b))
	var out bytes.Buffer
	cmd.Stderr = &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("assay %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return usage{time.Since(start), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), ru.Maxrss << 10}
}

// report prints the medians of runs of the command.
func report(b *testing.B, us []usage) {
	mid := func(f func(usage) float64) float64 {
		v := make([]float64, len(us))
		for i, u := range us {
			v[i] = f(u)
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mid(func(u usage) float64 { return u.wall.Seconds() }), "wall-s")
	b.ReportMetric(mid(func(u usage) float64 { return u.cpu.Seconds() }), "cpu-s")
	b.ReportMetric(mid(func(u usage) float64 { return float64(u.rss) / (1 << 20) }), "rss-MiB")
}

func write(b *testing.B, p, body string) {
	b.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
		b.Fatal(err)
	}
}

// many is a project of n evals.
func many(b *testing.B, n int) string {
	b.Helper()
	dir := b.TempDir()
	write(b, filepath.Join(dir, "experiments", "x.yaml"), "agent: nop\nsandbox: {fake: {}}\n")
	for i := range n {
		write(b, filepath.Join(dir, "evals", fmt.Sprintf("group-%02d", i%50), fmt.Sprintf("eval-%05d.eval.yaml", i)),
			fmt.Sprintf("description: case %d\ntags: [t%d]\nprompt: Do thing %d.\nchecks:\n  - {run: \"test -f out-%d\"}\n  - {changed: out-%d}\n", i, i%7, i, i, i))
	}
	return dir
}

// BenchmarkDry10k plans 10,000 evals. Target: under 1 s and 150 MB.
func BenchmarkDry10k(b *testing.B) {
	dir := many(b, 10_000)
	var us []usage
	for b.Loop() {
		us = append(us, measure(b, dir, "exp", "--dry"))
	}
	report(b, us)
}

// BenchmarkCheck10k checks 10,000 evals. Target: under 1 s and 150 MB.
func BenchmarkCheck10k(b *testing.B) {
	dir := many(b, 10_000)
	var us []usage
	for b.Loop() {
		us = append(us, measure(b, dir, "check"))
	}
	report(b, us)
}

// BenchmarkShow10k shows 10,000 recorded attempts. Target: under 1 s.
func BenchmarkShow10k(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "assay.yaml"), "name: bench\n")
	w, err := record.Open(filepath.Join(dir, ".assay", "record"), "bench")
	if err != nil {
		b.Fatal(err)
	}
	for r := range 10 {
		attempts(b, w, r)
	}
	w.Close()
	b.ResetTimer()
	var us []usage
	for b.Loop() {
		us = append(us, measure(b, dir, "show"))
	}
	report(b, us)
}

// attempts records a run of 1,000.
func attempts(b *testing.B, w *record.Writer, r int) {
	b.Helper()
	x := ref.ExperimentID(fmt.Sprintf("exp-%02d", r))
	rec := record.Run{ID: ref.NewRun(), Experiment: x, Invocation: ref.NewInvocation(), StartedAt: time.Now()}
	for i := range 1000 {
		rec.Slots = append(rec.Slots, record.SlotRef{Eval: ref.EvalID(fmt.Sprintf("eval-%04d", i))})
	}
	rw, err := w.StartRun(rec)
	if err != nil {
		b.Fatal(err)
	}
	ms := int64(1234)
	var wg sync.WaitGroup
	work := make(chan record.SlotRef)
	for range 8 {
		wg.Go(func() {
			for s := range work {
				id := ref.NewAttempt()
				a := record.Attempt{
					ID: id, Locator: ref.LocatorOf(id), Run: rec.ID, Experiment: x, Eval: s.Eval, StartedAt: time.Now(), DurationMS: &ms,
					Phases: []record.Phase{{Name: "sandbox.create", MS: 400}, {Name: "eval.run", StartMS: 400, MS: 700}, {Name: "sandbox.stop", StartMS: 1100, MS: 100}},
					Checks: []record.Check{{Name: "npm test", Kind: "run", Severity: record.Gate, Outcome: record.Matched}, {Name: "changed a", Kind: "changed", Severity: record.Gate, Outcome: record.Matched}},
					Turns:  []record.Turn{{Session: 1, Turn: 1, Prompt: "do it", Reply: strings.Repeat("I did it. ", 20), Status: "completed"}},
					Diff:   &record.DiffSummary{Changes: []record.Change{{Path: "a", Status: "modified"}}},
				}
				a.Verdict = a.Fold()
				if err := rw.Seal(record.Sealed{Attempt: a, Events: []json.RawMessage{[]byte(`{"type":"message"}`)}}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, s := range rec.Slots {
		work <- s
	}
	close(work)
	wg.Wait()
	if err := rw.End(record.End{CompletedAt: time.Now(), Completion: record.Completed}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLocal20 runs 20 trivial attempts on this machine's own tree. Target:
// under 1 s of CPU.
func BenchmarkLocal20(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "experiments", "x.yaml"), "agent: {command: {run: 'echo hi > out.txt'}}\nsandbox: {local: {dir: ../repo}}\nattempts: 20\n")
	write(b, filepath.Join(dir, "evals", "e.eval.yaml"), "prompt: go\nchecks: [{file: out.txt, contains: hi}]\n")
	write(b, filepath.Join(dir, "repo", "a.txt"), "a\n")
	if out, err := exec.Command("git", "init", "-q", filepath.Join(dir, "repo")).CombinedOutput(); err != nil {
		b.Skipf("git: %v %s", err, out)
	}
	var us []usage
	for b.Loop() {
		us = append(us, measure(b, dir, "exp", "--rerun=all"))
	}
	report(b, us)
}

// BenchmarkFake100 holds 100 attempts open at once. Target: under 60 MB.
func BenchmarkFake100(b *testing.B) {
	dir := b.TempDir()
	write(b, filepath.Join(dir, "experiments", "x.yaml"), "agent: {script: {turns: [{commands: ['echo hi > out.txt; sleep 1']}]}}\nsandbox: {fake: {}}\nattempts: 100\n")
	write(b, filepath.Join(dir, "evals", "e.eval.yaml"), "prompt: go\nchecks: [{changed: out.txt}]\n")
	var us []usage
	for b.Loop() {
		us = append(us, measure(b, dir, "exp", "--rerun=all", "--max-concurrency", "100"))
	}
	report(b, us)
}

// attemptsOf runs n trivial attempts in this process, width at a time, and
// returns how long they took.
func attemptsOf(b *testing.B, layer sandbox.Layer, n, width int, change ...func(*assay.Experiment)) time.Duration {
	b.Helper()
	suite := &assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Sandbox: layer, Attempts: n, Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"echo hi > out.txt"}}}}}},
		Evals: []assay.Eval{{ID: "e", Prompt: "go", Files: map[string]string{"seed.txt": "a\n"}, Checks: []assay.Check{
			{Run: &assay.RunCheck{Command: sandbox.Command{Shell: "test -f out.txt"}}},
			{Changed: "out.txt"},
		}}},
	}
	for _, f := range change {
		f(&suite.Experiments[0])
	}
	ctx := context.Background()
	p, err := plan.Link(ctx, suite, plan.Selection{MaxConcurrency: width}, nil)
	if err != nil {
		b.Fatal(err)
	}
	w, err := record.Open(filepath.Join(b.TempDir(), "record"), "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	var red []string
	var mu sync.Mutex
	start := time.Now()
	out, err := run.Run(ctx, run.Options{
		Plan: p, Writer: w, Force: ctx, Env: os.LookupEnv,
		Owner: sandbox.Owner{PID: os.Getpid()},
		Sink: func(e event.Event) {
			if d, ok := e.(event.AttemptDone); ok && d.Attempt.Verdict != record.Passed {
				mu.Lock()
				red = append(red, fmt.Sprintf("%+v %+v", d.Attempt.Error, d.Attempt.Checks))
				mu.Unlock()
			}
		},
	})
	took := time.Since(start)
	if err != nil || out.Red {
		b.Fatal(err, red)
	}
	return took
}

// rounds pairs floor and subject, in turns, and prints the median ratio.
func rounds(b *testing.B, n int, floor, subject func() time.Duration) {
	b.Helper()
	var ratios, fs, ss []float64
	for b.Loop() {
		fd, sd := floor(), subject()
		fs, ss = append(fs, fd.Seconds()), append(ss, sd.Seconds())
		ratios = append(ratios, sd.Seconds()/fd.Seconds())
	}
	mid := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mid(ratios), "ratio")
	b.ReportMetric(float64(n)*60/mid(fs), "floor-attempts/min")
	b.ReportMetric(float64(n)*60/mid(ss), "attempts/min")
	b.ReportMetric(float64(runtime.NumCPU()), "cpus")
}
