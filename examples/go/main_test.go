package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"example": main})
}

// The example is a program that works: each experiment shows one green and one
// red eval, and the red one says why.
func TestExample(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fake", "folder", "docker"} {
		t.Run(name, func(t *testing.T) {
			if name == "docker" {
				testreq.Docker(t)
				cli, _ := testreq.Engine(t)
				testimage.Tag(t, cli, testimage.Slice(t), "debian:bookworm-slim")
			}
			dir := t.TempDir()
			bin := filepath.Join(dir, "example")
			if err := os.Symlink(self, bin); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) (string, int) {
				cmd := exec.Command(bin, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "ASSAY_GUEST="+guesttest.Build(t), "TMPDIR="+dir)
				out, err := cmd.CombinedOutput()
				if _, exited := err.(*exec.ExitError); err != nil && !exited {
					t.Fatal(err)
				}
				return string(out), cmd.ProcessState.ExitCode()
			}
			out, code := run("exp", name)
			for _, want := range []string{"passed   " + name + " shout#0", "failed   " + name + " honest#0", "wrote tests: expected that the agent changed **/*test*"} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if code != 1 {
				t.Errorf("exit %d, want 1", code)
			}
			out, _ = run("show", "--json")
			for _, want := range []string{`"example.go.greeting":{"observedAt"`, `"kept":true`, `"path":"out/loud.txt"`} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in the record:\n%s", want, out)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "folder-*")); len(left) > 0 {
				t.Errorf("the provider left %v", left)
			}
		})
	}
}
