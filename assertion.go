package assay

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"assay/expect"
	"assay/fault"
	"assay/record"
)

// Assertion is the handle of one check. Its methods configure that check and
// return it.
type Assertion struct {
	t        *T
	measured bool // a measurement: soft until a gate is given
	strict   bool // only a threshold lets it end the body
	check    func(context.Context) (record.Check, error)

	once sync.Once
	mu   sync.Mutex
	c    record.Check // configuration, and after once the result
	gate *float64
	soft *bool
}

func (t *T) assert(kind, name string, check func(context.Context) (record.Check, error)) *Assertion {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &Assertion{t: t, check: check, c: record.Check{Name: name, Kind: kind, Turn: len(t.turns), Group: strings.Join(t.group, " / ")}}
	if t.closed {
		// A check that nobody would wait for must not vanish.
		if t.err == nil {
			t.err = fault.Configf("check-after-end", "Make every check before the eval's body returns.", "the check %q was made after the eval's body had returned", name)
		}
		return a
	}
	t.assertions = append(t.assertions, a)
	return a
}

// Name replaces the check's name.
func (a *Assertion) Name(name string) *Assertion {
	return a.configure(func() {
		if name != "" {
			a.c.Name = name
		}
	})
}

// Soft makes the check informational.
func (a *Assertion) Soft() *Assertion {
	return a.configure(func() { t := true; a.soft = &t })
}

// Gate makes a measurement decide the verdict: it must be at least n.
func (a *Assertion) Gate(n float64) *Assertion {
	return a.configure(func() { a.gate = &n; f := false; a.soft = &f })
}

// AtLeast holds a measurement to n without deciding the verdict.
func (a *Assertion) AtLeast(n float64) *Assertion {
	return a.configure(func() { a.gate = &n })
}

// Optional lets the check be unavailable without making the attempt errored.
func (a *Assertion) Optional() *Assertion {
	return a.configure(func() { a.c.Optional = true })
}

// OrStop ends the body here unless the check matched.
func (a *Assertion) OrStop(ctx context.Context) *Assertion {
	a.mu.Lock()
	open := a.strict && a.gate == nil
	a.mu.Unlock()
	if open {
		a.t.halt(fault.Configf("check-without-threshold", "Give it Gate(n) or AtLeast(n) before OrStop.", "the check %q has no threshold that it could miss", a.c.Name))
	}
	if a.result(ctx).Outcome != record.Matched {
		runtime.Goexit()
	}
	return a
}

// OK evaluates the check now and reports whether it matched.
func (a *Assertion) OK(ctx context.Context) bool { return a.result(ctx).Outcome == record.Matched }

func (a *Assertion) configure(change func()) *Assertion {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	return a
}

// result evaluates the check once, and applies the configuration each time:
// modifiers come after the call that made the check.
func (a *Assertion) result(ctx context.Context) record.Check {
	a.once.Do(func() {
		r, err := a.check(ctx)
		if err != nil {
			r.Outcome, r.Reason = record.Unavailable, fault.CodeOf(err)
			r.Detail = err.Error()
			if fix := fault.FixOf(err); fix != "" {
				r.Detail += " (" + fix + ")"
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.c.Outcome, a.c.Detail, a.c.Reason, a.c.Value, a.c.Environment, a.c.Judge = r.Outcome, r.Detail, r.Reason, r.Value, r.Environment, r.Judge
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.c
	c.Severity = record.Gate
	if a.measured && a.gate == nil {
		c.Severity = record.Soft
	}
	if a.measured && a.gate != nil && a.soft == nil {
		c.Severity = record.Soft // AtLeast: reported, not decisive
	}
	if a.soft != nil {
		c.Severity = record.Gate
		if *a.soft {
			c.Severity = record.Soft
		}
	}
	if a.gate != nil && c.Value != nil && c.Outcome != record.Unavailable {
		c.Threshold = a.gate
		c.Outcome = record.Matched
		if *c.Value < *a.gate {
			c.Outcome = record.Mismatched
			detail := fmt.Sprintf("expected at least %g, received %g", *a.gate, *c.Value)
			if c.Judge != nil && c.Detail != "" {
				detail += ": " + c.Detail
			}
			c.Detail = detail
		}
	} else if a.measured && a.gate == nil && c.Outcome == record.Mismatched {
		c.Outcome = record.Matched // without a threshold a measurement is only a number
	}
	return c
}

// matched turns a matcher's answer into a check's outcome.
func matched(r expect.Result) record.Check {
	c := record.Check{Detail: r.Detail, Value: r.Score}
	switch {
	case r.Err != nil:
		c.Outcome, c.Detail, c.Reason = record.Unavailable, r.Err.Error(), "value-not-comparable"
	case r.Score != nil && !expect.Finite(*r.Score):
		c.Outcome, c.Detail, c.Reason, c.Value = record.Unavailable, "the measurement is no number from 0 to 1", "measurement-invalid", nil
	case r.OK:
		c.Outcome, c.Detail = record.Matched, ""
	default:
		c.Outcome = record.Mismatched
	}
	return c
}
