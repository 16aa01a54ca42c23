// Package fault says what kind of failure an error is, at which stage it
// happened, how far it reaches and what fixes it.
//
// Programs decide by Class, Code and Scope; people read the text. Nobody reads
// error text to find out what happened.
package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// Class is the kind of a failure. It decides retries and exit codes.
type Class uint8

// The classes. Unknown is the zero value: nobody has judged the error yet.
const (
	Unknown   Class = iota
	Config          // the user can fix it: a definition, a token, a missing image
	Transient       // network, an overloaded service, quota: trying again may help
	Resource        // out of memory or disk; the code says which ("oom", "enospc")
	Canceled        // our own cancellation, never a fault of the environment
)

// String returns the name that records and messages use.
func (c Class) String() string {
	switch c {
	case Config:
		return "config"
	case Transient:
		return "transient"
	case Resource:
		return "resource"
	case Canceled:
		return "canceled"
	default:
		return "unknown"
	}
}

// Scope says how much further work is pointless after a failure.
type Scope uint8

// The scopes, from narrow to wide. The zero value reaches one attempt only.
const (
	ScopeAttempt Scope = iota
	ScopeEval
	ScopeExperiment
	ScopeRun
)

// String returns the name that records and messages use.
func (s Scope) String() string {
	switch s {
	case ScopeEval:
		return "eval"
	case ScopeExperiment:
		return "experiment"
	case ScopeRun:
		return "run"
	default:
		return "attempt"
	}
}

// Error is a failure with everything that a program or a person needs to act.
// The zero values of all fields are useful; Error never contains secrets.
type Error struct {
	Class Class
	Scope Scope
	// Code is a stable token such as "record-root-busy". Messages may change,
	// codes may not.
	Code string
	// Stage is the phase in which it happened, such as "sandbox.create".
	Stage string
	// What tells what happened to what, in lower case, without a full stop.
	What string
	// Fix is one imperative line for the user, or empty.
	Fix string
	// Err is the cause, or nil.
	Err error
}

// Error returns "stage: what: cause", leaving out what is empty.
func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	for _, p := range []string{e.Stage, e.What} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	if len(parts) == 0 {
		return e.Code
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Configf returns a Config error with the given code and fix.
func Configf(code, fix, format string, args ...any) *Error {
	return &Error{Class: Config, Code: code, Fix: fix, What: fmt.Sprintf(format, args...)}
}

// Wrap returns err as an *Error of the given class, code and description. An
// error that already carries a class keeps it: the first judgement stands.
func Wrap(err error, class Class, code, what string) *Error {
	walk(err, func(e *Error) bool {
		if e.Class != Unknown {
			class = e.Class
		}
		return e.Class == Unknown
	})
	return &Error{Class: class, Code: code, What: what, Err: err}
}

// walk visits every *Error in the tree of err, outer before inner and earlier
// before later, until visit returns false.
func walk(err error, visit func(*Error) bool) bool {
	for err != nil {
		if e, ok := err.(*Error); ok && e != nil && !visit(e) { //nolint:errorlint // each layer is visited
			return false
		}
		switch u := err.(type) { //nolint:errorlint // each layer is visited
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range u.Unwrap() {
				if !walk(branch, visit) {
					return false
				}
			}
			return true
		default:
			return true
		}
	}
	return true
}

// ClassOf returns the class of the outermost judged error in err and what it
// wraps, joined errors included. A bare context error is Canceled.
func ClassOf(err error) Class {
	class := Unknown
	walk(err, func(e *Error) bool { class = e.Class; return class == Unknown })
	if class == Unknown && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return Canceled
	}
	return class
}

// CodeOf returns the outermost non-empty code in err and what it wraps, or "".
func CodeOf(err error) string { return first(err, func(e *Error) string { return e.Code }) }

// StageOf returns the innermost non-empty stage, or "": the stage is bound where
// the error was made. Of joined errors the first with a stage counts.
func StageOf(err error) string {
	stage := ""
	for err != nil {
		if e, ok := err.(*Error); ok && e != nil && e.Stage != "" { //nolint:errorlint // each layer is looked at
			stage = e.Stage
		}
		switch u := err.(type) { //nolint:errorlint // each layer is looked at
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range u.Unwrap() {
				if s := StageOf(branch); s != "" {
					return s
				}
			}
			return stage
		default:
			return stage
		}
	}
	return stage
}

// FixOf returns the outermost non-empty fix in err and what it wraps, or "".
func FixOf(err error) string { return first(err, func(e *Error) string { return e.Fix }) }

// ScopeOf returns the widest scope in err and what it wraps.
func ScopeOf(err error) Scope {
	s := ScopeAttempt
	walk(err, func(e *Error) bool { s = max(s, e.Scope); return true })
	return s
}

func first(err error, field func(*Error) string) string {
	v := ""
	walk(err, func(e *Error) bool { v = field(e); return v == "" })
	return v
}

// Timeout is the cause of a context that a limit of ours ended. It is a fact of
// our timer and is never inferred from an exit code.
type Timeout struct {
	// Limit names the limit: "attempt-deadline", "command-timeout",
	// "cleanup-limit", "stop-limit".
	Limit string
	// Value is the length of the limit.
	Value time.Duration
	// Layer says who set it: "flag", "experiment", "eval", "config", "command",
	// "built-in".
	Layer string
}

// Error names the limit, its value and where it was set.
func (t *Timeout) Error() string {
	return fmt.Sprintf("%s %s exceeded (set by %s)", t.Limit, t.Value, t.Layer)
}

// Is makes a Timeout match context.DeadlineExceeded.
func (t *Timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout is context.WithTimeout with a Timeout as the cause.
func WithTimeout(ctx context.Context, limit string, d time.Duration, layer string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, &Timeout{Limit: limit, Value: d, Layer: layer})
}

// Cause returns why ctx ended: a *Timeout where a limit of ours fired, else the
// cancellation cause; nil while ctx is alive.
func Cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// Caught runs f and returns its error. A panic becomes the error "panic", so that
// code of others in a goroutine of ours ends what it belongs to and not the
// process.
func Caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Code: "panic", What: fmt.Sprintf("panic: %v", p), Err: errors.New(string(debug.Stack()))}
		}
	}()
	return f()
}
