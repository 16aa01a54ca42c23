package record

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// encodeAttempt encodes an attempt so that it always fits: texts are cut, then
// long lists, until what is left is small enough. Verdict, outcomes and facts
// are never touched. It works on its own copy of what it changes.
func encodeAttempt(a *Attempt) ([]byte, error) {
	c := *a
	c.Trimmed = slices.Clone(a.Trimmed)
	c.detach()
	c.dropUnencodable()
	facts := 0
	for _, f := range c.Facts {
		facts += len(f.Value)
	}
	c.cutTexts(maxString)
	for limit := 32 << 10; ; limit /= 8 {
		doc, err := json.Marshal(&c)
		if err != nil || len(doc) <= maxAttempt+facts {
			return doc, err
		}
		if limit < 64 {
			break
		}
		c.cutTexts(limit)
	}
	c.cutLists()
	return json.Marshal(&c)
}

// detach gives c its own copies of the parts that trimming changes.
func (a *Attempt) detach() {
	a.Checks = slices.Clone(a.Checks)
	a.Turns = slices.Clone(a.Turns)
	a.Diagnostics = slices.Clone(a.Diagnostics)
	if a.Error != nil {
		e := *a.Error
		if e.Prepare != nil {
			p := *e.Prepare
			e.Prepare = &p
		}
		a.Error = &e
	}
	if a.Sandbox != nil {
		s := *a.Sandbox
		a.Sandbox = &s
	}
	if a.Agent != nil {
		g := *a.Agent
		a.Agent = &g
	}
	if a.Usage != nil {
		u := *a.Usage
		a.Usage = &u
	}
}

// trimmed notes the name of a part once.
func (a *Attempt) trimmed(name string) {
	if len(a.Trimmed) < 100 && !slices.Contains(a.Trimmed, name) {
		a.Trimmed = append(a.Trimmed, name)
	}
}

// dropUnencodable removes what JSON cannot hold, and names it: a measurement
// that is no number is absent, never zero.
func (a *Attempt) dropUnencodable() {
	number := func(p **float64, name string, args ...any) {
		if *p != nil && (math.IsNaN(**p) || math.IsInf(**p, 0)) {
			a.trimmed(fmt.Sprintf(name+" (%v)", append(args, **p)...))
			*p = nil
		}
	}
	number(&a.CostUSD, "costUSD")
	if a.Usage != nil {
		number(&a.Usage.CostUSD, "usage.costUSD")
	}
	for i := range a.Checks {
		number(&a.Checks[i].Value, "checks[%d].value", i)
		number(&a.Checks[i].Threshold, "checks[%d].threshold", i)
	}
	for i := range a.Turns {
		if u := a.Turns[i].Usage; u != nil && u.CostUSD != nil {
			cp := *u
			number(&cp.CostUSD, "turns[%d].usage.costUSD", i)
			a.Turns[i].Usage = &cp
		}
	}
	for i := range a.Diagnostics {
		if d := &a.Diagnostics[i]; d.Data != nil && !json.Valid(d.Data) {
			d.Data = nil
			a.trimmed(fmt.Sprintf("diagnostics[%d].data (not JSON)", i))
		}
	}
	if a.Sandbox != nil && !encodable(a.Sandbox.Limits) {
		a.Sandbox.Limits = nil
		a.trimmed("sandbox.limits (not JSON)")
	}
	if a.Agent != nil && !encodable(a.Agent.Details) {
		a.Agent.Details = nil
		a.trimmed("agent.details (not JSON)")
	}
}

func encodable(m map[string]any) bool {
	if len(m) == 0 {
		return true
	}
	_, err := json.Marshal(m)
	return err == nil
}

// cutTexts cuts every text of the explanation to limit bytes.
func (a *Attempt) cutTexts(limit int) {
	cut := func(p *string, name string, args ...any) {
		if len(*p) <= limit {
			return
		}
		if short := cutText(*p, limit); short != *p {
			*p = short
			a.trimmed(fmt.Sprintf(name, args...))
		}
	}
	for i := range a.Turns {
		cut(&a.Turns[i].Prompt, "turns[%d].prompt", i)
		cut(&a.Turns[i].Reply, "turns[%d].reply", i)
	}
	for i := range a.Checks {
		cut(&a.Checks[i].Name, "checks[%d].name", i)
		cut(&a.Checks[i].Detail, "checks[%d].detail", i)
		cut(&a.Checks[i].Environment, "checks[%d].environment", i)
		if a.Checks[i].Judge == nil {
			continue
		}
		j := *a.Checks[i].Judge
		for _, p := range []*string{&j.Criterion, &j.Input, &j.Output, &j.Changes, &j.Reference, &j.Rationale} {
			cut(p, "checks[%d].judge", i)
		}
		a.Checks[i].Judge = &j
	}
	for i := range a.Diagnostics {
		d := &a.Diagnostics[i]
		cut(&d.Message, "diagnostics[%d].message", i)
		if len(d.Data) > limit {
			d.Data = nil
			a.trimmed(fmt.Sprintf("diagnostics[%d].data", i))
		}
	}
	cut(&a.Skip, "skip")
	if e := a.Error; e != nil {
		cut(&e.Message, "error.message")
		cut(&e.Cause, "error.cause")
		cut(&e.Fix, "error.fix")
		if e.Prepare != nil {
			cut(&e.Prepare.Headline, "error.prepare.headline")
			cut(&e.Prepare.Cause, "error.prepare.cause")
			cut(&e.Prepare.Log, "error.prepare.log")
		}
	}
}

// cutLists is the last resort, for lists of very many entries. Checks that
// decided something stay before those that matched.
func (a *Attempt) cutLists() {
	if n := len(a.Spans); n > 0 {
		a.Spans, a.SpansLeft = nil, a.SpansLeft+n
		a.trimmed(fmt.Sprintf("spans: all %d", n))
	}
	if n := len(a.Turns); n > 500 {
		a.Turns = a.Turns[:500]
		a.trimmed(fmt.Sprintf("turns: the last %d", n-500))
	}
	if n := len(a.Diagnostics); n > 1000 {
		a.Diagnostics = a.Diagnostics[:1000]
		a.trimmed(fmt.Sprintf("diagnostics: the last %d", n-1000))
	}
	if n := len(a.Phases); n > 1000 {
		a.Phases = a.Phases[:1000]
		a.trimmed(fmt.Sprintf("phases: the last %d", n-1000))
	}
	const keep = 5000
	if n := len(a.Checks); n > keep {
		slices.SortStableFunc(a.Checks, func(x, y Check) int { return rank(x) - rank(y) })
		a.Checks = a.Checks[:keep]
		a.trimmed(fmt.Sprintf("checks: %d of the least important", n-keep))
	}
	if a.Identity != nil && len(a.Identity.Inputs) > 1000 {
		id := *a.Identity
		id.Inputs = nil
		a.Identity = &id
		a.trimmed("identity.inputs")
	}
}

func rank(c Check) int {
	switch {
	case c.Outcome == Matched:
		return 2
	case c.Severity == Soft:
		return 1
	}
	return 0
}

// trimEnd bounds what a run says about itself.
func trimEnd(e *End) {
	carrier := Attempt{Diagnostics: e.Diagnostics, Error: e.Error}
	carrier.detach()
	carrier.dropUnencodable()
	carrier.cutTexts(maxString)
	carrier.cutLists()
	e.Diagnostics, e.Error = carrier.Diagnostics, carrier.Error
}
