package record

import (
	"os"

	"assay/fault"
	"assay/ref"
)

// RemoveRun removes a run with everything in it: at once for readers, whatever
// interrupts the rest. A run that is not there is record-run-not-found.
func (w *Writer) RemoveRun(id ref.RunID) error {
	if !ref.ValidID(string(id)) {
		return fault.Configf(CodeRunNotFound, "`assay show` lists the runs", "run %q is not in %s", string(id), w.root)
	}
	from, to := w.path(runsDir, string(id)), w.path(tmpDir, "removed-"+string(id))
	if err := os.Rename(from, to); err != nil {
		if os.IsNotExist(err) {
			return fault.Configf(CodeRunNotFound, "`assay show` lists the runs", "run %s is not in %s", id, w.root)
		}
		return ioError(err, w.root, "remove run "+string(id))
	}
	if err := w.disk.SyncDir(w.path(runsDir)); err != nil {
		return ioError(err, w.root, "remove run "+string(id))
	}
	if err := os.RemoveAll(to); err != nil {
		return ioError(err, w.root, "remove run "+string(id))
	}
	return nil
}
