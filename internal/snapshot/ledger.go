package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"assay/fault"
)

// Ledger records the states of one tree in one store. Its methods may be
// called at the same time, also from other processes on the same store: each
// holds the store's lock.
type Ledger struct {
	tree  Tree
	store Store
	// always are exclusions that belong to the place, not to the user's rules.
	always []string
}

// New returns a ledger. Always are further exclusion patterns, the same in
// every call on this store.
func New(tree Tree, store Store, always ...string) *Ledger {
	return &Ledger{tree: tree, store: store, always: always}
}

// rulesFile is the name of the frozen rules in the store.
const rulesFile = "rules"

// Record describes a commit to make.
type Record struct {
	Author Author
	// Label is one line, such as "turn1".
	Label string
	// AllowEmpty makes a commit even of an unchanged tree.
	AllowEmpty bool
	// Rules count only when the store has no commit yet.
	Rules Rules
}

// Mark records the tree as the baseline, with modes and owners, so that Reset
// can restore them. It always makes a commit.
func (l *Ledger) Mark(ctx context.Context, label string, rules Rules) (Commit, Stats, error) {
	return l.record(ctx, Record{Author: Baseline, Label: label, AllowEmpty: true, Rules: rules}, true)
}

// Commit records the tree as r.Author's work. Without AllowEmpty an unchanged
// tree makes no commit: the head is returned, with Changed false.
func (l *Ledger) Commit(ctx context.Context, r Record) (Commit, Stats, error) {
	return l.record(ctx, r, r.Author == Baseline)
}

func (l *Ledger) record(ctx context.Context, r Record, mark bool) (Commit, Stats, error) {
	if err := r.check(); err != nil {
		return Commit{}, Stats{}, err
	}
	unlock, err := l.store.Lock(ctx)
	if err != nil {
		return Commit{}, Stats{}, err
	}
	defer unlock()
	head, err := l.head()
	if err != nil {
		return Commit{}, Stats{}, err
	}
	match, err := l.rules(head.ID.IsZero(), r.Rules)
	if err != nil {
		return Commit{}, Stats{}, err
	}
	batch, err := l.store.Begin()
	if err != nil {
		return Commit{}, Stats{}, err
	}
	defer batch.Discard()
	s, root, tree, err := l.scan(ctx, &scan{match: match, batch: batch})
	if err != nil {
		return Commit{}, Stats{}, err
	}
	c := Commit{Tree: tree, Parent: head.ID, Author: r.Author, Label: r.Label, Changed: tree != head.Tree}
	if head.ID.IsZero() {
		c.Changed = tree != emptyTree
	}
	if !c.Changed && !r.AllowEmpty && !head.ID.IsZero() {
		head.Changed = false
		return head, s.stats, l.saveCache(s, root)
	}
	data := commitData{tree: tree, parent: head.ID, author: r.Author, label: r.Label, time: time.Now()}
	if mark {
		if data.facts, err = putFacts(batch, root); err != nil {
			return Commit{}, Stats{}, err
		}
	}
	text := data.encode()
	c.ID = hashObject(KindCommit, text)
	if err := batch.Put(c.ID, KindCommit, int64(len(text)), bytes.NewReader(text)); err != nil {
		return Commit{}, Stats{}, err
	}
	// The order matters to a killed writer: objects, then what refers to them.
	if s.stats.Stored, err = batch.Commit(); err != nil {
		return Commit{}, Stats{}, err
	}
	if err := l.saveCache(s, root); err != nil {
		return Commit{}, Stats{}, err
	}
	return c, s.stats, l.store.SetHead(c.ID)
}

func (r Record) check() error {
	switch r.Author {
	case Baseline, Eval, Agent:
	default:
		return fault.Configf("ledger-bad-request", "", "no author %q", r.Author)
	}
	if len(r.Label) > 200 || strings.ContainsFunc(r.Label, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fault.Configf("ledger-bad-request", "", "the label %q is not one short line", r.Label)
	}
	return nil
}

// rules returns the frozen rules; the first commit freezes them.
func (l *Ledger) rules(first bool, r Rules) (*matcher, error) {
	if first {
		if err := r.Check(); err != nil {
			return nil, err
		}
		data, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if err := l.store.WriteFile(rulesFile, data); err != nil {
			return nil, err
		}
		return newMatcher(r, l.always...)
	}
	data, err := l.store.ReadFile(rulesFile)
	if err != nil {
		return nil, err
	}
	var frozen Rules
	if err := json.Unmarshal(data, &frozen); err != nil {
		return nil, corrupt("the frozen rules are damaged", err)
	}
	return newMatcher(frozen, l.always...)
}

