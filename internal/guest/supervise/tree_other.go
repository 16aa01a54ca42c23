//go:build linux && !amd64

package supervise

import (
	"errors"
	"os"

	"assay/internal/guest/wire"
)

// Keeping says whether commands can be given to keepers here.
func Keeping() bool { return false }

// Keeper is not there on this kind of machine.
type Keeper struct{ *Link }

// PID is the keeper's own.
func (*Keeper) PID() int { return 0 }

// Unfit says that nothing was started.
func (*Keeper) Unfit() bool { return true }

// Keep starts nothing.
func Keep(*wire.ExecRequest, [3]*os.File, func(func() (int, error)) error) (*Keeper, error) {
	return nil, errors.ErrUnsupported
}
