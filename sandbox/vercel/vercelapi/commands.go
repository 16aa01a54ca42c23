package vercelapi

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
)

// NewCommand is a command to run. Nothing interprets Args.
type NewCommand struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env"`
	Sudo    bool              `json:"sudo"`
	// Timeout in milliseconds ends the command with SIGKILL.
	Timeout int64 `json:"timeout,omitempty"`
}

// Command is a started command.
type Command struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	ExitCode  *int   `json:"exitCode"` // nil while it runs
	StartedAt int64  `json:"startedAt"`
}

// Line is one line of a command's stream; one field is set.
type Line struct {
	Command *Command
	// Stream is "stdout" or "stderr" and Data what was written, as text.
	Stream, Data string
}

// Stream is the lines of a command. Closing it leaves the command running.
type Stream struct {
	op   string
	body io.ReadCloser
	r    *bufio.Reader
	once sync.Once
	end  bool // the stream ends with a command that has exited
	seen bool
}

func (n NewCommand) whole() NewCommand {
	if n.Args == nil {
		n.Args = []string{}
	}
	if n.Env == nil {
		n.Env = map[string]string{}
	}
	return n
}

// Run starts a command and streams its output and end. The service cuts streams
// after some minutes; see Start and Logs.
func (c *Client) Run(ctx context.Context, sessionID string, n NewCommand) (*Stream, error) {
	in := struct {
		NewCommand
		Wait bool `json:"wait"`
		Logs bool `json:"logs"`
	}{n.whole(), true, true}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return c.stream(ctx, request{method: http.MethodPost, path: session(sessionID, "/cmd"), body: body}, true)
}

func (c *Client) stream(ctx context.Context, r request, end bool) (*Stream, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Stream{op: r.method + " " + r.path, body: res.Body, r: bufio.NewReaderSize(res.Body, 64<<10), end: end}, nil
}

// ErrStreamEnded is returned for a stream that stopped before its command did.
var ErrStreamEnded = errors.New("the stream ended before the command did")

