package guest

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/guest/wire"
)

// PutOptions say to whom the files of a Put belong and how much it may bring.
type PutOptions struct {
	UID, GID   uint32 // owner of everything that Put makes
	MaxBytes   int64  // of all files together, holes included; 0: no limit
	MaxEntries int64  // 0: no limit
}

// Transfer says what a Put or Get moved.
type Transfer struct {
	Entries int64
	Bytes   int64 // sizes of the files, holes included
	// Warnings names what a Get left out because it cannot be in an archive.
	Warnings []string
}

// Put unpacks an uncompressed tar beneath dir, an absolute path that is made,
// with its parents, when it is missing. Owners in the archive are ignored;
// permission bits are kept, set-id bits dropped. Regular files, directories,
// symbolic links (as data) and hard links to earlier members are unpacked; any
// other entry, and any name that is absolute or climbs, is an error that names
// it. Put does not return while archive is being read, unless a cancelled Read
// stays blocked longer than Options.Confirm. No symbolic link below dir is followed: one in the place of a directory is
// replaced. Each file appears whole under its name or not at all; after an error
// earlier entries may be there.
func (c *Client) Put(ctx context.Context, dir string, archive io.Reader, o PutOptions) (Transfer, error) {
	s, err := c.open(ctx, wire.OpPut, &wire.PutRequest{Dir: dir, UID: o.UID, GID: o.GID, MaxBytes: o.MaxBytes, MaxEntries: o.MaxEntries})
	if err != nil {
		return Transfer{}, err
	}
	defer s.Close()
	sendCtx, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan error, 2)
	go func() {
		err := sendTar(sendCtx, s, archive)
		sent <- err
		sent <- err
	}()
	defer func() { // the archive is the caller's again, unless its Read is stuck
		stop()
		s.Close()
		select {
		case <-sent:
		case <-time.After(c.confirm):
		}
	}()
	var r wire.TransferReply
	select {
	case err = <-sent:
	case <-s.Replied(): // refused early, or done
		if err := c.decode(s, &r, &r.Result); err != nil {
			return Transfer{}, err
		}
		// A guest that is done has seen the end of the archive: the sender is
		// about to say that it has sent that.
		select {
		case err = <-sent:
		case <-time.After(c.confirm):
			err = wire.ErrProtocol
		}
		if err != nil {
			return Transfer{}, gone("put", err)
		}
		return Transfer{Entries: r.Entries, Bytes: r.Bytes}, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		if err = c.await(ctx, s); err == nil {
			if err := c.decode(s, &r, &r.Result); err != nil {
				return Transfer{}, err
			}
			return Transfer{Entries: r.Entries, Bytes: r.Bytes}, nil
		}
	}
	return Transfer{}, c.abortPut(ctx, s, err)
}

// abortPut makes the guest give up and clean up, and waits for its word.
func (c *Client) abortPut(ctx context.Context, s *wire.Stream, err error) error {
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), c.confirm)
	defer stop()
	var r wire.TransferReply
	if s.Kill(0, bounded.Done()) == nil && c.await(bounded, s) == nil {
		if said := c.decode(s, &r, &r.Result); said != nil && fault.CodeOf(said) != wire.CodeCanceled && ctx.Err() == nil && !errors.As(err, new(callerError)) {
			return said // the guest refused first
		}
	}
	return c.transferError(ctx, s, err)
}

// sendTar sends the entries of a tar as records.
func sendTar(ctx context.Context, s *wire.Stream, archive io.Reader) error {
	src := &tarSource{ctx: ctx, r: archive}
	w := bufio.NewWriterSize(s.Writer(0), 128<<10)
	tr := tar.NewReader(src)
	buf := make([]byte, 64<<10)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return callerError{badArchive("", err)}
		}
		rec, err := recordOf(h)
		if err != nil {
			return callerError{err}
		}
		if rec == nil {
			continue
		}
		if err := wire.WriteRecord(w, rec); err != nil {
			return callerError{badArchive(h.Name, err)}
		}
		if rec.Kind == wire.KindFile {
			if err := sendFile(w, tr, rec.Size, buf); err != nil {
				return err
			}
		}
	}
	if !src.closed() {
		return callerError{badArchive("", io.ErrUnexpectedEOF)}
	}
	if err := wire.WriteRecord(w, &wire.Record{Kind: wire.KindEnd}); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// A writer at the other end of a pipe may still want to send padding.
	_, _ = io.CopyN(io.Discard, src, 1<<20)
	return s.CloseWrite(0)
}

