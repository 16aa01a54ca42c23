package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"assay/fault"
)

// Place is the tree and the store of one request.
type Place struct {
	Tree  Tree
	Store Store
	// Always are exclusions that belong to the place.
	Always []string
	// Drift answers a drift; nil knows nothing of what lies outside of Tree.
	Drift func(ctx context.Context, q DriftQuery) Drift
	// Close releases both; nil if there is nothing to release.
	Close func() error
}

// Opener finds what a request names.
type Opener func(ctx context.Context, r Request) (Place, error)

// ServeWith is Serve over other trees and stores, such as those in memory.
func ServeWith(ctx context.Context, req []byte, w io.Writer, open Opener) error {
	out := &answer{w: bufio.NewWriterSize(w, 64<<10)}
	res, err := handle(ctx, req, out, open)
	switch {
	case out.err != nil:
		return out.err
	case err != nil:
		out.send(line{Error: wire(err)})
	default:
		out.send(line{OK: &res})
	}
	return errors.Join(out.err, out.flush())
}

// answer writes lines; its first error stays.
type answer struct {
	w   *bufio.Writer
	err error
}

func (a *answer) send(l line) {
	if a.err != nil {
		return
	}
	e := json.NewEncoder(a.w)
	e.SetEscapeHTML(false)
	a.err = e.Encode(l)
}

func (a *answer) flush() error { return a.w.Flush() }

func badRequest(what string, err error) error {
	return &fault.Error{Class: fault.Config, Code: "ledger-bad-request", What: "change ledger: " + what, Err: err}
}

func handle(ctx context.Context, data []byte, out *answer, open Opener) (res Response, err error) {
	var r Request
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return res, badRequest("the request is not understood", err)
	}
	if r.Op != OpDrift && r.Op.handler() == nil {
		return res, badRequest("there is no operation "+string(r.Op), nil)
	}
	p, err := open(ctx, r)
	if err != nil {
		return res, err
	}
	if p.Close != nil {
		defer func() { err = errors.Join(err, p.Close()) }()
	}
	if r.Op == OpDrift {
		if p.Drift != nil {
			res.Drift = p.Drift(ctx, r.Drift)
		}
		return res, nil
	}
	return r.Op.handler()(ctx, New(p.Tree, p.Store, p.Always...), r, out)
}

type handler func(ctx context.Context, l *Ledger, r Request, out *answer) (Response, error)

func (o Op) handler() handler {
	switch o {
	case OpMark:
		return func(ctx context.Context, l *Ledger, r Request, _ *answer) (Response, error) {
			c, stats, err := l.Mark(ctx, r.Label, r.Rules)
			return Response{Commit: c, Tree: c.Tree, Stats: stats}, err
		}
	case OpCommit:
		return func(ctx context.Context, l *Ledger, r Request, _ *answer) (Response, error) {
			c, stats, err := l.Commit(ctx, Record{Author: r.Author, Label: r.Label, AllowEmpty: r.AllowEmpty, Rules: r.Rules})
			return Response{Commit: c, Tree: c.Tree, Stats: stats}, err
		}
	case OpStatus:
		return func(ctx context.Context, l *Ledger, _ Request, _ *answer) (Response, error) {
			return stateResponse(l.Status(ctx))
		}
	case OpVerify:
		return func(ctx context.Context, l *Ledger, r Request, _ *answer) (Response, error) {
			return stateResponse(l.Verify(ctx, r.Commit))
		}
	case OpReset:
		return func(ctx context.Context, l *Ledger, r Request, _ *answer) (Response, error) {
			return stateResponse(l.Reset(ctx, r.Commit))
		}
	case OpDiff:
		return serveDiff
	}
	return nil
}

func stateResponse(s State, err error) (Response, error) {
	return Response{Commit: s.Commit, Tree: s.Tree, Dirty: s.Dirty, Stats: s.Stats}, err
}

func serveDiff(ctx context.Context, l *Ledger, r Request, out *answer) (Response, error) {
	partial, err := l.Diff(ctx, r.Windows, r.Content, r.Limits, Visitor{
		Window: func(w Window) error { out.send(line{Window: &w}); return out.err },
		Change: func(c Change) error { out.send(line{Change: &c}); return out.err },
		End:    func(d WindowDiff) error { out.send(line{End: &d}); return out.err },
	})
	return Response{Partial: partial}, err
}
