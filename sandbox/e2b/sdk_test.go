package e2b_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"assay/internal/guest/guesttest"
	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2btest"
)

// sdkVersion is the version of E2B's SDK that the double and the hashes are
// held against.
const sdkVersion = "e2b@2.51.0"

// nodeModules returns a folder in which E2B's own SDK is installed: the one that
// E2B_SDK_DIR names, or one that npm fills once per machine.
func nodeModules(t *testing.T, pkg, env string) string {
	t.Helper()
	_, err := exec.LookPath("node")
	guesttest.Require(t, "node", err == nil, "node is not installed")
	if dir := os.Getenv(env); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "sdk-tests", strings.NewReplacer("/", "_", "@", "_").Replace(pkg))
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error", pkg)
	out, err := cmd.CombinedOutput()
	guesttest.Require(t, "npm", err == nil, "the SDK cannot be installed: "+string(out))
	return dir
}

// node runs a script beside the SDK.
func node(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	file := filepath.Join(dir, "test-"+filepath.Base(t.Name())+".mjs")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", file)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s%s", err, out, errs.String())
	}
	return string(out)
}

// TestSDK lets E2B's own SDK work against the double.
func TestSDK(t *testing.T) {
	dir := nodeModules(t, sdkVersion, "E2B_SDK_DIR")
	s := e2btest.New(t)
	s.PageSize, s.Unknown = 1, true
	out := node(t, dir, sdkScript, "E2B_API_KEY="+e2btest.Key, "E2B_API_URL="+s.URL, "E2B_SANDBOX_URL="+s.URL)
	if !strings.HasSuffix(strings.TrimSpace(out), "all well") {
		t.Errorf("the SDK's script said %q", out)
	}
}

const sdkScript = `
import { Sandbox, Template, waitForFile, CommandExitError, NotFoundError } from 'e2b'
import assert from 'node:assert'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
const s = await Sandbox.create('base', { timeoutMs: 120000, metadata: { 'a b': 'c&d=e' }, envs: { FOO: 'bar' } })
let r = await s.commands.run('echo out; echo err >&2; echo $FOO; id -un; pwd')
assert.equal(r.exitCode, 0)
assert.equal(r.stdout, 'out\nbar\nuser\n/home/user\n')
assert.equal(r.stderr, 'err\n')
await assert.rejects(s.commands.run('exit 3'), e => e instanceof CommandExitError && e.exitCode === 3)
r = await s.commands.run('id -un', { user: 'root' })
assert.equal(r.stdout, 'root\n')
await s.files.write('dir/hello.txt', 'hello')
assert.equal(await s.files.read('dir/hello.txt'), 'hello')
assert.deepEqual((await s.files.list('dir')).map(e => e.name), ['hello.txt'])
const info = await s.files.getInfo('dir/hello.txt')
assert.equal(info.size, 5); assert.equal(info.owner, 'user')
assert.equal(await s.files.exists('nope'), false)
await s.files.makeDir('made'); await s.files.rename('dir/hello.txt', 'made/x'); await s.files.remove('made')
await assert.rejects(s.files.read('nope'), NotFoundError)
const bg = await s.commands.run('cat', { background: true, stdin: true })
await s.commands.sendStdin(bg.pid, 'typed\n')
assert.ok((await s.commands.list()).some(p => p.pid === bg.pid))
await s.commands.kill(bg.pid)
await bg.wait().catch(() => {})
const sl = await s.commands.run('sleep 0.3; exit 4', { background: true })
const again = await s.commands.connect(sl.pid)
await assert.rejects(again.wait(), e => e.exitCode === 4)
assert.equal(await s.isRunning(), true)
await s.setTimeout(60000)
const i = await s.getInfo(); assert.equal(i.metadata['a b'], 'c&d=e')
const other = await Sandbox.create('base', { timeoutMs: 60000, metadata: { 'a b': 'other' } })
const pager = Sandbox.list({ query: { metadata: { 'a b': 'c&d=e' } } })
const found = []
while (pager.hasNext) found.push(...await pager.nextItems())
assert.deepEqual(found.map(f => f.sandboxId), [s.sandboxId])
const everyone = Sandbox.list(); const all = []
while (everyone.hasNext) all.push(...await everyone.nextItems())
assert.equal(all.length, 2)
await other.kill()
await s.pause()
const woken = await Sandbox.connect(s.sandboxId, { timeoutMs: 60000 })
assert.equal((await woken.commands.run('echo back')).stdout, 'back\n')
await woken.commands.run('echo kept > /home/user/kept')
const snap = await woken.createSnapshot()
const from = await Sandbox.create(snap.snapshotId, { timeoutMs: 60000 })
assert.equal(await from.files.read('/home/user/kept'), 'kept\n')
await from.kill()
const url = await woken.downloadUrl('/home/user/kept')
assert.ok(url.includes('signature='))
assert.equal(await woken.kill(), true)
assert.equal(await woken.isRunning(), false)
assert.equal(await Sandbox.kill(s.sandboxId), false)
await assert.rejects(Sandbox.create('no-such-template'), /not found/)
const ctx = fs.mkdtempSync(path.join(os.tmpdir(), 'ctx-'))
fs.mkdirSync(path.join(ctx, 'src')); fs.writeFileSync(path.join(ctx, 'src', 'a.txt'), 'A')
const t = Template({ fileContextPath: ctx }).fromImage('debian:stable').runCmd('echo built > /home/user/b').copy('src', '/home/user/src').setEnvs({ X: '1' }).setReadyCmd(waitForFile('/home/user/b'))
const built = await Template.build(t, 'sdk-made:v1', { tags: ['v2'] })
assert.equal(await Template.exists('sdk-made'), true)
await Template.assignTags('sdk-made:v1', ['prod'])
const b = await Sandbox.create('sdk-made:prod', { timeoutMs: 60000 })
assert.equal((await b.commands.run('cat /home/user/b /home/user/src/a.txt; echo $X')).stdout, 'built\nA1\n')
await b.kill()
await assert.rejects(Template.build(Template().fromImage('debian:stable').runCmd('exit 9'), 'sdk-bad'), /exit status 9/)
fs.rmSync(ctx, { recursive: true })
console.log('all well')
`

