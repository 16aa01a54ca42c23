package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"assay/fault"
	"assay/internal/archive"
)

// The policy of repeated file operations: they are idempotent, commands are
// not.
const (
	ioTries = 3
	ioBase  = 250 * time.Millisecond
)

// retry repeats an idempotent operation while it fails transiently.
func (s *Sandbox) retry(ctx context.Context, what string, op func() error) error {
	return s.repeat(ctx, what, func() error {
		if why := s.Unusable(); why != nil {
			return &fault.Error{Code: "sandbox-unusable", What: what, Err: fmt.Errorf("%w: %w", ErrUnusable, why)}
		}
		return op()
	})
}

// repeat is retry for what is done to unusable sandboxes too.
func (s *Sandbox) repeat(ctx context.Context, what string, op func() error) error {
	for try := 1; ; try++ {
		err := op()
		if err == nil {
			return nil
		}
		err = s.judge(ctx, err, what)
		if try == ioTries || fault.ClassOf(err) != fault.Transient {
			return err
		}
		wait := time.Duration(float64(ioBase<<(try-1)) * (0.5 + rand.Float64()))
		select {
		case <-ctx.Done():
			return s.judge(ctx, err, what)
		case <-time.After(wait):
		}
	}
}

// ReadBytes returns the exact content of a file. A missing file is an error
// that matches fs.ErrNotExist.
func (s *Sandbox) ReadBytes(ctx context.Context, p string) ([]byte, error) {
	return s.read(ctx, p, MaxRead)
}

// MaxRead is the largest file that ReadBytes and ReadText return; larger ones
// are an error with code "file-too-large". Use DownloadFile for them.
const MaxRead = 256 << 20

func (s *Sandbox) read(ctx context.Context, p string, limit int64) ([]byte, error) {
	full := s.Path(p)
	var out []byte
	err := s.retry(ctx, "read "+full, func() error {
		out = nil
		return s.getOne(ctx, full, func(h *tar.Header, r io.Reader) error {
			if h.Size > limit {
				return &fault.Error{Class: fault.Config, Code: "file-too-large", What: fmt.Sprintf("the file has %d bytes, the limit is %d", h.Size, limit), Fix: "Use DownloadFile."}
			}
			var b bytes.Buffer
			b.Grow(int(h.Size))
			if _, err := io.Copy(&b, r); err != nil {
				return err
			}
			out = b.Bytes()
			return nil
		})
	})
	if out == nil && err == nil {
		out = []byte{}
	}
	return out, err
}

// getOne streams a single file out of the sandbox, following a final symlink.
func (s *Sandbox) getOne(ctx context.Context, full string, use func(*tar.Header, io.Reader) error) error {
	for range 8 {
		link := ""
		err := s.get(ctx, full, func(tr *tar.Reader) error {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("the transfer of %s was empty", full)
			}
			if err != nil {
				return err
			}
			switch h.Typeflag {
			case tar.TypeReg:
				return use(h, tr)
			case tar.TypeSymlink:
				link = h.Linkname
				return nil
			case tar.TypeDir:
				return &fault.Error{Class: fault.Config, Code: "is-a-directory", What: full + " is a directory"}
			default:
				return &fault.Error{Class: fault.Config, Code: "not-a-regular-file", What: full + " is no regular file"}
			}
		})
		if err != nil || link == "" {
			return err
		}
		if !path.IsAbs(link) {
			link = path.Join(path.Dir(full), link)
		}
		full = path.Clean(link)
	}
	return fmt.Errorf("%s: too many levels of symlinks", full)
}

// errEnough ends a Get early: the reader has what it wanted.
var errEnough = errors.New("enough")

func (s *Sandbox) get(ctx context.Context, full string, use func(*tar.Reader) error) error {
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := fault.Caught(func() error { return s.d.Get(ctx, full, pw) })
		pw.CloseWithError(err)
		done <- err
	}()
	useErr := use(tar.NewReader(pr))
	if useErr == nil {
		// The far end may still fail after the last entry; a transfer that
		// failed is never a success.
		_, useErr = io.Copy(io.Discard, pr)
	}
	pr.CloseWithError(errEnough)
	getErr := <-done
	if getErr != nil && !errors.Is(getErr, errEnough) && !errors.Is(getErr, io.ErrClosedPipe) {
		return getErr
	}
	return useErr
}

// ReadText is ReadBytes for strict UTF-8; other content is an error with code
// "invalid-utf8".
func (s *Sandbox) ReadText(ctx context.Context, p string) (string, error) {
	b, err := s.ReadBytes(ctx, p)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(b) {
		return "", &fault.Error{Class: fault.Config, Code: "invalid-utf8", What: s.Path(p) + " is not UTF-8 text", Fix: "Use ReadBytes."}
	}
	return string(b), nil
}

// WriteBytes writes a file, with missing parent directories. It belongs to the
// sandbox's default user.
func (s *Sandbox) WriteBytes(ctx context.Context, p string, content []byte) error {
	return s.WriteFiles(ctx, path.Dir(s.Path(p)), archive.File{Name: path.Base(s.Path(p)), Body: content})
}

