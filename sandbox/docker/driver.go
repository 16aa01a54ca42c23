package docker

import (
	"context"

	"assay/internal/guestbox"
	"assay/sandbox"
)

// driver is a container whose first process is the exec server.
type driver struct {
	instance
	guestbox.Box
	s *stream
}

// environ is an image's environment with what belongs to a user.
func environ(img *image, u account) map[string]string {
	return guestbox.Environ(img.Env, u.name, u.uid, u.home)
}

// account is what the environment needs to know of a user.
type account struct {
	name string // empty for a uid without an entry
	uid  uint32
	home string
}

// maxLinks is how many symlinks in a row are followed.
const maxLinks = 16

// Stop removes the container, which ends whatever runs in it.
func (d *driver) Stop(ctx context.Context) error {
	err := d.stop(ctx)
	// Closing the stream ends the exec server, and with it every process, even
	// where the engine did not answer.
	_ = d.Client.Close()
	return err
}

var (
	_ sandbox.Driver       = (*driver)(nil)
	_ sandbox.Environer    = (*driver)(nil)
	_ sandbox.Stater       = (*driver)(nil)
	_ sandbox.Tracker      = (*driver)(nil)
	_ sandbox.ProcessEnder = (*driver)(nil)
	_ sandbox.Digester     = (*driver)(nil)
	_ sandbox.Remover      = (*driver)(nil)
	_ sandbox.Lifetimer    = (*driver)(nil)
	_ sandbox.Reporter     = (*driver)(nil)
)
