package sandboxtest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/fault"
	"assay/sandbox"
)

func facePromises() []Promise {
	return []Promise{
		{"face-commands", faceCommands},
		{"face-command-timeout", faceTimeout},
		{"face-environment", faceEnv},
		{"face-large-output-is-bounded", faceBounded},
		{"face-text-and-bytes", faceText},
		{"face-paths", facePaths},
		{"face-file-transfer", faceFile},
		{"face-directory-transfer", faceDirectory},
		{"face-checkpoint", faceCheckpoint},
		{"face-end-processes", faceEnd},
		{"face-stop", faceStop},
	}
}

// face is the face over the box's driver.
func (b *box) face(o sandbox.Options) *sandbox.Sandbox {
	o.Provider = b.h.Provider
	return sandbox.New(b.d, o)
}

func faceCommands(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	s := b.face(sandbox.Options{})
	r, err := s.RunCommand(b.ctx, []string{"printf", "%s", "a  b"})
	if err != nil || r.Code != 0 || r.Stdout != "a  b" || r.Partial {
		t.Errorf("RunCommand gave %+v, %v", r, err)
	}
	r, err = s.RunShell(b.ctx, `echo out; echo err >&2; exit 3`)
	if err != nil || r.Code != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("RunShell gave %+v, %v", r, err)
	}
	var ce *sandbox.CommandError
	if _, err := s.RunShellOrThrow(b.ctx, `echo why >&2; exit 3`); fault.CodeOf(err) != "command-exit" || !errors.As(err, &ce) || ce.Result.Code != 3 || !strings.Contains(err.Error(), "why") {
		t.Errorf("RunShellOrThrow gave %v", err)
	}
	if _, err := s.RunCommandOrThrow(b.ctx, []string{"true"}); err != nil {
		t.Errorf("RunCommandOrThrow of true: %v", err)
	}
	long := "x='" + strings.Repeat("é", 120_000) + "'\nprintf %s ${#x}; exit 5"
	if r, err := s.RunShell(b.ctx, long); err != nil || r.Code != 5 || r.Stdout != "120000" && r.Stdout != "240000" {
		t.Errorf("a script of 240 kB gave exit %d, %q, %q, %v", r.Code, r.Stdout, r.Stderr, err)
	}
}

