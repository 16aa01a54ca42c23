//go:build linux

package dash

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"assay/internal/board"
	"assay/internal/board/boardtest"
	"assay/internal/event"
)

// jobEnv makes this test binary a process of a story instead.
const jobEnv = "DASH_TEST_JOB"

func TestMain(m *testing.M) {
	if job := os.Getenv(jobEnv); job != "" {
		runJob(job)
		return
	}
	goleak.VerifyTestMain(m)
}

func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func openPTY(t *testing.T, columns, rows uint16) (master, tty *os.File) {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Cols: columns, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close(); master.Close() })
	return master, tty
}

// Echo is off while the view lives, signals from keys stay on, and afterwards
// every mode is as it was.
func TestTerminalModes(t *testing.T) {
	master, tty := openPTY(t, 80, 10)
	go func() { _, _ = io.Copy(io.Discard, master) }()
	before := modes(t, tty)
	for _, end := range []func(v *View){
		func(v *View) {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		},
		func(v *View) { v.Restore(); v.Restore() },
	} {
		v := New(tty, Options{Input: tty})
		live := modes(t, tty)
		if live.Lflag&unix.ECHO != 0 || live.Lflag&unix.ISIG == 0 || live.Oflag != before.Oflag {
			t.Errorf("live modes %#o %#o, before %#o %#o", live.Lflag, live.Oflag, before.Lflag, before.Oflag)
		}
		v.Handle(boardtest.Story()[0])
		end(v)
		if after := modes(t, tty); after != before {
			t.Errorf("modes are not restored: %+v, want %+v", after, before)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if !Usable(tty, func(k string) string { return map[string]string{"TERM": "xterm"}[k] }) {
		t.Error("a terminal is not usable")
	}
	for k, val := range map[string]string{"TERM": "dumb", "CI": "true"} {
		env := map[string]string{"TERM": "xterm"}
		env[k] = val
		if Usable(tty, func(k string) string { return env[k] }) {
			t.Errorf("usable with %s=%s", k, val)
		}
	}
}

// A real pseudo-terminal of ten rows: bytes through the kernel's line
// discipline, size from the kernel.
func TestPseudoTerminal(t *testing.T) {
	master, tty := openPTY(t, 100, 10)
	term := newTerminal(100, 10)
	const last = "-- end --"
	copied := make(chan error, 1)
	go func() {
		r := bufio.NewReader(master)
		for {
			line, err := r.ReadString('\n')
			// The kernel has made the carriage returns: hand the bytes on.
			term.mu.Lock()
			_, _ = term.e.WriteString(line)
			term.mu.Unlock()
			if err != nil || strings.Contains(line, last) {
				copied <- err
				return
			}
		}
	}()
	v := New(tty, Options{Input: tty, NoColor: true, Options: board.Options{Command: "assay exp crowd"}})
	running, ending := boardtest.Crowd(54, 4)
	for _, e := range append(running, ending...) {
		v.Handle(e)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(tty, last)
	if err := <-copied; err != nil {
		t.Fatal(err)
	}
	history, screen := term.text()
	all := history + screen
	if strings.Count(all, "failed   crowd") != 4 || strings.Contains(all, "54 done") {
		t.Errorf("torn or doubled:\n%s", all)
	}
	if !strings.Contains(screen, "Next: assay show @1000000000000") || strings.Count(all, "FAILED  54 attempts: 50 passed, 4 failed") != 1 {
		t.Errorf("no summary:\n%s", all)
	}
}

// runJob is what the test binary does as a process of TestKeysOfTheTerminal.
// "shell" leads the session and does what a shell does for one job; "job" is a
// view that lives until it is interrupted.
func runJob(name string) {
	switch name {
	case "shell":
		if err := shell(); err != nil {
			fmt.Println("shell:", err)
			os.Exit(1)
		}
	case "job":
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		v := New(os.Stdout, Options{Input: os.Stdin, NoColor: true})
		v.Handle(event.Start{Time: boardtest.Epoch, Total: 3})
		<-interrupts
		v.Handle(event.Interrupt{Signal: "SIGINT", Level: 1})
		if err := v.Close(); err != nil {
			os.Exit(1)
		}
	}
}

func shell() error {
	signal.Ignore(syscall.SIGTTOU) // to take the terminal back from the background
	job := exec.Command(os.Args[0])
	job.Env = append(os.Environ(), jobEnv+"=job")
	job.Stdin, job.Stdout, job.Stderr = os.Stdin, os.Stdout, os.Stderr
	job.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: 0}
	if err := job.Start(); err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(job.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil {
		return err
	}
	m, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		return err
	}
	fmt.Printf("[stopped=%v echo=%v]\n", status.Stopped(), m.Lflag&unix.ECHO != 0)
	if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, job.Process.Pid); err != nil {
		return err
	}
	if err := syscall.Kill(-job.Process.Pid, syscall.SIGCONT); err != nil {
		return err
	}
	if _, err := syscall.Wait4(job.Process.Pid, &status, 0, nil); err != nil {
		return err
	}
	if m, err = unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		return err
	}
	fmt.Printf("[exited=%v code=%d echo=%v]\n", status.Exited(), status.ExitStatus(), m.Lflag&unix.ECHO != 0)
	return nil
}

// Ctrl-Z stops the job with the terminal as it was, `fg` brings the panel back,
// and Ctrl-C arrives as SIGINT.
func TestKeysOfTheTerminal(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), jobEnv+"=shell")
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 100, Rows: 10})
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer master.Close()
	var seen strings.Builder
	r := bufio.NewReader(master)
	// until reads up to a line with what.
	until := func(what string) string {
		var part strings.Builder
		for {
			line, err := r.ReadString('\n')
			seen.WriteString(line)
			part.WriteString(line)
			if strings.Contains(line, what) {
				return part.String()
			}
			if err != nil {
				t.Fatalf("%v before %q in\n%q", err, what, seen.String())
			}
		}
	}
	press := func(key string) {
		if _, err := io.WriteString(master, key); err != nil {
			t.Fatal(err)
		}
	}
	until("0/3 done")
	press("typed\n\x1a") // not echoed; then Ctrl-Z
	if part := until("[stopped="); !strings.Contains(part, "[stopped=true echo=true]") || strings.Contains(part, "typed") {
		t.Errorf("after Ctrl-Z: %q", part)
	}
	until("0/3 done")
	press("\x03")
	if part := until("[exited="); !strings.Contains(part, "interrupted by SIGINT") || !strings.Contains(part, "[exited=true code=0 echo=true]") {
		t.Errorf("after Ctrl-C: %q", part)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
