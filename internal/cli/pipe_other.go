//go:build !unix

package cli

func isPipe(error) bool { return false }

func keepPipes() {}
