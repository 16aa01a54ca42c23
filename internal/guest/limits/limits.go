//go:build !linux || !amd64

// Package limits remembers what this process was started with; on this kind of
// machine nobody asks.
package limits
