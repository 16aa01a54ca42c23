// Package bake makes providers ready before the first attempt: it checks each
// provider once and prepares each distinct start point once, three at a time,
// and remembers what failed.
package bake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/event"
	"assay/internal/plan"
	"assay/record"
	"assay/sandbox"
)

// Width is how many start points are prepared at once.
const Width = 3

// CheckLimit bounds one check of a provider: a stalled engine is told within
// ten seconds.
const CheckLimit = 9 * time.Second

// waits are the pauses before a transient step is repeated.
var waits = [...]time.Duration{2 * time.Second, 8 * time.Second}

// Result is what became of one start point.
type Result struct {
	Prepared sandbox.Prepared
	// Err is why there is none, or nil; Info tells it for the record.
	Err  *fault.Error
	Info *record.PrepareError
}

// CheckAll checks each provider of the environments once, all at the same time.
// It returns every failure, classed: Config is the user's to fix.
func CheckAll(ctx context.Context, envs []*plan.Environment, sink event.Sink) error {
	seen := map[sandbox.Provider]bool{}
	var first []*plan.Environment // of each provider
	for _, e := range envs {
		// A provider of an author may be a value that cannot be compared.
		if !reflect.ValueOf(e.Provider).Comparable() {
			first = append(first, e)
		} else if !seen[e.Provider] {
			seen[e.Provider] = true
			first = append(first, e)
		}
	}
	errs := make([]error, len(first))
	var wg sync.WaitGroup
	for i, e := range first {
		wg.Go(func() {
			sink(event.Check{Provider: e.Info.Kind, Status: event.Started})
			errs[i] = check(ctx, e, sink)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// check checks one provider.
func check(ctx context.Context, e *plan.Environment, sink event.Sink) error {
	err := retry(ctx, e.Provider, func(string) {}, func(ctx context.Context) error { return within(ctx, e.Provider.Check) })
	if err == nil {
		sink(event.Check{Provider: e.Info.Kind, Status: event.Done})
		return nil
	}
	j := sandbox.Judge(ctx, e.Provider, err)
	fe := &fault.Error{Class: j.Class, Code: j.Code, Fix: j.Fix, Scope: fault.ScopeRun, Stage: "check", What: "the " + e.Info.Kind + " sandbox is not ready", Err: err}
	if fe.Code == "" {
		fe.Code = "sandbox.check-failed"
	}
	sink(event.Check{Provider: e.Info.Kind, Status: event.Broken, Err: err.Error()})
	return fe
}

// within runs one check of a provider. It returns when the check does or when
// its limit ends, whichever comes first: a provider that does not answer is left
// behind, and one that gives up with its context did not answer either.
func within(ctx context.Context, f func(context.Context) error) error {
	limited, cancel := fault.WithTimeout(ctx, "check-limit", CheckLimit, "built-in")
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- &fault.Error{Code: "panic", What: fmt.Sprintf("panic while the provider was checked: %v", p)}
			}
		}()
		done <- f(limited)
	}()
	var err error
	select {
	case err = <-done:
	case <-limited.Done():
		select {
		case err = <-done:
		case <-time.After(500 * time.Millisecond):
			err = fault.Cause(limited)
		}
	}
	if err == nil || limited.Err() == nil || ctx.Err() != nil {
		return err
	}
	return &fault.Error{Class: fault.Config, Code: "sandbox.check-timeout", What: "the provider did not answer", Fix: "See whether the engine or service is up, and run `assay doctor`.", Err: err}
}

// PatienceLimit is the longest wait that a provider can ask for before another
// try; one that asks for more fails at once.
const PatienceLimit = 10 * time.Minute

// retry repeats a step that fails transiently, after 2 s and after 8 s, or after
// what the error asks for where that is longer. tell hears of the waiting.
func retry(ctx context.Context, p sandbox.Provider, tell func(string), step func(context.Context) error) error {
	for i := 0; ; i++ {
		err := step(ctx)
		if err == nil || i == len(waits) || sandbox.Judge(ctx, p, err).Class != fault.Transient {
			return err
		}
		wait := waits[i]
		var patient sandbox.Patience
		if errors.As(err, &patient) {
			wait = max(wait, patient.RetryAfter())
		}
		if wait > PatienceLimit {
			return err
		}
		tell(fmt.Sprintf("trying again in %s: %s", wait, sandbox.Tail(err.Error(), 200)))
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", fault.Cause(ctx), err)
		}
	}
}

// steps runs the slow steps of one preparation.
type steps struct {
	p    sandbox.Provider
	tell func(stage, progress string)
	mu   sync.Mutex
	last string
	log  string // the end of what the current step printed
}

// LogLimit bounds the log that is kept of a step: its end.
const LogLimit = 16 << 10

// Do runs a step, repeated while it fails transiently, and names its stage when
// it fails.
func (s *steps) Do(ctx context.Context, stage string, step func(context.Context) error) error {
	s.mu.Lock()
	s.last, s.log = stage, ""
	s.mu.Unlock()
	s.tell(stage, "")
	err := retry(ctx, s.p, func(text string) { s.tell(stage, text) }, step)
	if err == nil {
		return nil
	}
	j := sandbox.Judge(ctx, s.p, err)
	return &fault.Error{Class: j.Class, Code: j.Code, Fix: j.Fix, Stage: stage, Err: err}
}

