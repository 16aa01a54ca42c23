package bake_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/bake"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is a provider whose check and preparation are functions.
type provider struct {
	sandbox.Provider // nil: nothing else is called
	kind             string
	check            func(ctx context.Context) error
	prepare          func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error)
	classes          map[error]fault.Class
}

func (p *provider) Check(ctx context.Context) error { return p.check(ctx) }

func (p *provider) Prepare(ctx context.Context, _ sandbox.Template, _ sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	return p.prepare(ctx, s)
}

func (p *provider) Classify(err error) fault.Class {
	for e, c := range p.classes {
		if errors.Is(err, e) {
			return c
		}
	}
	return fault.Unknown
}

var (
	errBusy  = errors.New("503 busy")
	errToken = errors.New("401 token")
	errDisk  = errors.New("no space left")
	errOdd   = errors.New("odd")
	classes  = map[error]fault.Class{errBusy: fault.Transient, errToken: fault.Config, errDisk: fault.Resource}
)

func environment(p *provider, key string) *plan.Environment {
	p.classes = classes
	return &plan.Environment{Provider: p, Info: sandbox.Info{Kind: or(p.kind, "kind")}, Key: sandbox.Key(key), Levels: []string{"experiment x"}}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// log is a sink that remembers.
type log struct {
	mu  sync.Mutex
	all []event.Event
}

func (l *log) sink(e event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func TestTransientStepsAreRepeatedAfterTwoAndEightSeconds(t *testing.T) {
	for _, c := range []struct {
		name  string
		errs  []error
		tries []time.Duration // when each try began
		class fault.Class
	}{
		{"works", nil, []time.Duration{0}, 0},
		{"once", []error{errBusy}, []time.Duration{0, 2 * time.Second}, 0},
		{"twice", []error{errBusy, errBusy}, []time.Duration{0, 2 * time.Second, 10 * time.Second}, 0},
		{"always", []error{errBusy, errBusy, errBusy, errBusy}, []time.Duration{0, 2 * time.Second, 10 * time.Second}, fault.Transient},
		{"config", []error{errToken}, []time.Duration{0}, fault.Config},
		{"resource", []error{errDisk}, []time.Duration{0}, fault.Resource},
		{"unknown", []error{errOdd}, []time.Duration{0}, fault.Unknown},
		{"transient, then config", []error{errBusy, errToken}, []time.Duration{0, 2 * time.Second}, fault.Config},
		{"judged by the error itself", []error{&fault.Error{Class: fault.Transient, Err: errOdd}}, []time.Duration{0, 2 * time.Second}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, l := time.Now(), &log{}
				var tries []time.Duration
				p := &provider{prepare: func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error) {
					return sandbox.Prepared{Ref: "made"}, s.Do(ctx, "pull", func(context.Context) error {
						tries = append(tries, time.Since(begin))
						if n := len(tries); n <= len(c.errs) {
							return c.errs[n-1]
						}
						return nil
					})
				}}
				res := bake.New(l.sink).Prepare(t.Context(), environment(p, "k"))
				if !slices.Equal(tries, c.tries) {
					t.Errorf("tries at %v, want %v", tries, c.tries)
				}
				failed := c.name != "works" && len(c.errs) >= len(c.tries)
				if (res.Err != nil) != failed {
					t.Fatalf("result %+v", res)
				}
				if !failed {
					if res.Prepared.Ref != "made" || res.Info != nil {
						t.Errorf("result %+v", res)
					}
					return
				}
				if res.Err.Class != c.class || res.Err.Code != "sandbox.prepare-failed" || res.Info.Stage != "pull" || res.Info.Class != c.class.String() || !slices.Equal(res.Info.Levels, []string{"experiment x"}) {
					t.Errorf("error %+v, info %+v", res.Err, res.Info)
				}
				if !errors.Is(res.Err, c.errs[len(tries)-1]) || !strings.Contains(res.Info.Cause, c.errs[len(tries)-1].Error()) {
					t.Errorf("the cause is lost: %v, %q", res.Err, res.Info.Cause)
				}
				last, ok := l.all[len(l.all)-1].(event.Prepare)
				if !ok || last.Status != event.Broken || last.Stage != "pull" || last.Headline != res.Info.Headline {
					t.Errorf("the last event is %+v", l.all[len(l.all)-1])
				}
			})
		})
	}
}

func TestTheEndOfTheRunEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the run was interrupted")
		time.AfterFunc(5*time.Second, func() { cancel(why) })
		begin, tries := time.Now(), 0
		p := &provider{prepare: func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error) {
			return sandbox.Prepared{}, s.Do(ctx, "pull", func(context.Context) error { tries++; return errBusy })
		}}
		res := bake.New((&log{}).sink).Prepare(ctx, environment(p, "k"))
		if took := time.Since(begin); took != 5*time.Second || tries != 2 {
			t.Errorf("ended after %s and %d tries", took, tries)
		}
		if res.Err == nil || res.Err.Class != fault.Canceled || !errors.Is(res.Err, why) || !errors.Is(res.Err, errBusy) {
			t.Errorf("error %v, class %v", res.Err, res.Err.Class)
		}
	})
}

func TestThreeAtATimeAndEachOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most, calls := 0, 0, 0
		p := &provider{prepare: func(context.Context, sandbox.Steps) (sandbox.Prepared, error) {
			mu.Lock()
			now, calls = now+1, calls+1
			most = max(most, now)
			n := calls
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			now--
			mu.Unlock()
			return sandbox.Prepared{Ref: fmt.Sprint(n)}, nil
		}}
		var envs []*plan.Environment
		for i := range 7 {
			envs = append(envs, environment(p, fmt.Sprint(i)))
		}
		o, begin := bake.New((&log{}).sink), time.Now()
		// Each start point is asked for by several attempts at once.
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { o.PrepareAll(t.Context(), envs) })
		}
		wg.Wait()
		if most != bake.Width || calls != len(envs) || time.Since(begin) != 3*time.Minute {
			t.Errorf("%d at once, %d calls, %s; want %d, %d, 3m", most, calls, time.Since(begin), bake.Width, len(envs))
		}
		first := o.Prepare(t.Context(), envs[0])
		if again := o.Prepare(t.Context(), envs[0]); again.Prepared.Ref != first.Prepared.Ref || calls != len(envs) {
			t.Errorf("a later call made it anew: %+v, %+v", first, again)
		}
	})
}

func TestFailureIsRememberedAndStaysAlone(t *testing.T) {
	calls := 0
	bad := environment(&provider{prepare: func(context.Context, sandbox.Steps) (sandbox.Prepared, error) {
		calls++
		return sandbox.Prepared{}, &fault.Error{Class: fault.Config, Code: "dockerfile", Fix: "Correct line 3.", Stage: "dockerfile", Err: errOdd}
	}}, "bad")
	good := environment(&provider{prepare: func(context.Context, sandbox.Steps) (sandbox.Prepared, error) {
		return sandbox.Prepared{Ref: "good"}, nil
	}}, "good")
	o := bake.New((&log{}).sink)
	o.PrepareAll(t.Context(), []*plan.Environment{bad, good})
	for range 3 {
		res := o.Prepare(t.Context(), bad)
		if res.Err == nil || res.Err.Fix != "Correct line 3." || res.Info.Stage != "dockerfile" || fault.StageOf(res.Err) != "dockerfile" {
			t.Errorf("result %+v, info %+v", res, res.Info)
		}
	}
	if calls != 1 {
		t.Errorf("what failed was tried %d times", calls)
	}
	if res := o.Prepare(t.Context(), good); res.Err != nil || res.Prepared.Ref != "good" {
		t.Errorf("another start point failed too: %+v", res)
	}
}

func TestHeadlineNamesWhatRanOut(t *testing.T) {
	for code, want := range map[string]string{"oom": "resource: oom at build", "enospc": "resource: enospc at build", "": "resource at build"} {
		p := &provider{prepare: func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error) {
			return sandbox.Prepared{}, s.Do(ctx, "build", func(context.Context) error { return &fault.Error{Class: fault.Resource, Code: code, Err: errOdd} })
		}}
		res := bake.New((&log{}).sink).Prepare(t.Context(), environment(p, "k"))
		if res.Info == nil || !strings.Contains(res.Info.Headline, want) {
			t.Errorf("code %q: %+v, want a headline with %q", code, res.Info, want)
		}
	}
}

