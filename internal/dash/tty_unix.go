//go:build linux || darwin || freebsd

package dash

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// tty holds the modes of the terminal that the user types on. Only the echo is
// taken away; signals from keys stay the kernel's business. It also watches the
// two signals of job control, which are about the terminal and not about the
// run: the command line owns all others.
type tty struct {
	mu    sync.Mutex
	fd    int           // -1: no terminal
	saved *unix.Termios // the modes to give back, nil while they stand
	over  bool          // restored for good

	quit chan struct{} // closed by close
	done chan struct{} // closed when the watch has ended
	once sync.Once
}

// openTTY turns the echo of f off. suspend is called when the process is to stop
// (Ctrl-Z); it clears the panel and calls stop while nobody else can draw.
// resume is called after the process was continued.
func openTTY(f *os.File, suspend func(stop func()), resume func()) *tty {
	t := &tty{fd: -1, quit: make(chan struct{}), done: make(chan struct{})}
	if f != nil {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), getTermios); err == nil {
			t.fd = int(f.Fd())
		}
	}
	if t.fd < 0 {
		close(t.done)
		return t
	}
	t.keepQuiet()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTSTP, unix.SIGCONT)
	go t.watch(signals, suspend, resume)
	return t
}

// watch acts on the signals of job control until close.
func (t *tty) watch(signals chan os.Signal, suspend func(stop func()), resume func()) {
	defer close(t.done)
	defer signal.Stop(signals)
	for {
		var s os.Signal
		select {
		case <-t.quit:
			return
		case s = <-signals:
		}
		if s == unix.SIGTSTP {
			suspend(t.stop)
			continue
		}
		t.keepQuiet()
		resume()
	}
}

// stop returns the modes and stops the process. A caught signal cannot be given
// back its own action here, so a sibling of SIGTSTP does it: like that one, the
// kernel ignores it where no shell could continue us; SIGSTOP would hang there.
func (t *tty) stop() {
	t.mu.Lock() // nobody turns the echo off in between
	defer t.mu.Unlock()
	t.giveBack()
	_ = unix.Kill(os.Getpid(), unix.SIGTTIN)
}

// foreground reports whether the terminal is ours now. To change its modes from
// the background would stop the process.
func (t *tty) foreground() bool {
	if t.fd < 0 {
		return true
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// keepQuiet turns the echo off where it is on and the terminal is ours.
func (t *tty) keepQuiet() {
	if t.fd < 0 || !t.foreground() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	now, err := unix.IoctlGetTermios(t.fd, getTermios)
	if err != nil || now.Lflag&unix.ECHO == 0 {
		return // off already, by us or by whoever wanted it so
	}
	quiet := *now
	quiet.Lflag &^= unix.ECHO
	if unix.IoctlSetTermios(t.fd, setTermios, &quiet) == nil {
		t.saved = now
	}
}

// giveBack returns the modes. The caller holds mu.
func (t *tty) giveBack() {
	if t.saved == nil || !t.foreground() {
		return
	}
	// Keys typed meanwhile were meant for nobody; a shell would run them.
	_ = flushInput(t.fd)
	_ = unix.IoctlSetTermios(t.fd, setTermios, t.saved)
	t.saved = nil
}

// restore returns the modes for good. It waits for no output.
func (t *tty) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.giveBack()
}

// close restores and ends the watch.
func (t *tty) close() {
	t.restore()
	t.once.Do(func() { close(t.quit) })
	<-t.done
}
