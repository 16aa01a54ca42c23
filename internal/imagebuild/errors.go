package imagebuild

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"assay/fault"
)

const freeDisk = "Free disk space for the engine, for example with `assay image prune` or `docker image prune`."

// StepError is a step of a build that failed.
type StepError struct {
	// Step names it, as the builder does.
	Step string
	// ExitCode is that of its command, 0 where there was none.
	ExitCode int
	// Text is what the builder said.
	Text string
	// Output is the end of what the step printed.
	Output string
}

// Error tells the step and its exit code.
func (e *StepError) Error() string {
	var parts []string
	if e.Step != "" {
		parts = append(parts, e.Step)
	}
	if e.ExitCode != 0 {
		parts = append(parts, fmt.Sprintf("exit code %d", e.ExitCode))
	} else {
		parts = append(parts, e.Text)
	}
	return strings.Join(parts, ": ")
}

// Log is what the step printed last.
func (e *StepError) Log() string { return e.Output }

var exitCode = regexp.MustCompile(`(?:exit code: |non-zero code: |exit status )(\d+)`)

// judge names why a build failed. starved says that the engine's machine killed
// a process for want of memory meanwhile.
func judge(what string, err error, w *watch, starved bool) error {
	out := &fault.Error{What: "build " + what, Err: err}
	if fault.CodeOf(err) != "" {
		return err
	}
	var be *buildError
	if !errors.As(err, &be) && !refused(err) {
		out.Class, out.Code, out.Fix = fault.Transient, "sandbox.engine-lost", "See whether the engine still runs."
		if noSpace(err) {
			out.Class, out.Code, out.Fix = fault.Resource, "enospc", freeDisk
		}
		return out
	}
	step := &StepError{Text: err.Error()}
	step.Step, step.Output = w.where()
	out.Err = step
	if m := exitCode.FindStringSubmatch(step.Text); m != nil {
		step.ExitCode, _ = strconv.Atoi(m[1]) // digits, by the pattern
	}
	said := step.Text
	if step.ExitCode != 0 {
		said = lastLines(step.Output, 12)
	}
	switch {
	case noSpace(err) || strings.Contains(strings.ToLower(said), "no space left on device"):
		out.Class, out.Code, out.Fix = fault.Resource, "enospc", freeDisk
	case step.ExitCode == 137 && starved, memoryWords.MatchString(step.Text):
		out.Class, out.Code, out.Fix = fault.Resource, "oom", "Give the engine more memory, or let the step need less."
	case step.ExitCode != 0:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.build-failed", "Correct the step; its log says what went wrong."
		if step.ExitCode == 137 {
			out.Fix = "The step was killed, which happens when memory runs out; give the engine more, or correct the step."
		}
	case registryWords.MatchString(step.Text):
		p := pullError(what, step)
		out.Class, out.Code, out.Fix = p.Class, p.Code, p.Fix
	default:
		out.Class, out.Code, out.Fix = fault.Config, "sandbox.build-failed", "Correct the Dockerfile."
	}
	return out
}

var (
	// memoryWords are those of the builders and of the kernel.
	memoryWords = regexp.MustCompile(`(?i)cannot allocate memory|out of memory|OOMKilled|oom.kill`)
	// registryWords tell that a registry was asked.
	registryWords = regexp.MustCompile(`(?i)pull access denied|manifest unknown|manifest for .* not found|no such host|toomanyrequests|too many requests|unexpected HTTP status|unexpected status code|failed to do request|TLS handshake|i/o timeout|connection refused|connection reset|unauthorized|failed to resolve source metadata|failed to authorize|Client.Timeout`)
)

// refused reports whether the engine itself answered with an error, before the
// build began.
func refused(err error) bool {
	return cerrdefs.IsInvalidArgument(err) || cerrdefs.IsNotFound(err) || cerrdefs.IsInternal(err) || cerrdefs.IsConflict(err) || cerrdefs.IsPermissionDenied(err)
}

// engineGone finds a connection to the engine that failed.
func engineGone(err error) bool {
	var op *net.OpError
	return client.IsErrConnectionFailed(err) || errors.As(err, &op) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// noSpace finds a full disk, in the engine's words too.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left on device")
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// HostOOMKills counts the processes that this machine's kernel killed for want
// of memory since it started. It tells of an engine only where that runs here.
func HostOOMKills() (int64, bool) {
	f, err := os.Open("/proc/vmstat")
	if err != nil {
		return 0, false
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if v, ok := strings.CutPrefix(sc.Text(), "oom_kill "); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
