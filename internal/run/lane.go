package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"assay/internal/attempt"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/internal/pool"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// lanes are the shared sandboxes of one experiment. nil shares none.
type lanes struct {
	x    *experiment
	pool *pool.Pool

	// What follows is guarded by x.mu.
	uses map[int][]use   // by sandbox
	lost map[string]bool // groups whose sandbox was lost
	ids  map[int]string  // the provider's names of the sandboxes
}

// use is one attempt in a shared sandbox.
type use struct {
	n     int
	good  bool
	phase string // of its error
	ref   record.SlotRef
}

// newLanes makes the lanes of an experiment that shares sandboxes.
func newLanes(x *experiment) *lanes {
	l := &lanes{x: x, pool: pool.New(x.x.Def.MaxConcurrency), uses: map[int][]use{}, lost: map[string]bool{}, ids: map[int]string{}}
	shared := false
	for _, s := range x.x.Executing() {
		if s.Lane != "" {
			shared = true
			l.pool.Expect(s.Lane)
		}
	}
	if !shared {
		return nil
	}
	return l
}

// of is what an attempt of slot s gets, nil for a sandbox of its own.
func (l *lanes) of(s *plan.Slot) *attempt.Lane {
	if l == nil || s.Lane == "" {
		return nil
	}
	return &attempt.Lane{
		Pool: l.pool, Key: s.Lane, MaxUses: l.x.x.Def.MaxUses,
		Close: func(_ context.Context, b *pool.Box, why string) {
			defer l.pool.Leave()
			l.close(b, why)
		},
		Warn: func(d sandbox.Diagnostic) {
			_ = notes{l.x, "sandbox.reset"}.Diagnostic(d) // its code and level are fixed above
		},
		Lost: func() {
			l.x.mu.Lock()
			defer l.x.mu.Unlock()
			l.lost[s.Group.ID] = true
		},
	}
}

// close destroys a shared sandbox; the caller frees its lane then. What its teardown could not do is an error of
// the run: what the set-up made outside of the sandbox may still be there.
func (l *lanes) close(b *pool.Box, why string) {
	l.x.c.o.Sink(event.Progress{Slot: ref.Slot{Experiment: l.x.x.ID}, Message: fmt.Sprintf("sandbox %d is destroyed: %s", b.Ordinal, why)})
	err := attempt.Close(l.x.c.o.Force, b, func(phase string) sandbox.Notes { return notes{l.x, phase} }, l.x.mask)
	if err == nil {
		return
	}
	_ = notes{l.x, "sandbox.stop"}.Diagnostic(sandbox.Diagnostic{Code: "sandbox-close-failed", Level: sandbox.Error, Message: fmt.Sprintf("sandbox %d (%s): %v", b.Ordinal, b.Driver.ID(), err)})
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	if l.x.err == nil {
		l.x.err = attempt.ErrorInfo(err, l.x.mask)
	}
}

// over ends a slot: sandboxes that nobody comes for any more are destroyed.
func (l *lanes) over(s *plan.Slot) {
	if l == nil || s.Lane == "" {
		return
	}
	for _, b := range l.pool.Over(s.Lane) {
		func() {
			defer l.pool.Gone()
			l.close(b, "its last attempt is over")
		}()
	}
}

// used notes how an attempt in a shared sandbox ended.
func (l *lanes) used(a *record.Attempt) {
	if l == nil || a.Sandbox == nil || a.Sandbox.Ordinal == 0 {
		return
	}
	u := use{n: a.Sandbox.Use, good: a.Verdict == record.Passed || a.Verdict == record.Skipped, phase: "the checks", ref: record.SlotRef{Eval: a.Eval, Ordinal: a.Ordinal}}
	if a.Error != nil {
		u.phase = a.Error.Phase
	}
	l.x.mu.Lock()
	defer l.x.mu.Unlock()
	l.uses[a.Sandbox.Ordinal] = append(l.uses[a.Sandbox.Ordinal], u)
	l.ids[a.Sandbox.Ordinal] = a.Sandbox.ID
}

// stopped tells why a slot of a group does not start any more, or "".
func (l *lanes) stopped(s *plan.Slot) string {
	if l != nil && s.Group != nil && l.lost[s.Group.ID] && s.Group.OnUnavailable != "replace-sandbox" {
		return "group-stopped"
	}
	return ""
}

// conclude sums the lanes up, when all are closed: how many sandboxes served how
// many attempts, and whether later attempts failed where first ones did not.
func (l *lanes) conclude() {
	if l == nil {
		return
	}
	l.x.mu.Lock()
	total := 0
	var suspects []string
	var ordinals []int
	for n, us := range l.uses {
		ordinals = append(ordinals, n)
		total += len(us)
	}
	slices.Sort(ordinals)
	firstsGood := len(ordinals) > 0
	for _, n := range ordinals {
		for _, u := range l.uses[n] {
			firstsGood = firstsGood && (u.n > 1 || u.good)
		}
	}
	for _, n := range ordinals {
		bad := map[string][]string{}
		for _, u := range l.uses[n] {
			if !u.good && u.n > 1 {
				bad[u.phase] = append(bad[u.phase], fmt.Sprint(u.n))
			}
		}
		for phase, later := range bad {
			if firstsGood && len(later) >= 2 {
				suspects = append(suspects, fmt.Sprintf("sandbox %d (%s): its attempts %s failed in %s", n, l.ids[n], strings.Join(later, ", "), phase))
			}
		}
	}
	l.x.mu.Unlock()
	if len(ordinals) == 0 {
		return
	}
	if f, err := record.NewFact(Reuse{Sandboxes: len(ordinals), Attempts: total}, time.Now()); err == nil {
		l.x.mu.Lock()
		if l.x.facts == nil {
			l.x.facts = record.Facts{}
		}
		l.x.facts["assay.sandbox.reuse"] = f
		l.x.mu.Unlock()
	}
	l.x.c.o.Sink(event.Notice{Code: "sandbox-reuse", Level: "info", Message: fmt.Sprintf("experiment %s: %s used %s", l.x.x.ID, count(total, "attempt"), count(len(ordinals), "sandbox"))})
	slices.Sort(suspects)
	if len(suspects) > 0 {
		_ = notes{l.x, "sandbox.release"}.Diagnostic(sandbox.Diagnostic{
			Code: "reuse-contamination-suspected", Level: sandbox.Warning,
			Message: "the first attempts in all sandboxes were fine and later ones were not, so something may have been left behind: " + strings.Join(suspects, "; ") + ". Look at the fact assay.sandbox.drift of those attempts, or run without reuse.",
		})
	}
}

// Reuse is the fact assay.sandbox.reuse of a run.
type Reuse struct {
	Sandboxes int `json:"sandboxes"`
	Attempts  int `json:"attempts"`
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "x") {
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}
