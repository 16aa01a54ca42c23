package compose

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"assay/sandbox"
)

// networks is an engine that can give total networks and has given some.
type networks struct {
	total int
	used  atomic.Int64
}

func engineOf(total, used int) *networks {
	n := &networks{total: total}
	n.used.Store(int64(used))
	return n
}

func (n *networks) look(context.Context) (total, used int, err error) {
	return n.total, int(n.used.Load()), nil
}

func TestBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{}
		e := engineOf(5, 1) // one of them is somebody else's
		n := &notes{}
		for range 2 {
			if err := b.acquire(t.Context(), 2, e.look, n); err != nil {
				t.Fatal(err)
			}
		}
		if len(n.progress) != 0 {
			t.Errorf("those who did not wait were told to: %q", n.progress)
		}
		e.used.Add(4)
		var order []int
		done := make(chan int, 2)
		for i, want := range []int{2, 1} { // the second would fit first, and must not starve the first
			go func() {
				if err := b.acquire(t.Context(), want, e.look, n); err != nil {
					t.Error(err)
				}
				done <- i
			}()
			synctest.Wait()
		}
		if len(n.progress) != 2 || len(done) != 0 {
			t.Errorf("%d of 2 wait, and were told %q", 2-len(done), n.progress)
		}
		e.used.Add(-2)
		b.release(2)
		synctest.Wait()
		order = append(order, <-done)
		if len(done) != 0 {
			t.Error("both were served for one release")
		}
		b.release(2)
		order = append(order, <-done)
		if order[0] != 0 || order[1] != 1 {
			t.Errorf("served in the order %v", order)
		}
		if b.held != 3 {
			t.Errorf("%d networks are counted, want 3", b.held)
		}
	})
}

// Networks that other processes give back are noticed, and one who gave up takes
// no place.
func TestBudgetNoticesOthersAndGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{}
		e := engineOf(4, 3)
		if err := b.acquire(t.Context(), 1, e.look, sandbox.Quiet{}); err != nil {
			t.Fatal(err)
		}
		e.used.Store(4)
		stop := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		gave := make(chan error, 1)
		go func() { gave <- b.acquire(ctx, 3, e.look, sandbox.Quiet{}) }()
		synctest.Wait()
		got := make(chan error, 1)
		go func() { got <- b.acquire(t.Context(), 1, e.look, sandbox.Quiet{}) }()
		synctest.Wait()
		cancel(stop)
		if err := <-gave; !errors.Is(err, stop) {
			t.Errorf("who gave up got %v", err)
		}
		e.used.Store(2) // the others' three became one
		if err := <-got; err != nil {
			t.Error(err)
		}
		if b.held != 2 {
			t.Errorf("%d networks are counted, want 2", b.held)
		}
	})
}

// Who needs more than the engine ever has is let through alone: the engine
// itself says what is wrong.
func TestBudgetLetsTheLargeThrough(t *testing.T) {
	b := &budget{}
	e := engineOf(3, 2)
	if err := b.acquire(t.Context(), 7, e.look, sandbox.Quiet{}); err != nil {
		t.Fatal(err)
	}
	if b.alone() {
		t.Error("what was let through is not counted")
	}
	b.release(7)
	if !b.alone() {
		t.Error("what was given back is counted")
	}
}
