package testimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

func TestTarIsTheSameForTheSameContent(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "tool")
	write := func(content string, at time.Time) string {
		t.Helper()
		if err := os.WriteFile(src, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(src, at, at); err != nil {
			t.Fatal(err)
		}
		tr := skeleton("/bin/sh")
		if err := tr.file("usr/bin/tool", src); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := tr.writeTar(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first := write("one", time.Unix(1e9, 0))
	if write("one", time.Unix(2e9-1, 0)) != first {
		t.Error("another file time changed the archive")
	}
	if write("two", time.Unix(1e9, 0)) == first {
		t.Error("other content left the archive the same")
	}
}

func TestTarStoresOneHostFileOnce(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "coreutils")
	if err := os.WriteFile(real, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	alias := filepath.Join(dir, "ls")
	if err := os.Symlink("coreutils", alias); err != nil {
		t.Fatal(err)
	}
	tr := newTree()
	for name, src := range map[string]string{"b/cat": real, "b/ls": alias} {
		if err := tr.file(name, src); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := tr.writeTar(&b); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(h.Typeflag)+" "+h.Name+" "+h.Linkname)
	}
	if want := "5 b/ |0 b/cat |1 b/ls b/cat"; strings.Join(got, "|") != want {
		t.Errorf("archive holds %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestMerged(t *testing.T) {
	for in, want := range map[string]string{
		"/lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6",
		"/lib64/ld-linux-x86-64.so.2":     "usr/lib64/ld-linux-x86-64.so.2",
		"/usr/lib/libz.so.1":              "usr/lib/libz.so.1",
		"/opt/lib/x.so":                   "opt/lib/x.so",
	} {
		if got := merged(in); got != want {
			t.Errorf("merged(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNpmHome(t *testing.T) {
	for _, tc := range []struct{ cli, home, target string }{
		{"/usr/lib/node_modules/npm/bin/npm-cli.js", "/usr/lib/node_modules/npm", "usr/lib/node_modules/npm"},
		{"/home/u/.nvm/versions/node/v24/lib/node_modules/npm/bin/npm-cli.js", "/home/u/.nvm/versions/node/v24/lib/node_modules/npm", "usr/lib/node_modules/npm"},
		{"/usr/share/nodejs/npm/bin/npm-cli.js", "/usr/share/nodejs", "usr/share/nodejs"},
		{"/opt/npm", "", ""},
	} {
		if home, target := npmHome(tc.cli); home != tc.home || target != tc.target {
			t.Errorf("npmHome(%q) = %q, %q; want %q, %q", tc.cli, home, target, tc.home, tc.target)
		}
	}
}

func TestImportErrorIsFoundInTheStream(t *testing.T) {
	ok := `{"status":"Importing"}` + "\n" + `{"status":"sha256:1"}` + "\n"
	if err := importError(strings.NewReader(ok)); err != nil {
		t.Errorf("a good stream: %v", err)
	}
	if err := importError(strings.NewReader(ok + `{"error":"no space left on device"}`)); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a stream with an error line: %v", err)
	}
	if err := importError(strings.NewReader(ok[:10])); err == nil {
		t.Error("a stream cut short is no error")
	}
}

// Each image must run what its description says it has.
func TestImages(t *testing.T) {
	const repo = `cd /tmp && git init -q r && cd r && echo a >a && git add a &&
		git -c user.name=x -c user.email=x@example.com commit -qm first && git log --format=%s && ps -o comm= -p $$ && id -un`
	for _, tc := range []struct {
		name   string
		image  func(testing.TB) string
		cmd    []string
		output string
	}{
		{"busybox", Busybox, []string{"sh", "-c", "id -un; command -v git || echo no git"}, "root\nno git\n"},
		{"slice", Slice, []string{"bash", "-c", repo}, "first\nbash\nroot\n"},
		{"slice-user", SliceUser, []string{"bash", "-c", repo}, "first\nbash\nnode\n"},
		{"slice-node", SliceNode, []string{"sh", "-c", "node -p 1+1 && npm --version >/dev/null && echo npm"}, "2\nnpm\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ref := tc.image(t)
			if again := tc.image(t); again != ref {
				t.Errorf("second reference %q, first %q", again, ref)
			}
			out, exit := run(t, ref, tc.cmd)
			if exit != 0 || out != tc.output {
				t.Errorf("exit %d, output %q; want 0, %q", exit, out, tc.output)
			}
		})
	}
}

func TestScratchHasNothing(t *testing.T) {
	cli, _ := testreq.Engine(t)
	img, err := cli.ImageInspect(t.Context(), Scratch(t))
	if err != nil {
		t.Fatal(err)
	}
	if img.Size != 0 {
		t.Errorf("size %d, want 0", img.Size)
	}
}

func TestBuildOfUnknownNameFails(t *testing.T) {
	if _, err := Build(t.Context(), nil, "no-such-image"); err == nil {
		t.Error("no error")
	}
}

// run runs cmd in a new container without network, removes the container, and
// returns both output streams as one, and the exit code.
func run(t *testing.T, ref string, cmd []string) (string, int64) {
	t.Helper()
	cli, _ := testreq.Engine(t)
	ctx := t.Context()
	c, err := cli.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: ref, Cmd: cmd},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	wait := cli.ContainerWait(ctx, c.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := cli.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	var exit int64
	select {
	case res := <-wait.Result:
		exit = res.StatusCode
	case err := <-wait.Error:
		t.Fatal(err)
	}
	logs, err := cli.ContainerLogs(ctx, c.ID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = logs.Close() }()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, logs); err != nil {
		t.Fatal(err)
	}
	return out.String(), exit
}
