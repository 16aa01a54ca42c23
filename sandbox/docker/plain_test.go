package docker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// plainBox is a container without the exec server.
func plainBox(t *testing.T, change func(*sandbox.CreateRequest)) sandbox.Driver {
	t.Helper()
	_, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Slice(t), Guest: "off"})
	r.Network.Mode = "none"
	if change != nil {
		change(&r)
	}
	return create(t, p, r)
}

// The engine's archive calls work on the container's own files: over a file
// system that is mounted in the running container they read and write what
// nothing inside can see.
func TestPlainRefusesPathsThatTheEngineCannotReach(t *testing.T) {
	d := plainBox(t, nil)
	run(t, d, "", "echo inside > /dev/shm/file && ln -s /dev/shm link", nil)
	for _, dir := range []string{"/dev/shm", "/dev/shm/new", "/proc", d.Workdir() + "/link", d.Workdir() + "/link/new"} {
		if err := d.Put(t.Context(), dir, tarOf(t, "f", "body")); fault.CodeOf(err) != "path-unreachable" {
			t.Errorf("Put into %s: %v", dir, err)
		}
	}
	for _, p := range []string{"/dev/shm/file", "/proc/version", "/sys/../dev/shm/file", d.Workdir() + "/link/file"} {
		err := d.Get(t.Context(), p, new(bytes.Buffer))
		if fault.CodeOf(err) != "path-unreachable" || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Get of %s: %v", p, err)
		}
	}
	if err := d.Get(t.Context(), "/devices", new(bytes.Buffer)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get of a missing path whose name only begins like another: %v", err)
	}
}

// A command can put programs where those of the image are looked for first. What
// ends processes asks none of them.
func TestPlainEndsProcessesWithoutPlantedTools(t *testing.T) {
	d := plainBox(t, nil)
	run(t, d, "", `mkdir -p /usr/local/bin; for t in cat grep tr head kill sleep; do printf '#!/bin/sh\nexit 1\n' > /usr/local/bin/$t; chmod 755 /usr/local/bin/$t; done`, nil)
	ender, ok := sandbox.AsDriver[sandbox.ProcessEnder](d)
	if !ok {
		t.Fatal("the driver ends no processes")
	}
	left := func(when string) {
		t.Helper()
		ps, err := ender.Processes(limited(t))
		if err != nil || len(ps) > 0 {
			t.Errorf("%s: %+v, %v", when, ps, err)
		}
	}

	ctx, cancel := context.WithTimeout(limited(t), 2*time.Second)
	defer cancel()
	_, err := d.Exec(ctx, sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "setsid /bin/sleep 600 & /bin/sleep 600"}, Dir: "/"})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("a command over its limit: %v", err)
	}
	left("after a command over its limit")

	run(t, d, "", "setsid /bin/sleep 600 > /dev/null 2>&1 &", nil)
	ps, err := ender.EndProcesses(limited(t))
	if err != nil || len(ps) != 1 {
		t.Errorf("EndProcesses: %+v, %v", ps, err)
	}
	left("after EndProcesses")
	if got := run(t, d, "", "echo alive", nil); got != "alive" {
		t.Errorf("the sandbox afterwards: %q", got)
	}
}

func TestPlainNamesOutOfMemory(t *testing.T) {
	d := plainBox(t, func(r *sandbox.CreateRequest) { r.Resources.Memory = 64 << 20 })
	for _, c := range []struct {
		name, script string
		want         sandbox.Exit
	}{
		{"the code of a kill", "exit 137", sandbox.Exit{Code: 137}},
		{"all memory", "exec tail /dev/zero", sandbox.Exit{Code: 137, Signal: "SIGKILL", OOM: true}},
		{"the code of a kill, later", "exit 137", sandbox.Exit{Code: 137}},
	} {
		x, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", c.script}, Dir: "/"})
		if err != nil || x != c.want {
			t.Errorf("%s: %+v, %v", c.name, x, err)
		}
	}
}
