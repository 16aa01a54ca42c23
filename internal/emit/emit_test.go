package emit_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/emit"
	"assay/internal/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPumpKeepsOrderAndFacts(t *testing.T) {
	got := map[string][]int{}
	p := emit.NewPump(func(e event.Event) {
		n := e.(event.Notice)
		got[n.Code] = append(got[n.Code], len(n.Message))
	}, time.Hour, func() {})
	var wg sync.WaitGroup
	for _, who := range []string{"a", "b", "c"} {
		wg.Go(func() {
			for i := range 3000 {
				p.Handle(event.Notice{Code: who, Message: string(make([]byte, i))})
			}
		})
	}
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"a", "b", "c"} {
		if len(got[who]) != 3000 {
			t.Fatalf("%s: %d of 3000 events", who, len(got[who]))
		}
		for i, n := range got[who] {
			if n != i {
				t.Fatalf("%s: event %d came at %d", who, n, i)
			}
		}
	}
	p.Handle(event.Notice{Code: "a"}) // late, ignored
	if err := p.Close(); err != nil || len(got["a"]) != 3000 {
		t.Fatalf("after Close: %v, %d events", err, len(got["a"]))
	}
}

// Behind a reader that does not read, progress is dropped and nothing blocks on
// it; a fact waits and arrives.
func TestPumpDropsOnlyProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var facts, progress int
		p := emit.NewPump(func(e event.Event) {
			<-gate
			if _, ok := e.(event.Progress); ok {
				progress++
			} else {
				facts++
			}
		}, time.Hour, func() {})
		p.Handle(event.Progress{})
		synctest.Wait() // the worker holds one event, so the queue stays full
		for range 10_000 {
			p.Handle(event.Progress{})
		}
		waiting := true
		go func() {
			p.Handle(event.Notice{})
			waiting = false
		}()
		synctest.Wait()
		if !waiting {
			t.Error("a fact passed a full queue")
		}
		close(gate)
		synctest.Wait()
		if err := p.Close(); err != nil || facts != 1 || progress >= 10_000 {
			t.Fatalf("%v, %d facts, %d progress", err, facts, progress)
		}
	})
}

func TestPumpSurvivesItsView(t *testing.T) {
	calls := 0
	p := emit.NewPump(func(event.Event) {
		calls++
		panic("no such row")
	}, time.Hour, func() {})
	p.Handle(event.Notice{})
	p.Handle(event.Notice{})
	if err := p.Close(); fault.CodeOf(err) != "output-view-crashed" || calls != 1 {
		t.Fatalf("%v after %d calls", err, calls)
	}
}

type short struct{}

func (short) Write(p []byte) (int, error) { return len(p) - 1, nil }

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestOutputRemembersItsFirstFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	for _, c := range []struct {
		name string
		w    io.Writer
		want error
		code string
	}{
		{"full", full, syscall.ENOSPC, emit.CodeFailed},
		{"reader left", w, syscall.EPIPE, emit.CodeClosed},
		{"short", short{}, io.ErrShortWrite, emit.CodeFailed},
		{"other", broken{io.ErrUnexpectedEOF}, io.ErrUnexpectedEOF, emit.CodeFailed},
	} {
		o := emit.NewOutput(c.w)
		if o.Err() != nil {
			t.Errorf("%s: a fresh output failed", c.name)
		}
		_, first := o.Write([]byte("one"))
		_, second := o.Write([]byte("two"))
		if !errors.Is(first, c.want) || second != first || o.Err() != first || fault.CodeOf(first) != c.code {
			t.Errorf("%s: %v, then %v", c.name, first, second)
		}
		if emit.Quiet(first) != (c.code == emit.CodeClosed) {
			t.Errorf("%s: quiet is wrong", c.name)
		}
	}
	var b bytes.Buffer
	if _, err := emit.NewOutput(&b).Write([]byte("x")); err != nil || b.String() != "x" {
		t.Errorf("%v %q", err, &b)
	}
}
