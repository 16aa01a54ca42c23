//go:build !linux || !amd64

package fork

import "errors"

// Available says whether Start can be used on this kind of machine.
const Available = false

// Start starts a program in the root directory, in a session of its own.
func Start(*Spec) (pid int, err error) { return 0, errors.ErrUnsupported }