// scan completes and runs s, and returns the id of the tree it saw.
func (l *Ledger) scan(ctx context.Context, s *scan) (*scan, *node, ID, error) {
	s.tree, s.store = l.tree, l.store
	if s.cache == nil {
		data, err := l.store.ReadFile(cacheFile)
		if err != nil {
			return nil, nil, ID{}, err
		}
		s.cache = decodeCache(data)
	}
	root, err := s.run(ctx)
	if err != nil {
		return nil, nil, ID{}, err
	}
	id, files, err := s.build(root)
	s.stats.Files = files
	return s, root, id, err
}

func (l *Ledger) saveCache(s *scan, root *node) error {
	next, differs := s.newCache(root)
	if !differs {
		return nil
	}
	return l.store.WriteCache(encodeCache(next))
}

// head returns the newest commit, zero if there is none.
func (l *Ledger) head() (Commit, error) {
	id, err := l.store.Head()
	if err != nil || id.IsZero() {
		return Commit{}, err
	}
	c, _, err := l.commit(id)
	return c, err
}

func (l *Ledger) commit(id ID) (Commit, commitData, error) {
	data, err := readObject(l.store, id, KindCommit)
	if err != nil {
		return Commit{}, commitData{}, err
	}
	d, err := decodeCommit(data)
	return Commit{ID: id, Tree: d.tree, Parent: d.parent, Author: d.author, Label: d.label}, d, err
}

// maxMeta bounds commits, trees and facts, which are held in memory.
const maxMeta = 256 << 20

// readObject returns the verified content of an object.
func readObject(s Store, id ID, k Kind) ([]byte, error) {
	o, err := openVerified(s, id, k)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if o.Size > maxMeta {
		return nil, corrupt(fmt.Sprintf("object %s is too large", id), nil)
	}
	data := make([]byte, o.Size)
	if _, err := io.ReadFull(o, data); err != nil {
		return nil, err
	}
	return data, nil
}

// openVerified opens an object whose last piece is withheld if the content is
// not what the id promises.
func openVerified(s Store, id ID, k Kind) (Object, error) {
	o, err := s.Open(id)
	if err != nil {
		return Object{}, err
	}
	if o.Kind != k {
		o.Close()
		return Object{}, corrupt(fmt.Sprintf("object %s is a %s, not a %s", id, o.Kind, k), nil)
	}
	if o.Size == 0 && hashObject(k, nil) != id {
		o.Close()
		return Object{}, corrupt("object "+id.String()+" is damaged", nil)
	}
	o.ReadCloser = verified{newVerifier(o.ReadCloser, id, k, o.Size), o.ReadCloser, id}
	return o, nil
}

// verified says of an object with other content that the store is corrupt.
type verified struct {
	v *verifier
	io.Closer
	id ID
}

func (o verified) Read(b []byte) (int, error) {
	n, err := o.v.Read(b)
	if errors.Is(err, errOtherContent) {
		err = corrupt("object "+o.id.String()+" is damaged", err)
	}
	return n, err
}

// State is how the tree compares with a commit.
type State struct {
	Commit Commit
	// Tree is the digest of the working tree; Dirty: it is not the commit's.
	Tree  ID
	Dirty bool
	Stats Stats
}

// Status compares the tree with the newest commit. It records nothing.
func (l *Ledger) Status(ctx context.Context) (State, error) { return l.compare(ctx, ID{}) }

// Verify compares the tree with a commit. It records nothing.
func (l *Ledger) Verify(ctx context.Context, commit ID) (State, error) {
	if commit.IsZero() {
		return State{}, fault.Configf("ledger-bad-request", "", "no commit to compare with")
	}
	return l.compare(ctx, commit)
}

func (l *Ledger) compare(ctx context.Context, commit ID) (State, error) {
	unlock, err := l.store.Lock(ctx)
	if err != nil {
		return State{}, err
	}
	defer unlock()
	c, err := l.marked(commit)
	if err != nil {
		return State{}, err
	}
	match, err := l.rules(false, Rules{})
	if err != nil {
		return State{}, err
	}
	return l.compareWith(ctx, c, &scan{match: match})
}

func (l *Ledger) compareWith(ctx context.Context, c Commit, s *scan) (State, error) {
	s, root, tree, err := l.scan(ctx, s)
	if err != nil {
		return State{}, err
	}
	return State{Commit: c, Tree: tree, Dirty: tree != c.Tree, Stats: s.stats}, l.saveCache(s, root)
}

// marked returns a commit, the head for zero. There must be one.
func (l *Ledger) marked(commit ID) (Commit, error) {
	head, err := l.head()
	if err != nil {
		return Commit{}, err
	}
	if head.ID.IsZero() {
		return Commit{}, &fault.Error{Code: "ledger-not-marked", What: "change ledger: no baseline was recorded"}
	}
	if commit.IsZero() || commit == head.ID {
		return head, nil
	}
	c, _, err := l.commit(commit)
	return c, err
}
