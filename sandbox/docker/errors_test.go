package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/sandbox"
)

func TestPullErrorsByTheirWords(t *testing.T) {
	f, err := os.Open("testdata/pull.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	classes := map[string]fault.Class{
		"sandbox.image-missing": fault.Config, "sandbox.registry-denied": fault.Config, "sandbox.image-platform": fault.Config,
		"sandbox.registry-rate-limit": fault.Transient, "sandbox.registry-unreachable": fault.Transient, "enospc": fault.Resource,
	}
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		n++
		parts := strings.SplitN(sc.Text(), " ", 3)
		status, err := strconv.Atoi(parts[0])
		if err != nil {
			t.Fatal(err)
		}
		e := pullError("x", &callError{op: "pull", status: status, err: errors.New(parts[2])})
		if e.Code != parts[1] || e.Class != classes[parts[1]] {
			t.Errorf("%s: %s, %v; want %s", parts[2], e.Code, e.Class, parts[1])
		}
		if e.Fix == "" || e.Stage != "image" {
			t.Errorf("%s: fix %q, stage %q", parts[2], e.Fix, e.Stage)
		}
	}
	if n == 0 {
		t.Fatal("no samples")
	}
}

func TestClassify(t *testing.T) {
	call := func(status int, err error) error {
		return fmt.Errorf("outer: %w", &callError{op: "create", status: status, err: err})
	}
	some := errors.New("some words")
	for _, tc := range []struct {
		err  error
		want fault.Class
	}{
		{call(400, some), fault.Config},
		{call(404, some), fault.Config},
		{call(409, some), fault.Unknown},
		{call(429, some), fault.Transient},
		{call(500, some), fault.Transient},
		{call(503, some), fault.Transient},
		{call(500, errors.New("--storage-opt is supported only for overlay over xfs with 'pquota' mount option")), fault.Config},
		{call(500, errors.New("mkdir /var/lib/docker/overlay2/x: no space left on device")), fault.Resource},
		{call(0, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)), fault.Transient},
		{call(0, io.ErrUnexpectedEOF), fault.Transient},
		{call(0, context.Canceled), fault.Unknown},
		{call(200, callerError{some}), fault.Unknown},
		{some, fault.Unknown},
		{nil, fault.Unknown},
	} {
		if got := classify(tc.err); got != tc.want {
			t.Errorf("%v is %v, want %v", tc.err, got, tc.want)
		}
	}
}

func TestAmbiguous(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{&callError{status: 500, err: io.EOF}, false},
		{&callError{err: syscall.ECONNREFUSED}, false},
		{&callError{err: syscall.ENOENT}, false},
		{&callError{err: io.EOF}, true},
		{&callError{late: true, err: errors.New("no answer")}, true},
		{io.EOF, false},
	} {
		if got := ambiguous(tc.err); got != tc.want {
			t.Errorf("ambiguous(%v) = %v", tc.err, got)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, tc := range []struct {
		v    string
		want bool
	}{{"1.40", true}, {"1.41", false}, {"1.57", false}, {"2.0", false}, {"1.9", true}} {
		if older(tc.v, minAPI) != tc.want {
			t.Errorf("older(%s) is not %v", tc.v, tc.want)
		}
	}
}

func TestEndOfAContainerByItsState(t *testing.T) {
	i := &instance{id: "0123456789abcdef"}
	for _, tc := range []struct {
		name  string
		state container.State
		code  string
		class fault.Class
	}{
		{"runs", container.State{Running: true}, "", fault.Unknown},
		{"out of memory", container.State{OOMKilled: true, ExitCode: 137}, "oom", fault.Resource},
		{"exited", container.State{ExitCode: 137}, "sandbox-exited", fault.Unknown},
		{"dead", container.State{Running: true, Dead: true}, "sandbox-exited", fault.Unknown},
	} {
		c := container.InspectResponse{State: &tc.state, HostConfig: &container.HostConfig{Resources: container.Resources{Memory: 64 << 20}}}
		err := i.judge(c)
		if fault.CodeOf(err) != tc.code || fault.ClassOf(err) != tc.class || errors.Is(err, sandbox.ErrUnusable) != (tc.code != "") {
			t.Errorf("%s: %v, code %q, class %v", tc.name, err, fault.CodeOf(err), fault.ClassOf(err))
		}
		if tc.code == "oom" && !strings.Contains(err.Error(), "64 MiB") {
			t.Errorf("the limit is not named: %v", err)
		}
	}
}
