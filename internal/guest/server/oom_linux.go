package server

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomCounter reads how often the kernel killed a process of this cgroup for
// memory: memory.events in cgroup v2, memory.oom_control in v1. Where neither
// can be read it stays at 0.
type oomCounter struct{ fd int }

func (o *oomCounter) open() {
	o.fd = -1
	for _, name := range oomFiles() {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		o.fd = fd
		if _, ok := o.read(); ok {
			return
		}
		_ = unix.Close(fd)
		o.fd = -1
	}
}

// oomFiles lists where the counter may be: under the cgroup's own path, and at
// the root of the mount, where a private cgroup namespace shows it.
func oomFiles() []string {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	var names []string
	b, _ := os.ReadFile("/proc/self/cgroup") // without it the roots remain
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) != 3:
		case f[1] == "":
			names = append(names, v2+f[2]+"/memory.events")
		case strings.Contains(","+f[1]+",", ",memory,"):
			names = append(names, v1+f[2]+"/memory.oom_control")
		}
	}
	return append(names, v2+"/memory.events", v1+"/memory.oom_control")
}

func (o *oomCounter) count() int64 {
	n, _ := o.read()
	return n
}

func (o *oomCounter) read() (int64, bool) {
	if o.fd < 0 {
		return 0, false
	}
	b := make([]byte, 1024)
	n, err := unix.Pread(o.fd, b, 0)
	if err != nil {
		return 0, false
	}
	for line := range bytes.SplitSeq(b[:n], []byte("\n")) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			k, err := strconv.ParseInt(string(v), 10, 64)
			return k, err == nil
		}
	}
	return 0, false
}
