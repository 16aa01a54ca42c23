package e2bapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// Envd talks to the server inside one sandbox.
type Envd struct {
	c    *Client
	s    *Sandbox
	base string
}

// Envd returns the client of a sandbox's envd.
func (c *Client) Envd(s *Sandbox) *Envd { return &Envd{c: c, s: s, base: c.EnvdURL(s)} }

// request makes a request with what every call of envd carries.
func (e *Envd) request(ctx context.Context, method, path string, body io.Reader, user string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, body)
	if err != nil {
		return nil, err
	}
	e.c.identify(req.Header)
	req.Header.Set("E2b-Sandbox-Id", e.s.SandboxID)
	req.Header.Set("E2b-Sandbox-Port", strconv.Itoa(EnvdPort))
	if e.s.EnvdToken != "" {
		req.Header.Set("X-Access-Token", e.s.EnvdToken)
	}
	if user != "" {
		req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
	return req, nil
}

// send sends a request and turns refusals into errors.
func (e *Envd) send(req *http.Request, op string) (*http.Response, error) {
	e.c.sent(req.Method, req.URL.Path)
	res, err := e.c.http().Do(req)
	if err != nil {
		return nil, &CallError{op, err}
	}
	if res.StatusCode/100 != 2 {
		defer func() { _ = res.Body.Close() }()
		return nil, errorOf(op, res)
	}
	return res, nil
}

// Unary calls an RPC of one request and one answer, in JSON.
func (e *Envd) Unary(ctx context.Context, method, user string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := e.request(ctx, http.MethodPost, "/"+method, bytes.NewReader(body), user)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Protocol-Version", "1")
	res, err := e.send(req, method)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if out == nil {
		out = &struct{}{}
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return &CallError{method, fmt.Errorf("read the answer: %w", err)}
	}
	return nil
}

