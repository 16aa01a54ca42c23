//go:build !unix

package discover

import (
	"io"
	"os"

	"assay/internal/projectfile"
)

// readRegular returns a regular file's content, or one byte more than is
// allowed of a file that is too large.
func readRegular(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return io.ReadAll(io.LimitReader(file, projectfile.MaxFile+1))
}
