package fake

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// open opens a path of the process for a redirection or a program.
func (p *proc) open(name string, m openMode) (*file, error) {
	for n, dev := range []string{"/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		if name == dev && p.fds[n] != nil {
			return p.fds[n], nil
		}
	}
	if name == "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	}
	h, err := p.m.tree.open(p.abs(name), m, 0o666&^p.mask, p.cred())
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return nil, &fs.PathError{Op: pe.Op, Path: name, Err: pe.Err}
		}
		return nil, err
	}
	return newFile(h), nil
}

func (p *proc) cred() cred { return cred{p.who.uid, p.who.gid} }

// abs is a path below the process's directory. It is not cleaned: ".." after a
// link means what the link leads to.
func (p *proc) abs(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return p.cwd + "/" + name
}

func (p *proc) print(fd int, s string) bool {
	f := p.fds[fd]
	if f == nil {
		return false
	}
	_, err := f.write(p, []byte(s))
	return err == nil
}

// fdio is a descriptor as a reader and writer.
type fdio struct {
	p  *proc
	fd int
}

func (f fdio) Read(b []byte) (int, error) {
	if f.p.fds[f.fd] == nil {
		return 0, os.ErrClosed
	}
	return f.p.fds[f.fd].read(f.p, b)
}

func (f fdio) Write(b []byte) (int, error) {
	if f.p.fds[f.fd] == nil {
		return 0, os.ErrClosed
	}
	return f.p.fds[f.fd].write(f.p, b)
}
