package local_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"assay/internal/guest/guesttest"
	"assay/sandbox"
	"assay/sandbox/local"
	"assay/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scratch is a directory without links in its path.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSuite(t *testing.T) {
	p := &local.Provider{Guest: guesttest.Build(t)}
	dir := scratch(t)
	template := p.Template(dir, "")
	sandboxtest.Run(t, sandboxtest.Harness{
		Provider: p, Template: template, Others: []sandbox.Template{p.Template(scratch(t), "")},
		Instances: func(_ context.Context, token string) ([]string, error) { return p.Instances(token), nil },
		Powers:    []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover"},
		HostView:  true,
		Marked:    marked,
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.Vanishes: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: killGuest}
			},
			sandboxtest.ExecFails: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Trigger: killGuest}
			},
		},
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) == 0 {
		t.Errorf("the tree holds %v, %v: what commands wrote has to stay", left, err)
	}
}

// killGuest ends the supervisor behind the driver's back.
func killGuest(ctx context.Context, d sandbox.Driver) error {
	proc, err := os.FindProcess(local.GuestPID(d))
	if err != nil {
		return err
	}
	return proc.Kill()
}

// marked looks through the environments of this machine's processes.
func marked(_ context.Context, _ sandbox.Driver, mark string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	n := 0
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err == nil && strings.Contains("\x00"+string(env), "\x00ST_MARK="+mark+"\x00") {
			n++
		}
	}
	return n, err
}
