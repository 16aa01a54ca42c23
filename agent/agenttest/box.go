package agenttest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/agent"
	"assay/ref"
	"assay/sandbox"
)

// patience ends what hangs; no promise depends on how long anything takes.
const patience = 2 * time.Minute

func guard(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// mode is how a watched driver treats operations.
type mode int

const (
	honest mode = iota
	refuse      // nothing happens and the caller is told so
	lose        // it happens and the answer is lost
)

var errTransport = errors.New("the connection was reset")

// watched is a driver that remembers what an agent asked of it.
type watched struct {
	sandbox.Driver

	mu    sync.Mutex
	mode  mode
	asked int // operations so far
	execs []sandbox.Cmd
	puts  bytes.Buffer
}

// Unwrap lets the optional powers through.
func (w *watched) Unwrap() sandbox.Driver { return w.Driver }

func (w *watched) set(m mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = m
}

func (w *watched) note(c *sandbox.Cmd) mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if c != nil {
		w.execs = append(w.execs, *c)
	}
	return w.mode
}

// commands returns the commands so far.
func (w *watched) commands() []sandbox.Cmd {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.execs)
}

// operations counts what was asked so far.
func (w *watched) operations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

// written returns everything that was put so far.
func (w *watched) written() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.puts.Bytes())
}

// Exec remembers the command.
func (w *watched) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	m := w.note(&c)
	if m == refuse {
		return sandbox.Exit{}, errTransport
	}
	exit, err := w.Driver.Exec(ctx, c)
	if m == lose {
		return sandbox.Exit{}, errTransport
	}
	return exit, err
}

// Put remembers the archive.
func (w *watched) Put(ctx context.Context, dir string, r io.Reader) error {
	if w.note(nil) == refuse {
		return errTransport
	}
	var b bytes.Buffer
	err := w.Driver.Put(ctx, dir, io.TeeReader(r, &b))
	w.mu.Lock()
	w.puts.Write(b.Bytes())
	w.mu.Unlock()
	return err
}

// trial is one attempt of a case: a sandbox and its first session.
type trial struct {
	Case
	t       testing.TB
	ctx     context.Context
	watch   *watched // nil for direct agents
	box     *sandbox.Sandbox
	first   *agent.Session
	secrets map[string]string
	turns   int

	mu       sync.Mutex
	observed []sandbox.CommandRecord
}

// open starts an attempt of a behaviour, up to the point where messages are
// sent.
func open(t testing.TB, h Harness, b Behaviour) *trial {
	t.Helper()
	tr := bare(t, h, caseOf(t, h, b))
	tr.ready()
	return tr
}

// bare starts an attempt with nothing but its sandbox.
func bare(t testing.TB, h Harness, c Case) *trial {
	t.Helper()
	tr := &trial{Case: c, t: t, ctx: guard(t), secrets: map[string]string{}}
	info := c.Agent.Info()
	for _, name := range info.SecretEnv {
		tr.secrets[name] = "value-" + token()
	}
	if !info.Direct {
		if h.Driver == nil {
			t.Fatal("the harness has no Driver and the agent is not direct")
		}
		tr.watch = &watched{Driver: h.Driver(t)}
		tr.box = sandbox.New(tr.watch, sandbox.Options{Observe: func(r sandbox.CommandRecord) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.observed = append(tr.observed, r)
		}})
	}
	tr.first = tr.session(1)
	return tr
}

// ready does what the engine does before the first message.
func (tr *trial) ready() {
	tr.t.Helper()
	if e, ok := tr.Agent.(agent.Ensurer); ok {
		if _, err := e.Ensure(tr.ctx, tr.first); err != nil {
			tr.t.Fatalf("Ensure: %v", err)
		}
	}
	if s, ok := tr.Agent.(agent.Starter); ok {
		tr.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = s.Teardown(ctx, tr.first)
		})
		if err := s.Setup(tr.ctx, tr.first); err != nil {
			tr.t.Fatalf("Setup: %v", err)
		}
	}
}

// session makes the n-th conversation.
func (tr *trial) session(n int) *agent.Session {
	s := &agent.Session{
		Number: n, Sandbox: tr.box, Model: "", Flags: map[string]any{}, Experiment: "suite/exp", Eval: "suite/eval",
		Attempt: ref.NewAttempt(), Secrets: tr.secrets, Notes: sandbox.Quiet{ID: "suite/exp"},
	}
	if n > 1 {
		s.Attempt, s.Scratch = tr.first.Attempt, tr.first.Scratch
	} else if tr.box != nil {
		s.Scratch = "/tmp/.s-" + token()
	}
	if tr.Session != nil {
		tr.Session(s)
	}
	return s
}

// send sends one message in a session.
func (tr *trial) send(ctx context.Context, s *agent.Session, text string) (agent.Turn, error) {
	tr.turns++
	return tr.Agent.Send(ctx, s, agent.Input{Text: text, Turn: tr.turns})
}

// turn sends the case's message and fails the test without a turn.
func (tr *trial) turn(s *agent.Session) agent.Turn {
	tr.t.Helper()
	return tr.turnOf(s, tr.Text)
}

func (tr *trial) turnOf(s *agent.Session, text string) agent.Turn {
	tr.t.Helper()
	turn, err := tr.send(tr.ctx, s, text)
	if err != nil {
		tr.t.Fatalf("Send: %v", err)
	}
	return turn
}

// coverage is what a turn claims.
func (tr *trial) coverage(turn agent.Turn) agent.Coverage {
	if turn.Coverage != nil {
		return *turn.Coverage
	}
	return tr.Agent.Info().Coverage
}

// workdir returns a digest of every file below the workdir, by path.
func (tr *trial) workdir() map[string]string {
	tr.t.Helper()
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tr.watch.Driver.Get(tr.ctx, tr.box.Workdir(), pw)) }()
	out := map[string]string{}
	for r := tar.NewReader(pr); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			tr.t.Fatalf("read the workdir: %v", err)
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			tr.t.Fatalf("read the workdir: %v", err)
		}
		if h.Typeflag != tar.TypeDir {
			out[path.Clean(h.Name)] = fmt.Sprintf("%o %s %x", h.Mode, h.Linkname, sum.Sum(nil))
		}
	}
}

// await returns when the file exists in the workdir.
func (tr *trial) await(name string) {
	tr.t.Helper()
	exit, err := tr.watch.Driver.Exec(tr.ctx, sandbox.Cmd{
		Argv: []string{"/bin/sh", "-c", `while [ ! -e "$1" ]; do sleep 0.05; done`, "sh", name}, Dir: tr.box.Workdir(), Env: map[string]string{},
	})
	if err != nil || exit.Code != 0 {
		tr.t.Fatalf("the agent did not make the file %s: %v, %+v", name, err, exit)
	}
}

// calls returns the names of the operations that were started, in order.
func calls(events []agent.Event) []string {
	var out []string
	for _, e := range events {
		if e.Type == agent.OperationStarted {
			out = append(out, e.Name)
		}
	}
	return out
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func token() string {
	var b [12]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// brief cuts what would fill the screen.
func brief(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%q … (%d bytes)", s[:100], len(s))
	}
	return fmt.Sprintf("%q", strings.ToValidUTF8(s, "?"))
}
