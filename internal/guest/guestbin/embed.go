//go:build embedguest

package guestbin

import (
	"io/fs"

	"assay/internal/guest/bin"
)

// embedded holds what the build put into the bin folder.
var embedded fs.FS = bin.Files
