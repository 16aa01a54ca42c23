//go:build !(linux || darwin || freebsd)

package dash

import "os"

// tty does nothing where terminals have no echo or job control of this kind.
type tty struct{}

func openTTY(*os.File, func(func()), func()) *tty { return &tty{} }

func (*tty) foreground() bool { return true }
func (*tty) keepQuiet()       {}
func (*tty) restore()         {}
func (*tty) close()           {}
