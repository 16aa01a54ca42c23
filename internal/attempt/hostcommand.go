package attempt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"assay/fault"
	"assay/internal/redact"
	"assay/sandbox"
)

// HostCommand runs a declared command on the host, in its own process group,
// with the host's environment and extra variables. It is for hooks that say
// `host: true` and for an experiment's own hooks.
func HostCommand(ctx context.Context, c sandbox.Command, dir string, env map[string]string, red *redact.Redactor) error {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = fault.WithTimeout(ctx, "command-timeout", c.Timeout, "command")
		defer cancel()
	}
	argv := c.Argv
	if len(argv) == 0 {
		shell := "/bin/sh"
		if p, err := exec.LookPath("bash"); err == nil {
			shell = p
		}
		argv = []string{shell, "-c", c.Shell}
	}
	if c.User != "" {
		return fault.Configf("host-user-unsupported", "Remove `user:` from the host command.", "a host command cannot switch its user")
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	if c.Cwd != "" {
		cmd.Dir = c.Cwd
		if !filepath.IsAbs(c.Cwd) {
			cmd.Dir = filepath.Join(dir, c.Cwd)
		}
	}
	if cmd.Dir != "" {
		if info, err := os.Stat(cmd.Dir); err != nil || !info.IsDir() {
			return fault.Configf("host-command-cwd", "Create the folder, or correct `cwd:`.", "the folder %s of a host command does not exist", cmd.Dir)
		}
	}
	cmd.Env = os.Environ()
	for _, m := range []map[string]string{env, c.Env} {
		for k, v := range m {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	out := sandbox.NewOutput(64 << 10)
	cmd.Stdout, cmd.Stderr = out, out
	// A service that the command leaves behind must not hold us by its pipe;
	// it goes on. A cancelled command ends with its whole group.
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return nil
	}
	if cause := fault.Cause(ctx); cause != nil {
		err = cause
	}
	what := fmt.Sprintf("host command %s failed", sandbox.Tail(red.String(c.Label()), 120))
	if tail := sandbox.Tail(red.String(out.String()), 400); tail != "" {
		what += "; it printed: " + tail
	}
	return &fault.Error{Class: fault.ClassOf(err), Code: "host-command-failed", What: what, Err: err}
}
