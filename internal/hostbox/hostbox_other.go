//go:build !linux

package hostbox

import (
	"context"
	"io"
	"os"
)

// Box is one machine.
type Box struct{}

// Proc is a running command.
type Proc struct {
	PID   int
	Stdin io.WriteCloser
}

// Start makes a machine.
func Start(context.Context, Options) (*Box, error) { return nil, ErrUnsupported }

// Root is the machine's root directory.
func (*Box) Root() string { return "" }

// Files opens the machine's root.
func (*Box) Files() (*os.Root, error) { return nil, ErrUnsupported }

// Save copies what the machine wrote.
func (*Box) Save(context.Context, string) error { return ErrUnsupported }

// Stop removes the machine.
func (*Box) Stop() error { return nil }

// Run starts a command.
func (*Box) Run(Command) (*Proc, error) { return nil, ErrUnsupported }

// Freeze pauses the machine.
func (*Box) Freeze() error { return ErrUnsupported }

// Thaw lets a frozen machine run on.
func (*Box) Thaw() error { return ErrUnsupported }

// Done is closed when the command has ended.
func (*Proc) Done() <-chan struct{} { return nil }

// Exit is how it ended.
func (*Proc) Exit() Exit { return Exit{} }

// Signal signals the command itself.
func (*Proc) Signal(int) error { return ErrUnsupported }

// SignalGroup signals the command's process group.
func (*Proc) SignalGroup(int) error { return ErrUnsupported }
