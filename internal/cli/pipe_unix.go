//go:build unix

package cli

import (
	"errors"
	"os/signal"
	"syscall"
)

// keepPipes makes a write to a reader that left an error instead of our end.
func keepPipes() { signal.Ignore(syscall.SIGPIPE) }

// isPipe reports whether the reader of the output has left.
func isPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
