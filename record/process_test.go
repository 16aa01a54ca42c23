package record

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/fault"
	"assay/ref"
)

// child starts this test binary in a part.
func child(tb testing.TB, part, root string) (*exec.Cmd, *bufio.Reader) {
	tb.Helper()
	cmd, out, _ := childWithInput(tb, part, root)
	return cmd, out
}

func childWithInput(tb testing.TB, part, root string) (*exec.Cmd, *bufio.Reader, io.Writer) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(self, root)
	cmd.Env = append(os.Environ(), childEnv+"="+part)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewReader(out), in
}

// sealForever is the part of a process that seals until it is killed. It prints
// each attempt's id after Seal returned.
func sealForever(root string) {
	w, err := Open(root, "sealing")
	check(err)
	run := testRun("x", 4000)
	rw, err := w.StartRun(run)
	check(err)
	fmt.Println("run", run.ID)
	for i := range run.Slots {
		a := testAttempt(run, i, Passed)
		if i%3 == 2 {
			check(rw.Member(Member{SlotRef: run.Slots[i], Origin: Carried, Run: ref.NewRun(), Attempt: a.ID}))
			fmt.Println("member", a.ID)
			continue
		}
		check(rw.Seal(Sealed{Attempt: a, Events: raws(50, `{"n":%d}`), Commands: raws(3, `{"n":%d}`), Diff: &Diff{}}))
		fmt.Println("sealed", a.ID)
	}
	os.Exit(0)
}

// contend is the part of a process that tries for the lock once for each line
// of its input and says how it went; once it won it holds the lock.
func contend(root string) {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if _, err := Open(root, "contend --with\x1b[31m escape"); err != nil {
			fmt.Println(fault.CodeOf(err), strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println("won")
	}
	os.Exit(0)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// A process is killed at random moments; a reader then lists every attempt that
// was counted, at most the one that was being counted beyond it, and nothing
// broken.
func TestKilledWriterLosesNothingThatItCounted(t *testing.T) {
	root := filepath.Join(t.TempDir(), "record")
	const rounds = 30
	torn := 0
	for round := range rounds {
		cmd, out := child(t, "seal", root)
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		run := ref.RunID(strings.TrimSpace(strings.TrimPrefix(line, "run ")))
		time.AfterFunc(time.Duration(rand.IntN(40_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		counted := map[string]bool{}
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				break // a torn last line was counted too, but is not whole
			}
			counted[strings.TrimSpace(line)] = true
		}
		_ = cmd.Wait()

		r := mustReader(t, root)
		s, err := r.Run(run)
		if err != nil {
			t.Fatal(err)
		}
		if s.Status != StatusInterrupted || s.Completion() != Interrupted || len(s.Problems) > 0 {
			t.Fatalf("round %d: status %q, problems %v", round, s.Status, s.Problems)
		}
		found := map[string]bool{}
		for _, m := range s.Members {
			found["member "+string(m.Attempt)] = true
		}
		refs, err := r.AttemptRefs(run)
		if err != nil {
			t.Fatal(err)
		}
		for a, err := range r.Attempts(t.Context(), refs) {
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			found["sealed "+string(a.ID)] = true
			events := 0
			for _, err := range r.Events(AttemptRef{run, a.ID}) {
				if err != nil {
					t.Fatal(err)
				}
				events++
			}
			if events != 50 {
				t.Fatalf("round %d: attempt %s has %d events", round, a.ID, events)
			}
		}
		for c := range counted {
			if !found[c] {
				t.Errorf("round %d: %s was counted and is lost", round, c)
			}
		}
		if extra := len(found) - len(counted); extra > 1 {
			t.Errorf("round %d: %d results beyond the %d that were counted", round, extra, len(counted))
		}
		if left, _ := os.ReadDir(filepath.Join(root, tmpDir)); len(left) > 0 {
			torn++
		}
		_ = r.Close()
	}
	t.Logf("%d of %d kills came in the middle of a write", torn, rounds)
	mustOpen(t, root)
	if left, _ := os.ReadDir(filepath.Join(root, tmpDir)); len(left) > 0 {
		t.Errorf("the next writer leaves %v", left)
	}
}

func TestOneOfEightGetsTheLock(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "real", "record")
	if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "alias")); err != nil {
		t.Fatal(err)
	}
	names := []string{root, filepath.Join(dir, "alias", "record"), filepath.Join(dir, "real", "..", "alias", ".", "record")}
	type contender struct {
		cmd *exec.Cmd
		out *bufio.Reader
		in  io.Writer
	}
	start := func(i int) contender {
		cmd, out, in := childWithInput(t, "contend", names[i%len(names)])
		return contender{cmd, out, in}
	}
	all := make([]contender, 8)
	for i := range all {
		all[i] = start(i)
	}
	for round := range 50 {
		for _, c := range all {
			if _, err := io.WriteString(c.in, "go\n"); err != nil {
				t.Fatal(err)
			}
		}
		winner := -1
		for i, c := range all {
			line, err := c.out.ReadString('\n')
			switch {
			case err != nil:
				t.Fatal(err)
			case line == "won\n":
				if winner >= 0 {
					t.Fatalf("round %d: two winners", round)
				}
				winner = i
			case !strings.HasPrefix(line, CodeRootBusy+" "):
				t.Errorf("round %d: a loser says %q", round, line)
			case !strings.Contains(line, root) || strings.ContainsRune(line, 0x1b):
				t.Errorf("round %d: the message is %q", round, line)
			}
		}
		if winner < 0 {
			t.Fatalf("round %d: no winner", round)
		}
		// The winner dies without a word, and the lock with it.
		_ = all[winner].cmd.Process.Kill()
		_ = all[winner].cmd.Wait()
		w, err := Open(root, "after the kill")
		if err != nil {
			t.Fatalf("round %d: after the holder's death: %v", round, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		all[winner] = start(winner)
	}
}

func TestBusyRootNamesItsHolder(t *testing.T) {
	root := t.TempDir()
	first, err := Open(root, "exp local --json")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(root, "other")
	if fault.CodeOf(err) != CodeRootBusy || fault.ClassOf(err) != fault.Config || !strings.Contains(fault.FixOf(err), "--record") {
		t.Fatalf("error %v, code %q, fix %q", err, fault.CodeOf(err), fault.FixOf(err))
	}
	for _, want := range []string{root, fmt.Sprint(os.Getpid()), "exp local --json"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
	lock, rerr := os.ReadFile(root + lockSuffix)
	if rerr != nil || !bytes.Contains(lock, []byte("exp local --json")) {
		t.Errorf("the loser changed the lock file: %q, %v", lock, rerr)
	}
	// A reader needs no lock.
	mustReader(t, root)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root + lockSuffix); err != nil {
		t.Errorf("the lock file was removed: %v", err)
	}
	mustOpen(t, root)
}
