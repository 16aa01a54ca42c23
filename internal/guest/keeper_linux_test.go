package guest_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

// A guest that is killed itself leaves nothing running: what is below its
// supervisors is killed by them.
func TestGuestThatIsKilledLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		mark := fmt.Sprint("MARK=", t.Name(), os.Getpid())
		started := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := trySh(t.Context(), g, "setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & echo x; sleep 1000", env(mark), func(r *guest.ExecRequest) {
				r.Stdout = &after{want: "x", f: func() { close(started) }}
			})
			done <- err
		}()
		<-started
		if len(marked(t, mark)) == 0 {
			t.Fatal("nothing runs")
		}
		if err := syscall.Kill(g.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Error("a command of a guest that was killed ended well")
		}
		for end := time.Now().Add(30 * time.Second); len(marked(t, mark)) > 0; {
			if time.Now().After(end) {
				t.Fatalf("left: %v", marked(t, mark))
			}
			runtime.Gosched()
		}
	})
}

// No signal but SIGKILL and SIGSTOP harms the guest or a supervisor.
func TestSignalsAreEndured(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		// The parent of a command is its supervisor; the guest is that one's.
		r := sh(t, g, `
			guest=$(while read -r key value; do [ "$key" = PPid: ] && echo $value; done < /proc/$PPID/status)
			for s in 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 17 18 20 21 22 23 24 25 26 27 28 29 30 31 34 40 64; do
				kill -$s $PPID && kill -$s $guest || echo "signal $s"
			done
			echo end`)
		if r.out != "end\n" || r.Code != 0 {
			t.Errorf("the command: %+v", r)
		}
		if r := sh(t, g, "echo on"); r.out != "on\n" {
			t.Errorf("afterwards: %+v", r)
		}
	})
}

// What a command starts with says nothing of the process that started it: no
// blocked and no ignored signals, no descriptors, a session of its own.
func TestCommandsStartClean(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		r := sh(t, g, "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | tr '\\n' ' '; echo; ps -o sid= -p $$ | tr -d ' '; echo $$")
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if len(lines) != 5 {
			t.Fatalf("%q %q", r.out, r.err)
		}
		for _, l := range lines[:2] {
			if !strings.HasSuffix(l, "0000000000000000") {
				t.Errorf("signals: %s", l)
			}
		}
		if lines[2] != "0 1 2 3 " { // 3 is the directory that ls reads
			t.Errorf("descriptors: %s", lines[2])
		}
		if lines[3] != lines[4] {
			t.Errorf("session %s of process %s", lines[3], lines[4])
		}
	})
}

// The memory that a keeper and its command share for a moment is given back, and
// many at once do not disturb each other.
func TestManyCommandsAtOnce(t *testing.T) {
	g := guesttest.Start(t, false)
	failed := make(chan string, 64)
	for i := range 64 {
		go func() {
			for range 8 {
				r, err := trySh(t.Context(), g, fmt.Sprintf("echo %d; exit %d", i, i))
				if err != nil || r.Code != i || r.out != fmt.Sprintln(i) {
					failed <- fmt.Sprintf("%d: %+v, %v", i, r, err)
					return
				}
			}
			failed <- ""
		}()
	}
	for range 64 {
		if why := <-failed; why != "" {
			t.Error(why)
		}
	}
	if ps, err := g.Processes(t.Context()); err != nil || len(ps) > 0 {
		t.Errorf("left: %v, %v", ps, err)
	}
}

// The limit on open files is the one that the guest was started with, though its
// runtime raises it for itself.
func TestCommandsGetTheLimitOnOpenFiles(t *testing.T) {
	for _, more := range []string{"", " --init-apart"} {
		g := guesttest.StartCommand(t, false, "sh", "-c", `ulimit -Sn 200; exec "$0" --init`+more, guesttest.Build(t))
		if r := sh(t, g, "ulimit -Sn"); r.out != "200\n" {
			t.Errorf("with%q: %+v", more, r)
		}
	}
}
