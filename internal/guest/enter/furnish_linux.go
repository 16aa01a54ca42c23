package enter

import (
	"os"
	"path"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// furnish fills the new root. Every path is below it now, so that a symlink of
// an image leads nowhere else.
func (b *builder) furnish() error {
	_ = unix.Umask(0) // cannot fail
	for _, d := range b.Dirs {
		if err := b.makeDir(d); err != nil {
			return at("make", d.Path, err)
		}
	}
	if err := b.devs(); err != nil {
		return err
	}
	if err := b.attach(b.proc, "/proc"); err != nil {
		return err
	}
	if b.sys >= 0 {
		if err := b.attach(b.sys, "/sys"); err != nil {
			return err
		}
		if err := b.showCgroups(); err != nil {
			return err
		}
	}
	for _, f := range b.Files {
		if err := b.write(f); err != nil {
			return at("write", f.Path, err)
		}
	}
	for i, m := range b.Mounts {
		if err := b.attachMount(b.mounts[i], m.Path); err != nil {
			return err
		}
	}
	_ = unix.Umask(0o022)
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return at("set", "host name", err)
	}
	return b.mask()
}

func (b *builder) makeDir(d Dir) error {
	made := ""
	for i := 1; i <= len(d.Path); i++ {
		if i < len(d.Path) && d.Path[i] != '/' {
			continue
		}
		err := unix.Mkdir(d.Path[:i], 0o755)
		if err == nil {
			made = d.Path[:i]
			if i < len(d.Path) && b.Many {
				err = unix.Lchown(made, int(d.UID), int(d.GID))
			}
		}
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	if made != d.Path {
		st, err := os.Stat(d.Path)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return unix.ENOTDIR
		}
		return nil
	}
	if b.Many {
		if err := unix.Lchown(d.Path, int(d.UID), int(d.GID)); err != nil {
			return err
		}
	}
	return unix.Chmod(d.Path, d.Mode)
}

// write writes a file anew: what stands there may be a symlink, or belong to
// somebody without an identity in this namespace.
func (b *builder) write(f File) error {
	if err := unix.Unlink(f.Path); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := unix.Open(f.Path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, f.Mode)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if b.Many {
		if err := unix.Fchown(fd, int(f.UID), int(f.GID)); err != nil {
			return err
		}
	}
	for data := []byte(f.Data); len(data) > 0; {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// devs makes /dev.
func (b *builder) devs() error {
	if b.shm >= 0 {
		if err := b.attach(b.shm, "/dev"); err != nil {
			return err
		}
	} else if err := unix.Mkdir("/dev", 0o755); err != nil {
		return at("make", "/dev", err)
	}
	for _, d := range b.devices {
		name := "/dev/" + d.name
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return at("make", name, err)
		}
		_ = unix.Close(fd)
		if err := attach(d.fd, name); err != nil {
			return at("attach", name, err)
		}
	}
	for _, d := range []struct {
		name string
		mode uint32
	}{{"/dev/pts", 0o755}, {"/dev/shm", 0o1777}, {"/dev/mqueue", 0o1777}} {
		if err := unix.Mkdir(d.name, d.mode); err != nil {
			return at("make", d.name, err)
		}
	}
	if err := attach(b.pts, "/dev/pts"); err != nil {
		return at("attach", "/dev/pts", err)
	}
	for _, l := range [][2]string{{"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"}} {
		if err := os.Symlink(l[0], l[1]); err != nil {
			return at("make", l[1], err)
		}
	}
	return nil
}

func attach(fd int, to string) error {
	err := unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	_ = unix.Close(fd)
	return err
}

// attach mounts a detached tree at a directory, which it makes.
func (b *builder) attach(fd int, to string) error {
	if err := b.makeDir(Dir{Path: to, Mode: 0o755}); err != nil {
		return at("make", to, err)
	}
	return at("attach", to, attach(fd, to))
}

// attachMount mounts a host path at a place that it makes, a directory or an
// empty file.
func (b *builder) attachMount(fd int, to string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return at("look at", to, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return b.attach(fd, to)
	}
	if err := b.makeDir(Dir{Path: path.Dir(to), Mode: 0o755}); err != nil {
		return at("make", path.Dir(to), err)
	}
	f, err := unix.Open(to, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return at("make", to, err)
	}
	_ = unix.Close(f)
	return at("attach", to, attach(fd, to))
}

// showCgroups attaches the read-only view of the sandbox's own cgroups.
func (b *builder) showCgroups() error {
	const root = "/sys/fs/cgroup"
	if len(b.Cgroups) == 1 && b.Cgroups[0] == "" {
		if b.cgroups[0] < 0 {
			return nil
		}
		return at("attach", root, attach(b.cgroups[0], root))
	}
	named := false
	for i, c := range b.Cgroups {
		if b.cgroups[i] < 0 || c == "" {
			continue
		}
		if !named {
			// sysfs has an empty directory for it.
			fd, err := fresh("tmpfs", 0, "mode", "0755", "size", "64k", "nr_inodes", "64")
			if err != nil {
				return at("mount", root, err)
			}
			if err := attach(fd, root); err != nil {
				return at("attach", root, err)
			}
			named = true
		}
		if err := b.attach(b.cgroups[i], root+"/"+c); err != nil {
			return err
		}
	}
	if !named {
		return nil
	}
	return at("restrict", root, unix.MountSetattr(unix.AT_FDCWD, root, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
}

// The parts of proc that are global to the machine: those that change it are
// read-only, those that tell of it or can hang it are covered.
var (
	procReadOnly = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/mtrr"}
	procMasked   = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg",
		"/proc/latency_stats", "/proc/scsi", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats", "/proc/kpagecgroup",
		"/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/slabinfo", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing",
	}
)

func (b *builder) mask() error {
	// A nested user namespace would hold all capabilities again. The number is
	// that of this namespace only; without it the filter still refuses them.
	if fd, err := unix.Open("/proc/sys/user/max_user_namespaces", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte("0"))
		_ = unix.Close(fd)
	}
	empty := "" // a masked directory, to be shown elsewhere as well
	for _, p := range procMasked {
		var st unix.Stat_t
		if unix.Lstat(p, &st) != nil {
			continue
		}
		from := "/dev/null"
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if empty == "" {
				fd, err := fresh("tmpfs", unix.MOUNT_ATTR_RDONLY, "mode", "0555", "size", "4k", "nr_inodes", "2")
				if err == nil {
					err = attach(fd, p)
				}
				if err != nil {
					return at("mask", p, err)
				}
				empty = p
				continue
			}
			from = empty
		}
		if err := unix.Mount(from, p, "", unix.MS_BIND, ""); err != nil {
			return at("mask", p, err)
		}
	}
	for _, p := range procReadOnly {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == unix.ENOENT {
			continue
		}
		if err == nil {
			err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC})
		}
		if err == nil {
			err = attach(fd, p)
		}
		if err != nil {
			return at("restrict", p, err)
		}
	}
	return nil
}

// loopback brings up the loopback device of this network namespace.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// listen opens the socket at which the sandbox finds the way out.
func listen() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: ProxyPort, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// setCPUs lets this process and all that it starts run on n of the processors
// that it may use now.
func (b *builder) setCPUs(n int) error {
	var set, few unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	for i := 0; n > 0 && i < len(set)*strconv.IntSize; i++ {
		if set.IsSet(i) {
			few.Set(i)
			n--
		}
	}
	return b.every(unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(few), uintptr(unsafe.Pointer(&few)))
}
