package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTakeGivesOnlyTheKeyAsked(t *testing.T) {
	p := New(2)
	p.Expect("a")
	p.Expect("b")
	if p.Take("a") != nil {
		t.Fatal("an empty pool gave a sandbox")
	}
	n, evicted, _ := p.Enter(t.Context())
	if n != 1 || evicted != nil {
		t.Fatalf("first lane: number %d, evicted %v", n, evicted)
	}
	p.Put(&Box{Key: "a", Ordinal: n})
	if p.Take("b") != nil {
		t.Fatal("a sandbox of another key was given")
	}
	b := p.Take("a")
	if b == nil || p.Take("a") != nil {
		t.Fatal("the idle sandbox was not given exactly once")
	}
	p.Put(b)
	if left := p.Over("b"); len(left) != 0 {
		t.Fatalf("the end of b's attempts gave up %v", left)
	}
	if left := p.Over("a"); len(left) != 1 || left[0] != b {
		t.Fatalf("nobody comes for the sandbox of a any more, given up: %v", left)
	}
}

func TestEnterEvictsTheOldestOfAnotherKey(t *testing.T) {
	p := New(2)
	for range 2 {
		n, _, _ := p.Enter(t.Context())
		p.Put(&Box{Key: fmt.Sprint("k", n), Ordinal: n})
	}
	n, evicted, _ := p.Enter(t.Context())
	if n != 3 || evicted == nil || evicted.Ordinal != 1 {
		t.Fatalf("number %d, evicted %+v; want 3 and the first", n, evicted)
	}
	p.Leave() // the evicted one is gone
	if p.Live() != 2 || p.Take("k1") != nil || p.Take("k2") == nil {
		t.Fatalf("%d live; the evicted sandbox must be gone and the other idle", p.Live())
	}
}

func TestRetiredDoNotCountAgainstTheLimit(t *testing.T) {
	p := New(2)
	for i := range 10 { // every sandbox is given up after its first use
		n, evicted, _ := p.Enter(t.Context())
		if n != i+1 || evicted != nil {
			t.Fatalf("use %d: number %d, evicted %v", i, n, evicted)
		}
		p.Leave()
	}
	if p.Live() != 0 || p.Born() != 10 {
		t.Fatalf("%d live, %d born", p.Live(), p.Born())
	}
}

func TestEnterWaitsForWhatIsBeingDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1)
		p.Expect("a")
		n, _, _ := p.Enter(t.Context())
		p.Put(&Box{Key: "a", Ordinal: n})
		if left := p.Over("a"); len(left) != 1 {
			t.Fatalf("given up: %v", left)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := p.Enter(short); err == nil || p.Live() != 1 {
			t.Fatalf("error %v, %d live", err, p.Live())
		}
		time.AfterFunc(time.Minute, p.Gone)
		begin := time.Now()
		n, evicted, err := p.Enter(t.Context())
		if n != 2 || evicted != nil || err != nil || time.Since(begin) != time.Minute || p.Live() != 1 {
			t.Fatalf("number %d, evicted %v, %v after %s, %d live", n, evicted, err, time.Since(begin), p.Live())
		}
	})
}

// Whatever the interleaving of attempts, failures and ends, no sandbox is held
// twice, the lanes are never exceeded, and all are given up in the end.
func TestAnyInterleaving(t *testing.T) {
	for seed := range uint64(200) {
		const lanes, attempts = 3, 40
		p := New(lanes)
		rng := rand.New(rand.NewPCG(seed, 1))
		keys := make([]string, attempts)
		fail := make([]bool, attempts)
		for i := range keys {
			keys[i], fail[i] = fmt.Sprint("k", rng.IntN(3)), rng.IntN(4) == 0
			p.Expect(keys[i])
		}
		var mu sync.Mutex
		held := map[*Box]bool{}
		alive := 0
		change := func(b *Box, n int) {
			mu.Lock()
			defer mu.Unlock()
			if n > 0 == held[b] {
				t.Errorf("seed %d: a sandbox is held twice, or given back twice", seed)
			}
			held[b] = n > 0
		}
		destroy := func(free func()) {
			mu.Lock()
			alive--
			mu.Unlock()
			free()
		}
		var ends sync.WaitGroup
		gate := make(chan struct{}, lanes)
		var wg sync.WaitGroup
		for i := range attempts {
			wg.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				b := p.Take(keys[i])
				if b == nil {
					n, evicted, _ := p.Enter(t.Context())
					if evicted != nil {
						destroy(p.Leave)
					}
					b = &Box{Key: keys[i], Ordinal: n}
					mu.Lock()
					if alive++; alive > lanes {
						t.Errorf("seed %d: %d sandboxes in %d lanes", seed, alive, lanes)
					}
					mu.Unlock()
				}
				change(b, 1)
				change(b, -1)
				if fail[i] {
					destroy(p.Leave)
				} else {
					p.Put(b)
				}
				ends.Go(func() { // beside those that go on
					for range p.Over(keys[i]) {
						destroy(p.Gone)
					}
				})
			})
		}
		wg.Wait()
		ends.Wait()
		if p.Live() != 0 || alive != 0 {
			t.Fatalf("seed %d: %d sandboxes are left (%d counted)", seed, alive, p.Live())
		}
	}
}
