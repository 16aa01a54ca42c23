package guest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"

	"assay/internal/guest/wire"
)

// User is an identity of the sandbox, resolved by its own passwd and group files.
type User struct {
	Name     string // empty for a uid without an entry
	UID, GID uint32
	Groups   []uint32 // supplementary, without GID
	// Home is writable by the user unless passwd says otherwise: a uid without
	// an entry gets "/" when that is writable, else a private directory that
	// the guest makes in /tmp.
	Home  string
	Shell string // "/bin/sh" when unknown
}

// Lookup resolves a user: "name", "uid", "name:group", "uid:gid" or any mix; ""
// is whoever the guest runs as. An unknown name is CodeNoUser.
func (c *Client) Lookup(ctx context.Context, user string) (User, error) {
	var r wire.User
	if err := c.ask(ctx, wire.OpLookup, &wire.PathRequest{Path: user}, &r, &r.Result); err != nil {
		return User{}, err
	}
	return User{Name: r.Name, UID: r.UID, GID: r.GID, Groups: r.Groups, Home: r.Home, Shell: r.Shell}, nil
}

// FileInfo describes a file.
type FileInfo struct {
	Type     string // "file", "dir", "symlink" or "other"
	Mode     uint32 // permission, set-id and sticky bits as chmod(2) takes them
	Size     int64  // bytes
	UID, GID uint32
	Target   string // of a symbolic link
}

// Stat describes the file at an absolute path, without following a symbolic
// link at its end. Known absence is fs.ErrNotExist.
func (c *Client) Stat(ctx context.Context, path string) (FileInfo, error) {
	var r wire.StatReply
	if err := c.ask(ctx, wire.OpStat, &wire.PathRequest{Path: path}, &r, &r.Result); err != nil {
		return FileInfo{}, err
	}
	return FileInfo{Type: r.Type, Mode: r.Mode, Size: r.Size, UID: r.UID, GID: r.GID, Target: r.Target}, nil
}

// Remove removes the file or directory at an absolute path, with what is below
// it; a missing one is no error.
func (c *Client) Remove(ctx context.Context, path string) error {
	var r wire.Result
	return c.ask(ctx, wire.OpRemove, &wire.PathRequest{Path: path}, &r, &r)
}

// Process is a live process of the sandbox.
type Process struct {
	PID, PPID int
	UID       uint32
	Start     int64  // clock ticks after boot; PID and Start name a process
	Command   string // at most 200 bytes of its command line
}

// Processes lists what lives in the sandbox: no zombies, not the guest, not its
// supervisors. A guest that is not process 1 lists its own descendants only.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	var r wire.ProcessList
	if err := c.ask(ctx, wire.OpList, &wire.Empty{}, &r, &r.Result); err != nil {
		return nil, err
	}
	return processes(r.Processes), nil
}

func processes(list []wire.Process) []Process {
	ps := make([]Process, 0, len(list))
	for _, p := range list {
		ps = append(ps, Process(p))
	}
	return ps
}

// EndProcesses kills what Processes would list, except the given pids, until two
// scans in a row find nothing, and returns how many processes it killed.
// Commands that are running end with SIGKILL. An error means that something may
// be left.
func (c *Client) EndProcesses(ctx context.Context, keep ...int) (int, error) {
	var r wire.EndReply
	err := c.ask(ctx, wire.OpEnd, &wire.PIDs{Keep: keep}, &r, &r.Result)
	return r.Ended, err
}

// EndListed is EndProcesses of all, and returns what Processes would have listed
// before.
func (c *Client) EndListed(ctx context.Context) ([]Process, error) {
	var r wire.EndReply
	err := c.ask(ctx, wire.OpEnd, &wire.PIDs{}, &r, &r.Result)
	return processes(r.Processes), err
}

// Port is a listening TCP socket of the sandbox.
type Port struct {
	Address string // as an IP address
	Port    int
	UID     uint32 // of its owner
}

// Ports lists the listening TCP sockets, from /proc/net/tcp and tcp6.
func (c *Client) Ports(ctx context.Context) ([]Port, error) {
	var r wire.PortList
	if err := c.ask(ctx, wire.OpPorts, &wire.Empty{}, &r, &r.Result); err != nil {
		return nil, err
	}
	ps := make([]Port, 0, len(r.Ports))
	for _, p := range r.Ports {
		ip, ok := netip.AddrFromSlice([]byte(p.Address))
		if !ok {
			c.conn.Close()
			return nil, gone("ports", wire.ErrProtocol)
		}
		ps = append(ps, Port{Address: ip.String(), Port: p.Port, UID: p.UID})
	}
	return ps, nil
}

// Digest is the content hash of one file, or why there is none.
type Digest struct {
	SHA256 string // lower-case hex
	Err    error
}

// Digest hashes files by absolute path, following symbolic links, with one
// result per path in order.
func (c *Client) Digest(ctx context.Context, paths ...string) ([]Digest, error) {
	var r wire.DigestReply
	if err := c.ask(ctx, wire.OpDigest, &wire.Names{Paths: paths}, &r, &r.Result); err != nil {
		return nil, err
	}
	if len(r.Digests) != len(paths) {
		c.conn.Close()
		return nil, gone("digest", wire.ErrProtocol)
	}
	ds := make([]Digest, 0, len(paths))
	for _, d := range r.Digests {
		ds = append(ds, Digest{SHA256: hex.EncodeToString([]byte(d.SHA256)), Err: resultError(d.Result)})
	}
	return ds, nil
}

// Ledger hands req to the guest's ledger engine and copies its response to w. A
// failed Ledger may have written a part of the response.
func (c *Client) Ledger(ctx context.Context, req []byte, w io.Writer) error {
	s, err := c.open(ctx, wire.OpLedger, &wire.Empty{})
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, s.Reset)
	defer stop()
	go func() { // ends with the stream
		if _, err := io.Copy(s.Writer(0), bytes.NewReader(req)); err == nil {
			_ = s.CloseWrite(0)
		}
	}()
	if _, err := copyChannel(w, s); err != nil {
		return c.transferError(ctx, s, err)
	}
	if err := c.await(ctx, s); err != nil {
		return c.transferError(ctx, s, err)
	}
	var r wire.Result
	return c.decode(s, &r, &r)
}

// callerError marks a failure of the caller's writer or reader.
type callerError struct{ err error }

func (e callerError) Error() string { return e.err.Error() }
func (e callerError) Unwrap() error { return e.err }

// copyChannel copies channel 0 of s to w until its end.
func copyChannel(w io.Writer, s *wire.Stream) (int64, error) {
	var n int64
	for {
		b, err := s.Next(0)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		k, err := w.Write(b)
		n += int64(k)
		if err != nil {
			return n, callerError{err}
		}
	}
}

// transferError gives the reason why moving bytes over s failed: the caller's
// own reader or writer, ctx, the guest's refusal if it has sent one, or its end.
func (c *Client) transferError(ctx context.Context, s *wire.Stream, err error) error {
	defer s.Reset()
	if ce := (callerError{}); errors.As(err, &ce) {
		return ce.err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, ErrGone) {
		return err
	}
	return gone("transfer", err)
}
