package record

import (
	"bytes"
	"encoding/json"
)

// sketched are the members of an attempt that Sketch reads.
var sketched = map[string]bool{
	"id": true, "locator": true, "run": true, "experiment": true, "eval": true, "ordinal": true, "verdict": true,
	"startedAt": true, "durationMs": true, "censoredMs": true, "identity": true,
}

// sketch decodes the members of an attempt that a plan needs. Most of a document
// is of no use to it, and stepping over a value is much cheaper than decoding it.
// What it cannot step over it leaves to the decoder, which says what is wrong.
func sketch(doc []byte, a *Attempt) error {
	lean := make([]byte, 0, 2048)
	lean = append(lean, '{')
	ok := members(doc, func(key, value []byte) {
		if !sketched[string(key)] {
			return
		}
		if len(lean) > 1 {
			lean = append(lean, ',')
		}
		lean = append(append(append(append(lean, '"'), key...), '"', ':'), value...)
	})
	if !ok {
		return json.Unmarshal(doc, a)
	}
	return json.Unmarshal(append(lean, '}'), &sketchOf{Attempt: a, Identity: sketchedIdentity{a}})
}

// sketchOf is an attempt whose identity keeps its inputs as they are written.
type sketchOf struct {
	*Attempt
	Identity sketchedIdentity `json:"identity"`
}

type sketchedIdentity struct{ a *Attempt }

// UnmarshalJSON takes the domain and the digest, and leaves the inputs unread.
func (s *sketchedIdentity) UnmarshalJSON(doc []byte) error {
	if bytes.Equal(doc, []byte("null")) {
		return nil
	}
	id, failed := &Identity{}, error(nil)
	ok := members(doc, func(key, value []byte) {
		var err error
		switch string(key) {
		case "domain":
			err = json.Unmarshal(value, &id.Domain)
		case "digest":
			err = json.Unmarshal(value, &id.Digest)
		case "inputs":
			id.unread = bytes.Clone(value)
		}
		if err != nil {
			failed = err
		}
	})
	if !ok {
		failed = json.Unmarshal(doc, id)
	}
	s.a.Identity = id
	return failed
}

// members calls yield with each key and raw value of the object that doc is. It
// is false when doc is not written as this package writes it: no keys with
// escapes, brackets that match.
func members(doc []byte, yield func(key, value []byte)) bool {
	doc = bytes.TrimSpace(doc)
	if len(doc) < 2 || doc[0] != '{' {
		return false
	}
	i := blank(doc, 1)
	if i < len(doc) && doc[i] == '}' {
		return i == len(doc)-1
	}
	for {
		if i >= len(doc) || doc[i] != '"' {
			return false
		}
		end := text(doc, i)
		if end < 0 || bytes.IndexByte(doc[i:end], '\\') >= 0 {
			return false
		}
		key := doc[i+1 : end-1]
		if i = blank(doc, end); i >= len(doc) || doc[i] != ':' {
			return false
		}
		from := blank(doc, i+1)
		if i = skip(doc, from); i < 0 {
			return false
		}
		yield(key, doc[from:i])
		if i = blank(doc, i); i >= len(doc) {
			return false
		}
		switch doc[i] {
		case ',':
			i = blank(doc, i+1)
		case '}':
			return i == len(doc)-1
		default:
			return false
		}
	}
}

func blank(doc []byte, i int) int {
	for i < len(doc) && (doc[i] == ' ' || doc[i] == '\n' || doc[i] == '\t' || doc[i] == '\r') {
		i++
	}
	return i
}

// text returns the end of the string that begins at i, or -1.
func text(doc []byte, i int) int {
	for i++; i < len(doc); {
		n := bytes.IndexByte(doc[i:], '"')
		if n < 0 {
			return -1
		}
		at := i + n
		slashes := 0
		for at-1-slashes >= i && doc[at-1-slashes] == '\\' {
			slashes++
		}
		i = at + 1
		if slashes%2 == 0 {
			return i
		}
	}
	return -1
}

// skip returns the end of the value that begins at i, or -1.
func skip(doc []byte, i int) int {
	if i >= len(doc) {
		return -1
	}
	switch doc[i] {
	case '"':
		return text(doc, i)
	case '{', '[':
	default:
		start := i
		for i < len(doc) && doc[i] != ',' && doc[i] != '}' && doc[i] != ']' && doc[i] != ' ' && doc[i] != '\n' {
			i++
		}
		if i == start {
			return -1
		}
		return i
	}
	for depth := 0; i < len(doc); {
		switch doc[i] {
		case '"':
			if i = text(doc, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}