// WriteText is WriteBytes for strict UTF-8.
func (s *Sandbox) WriteText(ctx context.Context, p, text string) error {
	if !utf8.ValidString(text) {
		return &fault.Error{Class: fault.Config, Code: "invalid-utf8", What: "the text for " + s.Path(p) + " is not UTF-8", Fix: "Use WriteBytes."}
	}
	return s.WriteBytes(ctx, p, []byte(text))
}

// WriteFiles writes several files below dir in one transfer. Names are relative
// slash paths.
func (s *Sandbox) WriteFiles(ctx context.Context, dir string, files ...archive.File) error {
	return s.put(ctx, s.Path(dir), fmt.Sprintf("write %d files below %s", len(files), s.Path(dir)), func(w io.Writer) error {
		return archive.PackFiles(w, files...)
	})
}

func (s *Sandbox) put(ctx context.Context, dir, what string, build func(io.Writer) error) error {
	return s.retry(ctx, what, func() error {
		pr, pw := io.Pipe()
		built := make(chan error, 1)
		go func() {
			err := build(pw)
			pw.CloseWithError(err)
			built <- err
		}()
		err := s.d.Put(ctx, dir, pr)
		pr.CloseWithError(errEnough)
		if berr := <-built; berr != nil && !errors.Is(berr, errEnough) && !errors.Is(berr, io.ErrClosedPipe) {
			// The source failed: that is the cause, whatever the far end says.
			return berr
		}
		return err
	})
}

// PathExists answers for files and directories. It is false only when absence
// is known; a failed look is an error.
func (s *Sandbox) PathExists(ctx context.Context, p string) (bool, error) {
	full := s.Path(p)
	err := s.retry(ctx, "look at "+full, func() error {
		if st, ok := As[Stater](s); ok {
			_, err := st.Stat(ctx, full)
			return err
		}
		return s.get(ctx, full, func(tr *tar.Reader) error {
			if _, err := tr.Next(); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return errEnough
		})
	})
	switch {
	case err == nil || errors.Is(err, errEnough):
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, err
	}
}

// Remove removes a path and what is below it. A missing path is no error.
func (s *Sandbox) Remove(ctx context.Context, p string) error {
	full := s.Path(p)
	if r, ok := As[Remover](s); ok {
		return s.retry(ctx, "remove "+full, func() error { return r.Remove(ctx, full) })
	}
	_, err := s.RunCommandOrThrow(ctx, []string{"rm", "-rf", "--", full})
	return err
}

// hostPath resolves a host path and, where the sandbox is confined, refuses one
// that leaves the project by name or by symlink.
func (s *Sandbox) hostPath(p string) (string, error) {
	if rest, ok := strings.CutPrefix(p, "file://"); ok {
		p = rest
	}
	if !filepath.IsAbs(p) {
		if s.o.HostDir == "" {
			return "", fault.Configf("host-path-relative", "Give an absolute path.", "relative host path %q has no folder to start from", p)
		}
		p = filepath.Join(s.o.HostDir, p)
	}
	return p, nil
}

func (s *Sandbox) source(p string) (string, error) {
	p, err := s.hostPath(p)
	if err != nil {
		return "", err
	}
	return p, Confine(s.o.HostRoot, p)
}

// Confine returns an error, code "path-escapes", when the host path p, with
// symlinks followed, is not below root. An empty root confines nothing.
func Confine(root, p string) error {
	if root == "" {
		return nil
	}
	realRoot, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	full, err := filepath.EvalSymlinks(p)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(realRoot, full); err != nil || rel != "." && !filepath.IsLocal(rel) {
		return fault.Configf("path-escapes", "Copy the files into the project.", "%s leads outside of the project, to %s", p, full)
	}
	return nil
}

func (s *Sandbox) transferred(p string) {
	if s.o.Transferred != nil {
		s.o.Transferred(p)
	}
}

// UploadFile copies one host file to target, which names the file and not its
// folder. Permission bits are kept.
func (s *Sandbox) UploadFile(ctx context.Context, source, target string) error {
	src, err := s.source(source)
	if err != nil {
		return err
	}
	full := s.Path(target)
	err = s.put(ctx, path.Dir(full), "upload "+source, func(w io.Writer) error {
		_, err := archive.PackOne(w, src, path.Base(full))
		return err
	})
	if err == nil {
		s.transferred(src)
	}
	return err
}

// TransferOptions are the settings of a directory transfer.
type TransferOptions struct {
	// Ignore are base names that are pruned at any depth.
	Ignore []string
}

