package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/record"
)

// childVar makes this test binary hold a lease until its input ends.
const childVar = "LEASE_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVar); dir != "" {
		l, err := Dir{dir}.Acquire(context.Background(), "k", Holder{Owner: *record.CurrentOwner()}, nil)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held", l.Record().Token)
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = l.Release("")
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func me() Holder { return Holder{Owner: *record.CurrentOwner(), Experiment: "x"} }

func files(t *testing.T, d Dir, suffix string) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(d.Path, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestKeys(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "mempal/codex/cohort-a": true, "0._-/": true, strings.Repeat("a", 128): true,
		"": false, "A": false, "/a": false, "a b": false, "ä": false, strings.Repeat("a", 129): false, "a\n": false,
	} {
		if err := CheckKey(key); (err == nil) != ok {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func TestThousandCyclesLeaveNothing(t *testing.T) {
	d := Dir{t.TempDir()}
	for i := range 1000 {
		l, err := d.Acquire(t.Context(), "k", me(), nil)
		if err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		if err := l.Release(""); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		if err := l.Release("late"); err != nil { // the first counts
			t.Fatal(err)
		}
	}
	if n := files(t, d, ".json"); n != 0 {
		t.Errorf("%d owner records are left", n)
	}
}

// Eight contenders over a hundred rounds: one holds at a time, all get their turn.
func TestEightWaiters(t *testing.T) {
	d := Dir{t.TempDir()}
	var inside, turns, waits atomic.Int64
	for range 100 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				l, err := d.Acquire(t.Context(), "k", me(), func(Record) { waits.Add(1) })
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold the lease at once", n)
				}
				turns.Add(1)
				inside.Add(-1)
				if err := l.Release(""); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if turns.Load() != 800 || waits.Load() == 0 {
		t.Errorf("%d turns, %d waits", turns.Load(), waits.Load())
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	d := Dir{t.TempDir()}
	l, err := d.Acquire(t.Context(), "k", me(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release("")
	ctx, cancel := context.WithCancel(t.Context())
	var holder Record
	_, err = d.Acquire(ctx, "k", me(), func(r Record) { holder = r; cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait gives %v", err)
	}
	if holder.Token != l.Record().Token || !strings.Contains(holder.String(), "for experiment x") {
		t.Errorf("the waiter was told of %+v", holder)
	}
	other, err := d.Acquire(t.Context(), "other", me(), nil)
	if err != nil {
		t.Fatal(err)
	}
	other.Release("")
}

// child starts a process that holds the lease.
func child(t *testing.T, d Dir) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVar+"="+d.Path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	var token string
	if _, err := fmt.Fscanf(out, "held %s\n", &token); err != nil {
		t.Fatal(err)
	}
	return cmd, token
}

// A stopped owner lives: nobody gets its lease, by waiting or by recovery.
func TestStoppedOwnerIsAlive(t *testing.T) {
	d := Dir{t.TempDir()}
	cmd, token := child(t, d)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, life, ok, err := d.Inspect("k"); life != record.Live || !ok || err != nil {
		t.Errorf("a stopped owner is %s, %v, %v", life, ok, err)
	}
	if _, err := d.Recover("k", token, me()); fault.CodeOf(err) != CodeAlive {
		t.Errorf("recovery from a stopped owner gives %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := d.Acquire(ctx, "k", me(), func(Record) { time.AfterFunc(4*pollFirst, cancel) }); !errors.Is(err, context.Canceled) {
		t.Errorf("the lease of a stopped owner gives %v", err)
	}
	if r, left := d.Left("k"); left || r.Token != token {
		t.Errorf("the lease of a stopped owner counts as left: %+v", r)
	}
}

// What a dead owner held is nobody's until it is recovered with its token.
func TestDeadOwnerNeedsRecovery(t *testing.T) {
	d := Dir{t.TempDir()}
	cmd, token := child(t, d)
	cmd.Process.Kill()
	cmd.Wait()
	if _, err := d.Acquire(t.Context(), "k", me(), nil); fault.CodeOf(err) != CodeRecovery || !strings.Contains(fault.FixOf(err), "--recover-shared-state k") {
		t.Errorf("the lease of a dead owner gives %v (%s)", err, fault.FixOf(err))
	}
	r, life, ok, err := d.Inspect("k")
	if err != nil || !ok || life != record.Dead || r.Token != token {
		t.Errorf("a dead owner is %s: %+v, %v", life, r, err)
	}
	if _, err := d.Recover("k", "wrong", me()); fault.CodeOf(err) != CodeToken {
		t.Errorf("a wrong token gives %v", err)
	}
	if again, _, _, _ := d.Inspect("k"); again != r {
		t.Errorf("a wrong token changed %+v to %+v", r, again)
	}
	l, err := d.Recover("k", token, me())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release("the teardown failed"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), "k", me(), nil); fault.CodeOf(err) != CodeRecovery || !strings.Contains(err.Error(), "the teardown failed") {
		t.Errorf("a failed recovery gives %v", err)
	}
	if l, err = d.Recover("k", token, me()); err != nil {
		t.Fatal(err) // this process lives, but it let go
	}
	if err := l.Release(""); err != nil {
		t.Fatal(err)
	}
	if l, err = d.Acquire(t.Context(), "k", me(), nil); err != nil {
		t.Fatal(err)
	}
	l.Release("")
}

// A record that names a living process without holding the lock was planted, or
// comes from where locks do not reach: it is not taken from it.
func TestRecordOfTheLivingIsNotTaken(t *testing.T) {
	d := Dir{t.TempDir()}
	l, err := d.Acquire(t.Context(), "k", me(), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	token := l.Record().Token
	if err := l.Release(""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recover("k", token, me()); fault.CodeOf(err) != CodeAlive {
		t.Errorf("recovery gives %v", err)
	}
}
