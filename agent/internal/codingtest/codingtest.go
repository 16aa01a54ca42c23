// Package codingtest runs adapters of coding CLIs against a scripted model, on
// this machine, with the real CLI where it can be installed. Only tests import
// it.
package codingtest

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/internal/guest/guesttest"
	"assay/internal/modeltest"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/local"
)

// Need is the name under which ASSAY_REQUIRE asks for the real CLIs.
const Need = "agents"

// Secret is the value of every secret in these tests.
const Secret = "sk-test-0123456789abcdef"

// Trial is one attempt of an agent.
type Trial struct {
	T       *testing.T
	Agent   agent.Agent
	Box     *sandbox.Sandbox
	Session *agent.Session
	Notes   *Notes
	driver  sandbox.Driver
	env     map[string]string
	turns   atomic.Int64
}

// Model serves a script and returns the server and its address.
func Model(t *testing.T, script string) (*modeltest.Server, string) {
	t.Helper()
	s, err := modeltest.ParseScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.New(s)
	hs := httptest.NewServer(m)
	t.Cleanup(func() {
		m.Release()
		hs.CloseClientConnections()
		hs.Close()
	})
	return m, hs.URL
}

// Driver is a place on this machine with an empty workdir.
func Driver(tb testing.TB) sandbox.Driver {
	tb.Helper()
	p := &local.Provider{Guest: guesttest.Build(tb)}
	d, err := p.Create(context.Background(), sandbox.CreateRequest{Template: p.Template(tb.TempDir(), ""), Notes: sandbox.Quiet{}, Owner: sandbox.Owner{Token: ref.New()}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			tb.Errorf("stop: %v", err)
		}
	})
	return d
}

// Path puts a folder before PATH.
func (tr *Trial) Path(dir string) {
	tr.Box = sandbox.New(tr.driver, sandbox.Options{Path: []string{dir}, Env: tr.env})
	tr.Session.Sandbox = tr.Box
}

// WantReal skips, loudly, unless ASSAY_REQUIRE names "agents": the real CLIs are
// installed from their registry and take minutes.
func WantReal(t *testing.T) {
	t.Helper()
	if !testreq.Required(Need) {
		testreq.Missing(t, Need, "the real agent CLIs are installed and run only with ASSAY_REQUIRE="+Need)
	}
}

// Open makes an agent ready. A CLI that cannot be installed here skips the
// test.
func Open(t *testing.T, a agent.Agent, model string) *Trial {
	t.Helper()
	WantReal(t)
	tr := Bare(t, a, model)
	ctx := t.Context()
	if e, ok := a.(agent.Ensurer); ok {
		if _, err := e.Ensure(ctx, tr.Session); err != nil {
			if c := fault.CodeOf(err); c == "agent-ensure-failed" || c == "agent-version-mismatch" {
				testreq.Missing(t, Need, err.Error())
			}
			t.Fatalf("Ensure: %v", err)
		}
	}
	if s, ok := a.(agent.Starter); ok {
		t.Cleanup(func() {
			if err := s.Teardown(context.Background(), tr.Session); err != nil {
				t.Errorf("Teardown: %v", err)
			}
		})
		if err := s.Setup(ctx, tr.Session); err != nil {
			t.Fatalf("Setup: %v", err)
		}
	}
	return tr
}

// Bare is an attempt with nothing but its sandbox and its first session.
func Bare(t testing.TB, a agent.Agent, model string) *Trial {
	t.Helper()
	d := Driver(t)
	tr := &Trial{Agent: a, driver: d, Notes: &Notes{}}
	tr.T, _ = t.(*testing.T) // a benchmark has none
	// Login shells of an agent read a home folder; this machine's is not theirs.
	tr.env = map[string]string{"HOME": t.TempDir()}
	tr.Box = sandbox.New(d, sandbox.Options{Env: tr.env})
	scratch := "/tmp/.s-" + ref.New()[18:]
	secrets := map[string]string{}
	for _, n := range a.Info().SecretEnv {
		secrets[n] = Secret
	}
	t.Cleanup(func() {
		// The folder is outside of the workdir, so nobody else removes it.
		if _, err := tr.Box.RunCommand(context.Background(), []string{"rm", "-rf", "--", scratch}); err != nil {
			t.Errorf("remove the scratch folder: %v", err)
		}
	})
	tr.Session = &agent.Session{
		Number: 1, Sandbox: tr.Box, Scratch: scratch, Model: model, Experiment: "exp", Eval: "eval", Attempt: ref.NewAttempt(),
		Secrets: secrets, Notes: tr.Notes,
	}
	return tr
}

// NewSession opens another conversation of the attempt.
func (tr *Trial) NewSession() *agent.Session {
	return &agent.Session{
		Number: tr.Session.Number + 1, Sandbox: tr.Box, Scratch: tr.Session.Scratch, Model: tr.Session.Model, Experiment: "exp", Eval: "eval",
		Attempt: tr.Session.Attempt, Secrets: tr.Session.Secrets, Notes: tr.Notes,
	}
}

// Send sends a message in a session and returns what came.
func (tr *Trial) Send(ctx context.Context, s *agent.Session, text string) (agent.Turn, error) {
	return tr.Agent.Send(ctx, s, agent.Input{Text: text, Turn: int(tr.turns.Add(1))})
}

// Turn sends a message in the first session and needs a turn.
func (tr *Trial) Turn(text string) agent.Turn {
	tr.T.Helper()
	turn, err := tr.Send(tr.T.Context(), tr.Session, text)
	if err != nil {
		var se *agent.SendError
		if errors.As(err, &se) {
			tr.T.Logf("events: %+v", se.Events)
		}
		tr.T.Fatalf("Send(%q): %v", text, err)
	}
	return turn
}

// Tools are the tool calls of a turn, as "name status".
func Tools(turn agent.Turn) []string {
	var out []string
	at := map[string]int{}
	for _, e := range turn.Events {
		switch e.Type {
		case agent.OperationStarted:
			at[e.ID] = len(out)
			out = append(out, e.Name)
		case agent.OperationFinished:
			if i, ok := at[e.ID]; ok {
				out[i] += " " + e.Status
			}
		}
	}
	return out
}

// Notes remembers diagnostics and facts.
type Notes struct {
	sandbox.Quiet
	mu    sync.Mutex
	codes []string
	facts map[string]any
}

// Diagnostic remembers the code.
func (n *Notes) Diagnostic(d sandbox.Diagnostic) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.codes = append(n.codes, d.Code)
	return nil
}

// Fact remembers the value.
func (n *Notes) Fact(name string, v any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.facts == nil {
		n.facts = map[string]any{}
	}
	n.facts[name] = v
	return nil
}

// Codes are the codes of the diagnostics so far.
func (n *Notes) Codes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.codes...)
}

// Value is a fact.
func (n *Notes) Value(name string) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts[name]
}