// sendFile sends the content of a file, leaving out blocks of zeros.
func sendFile(w io.Writer, r io.Reader, size int64, buf []byte) error {
	for off := int64(0); off < size; {
		b := buf[:min(int64(len(buf)), size-off)]
		if _, err := io.ReadFull(r, b); err != nil {
			return callerError{badArchive("", err)}
		}
		if !allZero(b) {
			if err := wire.WriteExtent(w, off, int64(len(b))); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		off += int64(len(b))
	}
	return wire.WriteExtent(w, size, 0)
}

// recordOf translates a tar header; nil is an entry without a file.
func recordOf(h *tar.Header) (*wire.Record, error) {
	rec := &wire.Record{Name: h.Name, Mode: uint32(h.Mode & 0o777), MTime: h.ModTime.UnixNano()}
	if h.ModTime.IsZero() || h.ModTime.Year() < 1700 || h.ModTime.Year() > 2200 {
		rec.MTime = 0
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		rec.Kind, rec.Size = wire.KindFile, h.Size
	case tar.TypeDir:
		rec.Kind = wire.KindDir
	case tar.TypeSymlink:
		rec.Kind, rec.Link = wire.KindSymlink, h.Linkname
	case tar.TypeLink:
		rec.Kind, rec.Link = wire.KindHardlink, h.Linkname
	case tar.TypeXGlobalHeader:
		return nil, nil
	default:
		return nil, badArchive(h.Name, fmt.Errorf("an entry of type %q is not allowed", h.Typeflag))
	}
	if !localName(h.Name) {
		return nil, badArchive(h.Name, errors.New("the name is absolute or climbs"))
	}
	return rec, nil
}

func badArchive(name string, err error) error {
	if errors.As(err, new(callerError)) {
		return err
	}
	what := "archive"
	if name != "" {
		what = fmt.Sprintf("archive entry %q", name)
	}
	return &fault.Error{Class: fault.Config, Code: CodeArchive, What: what, Err: err}
}

// localName says whether a slash-separated name stays below where it starts.
func localName(name string) bool {
	if name == "" || strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// tarSource remembers the end of what was read, because archive/tar takes a
// stream that was cut between two entries for a complete one.
type tarSource struct {
	ctx   context.Context
	r     io.Reader
	zeros int // at the end of what was read so far
}

func (t *tarSource) Read(p []byte) (int, error) {
	if t.ctx.Err() != nil {
		return 0, context.Cause(t.ctx)
	}
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		err = callerError{fmt.Errorf("read archive: %w", err)}
	}
	for i := n - 1; i >= 0; i-- {
		if p[i] != 0 {
			t.zeros = n - 1 - i
			return n, err
		}
	}
	t.zeros += n
	return n, err
}

// closed says whether the two zero blocks that end an archive were read.
func (t *tarSource) closed() bool { return t.zeros >= 1024 }

// GetOptions say what a Get brings.
type GetOptions struct {
	// Follow follows path itself when it is a symbolic link. Links below are
	// never followed.
	Follow bool
	// File refuses a directory with CodeIsDirectory.
	File bool
	// Ignore are base names that are left out, with all below, at any depth.
	Ignore []string
	// MaxBytes bounds the sizes of all files together, holes included; more is
	// CodeTooLarge. 0: no limit.
	MaxBytes int64
}

// Get writes the file or tree at an absolute path to w as a tar: a file under
// its base name, a directory as "./" with everything below it as "./...".
// Sockets, devices and FIFOs are left out with a warning. A missing path is
// fs.ErrNotExist. After an error what was written to w is not a whole archive:
// the end marker is missing.
func (c *Client) Get(ctx context.Context, p string, w io.Writer, o GetOptions) (Transfer, error) {
	s, err := c.open(ctx, wire.OpGet, &wire.GetRequest{Path: p, Follow: o.Follow, File: o.File, Ignore: o.Ignore, MaxBytes: o.MaxBytes})
	if err != nil {
		return Transfer{}, err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, s.Reset)
	defer stop()
	tw := tar.NewWriter(callerWriter{w})
	got, err := receiveTar(s, tw)
	if err != nil && !errors.As(err, new(callerError)) && ctx.Err() == nil {
		// The guest ends its records early when it fails, and says why.
		if waitErr := c.await(ctx, s); waitErr != nil {
			return Transfer{}, c.transferError(ctx, s, waitErr)
		}
		var r wire.TransferReply
		if said := c.decode(s, &r, &r.Result); said != nil {
			return Transfer{}, said
		}
		c.conn.Close() // it claims success for a broken archive
		return Transfer{}, gone("get", err)
	}
	if err != nil {
		return Transfer{}, c.transferError(ctx, s, err)
	}
	if err := c.await(ctx, s); err != nil {
		return Transfer{}, c.transferError(ctx, s, err)
	}
	var r wire.TransferReply
	if err := c.decode(s, &r, &r.Result); err != nil {
		return Transfer{}, err
	}
	if r.Entries != got.Entries || r.Bytes != got.Bytes {
		c.conn.Close()
		return Transfer{}, gone("get", fmt.Errorf("%w: %d entries, %d bytes announced, %d, %d received", wire.ErrProtocol, r.Entries, r.Bytes, got.Entries, got.Bytes))
	}
	if err := tw.Close(); err != nil {
		return Transfer{}, c.transferError(ctx, s, err)
	}
	got.Warnings = r.Warnings
	return got, nil
}

type callerWriter struct{ w io.Writer }

func (c callerWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		err = callerError{err}
	}
	return n, err
}

