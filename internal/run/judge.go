package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"assay/fault"
	"assay/internal/attempt"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/judge"
	"assay/record"
	"assay/ref"
)

// bench is the judges of an invocation, one for each configuration that a slot
// to be executed needs.
type bench map[judge.Config]*seat

// seat is one judge and what its precheck came to.
type seat struct {
	client *judge.Client
	err    error
}

// seatJudges makes the judges and checks each once, before anything is paid for.
// A judge whose configuration is not complete is asked nothing: its checks will
// be unavailable, and that is said now.
func seatJudges(ctx context.Context, o Options) bench {
	b := bench{}
	incomplete := map[string][]string{}
	for _, s := range o.Plan.Executing() {
		if s.Judge == nil || s.Action != plan.Execute {
			continue
		}
		seated := b[*s.Judge]
		if seated == nil {
			key, _ := o.Env(s.Judge.APIKeyEnv)
			seated = &seat{client: judge.New(*s.Judge, key)}
			b[*s.Judge] = seated
		}
		if err := seated.client.Ready(); err != nil {
			if eval := string(s.Ref.Eval); !slices.Contains(incomplete[err.Error()], eval) {
				incomplete[err.Error()] = append(incomplete[err.Error()], eval)
			}
		}
	}
	for why, evals := range incomplete {
		o.Sink(event.Notice{Code: "judge-not-configured", Level: "warning", Message: fmt.Sprintf("%s; the judge checks of %s will be unavailable", why, strings.Join(evals, ", "))})
	}
	var checks sync.WaitGroup
	for _, s := range b {
		if s.client.Ready() == nil {
			checks.Go(func() { s.err = s.client.Precheck(ctx) })
		}
	}
	checks.Wait()
	for _, s := range b {
		if s.err != nil && fault.Cause(ctx) == nil {
			o.Sink(event.Notice{Code: judge.CodePrecheck, Level: "error", Message: s.err.Error()})
		}
	}
	return b
}

// of returns the judge of a slot, or why the slot is not to be started.
func (b bench) of(s *plan.Slot) (*judge.Client, error) {
	if s.Judge == nil || b[*s.Judge] == nil {
		return nil, nil
	}
	return b[*s.Judge].client, b[*s.Judge].err
}

// unjudged ends a slot whose judge does not answer: it is errored, and there is
// no attempt, because nothing was attempted.
func (x *experiment) unjudged(s *plan.Slot, err error) {
	info := attempt.ErrorInfo(err, x.mask)
	slot := record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal}
	x.mu.Lock()
	x.skipped = append(x.skipped, record.NotRunSlot{SlotRef: slot, Reason: judge.CodePrecheck, Error: info})
	x.eval(s.Ref.Eval).errored++
	d := record.Diagnostic{Phase: "judge.precheck", Code: judge.CodePrecheck, Level: "error", Message: info.Message, Key: info.Message, Count: 1}
	at := slices.IndexFunc(x.diags, func(o record.Diagnostic) bool { return o.Code == d.Code && o.Key == d.Key })
	if at < 0 {
		x.diags = append(x.diags, d)
	} else {
		x.diags[at].Count++
	}
	x.mu.Unlock()
	if at < 0 {
		x.c.o.Sink(event.Diagnostic{Slot: ref.Slot{Experiment: x.x.ID}, Diagnostic: d})
	}
	x.c.o.Sink(event.NotRun{Slot: s.Ref, Reason: judge.CodePrecheck})
	x.ended(s)
}
