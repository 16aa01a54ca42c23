package server

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"assay/internal/guest/supervise"
	"assay/internal/guest/wire"
)

// maxCommand is how much of a command line a process list shows, in bytes.
const maxCommand = 200

// sandboxed returns the live processes of the sandbox: everything that process 1
// sees, or what is below a server that is not process 1; never the server and
// its supervisors.
func (s *server) sandboxed() ([]supervise.Proc, error) {
	if !s.first && s.reaper.childless() {
		return nil, nil // nothing is below this process, whatever else the machine runs
	}
	ps, err := supervise.Scan()
	if err != nil {
		return nil, err
	}
	if !s.first {
		ps = supervise.Descendants(ps, os.Getpid())
	}
	return slices.DeleteFunc(ps, func(p supervise.Proc) bool {
		return !p.Alive() || p.PID == os.Getpid() || s.crew.member(p.PID)
	}), nil
}

func (s *server) list() *wire.ProcessList {
	ps, err := s.sandboxed()
	r := &wire.ProcessList{Result: resultOf(err, "list processes")}
	for _, p := range ps {
		r.Processes = append(r.Processes, wire.Process{PID: p.PID, PPID: p.PPID, UID: processUID(p.PID), Start: p.Start, Command: commandLine(p.PID)})
	}
	return r
}

// processUID reads the real uid; the owner of /proc/<pid> is root for a process
// that protects itself.
func processUID(pid int) uint32 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // gone: 0
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		if v, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			if f := bytes.Fields(v); len(f) > 0 {
				n, _ := strconv.ParseUint(string(f[0]), 10, 32) // the kernel writes a number
				return uint32(n)
			}
		}
	}
	return 0
}

func commandLine(pid int) string {
	name := fmt.Sprintf("/proc/%d/", pid)
	f, err := os.Open(name + "cmdline")
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, maxCommand)
	n, _ := f.Read(b) // gone, or nothing: shown by its name
	if n == 0 {
		b, _ = os.ReadFile(name + "comm")
		return "[" + strings.TrimSpace(string(b)) + "]"
	}
	return strings.TrimSpace(string(bytes.ReplaceAll(b[:n], []byte{0}, []byte{' '})))
}

func (s *server) end(keep []int) wire.Message {
	was := s.list() // what cannot be listed is ended all the same
	n, err := s.endProcesses(keep, false)
	return &wire.EndReply{Result: resultOf(err, "end processes"), Ended: n, Processes: was.Processes}
}

// endLimit bounds a sweep: a process that survives SIGKILL this long sits in the
// kernel and no further signal helps.
const endLimit = 5 * time.Second

// endProcesses kills the processes of the sandbox, and the supervisors with
// crewToo, until two scans in a row are clean. It returns how many it killed.
func (s *server) endProcesses(keep []int, crewToo bool) (int, error) {
	type id struct {
		pid   int
		start int64
	}
	hit := map[id]bool{}
	deadline := time.Now().Add(endLimit)
	for clean := 0; clean < 2; {
		ps, err := s.sandboxed()
		if err != nil {
			return len(hit), err
		}
		clean++
		for _, p := range ps {
			if slices.Contains(keep, p.PID) {
				continue
			}
			clean = 0
			hit[id{p.PID, p.Start}] = true
			_ = unix.Kill(p.PID, unix.SIGKILL) // gone is as good
		}
		if crewToo && s.crew.size() > 0 {
			clean = 0
		}
		if clean == 0 && time.Now().After(deadline) {
			return len(hit), coded{wire.CodeOther, "processes survive SIGKILL"}
		}
		if clean < 2 {
			time.Sleep(tick)
		}
	}
	return len(hit), nil
}

// ports lists listening TCP sockets (proc_net(5): state 0A is LISTEN).
func ports() wire.Message {
	r := &wire.PortList{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(name)
		if err != nil {
			if !os.IsNotExist(err) {
				r.Result = resultOf(err, "list ports")
			}
			continue // without IPv6 there is no second file
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if p, ok := parsePort(strings.Fields(line)); ok && !slices.Contains(r.Ports, p) {
				r.Ports = append(r.Ports, p)
			}
		}
	}
	return r
}

func parsePort(f []string) (wire.Port, bool) {
	if len(f) < 8 || f[3] != "0A" {
		return wire.Port{}, false
	}
	addr, port, ok := strings.Cut(f[1], ":")
	raw, err1 := unhex(addr)
	n, err2 := strconv.ParseUint(port, 16, 16)
	uid, err3 := strconv.ParseUint(f[7], 10, 32)
	if !ok || err1 != nil || err2 != nil || err3 != nil || len(raw)%4 != 0 {
		return wire.Port{}, false
	}
	// The kernel prints each 32-bit word of the address as a number of the
	// machine, which is little-endian on all that a guest runs on.
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	return wire.Port{Address: string(raw), Port: int(n), UID: uint32(uid)}, true
}

func unhex(s string) ([]byte, error) {
	b := make([]byte, len(s)/2)
	for i := range b {
		n, err := strconv.ParseUint(s[2*i:2*i+2], 16, 8)
		if err != nil {
			return nil, err
		}
		b[i] = byte(n)
	}
	return b, nil
}
