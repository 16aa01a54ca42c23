package vercel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	"assay/internal/cloudbox"
	"assay/internal/guest/relay"
	"assay/sandbox/vercel/vercelapi"
)

// linger is how long input waits for more: each lot is one request.
const linger = 2 * time.Millisecond

// machine is one sandbox with its session.
type machine struct {
	api     *vercelapi.Client
	name    string
	sid     string
	program []byte
	dir     string
	session string
	workdir string
	files   atomic.Int64
	// installing bounds how many programs are packed and on their way at once:
	// each takes megabytes.
	installing chan struct{}
}

// atOnce is how many programs are uploaded at once.
const atOnce = 4

func (p *Provider) newMachine(api *vercelapi.Client, made *vercelapi.Created, program []byte, workdir string) *machine {
	return &machine{
		api: api, name: made.Sandbox.Name, sid: made.Session.ID, program: program,
		dir: "/tmp/.init-" + token(4), session: token(8), workdir: workdir, installing: p.installing,
	}
}

func token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// ID is the sandbox's name.
func (m *machine) ID() string { return m.name }

func (m *machine) input(frames []byte) vercelapi.File {
	return vercelapi.File{Path: path.Join(m.dir, relay.InboxName, fmt.Sprintf("%016d", m.files.Add(1))), Mode: 0o600, Body: relay.Seal(frames)}
}

// Install uploads the exec server with the first input.
func (m *machine) Install(ctx context.Context, first []byte) error {
	select {
	case m.installing <- struct{}{}:
		defer func() { <-m.installing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return gone(m.api.WriteFiles(ctx, m.sid, vercelapi.File{Path: m.dir + "/init", Mode: 0o755, Body: m.program}, m.input(first)))
}

// gone marks the answers that say that the session is no more. Its memory is
// lost with it, so that a new one would be another sandbox.
func gone(err error) error {
	code := vercelapi.CodeOf(err)
	if code == "sandbox_stopped" || code == "sandbox_stopping" || vercelapi.StatusOf(err) == http.StatusNotFound {
		return fmt.Errorf("%w: %w", relay.ErrGone, err)
	}
	return err
}

// Attach starts an attachment with sudo.
func (m *machine) Attach(ctx context.Context, from uint64) (io.ReadCloser, error) {
	args := cloudbox.AttachArgs(m.dir, m.session, from, true, m.workdir)
	st, err := m.api.Run(ctx, m.sid, vercelapi.NewCommand{Command: args[0], Args: args[1:], Cwd: "/", Sudo: true})
	if err != nil {
		return nil, gone(err)
	}
	a := &attachment{st: st}
	a.text = relay.NewTextReader(readerFunc(a.output))
	return a, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// attachment is the log of the command that brings frames down.
type attachment struct {
	st    *vercelapi.Stream
	text  *relay.TextReader
	rest  string
	words string
}

// Read implements io.Reader.
func (a *attachment) Read(p []byte) (int, error) { return a.text.Read(p) }

// output is the command's standard output.
func (a *attachment) output(p []byte) (int, error) {
	for a.rest == "" {
		l, err := a.st.Next()
		if errors.Is(err, io.EOF) {
			return 0, io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, gone(err)
		}
		switch {
		case l.Stream == "stdout":
			a.rest = l.Data
		case l.Stream == "stderr":
			a.words += l.Data[:min(len(l.Data), max(0, 1024-len(a.words)))]
		case l.Command != nil && l.Command.ExitCode != nil:
			return 0, fmt.Errorf("the attachment ended (exit %d): %s", *l.Command.ExitCode, a.words)
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close ends the stream; the command ends when the daemon lets it go.
func (a *attachment) Close() error { return a.st.Close() }

// Send writes a file of frames.
func (m *machine) Send(ctx context.Context, frames []byte) error {
	return m.api.WriteFiles(ctx, m.sid, m.input(frames))
}

// Destroy deletes the sandbox, which stops it.
func (m *machine) Destroy(ctx context.Context) error {
	if _, err := m.api.Delete(ctx, m.name); err != nil {
		return explain("delete sandbox "+m.name, err)
	}
	return nil
}

// Alive asks for the session.
func (m *machine) Alive(ctx context.Context) error {
	s, err := m.api.Session(ctx, m.sid)
	switch {
	case err != nil:
		return gone(err)
	case s.Status != "running" && s.Status != "pending":
		return fmt.Errorf("%w: its session is %s", relay.ErrGone, s.Status)
	}
	return nil
}

// EnsureLifetime reads the session's end, moves it where it is too near, and
// reads it again.
func (m *machine) EnsureLifetime(ctx context.Context, min time.Duration) (time.Time, error) {
	ends := func() (time.Time, error) {
		s, err := m.api.Session(ctx, m.sid)
		if vercelapi.StatusOf(err) == http.StatusNotFound {
			return time.Time{}, fmt.Errorf("%w: %w", relay.ErrGone, err)
		}
		if err != nil {
			return time.Time{}, explain("ask for the end of sandbox "+m.name, err)
		}
		if s.Status != "running" && s.Status != "pending" {
			return time.Time{}, fmt.Errorf("%w: its session is %s", relay.ErrGone, s.Status)
		}
		return s.Ends(), nil
	}
	need := time.Now().Add(min)
	at, err := ends()
	if err != nil || !at.Before(need) {
		return at, err
	}
	if err := m.api.Extend(ctx, m.sid, need.Sub(at)+time.Second); err != nil {
		return at, explain("extend the life of sandbox "+m.name, gone(err))
	}
	if at, err = ends(); err == nil && at.Before(need) {
		return at, lifeError("sandbox %s was asked to live until %s and lives until %s", m.name, need.UTC().Format(time.RFC3339), at.UTC().Format(time.RFC3339))
	}
	return at, err
}

var _ cloudbox.Machine = (*machine)(nil)
