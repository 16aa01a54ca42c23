package server

import (
	"os"
	"path"

	"assay/internal/guest/wire"
)

// remove removes a path with what is below it. A symlink at its end goes itself;
// the walk down follows none.
func remove(name string) wire.Message {
	if clean := path.Clean(name); !path.IsAbs(clean) || clean == "/" {
		return &wire.Result{Code: wire.CodeOther, What: "remove " + name + ": not an absolute path below /"}
	}
	r := resultOf(os.RemoveAll(path.Clean(name)), "remove")
	return &r
}
