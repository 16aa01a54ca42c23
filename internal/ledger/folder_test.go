package ledger

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/sandbox"
)

type folder struct{ dir string }

var _ sandbox.Driver = (*folder)(nil)

func (f *folder) ID() string      { return filepath.Base(f.dir) }
func (f *folder) Workdir() string { return f.dir }

// Exec runs a command in a process group of its own and ends the group with ctx.
func (f *folder) Exec(ctx context.Context, c sandbox.Cmd) (sandbox.Exit, error) {
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, c.Stdin, c.Stdout, c.Stderr
	for k, v := range c.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil && !(err == nil):
		return sandbox.Exit{}, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return sandbox.Exit{Code: 127}, nil
	case errors.As(err, &exit):
		return sandbox.Exit{Code: exit.ExitCode()}, nil
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return sandbox.Exit{}, err
	}
	return sandbox.Exit{}, nil
}

// Put unpacks files and directories below dir.
func (f *folder) Put(_ context.Context, dir string, archive io.Reader) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(archive); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, fs.FileMode(h.Mode)&0o777|0o700)
		case tar.TypeReg:
			if err = root.MkdirAll(filepath.Dir(name), 0o755); err == nil {
				err = write(root, name, fs.FileMode(h.Mode)&0o777, tr)
			}
		}
		if err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	w, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Chmod(mode), w.Close())
}

// Get writes one file, or a tree with names relative to path.
func (f *folder) Get(_ context.Context, path string, w io.Writer) error {
	tw := tar.NewWriter(w)
	err := filepath.Walk(path, func(p string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p, path), "/")
		if name == "" {
			if info.IsDir() {
				return nil
			}
			name = filepath.Base(path)
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = name
		if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		_, err = tw.Write(b)
		return err
	})
	return errors.Join(err, tw.Close())
}

// Stop removes the folder.
func (f *folder) Stop(context.Context) error { return os.RemoveAll(f.dir) }

// newFolder is a driver without optional powers over a folder of this machine.
func newFolder(t *testing.T) *folder {
	t.Helper()
	return &folder{dir: t.TempDir()}
}
