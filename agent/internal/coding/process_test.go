package coding_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
	"assay/fault"
	"assay/internal/testreq"
)

// plain reads lines {"t": "end"|"start"|"stop"|"abort"|text}.
type plain struct {
	script coding.Transcript
	ended  bool
	abort  error
}

func (p *plain) Line(b []byte) {
	var l struct {
		T string `json:"t"`
	}
	if json.Unmarshal(b, &l) != nil {
		p.script.Bad()
		return
	}
	switch l.T {
	case "end":
		p.ended = true
	case "start":
		p.script.Start("a", "", "bash", nil)
	case "stop":
		p.script.Finish("a", "completed", nil)
	case "abort":
		p.abort = fault.Configf("agent-aborted", "Fix it.", "no use")
	default:
		p.script.Say(l.T)
	}
}
func (p *plain) Ended() bool                { return p.ended }
func (p *plain) Abort() error               { return p.abort }
func (p *plain) Script() *coding.Transcript { return &p.script }

type none struct{}

func (none) Info() agent.Info { return agent.Info{} }
func (none) Send(context.Context, *agent.Session, agent.Input) (agent.Turn, error) {
	return agent.Turn{}, nil
}

// run runs a shell script as the agent and concludes as an adapter does.
func run(t *testing.T, tr *codingtest.Trial, script string, stall time.Duration) (agent.Turn, error) {
	t.Helper()
	p := &plain{}
	ran := coding.Run(t.Context(), tr.Session, coding.Process{Argv: []string{"sh", "-c", script}, Stdin: "hello", Stall: stall}, p)
	return coding.Conclude(tr.Session, "test", agent.Coverage{Events: agent.Complete, Actions: agent.Complete}, ran, &p.script, coding.End{Said: p.ended}, true)
}

func TestProcess(t *testing.T) {
	tr := codingtest.Bare(t, none{}, "")
	turn, err := run(t, tr, `printf '{"t":"%s"}\n' "$(cat)"; echo '{"t":"end"}'`, 0)
	if err != nil || turn.Message != "hello" || turn.Coverage != nil || *turn.Exit != 0 {
		t.Errorf("a good turn: %+v, %v", turn, err)
	}
	for _, c := range []struct{ name, script, code string }{
		{"no end", `echo '{"t":"hi"}'; exit 0`, "agent-incomplete"},
		{"half a line", `printf '{"t":"en'`, "agent-incomplete"},
		{"killed", `echo '{"t":"hi"}'; kill -9 $$`, "agent-incomplete"},
		{"a known failure", `echo 'HTTP 401: Invalid API key' >&2; exit 1`, "agent-auth"},
		{"aborted", `echo '{"t":"abort"}'; exec tail -f /dev/null`, "agent-aborted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			turn, err := run(t, tr, c.script, 0)
			var se *agent.SendError
			if !errors.As(err, &se) || fault.CodeOf(err) != c.code || se.Acceptance != agent.Started {
				t.Errorf("%+v, %s: %v", turn, fault.CodeOf(err), err)
			}
		})
	}
	if _, err = run(t, tr, `echo '{"t":"hi"}'; exec tail -f /dev/null`, 50*time.Millisecond); fault.CodeOf(err) != "agent-stalled" || fault.ClassOf(err) != fault.Transient {
		t.Errorf("silence: %v", err)
	}
	turn, err = run(t, tr, `echo noise; echo '{"t":"brand","new":1}'; echo '{"t":"end"}'`, 0)
	if err != nil || turn.Coverage == nil || turn.Coverage.Actions != agent.Partial {
		t.Errorf("noise: %+v, %v", turn.Coverage, err)
	}
}

// TestForcedExit: an agent that said that it is done and does not exit is ended
// after the grace, with its turn intact.
func TestForcedExit(t *testing.T) {
	tr := codingtest.Bare(t, none{}, "")
	turn, err := run(t, tr, `echo '{"t":"hi"}'; echo '{"t":"end"}'; exec tail -f /dev/null`, 0)
	if err != nil || turn.Status != agent.Completed || turn.Message != "hi" || turn.Exit != nil {
		t.Errorf("%+v, %v", turn, err)
	}
	if codes := tr.Notes.Codes(); len(codes) != 1 || codes[0] != "agent-forced-exit" {
		t.Errorf("diagnostics %q", codes)
	}
}