// Next returns the next line; io.EOF ends a stream whose command has ended.
func (s *Stream) Next() (*Line, error) {
	raw, err := s.r.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) && len(raw) == 0 && (s.seen || !s.end) {
			return nil, io.EOF
		}
		if errors.Is(err, io.EOF) {
			err = ErrStreamEnded
		}
		return nil, &CallError{s.op, err}
	}
	var msg struct {
		Command *Command        `json:"command"`
		Stream  string          `json:"stream"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &msg); err != nil {
		return nil, &CallError{s.op, err}
	}
	if msg.Stream == "error" {
		e := &Error{Op: s.op, Status: http.StatusOK}
		var body struct{ Code, Message string }
		if json.Unmarshal(msg.Data, &body) == nil {
			e.Code, e.Message = body.Code, body.Message
		}
		return nil, e
	}
	l := &Line{Command: msg.Command, Stream: msg.Stream}
	if msg.Command != nil && msg.Command.ExitCode != nil {
		s.seen = true
	}
	if msg.Stream != "" {
		if err := json.Unmarshal(msg.Data, &l.Data); err != nil {
			return nil, &CallError{s.op, err}
		}
	}
	return l, nil
}

// Close ends the stream.
func (s *Stream) Close() error {
	var err error
	s.once.Do(func() { err = s.body.Close() })
	return err
}

type oneCommand struct {
	Command Command `json:"command"`
}

// Start starts a command and does not wait for it.
func (c *Client) Start(ctx context.Context, sessionID string, n NewCommand) (*Command, error) {
	var out oneCommand
	if err := c.json(ctx, request{method: http.MethodPost, path: session(sessionID, "/cmd")}, n.whole(), &out); err != nil {
		return nil, err
	}
	return &out.Command, nil
}

func command(sessionID, id, rest string) string {
	return session(sessionID, "/cmd/"+url.PathEscape(id)+rest)
}

// Command describes a command; with wait it returns when the command has ended.
func (c *Client) Command(ctx context.Context, sessionID, id string, wait bool) (*Command, error) {
	q := url.Values{}
	if wait {
		q.Set("wait", "true")
	}
	var out oneCommand
	if err := c.json(ctx, request{method: http.MethodGet, path: command(sessionID, id, ""), query: q}, nil, &out); err != nil {
		return nil, err
	}
	return &out.Command, nil
}

// Logs streams what a command wrote, from its start, until its end. It can be
// read again while the session runs.
func (c *Client) Logs(ctx context.Context, sessionID, id string) (*Stream, error) {
	return c.stream(ctx, request{method: http.MethodGet, path: command(sessionID, id, "/logs")}, false)
}

// Follow writes a started command's output until it ends, however often the
// service cuts the stream: what came before is skipped after a cut. It returns
// the exit code.
func (c *Client) Follow(ctx context.Context, sessionID, id string, stdout, stderr io.Writer) (int, error) {
	var had [2]int
	for {
		err := c.follow(ctx, sessionID, id, [2]io.Writer{stdout, stderr}, &had)
		var werr writeError
		if errors.As(err, &werr) {
			return 0, werr.error
		}
		cmd, cerr := c.Command(ctx, sessionID, id, false)
		if cerr != nil {
			return 0, errors.Join(cerr, err)
		}
		if cmd.ExitCode != nil && err == nil {
			return *cmd.ExitCode, nil
		}
		select { // the stream was cut, or its end came before the exit was known
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

type writeError struct{ error }

// follow reads the log once, skipping what had came before.
func (c *Client) follow(ctx context.Context, sessionID, id string, to [2]io.Writer, had *[2]int) error {
	s, err := c.Logs(ctx, sessionID, id)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var seen [2]int
	for {
		l, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		i := 0
		if l.Stream == "stderr" {
			i = 1
		}
		fresh := l.Data
		if skip := had[i] - seen[i]; skip > 0 {
			fresh = fresh[min(skip, len(fresh)):]
		}
		seen[i] += len(l.Data)
		if fresh == "" {
			continue
		}
		had[i] += len(fresh)
		if _, err := io.WriteString(to[i], fresh); err != nil {
			return writeError{err}
		}
	}
}

// Kill sends a signal, by its Linux number, to a command.
func (c *Client) Kill(ctx context.Context, sessionID, id string, signal int) error {
	return c.json(ctx, request{method: http.MethodPost, path: command(sessionID, id, "/kill")}, map[string]int{"signal": signal}, nil)
}

// File is a file to write.
type File struct {
	Path string // absolute
	Mode int64
	Body []byte
}

// zips are compressors, which take a megabyte each.
var zips = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is one
	return z
}}

// WriteFiles writes files in one request. They belong to the default user;
// missing directories are made.
func (c *Client) WriteFiles(ctx context.Context, sessionID string, files ...File) error {
	var b bytes.Buffer
	z := zips.Get().(*gzip.Writer)
	defer zips.Put(z)
	z.Reset(&b)
	tw := tar.NewWriter(z)
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path.Clean(f.Path), "/"), Mode: mode, Size: int64(len(f.Body)), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.Body); err != nil {
			return err
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		return err
	}
	return c.WriteArchive(ctx, sessionID, "/", b.Bytes())
}

// WriteArchive unpacks a gzipped tar below a directory.
func (c *Client) WriteArchive(ctx context.Context, sessionID, dir string, archive []byte) error {
	r := request{method: http.MethodPost, path: session(sessionID, "/fs/write"), body: archive, contentType: "application/gzip", header: http.Header{"X-Cwd": {dir}}}
	return c.json(ctx, r, nil, nil)
}

// ReadFile reads a file; the caller closes it. A missing one is status 404
// without the code of a missing session.
func (c *Client) ReadFile(ctx context.Context, sessionID, p string) (io.ReadCloser, error) {
	body, err := json.Marshal(map[string]string{"path": p})
	if err != nil {
		return nil, err
	}
	res, err := c.send(ctx, request{method: http.MethodPost, path: session(sessionID, "/fs/read"), body: body})
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "application/octet-stream" {
		_ = res.Body.Close()
		return nil, &CallError{"POST fs/read", errors.New("the answer is no file but " + kind)}
	}
	return res.Body, nil
}

// Mkdir makes one directory whose parent is there.
func (c *Client) Mkdir(ctx context.Context, sessionID, p string) error {
	return c.json(ctx, request{method: http.MethodPost, path: session(sessionID, "/fs/mkdir")}, map[string]string{"path": p}, nil)
}
