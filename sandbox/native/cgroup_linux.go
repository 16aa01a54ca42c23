package native

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/guest/enter"
	"assay/sandbox"
)

// cgroups are the places where this process may make cgroups. The formats are
// those of cgroups(7) and of the kernel's Documentation/admin-guide/cgroup-v1
// and cgroup-v2.rst.
type cgroups struct {
	// parents maps a controller ("memory", "pids", "cpu") to the directory in
	// which this process may make a cgroup of it.
	parents map[string]string
	unified bool // version 2: one directory for all
	prefix  string
	next    atomic.Int64
}

// controllers are those that limits need.
var controllers = []string{"memory", "pids", "cpu"}

// boxPrefix starts the name of every cgroup made here; the runner's pid, its
// start time, its process namespace and a number follow. The name shows nothing to
// the sandbox, whose view starts below it.
const boxPrefix = "box-"

// namespace is the number of this process's process namespace, "0" where the
// system does not tell: the numbers of processes mean nothing in another one.
func namespace() string {
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return cmp.Or(strings.Trim(ns, "pid:[]"), "0")
}

// orphaned reads the runner out of the name of a cgroup, and reports whether that
// runner is known to be dead. Nobody knows it of one in another namespace, or one
// that is hidden.
func orphaned(name string) (pid int, start string, dead bool) {
	rest, ok := strings.CutPrefix(name, boxPrefix)
	f := strings.Split(rest, "-")
	if !ok || len(f) != 4 || f[2] != namespace() {
		return 0, "", false
	}
	pid, err := strconv.Atoi(f[0])
	if err != nil || pid <= 0 {
		return 0, "", false
	}
	now := startOf(pid)
	if now == "" && unix.Kill(pid, 0) != unix.ESRCH {
		return pid, f[1], false
	}
	return pid, f[1], now != f[1]
}

func findCgroups() *cgroups {
	c := locate("/proc/self/mountinfo", "/proc/self/cgroup")
	c.prefix = boxPrefix + strconv.Itoa(os.Getpid()) + "-" + startOf(os.Getpid()) + "-" + namespace() + "-"
	return c
}

// locate reads where this process's cgroups are and keeps the places that it may
// write to.
func locate(mountinfo, self string) *cgroups {
	own := map[string]string{}
	eachLine(self, func(line string) {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			for one := range strings.SplitSeq(f[1], ",") {
				own[one] = f[2] // "" is version 2
			}
		}
	})
	c := &cgroups{parents: map[string]string{}}
	eachLine(mountinfo, func(line string) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			return
		}
		root, mount := f[3], f[4]
		below := func(p string) string {
			rel, err := filepath.Rel(root, p)
			if err != nil || !filepath.IsLocal(rel) && rel != "." {
				rel = "."
			}
			return filepath.Join(mount, rel)
		}
		switch g[0] {
		case "cgroup":
			for _, name := range controllers {
				if p, ok := own[name]; ok && slices.Contains(strings.Split(g[2], ","), name) {
					if dir := below(p); writable(dir) {
						c.parents[name] = dir
					}
				}
			}
		case "cgroup2":
			if len(c.parents) == 0 {
				c.unify(mount, below(own[""]))
			}
		}
	})
	return c
}

// unify finds a directory of version 2 that may have children with the
// controllers: the one above our own, where it was given to us, or the root,
// which alone may have processes beside children.
func (c *cgroups) unify(mount, own string) {
	for _, dir := range []string{filepath.Dir(own), mount} {
		if !within(mount, dir) || !writable(dir) {
			continue
		}
		have := fields(filepath.Join(dir, "cgroup.subtree_control"))
		for _, name := range controllers {
			if slices.Contains(have, name) || slices.Contains(fields(filepath.Join(dir, "cgroup.controllers")), name) &&
				os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644) == nil {
				c.parents[name] = dir
			}
		}
		if len(c.parents) > 0 {
			c.unified = true
			return
		}
	}
}

func fields(file string) []string {
	b, _ := os.ReadFile(file) // a missing file lists nothing
	return strings.Fields(string(b))
}

func writable(dir string) bool {
	return unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil
}

func eachLine(file string, use func(string)) {
	b, _ := os.ReadFile(file) // a missing file has no lines
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		use(sc.Text())
	}
}

// startOf is the start time of a process in clock ticks since boot, "" without
// such a process; field 22 of proc_pid_stat(5).
func startOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return ""
	}
	return f[19]
}

