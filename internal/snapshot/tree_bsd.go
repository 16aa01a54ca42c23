//go:build unix && !linux

package snapshot

import "golang.org/x/sys/unix"

const (
	openPath  = unix.O_RDONLY
	openQuiet = 0
)

func openBeneath(int, string, int) (int, error) { return -1, unix.ENOSYS }

func canOpenBeneath(int) bool { return false }

// chmodAt changes the mode without following a link.
func chmodAt(dir int, name string, perm uint32) error {
	return unix.Fchmodat(dir, name, perm&0o7777, unix.AT_SYMLINK_NOFOLLOW)
}

func chmodFD(fd int, perm uint32) error { return unix.Fchmod(fd, perm&0o7777) }

func clearFlags(int, string) bool { return false }
