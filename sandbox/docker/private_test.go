package docker

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// privateEngine is an engine of its own that a test may fill and stop.
type privateEngine struct {
	host string
	root string
	cmd  *exec.Cmd
	cli  *client.Client
}

// newPrivateEngine starts one whose images are on a small disk of their own, and
// gives it the busybox image under the returned name.
func newPrivateEngine(t *testing.T, size string) (*privateEngine, string) {
	t.Helper()
	testreq.Root(t)
	testreq.Need(t, "dockerd")
	testreq.Need(t, "ip")
	// The path of a socket is short.
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &privateEngine{host: "unix://" + filepath.Join(dir, "e.sock"), root: filepath.Join(dir, "root")}
	if err := os.Mkdir(e.root, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("engine", e.root, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(e.root, unix.MNT_DETACH) })
	// A network of its own, so that no address is given twice.
	bridge := "e" + newToken()[:8]
	for _, args := range [][]string{{"link", "add", bridge, "type", "bridge"}, {"addr", "add", "192.0.2.1/24", "dev", bridge}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %q: %v\n%s", args, err, out)
		}
		if args[0] == "link" {
			t.Cleanup(func() { _ = exec.Command("ip", "link", "del", bridge).Run() })
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	e.cmd = exec.Command("dockerd", "-H", e.host, "--data-root", e.root, "--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--bridge", bridge, "--ip-masq=false", "--ip-forward=false", "--iptables=false", "--ip6tables=false", "--config-file", filepath.Join(dir, "none.json"), "--storage-driver", "overlay2")
	if err := os.WriteFile(filepath.Join(dir, "none.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	t.Cleanup(func() {
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
		_ = e.cmd.Wait()
	})
	if e.cli, err = client.New(client.WithHost(e.host)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.cli.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err = e.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("no engine: %v\n%s", err, b)
		case <-time.After(100 * time.Millisecond):
		}
	}
	image, err := testimage.Build(ctx, e.cli, "busybox")
	if err != nil {
		t.Fatal(err)
	}
	return e, image
}

func TestADiskThatFillsUp(t *testing.T) {
	e, base := newPrivateEngine(t, "64m")
	p := New(Options{Host: e.host})
	t.Cleanup(func() { _ = p.Close() })
	dir := folder(t, map[string]string{"Dockerfile": "FROM " + base + "\nRUN dd if=/dev/zero of=/big bs=1M count=200\n", "Fine": "FROM " + base + "\nRUN true\n"})
	// With so little room nothing is begun.
	_, err := prepare(t, p, dir, Spec{Dockerfile: "Dockerfile"}, sandbox.Harness{})
	if fault.CodeOf(err) != "enospc" || !strings.Contains(err.Error(), e.root) {
		t.Errorf("the low-water mark: %v", err)
	}
	real := diskFree
	diskFree = func(string) (int64, bool) { return 0, false }
	t.Cleanup(func() { diskFree = real })
	for range 2 { // nothing of the failed build is taken for an image
		_, err = prepare(t, p, dir, Spec{Dockerfile: "Dockerfile"}, sandbox.Harness{})
		var l sandbox.Logged
		if fault.CodeOf(err) != "enospc" || fault.ClassOf(err) != fault.Resource || fault.StageOf(err) != "dockerfile" || fault.FixOf(err) == "" || !asLogged(err, &l) {
			t.Errorf("%v: class %s, code %q, stage %q", err, fault.ClassOf(err), fault.CodeOf(err), fault.StageOf(err))
		}
	}
	if made, err := prepare(t, p, dir, Spec{Dockerfile: "Fine"}, sandbox.Harness{}); err != nil || made.Details["origin"] != originBuilt {
		t.Errorf("a build that needs no room: %+v, %v", made, err)
	}
}

// told closes a channel when a build says a word.
type told struct {
	steps
	word string
	said chan struct{}
}

func (s *told) Log(text string) {
	if strings.Contains(text, s.word) {
		select {
		case <-s.said:
		default:
			close(s.said)
		}
	}
}

func TestAnEngineThatStopsInTheMiddle(t *testing.T) {
	e, base := newPrivateEngine(t, "256m")
	real := diskFree
	diskFree = func(string) (int64, bool) { return 0, false }
	t.Cleanup(func() { diskFree = real })
	p := New(Options{Host: e.host})
	t.Cleanup(func() { _ = p.Close() })
	dir := folder(t, map[string]string{"Dockerfile": "FROM " + base + "\nRUN echo it runs; sleep 300\n"})
	s := &told{word: "it runs", said: make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		_, err := p.Prepare(limited(t), sandbox.Template{Spec: Spec{Dockerfile: "Dockerfile"}, Dir: dir}, sandbox.Harness{}, s)
		failed <- err
	}()
	select {
	case <-s.said:
	case err := <-failed:
		t.Fatalf("it ended before it ran: %v", err)
	}
	if err := e.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	err := <-failed
	if fault.ClassOf(err) != fault.Transient || fault.CodeOf(err) != "sandbox.engine-lost" || fault.StageOf(err) != "dockerfile" || fault.FixOf(err) == "" {
		t.Errorf("%v: class %s, code %q, stage %q", err, fault.ClassOf(err), fault.CodeOf(err), fault.StageOf(err))
	}
	// Another try finds no engine, which passes too.
	_, err = prepare(t, p, dir, Spec{Dockerfile: "Dockerfile"}, sandbox.Harness{})
	if j := sandbox.Judge(t.Context(), p, err); j.Class != fault.Transient || fault.StageOf(err) != "dockerfile" {
		t.Errorf("after that: %v: class %s", err, j.Class)
	}
}