func faceTimeout(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	s := b.face(sandbox.Options{})
	r, err := s.RunShell(b.ctx, "echo partial; sleep 300", sandbox.CommandOptions{Timeout: 400 * time.Millisecond})
	if fault.CodeOf(err) != "command-timeout" || !r.Partial || r.Stdout != "partial\n" || fault.ClassOf(err) != fault.Canceled {
		t.Errorf("a command over its limit gave %+v, code %q, %v", r, fault.CodeOf(err), err)
	}
	r, err = s.RunShell(b.ctx, "exit 124", sandbox.CommandOptions{Timeout: time.Minute})
	if err != nil || r.Code != 124 {
		t.Errorf("exit 124 gave %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancelCause(b.ctx)
	cancel(errors.New("the test said so"))
	if _, err := s.RunShell(ctx, "true"); fault.ClassOf(err) != fault.Canceled || !strings.Contains(err.Error(), "the test said so") {
		t.Errorf("a cancelled command gave %v", err)
	}
}

func faceEnv(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	s := b.face(sandbox.Options{Env: map[string]string{"ST_X": "layer", "ST_Y": "layer"}, Path: []string{b.dir + "/bin"}})
	b.put(b.dir, executable("bin/st-tool", "#!/bin/sh\necho mine\n"))
	r, err := s.RunShell(b.ctx, `printf '%s %s ' "$ST_X" "$ST_Y"; st-tool`, sandbox.CommandOptions{Env: map[string]string{"ST_Y": "command"}})
	if err != nil || r.Stdout != "layer command mine\n" {
		t.Errorf("environment gave %q, %q, %v", r.Stdout, r.Stderr, err)
	}
	if _, err := s.RunCommand(b.ctx, []string{"true"}, sandbox.CommandOptions{Env: map[string]string{"PATH": "/x"}}); fault.CodeOf(err) != "command-path-managed" {
		t.Errorf("PATH for one command gave %v", err)
	}
	env, err := s.Environ(b.ctx, "")
	if err != nil || !slices.Contains(strings.Split(env["PATH"], ":"), "/usr/local/bin") {
		t.Errorf("PATH is %q, %v", env["PATH"], err)
	}
}

func faceBounded(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	s := b.face(sandbox.Options{})
	r, err := s.RunShell(b.ctx, `echo first; head -c 3000000 /dev/zero; echo last`, sandbox.CommandOptions{OutputLimit: 4096})
	if err != nil || len(r.Stdout) > 4096+100 || !strings.HasPrefix(r.Stdout, "first\n") || !strings.HasSuffix(r.Stdout, "last\n") {
		t.Errorf("large output: %d bytes kept, %v", len(r.Stdout), err)
	}
	if want := int64(3_000_011 - 4096); r.StdoutDropped != want {
		t.Errorf("dropped %d bytes, want %d", r.StdoutDropped, want)
	}
}

func faceText(t testing.TB, h Harness) {
	b := start(t, h)
	s := b.face(sandbox.Options{})
	for _, text := range []string{"", "one line", "zwei Zeilen\r\n é 💡 \x00 \ufeff"} {
		if err := s.WriteText(b.ctx, b.dir+"/deep/er/t.txt", text); err != nil {
			t.Errorf("WriteText: %v", err)
		}
		if got, err := s.ReadText(b.ctx, b.dir+"/deep/er/t.txt"); err != nil || got != text {
			t.Errorf("text came back as %q, %v", got, err)
		}
	}
	raw := append(noise(300_000), 0xff, 0xfe)
	if err := s.WriteBytes(b.ctx, b.dir+"/raw", raw); err != nil {
		t.Errorf("WriteBytes: %v", err)
	}
	if got, err := s.ReadBytes(b.ctx, b.dir+"/raw"); err != nil || digest(got) != digest(raw) {
		t.Errorf("%d bytes came back as %d others, %v", len(raw), len(got), err)
	}
	if _, err := s.ReadText(b.ctx, b.dir+"/raw"); fault.CodeOf(err) != "invalid-utf8" {
		t.Errorf("ReadText of other bytes: %v", err)
	}
	if err := s.WriteText(b.ctx, b.dir+"/no", "\xff"); fault.CodeOf(err) != "invalid-utf8" {
		t.Errorf("WriteText of other bytes: %v", err)
	}
	if _, err := s.ReadText(b.ctx, b.dir+"/missing"); !errors.Is(err, fs.ErrNotExist) || fault.CodeOf(err) != "not-found" {
		t.Errorf("ReadText of a missing file: %v", err)
	}
	if _, err := s.ReadBytes(b.ctx, b.dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadBytes of a directory: %v", err)
	}
	for p, want := range map[string]bool{"/raw": true, "/deep/er": true, "": true, "/missing": false, "/raw/below": false, "/no/such": false} {
		if got, err := s.PathExists(b.ctx, b.dir+p); err != nil || got != want {
			t.Errorf("PathExists(%q) is %v, %v", p, got, err)
		}
	}
}

func facePaths(t testing.TB, h Harness) {
	b := start(t, h)
	s := b.face(sandbox.Options{})
	w := b.d.Workdir()
	for in, want := range map[string]string{
		"": w, ".": w, "a/b": w + "/a/b", "./a": w + "/a", "/x/y": "/x/y", "~": w + "/~", "$HOME/x": w + "/$HOME/x", "~/x": w + "/~/x",
	} {
		if got := s.Path(in); got != want {
			t.Errorf("Path(%q) is %q, want %q", in, got, want)
		}
	}
	sub := b.dir[strings.LastIndex(b.dir, "/")+1:]
	if err := s.WriteText(b.ctx, sub+"/$HOME/~", "literal"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadText(b.ctx, b.dir+"/$HOME/~"); err != nil || got != "literal" {
		t.Errorf("a relative path is not below the workdir: %q, %v", got, err)
	}
	if h.NoShell {
		return
	}
	for cwd, want := range map[string]string{"": w, ".": w, sub: b.dir, b.dir + "/$HOME": b.dir + "/$HOME"} {
		r, err := s.RunShell(b.ctx, "pwd", sandbox.CommandOptions{Cwd: cwd})
		if err != nil || strings.TrimSpace(r.Stdout) != want {
			t.Errorf("a command with the directory %q runs in %q, want %q (%v)", cwd, strings.TrimSpace(r.Stdout), want, err)
		}
	}
}

func write(t testing.TB, p, body string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(body), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		t.Fatal(err)
	}
}

func faceFile(t testing.TB, h Harness) {
	b := start(t, h)
	host := t.TempDir()
	s := b.face(sandbox.Options{HostDir: host})
	write(t, filepath.Join(host, "in.sh"), "#!/bin/sh\n", 0o755)
	if err := s.UploadFile(b.ctx, "in.sh", b.dir+"/sub/renamed.sh"); err != nil {
		t.Fatalf("UploadFile: %v", err)
	}
	if err := s.DownloadFile(b.ctx, b.dir+"/sub/renamed.sh", "out/back.sh"); err != nil {
		t.Fatalf("DownloadFile: %v", err)
	}
	got, err := os.ReadFile(filepath.Join(host, "out/back.sh"))
	st, serr := os.Stat(filepath.Join(host, "out/back.sh"))
	if err != nil || serr != nil || string(got) != "#!/bin/sh\n" || st.Mode().Perm() != 0o755 {
		t.Errorf("a file came back as %q, %v, %v", got, st, err)
	}
	if err := s.UploadFile(b.ctx, "missing", b.dir+"/m"); err == nil {
		t.Error("UploadFile of a missing file is no error")
	}
	if err := s.DownloadFile(b.ctx, b.dir+"/missing", "out/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("DownloadFile of a missing file: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(host, "out")); len(left) != 1 {
		t.Errorf("a failed download left %v", left)
	}
}

func hostManifest(t testing.TB, root string) manifest {
	t.Helper()
	m := manifest{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			m[rel] = "dir"
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			m[rel] = "link to " + target
		default:
			body, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			e := file(rel, string(body))
			e.Mode = int64(info.Mode().Perm())
			m[rel] = describe(&e.Header, e.body)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func faceDirectory(t testing.TB, h Harness) {
	b := start(t, h)
	host := t.TempDir()
	src := filepath.Join(host, "src")
	s := b.face(sandbox.Options{HostDir: host})
	write(t, src+"/a", "1", 0o644)
	write(t, src+"/.hidden", "2", 0o600)
	write(t, src+"/d/run", "3", 0o755)
	write(t, src+"/d/-x\ny", "4", 0o644)
	if err := errors.Join(os.Mkdir(src+"/hollow", 0o755), os.Symlink("a", src+"/l"), os.Symlink("../a", src+"/d/up")); err != nil {
		t.Fatal(err)
	}
	want := hostManifest(t, src)
	write(t, src+"/node_modules/x", "no", 0o644)
	write(t, src+"/d/node_modules/x", "no", 0o644)
	if err := s.UploadDirectory(b.ctx, "src", b.dir, sandbox.TransferOptions{Ignore: []string{"node_modules"}}); err != nil {
		t.Fatalf("UploadDirectory: %v", err)
	}
	if d := want.diff(b.mustRead(b.dir)); d != "" {
		t.Errorf("the uploaded tree differs:%s", d)
	}
	if err := s.DownloadDirectory(b.ctx, b.dir, "dst"); err != nil {
		t.Fatalf("DownloadDirectory: %v", err)
	}
	if d := want.diff(hostManifest(t, filepath.Join(host, "dst"))); d != "" {
		t.Errorf("the downloaded tree differs:%s", d)
	}
	if err := s.DownloadDirectory(b.ctx, b.dir, "dst2", sandbox.TransferOptions{Ignore: []string{"d"}}); err != nil {
		t.Fatalf("DownloadDirectory: %v", err)
	}
	if m := hostManifest(t, filepath.Join(host, "dst2")); m["d/run"] != "" || m["a"] == "" {
		t.Errorf("an ignoring download holds %v", m)
	}
	if err := os.Mkdir(filepath.Join(host, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.UploadDirectory(b.ctx, "empty", b.dir); fault.CodeOf(err) != "upload-empty" {
		t.Errorf("the upload of an empty folder: %v", err)
	}
	if err := s.DownloadDirectory(b.ctx, b.dir+"/missing", "dst3"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the download of a missing folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(host, "dst3")); err == nil {
		t.Error("a failed download made its folder")
	}
}

func faceCheckpoint(t testing.TB, h Harness) {
	b := start(t, h)
	s := b.face(sandbox.Options{})
	tree := []entry{file("c/a", "1"), executable("c/d/x", "2"), link("c/l", "a"), dir("c"), dir("c/d"), dir("c/hollow")}
	b.put(b.dir, tree...)
	b.put(b.dir, file("single", "3"))
	before := b.mustRead(b.dir + "/c")
	saved, err := sandbox.CreateCheckpoint(b.ctx, s, []string{b.dir + "/c", b.dir + "/single"})
	if err != nil {
		t.Fatalf("CreateCheckpoint: %v", err)
	}
	b.put(b.dir, file("c/a", "changed"), file("single", "changed"))
	if err := sandbox.RestoreCheckpoint(b.ctx, s, saved); err != nil {
		t.Fatalf("RestoreCheckpoint: %v", err)
	}
	if d := before.diff(b.mustRead(b.dir + "/c")); d != "" {
		t.Errorf("the restored tree differs:%s", d)
	}
	if d := manifestOf(file("single", "3")).diff(b.mustRead(b.dir + "/single")); d != "" {
		t.Errorf("the restored file differs:%s", d)
	}
	if _, err := sandbox.CreateCheckpoint(b.ctx, s, []string{b.dir + "/missing"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a checkpoint of a missing path: %v", err)
	}
	if err := sandbox.RestoreCheckpoint(b.ctx, s, saved[:len(saved)/2]); err == nil {
		t.Error("half a checkpoint was restored")
	}
}

func faceEnd(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	s := b.face(sandbox.Options{})
	if _, err := s.RunShell(b.ctx, "sleep 300 & echo up"); err != nil {
		t.Fatal(err)
	}
	ended, err := s.EndProcesses(b.ctx)
	if _, ok := sandbox.As[sandbox.ProcessEnder](s); !ok {
		if fault.CodeOf(err) != "processes-unsupported" {
			t.Errorf("EndProcesses without that power: %v", err)
		}
		return
	}
	if err != nil || len(ended) == 0 {
		t.Errorf("EndProcesses ended %v, %v", ended, err)
	}
}

func faceStop(t testing.TB, h Harness) {
	b := start(t, h)
	s := b.face(sandbox.Options{})
	if err := errors.Join(s.Stop(b.ctx), s.Stop(b.ctx)); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if _, err := s.RunCommand(b.ctx, []string{"true"}); !errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("a command after Stop: %v", err)
	}
	if _, err := s.ReadBytes(b.ctx, "x"); !errors.Is(err, sandbox.ErrUnusable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a read after Stop: %v", err)
	}
	if s.Unusable() == nil {
		t.Error("a stopped sandbox is usable")
	}
}
