package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

// TestDocs runs every console block of README.md and docs/, each file in its
// own copy of the quickstart. A line that starts with "$ " is a command, "> "
// continues its input, and every other line must stand in what the command
// printed, in any order, because attempts end in any; runs of blanks count as
// one. A block marked "console docker" runs where that kind of sandbox works. The
// page of a cloud has the account of its double.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			blocks := consoleBlocks(t, file)
			if len(blocks) == 0 {
				return
			}
			dir := quickstart(t)
			env := account(t, file)
			for _, b := range blocks {
				t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
					need(t, dir, b.needs)
					for _, c := range b.commands {
						c.run(t, dir, env...)
					}
				})
			}
		})
	}
}

type block struct {
	line     int
	needs    string // a kind of sandbox that must work here
	commands []*shellCommand
}

type shellCommand struct {
	script string
	want   []string
}

func consoleBlocks(t *testing.T, file string) (blocks []block) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	for i, l := range strings.Split(string(body), "\n") {
		switch {
		case open == nil && strings.HasPrefix(l, "```console"):
			open = &block{line: i + 1, needs: strings.TrimSpace(strings.TrimPrefix(l, "```console"))}
		case open != nil && strings.HasPrefix(l, "```"):
			blocks = append(blocks, *open)
			open = nil
		case open == nil:
		case strings.HasPrefix(l, "$ "):
			open.commands = append(open.commands, &shellCommand{script: l[2:]})
		case len(open.commands) == 0:
			t.Fatalf("%s:%d: a console block begins with a command", file, i+1)
		case strings.HasPrefix(l, "> "):
			open.commands[len(open.commands)-1].script += "\n" + l[2:]
		default:
			c := open.commands[len(open.commands)-1]
			c.want = append(c.want, l)
		}
	}
	return blocks
}

// quickstart copies the example and puts the command into the PATH of scripts.
func quickstart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "quickstart"), os.DirFS("../../examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(filepath.Join(dir, "quickstart", ".assay"))
	os.RemoveAll(filepath.Join(dir, "quickstart", "playground"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "bin", "assay")); err != nil {
		t.Fatal(err)
	}
	return dir
}

var blanks = regexp.MustCompile(`\s+`)

func (c *shellCommand) run(t *testing.T, dir string, env ...string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", c.script)
	cmd.Dir = filepath.Join(dir, "quickstart")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "HOME="+dir, "CI=", "ASSAY_GUEST="+guesttest.Build(t))
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if exit, ok := err.(*exec.ExitError); err != nil && !ok || ok && exit.ExitCode() > 2 {
		t.Fatalf("$ %s\n%v\n%s", c.script, err, out)
	}
	printed := blanks.ReplaceAllString(string(out), " ")
	for _, want := range c.want {
		if !strings.Contains(printed, strings.TrimSpace(blanks.ReplaceAllString(want, " "))) {
			t.Fatalf("$ %s\nprinted no\n  %s\nbut\n%s", c.script, want, out)
		}
	}
}

// account is the environment of the page of a cloud.
func account(t *testing.T, page string) []string {
	t.Helper()
	switch name := strings.TrimSuffix(filepath.Base(page), ".md"); name {
	case "e2b", "vercel":
		return clouds(t)[name].env
	}
	return nil
}

// need skips, loudly, where a kind of sandbox does not work.
func need(t *testing.T, dir, kind string) {
	t.Helper()
	switch kind {
	case "":
		return
	case "docker":
		testreq.Docker(t)
		tagAs(t, "debian:bookworm-slim")
		return
	case "compose":
		cli, _ := testreq.Engine(t)
		testimage.Tag(t, cli, testimage.Busybox(t), "busybox:1.36")
		return
	case "podman":
		cli, _ := testreq.Podman(t)
		testimage.Tag(t, cli, testimage.Podman(t, "slice"), "docker.io/library/debian:bookworm-slim")
		return
	}
	cmd := exec.Command(filepath.Join(dir, "bin", "assay"), "doctor", "--json")
	cmd.Env = append(os.Environ(), "ASSAY_GUEST="+guesttest.Build(t))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Name, Detail, Fix string
		OK                bool
	}
	if err := json.Unmarshal(out, &rows); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Name == kind && !r.OK {
			testreq.Missing(t, kind, r.Detail+"; "+r.Fix)
		}
	}
}

// tagAs gives the test image the name that the example pulls, so that it needs
// no registry.
func tagAs(t *testing.T, name string) {
	t.Helper()
	cli, _ := testreq.Engine(t)
	testimage.Tag(t, cli, testimage.Slice(t), name)
}
