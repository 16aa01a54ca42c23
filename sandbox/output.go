package sandbox

import (
	"bytes"
	"fmt"
	"sync"
)

// DefaultOutputLimit is how many bytes of each stream a Result keeps: the first
// half and the last half of the limit.
const DefaultOutputLimit = 1 << 20

// Output keeps the head and the tail of a stream in bounded memory and counts
// what it dropped between them. It is safe for concurrent use.
type Output struct {
	mu    sync.Mutex
	limit int
	head  []byte
	tail  []byte // ring
	start int
	total int64
}

// NewOutput returns an Output that keeps limit bytes, at least 2.
func NewOutput(limit int) *Output { return &Output{limit: max(limit, 2)} }

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(p)
	o.total += int64(n)
	half := o.limit / 2
	if room := half - len(o.head); room > 0 {
		k := min(room, len(p))
		o.head = append(o.head, p[:k]...)
		p = p[k:]
	}
	if len(p) > half {
		p = p[len(p)-half:]
	}
	for len(p) > 0 {
		if len(o.tail) < half {
			k := min(half-len(o.tail), len(p))
			o.tail = append(o.tail, p[:k]...)
			p = p[k:]
			continue
		}
		k := copy(o.tail[o.start:], p)
		o.start = (o.start + k) % half
		p = p[k:]
	}
	return n, nil
}

// Dropped is the number of bytes between head and tail that were not kept.
func (o *Output) Dropped() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total - int64(len(o.head)+len(o.tail))
}

// Total is the number of bytes written.
func (o *Output) Total() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total
}

// Bytes returns the head, a line that counts what was dropped, if anything, and
// the tail.
func (o *Output) Bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b bytes.Buffer
	b.Write(o.head)
	if d := o.total - int64(len(o.head)+len(o.tail)); d > 0 {
		fmt.Fprintf(&b, "\n[%d bytes dropped]\n", d)
	}
	b.Write(o.tail[o.start:])
	b.Write(o.tail[:o.start])
	return b.Bytes()
}

// String is Bytes as a string. Invalid UTF-8 is kept as it is.
func (o *Output) String() string { return string(o.Bytes()) }
