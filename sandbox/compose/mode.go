package compose

import "io/fs"

// fileMode turns permission bits of a file into Go's.
func fileMode(bits uint32) fs.FileMode { return fs.FileMode(bits) & fs.ModePerm }
