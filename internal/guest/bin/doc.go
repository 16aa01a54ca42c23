//go:build !embedguest

// Package bin holds guest binaries in builds with the tag embedguest, and
// nothing otherwise.
package bin
