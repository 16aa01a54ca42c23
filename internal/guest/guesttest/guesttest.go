// Package guesttest builds and starts real guests for tests.
package guesttest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"assay/internal/guest"
)

var build = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	root := strings.TrimSpace(string(out))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("guest-%d-%x", os.Getuid(), sha256.Sum256([]byte(root)))[:len("guest-")+20])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	tmp.Close()
	defer os.Remove(tmp.Name())
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", tmp.Name(), "assay/cmd/assay-guest")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the guest: %w\n%s", err, out)
	}
	if err := os.Chmod(tmp.Name(), 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest")
	return path, os.Rename(tmp.Name(), path)
})

// Build returns the path of a static guest binary for Linux and this machine's
// architecture, built with the go tool once per test process, or the one that
// ASSAY_GUEST names (such as one with the race detector). It can be executed by
// any user.
func Build(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv("ASSAY_GUEST"); path != "" {
		return path
	}
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Require skips the test, loudly, when ok is false, and fails it instead when
// ASSAY_REQUIRE lists name.
func Require(tb testing.TB, name string, ok bool, why string) {
	tb.Helper()
	if ok {
		return
	}
	for want := range strings.SplitSeq(os.Getenv("ASSAY_REQUIRE"), ",") {
		if want == name {
			tb.Fatalf("%s is required: %s", name, why)
		}
	}
	tb.Skipf("SKIPPED, needs %s: %s", name, why)
}

// Guest is a running guest.
type Guest struct {
	*guest.Client
	// PID of the process that Start started.
	PID int

	wait func() error
}

// Wait waits for the end of the guest and returns an error if it failed. A guest
// that was killed by a signal has not.
func (g *Guest) Wait() error { return g.wait() }

// Start starts a guest and dials it. With first set it is process 1 of process
// and mount namespaces of its own, which needs root. The guest, and all below
// it, is ended with the test.
func Start(tb testing.TB, first bool) *Guest {
	tb.Helper()
	return StartCommand(tb, first, Build(tb), "--init")
}

// StartCommand is Start with another command line for the guest.
func StartCommand(tb testing.TB, first bool, argv ...string) *Guest {
	tb.Helper()
	Require(tb, "linux", runtime.GOOS == "linux", "guests run on Linux only")
	if first {
		Require(tb, "root", os.Getuid() == 0, "process namespaces need root")
		argv = append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	rw, err := Connect(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := guest.Dial(context.Background(), rw, guest.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	g := &Guest{Client: c, PID: cmd.Process.Pid, wait: sync.OnceValue(func() error {
		if err := cmd.Wait(); err != nil && !killed(err) {
			return fmt.Errorf("the guest ended with %w", err)
		}
		return nil
	})}
	tb.Cleanup(func() {
		c.Close()
		if err := g.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return g
}

func killed(err error) bool {
	exit, ok := err.(*exec.ExitError)
	if !ok {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled()
}

// Connect starts cmd and returns its standard input and output as one stream.
func Connect(cmd *exec.Cmd) (io.ReadWriteCloser, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &stream{in, out}, cmd.Start()
}

type stream struct {
	in  io.WriteCloser
	out io.ReadCloser
}

func (s *stream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }
func (s *stream) Close() error {
	err := s.in.Close()
	if outErr := s.out.Close(); err == nil {
		err = outErr
	}
	return err
}
