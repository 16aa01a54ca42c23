// Package schedule decides which job starts next. It knows tokens, priorities
// and permission to start, and neither sandboxes nor agents.
//
// A job needs one permit of each of its tokens, such as "all", "experiment:x"
// or "exclusive:local", and gets all of them at once or none: nobody holds one
// while waiting for another, so there is no deadlock, and a slot is held by
// running work only. Jobs with equal tokens start in list order; among jobs
// that could start, the one earliest in the list does.
package schedule

import (
	"context"
	"strings"
	"sync"
)

// Job is one piece of work.
type Job struct {
	// Tokens are the permits that the job needs. A token without a capacity is
	// unlimited.
	Tokens []string
	// Admit is asked once, when the job's turn has come and its permits are
	// held; false drops the job. nil admits.
	Admit func() bool
	// Run does the work. ctx is that of Run of the scheduler.
	Run func(ctx context.Context, l *Lease)
	// Dropped is called instead of Run when the scheduler stops before the
	// job's turn has come.
	Dropped func()
}

// Scheduler hands out permits. Use one per invocation.
type Scheduler struct {
	mu   sync.Mutex
	free map[string]int
	// lanes are queues of jobs with equal tokens: only their heads compete.
	lanes   []*lane
	waiting []*waiter // leases that want their permits back, before all jobs
	running sync.WaitGroup
	changed chan struct{}
}

type lane struct {
	tokens []string
	jobs   []item
}

type item struct {
	at  int // place in the list
	job Job
}

type waiter struct {
	tokens []string
	ready  chan struct{}
}

// New returns a scheduler with the given capacity per token.
func New(capacity map[string]int) *Scheduler {
	s := &Scheduler{free: map[string]int{}, changed: make(chan struct{}, 1)}
	for k, v := range capacity {
		s.free[k] = v
	}
	return s
}

// Run starts the jobs as their permits allow and returns when all have ended or
// were dropped. When stop is closed nothing more starts; running jobs are
// waited for. ctx is handed to the jobs and stops nothing by itself.
func (s *Scheduler) Run(ctx context.Context, stop <-chan struct{}, jobs []Job) {
	s.mu.Lock()
	byTokens := map[string]*lane{}
	for i, j := range jobs {
		key := strings.Join(j.Tokens, "\x00")
		l := byTokens[key]
		if l == nil {
			l = &lane{tokens: j.Tokens}
			byTokens[key] = l
			s.lanes = append(s.lanes, l)
		}
		l.jobs = append(l.jobs, item{i, j})
	}
	s.mu.Unlock()
	for {
		select {
		case <-stop: // also when permits are free
			s.drop()
		default:
		}
		it, ok, pending := s.next()
		if !pending {
			break
		}
		if ok {
			s.start(ctx, it)
			continue
		}
		select {
		case <-s.changed:
		case <-stop:
			s.drop()
		}
	}
	s.running.Wait()
}

// next takes the earliest job whose permits are free, with its permits.
// pending is false when no job is left.
func (s *Scheduler) next() (it item, ok, pending bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *lane
	for _, l := range s.lanes {
		if len(l.jobs) == 0 {
			continue
		}
		pending = true
		if s.available(l.tokens) && (best == nil || l.jobs[0].at < best.jobs[0].at) {
			best = l
		}
	}
	if best == nil {
		return item{}, false, pending
	}
	it, best.jobs = best.jobs[0], best.jobs[1:]
	s.take(it.job.Tokens)
	return it, true, true
}

func (s *Scheduler) start(ctx context.Context, it item) {
	if it.job.Admit != nil && !it.job.Admit() {
		s.give(it.job.Tokens)
		return
	}
	s.running.Go(func() {
		l := &Lease{s: s, held: it.job.Tokens}
		defer l.release()
		it.job.Run(ctx, l)
	})
}

// drop ends every job that has not started.
func (s *Scheduler) drop() {
	s.mu.Lock()
	var rest []item
	for _, l := range s.lanes {
		rest = append(rest, l.jobs...)
		l.jobs = nil
	}
	s.mu.Unlock()
	for _, it := range rest {
		if it.job.Dropped != nil {
			it.job.Dropped()
		}
	}
}

func (s *Scheduler) available(tokens []string) bool {
	for _, t := range tokens {
		if n, limited := s.free[t]; limited && n <= 0 {
			return false
		}
	}
	return true
}

func (s *Scheduler) take(tokens []string) {
	for _, t := range tokens {
		if _, limited := s.free[t]; limited {
			s.free[t]--
		}
	}
}

// give returns permits, serves those who wait to go on, and wakes the loop.
func (s *Scheduler) give(tokens []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tokens {
		if _, limited := s.free[t]; limited {
			s.free[t]++
		}
	}
	kept := s.waiting[:0]
	for _, w := range s.waiting {
		if s.available(w.tokens) {
			s.take(w.tokens)
			close(w.ready)
		} else {
			kept = append(kept, w)
		}
	}
	s.waiting = kept
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Free returns the free permits of a token; equal to its capacity when nothing
// runs.
func (s *Scheduler) Free(token string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free[token]
}

// Lease is the permits of a running job.
type Lease struct {
	s    *Scheduler
	mu   sync.Mutex
	held []string
}

func (l *Lease) release() {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	l.s.give(held)
}

// Yield gives the named permits back while wait runs, and takes them again
// before it returns. When ctx ends it returns at once without them; the job
// then only cleans up. Permits that are not named stay held: a serial
// experiment keeps its gate whatever its attempts wait for.
func (l *Lease) Yield(ctx context.Context, tokens []string, wait func(context.Context) error) error {
	given := l.without(tokens)
	err := wait(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := &waiter{tokens: given, ready: make(chan struct{})}
	l.s.mu.Lock()
	if l.s.available(given) {
		l.s.take(given)
		close(w.ready)
	} else {
		l.s.waiting = append(l.s.waiting, w)
	}
	l.s.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		if l.s.forget(w) {
			return context.Cause(ctx)
		}
		<-w.ready // it was served in the same instant
	}
	l.mu.Lock()
	l.held = append(l.held, given...)
	l.mu.Unlock()
	return err
}

// without takes those of tokens that are held out of the lease and frees them.
func (l *Lease) without(tokens []string) []string {
	l.mu.Lock()
	var given, kept []string
	for _, h := range l.held {
		found := false
		for _, t := range tokens {
			found = found || t == h
		}
		if found {
			given = append(given, h)
		} else {
			kept = append(kept, h)
		}
	}
	l.held = kept
	l.mu.Unlock()
	l.s.give(given)
	return given
}

// forget removes a waiter that was not served yet.
func (s *Scheduler) forget(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.waiting {
		if o == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return true
		}
	}
	return false
}
