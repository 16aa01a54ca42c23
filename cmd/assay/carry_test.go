package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/record"
)

// The same command again resumes a run that was killed at any moment: no sealed
// result is lost, and none is paid for twice.
func TestKilledRunsAreResumed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"experiments/x.yaml":    "agent: {script: {turns: [{commands: [\"echo hi > f; sleep 0.1\"], reply: ok}]}}\nsandbox: {fake: {}}\nattempts: 15\nmaxConcurrency: 3\n",
		"evals/hello.eval.yaml": "prompt: hi\nchecks: [{changed: f}]\n",
	})
	killed := 0
	for round := 0; ; round++ {
		cmd := command(t, dir, "exp", "--json")
		out := lines(t, cmd)
		after := rand.IntN(4) // results of its own, then a moment of the next attempt
		for l := range out {
			var e struct{ Event, Origin string }
			if json.Unmarshal([]byte(l), &e) != nil || e.Event != "eval" || e.Origin != "executed" {
				continue
			}
			if after--; after == 0 && round < 6 {
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				cmd.Process.Signal(syscall.SIGKILL)
			}
		}
		cmd.Wait()
		if cmd.ProcessState.ExitCode() == 0 {
			break
		}
		if killed++; killed > 6 {
			t.Fatal("it never ends")
		}
	}
	executed := map[int]int{}
	last := perSlot(t, dir, func(s record.SlotResult) {
		if s.Origin == record.Executed {
			executed[s.Ordinal]++
		}
	})
	for i := range 15 {
		if executed[i] != 1 {
			t.Errorf("slot %d was executed and sealed %d times", i, executed[i])
		}
	}
	if last != 15 || killed == 0 {
		t.Errorf("the last of %d runs has %d results", killed+1, last)
	}
}

// perSlot visits every slot of every run, and returns how many of the newest have
// a result.
func perSlot(t *testing.T, dir string, visit func(record.SlotResult)) (last int) {
	t.Helper()
	r, err := record.OpenReader(filepath.Join(dir, ".assay", "record"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	runs, _, err := r.Runs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for rs, err := range r.Slots(context.Background(), runs) {
		if err != nil {
			t.Fatal(err)
		}
		last = 0
		for _, s := range rs.Slots {
			visit(s)
			if s.Attempt != nil {
				last++
			}
		}
	}
	return last
}

// clean removes runs that were killed, and leaves those that others refer to.
func TestCleanRemovesWhatKilledRunsLeft(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"experiments/x.yaml":    "agent: {script: {turns: [{commands: [\"sleep 0.2\"], reply: ok}]}}\nsandbox: {fake: {}}\nattempts: 3\nmaxConcurrency: 1\n",
		"evals/hello.eval.yaml": "prompt: hi\n",
	})
	kill := func(after string) {
		cmd := command(t, dir, "exp", "--json", "--rerun", "all")
		out := lines(t, cmd)
		await(t, out, after)
		cmd.Process.Signal(syscall.SIGKILL)
		for range out {
		}
		cmd.Wait()
	}
	run := func(args ...string) (string, int) {
		cmd := command(t, dir, args...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	kill(`"executed"`)
	if out, code := run("exp"); code != 0 || !strings.Contains(out, "1 carried") {
		t.Fatalf("exit %d: %s", code, out)
	}
	kill(`"start"`)
	if out, code := run("clean"); code != 2 || !strings.Contains(out, "confirmation-missing") || !strings.Contains(out, "--yes") {
		t.Errorf("nobody was asked: exit %d: %s", code, out)
	}
	out, code := run("clean", "--yes")
	if code != 0 || strings.Count(out, "refers to it") != 1 || !strings.Contains(out, "removed 1 runs") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, runs := results(t, dir); len(runs) != 2 {
		t.Errorf("%d runs are left", len(runs))
	}
	// The source is now the finished run again, and what it carried still is.
	if out, code := run("exp", "--dry"); code != 0 || strings.Count(out, "carried @") != 3 {
		t.Errorf("exit %d: %s", code, out)
	}
}
