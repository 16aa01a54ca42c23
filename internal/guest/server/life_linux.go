package server

import (
	"sync"
	"time"

	"assay/internal/guest/wire"
)

// life is the time that the sandbox has. The zero value has no end.
type life struct {
	mu      sync.Mutex
	timer   *time.Timer
	end     time.Time // with a timer
	expired chan struct{}
	over    bool
}

// live sets or moves the end.
func (l *life) live(req *wire.LiveRequest) wire.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if req.Limit > 0 {
		l.set(now, time.Duration(req.Limit))
	}
	if l.timer == nil {
		return &wire.LiveReply{}
	}
	if least := time.Duration(req.Least); least > l.end.Sub(now) {
		l.set(now, least)
	}
	return &wire.LiveReply{Limited: true, Left: int64(l.end.Sub(now))}
}

// set moves the end. A timer that fires beside it finds that it is not time.
func (l *life) set(now time.Time, left time.Duration) {
	l.end = now.Add(left)
	if l.timer == nil {
		l.timer = time.AfterFunc(left, l.check)
		return
	}
	l.timer.Reset(left)
}

func (l *life) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.end); left > 0 {
		l.timer.Reset(left)
	} else if !l.over {
		l.over = true
		close(l.expired)
	}
}
