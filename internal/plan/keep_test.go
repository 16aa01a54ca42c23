package plan_test

import (
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/plan"
	"assay/sandbox"
)

func TestKeepIsRefusedWhereNothingCanBeKept(t *testing.T) {
	for _, c := range []struct {
		info  sandbox.Info
		level string
		code  string
	}{
		{sandbox.Info{}, "", ""}, {sandbox.Info{Keep: true}, "all", ""}, {sandbox.Info{}, "failed", "sandbox.keep-unsupported"},
	} {
		s := suite("x", "e", (&keyed{info: c.info}).from("s"))
		p, err := plan.Link(t.Context(), &s, plan.Selection{KeepSandbox: c.level}, nil)
		if fault.CodeOf(first(err)) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && p.Keep() != c.level {
			t.Errorf("the plan keeps %q, want %q", p.Keep(), c.level)
		}
	}
}

func TestSharedStateKeys(t *testing.T) {
	s := suite("x", "e", (&keyed{}).from("s"))
	s.Experiments[0].SharedState = "Not A Key"
	if _, err := plan.Link(t.Context(), &s, plan.Selection{}, nil); fault.CodeOf(first(err)) != "shared-state-key" || !strings.Contains(err.Error(), "experiment x") {
		t.Error(err)
	}
	s.Experiments[0].SharedState = "mempal/codex/cohort-a"
	if _, err := plan.Link(t.Context(), &s, plan.Selection{}, nil); err != nil {
		t.Error(err)
	}
}

func first(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok && len(j.Unwrap()) > 0 {
		return j.Unwrap()[0]
	}
	return err
}
