package local_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/guest/guesttest"
	"assay/internal/snapshot"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/local"
)

type steps struct{}

func (steps) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

// open starts a local sandbox that ends with the test.
func open(t *testing.T, p *local.Provider, dir string) sandbox.Driver {
	t.Helper()
	d, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(dir, ""), Owner: sandbox.Owner{Token: "t"}, Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func provider(t *testing.T) *local.Provider {
	t.Helper()
	return &local.Provider{Guest: guesttest.Build(t)}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_OPTIONAL_LOCKS=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func write(t *testing.T, name, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fingerprint holds content, mode, and time of change of everything below dir.
func fingerprint(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		var body []byte
		if st.Mode().IsRegular() {
			if body, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		out[p] = fmt.Sprintf("%v %v %x", st.Mode(), st.ModTime().UnixNano(), sha256.Sum256(body))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func track(t *testing.T, d sandbox.Driver, r snapshot.Request) snapshot.Response {
	t.Helper()
	r.Root, r.Store = d.Workdir(), "/somewhere"
	req, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tr, ok := sandbox.AsDriver[sandbox.Tracker](d)
	if !ok {
		t.Fatal("the driver tracks nothing")
	}
	if err := tr.Track(t.Context(), req, &out); err != nil {
		t.Fatal(err)
	}
	res, err := snapshot.DecodeResponse(&out)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestUserRepositoryStaysAsItWas(t *testing.T) {
	testreq.Git(t)
	dir := scratch(t)
	git(t, dir, "init", "-q")
	write(t, dir+"/committed", "1\n")
	write(t, dir+"/edited", "1\n")
	write(t, dir+"/staged", "1\n")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "one")
	write(t, dir+"/edited", "unstaged\n")
	write(t, dir+"/staged", "in the index\n")
	git(t, dir, "add", "staged")
	write(t, dir+"/untracked", "mine\n")
	status, repo := git(t, dir, "status", "--porcelain"), fingerprint(t, dir+"/.git")

	d := open(t, provider(t), dir)
	base := track(t, d, snapshot.Request{Op: snapshot.OpMark, Label: "baseline"})
	s := sandbox.New(d, sandbox.Options{})
	if _, err := s.RunShellOrThrow(t.Context(), "echo agent >made; echo agent >>committed"); err != nil {
		t.Fatal(err)
	}
	work := track(t, d, snapshot.Request{Op: snapshot.OpCommit, Author: snapshot.Agent})
	diff := track(t, d, snapshot.Request{Op: snapshot.OpDiff, Windows: []snapshot.Window{{From: base.Commit.ID, To: work.Commit.ID}}})
	if got := diff.Windows[0]; got.Added != 1 || got.Modified != 1 || got.Deleted != 0 {
		t.Errorf("the agent's changes are %+v", got)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := fingerprint(t, dir+"/.git")
	for p, want := range repo {
		if after[p] != want {
			t.Errorf("%s was %s and is %s", p, want, after[p])
		}
	}
	if len(after) != len(repo) {
		t.Errorf(".git had %d files and has %d", len(repo), len(after))
	}
	if body, err := os.ReadFile(dir + "/made"); err != nil || string(body) != "agent\n" {
		t.Errorf("the agent's file is %q, %v: changes have to stay", body, err)
	}
	for _, line := range strings.Split(strings.TrimSpace(status), "\n") {
		if !strings.Contains(git(t, dir, "status", "--porcelain"), line) {
			t.Errorf("the user's state %q is gone", line)
		}
	}
}

func TestDirectory(t *testing.T) {
	root := scratch(t)
	write(t, root+"/repo/.git/HEAD", "ref: refs/heads/main\n")
	write(t, root+"/repo/evals/a/eval.yaml", "")
	write(t, root+"/plain/file", "")
	p := &local.Provider{}
	for _, c := range []struct {
		name, dir, base, want, code string
	}{
		{"root of the repository", "", root + "/repo/evals/a", root + "/repo", ""},
		{"relative", "evals", root + "/repo", root + "/repo/evals", ""},
		{"dot", ".", root + "/plain", root + "/plain", ""},
		{"absolute", root + "/plain", root + "/repo", root + "/plain", ""},
		{"no repository", "", root + "/plain", "", "sandbox.local-no-repository"},
		{"missing", "missing", root, "", "sandbox.local-dir"},
		{"a file", "plain/file", root, "", "sandbox.local-dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := p.Prepare(t.Context(), p.Template(c.dir, c.base), sandbox.Harness{}, steps{})
			if err == nil && c.code != "" { // a set-up may still make the directory; Create needs it
				_, err = p.Create(t.Context(), sandbox.CreateRequest{From: got, Template: p.Template(c.dir, c.base)})
			}
			if fault.CodeOf(err) != c.code || got.Ref != c.want && c.code == "" {
				t.Fatalf("got %q, %v; want %q, code %q", got.Ref, err, c.want, c.code)
			}
			if c.code != "" && (fault.ClassOf(err) != fault.Config || !strings.Contains(fault.FixOf(err), "dir")) {
				t.Errorf("class %v, fix %q", fault.ClassOf(err), fault.FixOf(err))
			}
		})
	}
}

func TestUnwritableDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := scratch(t)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	p := provider(t)
	_, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(dir, "")})
	if fault.CodeOf(err) != "sandbox.local-dir" || fault.ClassOf(err) != fault.Config {
		t.Errorf("got %v", err)
	}
}

func TestRefusals(t *testing.T) {
	dir := scratch(t)
	p := provider(t)
	_, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(dir, ""), User: "root"})
	if fault.CodeOf(err) != "sandbox.local-user-unsupported" || fault.ClassOf(err) != fault.Config {
		t.Errorf("a user: %v", err)
	}
	_, err = p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(dir, ""), Workdir: "/x"})
	if fault.CodeOf(err) != "sandbox.local-workdir-unsupported" {
		t.Errorf("a workdir: %v", err)
	}
	if got := p.Instances(""); len(got) != 0 {
		t.Errorf("refused sandboxes are open: %v", got)
	}
	i := p.Info()
	if !i.Exclusive || i.Keep || i.Reuse || i.Reset || i.Users != sandbox.UsersNone || i.Warning == "" {
		t.Errorf("Info is %+v", i)
	}
	d := open(t, p, dir)
	req, err := (snapshot.Request{Op: snapshot.OpReset, Root: dir, Store: "/s"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	tr, _ := sandbox.AsDriver[sandbox.Tracker](d)
	if err := tr.Track(t.Context(), req, &bytes.Buffer{}); fault.CodeOf(err) != "sandbox.local-reset-refused" {
		t.Errorf("a reset: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("ST_FROM_HOST", "host")
	t.Setenv("ASSAY_SECRET_SETTING", "mine")
	d := open(t, provider(t), scratch(t))
	s := sandbox.New(d, sandbox.Options{Env: map[string]string{"ST_ADDED": "layer"}, Path: []string{"/first"}})
	r, err := s.RunShell(t.Context(), `echo "$ST_FROM_HOST $ST_ADDED ${ASSAY_SECRET_SETTING-none} ${PATH%%:*}"`)
	if err != nil || r.Stdout != "host layer none /first\n" {
		t.Errorf("got %q, %v", r.Stdout, err)
	}
}

func TestStopEndsWhatCommandsLeft(t *testing.T) {
	d := open(t, provider(t), scratch(t))
	s := sandbox.New(d, sandbox.Options{Env: map[string]string{"ST_MARK": "left-by-" + t.Name()}})
	if _, err := s.RunShell(t.Context(), "(trap '' TERM; sleep 300) & setsid sleep 300 & echo up"); err != nil {
		t.Fatal(err)
	}
	if n, err := marked(t.Context(), d, "left-by-"+t.Name()); err != nil || n == 0 {
		t.Fatalf("%d services run, %v", n, err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := marked(t.Context(), d, "left-by-"+t.Name()); err != nil || n != 0 {
		t.Errorf("%d services outlive Stop, %v", n, err)
	}
}

func TestPutRefusesToGoThroughTheUsersLinks(t *testing.T) {
	dir, outside := scratch(t), scratch(t)
	if err := os.Symlink(outside, dir+"/data"); err != nil {
		t.Fatal(err)
	}
	s := sandbox.New(open(t, provider(t), dir), sandbox.Options{})
	if err := s.WriteText(t.Context(), "data/x", "1"); err != nil {
		t.Errorf("the target itself may be reached by a link: %v", err)
	}
	src := t.TempDir()
	write(t, src+"/data/y", "1")
	if err := s.UploadDirectory(t.Context(), src, dir); fault.CodeOf(err) != "archive-entry-refused" {
		t.Errorf("an entry through a link: %v", err)
	}
	if st, err := os.Lstat(dir + "/data"); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the user's link is %v, %v", st, err)
	}
	if _, err := os.Stat(outside + "/y"); err == nil {
		t.Error("a file landed outside")
	}
}

func TestProcessGroupsWithoutSupervisor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no process groups")
	}
	g := local.NewGroups(scratch(t))
	run := func(ctx context.Context, script string) (sandbox.Exit, string, error) {
		var out bytes.Buffer
		e, err := g.Exec(ctx, sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, Dir: g.Workdir(), Stdout: &out})
		return e, out.String(), err
	}
	if e, out, err := run(t.Context(), "echo hi; exit 7"); e.Code != 7 || out != "hi\n" || err != nil {
		t.Errorf("exit 7: %+v, %q, %v", e, out, err)
	}
	if e, _, err := run(t.Context(), "kill -9 $$"); e.Code != 137 || e.Signal != "SIGKILL" || err != nil {
		t.Errorf("a signal: %+v, %v", e, err)
	}
	if e, out, err := run(t.Context(), "sleep 300 & echo up"); e.Code != 0 || out != "up\n" || err != nil {
		t.Errorf("a service: %+v, %q, %v", e, out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := run(ctx, "sleep 300"); !errors.Is(err, sandbox.ErrUnusable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cut command: %v, want one that says that the sandbox is unusable", err)
	}
	if e, err := g.Exec(t.Context(), sandbox.Cmd{Argv: []string{"no-such-program"}, Dir: g.Workdir()}); e.Code != 127 || err != nil {
		t.Errorf("a missing program: %+v, %v", e, err)
	}
	if err := g.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
