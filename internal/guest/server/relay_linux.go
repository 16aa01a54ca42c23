package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/relay"
)

// attach is `program --init-attach DIR SESSION FROM raw|text WORKDIR`: it joins
// the daemon of DIR, which it starts when there is none, and copies frames
// between it and standard input and output.
func attach(o Options, args []string) int {
	if len(args) != 5 {
		return 2
	}
	conn, err := join(args[0], args[4])
	if err != nil {
		_, _ = o.Err.WriteString(err.Error() + "\n") // the exit code says it too
		return 1
	}
	if _, err := io.WriteString(conn, strings.Join(args[1:4], " ")+"\n"); err != nil {
		return 1
	}
	go func() { _, _ = io.Copy(conn, o.In) }() // its end means nothing: the service may close it at will
	if _, err := io.Copy(o.Out, conn); err != nil {
		return 1
	}
	return 0
}

// joinLimit bounds the wait for a daemon that starts.
const joinLimit = 10 * time.Second

func join(dir, workdir string) (net.Conn, error) {
	socket := filepath.Join(dir, relay.SocketName)
	conn, err := net.Dial("unix", socket)
	if err == nil {
		return conn, nil
	}
	if err := startHold(dir, workdir); err != nil {
		return nil, err
	}
	for limit := time.Now().Add(joinLimit); time.Now().Before(limit); time.Sleep(2 * time.Millisecond) {
		if conn, err = net.Dial("unix", socket); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// startHold starts the daemon in a session of its own, so that nothing that the
// service does to the attachment reaches it.
func startHold(dir, workdir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := os.StartProcess("/proc/self/exe", []string{"init", relay.HoldArg, dir, self, workdir}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{null, null, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	return p.Release()
}

// holder is the daemon's state.
type holder struct {
	dir   string
	hello []byte

	entry sync.Mutex // held while a frame goes to the exec server

	mu       sync.Mutex
	change   *sync.Cond
	session  string
	serial   int // of the session
	child    *os.Process
	in       *os.File // to the exec server
	received uint64   // bytes handed to it
	spool    []byte   // its output that is not confirmed
	base     uint64   // offset of spool[0]
	ended    bool
	current  net.Conn
}

// maxSpool bounds what is kept for a host that is away; the exec server waits
// then.
const maxSpool = 8 << 20

// hold runs the daemon: `program --init-hold DIR PROGRAM WORKDIR`.
func hold(args []string) int {
	if len(args) != 3 {
		return 2
	}
	h := &holder{dir: args[0]}
	h.change = sync.NewCond(&h.mu)
	lock, err := os.OpenFile(filepath.Join(h.dir, relay.LockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 1
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return 0 // another one was faster
	}
	if h.hello, err = introduce(args[1], args[2]); err != nil {
		return 1
	}
	socket := filepath.Join(h.dir, relay.SocketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 1
	}
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", socket)
	_ = unix.Umask(old)
	if err != nil {
		return 1
	}
	go h.beat()
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		go h.serve(conn)
	}
}

// introduce finds out who the service's default user is, takes the program away
// from them, and makes the working directory.
func introduce(program, workdir string) ([]byte, error) {
	hello := relay.Hello{PID: os.Getpid(), Env: os.Environ()}
	var st unix.Stat_t
	if err := unix.Stat(program, &st); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Lchown(program, 0, 0), os.Chmod(program, 0o700)); err != nil {
			return nil, err
		}
	}
	var us users
	u, err := us.resolve(strconv.FormatUint(uint64(st.Uid), 10))
	if err != nil {
		return nil, err
	}
	hello.User = relay.User{Name: u.Name, UID: u.UID, GID: u.GID, Groups: u.Groups, Home: u.Home, Shell: u.Shell}
	hello.Shells = map[string]relay.Shell{}
	for _, p := range relay.ShellPaths {
		if err := unix.Stat(p, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			hello.Shells[p] = relay.Shell{Mode: st.Mode & 0o777, Size: st.Size, UID: st.Uid, GID: st.Gid}
		}
	}
	if workdir != "" {
		if err := makeWorkdir(workdir, int(u.UID), int(u.GID)); err != nil {
			hello.Workdir = err.Error()
		}
	}
	return json.Marshal(hello)
}

// makeWorkdir makes what is missing of a directory and gives just that to the
// user.
func makeWorkdir(dir string, uid, gid int) error {
	var missing []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err == nil {
			if !st.IsDir() {
				return &os.PathError{Op: "make", Path: d, Err: unix.ENOTDIR}
			}
			break
		}
		missing = append(missing, d)
		if d == filepath.Dir(d) {
			return err
		}
	}
	for _, d := range slices.Backward(missing) {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := os.Lchown(d, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// beat keeps attachments from looking dead.
func (h *holder) beat() {
	for range time.Tick(relay.Heartbeat) {
		h.change.Broadcast()
	}
}

// begin starts an exec server for a session. The caller holds mu.
func (h *holder) begin(session string) error {
	if h.child != nil {
		_ = h.in.Close() // the end of its input ends it
		if _, err := h.child.Wait(); err != nil {
			return err
		}
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	p, err := os.StartProcess("/proc/self/exe", []string{"init", ServeArg}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{inR, outW, null}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	_ = errors.Join(inR.Close(), outW.Close(), null.Close()) // the child has its own
	if err != nil {
		return err
	}
	h.serial++
	h.session, h.child, h.in = session, p, inW
	h.received, h.spool, h.base, h.ended = 0, nil, 0, false
	go h.collect(h.serial, outR)
	return nil
}

// collect keeps the exec server's output.
func (h *holder) collect(serial int, out *os.File) {
	defer func() { _ = out.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := out.Read(buf)
		h.mu.Lock()
		for h.serial == serial && len(h.spool)+n > maxSpool {
			h.change.Wait()
		}
		if h.serial != serial {
			h.mu.Unlock()
			return
		}
		h.spool = append(h.spool, buf[:n]...)
		h.ended = h.ended || err != nil
		h.change.Broadcast()
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// serve runs one attachment; the newest wins.
func (h *holder) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) != 3 {
		return
	}
	from, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return
	}
	text := f[2] == "text"
	h.mu.Lock()
	if h.session != f[0] {
		if err := h.begin(f[0]); err != nil {
			h.mu.Unlock()
			return
		}
	}
	if h.current != nil {
		_ = h.current.Close()
	}
	h.current = conn
	serial := h.serial
	if text {
		h.watch(serial)
	}
	h.change.Broadcast()
	h.mu.Unlock()
	go func() {
		for {
			frame, err := relay.Read(r)
			if err != nil || h.take(serial, frame) != nil {
				return // a service may end the input and still read the output
			}
		}
	}()
	h.send(conn, serial, from, text)
}

// send brings down what there is, as it comes, until the attachment is replaced.
func (h *holder) send(conn net.Conn, serial int, from uint64, text bool) {
	add := relay.Append
	if text {
		add = relay.AppendText
	}
	h.mu.Lock()
	acked := h.received
	out := add(nil, relay.Greeting, acked, h.hello)
	spoken := time.Now()
	for {
		h.mu.Unlock()
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return
			}
			out, spoken = out[:0], time.Now()
		}
		h.mu.Lock()
		for {
			if h.current != conn || h.serial != serial || from < h.base {
				h.mu.Unlock()
				return
			}
			if h.received != acked || time.Since(spoken) > relay.Heartbeat*9/10 {
				acked = h.received
				out = add(out, relay.Ack, acked, nil)
			}
			if have := h.spool[min(from-h.base, uint64(len(h.spool))):]; len(have) > 0 {
				have = have[:min(len(have), 192<<10)]
				out = add(out, relay.Data, from, have)
				from += uint64(len(have))
			} else if h.ended && len(out) == 0 {
				out = add(out, relay.Ended, 0, nil)
				h.mu.Unlock()
				_, _ = conn.Write(out) // the last word
				return
			}
			if len(out) > 0 {
				break
			}
			h.change.Wait()
		}
	}
}

var errStale = errors.New("stale")

// take handles a frame from the host.
func (h *holder) take(serial int, f relay.Frame) error {
	if f.Kind == relay.Ack {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.serial == serial && f.Offset > h.base && f.Offset <= h.base+uint64(len(h.spool)) {
			h.spool = append([]byte(nil), h.spool[f.Offset-h.base:]...)
			h.base = f.Offset
			h.change.Broadcast()
		}
		return nil
	}
	if f.Kind != relay.Data {
		return nil
	}
	h.entry.Lock() // one frame after the other
	defer h.entry.Unlock()
	h.mu.Lock()
	have, in, stale := h.received, h.in, h.serial != serial
	h.mu.Unlock()
	switch {
	case stale:
		return errStale
	case f.Offset > have:
		return nil // a frame before it was lost; both come again
	case have-f.Offset < uint64(len(f.Payload)):
		body := f.Payload[have-f.Offset:]
		if _, err := in.Write(body); err != nil {
			return err
		}
		have += uint64(len(body))
	}
	h.mu.Lock()
	if h.serial == serial {
		h.received = have
		h.change.Broadcast()
	}
	h.mu.Unlock()
	return nil
}

// watch takes frames from files of the inbox, in the order of their names, once
// they are whole. The caller holds mu.
func (h *holder) watch(serial int) {
	dir := filepath.Join(h.dir, relay.InboxName)
	_ = os.MkdirAll(dir, 0o777) // a missing inbox shows in the watch
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO); err != nil {
		_ = unix.Close(fd)
		return
	}
	conn := h.current
	go func() {
		defer func() { _ = unix.Close(fd) }()
		buf := make([]byte, 16<<10)
		for {
			h.empty(serial, dir)
			h.mu.Lock()
			over := h.serial != serial || h.current != conn
			h.mu.Unlock()
			if over {
				return
			}
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 500); n > 0 {
				_, _ = unix.Read(fd, buf) // what changed is looked up anyway
			}
		}
	}()
}

// empty takes every whole file of the inbox.
func (h *holder) empty(serial int, dir string) {
	names, err := os.ReadDir(dir) // sorted
	if err != nil {
		return
	}
	for _, n := range names {
		file := filepath.Join(dir, n.Name())
		body, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		frames, whole := relay.Lot(body)
		if !whole {
			continue // not yet, or never
		}
		for _, f := range frames {
			if h.take(serial, f) != nil {
				return
			}
		}
		_ = os.Remove(file) // one that stays is harmless: offsets tell
	}
}
