package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/internal/testreq"
)

// childEnv tells this test binary to be a child process with one job.
const childEnv = "SNAPSHOT_TEST_CHILD"

func runChild() bool {
	job, arg, _ := strings.Cut(os.Getenv(childEnv), " ")
	var err error
	switch job {
	case "":
		return false
	case "resets":
		err = nobodyResets()
	case "unreadable":
		err = nobodyUnreadable()
	case "commits":
		err = commitForever(arg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func asNobody(t *testing.T, job string) {
	t.Helper()
	// The binary is where only root may go.
	exe := filepath.Join(os.TempDir(), fmt.Sprintf("snapshot-child-%d", os.Getpid()))
	data, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(exe, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(exe)
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = []string{childEnv + "=" + job, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s as another user: %v\n%s", job, err, out)
	}
}

// childTB is a test in a child process: a failure ends run.
type childTB struct {
	testing.TB
	dir string
}

type childFailure string

func (c *childTB) run(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if s, ok := r.(childFailure); ok {
				err = fmt.Errorf("%s", string(s))
				return
			}
			panic(r)
		}
	}()
	f()
	return nil
}

func (c *childTB) Helper()           {}
func (c *childTB) Fatal(args ...any) { panic(childFailure(fmt.Sprint(args...))) }
func (c *childTB) Fatalf(format string, args ...any) {
	panic(childFailure(fmt.Sprintf(format, args...)))
}

// commitForever changes a tree and records it until it is killed.
func commitForever(dir string) error {
	for i := 0; ; i++ {
		for f := range 20 {
			if err := os.WriteFile(fmt.Sprintf("%s/work/f%d", dir, f), fmt.Appendf(nil, "%d %d", i, rand.Int()), 0o644); err != nil {
				return err
			}
		}
		req, err := Request{Op: OpCommit, Author: Agent, Root: dir + "/work", Store: dir + "/store"}.Encode()
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := Serve(context.Background(), req, &out); err != nil {
			return err
		}
		if _, err := DecodeResponse(&out); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// TestKilledWriter kills a recording process at random moments: the store
// stays whole and usable, and no lock stays behind.
func TestKilledWriter(t *testing.T) {
	testreq.Git(t)
	b := newBench(t)
	base := b.mark()
	for round := range 15 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=commits "+filepath.Dir(b.root))
		out, err := cmd.StdoutPipe()
		b.must(err)
		b.must(cmd.Start())
		// It is at work once it says so; then die at any point of a commit.
		_, err = out.Read(make([]byte, 1))
		b.must(err)
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
		b.must(cmd.Process.Kill())
		_ = cmd.Wait()
		c := b.do(Request{Op: OpCommit, Author: Eval, Label: fmt.Sprint("after ", round), AllowEmpty: true}).Commit
		b.do(Request{Op: OpDiff, Content: true, Windows: []Window{{From: base.ID, To: c.ID}}})
		left, err := filepath.Glob(b.store + "/objects/pack/" + tempPrefix + "*")
		b.must(err)
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	git(t, b.store, "--git-dir="+b.store, "fsck", "--strict", "--full")
	if res := b.do(Request{Op: OpReset, Commit: base.ID}); res.Tree != base.Tree {
		t.Errorf("reset %+v", res)
	}
}
