package ledger

import (
	"context"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/sandbox"
)

// Point is a state of a workdir to which a sandbox goes back between attempts.
// Its exclusions were frozen when it was marked.
type Point struct {
	store  string
	rules  snapshot.Rules
	commit snapshot.Commit
}

// Store is the directory inside the sandbox that holds what was recorded. Only
// those may read it who may see what earlier attempts did.
func (p Point) Store() string { return p.store }

// Point returns the newest mark as a state to go back to.
func (l *Ledger) Point() Point { return Point{l.store, l.rules, l.marked} }

// Resume returns the ledger of the next attempt in a sandbox that has a point.
// It records beside what earlier attempts recorded, so that a file that nobody
// changed is not read again.
func Resume(s *sandbox.Sandbox, scratch string, p Point) *Ledger {
	l := Open(s, scratch, p.rules)
	l.store = p.store
	return l
}

// Reset makes the workdir what it was at p and proves it twice: where the files
// are, by reading the tree again, and here, by the digest that was kept on this
// side, which nothing in the sandbox can have changed.
func (l *Ledger) Reset(ctx context.Context, p Point) (snapshot.Stats, error) {
	const what = "restore the workdir"
	res, err := l.call(ctx, what, snapshot.Request{Op: snapshot.OpReset, Commit: p.commit.ID})
	switch {
	case err != nil:
		return res.Stats, err
	case res.Dirty || res.Tree != p.commit.Tree:
		return res.Stats, &fault.Error{Code: "ledger-reset-failed", What: what + ": afterwards it is not what it was at the reset point"}
	}
	return res.Stats, nil
}

// Drift tells what changed outside the workdir. A sandbox that cannot look at
// itself gives the zero answer.
func (l *Ledger) Drift(ctx context.Context, q snapshot.DriftQuery) (snapshot.Drift, error) {
	res, err := l.call(ctx, "look for changes outside the workdir", snapshot.Request{Op: snapshot.OpDrift, Drift: q})
	return res.Drift, err
}
