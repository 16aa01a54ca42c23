package snapshot

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"unicode/utf8"

	"assay/fault"
)

// Raw is bytes that are mostly text: a file name, a text. In JSON it is a
// string when it is valid UTF-8, else {"base64": "..."}; both ways lossless.
type Raw string

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	if !utf8.ValidString(string(r)) {
		return json.Marshal(rawBytes{Base64: base64.StdEncoding.EncodeToString([]byte(r))})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(string(r)); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var b rawBytes
		if err := json.Unmarshal(data, &b); err != nil {
			return err
		}
		raw, err := base64.StdEncoding.DecodeString(b.Base64)
		*r = Raw(raw)
		return err
	}
	var s string
	err := json.Unmarshal(data, &s)
	*r = Raw(s)
	return err
}

type rawBytes struct {
	Base64 string `json:"base64"`
}

// Op names a request.
type Op string

// The operations of a request.
const (
	// OpMark records the state as the baseline, with modes and owners for a
	// later reset, and freezes the rules if they are not yet.
	OpMark Op = "mark"
	// OpCommit records the state as Author's work. Unless AllowEmpty is set, an
	// unchanged tree makes no commit and the answer names the head.
	OpCommit Op = "commit"
	// OpDiff answers with the changes of each of Windows.
	OpDiff Op = "diff"
	// OpStatus tells whether the tree differs from the head. It records nothing.
	OpStatus Op = "status"
	// OpVerify compares the tree with Commit. It records nothing.
	OpVerify Op = "verify"
	// OpReset restores Commit and proves it.
	OpReset Op = "reset"
	// OpDrift tells what changed outside the working tree. It records nothing.
	OpDrift Op = "drift"
)

// Request is one call of Serve. All state lives in Store, so that requests may
// go to different processes.
type Request struct {
	Op Op `json:"op"`
	// Root is the working tree and Store the private repository, absolute paths.
	Root  string `json:"root"`
	Store string `json:"store"`
	// Rules count in the first mark or commit only.
	Rules Rules `json:"rules,omitzero"`
	// Author and Label are of a commit; Label of a mark too.
	Author     Author `json:"author,omitempty"`
	Label      string `json:"label,omitempty"`
	AllowEmpty bool   `json:"allowEmpty,omitempty"`
	// Commit is what verify compares with and reset restores.
	Commit ID `json:"commit,omitzero"`
	// Windows, Content and Limits are of a diff. Content asks for texts.
	Windows []Window `json:"windows,omitempty"`
	Content bool     `json:"content,omitempty"`
	Limits  Limits   `json:"limits,omitzero"`
	// Drift is the question of a drift.
	Drift DriftQuery `json:"drift,omitzero"`
}

// DriftQuery asks for files that changed after a moment.
type DriftQuery struct {
	// Since is a moment of the machine's clock: Drift.At of an earlier answer.
	Since int64 `json:"since,omitempty"`
	// Dirs are looked at; those that are not there are left out.
	Dirs []DriftDir `json:"dirs,omitempty"`
	// Skip are absolute paths that are left out with what is below them.
	Skip []string `json:"skip,omitempty"`
}

// IsZero reports whether nothing is asked.
func (q DriftQuery) IsZero() bool { return q.Since == 0 && len(q.Dirs) == 0 && len(q.Skip) == 0 }

// DriftDir is one directory to look at.
type DriftDir struct {
	Path string `json:"path"`
	// Depth bounds how deep below Path is looked, 1 being its own entries and -1
	// not at all: only Path itself. With a bound a changed directory counts too,
	// since it stands for what lies too deep; 0 is everything, and files and
	// links only.
	Depth int `json:"depth,omitempty"`
}

// Drift is what is different outside the working tree.
type Drift struct {
	// At is the moment of the answer, in nanoseconds since 1970 by the clock of
	// the machine that holds the files.
	At int64 `json:"at"`
	// Changed counts paths whose change time is after Since; Paths are the first
	// of them, at most 100. Partial tells that not everything was looked at.
	Changed int   `json:"changed,omitempty"`
	Paths   []Raw `json:"paths,omitempty"`
	Partial bool  `json:"partial,omitempty"`
	// Ports are the TCP ports on which something listens.
	Ports []int `json:"ports,omitempty"`
}