// UploadDirectory copies the content of a host folder below target; an empty
// target is the workdir. An empty or missing folder is an error.
func (s *Sandbox) UploadDirectory(ctx context.Context, source, target string, opts ...TransferOptions) error {
	src, err := s.source(source)
	if err != nil {
		return err
	}
	var o TransferOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	entries, err := os.ReadDir(src)
	if err != nil {
		return fault.Wrap(err, fault.Config, "upload-source", "upload "+source)
	}
	if len(entries) == 0 {
		return fault.Configf("upload-empty", "Put files into the folder or leave the upload out.", "the folder %s is empty", src)
	}
	err = s.put(ctx, s.Path(target), "upload "+source, func(w io.Writer) error {
		_, err := archive.PackDir(w, src, archive.PackOptions{Ignore: o.Ignore})
		return err
	})
	if err == nil {
		s.transferred(src)
	}
	return err
}

// DownloadFile copies one file of the sandbox to a host path. The target
// appears only when the transfer is complete.
func (s *Sandbox) DownloadFile(ctx context.Context, source, target string) error {
	dst, err := s.hostPath(target)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	return s.retry(ctx, "download "+s.Path(source), func() error {
		f, err := os.CreateTemp(filepath.Dir(dst), ".download-*")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		err = s.getOne(ctx, s.Path(source), func(h *tar.Header, r io.Reader) error {
			n, err := io.Copy(f, r)
			if err == nil && n != h.Size {
				err = fmt.Errorf("got %d of %d bytes", n, h.Size)
			}
			if err == nil {
				err = f.Chmod(fs.FileMode(h.Mode) & 0o777)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return os.Rename(f.Name(), dst)
	})
}

// DownloadDirectory copies a tree of the sandbox to a host folder, which must
// be missing or empty. The stream is not trusted: nothing outside the folder
// changes.
func (s *Sandbox) DownloadDirectory(ctx context.Context, source, target string, opts ...TransferOptions) error {
	dst, err := s.hostPath(target)
	if err != nil {
		return err
	}
	if old, err := os.ReadDir(dst); err == nil && len(old) > 0 {
		return fault.Configf("download-target", "Name a folder that is missing or empty.", "the folder %s is not empty", dst)
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	var o TransferOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	return s.retry(ctx, "download "+s.Path(source), func() error {
		tmp, err := os.MkdirTemp(filepath.Dir(dst), ".download-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		root, err := os.OpenRoot(tmp)
		if err != nil {
			return err
		}
		defer root.Close()
		pr, pw := io.Pipe()
		done := make(chan error, 1)
		go func() {
			err := fault.Caught(func() error { return s.d.Get(ctx, s.Path(source), pw) })
			pw.CloseWithError(err)
			done <- err
		}()
		_, xerr := archive.ExtractIgnoring(pr, root, archive.Limits{}, o.Ignore)
		if xerr == nil {
			_, xerr = io.Copy(io.Discard, pr)
		}
		pr.CloseWithError(errEnough)
		if err := <-done; err != nil && !errors.Is(err, errEnough) && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
		if xerr != nil {
			return xerr
		}
		if err := os.Remove(dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Chmod(tmp, 0o755); err != nil {
			return err
		}
		return os.Rename(tmp, dst)
	})
}

// CreateCheckpoint archives the named paths of a sandbox as bytes: a cache for
// later sandboxes, not an image. Any failure is an error.
func CreateCheckpoint(ctx context.Context, s *Sandbox, paths []string) ([]byte, error) {
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, p := range paths {
		full := s.Path(p)
		err := s.get(ctx, full, func(tr *tar.Reader) error {
			for {
				h, err := tr.Next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				name := path.Join(full, h.Name)
				if h.Typeflag != tar.TypeDir && path.Clean(h.Name) == path.Base(full) {
					name = full // a single file
				}
				h.Name = strings.TrimPrefix(name, "/")
				if h.Typeflag == tar.TypeDir {
					h.Name += "/"
				}
				if h.Typeflag == tar.TypeLink {
					h.Linkname = strings.TrimPrefix(path.Join(full, h.Linkname), "/")
				}
				h.Format = tar.FormatPAX
				if err := tw.WriteHeader(h); err != nil {
					return err
				}
				if _, err := io.Copy(tw, tr); err != nil {
					return err
				}
			}
		})
		if err != nil {
			return nil, s.judge(ctx, err, "archive "+full)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// RestoreCheckpoint unpacks a checkpoint into a live sandbox.
func RestoreCheckpoint(ctx context.Context, s *Sandbox, checkpoint []byte) error {
	// The reader takes an archive that stops between two entries for a whole
	// one; only the two zero blocks at the end show that nothing is missing.
	if len(checkpoint)%512 != 0 || !bytes.HasSuffix(checkpoint, make([]byte, 1024)) {
		return fault.Configf("checkpoint-invalid", "Create the checkpoint again.", "the checkpoint is cut short")
	}
	tr := tar.NewReader(bytes.NewReader(checkpoint))
	for {
		if _, err := tr.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fault.Configf("checkpoint-invalid", "Create the checkpoint again.", "the checkpoint is no complete archive: %v", err)
		}
	}
	return s.put(ctx, "/", "restore a checkpoint", func(w io.Writer) error {
		_, err := w.Write(checkpoint)
		return err
	})
}
