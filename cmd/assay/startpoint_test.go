package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"assay/internal/guest/guesttest"
)

// cloudCommand is a command in a project with a cloud's account and without an
// engine, whose sandboxes are other people's.
func cloudCommand(t *testing.T, dir string, c cloud, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Env = append(append(cmd.Env, "CI=", "DOCKER_HOST=unix:///nowhere.sock", "ASSAY_GUEST="+guesttest.Build(t)), c.env...)
	return cmd
}

// did runs a command to its end and holds it to an exit code.
func did(t *testing.T, cmd *exec.Cmd, code int) (stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%q: exit %d, want %d: %v\n%s\n%s", cmd.Args[1:], got, code, err, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in\n%s", p, text)
		}
	}
}

// TestTemplateBuild builds a template from its file, refuses what is wrong, and
// runs an experiment in what was built.
func TestTemplateBuild(t *testing.T) {
	c := clouds(t)["e2b"]
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"assay.yaml": "name: points\n",
		"templates/acme.yaml": `name: acme:1
tags: [stable]
from: {template: base}
context: ../fixtures
cpus: 2
memory: 2GiB
steps:
  - {run: mkdir -p /opt/acme, as: root}
  - {copy: "*.txt", to: /opt/acme/, as: root, mode: "0640"}
  - {run: "echo a line of the build; chmod 644 /opt/acme/one.txt", as: root}
  - env: {ACME_HOME: /opt/acme}
`,
		"templates/broken.yaml": "from: {template: base}\nsteps:\n  - {run: \"echo before it; exit 3\"}\n",
		"wrong.yaml":            "from: {templat: base}\nsteps: [{rum: x}]\n",
		"double.yaml":           "steps: [{run: x, user: root}]\n",
		"fixtures/one.txt":      "one fixture\n",
		"experiments/x.yaml":    "agent: {command: {run: 'cat \"$ACME_HOME/one.txt\" >out.txt'}}\nsandbox: {e2b: {template: acme:1}}\n",
		"evals/e.eval.yaml":     "prompt: go\nchecks: [{file: out.txt, equals: \"one fixture\\n\"}]\n",
	})
	out, errs := did(t, cloudCommand(t, dir, c, "template", "build", "acme", "--json"), 0)
	var doc struct {
		Schema      string
		StartPoints []struct {
			Sandbox, Kind, ID, Name, Layer string
			Tags                           []string
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Schema != "assay.start-points/v1" || len(doc.StartPoints) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if p := doc.StartPoints[0]; p.Sandbox != "e2b" || p.Kind != "template" || p.ID == "" || p.Name != "acme:1" || p.Layer != "e2b: {template: acme:1}" || strings.Join(p.Tags, " ") != "1 stable" {
		t.Errorf("%+v", p)
	}
	holds(t, errs, "template acme: building at e2b", "a line of the build")
	did(t, cloudCommand(t, dir, c, "exp", "x"), 0)

	_, errs = did(t, cloudCommand(t, dir, c, "template", "build", "broken"), 2)
	holds(t, errs, "before it", "step 1 (RUN", "exit status 3", "[template-build-failed]", "fix: ")
	_, errs = did(t, cloudCommand(t, dir, c, "template", "build", "wrong.yaml"), 2)
	holds(t, errs, "wrong.yaml:1:8: from.templat", "wrong.yaml:2:", "rum", "[template-invalid]")
	_, errs = did(t, cloudCommand(t, dir, c, "template", "build", "double.yaml"), 2)
	holds(t, errs, "steps[0]: a step is exactly one of", "[template-invalid]")
	_, errs = did(t, cloudCommand(t, dir, c, "template", "build", "nothing"), 2)
	holds(t, errs, "there is no file nothing", "[usage]")
	if live := c.live(); len(live) != 0 {
		t.Errorf("the sandboxes %q are left", live)
	}
}

// TestSnapshotCommands takes a snapshot by flags and by a file, runs an
// experiment in it, lists and deletes it.
func TestSnapshotCommands(t *testing.T) {
	c := clouds(t)["vercel"]
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"assay.yaml": "name: points\n",
		"snapshots/acme.yaml": `from: {runtime: node24}
copy: [{from: ../tools, to: tools}]
run:
  - {run: "install -m 755 /vercel/sandbox/tools/acme /usr/local/bin/acme && rm -rf /vercel/sandbox/tools", sudo: true}
  - "acme; id -un"
expires: 720h
`,
		"tools/acme":        "#!/bin/sh\necho acme\n",
		"evals/e.eval.yaml": "prompt: go\nchecks: [{file: out.txt, equals: \"acme\\n\"}]\n",
	})
	out, errs := did(t, cloudCommand(t, dir, c, "snapshot", "create"), 0)
	holds(t, errs, "snapshot acme: building at vercel", "  $ acme; id -un", "  acme\n", "vercel-sandbox")
	_, line, _ := strings.Cut(strings.TrimSpace(out), "\n")
	holds(t, out, "built snapshot snap_", "sandbox: {vercel: {snapshotId: snap_")
	write(t, dir, map[string]string{"experiments/x.yaml": "agent: {command: {run: 'acme >out.txt'}}\n" + strings.TrimSpace(line) + "\n"})
	did(t, cloudCommand(t, dir, c, "exp", "x"), 0)

	first := strings.Fields(out)[2]
	out, _ = did(t, cloudCommand(t, dir, c, "snapshot", "create", "--from", first, "--run", "acme >kept", "--sudo", "id -un", "--copy", "tools/acme:/tmp/acme", "--json"), 0)
	var doc struct{ StartPoints []struct{ ID string } }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.StartPoints) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	second := doc.StartPoints[0].ID
	out, _ = did(t, cloudCommand(t, dir, c, "snapshot", "list"), 0)
	holds(t, out, first, second, "vercel: {snapshotId: "+second+"}")
	if got := strings.Join(c.kept(), " "); !strings.Contains(got, first) || !strings.Contains(got, second) || len(c.kept()) != 2 {
		t.Errorf("the service has the snapshots %s", got)
	}

	_, errs = did(t, cloudCommand(t, dir, c, "snapshot", "create", "--run", "echo before it; exit 3"), 2)
	holds(t, errs, "before it", "exit 3", "[sandbox.snapshot-command]", "fix: ")
	_, errs = did(t, cloudCommand(t, dir, c, "snapshot", "create", "--copy", "tools/acme", "--expires", "soon"), 2)
	holds(t, errs, "copy[0]", "expires", "[snapshot-invalid]")
	_, errs = did(t, cloudCommand(t, dir, c, "snapshot", "create", "acme", "--run", "x"), 2)
	holds(t, errs, "[usage]")
	did(t, cloudCommand(t, dir, c, "snapshot", "delete", first, second), 0)
	_, errs = did(t, cloudCommand(t, dir, c, "snapshot", "delete", first), 2)
	holds(t, errs, "[snapshot-missing]")
	if live, kept := c.live(), c.kept(); len(live)+len(kept) != 0 {
		t.Errorf("%q and %q are left", live, kept)
	}
}

