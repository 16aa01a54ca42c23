package attempt_test

import (
	"context"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"assay"
	"assay/agent"
	"assay/agent/script"
	"assay/fault"
	"assay/internal/attempt"
	"assay/record"
	"assay/sandbox"
	"assay/sandbox/fake"
)

// deaf is an agent that does not hear the end of its context.
type deaf struct {
	script.Agent
	release <-chan struct{}
}

func (d deaf) Send(_ context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	if err := s.Sandbox.WriteText(context.Background(), "work.txt", "done"); err != nil {
		return agent.Turn{}, err
	}
	<-d.release
	cost := 5.0
	return agent.Turn{Status: agent.Completed, Message: "late", Usage: &agent.Usage{CostUSD: &cost}}, nil
}

// waiter makes sandboxes when it is told to, whatever its context says.
type waiter struct {
	*fake.Provider
	release <-chan struct{}
	stopped *atomic.Int32
}

func (w waiter) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	<-w.release
	d, err := w.Provider.Create(context.WithoutCancel(ctx), r)
	return counted{d, w.stopped}, err
}

type counted struct {
	sandbox.Driver
	stopped *atomic.Int32
}

func (c counted) Stop(ctx context.Context) error { c.stopped.Add(1); return c.Driver.Stop(ctx) }

// deafLedger is a provider whose sandboxes, after the baseline, serve the ledger
// when they are told to.
type deafLedger struct {
	*fake.Provider
	release <-chan struct{}
}

func (p deafLedger) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	d, err := p.Provider.Create(ctx, r)
	return &deafTracker{Driver: d, release: p.release}, err
}

type deafTracker struct {
	sandbox.Driver
	release <-chan struct{}
	calls   int
}

func (d *deafTracker) Unwrap() sandbox.Driver { return d.Driver }

func (d *deafTracker) Track(_ context.Context, request []byte, response io.Writer) error {
	if d.calls++; d.calls > 1 {
		<-d.release
	}
	t, _ := sandbox.AsDriver[sandbox.Tracker](d.Driver)
	return t.Track(context.Background(), request, response)
}

