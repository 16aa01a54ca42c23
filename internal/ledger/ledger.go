// Package ledger attributes file changes to the agent: it records the workdir's
// state around every send in a private git repository that the agent cannot
// read, and exports what changed inside those windows.
//
// The recording itself is package snapshot, which runs where the files are: in
// the sandbox's guest, in this process for a host directory, in memory for a
// fake. This package decides what is recorded when, and turns answers, which
// are not trusted, into records.
package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/record"
	"assay/sandbox"
)

// CodeUnavailable is the code of an error that says that this sandbox cannot
// serve a ledger at all.
const CodeUnavailable = "ledger-unavailable"

// Ledger is the change ledger of one attempt. Its methods are called one at a
// time.
type Ledger struct {
	s       *sandbox.Sandbox
	tracker sandbox.Tracker
	store   string
	rules   snapshot.Rules
	mu      sync.Mutex
	windows []snapshot.Window
	open    snapshot.ID // state at the start of the open window
	head    snapshot.ID
	marked  snapshot.Commit // by Mark
}

// Open returns the ledger of a sandbox. Nothing is recorded yet. scratch is a
// directory outside the workdir that holds the helper where the driver serves
// no ledger itself.
func Open(s *sandbox.Sandbox, scratch string, rules snapshot.Rules) *Ledger {
	var b [8]byte
	rand.Read(b[:])
	l := &Ledger{s: s, rules: rules, store: "/tmp/." + hex.EncodeToString(b[:])}
	if t, ok := sandbox.As[sandbox.Tracker](s); ok {
		l.tracker = t
	} else {
		l.tracker = &helper{s: s, dir: scratch}
	}
	return l
}

// call sends one request, in one round trip.
func (l *Ledger) call(ctx context.Context, what string, r snapshot.Request) (snapshot.Response, error) {
	r.Root, r.Store, r.Rules = l.s.Workdir(), l.store, l.rules
	req, err := r.Encode()
	if err != nil {
		return snapshot.Response{}, err
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := fault.Caught(func() error { return l.tracker.Track(ctx, req, pw) })
		pw.CloseWithError(err)
		done <- err
	}()
	res, err := snapshot.DecodeResponse(pr)
	pr.CloseWithError(io.ErrClosedPipe)
	trackErr := <-done
	if err != nil && fault.CodeOf(err) == "ledger-protocol" && trackErr != nil && !errors.Is(trackErr, io.ErrClosedPipe) {
		err = trackErr // the answer broke off because the transport did
	}
	if err != nil {
		if cause := fault.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return res, &fault.Error{Class: fault.ClassOf(err), Code: code(err), Stage: fault.StageOf(err), Fix: fault.FixOf(err), What: what, Err: err}
	}
	return res, nil
}

func code(err error) string {
	var limit *fault.Timeout
	if errors.As(err, &limit) {
		return limit.Limit // our own limit is the reason, whatever it cut
	}
	if c := fault.CodeOf(err); c != "" {
		return c
	}
	return "ledger-failed"
}

// Mark records the baseline: everything before it is not the agent's work.
func (l *Ledger) Mark(ctx context.Context) (snapshot.Stats, error) {
	res, err := l.call(ctx, "record the baseline", snapshot.Request{Op: snapshot.OpMark, Author: snapshot.Baseline, Label: "baseline"})
	l.head, l.marked = res.Commit.ID, res.Commit
	return res.Stats, err
}

// BeforeSend records what the eval changed since, so that it is never
// attributed to the agent, and opens a window.
func (l *Ledger) BeforeSend(ctx context.Context) error {
	res, err := l.call(ctx, "record the state before the turn", snapshot.Request{Op: snapshot.OpCommit, Author: snapshot.Eval, Label: "eval"})
	if err == nil {
		l.head, l.open = res.Commit.ID, res.Commit.ID
	}
	return err
}

