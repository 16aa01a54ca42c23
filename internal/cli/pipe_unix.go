//go:build unix

package cli

import (
	"errors"
	"syscall"
)

// isPipe reports whether the reader of the output has left.
func isPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