// Code that ignores the attempt's deadline is left behind: the attempt ends soon
// after, as timed out, with its cleanup done and nothing changed afterwards.
func TestCodeThatIgnoresTheDeadlineIsLeftBehind(t *testing.T) {
	const limit = time.Minute
	hang := func(release <-chan struct{}) sandbox.Hook {
		return func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { <-release; return nil }
	}
	for name, c := range map[string]struct {
		suite func(p *fake.Provider, release <-chan struct{}, stopped *atomic.Int32) assay.Suite
		phase string
		took  time.Duration
	}{
		"agent": {func(p *fake.Provider, release <-chan struct{}, _ *atomic.Int32) assay.Suite {
			return assay.Suite{
				Experiments: []assay.Experiment{{ID: "x", Timeout: limit, Agent: deaf{release: release}, Sandbox: p.Layer()}},
				Evals:       []assay.Eval{{ID: "e", Prompt: "go", Checks: []assay.Check{{Succeeded: true}}}},
			}
		}, "agent.run", 4 * time.Second},
		"body": {func(p *fake.Provider, release <-chan struct{}, _ *atomic.Int32) assay.Suite {
			return assay.Suite{
				Experiments: []assay.Experiment{{ID: "x", Timeout: limit, Agent: script.Nop{}, Sandbox: p.Layer()}},
				Evals: []assay.Eval{{ID: "e", Test: func(ctx context.Context, t *assay.T) error {
					t.Send(ctx, "one")
					<-release
					t.Send(ctx, "late")
					return nil
				}}},
			}
		}, "eval.run", 5 * time.Second},
		"ledger": {func(p *fake.Provider, release <-chan struct{}, _ *atomic.Int32) assay.Suite {
			tmpl, _ := p.Layer().Template()
			tmpl.Provider = deafLedger{p, release}
			return assay.Suite{
				Experiments: []assay.Experiment{{ID: "x", Timeout: limit, Agent: deaf{}, Sandbox: sandbox.From(tmpl)}},
				Evals:       []assay.Eval{{ID: "e", Prompt: "go"}},
			}
		}, "eval.run", 5 * time.Second},
		"setup hook": {func(p *fake.Provider, release <-chan struct{}, _ *atomic.Int32) assay.Suite {
			return assay.Suite{
				Experiments: []assay.Experiment{{ID: "x", Timeout: limit, Agent: script.Nop{}, Sandbox: p.Layer().Setup(hang(release))}},
				Evals:       []assay.Eval{{ID: "e", Prompt: "go"}},
			}
		}, "sandbox.setup", 4 * time.Second},
		"create": {func(p *fake.Provider, release <-chan struct{}, stopped *atomic.Int32) assay.Suite {
			tmpl, _ := p.Layer().Template()
			tmpl.Provider = waiter{p, release, stopped}
			return assay.Suite{
				Experiments: []assay.Experiment{{ID: "x", Timeout: limit, Agent: script.Nop{}, Sandbox: sandbox.From(tmpl)}},
				Evals:       []assay.Eval{{ID: "e", Prompt: "go"}},
			}
		}, "sandbox.create", attempt.StopWatchdog},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := fake.New(fake.Script{})
				release := make(chan struct{})
				var stopped atomic.Int32
				r := newRig(t, c.suite(p, release, &stopped))
				begin := time.Now()
				res := r.run(t.Context(), r.plan.Slots()[0])
				took := time.Since(begin)
				a := res.Sealed.Attempt
				turns, usage, events := len(a.Turns), a.Usage, len(res.Sealed.Events)
				if a.Verdict != record.Errored || a.Error == nil || a.Error.Code != "attempt-deadline" || a.Error.Phase != c.phase || a.Error.Timeout == nil || a.Error.Timeout.Layer != "experiment" {
					t.Errorf("verdict %s, error %+v", a.Verdict, a.Error)
				}
				if took != limit+c.took {
					t.Errorf("it took %s, want %s more than the limit", took, c.took)
				}
				r.mu.Lock()
				shown := len(r.events)
				r.mu.Unlock()
				close(release)
				synctest.Wait()
				if a := res.Sealed.Attempt; len(a.Turns) != turns || a.Usage != usage || len(res.Sealed.Events) != events {
					t.Errorf("the sealed attempt changed: %+v", a)
				}
				if len(r.events) != shown {
					t.Errorf("%d events came after the end: %+v", len(r.events)-shown, r.events[shown:])
				}
				if left := p.Instances(""); len(left) != 0 {
					t.Errorf("%d sandboxes are left", len(left))
				}
				if name == "create" && stopped.Load() != 1 {
					t.Errorf("the late sandbox was stopped %d times", stopped.Load())
				}
			})
		})
	}
}

// What a timed-out agent did is evidence; what an interrupted one did is not
// needed, and nobody who pressed Ctrl-C waits for it.
func TestEvidenceAfterTheEnd(t *testing.T) {
	work := script.Agent{Turns: []script.Turn{{Commands: []string{"echo a >a.txt", "sleep 3600"}}}}
	suite := func(p *fake.Provider) assay.Suite {
		return assay.Suite{
			Experiments: []assay.Experiment{{ID: "x", Timeout: time.Minute, Agent: work, Sandbox: p.Layer()}},
			Evals:       []assay.Eval{{ID: "e", Prompt: "go", Checks: []assay.Check{{Changed: "a.txt"}}}},
		}
	}
	for name, after := range map[string]time.Duration{"deadline": 0, "interrupt": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, suite(fake.New(fake.Script{})))
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if after > 0 {
					time.AfterFunc(after, func() { cancel(attempt.ErrInterrupted) })
				}
				res := r.run(ctx, r.plan.Slots()[0])
				var phases []string
				for _, ph := range res.Sealed.Attempt.Phases {
					phases = append(phases, ph.Name)
				}
				timedOut := after == 0
				if res.Interrupted == timedOut || (res.Sealed.Diff != nil) != timedOut || slices.Contains(phases, "assertions.evaluate") != timedOut {
					t.Errorf("interrupted %v, diff %v, phases %q", res.Interrupted, res.Sealed.Diff, phases)
				}
				if !slices.Contains(phases, "sandbox.stop") {
					t.Errorf("phases %q", phases)
				}
			})
		})
	}
}

