package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/api/types/container"

	"assay/fault"
	"assay/sandbox"
)

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
