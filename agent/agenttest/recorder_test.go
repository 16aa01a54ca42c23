package agenttest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"assay/agent/agenttest"
)

// recorder is a testing.TB whose failures are an observation.
type recorder struct {
	testing.TB // for what is not overridden

	mu       sync.Mutex
	failed   bool
	skipped  bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) note(failed, skipped bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.skipped = r.failed || failed, r.skipped || skipped
	r.log.WriteString(text + "\n")
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(a ...any)              { r.note(false, false, fmt.Sprint(a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(false, false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.note(true, false, fmt.Sprint(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(true, false, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.note(true, false, "") }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Error(a...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Skip(a ...any)             { r.note(false, true, fmt.Sprint(a...)); runtime.Goexit() }
func (r *recorder) Skipf(f string, a ...any)  { r.Skip(fmt.Sprintf(f, a...)) }
func (r *recorder) SkipNow()                  { r.Skip() }
func (r *recorder) Context() context.Context  { return context.Background() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// observe runs one promise and returns what became of it.
func observe(t *testing.T, p agenttest.Promise, h agenttest.Harness) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	alone(func() { p.Test(r, h) })
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		alone(r.cleanups[i])
	}
	return r
}

// alone runs f in a goroutine that f may end.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}
