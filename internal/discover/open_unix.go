//go:build unix

package discover

import (
	"os"
	"syscall"
)

// openNonblocking opens a file for reading; a pipe does not make it wait.
func openNonblocking(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