// Healthy asks whether the sandbox runs: the edge answers 502 for one that does
// not.
func (e *Envd) Healthy(ctx context.Context) (bool, error) {
	req, err := e.request(ctx, http.MethodGet, "/health", nil, "")
	if err != nil {
		return false, err
	}
	res, err := e.send(req, "GET /health")
	if StatusOf(err) == http.StatusBadGateway {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, res.Body.Close()
}

// Upload writes one file, with missing parents. It belongs to user, "" being
// the sandbox's default; its mode is the default of new files.
func (e *Envd) Upload(ctx context.Context, path, user string, body io.Reader) error {
	v := url.Values{"path": {path}}
	if user != "" {
		v.Set("username", user)
	}
	req, err := e.request(ctx, http.MethodPost, query("/files", v), body, "")
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := e.send(req, "POST /files")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// Download reads one file; the caller closes it.
func (e *Envd) Download(ctx context.Context, path, user string) (io.ReadCloser, error) {
	v := url.Values{"path": {path}}
	if user != "" {
		v.Set("username", user)
	}
	req, err := e.request(ctx, http.MethodGet, query("/files", v), nil, "")
	if err != nil {
		return nil, err
	}
	res, err := e.send(req, "GET /files")
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Process is a command to start.
type Process struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

// Selector names a running process.
type Selector struct {
	PID int    `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
}

// Running is an element of ListProcesses.
type Running struct {
	Config Process `json:"config"`
	PID    int     `json:"pid"`
	Tag    string  `json:"tag"`
}

// Event is one event of a process; one field is set.
type Event struct {
	Start *struct {
		PID int `json:"pid"`
	} `json:"start"`
	Data *struct {
		Stdout []byte `json:"stdout"`
		Stderr []byte `json:"stderr"`
		PTY    []byte `json:"pty"`
	} `json:"data"`
	Keepalive *struct{} `json:"keepalive"`
	End       *End      `json:"end"`
}

// End is how a process ended. Zero values are left out on the wire.
type End struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"` // such as "signal: killed"
	Error    string `json:"error"`
}

// keepaliveSeconds is how often a silent stream carries a sign of life. Zero
// would make envd panic.
const keepaliveSeconds = "15"

// Stream is the events of a process. Closing it leaves the process running.
type Stream struct {
	op   string
	body io.ReadCloser
	r    *bufio.Reader
	once sync.Once
}

// Start starts a process as user. The end of ctx ends the stream and not the
// process; no deadline is sent.
func (e *Envd) Start(ctx context.Context, p Process, user, tag string, stdin bool) (*Stream, error) {
	in := struct {
		Process Process `json:"process"`
		Tag     string  `json:"tag,omitempty"`
		Stdin   bool    `json:"stdin"`
	}{p, tag, stdin}
	return e.stream(ctx, "process.Process/Start", user, in)
}

// Attach connects to a running process. What it wrote before is lost; for half a
// minute after its end the exit is still told.
func (e *Envd) Attach(ctx context.Context, s Selector) (*Stream, error) {
	return e.stream(ctx, "process.Process/Connect", "", map[string]Selector{"process": s})
}

// The flags of an envelope.
const (
	flagCompressed = 1
	flagEnd        = 2
)

func envelope(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...), nil
}

func (e *Envd) stream(ctx context.Context, method, user string, in any) (*Stream, error) {
	body, err := envelope(in)
	if err != nil {
		return nil, err
	}
	req, err := e.request(ctx, http.MethodPost, "/"+method, bytes.NewReader(body), user)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Keepalive-Ping-Interval", keepaliveSeconds)
	res, err := e.send(req, method)
	if err != nil {
		return nil, err
	}
	return &Stream{op: method, body: res.Body, r: bufio.NewReaderSize(res.Body, 64<<10)}, nil
}

// maxEnvelope bounds one message of a stream, in bytes.
const maxEnvelope = 4 << 20

// Next returns the next event; io.EOF ends a stream that ended well. A
// connection that broke is io.ErrUnexpectedEOF, and a refusal an *Error.
func (s *Stream) Next() (*Event, error) {
	var msg struct {
		Event *Event `json:"event"`
	}
	if err := s.next(&msg); err != nil {
		return nil, err
	}
	if msg.Event == nil {
		return &Event{}, nil // of a kind that is not known here
	}
	return msg.Event, nil
}

func (s *Stream) next(out any) error {
	var head [5]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return broken(err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxEnvelope || head[0]&flagCompressed != 0 {
		return fmt.Errorf("E2B: %s: an envelope of %d bytes with flags %d", s.op, n, head[0])
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(s.r, body); err != nil {
		return broken(err)
	}
	if head[0]&flagEnd == 0 {
		return json.Unmarshal(body, out)
	}
	var end struct {
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &end); err != nil {
		return err
	}
	if end.Error != nil {
		return &Error{Op: s.op, Status: http.StatusOK, Code: end.Error.Code, Message: end.Error.Message}
	}
	return io.EOF
}

// broken makes every end without a trailer an unexpected one.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close ends the stream.
func (s *Stream) Close() error {
	var err error
	s.once.Do(func() { err = s.body.Close() })
	return err
}

// Input is a stream of input for a process.
type Input struct {
	w    *io.PipeWriter
	done chan struct{}
	err  error // set before done is closed
}

// StreamInput opens one request through which input for a process flows. What it
// returned with is known after Close.
func (e *Envd) StreamInput(ctx context.Context, s Selector) (*Input, error) {
	pr, pw := io.Pipe()
	req, err := e.request(ctx, http.MethodPost, "/process.Process/StreamInput", pr, "")
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	in := &Input{w: pw, done: make(chan struct{})}
	go func() {
		res, err := e.send(req, "process.Process/StreamInput")
		if err == nil {
			st := &Stream{op: "process.Process/StreamInput", body: res.Body, r: bufio.NewReader(res.Body)}
			for err == nil {
				err = st.next(&struct{}{})
			}
			_ = st.Close()
			if errors.Is(err, io.EOF) {
				err = nil
			}
		}
		if err == nil {
			err = io.ErrClosedPipe
		}
		_ = pr.CloseWithError(err) // a writer learns why
		in.err = err
		close(in.done)
	}()
	if err := in.message(map[string]any{"start": map[string]any{"process": s}}); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

func (in *Input) message(v any) error {
	body, err := envelope(v)
	if err != nil {
		return err
	}
	_, err = in.w.Write(body)
	return err
}

// maxInput is how much input travels in one message, in bytes.
const maxInput = 256 << 10

type stdin struct {
	Stdin []byte `json:"stdin"`
}

// Write sends input. It returns when the transport has taken it.
func (in *Input) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		k := min(len(p), maxInput)
		if err := in.message(map[string]any{"data": map[string]any{"input": stdin{p[:k]}}}); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

// Keepalive keeps what is between from closing a silent stream.
func (in *Input) Keepalive() error { return in.message(map[string]any{"keepalive": struct{}{}}) }

// Close ends the input's stream, and not the process's input, and returns what
// the request came to.
func (in *Input) Close() error {
	_ = in.w.Close() // never fails
	<-in.done
	return in.Err()
}

// Done is closed when the request has ended.
func (in *Input) Done() <-chan struct{} { return in.done }

// Err is what the request came to, once Done is closed; nil after Close.
func (in *Input) Err() error {
	if errors.Is(in.err, io.ErrClosedPipe) {
		return nil
	}
	return in.err
}

// SendInput writes to a process's input in one call.
func (e *Envd) SendInput(ctx context.Context, s Selector, p []byte) error {
	return e.Unary(ctx, "process.Process/SendInput", "", map[string]any{"process": s, "input": stdin{p}}, nil)
}

// CloseStdin ends a process's input. It needs envd 0.5.2.
func (e *Envd) CloseStdin(ctx context.Context, s Selector) error {
	return e.Unary(ctx, "process.Process/CloseStdin", "", map[string]any{"process": s}, nil)
}

// Signal signals a process, and not what it started: "SIGNAL_SIGTERM" or
// "SIGNAL_SIGKILL".
func (e *Envd) Signal(ctx context.Context, s Selector, signal string) error {
	return e.Unary(ctx, "process.Process/SendSignal", "", map[string]any{"process": s, "signal": signal}, nil)
}

// ListProcesses lists what was started.
func (e *Envd) ListProcesses(ctx context.Context) ([]Running, error) {
	var out struct {
		Processes []Running `json:"processes"`
	}
	err := e.Unary(ctx, "process.Process/List", "", struct{}{}, &out)
	return out.Processes, err
}

// Entry is a file as Stat tells it.
type Entry struct {
	Name  string `json:"name"`
	Type  string `json:"type"` // "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY"
	Path  string `json:"path"`
	Size  int64  `json:"size,string"`
	Mode  uint32 `json:"mode"`
	Owner string `json:"owner"`
	Link  string `json:"symlinkTarget"`
}

// Stat describes a file. A missing one is code "not_found".
func (e *Envd) Stat(ctx context.Context, path, user string) (*Entry, error) {
	var out struct {
		Entry Entry `json:"entry"`
	}
	if err := e.Unary(ctx, "filesystem.Filesystem/Stat", user, map[string]string{"path": path}, &out); err != nil {
		return nil, err
	}
	return &out.Entry, nil
}

// ExitOf turns an end into a shell's exit code and the signal's name, or "".
func ExitOf(e *End) (code int, signal string) {
	if e.Exited || e.ExitCode >= 0 {
		return e.ExitCode, ""
	}
	name := strings.TrimPrefix(e.Status, "signal: ")
	if s, ok := signals[name]; ok {
		return 128 + s.number, s.name
	}
	return e.ExitCode, ""
}

// signals are those that envd names as Go does.
var signals = map[string]struct {
	number int
	name   string
}{
	"hangup": {1, "SIGHUP"}, "interrupt": {2, "SIGINT"}, "quit": {3, "SIGQUIT"}, "aborted": {6, "SIGABRT"},
	"killed": {9, "SIGKILL"}, "segmentation fault": {11, "SIGSEGV"}, "broken pipe": {13, "SIGPIPE"}, "terminated": {15, "SIGTERM"},
}
