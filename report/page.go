package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"assay/fault"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Page is everything that is recorded of one attempt.
type Page struct {
	Run     *record.StoredRun
	Attempt *record.Attempt
	At      record.AttemptRef
	// Why is the reason of the verdict in one line of raw text.
	Why string
	// Commands are those that did not exit 0, in order; CommandCount counts all.
	Commands     []sandbox.CommandRecord
	CommandCount int
	// Diff is nil when the attempt has none.
	Diff *record.Diff
	// Events counts the events by type and name, most frequent first.
	Events []EventCount
	// Talk is the conversation; TalkLeft counts what was too much of it.
	Talk     []Entry
	TalkLeft int
	// Missing maps a part ("commands", "events", "diff") that cannot be read to
	// the reason.
	Missing map[string]string
}

// EventCount is how often an event of a type and name came.
type EventCount struct {
	Type, Name string
	Count      int
}

// pagePrefix begins the route of an attempt's page.
const pagePrefix = "attempt-"

// Target is what a user named: a locator, or runs and a page.
type Target struct {
	Locator string
	Runs    []ref.RunID
	Page    string // "attempt-<attemptId>"
}

// Resolve finds the attempt that a target names; ok is false when it names no
// single attempt. A locator and a page that contradict each other are an error.
func Resolve(ctx context.Context, r *record.Reader, t Target) (at record.AttemptRef, ok bool, err error) {
	if t.Locator == "" && t.Page == "" {
		return record.AttemptRef{}, false, nil
	}
	var byPage record.AttemptRef
	if t.Page != "" {
		if byPage, err = findPage(ctx, r, t); err != nil {
			return record.AttemptRef{}, false, err
		}
		if t.Locator == "" {
			return byPage, true, nil
		}
	}
	loc, err := ref.ParseLocator(t.Locator)
	if err != nil {
		return record.AttemptRef{}, false, &fault.Error{Class: fault.Config, Code: "malformed-locator", Err: err, Fix: "`assay show` lists the locators"}
	}
	at, err = r.Find(ctx, loc)
	if err != nil {
		return record.AttemptRef{}, false, err
	}
	if t.Page != "" && at != byPage || t.Page == "" && len(t.Runs) > 0 && !slices.Contains(t.Runs, at.Run) {
		return record.AttemptRef{}, false, fault.Configf("usage", "give the locator alone, or --run and --page", "%s is not the attempt that --run and --page name", loc)
	}
	return at, true, nil
}

// findPage finds an attempt by its id in the named runs, or in all.
func findPage(ctx context.Context, r *record.Reader, t Target) (record.AttemptRef, error) {
	id, isAttempt := strings.CutPrefix(t.Page, pagePrefix)
	if !isAttempt || !ref.ValidID(id) {
		return record.AttemptRef{}, fault.Configf("usage", "use --page attempt-<attemptId>", "no page %q", t.Page)
	}
	runs := t.Runs
	if len(runs) == 0 {
		all, _, err := r.Runs(ctx)
		if err != nil {
			return record.AttemptRef{}, err
		}
		for _, run := range all {
			runs = append(runs, run.ID)
		}
	}
	for _, run := range runs {
		s, err := r.Run(run)
		if err != nil {
			return record.AttemptRef{}, err
		}
		refs, err := r.AttemptRefs(run)
		if err != nil {
			return record.AttemptRef{}, err
		}
		for _, m := range s.Members { // a carried result is a page of this run too
			refs = append(refs, record.AttemptRef{Run: m.Run, Attempt: m.Attempt})
		}
		for _, at := range refs {
			if string(at.Attempt) == id {
				return at, nil
			}
		}
	}
	return record.AttemptRef{}, fault.Configf(record.CodeAttemptNotFound, "`assay show` lists the attempts", "no attempt %s", id)
}

// ReadPage reads all that is recorded of one attempt. Large parts that are
// damaged are named in Missing.
func ReadPage(r *record.Reader, at record.AttemptRef) (*Page, error) {
	a, err := r.Attempt(at)
	if err != nil {
		return nil, err
	}
	run, err := r.Run(at.Run)
	if err != nil {
		return nil, err
	}
	p := &Page{Run: run, Attempt: a, At: at, Missing: map[string]string{}}
	p.Why, _ = Why(a)
	p.readCommands(r)
	p.readEvents(r)
	if p.Diff, err = r.Diff(at); err != nil {
		p.Missing["diff"] = err.Error()
	}
	return p, nil
}

func (p *Page) readCommands(r *record.Reader) {
	for raw, err := range r.Commands(p.At) {
		if err != nil {
			p.Missing["commands"] = err.Error()
			return
		}
		p.CommandCount++
		var c sandbox.CommandRecord
		var marker truncation
		switch {
		case json.Unmarshal(raw, &marker) == nil && marker.Type == "truncated":
			p.CommandCount += marker.Lines - 1
			p.Missing["commands"] = marker.String()
		case json.Unmarshal(raw, &c) != nil:
			p.Missing["commands"] = "a record of another shape"
		case c.Outcome != "ok":
			p.Commands = append(p.Commands, c)
		}
	}
}

func (p *Page) readEvents(r *record.Reader) {
	counts := map[EventCount]int{}
	var t talk
	for raw, err := range r.Events(p.At) {
		if err != nil {
			p.Missing["events"] = err.Error()
			break
		}
		var e eventLine
		if json.Unmarshal(raw, &e) != nil {
			counts[EventCount{Type: "unknown"}]++
			continue
		}
		if e.Type == "truncated" {
			p.Missing["events"] = e.String()
			continue
		}
		counts[EventCount{Type: e.Type, Name: e.Name}]++
		t.add(&e)
	}
	p.Talk, p.TalkLeft = t.entries, t.left
	for k, n := range counts {
		p.Events = append(p.Events, EventCount{k.Type, k.Name, n})
	}
	slices.SortFunc(p.Events, func(a, b EventCount) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
}

// truncation is the line that stands for what is not in the record.
type truncation struct {
	Type   string `json:"type"`
	Lines  int    `json:"lines"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
}

func (t truncation) String() string {
	return fmt.Sprintf("%d left out (%d bytes): %s", t.Lines, t.Bytes, t.Reason)
}
