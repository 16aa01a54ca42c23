package native

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
// is not root and has no other identity.
func TestAsOrdinaryUser(t *testing.T) {
	guesttest.Require(t, "root", os.Geteuid() == 0, "only root can become somebody else")
	again(t, false)
}

// TestWithSubordinateIdentities does so as somebody to whom subuid(5) grants more.
func TestWithSubordinateIdentities(t *testing.T) {
	guesttest.Require(t, "root", os.Geteuid() == 0, "only root can become somebody else")
	for _, tool := range []string{"newuidmap", "newgidmap", "unshare", "setpriv"} {
		_, err := exec.LookPath(tool)
		guesttest.Require(t, "subids", err == nil, "there is no "+tool+" (apt install uidmap util-linux)")
	}
	again(t, true)
}

// granted runs its arguments as an ordinary user with subordinate ids, in an /etc
// that only it and what it starts can see.
const granted = `
set -e
cp -a /etc "$2/etc"
printf '%s:200000:65536\n' "$1" | tee "$2/etc/subuid" > "$2/etc/subgid"
mount --bind "$2/etc" /etc
user=$1
shift 2
exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
`

// again runs the other tests of this package as an ordinary user, with
// subordinate ids or without any.
func again(t *testing.T, subids bool) {
	t.Helper()
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
	// These need what only root has here (root itself, the engine's socket);
	// they run in this process, so a requirement of any must not fail them there.
	skip := "^(TestAsOrdinaryUser|TestWithSubordinateIdentities|TestImageFromEngine)$"
	if subids {
		// Info says that they cannot be kept there, and an image that an ordinary
		// user unpacked has one identity (docs/native.md).
		skip += "|^TestSuite(Tools|Image)$/^power-(inventory|suspender)$|^TestSuiteImage$/^exec-user$"
	}
	args := []string{"-test.v", "-test.timeout=5m", "-test.skip=" + skip}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	require := os.Getenv("ASSAY_REQUIRE")
	cmd := exec.Command(binary, args...)
	if subids {
		cmd = exec.Command("unshare", append([]string{"--mount", "sh", "-c", granted, "sh", strconv.Itoa(ordinary), dir, binary}, args...)...)
		require += ",subids"
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
		require = strings.ReplaceAll(require, "subids", "")
	}
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH"), guestVar + "=" + guesttest.Build(t), "ASSAY_REQUIRE=" + require}
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
