package native

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"assay/internal/guest/enter"
	"assay/internal/guest/guesttest"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/sandboxtest"
)

// race: off, because this test binary runs inside of sandboxes with memory
// limits, where the race detector cannot get its shadow memory.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case enter.Arg:
			// This program as a first process that never answers.
			_, _ = io.Copy(io.Discard, os.Stdin)
			select {}
		case attackArg:
			os.Exit(attack(os.Args[2:]))
		case runnerArg:
			os.Exit(runner(os.Args[2:]))
		}
	}
	testreq.Main(m)
}

// inFile makes a sandbox whose working directory is a file.
type inFile struct{ *Provider }

func (f inFile) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	r.Workdir = "/etc/passwd"
	return f.Provider.Create(ctx, r)
}

func harness(t testing.TB, spec Spec) sandboxtest.Harness {
	p := provider(t)
	template := func(p sandbox.Provider) sandbox.Template { return sandbox.Template{Provider: p, Spec: spec} }
	vanish := func(testing.TB) sandboxtest.Broken {
		return sandboxtest.Broken{Trigger: func(_ context.Context, d sandbox.Driver) error { return d.(*driver).proc.p.Kill() }}
	}
	h := sandboxtest.Harness{
		Provider: p, Template: template(p),
		Instances: func(_ context.Context, token string) ([]string, error) { return p.Instances(token), nil },
		Powers:    []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Suspender", "Inventory", "Waker"},
		Break: map[sandboxtest.Fault]func(testing.TB) sandboxtest.Broken{
			sandboxtest.CheckFails: func(t testing.TB) sandboxtest.Broken {
				bp := New(Options{Guest: filepath.Join(t.TempDir(), "none")})
				return sandboxtest.Broken{Provider: bp, Template: template(bp)}
			},
			sandboxtest.CreateFails: func(testing.TB) sandboxtest.Broken {
				return sandboxtest.Broken{Provider: inFile{p}, Template: template(inFile{p})}
			},
			sandboxtest.CreateStalls: func(t testing.TB) sandboxtest.Broken {
				self, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				bp := New(Options{Guest: self})
				t.Cleanup(func() { _ = bp.Close() })
				reached := make(chan struct{})
				bp.joined = sync.OnceFunc(func() { close(reached) })
				return sandboxtest.Broken{Provider: bp, Template: template(bp), Reached: reached, Instances: func(_ context.Context, token string) ([]string, error) { return bp.Instances(token), nil }}
			},
			sandboxtest.Vanishes:  vanish,
			sandboxtest.ExecFails: vanish,
			sandboxtest.PutFails:  vanish,
			sandboxtest.GetFails:  vanish,
		},
	}
	if p.identities().many {
		h.User = "root"
	}
	return h
}

func TestSuiteTools(t *testing.T) {
	h := harness(t, Spec{})
	h.Others = []sandbox.Template{
		{Provider: h.Provider, Spec: Spec{Mounts: []Mount{{Host: "/srv"}}}},
		{Provider: h.Provider, Spec: Spec{Mounts: []Mount{{Host: "/srv", Mode: "rw"}}}},
	}
	sandboxtest.Run(t, h)
}

// ordinary is the user and group of a person without privileges.
const ordinary = 65534

// TestAsOrdinaryUser runs the other tests of this package again, as somebody who
// is not root.
func TestAsOrdinaryUser(t *testing.T) {
	guesttest.Require(t, "root", os.Geteuid() == 0, "only root can become somebody else")
	dir, err := os.MkdirTemp("/tmp", "ordinary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "tests")
	for _, step := range []func() error{
		func() error { return os.Chmod(dir, 0o755) },
		func() error { return os.Mkdir(home, 0o700) },
		func() error { return os.Chown(home, ordinary, ordinary) },
		func() error { return copyFile(self, binary) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	// These two need what only root has here (root itself, the engine's socket);
	// they run in this process, so a requirement of either must not fail them there.
	args := []string{"-test.v", "-test.timeout=5m", "-test.skip=^(TestAsOrdinaryUser|TestImageFromEngine)$"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH"), guestVar + "=" + guesttest.Build(t), "ASSAY_REQUIRE=" + os.Getenv("ASSAY_REQUIRE")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	out, err := cmd.CombinedOutput()
	for line := range strings.SplitSeq(string(out), "\n") {
		if strings.Contains(line, "SKIP") || strings.Contains(line, "FAIL") || err != nil {
			t.Log(line)
		}
	}
	if err != nil {
		t.Errorf("as an ordinary user: %v", err)
	}
	if n := strings.Count(string(out), "--- PASS: "); n < 20 {
		t.Errorf("only %d tests passed as an ordinary user", n)
	}
}

// guestVar names the exec server to a child that has no go tool.
const guestVar = "TEST_EXEC_SERVER"

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
