package plan

import (
	"slices"

	"assay"
	"assay/judge"
)

// judgeOf is the judge of a pair, resolved eval over experiment over project, or
// nil when the eval needs none.
func judgeOf(s *assay.Suite, x *assay.Experiment, e *assay.Eval) *judge.Config {
	asks := func(cs []assay.Check) bool {
		return slices.ContainsFunc(cs, func(c assay.Check) bool { return c.Judge != nil })
	}
	needed := e.Judge != nil || asks(e.Checks)
	for _, t := range e.Turns {
		needed = needed || asks(t.Checks)
	}
	if !needed {
		return nil
	}
	var own judge.Config
	if e.Judge != nil {
		own = *e.Judge
	}
	c := own.Over(x.Judge.Over(s.Judge)).Resolved()
	return &c
}
