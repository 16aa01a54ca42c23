package enter

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// builder carries out a plan.
type builder struct {
	*Plan
	devices []device
	mounts  []int
	lower   []int
	proc    int
	sys     int
	pts     int
	shm     int // the directory for /dev of an image, or -1
	cgroups []int
	// alone: only the building thread is confined, so that it has to start the
	// server by an exec.
	alone bool
}

type device struct {
	name string
	fd   int
}

// The directories of the scratch file system. Their names show in the sandbox's
// mount table.
const (
	dirRoot  = "root"
	dirUpper = "up"
	dirWork  = "work"
	dirLower = "low"
	dirDev   = "dev"
)

func (b *builder) build(serve []string) error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"detach from the host's mounts", func() error {
			return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}},
		{"open", b.open},
		{"make the scratch file system", b.scratch},
		{"stack the root", b.stack},
		{"open the kernel's file systems", b.kernel},
		{"change root", b.pivot},
		{"furnish", b.furnish},
		{"start the loopback device", loopback},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			var se stepError
			if errors.As(err, &se) {
				return err
			}
			return stepError{step: s.name, err: err}
		}
	}
	fd := -1
	if b.Proxy {
		var err error
		if fd, err = listen(); err != nil {
			return stepError{step: "listen for the proxy", err: err}
		}
	}
	if err := b.lockDown(); err != nil {
		return err
	}
	if err := ready(fd); err != nil {
		return stepError{step: "reply", err: err}
	}
	if fd >= 0 {
		_ = unix.Close(fd) // the other end has it
	}
	if err := unix.SetNonblock(0, true); err != nil {
		return stepError{step: "reply", err: err}
	}
	if b.alone {
		return stepError{step: "start the server", err: become(serve)}
	}
	for _, fd := range append(b.lower, selfFD) {
		_ = unix.Close(fd) // nothing of the host stays open
	}
	return nil
}

func at(step, path string, err error) error {
	if err == nil {
		return nil
	}
	return stepError{step: step, path: path, err: err}
}

// open takes hold of all that comes from the host, before anything covers it.
func (b *builder) open() error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev/"+name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return at("open", "/dev/"+name, err)
		}
		b.devices = append(b.devices, device{name, fd})
	}
	for _, l := range b.Lower {
		// The scratch file system may cover its path.
		fd, err := unix.Open(l, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return at("open", l, err)
		}
		b.lower = append(b.lower, fd)
	}
	for _, m := range b.Mounts {
		fd, err := unix.OpenTree(unix.AT_FDCWD, m.Host, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return at("open", m.Host, err)
		}
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if !m.Writable {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return at("restrict the mount of", m.Host, err)
		}
		b.mounts = append(b.mounts, fd)
	}
	return nil
}

// scratch makes the place for everything that the sandbox writes and goes there.
func (b *builder) scratch() error {
	if b.Scratch != "" {
		if err := unix.Chdir(b.Scratch); err != nil {
			return at("enter", b.Scratch, err)
		}
	} else {
		opts := "mode=0755,size=" + strconv.FormatInt(b.Size, 10) + ",nr_inodes=" + strconv.FormatInt(b.Inodes, 10)
		if err := unix.Mount("none", b.Base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
			return err
		}
		if err := unix.Chdir(b.Base); err != nil {
			return at("enter", b.Base, err)
		}
	}
	for _, d := range []string{dirRoot, dirUpper, dirWork, dirLower, dirDev} {
		if err := b.mkdir(d); err != nil {
			return at("make", d, err)
		}
	}
	return nil
}

// mkdir makes a directory of the scratch. In a scratch of the host it may be there
// since an earlier life of the sandbox.
func (b *builder) mkdir(name string) error {
	err := unix.Mkdir(name, 0o755)
	if err == unix.EEXIST && b.Scratch != "" {
		return nil
	}
	return err
}