// Encode returns the request as JSON for Serve.
func (r Request) Encode() ([]byte, error) { return json.Marshal(r) }

// Response is the whole answer to a request.
type Response struct {
	// Commit is the commit made, or the one the operation was about.
	Commit Commit `json:"commit,omitzero"`
	// Dirty tells, for status and verify, that the tree differs from Commit.
	Dirty bool `json:"dirty,omitempty"`
	// Tree is the digest of the working tree, for status, verify and reset.
	Tree  ID    `json:"tree,omitzero"`
	Stats Stats `json:"stats,omitzero"`
	// Windows is the answer to a diff, in the order of the request.
	Windows []WindowDiff `json:"-"`
	// Partial is CapReached when windows were left out.
	Partial string `json:"partial,omitempty"`
	// Drift is the answer to a drift.
	Drift Drift `json:"drift,omitzero"`
}

// IsZero reports whether there is no answer.
func (d Drift) IsZero() bool { return d.At == 0 }

// line is one line of an answer: exactly one field is set. A window is opened
// by Window, filled by Change lines and closed by End; the last line is OK or
// Error.
type line struct {
	Window *Window     `json:"window,omitempty"`
	Change *Change     `json:"change,omitempty"`
	End    *WindowDiff `json:"end,omitempty"`
	OK     *Response   `json:"ok,omitempty"`
	Error  *wireError  `json:"error,omitempty"`
}

