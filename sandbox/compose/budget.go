package compose

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// An engine gives every network a subnet out of its address pools, and the
// default pools of Docker hold no more than 31. So networks are counted: who
// finds none free waits, in order, until a sandbox of this process ends. Other
// processes and people take networks too, so the count is checked against the
// engine, and an engine that says "none left" after all makes its caller wait.

// budget are the networks of one engine.
type budget struct {
	mu    sync.Mutex
	held  int // by sandboxes of this process
	limit int // how many this process may hold; 0: not known yet
	queue []*ticket
}

type ticket struct {
	n     int
	ready chan struct{}
}

var budgets = struct {
	sync.Mutex
	of map[string]*budget
}{of: map[string]*budget{}}

// budgetOf returns the budget of an engine, which all providers of this process
// share.
func budgetOf(host string) *budget {
	budgets.Lock()
	defer budgets.Unlock()
	b := budgets.of[host]
	if b == nil {
		b = &budget{}
		budgets.of[host] = b
	}
	return b
}

// defaultPools is how many networks Docker's built-in address pools can give:
// 172.17.0.0/16 to 172.31.0.0/16 and 192.168.0.0/16 in pieces of /20. An engine
// that uses them does not name them.
// Source: https://docs.docker.com/engine/network/#automatic-subnet-allocation
const defaultPools = 31

// pools tells how many networks an engine can give and has given.
type pools func(ctx context.Context) (total, used int, err error)

// relook is how often those who wait look whether others freed networks.
const relook = 2 * time.Second

// acquire waits until n networks may be made; the caller gives them back with
// release.
func (b *budget) acquire(ctx context.Context, n int, look pools, notes sandbox.Notes) error {
	if n == 0 {
		return nil
	}
	b.mu.Lock()
	known := b.limit > 0
	b.mu.Unlock()
	if !known {
		if err := b.refresh(ctx, look); err != nil {
			return err
		}
	}
	t := &ticket{n: n, ready: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, t)
	b.grant()
	b.mu.Unlock()
	shown := false
	for {
		select {
		case <-t.ready:
			return nil
		default:
		}
		if !shown {
			shown = true
			b.mu.Lock()
			notes.Progress(sandbox.Progress{Message: fmt.Sprintf("waiting for a free network of the container engine (%d in use, %d before this one)", b.held, len(b.queue)-1)})
			b.mu.Unlock()
		}
		again := time.NewTimer(relook)
		select {
		case <-t.ready:
			again.Stop()
			return nil
		case <-again.C:
			// A look that fails changes nothing; the next one may not.
			_ = b.refresh(ctx, look)
		case <-ctx.Done():
			again.Stop()
			return b.withdraw(t, fault.Cause(ctx))
		}
	}
}

// withdraw takes a ticket back, and what it was given in the meantime.
func (b *budget) withdraw(t *ticket, why error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, q := range b.queue {
		if q == t {
			b.queue = append(b.queue[:i:i], b.queue[i+1:]...)
			b.grant()
			return why
		}
	}
	b.held -= t.n
	b.grant()
	return why
}

// refresh asks the engine how many networks this process may hold.
func (b *budget) refresh(ctx context.Context, look pools) error {
	total, used, err := look(ctx)
	if err != nil {
		return err
	}
	if total == 0 {
		total = defaultPools
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// What is held may not be made yet, so others hold at least used-held.
	b.limit = max(1, total-max(0, used-b.held))
	b.grant()
	return nil
}

// grant serves the queue. Who asks for more than there will ever be is served
// when nothing is held: the engine has the last word.
func (b *budget) grant() {
	for len(b.queue) > 0 {
		t := b.queue[0]
		if b.held > 0 && b.held+t.n > b.limit {
			return
		}
		b.queue = b.queue[1:]
		b.held += t.n
		close(t.ready)
	}
}

// release gives networks back.
func (b *budget) release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	b.grant()
}

// alone reports whether this process holds no network of the engine: nobody here
// will give one back.
func (b *budget) alone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held == 0
}

// exhausted finds an engine's refusal to make a network for want of addresses.
func exhausted(err error) bool {
	if err == nil || docker.StatusOf(err) == 0 {
		return false
	}
	text := strings.ToLower(err.Error())
	for _, s := range []string{
		"non-overlapping ipv4 address pool", // Docker up to 27
		"all predefined address pools have", // Docker from 28
		"could not find free subnet from",   // Podman 4
		"failed to find free subnet",        // Podman 5
		"subnet pools",                      // Podman
	} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// outOfPools is the error when an engine has no network for a sandbox although
// this process waited.
func outOfPools(err error) error {
	return &fault.Error{
		Class: fault.Resource, Code: "sandbox.networks-exhausted", What: "the container engine has no addresses left for another network",
		Fix: "Remove unused networks (`docker network prune`), or give the engine more with default-address-pools in its daemon.json.", Err: err,
	}
}
