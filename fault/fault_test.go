package fault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"assay/fault"
)

var (
	errPlain = errors.New("plain")
	config   = &fault.Error{Class: fault.Config, Code: "token-bad", Stage: "check", Fix: "Set TOKEN.", What: "log in"}
	bare     = &fault.Error{What: "nothing is known"}
	wide     = &fault.Error{Class: fault.Transient, Code: "wide", Scope: fault.ScopeExperiment, Stage: "prepare"}
	outer    = &fault.Error{Code: "outer", Stage: "sandbox.create", What: "create", Err: fmt.Errorf("again: %w", config)}
	runWide  = &fault.Error{Scope: fault.ScopeRun, Err: wide}
)

func TestWhatIsReadFromAnError(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		class fault.Class
		code  string
		stage string
		fix   string
		scope fault.Scope
	}{
		{"nil", nil, fault.Unknown, "", "", "", 0},
		{"plain", errPlain, fault.Unknown, "", "", "", 0},
		{"own", config, fault.Config, "token-bad", "check", "Set TOKEN.", 0},
		{"nothing set", bare, fault.Unknown, "", "", "", 0},
		{"outermost code, innermost stage", outer, fault.Config, "outer", "check", "Set TOKEN.", 0},
		{"widest scope", runWide, fault.Transient, "wide", "prepare", "", fault.ScopeRun},
		{"outermost class", &fault.Error{Class: fault.Resource, Err: config}, fault.Resource, "token-bad", "check", "Set TOKEN.", 0},
		{"bare cancellation", fmt.Errorf("x: %w", context.Canceled), fault.Canceled, "", "", "", 0},
		{"bare deadline", context.DeadlineExceeded, fault.Canceled, "", "", "", 0},
		{"a limit of ours", &fault.Timeout{Limit: "attempt-deadline"}, fault.Canceled, "", "", "", 0},
		{"unjudged over a cancellation", &fault.Error{Code: "c", Err: context.Canceled}, fault.Canceled, "c", "", "", 0},
		{"joined: the second is judged", errors.Join(errPlain, config), fault.Config, "token-bad", "check", "Set TOKEN.", 0},
		{"joined: the first is unjudged", errors.Join(bare, wide), fault.Transient, "wide", "prepare", "", fault.ScopeExperiment},
		{"joined: both", errors.Join(config, wide), fault.Config, "token-bad", "check", "Set TOKEN.", fault.ScopeExperiment},
		{"cause, then what failed", fmt.Errorf("%w: %w", &fault.Error{Class: fault.Canceled, Code: "interrupted"}, wide), fault.Canceled, "interrupted", "prepare", "", fault.ScopeExperiment},
		{"below a join", &fault.Error{Stage: "outer", Err: errors.Join(errPlain, fmt.Errorf("%w", config))}, fault.Config, "token-bad", "check", "Set TOKEN.", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fault.ClassOf(c.err); got != c.class {
				t.Errorf("class %s, want %s", got, c.class)
			}
			if got := fault.CodeOf(c.err); got != c.code {
				t.Errorf("code %q, want %q", got, c.code)
			}
			if got := fault.StageOf(c.err); got != c.stage {
				t.Errorf("stage %q, want %q", got, c.stage)
			}
			if got := fault.FixOf(c.err); got != c.fix {
				t.Errorf("fix %q, want %q", got, c.fix)
			}
			if got := fault.ScopeOf(c.err); got != c.scope {
				t.Errorf("scope %s, want %s", got, c.scope)
			}
		})
	}
}

func TestText(t *testing.T) {
	for want, e := range map[string]*fault.Error{
		"token-bad":                     {Code: "token-bad"},
		"check: log in":                 {Stage: "check", What: "log in", Code: "x"},
		"log in: plain":                 {What: "log in", Err: errPlain},
		"sandbox.create: log in: plain": {Stage: "sandbox.create", What: "log in", Err: errPlain},
		"plain":                         {Code: "x", Err: errPlain},
		"a value of 3 is too small":     fault.Configf("small", "Use 4.", "a value of %d is too small", 3),
		"prepare the sandbox: a: plain": fault.Wrap(&fault.Error{What: "a", Err: errPlain}, fault.Resource, "c", "prepare the sandbox"),
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
}

func TestWrapKeepsTheFirstJudgement(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fault.Class
	}{{errPlain, fault.Transient}, {bare, fault.Transient}, {config, fault.Config}, {outer, fault.Config}, {errors.Join(bare, config), fault.Config}} {
		got := fault.Wrap(c.err, fault.Transient, "code", "what")
		if got.Class != c.want || got.Code != "code" || !errors.Is(got, c.err) {
			t.Errorf("%v: class %s, want %s", c.err, got.Class, c.want)
		}
	}
}

func TestNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for c := fault.Unknown; c <= fault.Canceled; c++ {
		seen[c.String()] = true
	}
	for s := fault.ScopeAttempt; s <= fault.ScopeRun; s++ {
		seen[s.String()] = true
	}
	if len(seen) != 9 {
		t.Errorf("names are used twice: %v", seen)
	}
}

func TestTimeoutIsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := fault.WithTimeout(t.Context(), "command-timeout", time.Minute, "command")
		defer cancel()
		if fault.Cause(ctx) != nil {
			t.Error("a living context has a cause")
		}
		<-ctx.Done()
		var limit *fault.Timeout
		err := fault.Cause(ctx)
		if !errors.As(err, &limit) || limit.Limit != "command-timeout" || limit.Value != time.Minute || limit.Layer != "command" {
			t.Errorf("cause %v", err)
		}
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			t.Errorf("%v is no deadline", err)
		}
		for _, part := range []string{"command-timeout", "1m0s", "set by command"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not tell %q", err, part)
			}
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(config)
	if got := fault.Cause(ctx); got != error(config) {
		t.Errorf("cause %v", got)
	}
}

func TestCaught(t *testing.T) {
	if err := fault.Caught(func() error { return nil }); err != nil {
		t.Error(err)
	}
	own := errors.New("own")
	if err := fault.Caught(func() error { return own }); err != own {
		t.Error(err)
	}
	if err := fault.Caught(func() error { panic("no such field") }); fault.CodeOf(err) != "panic" || !strings.HasPrefix(err.Error(), "panic: no such field") {
		t.Error(err)
	}
}