// TestSnapshotStopped ends the taking of a snapshot in its middle: by a signal it
// leaves nothing, and after a kill the sandbox is found by its owner.
func TestSnapshotStopped(t *testing.T) {
	c := clouds(t)["vercel"]
	dir := t.TempDir()
	begin := func() *exec.Cmd {
		cmd := cloudCommand(t, dir, c, "snapshot", "create", "--run", "echo it runs; sleep 600")
		cmd.Stdout = nil
		out, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if sc.Text() == "  it runs" {
				go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the command
				return cmd
			}
		}
		t.Fatal("the output ended before the command ran")
		return nil
	}
	cmd := begin()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code says it
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("an interrupted build: exit %d", code)
	}
	c.nothing(t)

	cmd = begin()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if n := len(c.live()); n != 1 {
		t.Fatalf("%d sandboxes are left", n)
	}
	did(t, cloudCommand(t, dir, c, "sandbox", "prune"), 0)
	c.nothing(t)
}

// TestRecipeSchemas prints the schemas of the files.
func TestRecipeSchemas(t *testing.T) {
	for name, field := range map[string]string{"template": `"dockerfile"`, "snapshot": `"snapshotId"`} {
		out, _ := did(t, command(t, t.TempDir(), "schema", name), 0)
		holds(t, out, field, "json-schema.org")
	}
}
