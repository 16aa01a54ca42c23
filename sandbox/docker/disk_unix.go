//go:build unix

package docker

import "golang.org/x/sys/unix"

// diskFree returns the bytes that are free where path is.
var diskFree = func(path string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:unconvert // the types differ between systems
}
