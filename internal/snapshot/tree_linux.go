package snapshot

import (
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// openPath opens a directory as a base for further calls; it needs no
	// permission on the directory itself.
	openPath = unix.O_PATH
	// openQuiet leaves the access time alone.
	openQuiet = unix.O_NOATIME
)

const noLinks = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openBeneath opens a path of any depth without following a link (openat2(2),
// Linux 5.6).
func openBeneath(dir int, p string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: noLinks}
	return unix.Openat2(dir, p, &how)
}

// canOpenBeneath tells whether the kernel, or a filter in front of it, allows
// openat2 here.
func canOpenBeneath(dir int) bool {
	fd, err := openBeneath(dir, ".", dirFlags)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// chmodAt changes the mode without following a link: fchmodat(2) would follow
// one, so it goes through a descriptor of the very file.
func chmodAt(dir int, name string, perm uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&TypeMask == TypeLink {
		return unix.ELOOP
	}
	return chmodFD(fd, perm)
}

// chmodFD changes the mode of what fd is, also when fd is O_PATH.
func chmodFD(fd int, perm uint32) error {
	// Linux 6.6 has fchmodat2 with AT_EMPTY_PATH; /proc works before it.
	err := unix.Fchmodat(fd, "", perm&0o7777, unix.AT_EMPTY_PATH)
	if err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EINVAL || err == unix.EPERM {
		if e := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), perm&0o7777); e != unix.ENOENT {
			return e
		}
	}
	return err
}

// Inode flags (ioctl_iflags(2)) that forbid changes even to root.
const lockedFlags = 0x10 | 0x20 // FS_IMMUTABLE_FL, FS_APPEND_FL

// clearFlags takes the immutable and append-only flags off a file and its
// directory, and tells whether there was one to take off.
func clearFlags(dir int, name string) bool {
	changed := false
	for _, n := range []string{".", name} {
		fd, err := unix.Openat(dir, n, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
		if err == nil && flags&lockedFlags != 0 {
			err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^lockedFlags))
			changed = changed || err == nil
		}
		unix.Close(fd)
	}
	return changed
}
