package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/keep"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/record"
)

// killRoundsVar sets how often TestKilledRunsLeaveNothing kills each kind.
const killRoundsVar = "ASSAY_KILL_ROUNDS"

func killRounds(t *testing.T) int {
	t.Helper()
	if s := os.Getenv(killRoundsVar); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() {
		return 2
	}
	return 4
}

// owned lists everything that a process made and that is there, whatever its
// state: containers, networks, volumes, sandboxes on disk, cgroups and processes.
type owned func(t *testing.T, pid int) []string

func ownedByDocker(cli *client.Client) owned {
	return func(t *testing.T, pid int) []string {
		t.Helper()
		ctx, f := context.Background(), make(client.Filters).Add("label", fmt.Sprintf("assay.pid=%d", pid))
		out := labelled(t, cli, pid, true)
		nets, err := cli.NetworkList(ctx, client.NetworkListOptions{Filters: f})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nets.Items {
			out = append(out, "network "+n.ID)
		}
		vols, err := cli.VolumeList(ctx, client.VolumeListOptions{Filters: f})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range vols.Items {
			out = append(out, "volume "+v.Name)
		}
		return out
	}
}

func ownedByNative(t *testing.T, pid int) []string {
	t.Helper()
	var out []string
	boxes, err := filepath.Glob(fmt.Sprintf("/var/tmp/boxes-%d/*", os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		body, _ := os.ReadFile(filepath.Join(b, "box.json")) // one that is just removed has none
		if bytes.Contains(body, fmt.Appendf(nil, `"assay.pid":"%d"`, pid)) {
			out = append(out, filepath.Base(b))
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), fmt.Sprintf("box-%d-", pid)) {
			out = append(out, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// processesWith counts the processes that have a variable in their environment.
func processesWith(mark string) int {
	n := 0
	envs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, e := range envs {
		b, err := os.ReadFile(e)
		if err == nil && bytes.Contains(b, []byte(mark)) {
			n++
		}
	}
	return n
}

// Runs that are killed at random moments, in the middle of sharing sandboxes or of
// keeping them, leave nothing that the next start does not remove; what a live
// run owns, what is kept and what is sealed stays.
func TestKilledRunsLeaveNothing(t *testing.T) {
	t.Run("docker", func(t *testing.T) {
		testreq.Docker(t)
		cli, _ := testreq.Engine(t)
		killedRuns(t, "docker: {image: \""+testimage.Slice(t)+"\"}, network: none", ownedByDocker(cli))
	})
	t.Run("native", func(t *testing.T) {
		need(t, quickstart(t), "native")
		killedRuns(t, "native: {}", ownedByNative)
	})
}

func killedRuns(t *testing.T, box string, owned owned) {
	guest := "ASSAY_GUEST=" + guesttest.Build(t)
	start := func(dir string, args ...string) *exec.Cmd {
		cmd := command(t, dir, args...)
		cmd.Env = append(cmd.Env, guest)
		return cmd
	}
	base, mark := t.TempDir(), fmt.Sprintf("KILL_TEST=%d-%d", os.Getpid(), time.Now().UnixNano())
	name, value, _ := strings.Cut(mark, "=")
	env := fmt.Sprintf("{%s: %q}", name, value)
	live, dir := filepath.Join(base, "live"), filepath.Join(base, "killed")
	write(t, live, map[string]string{
		"experiments/l.yaml":    "agent: {command: {run: 'sleep 3600'}}\nsandbox: {" + box + "}\nattempts: 2\n",
		"evals/hello.eval.yaml": "prompt: hi\n",
	})
	agent := "agent: {script: {turns: [{commands: [\"(setsid sleep 3600 >/dev/null 2>&1 &) ; echo hi > f; sleep 0.05\"], reply: ok}]}}\n"
	write(t, dir, map[string]string{
		"experiments/reuse.yaml": agent + "sandbox: {" + box + ", user: \"1000\", lifetime: 1h, env: " + env + "}\nsandboxReuse: true\nattempts: 8\nmaxConcurrency: 2\n",
		"experiments/kept.yaml":  agent + "sandbox: {" + box + ", env: " + env + "}\nattempts: 4\nmaxConcurrency: 2\n",
		"experiments/next.yaml":  "agent: nop\nsandbox: {" + box + "}\n",
		"evals/hello.eval.yaml":  "prompt: hi\nchecks: [{changed: f, soft: true}, {maxToolCalls: 9}]\n",
	})
	alive := start(live, "exp", "--json")
	out := lines(t, alive)
	go func() {
		for range out {
		}
	}()
	until(t, "the live run has its sandboxes", func() bool { return len(owned(t, alive.Process.Pid)) >= 2 })
	before := owned(t, alive.Process.Pid)
	registry := keep.Registry{Dir: filepath.Join(dir, ".assay", "sandboxes")}
	t.Cleanup(func() {
		if b, err := start(dir, "sandbox", "stop", "--all").CombinedOutput(); err != nil {
			t.Errorf("stop what was kept: %v\n%s", err, b)
		}
		_ = alive.Process.Signal(syscall.SIGINT)
		_ = alive.Wait()
		if left := owned(t, alive.Process.Pid); len(left) > 0 {
			t.Errorf("the live run left %q", left)
		}
	})
	told, killed, leftovers := map[string]bool{}, 0, 0
	// How long a whole run takes differs by machine and by kind: one that was over
	// before its moment came says when the moments must be.
	span := 2500 * time.Millisecond
	for round, rounds := 0, killRounds(t); round < rounds || killed == 0 && round < rounds+10; round++ {
		args := []string{"exp", "reuse", "--rerun", "all", "--json"}
		if round%2 == 1 {
			args = []string{"exp", "kept", "--keep-sandbox=all", "--json"}
		}
		victim := start(dir, args...)
		begin := time.Now()
		timer := time.AfterFunc(50*time.Millisecond+rand.N(span), func() { _ = victim.Process.Kill() })
		for l := range lines(t, victim) {
			var e struct{ Event, Locator string }
			if json.Unmarshal([]byte(l), &e) == nil && e.Locator != "" && e.Event != "start" {
				told[e.Locator] = true
			}
		}
		_ = victim.Wait()
		timer.Stop()
		if victim.ProcessState.ExitCode() == -1 {
			killed++
		} else {
			span = max(100*time.Millisecond, min(span, time.Since(begin)-50*time.Millisecond))
		}
		leftovers += len(owned(t, victim.Process.Pid))
		b, err := start(dir, "exp", "next", "--rerun", "all").CombinedOutput()
		if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() > 1) {
			t.Fatalf("the next start: %v\n%s", err, b)
		}
		kept, err := registry.List()
		if err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc(owned(t, victim.Process.Pid), func(id string) bool {
			return slices.ContainsFunc(kept, func(e keep.Entry) bool { return e.SandboxID == id })
		})
		if len(left) > 0 {
			t.Errorf("round %d: after the next start there is still %q\n%s", round, left, b)
		}
		until(t, "no process of a dead run lives", func() bool { return processesWith(mark) == 0 })
		if after := owned(t, alive.Process.Pid); !slices.Equal(before, after) {
			t.Errorf("round %d: the live run owned %q and owns %q", round, before, after)
		}
		sealed(t, dir, told)
	}
	if killed == 0 {
		t.Errorf("no run was killed: the test shows nothing")
	}
	t.Logf("%d runs were killed, which left %d things", killed, leftovers)
	entries, err := registry.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if b, err := start(dir, "sandbox", "enter", e.ID, "--", "cat", "f").CombinedOutput(); err != nil || string(b) != "hi\n" {
			t.Errorf("the kept sandbox %s gives %q, %v", e.ID, b, err)
		}
	}
}

// sealed holds the record to what was told: nothing lost, nothing twice.
func sealed(t *testing.T, dir string, told map[string]bool) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, ".assay", "record")); err != nil {
		return
	}
	attempts, _ := results(t, dir)
	seen := map[string]*record.Attempt{}
	for _, a := range attempts {
		if o := seen[string(a.Locator)]; o != nil && o.ID != a.ID {
			t.Errorf("attempt %s is there twice", a.Locator)
		}
		seen[string(a.Locator)] = a
	}
	for l := range told {
		if seen[l] == nil {
			t.Errorf("attempt %s was told and is lost", l)
		}
	}
}
