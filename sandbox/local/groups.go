package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/sandbox"
)

// groups runs each command in its own process group. It cannot see what leaves
// the group, so a command that is cut short makes the sandbox unusable.
type groups struct {
	mu   sync.Mutex
	pids map[int]bool // leaders of groups that may still hold processes
	done bool
}

// drain is how long output is read after the command has ended, for a child
// that holds the pipe.
const drain = 200 * time.Millisecond

func (g *groups) exec(ctx context.Context, c sandbox.Cmd, env []string) (sandbox.Exit, error) {
	if st, err := os.Stat(c.Dir); err != nil || !st.IsDir() {
		return sandbox.Exit{}, &fault.Error{Class: fault.Config, Code: "sandbox.no-directory", What: "the directory " + c.Dir + " does not exist", Fix: "Make the directory first or name another `cwd`."}
	}
	if len(c.Argv) == 0 {
		return sandbox.Exit{}, fault.Configf("command-empty", "Name an executable.", "an empty command cannot run")
	}
	path, code := lookPath(c.Argv[0], c.Dir, env)
	if code != 0 {
		if c.Stderr != nil {
			fmt.Fprintf(c.Stderr, "%s: cannot be executed\n", c.Argv[0])
		}
		return sandbox.Exit{Code: code}, nil
	}
	out, errOut := &shutter{w: c.Stdout}, &shutter{w: c.Stderr}
	defer out.shut()
	defer errOut.shut()
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Dir, cmd.Env = c.Argv, c.Dir, env
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = drain
	if c.Stdin != nil {
		// A reader that blocks must not hold up the end of the command.
		w, err := cmd.StdinPipe()
		if err != nil {
			return sandbox.Exit{}, err
		}
		go func() {
			_, _ = io.Copy(w, c.Stdin) // the command may leave its input alone
			_ = w.Close()
		}()
	}
	if err := g.start(cmd); err != nil {
		return sandbox.Exit{}, err
	}
	err := cmd.Wait()
	return g.result(ctx, cmd, err)
}

func (g *groups) start(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done {
		return sandbox.ErrUnusable
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if g.pids == nil {
		g.pids = map[int]bool{}
	}
	g.pids[cmd.Process.Pid] = true
	return nil
}

func (g *groups) result(ctx context.Context, cmd *exec.Cmd, err error) (sandbox.Exit, error) {
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return sandbox.Exit{}, err
	case ctx.Err() != nil && ws.Signaled() && ws.Signal() == syscall.SIGKILL:
		return sandbox.Exit{}, fmt.Errorf("%w: processes outside of its group may live: %w", sandbox.ErrUnusable, context.Cause(ctx))
	case ws.Signaled():
		return sandbox.Exit{Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal())}, nil
	default:
		return sandbox.Exit{Code: ws.ExitStatus()}, nil
	}
}

func (g *groups) lost() error { return nil }

// stop kills the groups of all commands.
func (g *groups) stop(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
	var errs []error
	for pid := range g.pids {
		if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM) {
			errs = append(errs, err)
		}
	}
	g.pids = nil
	return errors.Join(errs...)
}

// lookPath finds a program in the PATH of env, or returns the status of a shell.
func lookPath(name, dir string, env []string) (string, int) {
	try := []string{name}
	if !strings.Contains(name, "/") {
		try = nil
		for _, kv := range env {
			if dirs, ok := strings.CutPrefix(kv, "PATH="); ok {
				for d := range strings.SplitSeq(dirs, ":") {
					try = append(try, filepath.Join(d, name))
				}
			}
		}
	}
	status := 127
	for _, p := range try {
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		st, err := os.Stat(p)
		if errors.Is(absent(err), fs.ErrNotExist) {
			continue
		}
		if err == nil && st.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
			return p, 0
		}
		status = 126
	}
	return "", status
}

// shutter leads to a writer until it is shut.
type shutter struct {
	mu   sync.Mutex
	w    io.Writer
	over bool
}

func (s *shutter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, io.ErrClosedPipe
	}
	if s.w == nil {
		return len(b), nil
	}
	return s.w.Write(b)
}

func (s *shutter) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}
