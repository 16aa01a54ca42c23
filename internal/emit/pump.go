// Package emit carries events from the many goroutines of an engine to the one
// goroutine of a view, and the view's bytes to a writer whose first failure is
// remembered. It gives all views the same promises: order, no lost fact, no
// line after a failed write, an error at the end.
package emit

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/event"
)

// queueLength bounds what a slow reader may leave unread. Behind it the engine
// waits: a fact is never dropped.
const queueLength = 4096

// Pump hands events to one function, one after another, in the order in which
// Handle took them. Handle is safe for concurrent use; it blocks only while
// the queue is full, and then drops a Progress instead.
type Pump struct {
	mu     sync.RWMutex // held for reading while sending
	closed bool
	queue  chan event.Event
	done   chan struct{}
	err    error // of the worker, to be read after done
}

// NewPump starts a pump. each takes every event; tick is called about every
// period between events. Both run on the pump's one goroutine, which Close
// ends. A panic in either is a defect of the view and must not end the run: the
// pump goes on, silently, and Close returns it.
func NewPump(each func(event.Event), every time.Duration, tick func()) *Pump {
	p := &Pump{queue: make(chan event.Event, queueLength), done: make(chan struct{})}
	go p.work(each, every, tick)
	return p
}

// Handle queues e. After Close it does nothing.
func (p *Pump) Handle(e event.Event) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return
	}
	if _, lossy := e.(event.Progress); lossy {
		select {
		case p.queue <- e:
		default:
		}
		return
	}
	p.queue <- e
}

// Close waits until every queued event was handled and ends the pump. It
// returns the panic of the view, if there was one.
func (p *Pump) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.queue)
	}
	p.mu.Unlock()
	<-p.done
	return p.err
}

func (p *Pump) work(each func(event.Event), every time.Duration, tick func()) {
	defer close(p.done)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case e, ok := <-p.queue:
			if !ok {
				return
			}
			p.guard(func() { each(e) })
		case <-t.C:
			p.guard(tick)
		}
	}
}

// guard runs f unless the view has panicked before.
func (p *Pump) guard(f func()) {
	if p.err != nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			p.err = &fault.Error{
				Code: "output-view-crashed", Stage: "output", What: fmt.Sprintf("the view crashed: %v", r),
				Fix: "results are complete in the record; report this defect",
				Err: fmt.Errorf("%s", debug.Stack()),
			}
		}
	}()
	f()
}
