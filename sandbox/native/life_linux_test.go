package native

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/ref"
	"assay/sandbox"
)

// runnerArg makes this test program a runner that starts a sandbox and waits to
// be killed.
const runnerArg = "--runner"

// runner runs in a child: args are the exec server and a mark.
func runner(args []string) int {
	ctx := context.Background()
	p := New(Options{Guest: args[0]})
	t := sandbox.Template{Provider: p, Spec: Spec{}}
	from, err := p.Prepare(ctx, t, sandbox.Harness{}, onceSteps{})
	var d sandbox.Driver
	if err == nil {
		d, err = p.Create(ctx, sandbox.CreateRequest{From: from, Template: t, Owner: sandbox.Owner{Token: ref.New()}})
	}
	if err == nil {
		user := ""
		if p.identities().many {
			user = "root" // whose processes this machine's user can look at
		}
		_, err = d.Exec(ctx, sandbox.Cmd{User: user, Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & trap '' TERM HUP; echo up; cat"}, Dir: "/", Env: map[string]string{"ST_MARK": args[1]}, Stdin: blocked{}, Stdout: os.Stdout})
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// blocked is an input that never comes.
type blocked struct{}

func (blocked) Read([]byte) (int, error) { select {} }

// marked counts the live processes of this machine with a mark.
func marked(mark string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	n := 0
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err == nil && bytes.Contains(env, []byte("ST_MARK="+mark)) {
			n++
		}
	}
	return n
}

// until waits for a condition; the test fails if that takes for ever.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := limited(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("still waiting until %s", what)
		case <-tick.C:
		}
	}
}

func boxes() []string {
	seen := []string{}
	for _, dir := range findCgroups().parents {
		one, _ := filepath.Glob(filepath.Join(dir, boxPrefix+"*"))
		seen = append(seen, one...)
	}
	return seen
}

func TestRunnerThatIsKilledLeavesNothing(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := provider(t).o.Guest
	mark := "killed-" + ref.New()
	cmd := exec.Command(self, runnerArg, bin, mark)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // where the test ended early
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatalf("the runner did not start its sandbox: %v", err)
	}
	if n := marked(mark); n < 2 {
		t.Fatalf("%d processes run inside, want the shell and what it started", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	until(t, "nothing of the sandbox runs", func() bool { return marked(mark) == 0 })
	// The next start removes what only it can.
	prefix := boxPrefix + fmt.Sprint(cmd.Process.Pid) + "-"
	until(t, "the cgroups are swept", func() bool {
		New(Options{Guest: bin}).groups()
		for _, b := range boxes() {
			if strings.Contains(b, prefix) {
				return false
			}
		}
		return true
	})
}

func TestNothingIsLeftBehind(t *testing.T) {
	p := provider(t)
	r := request(t, p, Spec{})
	r.Resources.Memory = 256 << 20
	use := func() {
		d := create(t, p, r)
		run(t, d, "", "sleep 1000 & setsid sleep 1000 & echo x >/tmp/f")
		if err := d.Stop(limited(t)); err != nil {
			t.Fatal(err)
		}
	}
	use() // opens what stays open
	count := func() string {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		own := 0
		for _, b := range boxes() {
			if strings.Contains(b, p.groups().prefix) {
				own++
			}
		}
		n := 0
		for line := range strings.SplitSeq(string(mounts), "\n") {
			if strings.Contains(line, " none ") { // as a sandbox's are, and not others'
				n++
			}
		}
		return fmt.Sprintf("%d descriptors, %d mounts, %d cgroups", len(fds), n, own)
	}
	before := count()
	for range 10 {
		use()
	}
	if after := count(); after != before {
		t.Errorf("after ten sandboxes there are %s, before %s", after, before)
	}
}

func TestAvailable(t *testing.T) {
	if err := provider(t).Check(limited(t)); err != nil {
		t.Error(err)
	}
}

func TestSingleIdentity(t *testing.T) {
	p := provider(t)
	p.whoOnce.Do(func() {}) // nothing is granted
	d := create(t, p, request(t, p, Spec{}))
	if got := run(t, d, "", `echo "$(id -un):$(id -u):$HOME"; grep CapEff /proc/self/status`); !strings.HasPrefix(got, "user:1000:/home/user") || !strings.HasSuffix(got, "0000000000000000") {
		t.Errorf("the single identity is %q", got)
	}
	r := request(t, p, Spec{})
	r.User = "root"
	e := create(t, p, r)
	if got := run(t, e, "", `echo "$(id -un):$(id -u):$HOME"; grep CapEff /proc/self/status`); !strings.HasPrefix(got, "root:0:/root") || !strings.HasSuffix(got, "0000000000000000") {
		t.Errorf("root alone is %q", got)
	}
	if _, err := e.Exec(limited(t), sandbox.Cmd{Argv: []string{"id"}, Dir: "/", User: "user"}); err == nil {
		t.Error("a second identity was given")
	}
}

func TestCloneOfSubordinateIdentities(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root has all identities; TestWithSubordinateIdentities runs this")
	}
	ids := findIdentities()
	guesttest.Require(t, "subids", ids.many && ids.helpers, "newuidmap and subordinate ids for "+fmt.Sprint(os.Geteuid()))
	p := provider(t)
	d := create(t, p, request(t, p, Spec{}))
	if got := run(t, d, "root", "id -u; su -s /bin/sh user -c 'id -u' || true; touch /usr/made"); !strings.HasPrefix(got, "0") {
		t.Errorf("root is %q", got)
	}
}
