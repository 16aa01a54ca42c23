package compose

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"assay/sandbox"
)

// engineOf answers as an engine with so many networks.
func engineOf(total, used *int) pools {
	return func(context.Context) (int, int, error) { return *total, *used, nil }
}

func TestBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{}
		total, used := 5, 1 // one of them is somebody else's
		look := engineOf(&total, &used)
		n := &notes{}
		for range 2 {
			if err := b.acquire(t.Context(), 2, look, n); err != nil {
				t.Fatal(err)
			}
		}
		if len(n.progress) != 0 {
			t.Errorf("those who did not wait were told to: %q", n.progress)
		}
		used += 4
		var order []int
		done := make(chan int, 2)
		for i, want := range []int{2, 1} { // the second would fit first, and must not starve the first
			go func() {
				if err := b.acquire(t.Context(), want, look, n); err != nil {
					t.Error(err)
				}
				done <- i
			}()
			synctest.Wait()
		}
		if len(n.progress) != 2 || len(done) != 0 {
			t.Errorf("%d of 2 wait, and were told %q", 2-len(done), n.progress)
		}
		used -= 2
		b.release(2)
		synctest.Wait()
		order = append(order, <-done)
		if len(done) != 0 {
			t.Error("both were served for one release")
		}
		used += 2 - 2
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
		total, used := 4, 3
		look := engineOf(&total, &used)
		if err := b.acquire(t.Context(), 1, look, sandbox.Quiet{}); err != nil {
			t.Fatal(err)
		}
		used = 4
		stop := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		gave := make(chan error, 1)
		go func() { gave <- b.acquire(ctx, 3, look, sandbox.Quiet{}) }()
		synctest.Wait()
		got := make(chan error, 1)
		go func() { got <- b.acquire(t.Context(), 1, look, sandbox.Quiet{}) }()
		synctest.Wait()
		cancel(stop)
		if err := <-gave; !errors.Is(err, stop) {
			t.Errorf("who gave up got %v", err)
		}
		used = 2 // the others' three became one
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
	total, used := 3, 2
	if err := b.acquire(t.Context(), 7, engineOf(&total, &used), sandbox.Quiet{}); err != nil {
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
