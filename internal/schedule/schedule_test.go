package schedule

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work is a job that runs for d and notes how many of each token run at once.
type meter struct {
	mu      sync.Mutex
	now     map[string]int
	peak    map[string]int
	started []int
}

func (m *meter) job(id int, d time.Duration, tokens ...string) Job {
	return Job{Tokens: tokens, Run: func(context.Context, *Lease) {
		m.mu.Lock()
		m.started = append(m.started, id)
		for _, t := range tokens {
			m.now[t]++
			m.peak[t] = max(m.peak[t], m.now[t])
		}
		m.mu.Unlock()
		time.Sleep(d)
		m.mu.Lock()
		for _, t := range tokens {
			m.now[t]--
		}
		m.mu.Unlock()
	}}
}

func newMeter() *meter { return &meter{now: map[string]int{}, peak: map[string]int{}} }

func TestWidthsAreKeptAndUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		var jobs []Job
		for i := range 20 {
			jobs = append(jobs, m.job(i, time.Second, "all", "experiment:serial"))
		}
		for i := range 20 {
			jobs = append(jobs, m.job(20+i, time.Second, "all", "experiment:a"))
		}
		s := New(map[string]int{"all": 4, "experiment:serial": 1})
		begin := time.Now()
		s.Run(t.Context(), nil, jobs)
		if m.peak["all"] != 4 || m.peak["experiment:serial"] != 1 {
			t.Errorf("peaks %v, want all 4 and serial 1", m.peak)
		}
		// One serial lane of 20 s beside 20 jobs on the other three slots.
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("took %s; a blocked experiment held slots of others", took)
		}
		if s.Free("all") != 4 || s.Free("experiment:serial") != 1 {
			t.Errorf("permits are missing: all %d, serial %d", s.Free("all"), s.Free("experiment:serial"))
		}
	})
}

func TestWidthOneKeepsListOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		var jobs []Job
		for i := range 10 {
			tokens := []string{"all", "experiment:a"}
			if i%2 == 1 {
				tokens[1] = "experiment:b"
			}
			jobs = append(jobs, m.job(i, time.Second, tokens...))
		}
		New(map[string]int{"all": 1}).Run(t.Context(), nil, jobs)
		if !slices.IsSorted(m.started) || len(m.started) != 10 {
			t.Errorf("started in order %v", m.started)
		}
	})
}

func TestYieldFreesTheSlotAndKeepsTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		var gate atomic.Int32
		backoff := func(_ context.Context, l *Lease) {
			if gate.Add(1) != 1 {
				t.Error("two attempts of a serial experiment at once")
			}
			err := l.Yield(t.Context(), []string{"all"}, func(context.Context) error { time.Sleep(10 * time.Second); return nil })
			if err != nil {
				t.Error(err)
			}
			gate.Add(-1)
		}
		jobs := []Job{
			{Tokens: []string{"all", "experiment:serial"}, Run: backoff},
			{Tokens: []string{"all", "experiment:serial"}, Run: backoff},
		}
		for i := range 10 {
			jobs = append(jobs, m.job(i, time.Second, "all"))
		}
		s := New(map[string]int{"all": 1, "experiment:serial": 1})
		begin := time.Now()
		s.Run(t.Context(), nil, jobs)
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("took %s: the ten others must run during the first back-off", took)
		}
		if s.Free("all") != 1 || s.Free("experiment:serial") != 1 {
			t.Error("permits are missing")
		}
	})
}

func TestInterruptDuringBackoffLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("interrupted")
		s := New(map[string]int{"all": 1})
		var got error
		jobs := []Job{{Tokens: []string{"all"}, Run: func(ctx context.Context, l *Lease) {
			got = l.Yield(ctx, []string{"all"}, func(ctx context.Context) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				return nil
			})
		}}, {Tokens: []string{"all"}, Run: func(ctx context.Context, _ *Lease) { <-ctx.Done() }}}
		time.AfterFunc(time.Second, func() { cancel(why) })
		begin := time.Now()
		s.Run(ctx, ctx.Done(), jobs)
		if took := time.Since(begin); took != time.Second || !errors.Is(got, why) {
			t.Errorf("took %s, got %v", took, got)
		}
		if s.Free("all") != 1 {
			t.Errorf("free %d", s.Free("all"))
		}
	})
}

func TestStopDropsWhatHasNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		var ran, dropped atomic.Int32
		var jobs []Job
		for range 10 {
			jobs = append(jobs, Job{Tokens: []string{"all"}, Dropped: func() { dropped.Add(1) }, Run: func(context.Context, *Lease) {
				ran.Add(1)
				time.Sleep(time.Second)
			}})
		}
		time.AfterFunc(1500*time.Millisecond, func() { close(stop) })
		New(map[string]int{"all": 2}).Run(t.Context(), stop, jobs)
		if ran.Load() != 4 || dropped.Load() != 6 {
			t.Errorf("ran %d, dropped %d; want 4 and 6", ran.Load(), dropped.Load())
		}
	})
}

// What was stopped before it began starts nothing, however many permits are free.
func TestStoppedBeforeTheStart(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	var ran, dropped atomic.Int32
	var jobs []Job
	for range 10 {
		jobs = append(jobs, Job{Tokens: []string{"all"}, Dropped: func() { dropped.Add(1) }, Run: func(context.Context, *Lease) { ran.Add(1) }})
	}
	New(map[string]int{"all": 2}).Run(t.Context(), stop, jobs)
	if ran.Load() != 0 || dropped.Load() != 10 {
		t.Errorf("ran %d, dropped %d; want 0 and 10", ran.Load(), dropped.Load())
	}
}

// Whatever mix of refusals, yields, stops and ends: every job ends in exactly
// one way, no width is exceeded, and all permits come back.
func TestPermitsAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seedJobs := rapid.SliceOfN(rapid.IntRange(0, 1<<20), 0, 40).Draw(rt, "jobs")
		width := rapid.IntRange(1, 4).Draw(rt, "width")
		stopAfter := rapid.IntRange(0, 30).Draw(rt, "stop")
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Duration(stopAfter)*time.Second+1, func() { close(stop) })
			if stopAfter%3 == 0 {
				time.AfterFunc(time.Duration(stopAfter)*time.Second+2, cancel)
			}
			var ran, dropped, refused, active, over atomic.Int32
			jobs := make([]Job, len(seedJobs))
			for i, seed := range seedJobs {
				tokens := []string{"all", []string{"experiment:a", "experiment:b", "experiment:c"}[seed%3]}
				jobs[i] = Job{
					Tokens: tokens,
					Admit: func() bool {
						if seed%7 == 0 {
							refused.Add(1)
							return false
						}
						return true
					},
					Dropped: func() { dropped.Add(1) },
					Run: func(ctx context.Context, l *Lease) {
						ran.Add(1)
						if int(active.Add(1)) > width {
							over.Add(1)
						}
						time.Sleep(time.Duration(seed%5) * time.Second)
						if seed%2 == 0 {
							active.Add(-1)
							if l.Yield(ctx, tokens[:1], func(ctx context.Context) error {
								select {
								case <-ctx.Done():
								case <-time.After(time.Duration(seed%4) * time.Second):
								}
								return nil
							}) != nil {
								return
							}
							if int(active.Add(1)) > width {
								over.Add(1)
							}
						}
						active.Add(-1)
					},
				}
			}
			s := New(map[string]int{"all": width, "experiment:a": 1})
			s.Run(ctx, stop, jobs)
			if got := int(ran.Load() + dropped.Load() + refused.Load()); got != len(jobs) {
				t.Errorf("%d of %d jobs ended", got, len(jobs))
			}
			if over.Load() > 0 {
				t.Error("the width was exceeded")
			}
			if s.Free("all") != width || s.Free("experiment:a") != 1 {
				t.Errorf("permits: all %d of %d, a %d of 1", s.Free("all"), width, s.Free("experiment:a"))
			}
			time.Sleep(time.Hour) // let the timers of this bubble end
		})
	})
}
