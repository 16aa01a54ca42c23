package record

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Where the system hides the processes of others, a live one is not dead.
func TestAHiddenProcessIsNotDead(t *testing.T) {
	me := CurrentOwner()
	if me.Start == "" {
		t.Skip("this system tells of no process")
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	was := proc
	defer func() { proc = was }()
	proc = t.TempDir() // as of a proc that is mounted with hidepid
	for _, name := range []string{"sys/kernel/random/boot_id", "self/ns/pid"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(proc, "sys/kernel/random/boot_id"), []byte(me.Boot), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(me.PIDNamespace, filepath.Join(proc, "self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	if got := LivenessOf(me); got != Unverified {
		t.Errorf("a live process that is hidden is %s", got)
	}
	over := *me
	over.PID = gone.Process.Pid
	if got := LivenessOf(&over); got != Dead {
		t.Errorf("a process that is gone is %s", got)
	}
}

// A process that nobody waited for yet has ended all the same.
func TestAZombieIsDead(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := CurrentOwner()
	o.PID = cmd.Process.Pid
	_, _, o.Start = processFacts(o.PID)
	if o.Start == "" {
		t.Skip("this system tells of no process")
	}
	if got := LivenessOf(o); got != Live {
		t.Errorf("it is %s while it runs", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); LivenessOf(o) == Live && time.Since(begin) < 10*time.Second; {
		time.Sleep(10 * time.Millisecond)
	}
	if got := LivenessOf(o); got != Dead {
		t.Errorf("a zombie is %s", got)
	}
	_ = cmd.Wait()
}