func TestAHookThatEndsItsGoroutineIsAnError(t *testing.T) {
	p := fake.New(fake.Script{})
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: script.Nop{}, Sandbox: p.Layer().Setup(goexit)}},
		Evals:       []assay.Eval{{ID: "e", Prompt: "go"}},
	})
	a := r.run(t.Context(), r.plan.Slots()[0]).Sealed.Attempt
	if a.Verdict != record.Errored || a.Error == nil || a.Error.Phase != "sandbox.setup" || !strings.Contains(a.Error.Message, "goroutine") {
		t.Errorf("%s %+v", a.Verdict, a.Error)
	}
}

func TestErrorTextsAreMaskedBeforeTheyAreCut(t *testing.T) {
	p := fake.New(fake.Script{})
	pad := strings.Repeat("x", 4096*2/3-10)
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: script.Nop{}, Sandbox: p.Layer().SecretEnv("KEY")}},
		Evals: []assay.Eval{{ID: "e", Test: func(context.Context, *assay.T) error {
			return &fault.Error{What: pad + secret + strings.Repeat("y", 8192)}
		}}},
	})
	r.secret = map[string]string{"KEY": secret}
	a := r.run(t.Context(), r.plan.Slots()[0]).Sealed.Attempt
	if strings.Contains(a.Error.Message, secret[:6]) || !strings.Contains(a.Error.Message, "redacted") {
		t.Errorf("message …%s…", a.Error.Message[len(pad)-20:len(pad)+60])
	}
}

func goexit(context.Context, *sandbox.Sandbox, sandbox.Notes) error {
	runtime.Goexit()
	return nil
}

// keeper is a provider whose environment outlives its sandboxes, and in which no
// command can run after the agent's turn.
type keeper struct {
	*fake.Provider
	removed *[]string
}

func (k keeper) Info() sandbox.Info {
	i := k.Provider.Info()
	i.Reset = false
	return i
}

func (k keeper) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	d, err := k.Provider.Create(ctx, r)
	return lostDriver{d, k.removed}, err
}

type lostDriver struct {
	sandbox.Driver
	removed *[]string
}

func (d lostDriver) Unwrap() sandbox.Driver { return d.Driver }

func (d lostDriver) Exec(context.Context, sandbox.Cmd) (sandbox.Exit, error) {
	return sandbox.Exit{}, sandbox.ErrUnusable
}

func (d lostDriver) Remove(_ context.Context, p string) error {
	*d.removed = append(*d.removed, p)
	return nil
}

func TestWhatLiesBesideTheAgentGoesAlsoFromALostSandbox(t *testing.T) {
	p := fake.New(fake.Script{})
	var removed []string
	tmpl, _ := p.Layer().Template()
	tmpl.Provider = keeper{p, &removed}
	r := newRig(t, assay.Suite{
		Experiments: []assay.Experiment{{ID: "x", Agent: script.Agent{Turns: []script.Turn{{Commands: []string{"true"}}}}, Sandbox: sandbox.From(tmpl)}},
		Evals:       []assay.Eval{{ID: "e", Prompt: "go"}},
	})
	a := r.run(t.Context(), r.plan.Slots()[0]).Sealed.Attempt
	if a.Verdict != record.Errored || len(removed) != 1 || !strings.HasPrefix(removed[0], "/tmp/") {
		t.Errorf("verdict %s, removed %q", a.Verdict, removed)
	}
	for _, d := range a.Diagnostics {
		if d.Code == "scratch-not-removed" {
			t.Errorf("diagnostic %+v", d)
		}
	}
}
