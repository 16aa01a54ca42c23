// Package atomicfile replaces a file, or makes a whole folder appear, durably
// and in one step: write beside the place, sync, rename, sync the parent. A
// crash or a full disk at any instant leaves the old state or the new one.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Step names one thing that Disk does to the file system.
type Step string

// The steps.
const (
	Mkdir   Step = "mkdir"
	Create  Step = "create"
	Write   Step = "write"
	Sync    Step = "sync"
	Rename  Step = "rename"
	SyncDir Step = "syncdir"
)

// Disk does the work. The zero value is the real file system; it is safe for
// concurrent use and must not be copied after its first use.
type Disk struct {
	// Fault, when set, is asked before each step and may make it fail. A failing
	// Write leaves half of the bytes, as a full disk does.
	Fault func(step Step, path string) error

	mu   sync.Mutex
	dirs map[string]*dirSync
}

// File is one file of a folder that Publish makes.
type File struct {
	Name string // a plain name, no separators
	Data []byte
}

// The modes of everything that is made here: results may hold what an agent
// read, so they are the owner's alone.
const (
	DirMode  fs.FileMode = 0o700
	FileMode fs.FileMode = 0o600
)

// Replace writes data to a temporary file in the folder of path, syncs it,
// renames it to path and syncs the folder. On error path is as it was.
func (d *Disk) Replace(path string, data []byte) error {
	dir, base := filepath.Split(path)
	tmp, err := d.temp(filepath.Clean(dir), base)
	if err != nil {
		return err
	}
	return d.replace(tmp, path, data)
}

// ReplaceVia is Replace with the temporary file in another folder of the same
// file system.
func (d *Disk) ReplaceVia(tmpDir, path string, data []byte) error {
	tmp, err := d.temp(tmpDir, filepath.Base(path))
	if err != nil {
		return err
	}
	return d.replace(tmp, path, data)
}

func (d *Disk) replace(tmp *os.File, path string, data []byte) error {
	name := tmp.Name()
	err := d.write(tmp, data)
	if err == nil {
		err = d.sync(tmp)
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		if err = d.fault(Rename, path); err == nil {
			err = os.Rename(name, path)
		}
	}
	if err != nil {
		_ = os.Remove(name)
		return err
	}
	return d.SyncDir(filepath.Dir(path))
}

// Publish makes the folder target with the given files appear in one step. The
// folder stage is made, filled and synced first; it must not exist and lies on
// the same file system. On error neither stage nor target is left; target must
// not exist and is never replaced.
func (d *Disk) Publish(stage, target string, files []File, folders ...string) error {
	err := d.fault(Mkdir, stage)
	if err == nil {
		err = os.Mkdir(stage, DirMode)
	}
	if err != nil {
		return err
	}
	if err = d.fill(stage, files, folders); err == nil {
		err = d.fault(Rename, target)
	}
	if err == nil {
		// rename(2) replaces an empty folder silently; everything published has
		// at least one file, so only a check for nothing there is left to do.
		if _, serr := os.Lstat(target); serr == nil {
			err = fmt.Errorf("%s: %w", target, fs.ErrExist)
		} else {
			err = os.Rename(stage, target)
		}
	}
	if err != nil {
		_ = os.RemoveAll(stage)
		return err
	}
	if err = d.SyncDir(filepath.Dir(target)); err != nil {
		// Nobody may count on it: it goes the way it came, in one step.
		_ = os.Rename(target, stage)
		_ = os.RemoveAll(stage)
	}
	return err
}

// fill writes all files before it syncs the first, so that one journal commit
// of the file system covers them all.
func (d *Disk) fill(dir string, files []File, folders []string) (err error) {
	open := make([]*os.File, 0, len(files))
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, name := range folders {
		if err := d.fault(Mkdir, filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, name), DirMode); err != nil {
			return err
		}
	}
	for _, file := range files {
		f, err := d.create(filepath.Join(dir, file.Name))
		if err != nil {
			return err
		}
		open = append(open, f)
		if err := d.write(f, file.Data); err != nil {
			return err
		}
		startWriteback(f)
	}
	for _, f := range open {
		if err := d.sync(f); err != nil {
			return err
		}
	}
	return d.syncDirNow(dir)
}

// Append adds data to the end of path, which is made when it is not there, and
// syncs it. On error the file is cut back to its old length.
func (d *Disk) Append(path string, data []byte) (err error) {
	fresh := false
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		fresh = true
		f, err = d.create(path)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err = d.write(f, data); err == nil {
		err = d.sync(f)
	}
	if err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}
	if fresh {
		return d.SyncDir(filepath.Dir(path))
	}
	return nil
}

func (d *Disk) temp(dir, base string) (*os.File, error) {
	if err := d.fault(Create, filepath.Join(dir, base)); err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, "."+base+".*") // mode 0600
}

func (d *Disk) create(path string) (*os.File, error) {
	if err := d.fault(Create, path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, FileMode)
}

func (d *Disk) write(f *os.File, data []byte) error {
	if err := d.fault(Write, f.Name()); err != nil {
		_, _ = f.Write(data[:len(data)/2])
		return err
	}
	_, err := f.Write(data)
	return err
}

func (d *Disk) sync(f *os.File) error {
	if err := d.fault(Sync, f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *Disk) fault(step Step, path string) error {
	if d.Fault == nil {
		return nil
	}
	if err := d.Fault(step, path); err != nil {
		return &fs.PathError{Op: string(step), Path: path, Err: err}
	}
	return nil
}
