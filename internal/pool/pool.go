// Package pool keeps the live sandboxes of one experiment that several attempts
// use one after the other. It knows who may take which, how many there may be
// and when nobody comes for one any more. It makes and destroys none: those who
// take a sandbox out of the pool own it until they put it back.
//
// A sandbox belongs to one pool key: everything that must be equal for attempts
// to share it. A lane is a place for one live sandbox; a pool has so many.
package pool

import (
	"context"
	"sync"

	"assay/fault"
	"assay/internal/ledger"
	"assay/internal/snapshot"
	"assay/sandbox"
)

// Box is one live sandbox. Its fields belong to whoever has taken it.
type Box struct {
	Key string
	// Ordinal numbers the sandboxes of the pool, from 1; Uses counts the
	// attempts that were given this one.
	Ordinal, Uses int
	// Face is the sandbox as its last user saw it.
	Face *sandbox.Sandbox
	// Driver is what Face stands on.
	Driver sandbox.Driver
	// Point is the state that the workdir goes back to; Marked tells that there
	// is one, which ends the set-up of the box.
	Point  ledger.Point
	Marked bool
	// Outside is what the sandbox said of itself at the reset point.
	Outside snapshot.Drift
	// Teardown undoes the set-up, in this order; it runs once, before the
	// sandbox is destroyed.
	Teardown []sandbox.Step
	// HostDir is where host commands of Teardown run.
	HostDir string
}

// Pool is safe for concurrent use.
type Pool struct {
	limit int

	mu      sync.Mutex
	idle    map[string][]*Box
	pending map[string]int
	live    int
	born    int
	ending  int           // sandboxes that Over gave up and that are not gone yet
	changed chan struct{} // closed when something may be free
}

// New returns a pool with so many lanes; 0 is no limit of its own.
func New(limit int) *Pool {
	return &Pool{limit: limit, idle: map[string][]*Box{}, pending: map[string]int{}, changed: make(chan struct{})}
}

// Expect announces one attempt that will come for a sandbox of key.
func (p *Pool) Expect(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending[key]++
}

// Take returns an idle sandbox of key, the one used last, or nil.
func (p *Pool) Take(key string) *Box {
	p.mu.Lock()
	defer p.mu.Unlock()
	boxes := p.idle[key]
	if len(boxes) == 0 {
		return nil
	}
	b := boxes[len(boxes)-1]
	p.idle[key] = boxes[:len(boxes)-1]
	return b
}

// Enter asks for a lane in which the caller makes a sandbox, which is number n.
// When all lanes are taken it hands out an idle sandbox of another key, whose
// lane it is: the caller destroys that one first. Attempts that run hold one lane
// each and no more run than there are lanes, so one is idle then, or is being
// destroyed because nobody comes for it any more: its end is waited for. The
// error is that of ctx; nothing was taken then.
func (p *Pool) Enter(ctx context.Context) (n int, evicted *Box, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.limit > 0 && p.live >= p.limit {
		if evicted = p.oldest(); evicted != nil || p.ending == 0 {
			break
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = fault.Cause(ctx)
		}
		p.mu.Lock()
		if err != nil {
			return 0, nil, err
		}
	}
	p.live++
	p.born++
	return p.born, evicted, nil
}

// wake lets those who wait look again.
func (p *Pool) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// oldest takes the idle sandbox with the lowest number, or nil.
func (p *Pool) oldest() *Box {
	var key string
	at := -1
	for k, boxes := range p.idle {
		for i, b := range boxes {
			if at < 0 || b.Ordinal < p.idle[key][at].Ordinal {
				key, at = k, i
			}
		}
	}
	if at < 0 {
		return nil
	}
	b := p.idle[key][at]
	p.idle[key] = append(p.idle[key][:at:at], p.idle[key][at+1:]...)
	return b
}

// Put gives a sandbox back for the next attempt.
func (p *Pool) Put(b *Box) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle[b.Key] = append(p.idle[b.Key], b)
	p.wake()
}

// Leave frees the lane of a sandbox that is gone, or was never made.
func (p *Pool) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live--
	p.wake()
}

// Gone is Leave for a sandbox that Over gave up.
func (p *Pool) Gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live--
	p.ending--
	p.wake()
}

// Over tells that an attempt announced for key has ended. It returns the idle
// sandboxes that nobody comes for any more; the caller destroys them and calls
// Gone for each.
func (p *Pool) Over(key string) []*Box {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[key]--; p.pending[key] > 0 {
		return nil
	}
	boxes := p.idle[key]
	delete(p.idle, key)
	p.ending += len(boxes)
	return boxes
}

// Live returns how many sandboxes there are, and Born how many there ever were.
func (p *Pool) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

// Born returns how many sandboxes were made or tried.
func (p *Pool) Born() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.born
}
