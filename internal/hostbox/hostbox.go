// Package hostbox makes the machines of the doubles of cloud services: real
// processes of this host in namespaces of their own, with a private root. It is
// for tests: it needs Linux and root, and it confines nobody who wants out.
package hostbox

import (
	"context"
	"errors"
	"io"
	"time"
)

// User is an account of a machine.
type User struct {
	Name string
	UID  int
	Home string
}

// Options say what a machine starts from.
type Options struct {
	// Users are the accounts besides root; their homes are made.
	Users []User
	// Dirs are made and given to the first user.
	Dirs []string
	// From is a folder that Save made, or "".
	From string
	// Hostname is what the machine calls itself.
	Hostname string
}

// Command is one command of a machine.
type Command struct {
	// Argv is run as it is; Argv[0] is looked up in Env's PATH. What cannot be
	// run ends with 127 and a message, as a shell has it.
	Argv []string
	Dir  string
	Env  []string
	UID  int
	GID  int
	// Stdin, when it is set, gives the command an input that Proc.Stdin feeds.
	Stdin bool
	// Stdout and Stderr get the output until every holder of it has closed it,
	// or, with Drain, for that long after the command's own end.
	Stdout, Stderr io.Writer
	Drain          time.Duration
}

// Exit is how a command ended.
type Exit struct {
	// Code is the exit code, or -1 after a signal.
	Code int
	// Signal is the number of the signal that ended it, or 0.
	Signal int
}

// Errors of machines.
var (
	// ErrUnsupported is matched where no machine can be made.
	ErrUnsupported = errors.New("hostbox: machines need Linux, root, unshare and overlay file systems")
	// ErrStopped is returned by a machine that is no more.
	ErrStopped = errors.New("hostbox: the machine was stopped")
	// ErrNoDir is returned for a working directory that does not exist.
	ErrNoDir = errors.New("hostbox: the working directory does not exist")
)

// Supported says why no machine can be made here, or nil.
func Supported() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b, err := Start(ctx, Options{})
	if err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	return b.Stop()
}
