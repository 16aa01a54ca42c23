package server

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper is the only one in this process that waits for children: those that it
// started and the orphans that it adopted.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan unix.WaitStatus
	recent  [256]ended // orphans, in a ring
	next    int
	count   int // orphans so far
}

type ended struct {
	pid    int
	status unix.WaitStatus
	number int
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}}
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)
	go func() {
		for range child {
			r.reap()
		}
	}()
	return r
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ch := r.waiting[pid]; ch != nil {
			ch <- ws
			delete(r.waiting, pid)
			continue
		}
		r.count++
		r.recent[r.next] = ended{pid, ws, r.count}
		r.next = (r.next + 1) % len(r.recent)
	}
}

// childless says whether this process has no child. As the reaper of all that is
// below it, it then has no descendant either.
func (r *reaper) childless() bool {
	r.reap()
	r.mu.Lock() // no child is being made
	defer r.mu.Unlock()
	return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == unix.ECHILD
}

// adopt calls start, which makes a child; its status arrives on the channel.
func (r *reaper) adopt(start func() (int, error)) (int, <-chan unix.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err != nil {
		return 0, nil, err
	}
	return pid, r.wait(pid), nil
}

// start starts a program; its status arrives on the channel. The lock keeps the
// child from being reaped before anybody waits for it.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan unix.WaitStatus, error) {
	return r.adopt(func() (int, error) { return syscall.ForkExec(path, argv, attr) })
}

// orphans returns how many orphans were reaped so far.
func (r *reaper) orphans() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// watch returns the channel on which the status of pid arrives if it becomes an
// orphan and ends, or has done so after the first since orphans: an earlier one
// had the same pid and was another process. forget gives that up.
func (r *reaper) watch(pid, since int) (ch <-chan unix.WaitStatus, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	forget = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, pid)
	}
	for i := range r.recent {
		if e := &r.recent[i]; e.pid == pid && e.number > since {
			ch := make(chan unix.WaitStatus, 1)
			ch <- e.status
			e.pid = 0
			return ch, forget
		}
	}
	return r.wait(pid), forget
}

func (r *reaper) wait(pid int) <-chan unix.WaitStatus {
	ch := make(chan unix.WaitStatus, 1)
	r.waiting[pid] = ch
	return ch
}