// Progress shows how far the current step is.
func (s *steps) Progress(p sandbox.Progress) {
	s.mu.Lock()
	stage := s.last
	s.mu.Unlock()
	text := p.Message
	if p.Total > 0 {
		text += fmt.Sprintf(" (%d%%)", 100*p.Current/p.Total)
	}
	s.tell(stage, text)
}

// Log keeps what the current step prints.
func (s *steps) Log(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log += text + "\n"
	if len(s.log) > 2*LogLimit {
		s.log = s.log[len(s.log)-LogLimit:]
	}
}

// logOf is the log of a failure: what the error brings, else what was printed.
func (s *steps) logOf(err error) string {
	var logged sandbox.Logged
	if errors.As(err, &logged) {
		return tail(logged.Log())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return tail(s.log)
}

// tail is the end of a log in whole lines, without what would move a terminal's
// cursor.
func tail(log string) string {
	if over := len(log) - LogLimit; over > 0 {
		log = log[over:]
		if i := strings.IndexByte(log, '\n'); i >= 0 {
			log = log[i+1:]
		}
	}
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(log, "\uFFFD"), "\n"), "\n")
	for i, l := range lines {
		if at := strings.LastIndexByte(strings.TrimRight(l, "\r"), '\r'); at >= 0 {
			l = l[at+1:] // a progress bar's last state
		}
		lines[i] = strings.TrimRight(sandbox.StripControl(l), " ")
	}
	return strings.Join(lines, "\n")
}

// Steps runs the slow steps of work outside of a run as a run's are run: repeated
// while they fail transiently, and named when they fail. tell hears of each stage
// and its progress.
func Steps(p sandbox.Provider, tell func(stage, progress string)) sandbox.Steps {
	return &steps{p: p, tell: tell}
}

// Oven holds the results of one run.
type Oven struct {
	sink  event.Sink
	width chan struct{}
	mu    sync.Mutex
	done  map[*plan.Environment]*entry
}

type entry struct {
	done chan struct{} // closed when res is there
	res  Result
}

// New returns an empty oven.
func New(sink event.Sink) *Oven {
	return &Oven{sink: sink, width: make(chan struct{}, Width), done: map[*plan.Environment]*entry{}}
}

// Prepare returns the start point of an environment, made on the first call.
// Later calls, also after a failure, get the same result.
func (o *Oven) Prepare(ctx context.Context, env *plan.Environment) Result {
	o.mu.Lock()
	e, known := o.done[env]
	if !known {
		e = &entry{done: make(chan struct{})}
		o.done[env] = e
	}
	o.mu.Unlock()
	if !known {
		o.width <- struct{}{}
		e.res = o.bake(ctx, env)
		<-o.width
		close(e.done)
	}
	<-e.done
	return e.res
}

// PrepareAll prepares every environment and waits.
func (o *Oven) PrepareAll(ctx context.Context, envs []*plan.Environment) {
	var wg sync.WaitGroup
	for _, env := range envs {
		wg.Go(func() { o.Prepare(ctx, env) })
	}
	wg.Wait()
}

func (o *Oven) bake(ctx context.Context, env *plan.Environment) (res Result) {
	ev := event.Prepare{Key: string(env.Key), Provider: env.Info.Kind, Label: env.Start(), Status: event.Started, Levels: env.Levels}
	o.sink(ev)
	s := &steps{p: env.Provider, tell: func(stage, progress string) {
		ev := ev
		ev.Stage, ev.Message = stage, progress
		o.sink(ev)
	}}
	var err error
	func() {
		defer func() {
			if p := recover(); p != nil {
				err = &fault.Error{Code: "panic", What: fmt.Sprintf("panic while the sandbox was prepared: %v", p)}
			}
		}()
		res.Prepared, err = env.Provider.Prepare(ctx, env.Template, env.Harness, s)
	}()
	if err == nil {
		ev.Status, ev.Message = event.Done, res.Prepared.Details["origin"]
		o.sink(ev)
		return res
	}
	j := sandbox.Judge(ctx, env.Provider, err)
	stage := fault.StageOf(err)
	if stage == "" {
		stage = cmp.Or(s.last, "prepare")
	}
	res.Err = &fault.Error{Class: j.Class, Code: "sandbox.prepare-failed", Stage: "prepare", Fix: j.Fix, What: "prepare " + env.Label(), Err: err}
	headline := fmt.Sprintf("%s could not be prepared (%s at %s)", env.Label(), class(j), stage)
	res.Info = &record.PrepareError{Headline: headline, Stage: stage, Class: j.Class.String(), Cause: sandbox.Tail(err.Error(), 1000), Log: s.logOf(err), Levels: env.Levels}
	ev.Status, ev.Stage, ev.Class, ev.Headline, ev.Message = event.Broken, stage, j.Class.String(), headline, res.Info.Cause
	ev.Log = res.Info.Log
	o.sink(ev)
	return res
}

// class names a resource failure by what ran out.
func class(e *fault.Error) string {
	if e.Class == fault.Resource && e.Code != "" {
		return e.Class.String() + ": " + e.Code
	}
	return e.Class.String()
}