func TestPanicsAreFailures(t *testing.T) {
	boom := &provider{
		check:   func(context.Context) error { panic("boom in check") },
		prepare: func(context.Context, sandbox.Steps) (sandbox.Prepared, error) { panic("boom in prepare") },
	}
	env := environment(boom, "k")
	res := bake.New((&log{}).sink).Prepare(t.Context(), env)
	if res.Err == nil || !strings.Contains(res.Err.Error(), "boom in prepare") || fault.CodeOf(res.Err.Err) != "panic" {
		t.Errorf("result %+v", res)
	}
	err := bake.CheckAll(t.Context(), []*plan.Environment{env}, (&log{}).sink)
	if err == nil || !strings.Contains(err.Error(), "boom in check") || fault.ScopeOf(err) != fault.ScopeRun {
		t.Errorf("error %v", err)
	}
}

func TestCheckAll(t *testing.T) {
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, c := range []struct {
		name  string
		check func(tries int) func(context.Context) error
		class fault.Class
		code  string
		tries int
		took  time.Duration
	}{
		{"works", func(int) func(context.Context) error { return func(context.Context) error { return nil } }, 0, "", 1, 0},
		{"config", func(int) func(context.Context) error { return func(context.Context) error { return errToken } }, fault.Config, "sandbox.check-failed", 1, 0},
		{"unknown", func(int) func(context.Context) error { return func(context.Context) error { return errOdd } }, fault.Unknown, "sandbox.check-failed", 1, 0},
		{"transient for ever", func(int) func(context.Context) error { return func(context.Context) error { return errBusy } }, fault.Transient, "sandbox.check-failed", 3, 10 * time.Second},
		{"transient once", func(n int) func(context.Context) error {
			return func(context.Context) error {
				if n == 1 {
					return errBusy
				}
				return nil
			}
		}, 0, "", 2, 2 * time.Second},
		{"gives up with its context", func(int) func(context.Context) error { return hang }, fault.Config, "sandbox.check-timeout", 1, bake.CheckLimit},
		{"calls its own giving up transient", func(int) func(context.Context) error {
			return func(ctx context.Context) error { _ = hang(ctx); return errBusy }
		}, fault.Config, "sandbox.check-timeout", 1, bake.CheckLimit},
		{"never answers", func(int) func(context.Context) error {
			return func(context.Context) error { time.Sleep(time.Hour); return nil }
		}, fault.Config, "sandbox.check-timeout", 1, bake.CheckLimit + 500*time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, begin := &log{}, time.Now()
				var asked atomic.Int64
				p := &provider{check: func(ctx context.Context) error { return c.check(int(asked.Add(1)))(ctx) }}
				err := bake.CheckAll(t.Context(), []*plan.Environment{environment(p, "a"), environment(p, "b")}, l.sink)
				tries := int(asked.Load())
				if took := time.Since(begin); took != c.took || tries != c.tries {
					t.Errorf("%d tries in %s, want %d in %s", tries, took, c.tries, c.took)
				}
				if fault.CodeOf(err) != c.code || fault.ClassOf(err) != c.class {
					t.Errorf("error %v, code %q, class %s; want %q, %s", err, fault.CodeOf(err), fault.ClassOf(err), c.code, c.class)
				}
				if c.code == "sandbox.check-timeout" && (fault.FixOf(err) == "" || time.Since(begin) >= 10*time.Second) {
					t.Errorf("a stalled engine is told after %s with the remedy %q", time.Since(begin), fault.FixOf(err))
				}
				want := event.Done
				if c.code != "" {
					want = event.Broken
				}
				if last, ok := l.all[len(l.all)-1].(event.Check); !ok || last.Status != want || len(l.all) != 2 {
					t.Errorf("events %+v", l.all)
				}
				time.Sleep(2 * time.Hour) // what was left behind ends
			})
		})
	}
}

func TestCheckAllTellsEveryProvider(t *testing.T) {
	a := &provider{kind: "one", check: func(context.Context) error { return errToken }}
	b := &provider{kind: "two", check: func(context.Context) error { return errOdd }}
	err := bake.CheckAll(t.Context(), []*plan.Environment{environment(a, "1"), environment(b, "2"), environment(a, "3")}, (&log{}).sink)
	for _, want := range []string{"one", "two", "401 token", "odd"} {
		if err == nil || strings.Count(err.Error(), want) != 1 {
			t.Errorf("%v does not tell %q once", err, want)
		}
	}
}

func TestInterruptedCheckIsNoFaultOfTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(&fault.Error{Class: fault.Canceled, Code: "interrupted"}) })
		p := &provider{check: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		err := bake.CheckAll(ctx, []*plan.Environment{environment(p, "a")}, (&log{}).sink)
		if fault.ClassOf(err) != fault.Canceled || fault.CodeOf(err) != "interrupted" {
			t.Errorf("error %v, class %s, code %q", err, fault.ClassOf(err), fault.CodeOf(err))
		}
	})
}

// patient is a refusal for now.
type patient struct{ wait time.Duration }

func (p patient) Error() string             { return "429 for now" }
func (p patient) RetryAfter() time.Duration { return p.wait }

func TestTheRegistrysPatienceIsKept(t *testing.T) {
	for _, c := range []struct {
		asked time.Duration
		tries []time.Duration
	}{
		{0, []time.Duration{0, 2 * time.Second, 10 * time.Second}},
		{time.Second, []time.Duration{0, 2 * time.Second, 10 * time.Second}},
		{30 * time.Second, []time.Duration{0, 30 * time.Second, time.Minute}},
		{bake.PatienceLimit + 1, []time.Duration{0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var tries []time.Duration
			p := &provider{prepare: func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error) {
				return sandbox.Prepared{}, s.Do(ctx, "image", func(context.Context) error {
					tries = append(tries, time.Since(begin))
					return &fault.Error{Class: fault.Transient, Code: "rate", Err: patient{c.asked}}
				})
			}}
			res := bake.New((&log{}).sink).Prepare(t.Context(), environment(p, "k"))
			if !slices.Equal(tries, c.tries) || res.Info.Class != "transient" {
				t.Errorf("asked for %s: tries at %v, want %v; %+v", c.asked, tries, c.tries, res.Info)
			}
		})
	}
}

// logged is an error that brings a log.
type logged struct{ text string }

func (l logged) Error() string { return "it broke" }
func (l logged) Log() string   { return l.text }

func TestTheLogOfTheFailedStepIsKept(t *testing.T) {
	long := strings.Repeat("line\n", bake.LogLimit)
	for name, c := range map[string]struct {
		printed []string
		err     error
		want    string
	}{
		"what the error brings": {[]string{"other"}, logged{"one\n\x1b[31mtwo\x1b[0m\n"}, "one\ntwo"},
		"what was printed":      {[]string{"one", "two\nthree"}, errOdd, "one\ntwo\nthree"},
		"a progress bar":        {[]string{"10%\r50%\r99%"}, errOdd, "99%"},
		"nothing":               {nil, errOdd, ""},
		"its end":               {[]string{long + "the end"}, errOdd, "the end"},
	} {
		p := &provider{prepare: func(ctx context.Context, s sandbox.Steps) (sandbox.Prepared, error) {
			keep := s.(sandbox.LogKeeper)
			if err := s.Do(ctx, "image", func(context.Context) error { keep.Log("of a step before"); return nil }); err != nil {
				return sandbox.Prepared{}, err
			}
			return sandbox.Prepared{}, s.Do(ctx, "dockerfile", func(context.Context) error {
				for _, l := range c.printed {
					keep.Log(l)
				}
				return c.err
			})
		}}
		l := &log{}
		res := bake.New(l.sink).Prepare(t.Context(), environment(p, "k"))
		if !strings.HasSuffix(res.Info.Log, c.want) || len(res.Info.Log) > bake.LogLimit || name != "its end" && res.Info.Log != c.want {
			t.Errorf("%s: log %.100q, want %q", name, res.Info.Log, c.want)
		}
		if last := l.all[len(l.all)-1].(event.Prepare); last.Log != res.Info.Log {
			t.Errorf("%s: the event has another log: %.100q", name, last.Log)
		}
	}
}

func TestProvidersAreCheckedAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var envs []*plan.Environment
		for i := range 5 {
			envs = append(envs, environment(&provider{kind: fmt.Sprint(i), check: func(context.Context) error { time.Sleep(3 * time.Second); return nil }}, "k"))
		}
		if err := bake.CheckAll(t.Context(), envs, (&log{}).sink); err != nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}
