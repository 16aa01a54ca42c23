package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/record"
)

// places are real sandboxes to share, as YAML.
func places(t *testing.T, do func(t *testing.T, sandbox string)) {
	t.Run("native", func(t *testing.T) {
		need(t, quickstart(t), "native")
		do(t, "native: {}")
	})
	t.Run("docker", func(t *testing.T) {
		testreq.Docker(t)
		do(t, fmt.Sprintf("docker: {image: %q}, user: nobody", testimage.Slice(t)))
	})
}

// tricks is an agent that makes its workdir as hard to restore as an ordinary
// user can, and leaves a process behind that goes on with it.
const tricks = `#!/bin/sh
cat >/dev/null
set -e
echo changed >file
chmod 000 secret && rm -rf tree/b && echo "a file now" >tree/b
rm file2 && mkdir -p file2/was/a/file && echo x >file2/was/a/file/x
ln -s . loop && ln -s /etc/passwd out && ln -s missing dangling && ln file hard
mkdir -p sub/.git/objects sub/.git/refs && echo "ref: refs/heads/main" >sub/.git/HEAD && echo x >sub/inside
mkdir empty && mkdir -p a/b/c/d/e/f/g/h/i/j && chmod 0500 a/b/c && chmod 0 a
mkfifo pipe
printf '*\n' >.gitignore
mkdir -p .git/info && printf '* filter=evil\n' >.git/info/attributes
printf 'x' >"$(printf 'new\nline')" && printf 'x' >"$(printf 'bad\377name')" && printf x >'-rf' && printf x >' lead'
echo '#!/bin/sh' >run && chmod 4755 run
i=0; while [ $i -lt 300 ]; do echo $i >many-$i; i=$((i+1)); done
touch -d 2001-01-01 keep && printf 'KEEP\n' >keep && touch -d 2001-01-01 keep
dd if=/dev/zero of=sparse bs=1 count=1 seek=100000000 2>/dev/null
chmod 0500 tree
(setsid sh -c 'while :; do echo again >again-$$; mkdir -p keep-on/$$; sleep 0.01; done' >/dev/null 2>&1 &)
chmod 0555 .
`

func TestReuseAgainstTricks(t *testing.T) {
	places(t, func(t *testing.T, sandbox string) {
		dir := t.TempDir()
		write(t, dir, map[string]string{
			"agent/tricks.sh": tricks,
			"experiments/x.yaml": `agent: {command: {run: 'sh "$ASSAY_AGENT_DIR/tricks.sh"', files: ../agent}}
sandboxReuse: true
maxConcurrency: 1
attempts: 4
timeout: 2m
sandbox: {` + sandbox + `, lifetime: 1h, setup: ["mkdir -p void tree && echo tool > tool"]}
`,
			"evals/e/eval.yaml": `prompt: go
setup:
  - {run: "find . -name .git -prune -o -type d -printf '%p d %m\\n' -o -printf '%p %y %m %s\\n' | sort > /tmp/seen && cat file secret file2 keep tree/b/c tool >/dev/null"}
  - {run: "test -f /tmp/first || cp /tmp/seen /tmp/first; diff /tmp/first /tmp/seen"}
checks:
  - {file: file, equals: "changed\n"}
`,
			"evals/e/workspace/file": "one\n", "evals/e/workspace/file2": "two\n", "evals/e/workspace/secret": "s\n",
			"evals/e/workspace/keep": "keep\n", "evals/e/workspace/tree/b/c": "c\n",
		})
		out := run(t, dir, "exp")
		attempts, runs := results(t, dir)
		if len(attempts) != 4 || len(runs) != 1 {
			t.Fatalf("%d attempts:\n%s", len(attempts), out)
		}
		for i, a := range attempts {
			if a.Error != nil || a.Sandbox == nil || a.Sandbox.Ordinal != 1 || a.Sandbox.Use != i+1 {
				t.Errorf("attempt %d: sandbox %+v, error %+v\n%+v", i, a.Sandbox, a.Error, a.Diagnostics)
			}
			if _, ok := a.Facts["assay.processes.ended"]; !ok {
				t.Errorf("attempt %d: the process that was left behind is not told of", i)
			}
		}
		for _, d := range runs[0].End.Diagnostics {
			t.Errorf("the run says %+v", d)
		}
	})
}

// run runs the program to its end, whatever the verdicts are.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Env = append(cmd.Env, "ASSAY_GUEST="+guesttest.Build(t))
	out, err := cmd.CombinedOutput()
	if ee, ok := err.(*exec.ExitError); err != nil && (!ok || ee.ExitCode() > 1) {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestReuseExample(t *testing.T) {
	places(t, func(t *testing.T, sandbox string) {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "examples", "reuse"))); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(t.Name(), "TestReuseExample/")
		if name == "docker" {
			testimage.Slice(t) // it is debian:bookworm-slim
		}
		out := run(t, dir, "exp", name)
		attempts, _ := results(t, dir)
		sandboxes := map[string]int{}
		for _, a := range attempts {
			if a.Verdict != record.Passed {
				t.Errorf("%s#%d is %s: %+v", a.Eval, a.Ordinal, a.Verdict, a.Error)
			}
			sandboxes[a.Sandbox.ID]++
		}
		if len(attempts) != 6 || len(sandboxes) > 2 {
			t.Errorf("%d attempts in %d sandboxes:\n%s", len(attempts), len(sandboxes), out)
		}
	})
}

func TestGroupExample(t *testing.T) {
	need(t, quickstart(t), "native")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "examples", "reuse"))); err != nil {
		t.Fatal(err)
	}
	out := run(t, dir, "exp", "grouped")
	attempts, _ := results(t, dir)
	if len(attempts) != 2 || attempts[0].Sandbox.ID != attempts[1].Sandbox.ID || attempts[0].Verdict != record.Passed || attempts[1].Verdict != record.Passed {
		t.Errorf("the members did not share a sandbox:\n%s", out)
	}
	for _, a := range attempts {
		if want := map[string]int{"chain/first": 1, "chain/second": 2}[string(a.Eval)]; a.Sandbox.Use != want {
			t.Errorf("%s is use %d of the sandbox", a.Eval, a.Sandbox.Use)
		}
	}
}

// An agent that works as the keeper of the ledger is refused before it is paid.
func TestReuseRefusesAnAgentThatSeesTheLedger(t *testing.T) {
	testreq.Docker(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"experiments/x.yaml":    "agent: {command: {run: 'touch /ran'}}\nsandboxReuse: true\nattempts: 3\nmaxConcurrency: 1\nsandbox: {docker: {image: \"" + testimage.Slice(t) + "\"}, lifetime: 1h}\n",
		"evals/hello.eval.yaml": "prompt: hi\n",
	})
	out := run(t, dir, "exp")
	attempts, runs := results(t, dir)
	if len(attempts) != 1 || attempts[0].Error == nil || attempts[0].Error.Code != "sandbox.reuse-root" || len(attempts[0].Turns) != 0 || len(runs[0].End.NotRun) != 2 {
		t.Errorf("%d attempts\n%s", len(attempts), out)
	}
}
