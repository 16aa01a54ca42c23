//go:build unix

package record

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// proc is where the system tells of its processes.
var proc = "/proc"

// ended is the start of a process that has ended and that nobody waited for.
const ended = "ended"

// processFacts returns the id of the current boot, the process namespace of
// this process and the start of process pid in ticks since boot, each "" where
// the system does not tell.
func processFacts(pid int) (boot, ns, start string) {
	if b, err := os.ReadFile(proc + "/sys/kernel/random/boot_id"); err == nil {
		boot = strings.TrimSpace(string(b))
	}
	ns, _ = os.Readlink(proc + "/self/ns/pid")
	if b, err := os.ReadFile(proc + "/" + strconv.Itoa(pid) + "/stat"); err == nil {
		// The command in parentheses may hold anything; field 22 is the 20th
		// after it (proc_pid_stat(5)). A zombie is a dead process.
		rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
		if f := strings.Fields(rest); len(f) > 19 {
			if start = f[19]; f[0] == "Z" || f[0] == "X" {
				start = ended
			}
		}
	}
	return boot, ns, start
}

func exists(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