// TestHashes compares recipes and file hashes with those of E2B's own SDK.
func TestHashes(t *testing.T) {
	dir := nodeModules(t, sdkVersion, "E2B_SDK_DIR")
	tree := t.TempDir()
	for name, body := range map[string]string{
		"src/a.txt": "A", "src/deep/b.log": "B", "src/.hidden": "h", "top.log": "T", "top.txt": "t", "node_modules/m/i.js": "x", "é.txt": "e",
		".dockerignore": "# comment\n*.log\nnode_modules/**\n", "Dockerfile": dockerfile,
	} {
		file := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a.txt", filepath.Join(tree, "src", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(tree, "src", "a.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := node(t, dir, hashScript, "TREE="+tree)
	var want []struct {
		FromImage, FromTemplate, StartCmd, ReadyCmd string
		Force                                       bool
		Steps                                       []struct {
			Type, FilesHash string
			Args            []string
			Force           bool
		}
	}
	if err := json.Unmarshal([]byte(out), &want); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	builders := []*e2b.Builder{
		e2b.Template(tree, "top.txt").FromPythonImage("3.12").Copy("src", "/app/src").Copy("src", "/app/l", e2b.CopyOptions{ResolveSymlinks: true}).
			Copy("*.txt", "/t/", e2b.CopyOptions{User: "user", Mode: 0o640}).Copy(".", "/all").
			AptInstall("curl", "git").AptInstallLean("jq").PipInstall("x").PipInstallUser().NpmInstall("y").NpmInstallGlobal("z@1").
			RunCmd("a", "b").RunCmdAs("root", "c").Env("B", "2", "A", "1").SetWorkdir("/w").SetUser("me").MakeDir("/d", "/e f").
			GitClone("https://x/y z.git", "/g", "main", 1).SetStartCmd("serve", e2b.WaitForPort(80)),
		e2b.Template(tree).SkipCache().FromTemplate("base").RunCmd("x").SetReadyCmd(e2b.WaitForURL("http://h", 0)),
		e2b.Template(tree).RunCmd("x").SkipCache().RunCmd("y"),
		e2b.Template(tree).FromDockerfile(filepath.Join(tree, "Dockerfile")),
	}
	if len(want) != len(builders) {
		t.Fatalf("%d recipes came", len(want))
	}
	for i, b := range builders {
		got, err := b.Recipe()
		if err != nil {
			t.Fatal(err)
		}
		w := want[i]
		if got.FromImage != w.FromImage || got.FromTemplate != w.FromTemplate || got.StartCmd != w.StartCmd || got.ReadyCmd != w.ReadyCmd || got.Force != w.Force {
			t.Errorf("recipe %d is %+v, the SDK's is %+v", i, got, w)
		}
		if len(got.Steps) != len(w.Steps) {
			t.Errorf("recipe %d has %d steps, the SDK's has %d: %+v and %+v", i, len(got.Steps), len(w.Steps), got.Steps, w.Steps)
			continue
		}
		for k, s := range got.Steps {
			ws := w.Steps[k]
			if s.Type != ws.Type || strings.Join(s.Args, "\x00") != strings.Join(ws.Args, "\x00") || s.FilesHash != ws.FilesHash || s.Force != ws.Force {
				t.Errorf("step %d.%d is %+v, the SDK's is %+v", i, k+1, s, ws)
			}
		}
	}
}

const dockerfile = `# a comment
FROM python:3.12
ENV A=1 B=two
RUN apt-get update && \
    apt-get install -y   curl
COPY --chown=user src /app/
WORKDIR /app
EXPOSE 80
CMD ["python", "app.py"]
`

const hashScript = `
import { Template, waitForPort, waitForURL } from 'e2b'
const o = { fileContextPath: process.env.TREE }
const list = [
  Template({ ...o, fileIgnorePatterns: ['top.txt'] }).fromPythonImage('3.12').copy('src', '/app/src').copy('src', '/app/l', { resolveSymlinks: true })
    .copy('*.txt', '/t/', { user: 'user', mode: 0o640 }).copy('.', '/all')
    .aptInstall(['curl', 'git']).aptInstall(['jq'], { noInstallRecommends: true }).pipInstall('x').pipInstall(undefined, { g: false }).npmInstall('y').npmInstall('z@1', { g: true })
    .runCmd(['a', 'b']).runCmd('c', { user: 'root' }).setEnvs({ B: '2', A: '1' }).setWorkdir('/w').setUser('me').makeDir(['/d', '/e f'])
    .gitClone('https://x/y z.git', '/g', { branch: 'main', depth: 1 }).setStartCmd('serve', waitForPort(80)),
  Template(o).skipCache().fromTemplate('base').runCmd('x').setReadyCmd(waitForURL('http://h')),
  Template(o).runCmd('x').skipCache().runCmd('y'),
  Template(o).fromDockerfile(process.env.TREE + '/Dockerfile'),
]
const out = []
for (const t of list) out.push(JSON.parse(await Template.toJSON(t)))
console.log(JSON.stringify(out))
`
