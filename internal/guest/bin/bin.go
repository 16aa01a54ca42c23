//go:build embedguest

// Package bin holds the guest binaries that a build with the tag embedguest
// carries: assay-guest-<os>-<arch>, or the same with .gz, put into this folder
// before the build (git ignores them).
package bin

import "embed"

// Files has the binaries at its root. The build fails when there are none.
//
//go:embed assay-guest-*
var Files embed.FS
