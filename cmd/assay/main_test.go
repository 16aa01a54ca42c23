package main

import (
	"bufio"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"assay/internal/guest/guesttest"
	"assay/record"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"assay": main})
}

// TestScripts runs the command as a program over the stories in testdata. Set
// UPDATE_SCRIPTS=1 to rewrite what they expect.
func TestScripts(t *testing.T) {
	// This test binary answers to its own name only, so it is no guest.
	guest := guesttest.Build(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(e *testscript.Env) error {
			// A project is found by walking up, and nothing of the host may be
			// found there.
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("CI", "")
			e.Setenv("ASSAY_GUEST", guest)
			return nil
		},
	})
}

// command starts the program as a real child process.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "assay")
	if err := os.Symlink(self, bin); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir)
	return cmd
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// lines delivers the standard output of a child line by line.
func lines(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	ch := make(chan string, 1024)
	go func() {
		defer close(ch)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			ch <- sc.Text()
		}
	}()
	return ch
}

// await reads until a line contains text.
func await(t *testing.T, ch <-chan string, text string) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		select {
		case l, ok := <-ch:
			if !ok {
				t.Fatalf("the output ended before %q", text)
			}
			if strings.Contains(l, text) {
				return
			}
		case <-limit:
			t.Fatalf("no line with %q in a minute", text)
		}
	}
}

// results reads a record as `show` does.
func results(t *testing.T, dir string) (attempts []*record.Attempt, runs []*record.StoredRun) {
	t.Helper()
	r, err := record.OpenReader(filepath.Join(dir, ".assay", "record"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	runs, problems, err := r.Runs(context.Background())
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for rs, err := range r.Slots(context.Background(), runs) {
		if err != nil {
			t.Fatal(err)
		}
		if len(rs.Problems) > 0 {
			t.Fatalf("unreadable results: %v", rs.Problems)
		}
		for _, s := range rs.Slots {
			if s.Attempt != nil {
				attempts = append(attempts, s.Attempt)
			}
		}
	}
	return attempts, runs
}

// project is a suite with quick attempts and one that hangs; teardown leaves a
// mark on the host.
func project(t *testing.T, teardown string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"assay.yaml":               "name: crash\n",
		"experiments/quick.yaml":   "agent: nop\nsandbox: {fake: {}}\nattempts: 3\n",
		"experiments/zslow.yaml":   "agent: {script: {turns: [{commands: [\"sleep 3600\"]}]}}\nsandbox:\n  fake: {}\n  setup: [{host: true, run: \"echo setup >> ../marks\"}]\n  teardown: [{host: true, run: \"" + teardown + "\"}]\nteardown: [\"echo experiment >> marks\"]\n",
		"evals/hello.eval.yaml":    "prompt: hi\n",
		"evals/placeholder/.empty": "",
	})
	return dir
}

func marks(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "marks"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

func TestSignals(t *testing.T) {
	for _, tt := range []struct {
		name     string
		signals  []syscall.Signal
		teardown string
		code     int
		marks    string
		limit    time.Duration
	}{
		{"one interrupt cleans up", []syscall.Signal{syscall.SIGINT}, "sleep 1; echo teardown >> ../marks", 130, "setup teardown experiment", 20 * time.Second},
		{"terminate cleans up", []syscall.Signal{syscall.SIGTERM}, "echo teardown >> ../marks", 143, "setup teardown experiment", 20 * time.Second},
		{"two interrupts cut teardown short", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, "sleep 60; echo teardown >> ../marks", 130, "setup experiment", 25 * time.Second},
		{"three interrupts leave", []syscall.Signal{syscall.SIGINT, syscall.SIGINT, syscall.SIGINT}, "trap '' TERM; sleep 60", 130, "setup", 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := project(t, tt.teardown)
			cmd := command(t, dir, "exp", "--json")
			out := lines(t, cmd)
			for range 3 {
				await(t, out, `"eval":"hello"`) // the quick ones are sealed
			}
			for marks(t, dir) != "setup" {
				time.Sleep(10 * time.Millisecond)
			}
			begin := time.Now()
			for i, s := range tt.signals {
				if i > 0 {
					await(t, out, `"interrupted"`)
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			var receipt string
			for l := range out {
				receipt = l
			}
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit %d, want %d", got, tt.code)
			}
			if took := time.Since(begin); took > tt.limit {
				t.Errorf("it took %s", took)
			}
			if got := marks(t, dir); got != tt.marks {
				t.Errorf("marks %q, want %q", got, tt.marks)
			}
			attempts, runs := results(t, dir)
			if len(attempts) != 3 {
				t.Errorf("%d attempts are readable, want the 3 finished ones", len(attempts))
			}
			if len(tt.signals) < 3 {
				var last struct {
					Type    string
					Receipt record.Receipt
				}
				if err := json.Unmarshal([]byte(receipt), &last); err != nil || last.Type != "receipt" || last.Receipt.Completion != record.Interrupted {
					t.Errorf("last line %q", receipt)
				}
				for _, r := range runs {
					if r.Completion() != record.Interrupted {
						t.Errorf("run of %s is %q", r.Experiment, r.Completion())
					}
				}
			}
		})
	}
}

// A run that is killed at any moment keeps every sealed attempt and shows
// nothing else, and its record root is free at once.
func TestKillAtRandomMoments(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"experiments/x.yaml":    "agent: {script: {turns: [{commands: [\"echo hi > f; sleep 0.05\"], reply: ok}]}}\nsandbox: {fake: {}}\nattempts: 20\nmaxConcurrency: 3\n",
		"evals/hello.eval.yaml": "prompt: hi\nchecks: [{changed: f}]\n",
	})
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	sealed, killed := map[string]bool{}, 0
	for range rounds {
		cmd := command(t, dir, "exp", "--json", "--rerun", "all")
		out := lines(t, cmd)
		var told []string
		timer := time.AfterFunc(time.Duration(50+rand.IntN(600))*time.Millisecond, func() { cmd.Process.Signal(syscall.SIGKILL) })
		for l := range out {
			var e struct{ Event, Locator string }
			if json.Unmarshal([]byte(l), &e) == nil && e.Locator != "" && e.Event != "start" {
				told = append(told, e.Locator)
			}
		}
		cmd.Wait()
		timer.Stop()
		if cmd.ProcessState.ExitCode() != 0 {
			killed++
		}
		for _, l := range told {
			sealed[l] = true
		}
		if _, err := os.Stat(filepath.Join(dir, ".assay", "record")); err != nil {
			continue // killed before the record was opened
		}
		attempts, _ := results(t, dir)
		seen := map[string]bool{}
		for _, a := range attempts {
			if a.Verdict != record.Passed {
				t.Errorf("attempt %s is %s: %+v", a.Locator, a.Verdict, a.Error)
			}
			if seen[string(a.Locator)] {
				t.Errorf("attempt %s is there twice", a.Locator)
			}
			seen[string(a.Locator)] = true
		}
		for l := range sealed {
			if !seen[l] {
				t.Errorf("attempt %s was told and is lost", l)
			}
		}
	}
	if killed == 0 || len(sealed) == 0 {
		t.Errorf("%d of %d runs were killed and %d attempts sealed: the test shows nothing", killed, rounds, len(sealed))
	}
}
