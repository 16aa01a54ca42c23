package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"assay/fault"
)

// callError is one failed engine call: what was asked, the HTTP status of the
// reply if there was one, and the engine's own words.
type callError struct {
	op     string
	status int  // 0: no reply
	late   bool // the call's own limit ended it
	err    error
}

// Error names the call, so that "404" is never without its question.
func (e *callError) Error() string {
	if e.status >= 400 {
		return fmt.Sprintf("engine %s (status %d): %v", e.op, e.status, e.err)
	}
	return fmt.Sprintf("engine %s: %v", e.op, e.err)
}

func (e *callError) Unwrap() error { return e.err }

// answered reports whether the engine itself refused the call: nothing was done
// then. Otherwise the call may have had its effect.
func (e *callError) answered() bool { return e.status >= 400 }

// callerError marks a failure of the caller's own reader or writer.
type callerError struct{ err error }

func (e callerError) Error() string { return e.err.Error() }
func (e callerError) Unwrap() error { return e.err }

// statusOf returns the HTTP status with which the engine refused a call, or 0.
func statusOf(err error) int {
	var ce *callError
	if errors.As(err, &ce) && ce.answered() {
		return ce.status
	}
	return 0
}

// classify judges the errors of engine calls, and no others.
func classify(err error) fault.Class {
	var ce *callError
	if !errors.As(err, &ce) || errors.As(ce.err, new(callerError)) {
		return fault.Unknown
	}
	if errors.Is(ce.err, context.Canceled) {
		return fault.Unknown // whether we cancelled is read from the context, not here
	}
	if !ce.answered() {
		// Refused, reset, cut or never answered: the engine restarts, or is
		// busy beyond its limits.
		return fault.Transient
	}
	switch {
	case noSpace(ce.err):
		return fault.Resource
	case ce.status == http.StatusTooManyRequests:
		return fault.Transient
	case ce.status == http.StatusInternalServerError && permanent(ce.err.Error()):
		return fault.Config
	case ce.status >= 500:
		return fault.Transient
	case ce.status == http.StatusConflict:
		return fault.Unknown // the state changed under us; nobody's mistake by itself
	default:
		return fault.Config
	}
}

// noSpace finds a full disk. The engine reports it as status 500 with the
// kernel's words.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left on device")
}

// permanent finds refusals that the engine reports as its own internal error
// although they say that the request asks for something it does not have.
func permanent(text string) bool {
	for _, s := range []string{
		"--storage-opt is supported only for",
		"--storage-opt is not supported",
		"could not select device driver",
	} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}
