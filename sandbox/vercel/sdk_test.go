package vercel_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/sandbox/vercel/verceltest"
)

// sdkVersion is the version of Vercel's SDK that the double is held against.
const sdkVersion = "@vercel/sandbox@3.5.0"

// patience ends what hangs; no test depends on how long anything takes.
const patience = 2 * time.Minute

// nodeModules returns a folder in which Vercel's own SDK is installed: the one
// that VERCEL_SDK_DIR names, or one that npm fills once per machine.
func nodeModules(t *testing.T) string {
	t.Helper()
	_, err := exec.LookPath("node")
	guesttest.Require(t, "node", err == nil, "node is not installed")
	if dir := os.Getenv("VERCEL_SDK_DIR"); dir != "" {
		return dir
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "sdk-tests", "vercel-sandbox-3.5.0")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error", sdkVersion)
	out, err := cmd.CombinedOutput()
	guesttest.Require(t, "npm", err == nil, "the SDK cannot be installed: "+string(out))
	return dir
}

// TestSDK lets Vercel's own SDK work against the double.
func TestSDK(t *testing.T) {
	dir := nodeModules(t)
	s := verceltest.New(t)
	s.PageSize, s.Unknown = 1, true
	file := filepath.Join(dir, "test-sdk.mjs")
	if err := os.WriteFile(file, []byte(sdkScript), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", file)
	cmd.Env = append(os.Environ(), "DOUBLE="+s.URL, "TOKEN="+verceltest.Token, "TEAM="+verceltest.Team, "PROJECT="+verceltest.Project)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "all well") {
		t.Errorf("the SDK's script said %q, %v\n%s", out, err, errs.String())
	}
}

const sdkScript = `
import { Sandbox, Snapshot } from '@vercel/sandbox'
import assert from 'node:assert'
const double = (input, init) => {
  const from = typeof input === 'string' ? input : input.url ?? String(input)
  return fetch(from.replace('https://vercel.com/api', process.env.DOUBLE), init)
}
const auth = { token: process.env.TOKEN, teamId: process.env.TEAM, projectId: process.env.PROJECT, fetch: double }
const s = await Sandbox.create({ ...auth, name: 'sdk-made', runtime: 'node24', timeout: 60000, persistent: false, tags: { k: 'v' }, env: { FOO: 'bar' }, ports: [3000] })
let r = await s.runCommand({ cmd: 'sh', args: ['-c', 'echo out; echo err >&2; echo $FOO; pwd; exit 3'] })
assert.equal(r.exitCode, 3)
assert.equal(await r.stdout(), 'out\nbar\n/vercel/sandbox\n')
assert.equal(await r.stderr(), 'err\n')
r = await s.runCommand({ cmd: 'id', args: ['-un'], sudo: true })
assert.equal(await r.stdout(), 'root\n')
r = await s.runCommand({ cmd: 'no-such-program' })
assert.equal(r.exitCode, 127)
await s.writeFiles([{ path: 'a/b.txt', content: Buffer.from('hello') }, { path: '/tmp/run.sh', content: Buffer.from('#!/bin/sh\necho ran\n'), mode: 0o755 }])
assert.equal((await s.readFileToBuffer({ path: 'a/b.txt' })).toString(), 'hello')
assert.equal(await s.readFileToBuffer({ path: 'nope' }), null)
r = await s.runCommand('/tmp/run.sh')
assert.equal(await r.stdout(), 'ran\n')
await s.mkDir('made')
await assert.rejects(s.mkDir('made'))
const bg = await s.runCommand({ cmd: 'sh', args: ['-c', 'echo up; sleep 60'], detached: true })
for await (const l of bg.logs()) { assert.equal(l.data, 'up\n'); break }
await bg.kill('SIGTERM')
assert.equal((await bg.wait()).exitCode, 143)
const other = await Sandbox.create({ ...auth, name: 'sdk-other', timeout: 60000, persistent: false })
const names = []
for await (const x of await Sandbox.list({ ...auth })) names.push(x.name)
assert.deepEqual(names.sort(), ['sdk-made', 'sdk-other'])
await other.delete()
await assert.rejects(Sandbox.create({ ...auth, name: 'sdk-made', timeout: 60000 }), e => /already exists/.test(JSON.stringify(e.json ?? e.message) + e.message))
await s.extendTimeout(30000)
await s.runCommand({ cmd: 'sh', args: ['-c', 'echo kept > /vercel/sandbox/kept'] })
const snap = await s.snapshot()
assert.equal(snap.status, 'created')
const from = await Sandbox.create({ ...auth, name: 'sdk-from', timeout: 60000, persistent: false, source: { type: 'snapshot', snapshotId: snap.snapshotId } })
assert.equal((await from.readFileToBuffer({ path: 'kept' })).toString(), 'kept\n')
await from.stop()
await from.delete()
await snap.delete()
await assert.rejects(Sandbox.create({ ...auth, name: 'sdk-gone', timeout: 60000, source: { type: 'snapshot', snapshotId: snap.snapshotId } }))
await s.delete()
console.log('all well')
`
