// Package limits remembers what this process was started with.
package limits

// openFiles is taken before package syscall raises the limit for this process:
// packages start in the order of their import paths, each as soon as what it
// imports has ("Program initialization" of the Go specification), and this one
// imports nothing.
var openFiles = nofile()

func nofile() (r [2]uint64) {
	if getrlimit(7 /* RLIMIT_NOFILE */, &r) != 0 {
		return [2]uint64{}
	}
	return r
}

// getrlimit is getrlimit(2).
//
//go:noescape
func getrlimit(resource uintptr, r *[2]uint64) (errno uintptr)

// OpenFiles is the soft and hard limit on open files that this process was started
// with, which is the one for programs that it starts; ok is false if it is not
// known.
func OpenFiles() (soft, hard uint64, ok bool) { return openFiles[0], openFiles[1], openFiles[1] > 0 }