// TestSources: folders and repositories are put into the sandbox with what they
// were.
func TestSources(t *testing.T) {
	testreq.Git(t)
	tr := codingtest.Bare(t, none{}, "")
	dir := t.TempDir()
	codingtest.Put(t, dir, "repo/skills/greet/SKILL.md", "one")
	codingtest.Put(t, dir, "repo/skills/other/SKILL.md", "other")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", filepath.Join(dir, "repo"), "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %s", args, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	git("tag", "v1")
	commit := git("rev-parse", "HEAD")
	codingtest.Put(t, dir, "repo/skills/greet/SKILL.md", "two")
	git("commit", "-q", "-a", "-m", "two")
	ctx := t.Context()
	item, err := coding.PutSkill(ctx, tr.Session, dir, coding.Skill{Git: "file://" + filepath.Join(dir, "repo"), Ref: "v1", Path: "skills/greet", Sparse: []string{"skills/greet"}}, tr.Session.Scratch+"/skills")
	if err != nil || item.Commit != commit || item.Digest == "" {
		t.Fatalf("%+v, %v; want commit %s", item, err, commit)
	}
	if body, err := tr.Box.ReadText(ctx, tr.Session.Scratch+"/skills/greet/SKILL.md"); err != nil || body != "one" {
		t.Errorf("SKILL.md = %q, %v", body, err)
	}
	if _, err := coding.PutSkill(ctx, tr.Session, dir, coding.Skill{Path: "repo/skills"}, "/tmp/x"); fault.CodeOf(err) != "agent-skill" {
		t.Errorf("no SKILL.md: %v", err)
	}
	if _, err := coding.PutSkill(ctx, tr.Session, dir, coding.Skill{Path: "nowhere"}, "/tmp/x"); fault.CodeOf(err) != "agent-source" {
		t.Errorf("no folder: %v", err)
	}
	if _, err := coding.PutSkill(ctx, tr.Session, dir, coding.Skill{Git: "file://" + filepath.Join(dir, "repo"), Ref: "v9"}, "/tmp/x"); fault.CodeOf(err) != "agent-source-git" {
		t.Errorf("no ref: %v", err)
	}
	for _, name := range []string{"../x", "/etc/passwd", "absent"} {
		if _, _, err := coding.ConfigFile(dir, name); fault.CodeOf(err) != "agent-config-file" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMessageFiles: files that come with a message are put beside the agent.
func TestMessageFiles(t *testing.T) {
	tr := codingtest.Bare(t, none{}, "")
	dir := t.TempDir()
	codingtest.Put(t, dir, "a.txt", "body")
	text, err := coding.Message(t.Context(), tr.Session, agent.Input{Text: "see", Files: []string{filepath.Join(dir, "a.txt")}, Turn: 3})
	at := tr.Session.Scratch + "/files/3/a.txt"
	if err != nil || text != "see\n\nFiles:\n"+at {
		t.Errorf("%q, %v", text, err)
	}
	if body, err := tr.Box.ReadText(t.Context(), at); err != nil || body != "body" {
		t.Errorf("%q, %v", body, err)
	}
	_, err = coding.Message(t.Context(), tr.Session, agent.Input{Files: []string{filepath.Join(dir, "absent")}})
	var se *agent.SendError
	if !errors.As(err, &se) || se.Acceptance != agent.Rejected {
		t.Errorf("an absent file: %v", err)
	}
}

// TestEnsureWithoutNPM: what is not there and may not be installed is said with
// its version.
func TestEnsureWithoutNPM(t *testing.T) {
	tr := codingtest.Bare(t, none{}, "")
	cli := coding.CLI{Name: "none-such", Command: "none-such-cli", Version: "1.2.3", Package: "none-such"}
	if _, err := cli.Ensure(t.Context(), tr.Session, coding.InstallNever); fault.CodeOf(err) != "agent-ensure-failed" || !strings.Contains(err.Error(), "1.2.3") {
		t.Errorf("absent: %v", err)
	}
	codingtest.Put(t, tr.Box.Workdir(), "bin/none-such-cli", "#!/bin/sh\necho none-such 1.2.4\n")
	if err := os.Chmod(filepath.Join(tr.Box.Workdir(), "bin/none-such-cli"), 0o755); err != nil {
		t.Fatal(err)
	}
	tr.Path(filepath.Join(tr.Box.Workdir(), "bin"))
	_, err := cli.Ensure(t.Context(), tr.Session, coding.InstallNever)
	if fault.CodeOf(err) != "agent-version-mismatch" || !strings.Contains(err.Error(), "1.2.4") {
		t.Errorf("another version: %v", err)
	}
	cli.Version = "1.2.4"
	if f, err := cli.Ensure(t.Context(), tr.Session, coding.InstallNever); err != nil || f.Source != "found" || f.Digest == "" {
		t.Errorf("found: %+v, %v", f, err)
	}
}
