//go:build !linux

package server

// Guest mode exists on Linux only.
func serve(Options) int { return 2 }

func session() int { return 2 }

func sweep() int { return 2 }
