//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/charmbracelet/x/term"
)

// watchSize delivers the terminal's new sizes until still is called.
func watchSize(f *os.File) (sizes <-chan [2]uint, still func()) {
	out, changed, quit, done := make(chan [2]uint, 1), make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-changed:
			}
			w, h, err := term.GetSize(f.Fd())
			if err != nil {
				continue
			}
			select {
			case out <- [2]uint{uint(w), uint(h)}:
			case <-quit:
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(changed)
		close(quit)
		<-done
	}
}
