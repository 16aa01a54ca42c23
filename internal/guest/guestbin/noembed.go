//go:build !embedguest

package guestbin

import "io/fs"

// embedded is empty without the build tag embedguest.
var embedded fs.FS
