package supervise

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Proc is one process as /proc/<pid>/stat has it (proc_pid_stat(5)).
type Proc struct {
	PID, PPID, PGID, SID int
	State                byte
	Start                int64 // clock ticks after boot
}

// Alive says whether the process still runs: a zombie has nothing left to kill.
func (p *Proc) Alive() bool { return p.State != 'Z' && p.State != 'X' && p.State != 'x' }

// Scan lists all visible processes. One scan is no snapshot: a process that is
// forked meanwhile may be missing.
func Scan() ([]Proc, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	ps := make([]Proc, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, ok := ReadProc(pid); ok {
			ps = append(ps, p)
		}
	}
	return ps, nil
}

// ReadProc reads one process; false means that it is gone.
func ReadProc(pid int) (Proc, bool) {
	b, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Proc{}, false
	}
	// The name is in parentheses and may contain any byte, so fields count from
	// the last closing one.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Proc{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return Proc{}, false
	}
	num := func(i int) int64 {
		n, _ := strconv.ParseInt(string(f[i]), 10, 64) // the kernel writes numbers
		return n
	}
	return Proc{
		PID: pid, State: f[0][0], PPID: int(num(1)), PGID: int(num(2)), SID: int(num(3)), Start: num(19),
	}, true
}

// readSmall reads up to 4 KiB of a file that cannot block, without the poller.
func readSmall(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}

// Descendants returns the processes of ps below root, without root itself.
func Descendants(ps []Proc, root int) []Proc {
	children := map[int][]Proc{}
	for _, p := range ps {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var out []Proc
	todo := []int{root}
	for len(todo) > 0 {
		next := children[todo[0]]
		delete(children, todo[0]) // a pid that was used again cannot make a circle
		todo = todo[1:]
		for _, p := range next {
			out = append(out, p)
			todo = append(todo, p.PID)
		}
	}
	return out
}

// signalTree sends sig to all descendants of root, which is this process or a
// keeper of it, once, and to the process groups that they form. A group signal reaches members that fork at
// this moment, which a list of pids cannot.
func signalTree(root int, sig unix.Signal) {
	ps, err := Scan()
	if err != nil {
		return // without /proc the caller's wait does not end, and nothing is claimed
	}
	own := unix.Getpgrp()
	groups := map[int]bool{}
	for _, p := range Descendants(ps, root) {
		if !p.Alive() {
			continue
		}
		// Every group of the tree was made inside it: the leader starts a
		// session of its own, and groups do not cross sessions.
		if p.PGID > 1 && p.PGID != own && !groups[p.PGID] {
			groups[p.PGID] = true
			_ = unix.Kill(-p.PGID, sig) // gone is as good
		}
		_ = unix.Kill(p.PID, sig)
	}
}
