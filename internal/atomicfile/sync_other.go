//go:build !linux

package atomicfile

import (
	"os"
	"runtime"
)

func startWriteback(*os.File) {}

// syncFolder: Windows has no way to sync a folder and journals renames itself.
func syncFolder(f *os.File) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return f.Sync()
}
