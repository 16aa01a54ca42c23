package e2b

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"assay/internal/cloudbox"
	"assay/internal/guest/relay"
	"assay/sandbox/e2b/e2bapi"
)

// machine is one sandbox.
type machine struct {
	api     *e2bapi.Client
	envd    *e2bapi.Envd
	s       *e2bapi.Sandbox
	program []byte
	dir     string
	session string
	workdir string

	mu    sync.Mutex
	pid   int             // of the attachment
	ctx   context.Context // of the attachment
	st    *e2bapi.Stream  // of the attachment
	input *e2bapi.Input
	unary bool // input goes one call at a time
}

func newMachine(api *e2bapi.Client, s *e2bapi.Sandbox, program []byte, workdir string) *machine {
	return &machine{api: api, envd: api.Envd(s), s: s, program: program, dir: "/.init-" + token(4), session: token(8), workdir: workdir}
}

func token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// ID is the sandbox's id.
func (m *machine) ID() string { return m.s.SandboxID }

// Install uploads the exec server. It belongs to the template's default user
// until it starts, which is how that user is known.
func (m *machine) Install(ctx context.Context, _ []byte) error {
	return m.gone(m.envd.Upload(ctx, m.dir+"/init", "", bytes.NewReader(m.program)))
}

// gone marks the answers that say that the sandbox is no more.
func (m *machine) gone(err error) error {
	if s := e2bapi.StatusOf(err); s == http.StatusBadGateway || s == http.StatusNotFound && e2bapi.CodeOf(err) == "" {
		return fmt.Errorf("%w: %w", relay.ErrGone, err)
	}
	return err
}

// Attach starts an attachment as root and opens its input.
func (m *machine) Attach(ctx context.Context, from uint64) (io.ReadCloser, error) {
	args := cloudbox.AttachArgs(m.dir, m.session, from, false, m.workdir)
	st, err := m.envd.Start(ctx, e2bapi.Process{
		Cmd: "/bin/sh", Args: append([]string{"-c", `chmod 700 "$0" && exec "$0" "$@"`}, args...), Cwd: "/",
	}, "root", "", true)
	if err != nil {
		return nil, m.gone(err)
	}
	e, err := st.Next()
	if err != nil || e.Start == nil {
		_ = st.Close() // the error says more
		return nil, errors.Join(err, errors.New("e2b: a process that did not start"))
	}
	m.mu.Lock()
	m.pid, m.ctx, m.st = e.Start.PID, ctx, st
	m.closeInput()
	m.mu.Unlock()
	return &attachment{m: m, st: st}, nil
}

// attachment is the output of the process that brings frames down.
type attachment struct {
	m     *machine
	st    *e2bapi.Stream
	rest  []byte
	words []byte
}

// Read implements io.Reader.
func (a *attachment) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		e, err := a.st.Next()
		if err != nil {
			return 0, err
		}
		switch {
		case e.Data != nil:
			a.rest = e.Data.Stdout
			if room := 1024 - len(a.words); room > 0 {
				a.words = append(a.words, e.Data.Stderr[:min(room, len(e.Data.Stderr))]...)
			}
		case e.End != nil:
			return 0, fmt.Errorf("the attachment ended (%s): %s", e.End.Status, bytes.TrimSpace(a.words))
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close ends the stream; the process ends when the daemon lets it go.
func (a *attachment) Close() error {
	a.m.mu.Lock()
	a.m.closeInput()
	a.m.mu.Unlock()
	return a.st.Close()
}

// closeInput ends the current input. The caller holds mu.
func (m *machine) closeInput() {
	if m.input != nil {
		in := m.input
		m.input = nil
		go func() { _ = in.Close() }() // it ends with the attachment's context at the latest
	}
}

// Send feeds the attachment: through one request that stays open, or call by
// call where that does not get through.
func (m *machine) Send(ctx context.Context, frames []byte) error {
	m.mu.Lock()
	sel, actx, in, unary := e2bapi.Selector{PID: m.pid}, m.ctx, m.input, m.unary
	m.mu.Unlock()
	if unary {
		for len(frames) > 0 {
			k := min(len(frames), 512<<10)
			if err := m.envd.SendInput(ctx, sel, frames[:k]); err != nil {
				return err
			}
			frames = frames[k:]
		}
		return nil
	}
	if in == nil {
		var err error
		if in, err = m.envd.StreamInput(actx, sel); err != nil {
			m.judgeInput(err)
			return err
		}
		m.mu.Lock()
		m.input = in
		st := m.st
		m.mu.Unlock()
		go m.watch(in, st)
	}
	_, err := in.Write(frames)
	if err != nil {
		m.judgeInput(err)
	}
	return err
}

// watch ends an attachment whose input broke: what was sent may be lost.
func (m *machine) watch(in *e2bapi.Input, st *e2bapi.Stream) {
	<-in.Done()
	m.mu.Lock()
	current := m.input == in
	m.mu.Unlock()
	if current {
		m.judgeInput(in.Err())
		_ = st.Close() // it is made anew
	}
}

// judgeInput gives up on the open request where the server does not know it.
func (m *machine) judgeInput(err error) {
	s := e2bapi.StatusOf(err)
	if e2bapi.CodeOf(err) == "unimplemented" || s == http.StatusNotFound || s == http.StatusUnsupportedMediaType || s == http.StatusMethodNotAllowed || s == http.StatusNotImplemented {
		m.Stalled()
	}
}

// Stalled is called when input does not arrive: something between holds the
// request's body back.
func (m *machine) Stalled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unary = true
	m.closeInput()
}

// Destroy kills the sandbox.
func (m *machine) Destroy(ctx context.Context) error {
	if _, err := m.api.Kill(ctx, m.s.SandboxID); err != nil {
		return explain("kill sandbox "+m.s.SandboxID, err)
	}
	return nil
}

// Alive asks the control plane.
func (m *machine) Alive(ctx context.Context) error {
	i, err := m.api.Get(ctx, m.s.SandboxID)
	switch {
	case e2bapi.StatusOf(err) == http.StatusNotFound:
		return fmt.Errorf("%w: %w", relay.ErrGone, err)
	case err != nil:
		return err
	case i.State != "running":
		return fmt.Errorf("%w: it is %s", relay.ErrGone, i.State)
	}
	return nil
}

// EnsureLifetime reads the sandbox's end, moves it where it is too near, and
// reads it again: a plan's cap is applied without a word.
func (m *machine) EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error) {
	ends := func() (time.Time, error) {
		i, err := m.api.Get(ctx, m.s.SandboxID)
		if e2bapi.StatusOf(err) == http.StatusNotFound {
			return time.Time{}, fmt.Errorf("%w: %w", relay.ErrGone, err)
		}
		if err != nil {
			return time.Time{}, explain("ask for the end of sandbox "+m.s.SandboxID, err)
		}
		return i.EndAt, nil
	}
	need := time.Now().Add(min)
	at, err := ends()
	if err != nil || !at.Before(need) {
		return at, err
	}
	// A second more than needed: the service counts whole ones.
	if err := m.api.SetTimeout(ctx, m.s.SandboxID, seconds(min)+1); err != nil {
		return at, explain("extend the life of sandbox "+m.s.SandboxID, err)
	}
	if at, err = ends(); err == nil && at.Before(need) {
		return at, lifeError("sandbox %s was asked to live until %s and lives until %s", m.s.SandboxID, need.UTC().Format(time.RFC3339), at.UTC().Format(time.RFC3339))
	}
	return at, err
}

var (
	_ cloudbox.Machine = (*machine)(nil)
	_ relay.Staller    = (*machine)(nil)
)
