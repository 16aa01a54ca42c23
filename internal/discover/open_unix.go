//go:build unix

package discover

import (
	"errors"
	"io/fs"
	"syscall"

	"assay/internal/projectfile"
)

// readRegular returns a regular file's content, or one byte more than is
// allowed of a file that is too large. It never waits for a pipe's writer, and
// makes four system calls: a large project has ten thousand files.
func readRegular(name string) ([]byte, error) {
	fd, err := again(func() (int, error) {
		return syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if _, err := again(func() (int, error) { return 0, syscall.Fstat(fd, &st) }); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, errNotRegular
	}
	data := make([]byte, min(st.Size, projectfile.MaxFile+1))
	got := 0
	for got < len(data) {
		n, err := again(func() (int, error) { return syscall.Read(fd, data[got:]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			break // it has become shorter
		}
		got += n
	}
	return data[:got], nil
}

// again repeats a call that a signal interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