// receiveTar turns records into tar entries until the record that ends them.
func receiveTar(s *wire.Stream, tw *tar.Writer) (Transfer, error) {
	var t Transfer
	r := bufio.NewReaderSize(s.Reader(0), 64<<10)
	buf := make([]byte, 64<<10)
	for {
		rec, err := wire.ReadRecord(r)
		if err != nil {
			return t, err
		}
		if rec.Kind == wire.KindEnd {
			return t, nil
		}
		h, err := headerOf(rec)
		if err != nil {
			return t, err
		}
		if err := tw.WriteHeader(h); err != nil {
			return t, err
		}
		t.Entries++
		if rec.Kind != wire.KindFile {
			continue
		}
		t.Bytes += rec.Size
		if err := receiveFile(r, tw, rec.Size, buf); err != nil {
			return t, err
		}
	}
}

func headerOf(rec *wire.Record) (*tar.Header, error) {
	if !localName(rec.Name) {
		return nil, fmt.Errorf("%w: name %q", wire.ErrProtocol, rec.Name)
	}
	if tree := strings.TrimPrefix(rec.Name, "./"); path.Clean(tree) != tree {
		return nil, fmt.Errorf("%w: name %q", wire.ErrProtocol, rec.Name)
	}
	h := &tar.Header{Name: rec.Name, Mode: int64(rec.Mode & 0o777), ModTime: time.Unix(0, rec.MTime), Format: tar.FormatPAX}
	switch rec.Kind {
	case wire.KindFile:
		h.Typeflag, h.Size = tar.TypeReg, rec.Size
	case wire.KindDir:
		h.Typeflag, h.Name = tar.TypeDir, rec.Name+"/"
	case wire.KindSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, rec.Link
	default:
		return nil, fmt.Errorf("%w: record kind %d", wire.ErrProtocol, rec.Kind)
	}
	return h, nil
}

// receiveFile copies the extents of a file and fills its holes with zeros.
func receiveFile(r io.Reader, w io.Writer, size int64, buf []byte) error {
	at := int64(0)
	for {
		off, n, err := wire.ReadExtent(r, at, size)
		if err != nil {
			return err
		}
		end := off
		if n == 0 {
			end = size
		}
		clear(buf)
		for at < end {
			k, err := w.Write(buf[:min(int64(len(buf)), end-at)])
			if err != nil {
				return err
			}
			at += int64(k)
		}
		if n == 0 {
			return nil
		}
		if _, err := io.CopyN(w, r, n); err != nil {
			return err
		}
		at += n
	}
}
