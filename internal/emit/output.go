package emit

import (
	"errors"
	"io"
	"sync"
	"syscall"

	"assay/fault"
)

// The codes of a failed output. A closed one is a reader that left early, such
// as `head -1`, and needs no message.
const (
	CodeClosed = "output-closed"
	CodeFailed = "output-failed"
)

// Output is a writer that stops at its first failure and remembers it. It is
// safe for concurrent use.
type Output struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewOutput returns an Output that writes to w, each Write as one.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write writes p, or returns the first failure of this or an earlier call. A
// short write is a failure.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		o.err = failure(err)
	}
	return n, o.err
}

// Err is the first failure, or nil: a *fault.Error with CodeClosed or
// CodeFailed.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Quiet reports whether err tells only that the reader left.
func Quiet(err error) bool { return fault.CodeOf(err) == CodeClosed }

func failure(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return &fault.Error{Code: CodeClosed, Stage: "output", What: "the reader of the output left", Err: err}
	}
	return &fault.Error{
		Code: CodeFailed, Stage: "output", What: "the output could not be written", Err: err,
		Fix: "free space where the output goes, or send it elsewhere; results are complete in the record",
	}
}
