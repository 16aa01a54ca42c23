package bub

import (
	"errors"
	"os"
	"strings"
	"testing"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
	"assay/fault"
	"assay/internal/archive"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

func parse(lines [][]byte) codingtest.Read {
	p := newParser()
	for _, l := range lines {
		p.Line(l)
	}
	end := p.end(coding.Ran{Exit: new(int)})
	return codingtest.Read{Message: p.script.Message, Events: p.script.Events, End: end}
}

func TestTapes(t *testing.T) { codingtest.Golden(t, parse) }

func FuzzTape(f *testing.F) { codingtest.Fuzz(f, "run", parse) }

// standIn is an attempt with the stand-in in place of Bub.
func standIn(t *testing.T) *codingtest.Trial {
	t.Helper()
	tr := codingtest.Bare(t, Agent{}, "m1")
	body, err := os.ReadFile("testdata/bub.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Box.WriteFiles(t.Context(), tr.Session.Scratch+"/bin", archive.File{Name: "bub", Mode: 0o755, Body: body}); err != nil {
		t.Fatal(err)
	}
	tr.Path(tr.Session.Scratch + "/bin")
	if err := (Agent{}).Setup(t.Context(), tr.Session); err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestStandIn(t *testing.T) {
	tr := standIn(t)
	for range 2 { // the tape goes on; each turn is its own part of it
		turn := tr.Turn("work and count, please")
		if turn.Message != "finished" || turn.Status != agent.Completed || len(turn.Events) != 3 || *turn.Usage.InputTokens != 24 {
			t.Errorf("turn = %+v", turn)
		}
	}
	for _, c := range []struct {
		text, code string
		acceptance agent.Acceptance
	}{{"fail", "agent-rate-limited", agent.Rejected}, {"cut", "agent-incomplete", agent.Started}, {strings.Repeat("x", maxArgument+1), "agent-message-too-long", agent.Rejected}} {
		_, err := tr.Send(t.Context(), tr.NewSession(), c.text)
		var se *agent.SendError
		if !errors.As(err, &se) || se.Acceptance != c.acceptance || fault.CodeOf(err) != c.code {
			t.Errorf("%.10s: %v %s", c.text, err, fault.CodeOf(err))
		}
	}
}

func TestFingerprint(t *testing.T) {
	tr := standIn(t) // its interpreter is no Python
	_, err := tr.Agent.(Agent).Ensure(t.Context(), tr.Session)
	if fault.CodeOf(err) != "agent-fingerprint-mismatch" || fault.FixOf(err) == "" {
		t.Errorf("a command that is no Bub: %v", err)
	}
	if err := (Agent{PythonPlugins: []string{"loose"}}).validate(); fault.CodeOf(err) != "agent-plugin-name" {
		t.Errorf("a plugin without a version: %v", err)
	}
}