// AfterSend closes the window: what changed since BeforeSend is the agent's.
func (l *Ledger) AfterSend(ctx context.Context, session, turn int) error {
	label := fmt.Sprintf("turn%d", turn)
	if session > 1 {
		label = fmt.Sprintf("session%d/%s", session, label)
	}
	res, err := l.call(ctx, "record the state after the turn", snapshot.Request{Op: snapshot.OpCommit, Author: snapshot.Agent, Label: label, AllowEmpty: true})
	if err != nil {
		return err
	}
	l.head = res.Commit.ID
	l.mu.Lock()
	l.windows = append(l.windows, snapshot.Window{Label: label, From: l.open, To: res.Commit.ID})
	l.mu.Unlock()
	return nil
}

// Export returns the changes of the windows first..last, counted from 1, in one
// round trip.
func (l *Ledger) Export(ctx context.Context, first, last int) (*record.Diff, error) {
	l.mu.Lock()
	last = min(last, len(l.windows))
	windows := slices.Clone(l.windows[min(max(first-1, 0), max(last, 0)):max(last, 0)])
	l.mu.Unlock()
	out := &record.Diff{}
	if len(windows) == 0 {
		return out, nil
	}
	if len(windows) > maxWindows {
		windows, out.Partial = windows[:maxWindows], snapshot.CapReached
	}
	res, err := l.call(ctx, "export the changes", snapshot.Request{Op: snapshot.OpDiff, Windows: windows, Content: true})
	if err != nil {
		return nil, err
	}
	if res.Partial != "" {
		out.Partial = res.Partial
	}
	for _, w := range res.Windows {
		rw := record.Window{Label: w.Label, Rows: make([]record.Row, 0, len(w.Changes))}
		if w.Partial != "" {
			out.Partial = w.Partial
		}
		for _, c := range w.Changes {
			rw.Rows = append(rw.Rows, record.Row{Path: Printable(string(c.Path)), Status: string(c.Status), Before: side(c.Before), After: side(c.After)})
		}
		out.Windows = append(out.Windows, rw)
	}
	return out, nil
}

// maxWindows is how many windows one attempt exports.
const maxWindows = 256

func side(s *snapshot.Side) *record.Side {
	if s == nil {
		return nil
	}
	out := &record.Side{Mode: strconv.FormatUint(uint64(s.Mode), 8), Size: s.Size, Binary: s.Binary, Elided: s.Elided != ""}
	out.Digest = s.SHA256
	if out.Digest == "" {
		out.Digest = s.Blob.String()
	}
	if s.Text != nil {
		text := strings.ToValidUTF8(string(*s.Text), "\uFFFD")
		out.Text = &text
	}
	return out
}

// Union folds the windows of a diff into one list: the state before the first
// window that touched a path against the state after the last. A path that
// ended as it began is left out.
func Union(d *record.Diff) []record.Row {
	byPath := map[string]*record.Row{}
	var order []string
	for _, w := range d.Windows {
		for _, r := range w.Rows {
			u := byPath[r.Path]
			if u == nil {
				u = &record.Row{Path: r.Path, Before: r.Before}
				byPath[r.Path] = u
				order = append(order, r.Path)
			}
			u.After = r.After
		}
	}
	out := make([]record.Row, 0, len(order))
	for _, p := range order {
		u := byPath[p]
		switch {
		case u.Before == nil && u.After == nil:
			continue
		case u.Before == nil:
			u.Status = "added"
		case u.After == nil:
			u.Status = "deleted"
		case u.Before.Digest == u.After.Digest && u.Before.Mode == u.After.Mode:
			continue
		default:
			u.Status = "modified"
		}
		out = append(out, *u)
	}
	return out
}

var looksRendered = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// Printable renders a file name that may hold any byte as valid UTF-8: invalid
// bytes become \xNN, and backslashes are doubled in names that have some, or
// that look like such a rendering. Different names stay different.
func Printable(name string) string {
	if utf8.ValidString(name) && !looksRendered.MatchString(name) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, name[i])
		case r == '\\':
			b.WriteString(`\\`)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}