type wireError struct {
	Class   string `json:"class,omitempty"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
	Path    *Raw   `json:"path,omitempty"`
}

// Limits of an answer; the sender is not trusted.
const (
	maxLine   = 32 << 20
	maxAnswer = 1 << 30
)

// Visitor receives a long answer piece by piece; nil fields are skipped.
type Visitor struct {
	// Window is called when a window begins and End when it is complete.
	Window func(Window) error
	Change func(Change) error
	End    func(WindowDiff) error
}

// DecodeResponse reads an answer of Serve. An error line becomes a
// *fault.Error with the server's code, fix and, as an *fs.PathError, path; a
// broken or unfinished answer has the code "ledger-protocol".
func DecodeResponse(r io.Reader) (Response, error) {
	var windows []WindowDiff
	res, err := DecodeStream(r, Visitor{
		Window: func(w Window) error { windows = append(windows, WindowDiff{Window: w}); return nil },
		Change: func(c Change) error {
			last := &windows[len(windows)-1]
			last.Changes = append(last.Changes, c)
			return nil
		},
		End: func(d WindowDiff) error {
			d.Changes = windows[len(windows)-1].Changes
			windows[len(windows)-1] = d
			return nil
		},
	})
	if err != nil {
		return Response{}, err
	}
	res.Windows = windows
	return res, nil
}

// DecodeStream is DecodeResponse without holding the changes in memory. The
// returned response has no Windows.
func DecodeStream(r io.Reader, v Visitor) (Response, error) {
	d := decoder{v: v}
	sc := bufio.NewScanner(io.LimitReader(r, maxAnswer))
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	for sc.Scan() {
		if err := d.line(sc.Bytes()); err != nil {
			return Response{}, err
		}
	}
	if err := sc.Err(); err != nil {
		return Response{}, protocolError("unreadable answer", err)
	}
	if d.done == nil {
		return Response{}, protocolError("the answer ends early", io.ErrUnexpectedEOF)
	}
	return *d.done, nil
}

type decoder struct {
	v       Visitor
	open    *Window
	last    Raw
	changes int
	windows int
	counted [3]int
	done    *Response
}

func (d *decoder) line(data []byte) error {
	if d.done != nil {
		return protocolError("data after the end of the answer", nil)
	}
	var l line
	if err := json.Unmarshal(data, &l); err != nil {
		return protocolError("a line is not JSON of the expected shape", err)
	}
	switch {
	case l.Error != nil:
		return l.Error.fault()
	case l.OK != nil:
		if d.open != nil {
			return protocolError("the answer ends inside a window", nil)
		}
		d.done = l.OK
		return nil
	case l.Window != nil:
		return d.begin(l.Window)
	case l.Change != nil:
		return d.change(l.Change)
	case l.End != nil:
		return d.end(l.End)
	}
	return protocolError("an empty line", nil)
}

func (d *decoder) begin(w *Window) error {
	if d.windows++; d.open != nil || d.windows > 256 {
		return protocolError("an unexpected window", nil)
	}
	d.open, d.last, d.changes, d.counted = w, "", 0, [3]int{}
	if d.v.Window == nil {
		return nil
	}
	return d.v.Window(*w)
}

func (d *decoder) change(c *Change) error {
	if d.open == nil {
		return protocolError("a change outside a window", nil)
	}
	if c.Path <= d.last {
		return protocolError("changes out of order", nil)
	}
	if d.changes++; d.changes > 100_000 {
		return protocolError("too many changes", nil)
	}
	switch {
	case c.Status == Added && c.Before == nil && c.After != nil:
		d.counted[0]++
	case c.Status == Modified && c.Before != nil && c.After != nil:
		d.counted[1]++
	case c.Status == Deleted && c.Before != nil && c.After == nil:
		d.counted[2]++
	default:
		return protocolError("a change whose status and sides disagree", nil)
	}
	d.last = c.Path
	if d.v.Change == nil {
		return nil
	}
	return d.v.Change(*c)
}

func (d *decoder) end(e *WindowDiff) error {
	if d.open == nil || e.Window != *d.open {
		return protocolError("the end of another window", nil)
	}
	n := [3]int{e.Added, e.Modified, e.Deleted}
	for i := range n {
		if n[i] < d.counted[i] || (e.Partial == "" && n[i] != d.counted[i]) {
			return protocolError("counts that disagree with the changes", nil)
		}
	}
	d.open = nil
	if d.v.End == nil {
		return nil
	}
	return d.v.End(*e)
}

func protocolError(what string, err error) error {
	return &fault.Error{Code: "ledger-protocol", What: "change ledger: " + what, Err: err}
}

func (e *wireError) fault() error {
	f := &fault.Error{Code: e.Code, What: e.Message, Fix: e.Fix}
	if f.Code == "" {
		f.Code = "ledger-failed"
	}
	for _, c := range []fault.Class{fault.Config, fault.Transient, fault.Resource, fault.Canceled} {
		if c.String() == e.Class {
			f.Class = c
		}
	}
	if e.Path != nil {
		// The message already names the path; the cause carries it for programs.
		f.Err = &namedPath{fs.PathError{Op: "snapshot", Path: string(*e.Path), Err: errRemote}}
	}
	return f
}

// wire describes err for the other side.
func wire(err error) *wireError {
	w := &wireError{Class: fault.ClassOf(err).String(), Code: fault.CodeOf(err), Message: err.Error(), Fix: fault.FixOf(err)}
	if w.Code == "" {
		w.Code = "ledger-failed"
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		path := Raw(p.Path)
		w.Path = &path
	}
	return w
}

var errRemote = errors.New("reported by the sandbox")

// namedPath keeps the path out of the text: the message has it, quoted.
type namedPath struct{ fs.PathError }

func (e *namedPath) Error() string { return e.Err.Error() }

func (e *namedPath) Unwrap() error { return &e.PathError }

// PathOf returns the path an error is about, relative to the working tree.
func PathOf(err error) (string, bool) {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Path, true
	}
	return "", false
}

// pathFault makes an error about one path of the tree, which has a cause.
func pathFault(class fault.Class, code, fix, path, what string, cause error) error {
	if p := (*fs.PathError)(nil); errors.As(cause, &p) {
		cause = p.Err
	}
	return &fault.Error{
		Class: class, Code: code, Fix: fix,
		What: fmt.Sprintf("%s: %q", what, path),
		Err:  &namedPath{fs.PathError{Op: "snapshot", Path: path, Err: cause}},
	}
}
