package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"assay"
	"assay/agent/script"
	"assay/fault"
	"assay/internal/event"
	"assay/record"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestEverySlotWithoutAStartPointIsErroredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := fake.New(fake.Script{Faults: fake.Faults{Prepare: fake.Fault{Config: "step 3 failed", Stage: "dockerfile"}}})
		st := play(t, one(assay.Experiment{Attempts: 5, MaxConcurrency: 1}, assay.Eval{ID: "b", Prompt: "go", Sandbox: broken.Layer()}), setup{})
		if len(st.attempts) != 5 || len(st.ends[0].NotRun) != 0 || len(st.ends[0].Diagnostics) != 0 {
			t.Errorf("%d attempts, %d not run, diagnostics %+v", len(st.attempts), len(st.ends[0].NotRun), st.ends[0].Diagnostics)
		}
		st = play(t, one(assay.Experiment{Attempts: 5, MaxConcurrency: 1, Sandbox: fake.New(fake.Script{}).Layer(), Setup: func(context.Context, sandbox.Notes) error { return errors.New("port taken") }}, hello("a")), setup{})
		if len(st.attempts) != 5 || len(st.ends[0].NotRun) != 0 {
			t.Errorf("a failed setup: %d attempts, %d not run", len(st.attempts), len(st.ends[0].NotRun))
		}
	})
}

// Hooks that ignore their context are left behind, and the run still ends as it
// should.
func TestExperimentHooksThatDoNotEnd(t *testing.T) {
	for name, c := range map[string]struct {
		hangIn    string
		interrupt []time.Duration
		took      time.Duration
		completed record.Completion
		torn      bool
	}{
		"setup, interrupted": {"setup", []time.Duration{10 * time.Second}, 14 * time.Second, record.Interrupted, true},
		"teardown":           {"teardown", nil, 34 * time.Second, record.RunFailed, true},
		"teardown, forced":   {"teardown", []time.Duration{5 * time.Second, 10 * time.Second}, 24 * time.Second, record.Interrupted, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				var torn atomic.Bool
				hook := func(which string) assay.HostHook {
					return func(context.Context, sandbox.Notes) error {
						if which == "teardown" {
							torn.Store(true)
						}
						if which == c.hangIn {
							<-release
						}
						return nil
					}
				}
				st := play(t, one(assay.Experiment{Sandbox: fake.New(fake.Script{}).Layer(), Setup: hook("setup"), Teardown: hook("teardown")}, hello("a")), setup{interrupt: c.interrupt})
				if st.took != c.took || torn.Load() != c.torn {
					t.Errorf("took %s, want %s; torn down: %v", st.took, c.took, torn.Load())
				}
				if len(st.ends) != 1 || st.ends[0] == nil || st.ends[0].Completion != c.completed {
					t.Errorf("ends %+v, want %s", st.ends, c.completed)
				}
				if c.hangIn == "teardown" && (st.ends[0].Error == nil || st.ends[0].Error.Code != "experiment-teardown-failed") {
					t.Errorf("error %+v", st.ends[0].Error)
				}
				close(release)
				synctest.Wait()
			})
		})
	}
}

// The teardown of one experiment holds no slot: another goes on meanwhile, also
// when the last slot of the first one was never started.
// A second signal stops the sandboxes at once. What an experiment set up outside
// of them is still released, in less time.
func TestForcedExperimentStillReleasesWhatItSetUp(t *testing.T) {
	for name, c := range map[string]struct {
		needs, took time.Duration
		released    bool
	}{
		"in time":  {8 * time.Second, 4*time.Second + 8*time.Second, true},
		"too long": {time.Minute, 5*time.Second + 10*time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				released := false
				st := play(t, one(assay.Experiment{
					Sandbox: fake.New(fake.Script{}).Layer(), Agent: busy{d: time.Hour},
					Setup: func(context.Context, sandbox.Notes) error { return nil },
					Teardown: func(ctx context.Context, _ sandbox.Notes) error {
						select {
						case <-time.After(c.needs):
							released = true
							return nil
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					},
				}, hello("a")), setup{interrupt: []time.Duration{4 * time.Second, 5 * time.Second}})
				if released != c.released || st.took != c.took {
					t.Errorf("released %v after %s, want %v after %s", released, st.took, c.released, c.took)
				}
				failed := st.ends[0].Error != nil && st.ends[0].Error.Code == "experiment-teardown-failed"
				if failed == c.released || st.ends[0].Completion != record.Interrupted {
					t.Errorf("the run ended %s with %+v", st.ends[0].Completion, st.ends[0].Error)
				}
			})
		})
	}
}

func TestTeardownHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := fake.New(fake.Script{}).Layer()
		slow := func(ctx context.Context, _ sandbox.Notes) error {
			select {
			case <-time.After(20 * time.Second):
			case <-ctx.Done():
			}
			return nil
		}
		setUp := func(context.Context, sandbox.Notes) error { time.Sleep(time.Second); return nil }
		suite := assay.Suite{Evals: []assay.Eval{hello("e")}, Experiments: []assay.Experiment{
			{ID: "first", Agent: busy{d: time.Second}, Sandbox: layer, Attempts: 3, EarlyExit: true, Setup: setUp, Teardown: slow},
			{ID: "second", Agent: busy{d: 10 * time.Second}, Sandbox: layer, Attempts: 2},
		}}
		s := setup{}
		s.sel.MaxConcurrency = 1
		st := play(t, suite, s)
		// During the setup the second experiment takes the slot for 10 s. Then
		// the first has its 1 s and 20 s of teardown, and the second goes on.
		if want := 31 * time.Second; st.took != want {
			t.Errorf("took %s, want %s", st.took, want)
		}
	})
}

// Slots that wait for the setup were admitted before any result was there.
func TestSlotsThatWaitedForTheSetupAreAdmittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		setUp := func(context.Context, sandbox.Notes) error { time.Sleep(time.Second); return nil }
		cost := 3.0
		layer := fake.New(fake.Script{}).Layer()
		s := setup{}
		s.sel.MaxConcurrency = 1
		for name, c := range map[string]struct {
			x      assay.Experiment
			ran    int
			reason string
		}{
			"early exit": {assay.Experiment{Agent: script.Nop{}, EarlyExit: true}, 1, "early-exit"},
			"budget":     {assay.Experiment{Agent: priced{&cost}, Budget: 5}, 2, "budget"},
		} {
			c.x.Sandbox, c.x.Attempts, c.x.Setup = layer, 5, setUp
			st := play(t, one(c.x, hello("e")), s)
			notRun := st.ends[0].NotRun
			if len(st.attempts) != c.ran || len(notRun) != 5-c.ran || notRun[0].Reason != c.reason {
				t.Errorf("%s: %d attempts, not run: %+v", name, len(st.attempts), notRun)
			}
		}
	})
}

func TestExperimentHooksTellNoSecret(t *testing.T) {
	const key = "sk-live-0123456789abcdef"
	hook := func(_ context.Context, n sandbox.Notes) error {
		n.Progress(sandbox.Progress{Message: "with " + key})
		if err := n.Diagnostic(sandbox.Diagnostic{Code: "leak", Level: sandbox.Warning, Message: "key " + key, Data: []string{key}}); err != nil {
			return err
		}
		_ = n.Fact("com.acme.key", key)
		return errors.New("refused " + key)
	}
	st := play(t, one(assay.Experiment{
		Agent: script.Nop{}, Sandbox: fake.New(fake.Script{}).Layer().SecretEnv("KEY"), Teardown: hook,
		SetupCommands: []sandbox.Command{{Shell: "echo token " + "$T; exit 1", Env: map[string]string{"T": key}}},
	}, hello("a")), setup{env: map[string]string{"KEY": key}})
	var all strings.Builder
	for _, v := range []any{st.events, st.ends, st.attempts} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	if i := strings.Index(all.String(), key); i >= 0 {
		t.Errorf("the secret is told: …%s", all.String()[max(0, i-200):i])
	}
	if n := strings.Count(all.String(), "redacted"); n < 7 {
		t.Errorf("%d places are masked", n)
	}
}

func TestARunThatCannotBeDeclaredStartsNothing(t *testing.T) {
	p := fake.New(fake.Script{})
	suite := assay.Suite{Evals: []assay.Eval{hello("e")}, Experiments: []assay.Experiment{
		{ID: "a", Agent: script.Nop{}, Sandbox: p.Layer()},
		{ID: "b", Agent: script.Nop{}, Sandbox: p.Layer(), Labels: map[string]any{"f": func() {}}},
	}}
	st := play(t, suite, setup{})
	if fault.ClassOf(st.err) != fault.Config || fault.FixOf(st.err) == "" || p.Stats().Creates != 0 {
		t.Errorf("error %v, %d sandboxes", st.err, p.Stats().Creates)
	}
	if len(st.ends) != 1 || st.ends[0] == nil || st.ends[0].Completion != record.RunFailed || len(st.ends[0].NotRun) != 1 {
		t.Errorf("ends %+v", st.ends)
	}
	if slices.ContainsFunc(st.events, func(e event.Event) bool { _, ok := e.(event.Start); return ok }) {
		t.Error("a start was told")
	}
}
