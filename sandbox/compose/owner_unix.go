//go:build unix

package compose

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the owner of a file on this host, as a mount would show it.
func ownerOf(st fs.FileInfo) (uid, gid int) {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), int(s.Gid)
	}
	return 0, 0
}