// stack mounts the root. All names are relative, so that the mount table shows
// nothing of the host's layout.
func (b *builder) stack() error {
	if len(b.Lower) > 0 {
		names := make([]string, len(b.Lower))
		for i, fd := range b.lower {
			names[i] = dirLower + "/" + strconv.Itoa(i)
			if err := os.Symlink("/proc/self/fd/"+strconv.Itoa(fd), names[i]); err != nil {
				return err
			}
		}
		return overlay(strings.Join(names, ":"), dirUpper, dirWork, dirRoot)
	}
	if err := unix.Mount(dirRoot, dirRoot, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if b.Scratch != "" {
		// A file system of the host is not limited as the one in memory is.
		if err := unix.Mount("", dirRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return at("restrict", dirRoot, err)
		}
	}
	for _, t := range b.Trees {
		up, work, to := dirUpper+"/"+t, dirWork+"/"+t, dirRoot+"/"+t
		for _, d := range []string{up, work, to} {
			if err := b.mkdir(d); err != nil {
				return at("make", d, err)
			}
		}
		for _, h := range b.Hide {
			if rest, ok := strings.CutPrefix(h, "/"+t+"/"); ok {
				if err := whiteout(up, rest); err != nil {
					return at("hide", h, err)
				}
			}
		}
		if err := overlay("/"+t, up, work, to); err != nil {
			return at("overlay", "/"+t, err)
		}
	}
	for i := 0; i+1 < len(b.Links); i += 2 {
		if err := os.Symlink(b.Links[i+1], dirRoot+"/"+b.Links[i]); err != nil {
			return err
		}
	}
	return nil
}

// overlay mounts an overlay. userxattr keeps its marks in attributes that a user
// namespace may write.
func overlay(lower, upper, work, to string) error {
	return unix.Mount("none", to, "overlay", unix.MS_NOSUID|unix.MS_NODEV,
		"lowerdir="+lower+",upperdir="+upper+",workdir="+work+",userxattr")
}

// whiteout makes name not exist in an overlay: a character device 0/0 in the
// upper directory, below directories that merge with the lower ones.
func whiteout(upper, name string) error {
	dir := upper
	for _, part := range strings.Split(path.Dir(name), "/") {
		if part == "." {
			break
		}
		dir += "/" + part
		if err := unix.Mkdir(dir, 0o755); err != nil && err != unix.EEXIST {
			return err
		}
	}
	return unix.Mknod(upper+"/"+name, unix.S_IFCHR, 0)
}

// kernel makes the kernel's file systems, not yet attached: a fresh proc is
// allowed only as long as the host's own is in sight.
func (b *builder) kernel() error {
	var err error
	if b.proc, err = fresh("proc", 0); err != nil {
		return at("mount", "proc", err)
	}
	if b.sys, err = fresh("sysfs", unix.MOUNT_ATTR_RDONLY); err != nil {
		b.sys = -1 // an empty /sys then
	}
	if b.pts, err = fresh("devpts", 0, "newinstance", "", "ptmxmode", "0666", "mode", "0620"); err != nil {
		return at("mount", "devpts", err)
	}
	b.shm = -1
	if len(b.Lower) > 0 {
		if b.shm, err = unix.OpenTree(unix.AT_FDCWD, dirDev, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return at("open", dirDev, err)
		}
	}
	// The root of the namespace is the cgroup that this process is in by now.
	if err := b.every(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); err != nil {
		return at("unshare", "cgroup", err)
	}
	for _, c := range b.Cgroups {
		fd := -1
		if c == "" {
			fd, err = fresh("cgroup2", unix.MOUNT_ATTR_RDONLY)
		} else {
			fd, err = fresh("cgroup", unix.MOUNT_ATTR_RDONLY, c, "")
		}
		if err != nil {
			fd = -1 // the view is missing; the limits hold
		}
		b.cgroups = append(b.cgroups, fd)
	}
	return nil
}

// fresh makes a file system. Options are names and values in turn; a name
// without a value is a flag.
func fresh(kind string, attrs int, opts ...string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fs) }()
	for i := 0; i+1 < len(opts); i += 2 {
		if opts[i+1] == "" {
			err = unix.FsconfigSetFlag(fs, opts[i])
		} else {
			err = unix.FsconfigSetString(fs, opts[i], opts[i+1])
		}
		if err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NODEV&^nodevOf(kind))
}

// nodevOf is MOUNT_ATTR_NODEV for file systems whose point is devices.
func nodevOf(kind string) int {
	if kind == "devpts" {
		return unix.MOUNT_ATTR_NODEV
	}
	return 0
}

// pivot makes the stacked root the only one.
func (b *builder) pivot() error {
	if err := unix.Chdir(dirRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return at("let go of", "the host's root", err)
	}
	return unix.Chdir("/")
}
