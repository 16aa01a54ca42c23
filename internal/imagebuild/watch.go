package imagebuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/moby/moby/api/types/jsonstream"
	"google.golang.org/protobuf/encoding/protowire"

	"assay/sandbox"
)

// logLimit is how many bytes of a step's output are kept: its end.
const logLimit = 16 << 10

// watch follows the messages of a build.
type watch struct {
	show  func(sandbox.Progress)
	log   func(string)
	alive func()

	image  string
	step   string // the classic builder's current step
	tail   tail   // what it printed
	vertex map[string]*vertex
	failed *vertex
}

// vertex is one step of BuildKit.
type vertex struct {
	name string
	tail tail
	told bool
}

func newWatch(show func(sandbox.Progress), log func(string), alive func()) *watch {
	return &watch{show: show, log: log, alive: alive, vertex: map[string]*vertex{}}
}

// buildError is the builder's own word for what went wrong.
type buildError struct {
	code int
	text string
}

func (e *buildError) Error() string { return e.text }

// errCut says that the messages ended without a result.
var errCut = errors.New("the engine's messages ended before the build did")

// follow reads messages up to the end. The error is the builder's, errCut, or a
// failure of the connection.
func (w *watch) follow(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var m jsonstream.Message
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF) && w.image != "":
			return nil
		case errors.Is(err, io.EOF):
			return errCut
		case err != nil:
			return fmt.Errorf("%w: %w", errCut, err)
		}
		w.alive()
		if m.Error != nil {
			return &buildError{m.Error.Code, strings.TrimSpace(m.Error.Message)}
		}
		if m.Stream != "" {
			w.classic(m.Stream)
		}
		if m.Aux == nil {
			continue
		}
		switch m.ID {
		case "moby.buildkit.trace":
			var raw []byte
			if err := json.Unmarshal(*m.Aux, &raw); err == nil {
				w.trace(raw)
			}
		default:
			var aux struct{ ID string }
			if err := json.Unmarshal(*m.Aux, &aux); err == nil && aux.ID != "" {
				w.image = aux.ID
			}
		}
	}
}

// stepLine is how the classic builder and Podman's name a step.
var stepLine = regexp.MustCompile(`^(Step \d+/\d+ : |STEP \d+/\d+: )`)

// classic takes what the classic builder prints: a line that names each step and
// the output of its commands, in pieces.
func (w *watch) classic(text string) {
	if stepLine.MatchString(text) {
		w.step = strings.TrimSpace(text)
		w.tail = tail{}
		w.show(sandbox.Progress{Message: w.step})
	} else {
		w.tail.add(text)
	}
	w.log(strings.TrimRight(text, "\n"))
}

// trace takes one StatusResponse of moby.buildkit.v1.
func (w *watch) trace(raw []byte) {
	each(raw, func(field protowire.Number, v []byte, _ uint64) {
		switch field {
		case 1:
			w.vertexTold(v)
		case 3:
			w.vertexLog(v)
		}
	})
}

func (w *watch) at(digest string) *vertex {
	v := w.vertex[digest]
	if v == nil {
		v = &vertex{}
		w.vertex[digest] = v
	}
	return v
}

func (w *watch) vertexTold(raw []byte) {
	var digest, name, failure string
	started := false
	each(raw, func(field protowire.Number, v []byte, _ uint64) {
		switch field {
		case 1:
			digest = string(v)
		case 3:
			name = string(v)
		case 5:
			started = true
		case 7:
			failure = string(v)
		}
	})
	v := w.at(digest)
	v.name = name
	if failure != "" {
		w.failed = v
	}
	if started && !v.told && !strings.HasPrefix(name, "[internal]") {
		v.told = true
		w.show(sandbox.Progress{Message: name})
		w.log(name)
	}
}

func (w *watch) vertexLog(raw []byte) {
	var digest string
	var text []byte
	each(raw, func(field protowire.Number, v []byte, _ uint64) {
		switch field {
		case 1:
			digest = string(v)
		case 4:
			text = v
		}
	})
	w.at(digest).tail.add(string(text))
	w.log(strings.TrimRight(string(text), "\n"))
}

// each visits the fields of a protobuf message; what it cannot read ends it.
func each(raw []byte, visit func(field protowire.Number, bytes []byte, number uint64)) {
	for len(raw) > 0 {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return
		}
		raw = raw[n:]
		switch kind {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(raw)
			if n < 0 {
				return
			}
			visit(field, v, 0)
			raw = raw[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(raw)
			if n < 0 {
				return
			}
			visit(field, nil, v)
			raw = raw[n:]
		default:
			n := protowire.ConsumeFieldValue(field, kind, raw)
			if n < 0 {
				return
			}
			raw = raw[n:]
		}
	}
}

// where is the step that failed and what it printed last.
func (w *watch) where() (step, log string) {
	if w.failed != nil {
		return w.failed.name, w.failed.tail.String()
	}
	return w.step, w.tail.String()
}

// tail keeps the end of a text.
type tail struct{ text string }

func (t *tail) add(s string) {
	t.text += s
	if over := len(t.text) - 2*logLimit; over > 0 {
		t.text = t.text[len(t.text)-logLimit:]
	}
}

func (t *tail) String() string {
	s := t.text
	if len(s) > logLimit {
		s = s[len(s)-logLimit:]
		if i := strings.IndexByte(s, '\n'); i >= 0 {
			s = s[i+1:]
		}
	}
	return strings.ToValidUTF8(strings.TrimRight(s, "\n"), "�")
}
