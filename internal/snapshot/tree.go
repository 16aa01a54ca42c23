package snapshot

import (
	"errors"
	"io"
)

// ErrNotRegular is the error of opening what is not, or no longer, a regular file.
var ErrNotRegular = errors.New("not a regular file")

// Type bits of Facts.Mode, as in st_mode (inode(7)).
const (
	TypeMask uint32 = 0o170000
	TypeFile uint32 = 0o100000
	TypeDir  uint32 = 0o040000
	TypeLink uint32 = 0o120000
	TypeFIFO uint32 = 0o010000
)

// Facts is what lstat tells of one path.
type Facts struct {
	// Name is the last element of the path; empty for the root.
	Name string
	// Mode holds the type and the twelve permission bits, as in st_mode.
	Mode uint32
	// Size is in bytes; for a link the length of its target.
	Size int64
	// ModTime and ChangeTime are nanoseconds since 1970. A change of content or
	// of Mode must change ChangeTime or Inode.
	ModTime, ChangeTime int64
	Inode               uint64
	UID, GID            uint32
}

// IsDir, IsFile and IsLink tell the type; other types are special files.
func (f Facts) IsDir() bool { return f.Mode&TypeMask == TypeDir }

// IsFile tells whether it is a regular file.
func (f Facts) IsFile() bool { return f.Mode&TypeMask == TypeFile }

// IsLink tells whether it is a symbolic link.
func (f Facts) IsLink() bool { return f.Mode&TypeMask == TypeLink }

// Tree is a working tree to read. Paths are relative to its root, separated by
// "/", made of raw bytes; "" is the root. No method follows a symbolic link in
// any element of a path: a path through a link is fs.ErrNotExist or another
// error. Methods may be called from several goroutines.
type Tree interface {
	// Lstat returns the facts of path, or fs.ErrNotExist.
	Lstat(path string) (Facts, error)
	// ReadDir returns the facts of everything in dir, in any order. An entry
	// that vanishes meanwhile is left out.
	ReadDir(dir string) ([]Facts, error)
	// Open opens a regular file. It never blocks on a special file; anything
	// but a regular file is ErrNotRegular.
	Open(path string) (File, error)
	// Readlink returns the target of a link, uninterpreted.
	Readlink(path string) (string, error)
}

// File is an open regular file.
type File interface {
	io.ReadCloser
	// Stat returns the current facts; Name may be empty.
	Stat() (Facts, error)
}

// WriteTree is a working tree that can be restored. As in Tree, no path is
// followed through a link. Parents exist when a method is called.
type WriteTree interface {
	Tree
	// Create puts a regular file with content, permission bits and, when
	// own.Set, owner at path, replacing what is there atomically. What is there
	// is not a directory. It never writes through an existing file or link.
	Create(path string, content io.Reader, perm uint32, own Owner) error
	// Symlink puts a link at path, replacing a non-directory.
	Symlink(target, path string, own Owner) error
	// Mkdir makes a directory; the path is free.
	Mkdir(path string, perm uint32) error
	// Remove deletes one file, link, special file or empty directory.
	Remove(path string) error
	// Chmod sets the twelve permission bits of a file or directory.
	Chmod(path string, perm uint32) error
	// Chown sets the owner of a path, without following a link.
	Chown(path string, own Owner) error
	// MayChown tells whether Chown can be expected to work.
	MayChown() bool
}

// Owner is an owner to set; the zero value leaves the owner as it comes.
type Owner struct {
	Set      bool
	UID, GID uint32
}
