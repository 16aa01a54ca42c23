package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback asks for the blocks of f to be placed and written now, so that
// the syncs that follow share a journal commit. It is a hint only.
func startWriteback(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

func syncFolder(f *os.File) error { return f.Sync() }
