package cloudbox

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Pacer spaces the starts of requests: a bucket of burst starts that refills at
// one per Every. The zero value does not wait. It is shared by everything that
// uses one account.
type Pacer struct {
	mu    sync.Mutex
	every time.Duration
	burst int
	next  time.Time // when the bucket, emptied by those who wait, has its next start
}

// NewPacer allows burst starts at once and then one per every.
func NewPacer(every time.Duration, burst int) *Pacer {
	return &Pacer{every: every, burst: max(burst, 1)}
}

// Wait waits for a start.
func (p *Pacer) Wait(ctx context.Context) error {
	if p == nil || p.every <= 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if full := now.Add(-time.Duration(p.burst-1) * p.every); p.next.Before(full) {
		p.next = full
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(p.every)
	p.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Hold lets nobody start before d has passed: the service asked for it.
func (p *Pacer) Hold(d time.Duration) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(d); p.next.Before(until) {
		p.next = until
	}
}

// Unsent reports whether an error of an HTTP round trip proves that the request
// reached nobody: the name was not found, the connection was refused, or the
// other end could not prove who it is.
func Unsent(err error) bool {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case err == nil:
		return false
	case errors.As(err, &dns), errors.As(err, &cert), errors.Is(err, syscall.ECONNREFUSED):
		return true
	case errors.As(err, &op):
		return op.Op == "dial"
	}
	return false
}

// Network reports whether an error is one of the network and not of the
// service: trying again may help.
func Network(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)
}

// Transport is one connection pool for a provider: no limit on connections that
// are in use, since each sandbox holds two, and some idle ones.
func Transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = 64, 32, 60*time.Second
	t.WriteBufferSize, t.ReadBufferSize = 16<<10, 16<<10
	return t
}
