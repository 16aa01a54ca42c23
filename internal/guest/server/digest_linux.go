package server

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// digest hashes files, following symbolic links.
func digest(paths []string) wire.Message {
	r := &wire.DigestReply{}
	for _, p := range paths {
		sum, err := hashFile(p)
		r.Digests = append(r.Digests, wire.Digest{SHA256: sum, Result: resultOf(err, fmt.Sprintf("digest %q", p))})
	}
	return r
}

// hashFile opens without blocking, so that a FIFO in the place of the file is an
// error and not a hang.
func hashFile(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", coded{wire.CodeOther, fmt.Sprintf("%q is not a regular file", name)}
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return string(h.Sum(nil)), nil
}
