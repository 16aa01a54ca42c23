//go:build !unix

package docker

// diskFree returns the bytes that are free where path is; here they are not
// known.
var diskFree = func(string) (int64, bool) { return 0, false }
