//go:build unix

package attempt

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a command in its own process group, which cancellation kills.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
