package sandbox

import "time"

// Patience is an error that knows how long to wait before another try makes
// sense, such as a registry's Retry-After. Steps wait at least that long where
// they repeat a step.
type Patience interface {
	error
	RetryAfter() time.Duration
}

// Logged is an error that brings the end of the log of what failed, such as a
// build step's output. It is shown and recorded with the failure.
type Logged interface {
	error
	Log() string
}

// LogKeeper is what Steps implement that keep the log of slow work. The engine's
// do.
type LogKeeper interface {
	// Log takes one line, or several.
	Log(text string)
}