// sweep removes the cgroups of runners that are dead. Their processes ended with
// them; one that was left somehow is killed.
func (c *cgroups) sweep() {
	seen := map[string]bool{}
	for _, dir := range c.parents {
		if seen[dir] {
			continue
		}
		seen[dir] = true
		entries, _ := os.ReadDir(dir) // what cannot be listed cannot be swept
		for _, e := range entries {
			if _, _, dead := orphaned(e.Name()); !dead {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = drop(ctx, filepath.Join(dir, e.Name())) // the next start tries again
			cancel()
		}
	}
}

// group is the cgroups of one sandbox.
type group struct {
	unified bool

	mu    sync.Mutex
	dirs  map[string]string // controller → directory
	kills int               // the last count of processes killed for memory
}

// create makes the cgroups that the limits need. A limit on processes is always
// set where it can be: without one, a fork bomb inside is one outside.
func (c *cgroups) create(r sandbox.Resources) (*group, error) {
	g := &group{dirs: map[string]string{}, unified: c.unified}
	name := c.prefix + strconv.FormatInt(c.next.Add(1), 10)
	pids := r.PIDs
	if pids == 0 {
		pids = DefaultPIDs
	}
	type setting struct{ file, value string }
	want := map[string][]setting{}
	if c.unified {
		want["pids"] = []setting{{"pids.max", strconv.FormatInt(pids, 10)}}
		if r.Memory > 0 {
			want["memory"] = []setting{{"memory.max", strconv.FormatInt(r.Memory, 10)}, {"?memory.swap.max", "0"}}
		}
		if r.CPUs > 0 {
			want["cpu"] = []setting{{"cpu.max", strconv.FormatInt(int64(r.CPUs*100000), 10) + " 100000"}}
		}
	} else {
		want["pids"] = []setting{{"pids.max", strconv.FormatInt(pids, 10)}}
		if r.Memory > 0 {
			m := strconv.FormatInt(r.Memory, 10)
			want["memory"] = []setting{{"memory.limit_in_bytes", m}, {"?memory.memsw.limit_in_bytes", m}}
		}
		if r.CPUs > 0 {
			want["cpu"] = []setting{{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", strconv.FormatInt(int64(r.CPUs*100000), 10)}}
		}
	}
	for _, ctrl := range controllers {
		parent, ok := c.parents[ctrl]
		if !ok || want[ctrl] == nil {
			continue
		}
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !(c.unified && errors.Is(err, fs.ErrExist)) {
			return nil, g.removed(&startError{"make cgroup", dir, errnoOf(err)})
		}
		g.dirs[ctrl] = dir
		for _, s := range want[ctrl] {
			file, optional := strings.CutPrefix(s.file, "?")
			if err := os.WriteFile(filepath.Join(dir, file), []byte(s.value), 0o644); err != nil && !optional {
				return nil, g.removed(&startError{"limit " + ctrl + " in", dir, errnoOf(err)})
			}
		}
	}
	return g, nil
}

// places are the distinct directories.
func (g *group) places() []string {
	var out []string
	for _, d := range g.dirs {
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// join moves a process into the cgroups.
func (g *group) join(pid int) error {
	for _, dir := range g.places() {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return errnoOf(err)
		}
	}
	return nil
}

// shown lists the hierarchies that the sandbox may see.
func (g *group) shown() []string {
	if len(g.dirs) == 0 {
		return nil
	}
	if g.unified {
		return []string{""}
	}
	var out []string
	for ctrl := range g.dirs {
		out = append(out, ctrl)
	}
	slices.Sort(out)
	return out
}

// rest is what no cgroup limits: resource limits per process or user, and a
// number of processors.
func (g *group) rest(r sandbox.Resources) (limits []enter.Rlimit, cpus int) {
	limits = []enter.Rlimit{{Resource: unix.RLIMIT_CORE, Value: 0}}
	if g.dirs["pids"] == "" {
		n := r.PIDs
		if n == 0 {
			n = DefaultPIDs
		}
		limits = append(limits, enter.Rlimit{Resource: unix.RLIMIT_NPROC, Value: n})
	}
	if r.Memory > 0 && g.dirs["memory"] == "" {
		limits = append(limits, enter.Rlimit{Resource: unix.RLIMIT_DATA, Value: r.Memory + serverData})
	}
	if r.CPUs > 0 && g.dirs["cpu"] == "" {
		cpus = int(math.Ceil(r.CPUs))
	}
	return limits, cpus
}

// serverData is how much the limit on one process's data exceeds what was asked
// for: the exec server lives under it too, and its runtime maps this much.
const serverData = 96 << 20

// oomKills counts the processes that the memory limit killed.
func (g *group) oomKills() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.countKills()
}

func (g *group) countKills() int {
	dir := g.dirs["memory"]
	if dir == "" {
		return g.kills
	}
	file := "memory.oom_control"
	if g.unified {
		file = "memory.events"
	}
	eachLine(filepath.Join(dir, file), func(line string) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			g.kills, _ = strconv.Atoi(v)
		}
	})
	return g.kills
}

// remove removes the cgroups, whose last process is gone or about to be.
func (g *group) remove(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.countKills()
	var errs []error
	for ctrl, dir := range g.dirs {
		if err := drop(ctx, dir); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(g.dirs, ctrl)
	}
	return errors.Join(errs...)
}

// removed removes the cgroups of a sandbox that failed with err, and returns err
// with what could not be removed.
func (g *group) removed(err error) error {
	ctx, cancel := fault.WithTimeout(context.Background(), "cleanup-limit", endLimit, "built-in")
	defer cancel()
	if rerr := g.remove(ctx); rerr != nil {
		return fmt.Errorf("%w (and: %w)", err, rerr)
	}
	return err
}

// drop removes one cgroup and kills what is still in it. A process that has
// ended stays in its cgroup for a moment.
func drop(ctx context.Context, dir string) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o644) != nil {
			for _, pid := range fields(filepath.Join(dir, "cgroup.procs")) {
				if n, err := strconv.Atoi(pid); err == nil && n > 1 {
					_ = unix.Kill(n, unix.SIGKILL) // it may just have ended
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
