// Package redact replaces secret values, and their usual encodings, in
// everything that is kept or shown.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Mask stands where a secret was.
const Mask = "<redacted>"

// MinLength is the shortest value that is masked, in bytes: shorter ones occur
// everywhere by chance. Callers warn about them.
const MinLength = 8

// Redactor replaces a set of secret values. The zero value and nil replace
// nothing. Values live in memory only. It is safe for concurrent use once made.
type Redactor struct {
	needles [][]byte // longest first
	longest int
}

// New returns a redactor of the given values; those shorter than MinLength are
// left out. It knows each value as it is, JSON-escaped, URL-encoded, in hex and
// in base 64 at any alignment.
func New(values ...string) *Redactor {
	set := map[string]bool{}
	for _, v := range values {
		if len(v) < MinLength {
			continue
		}
		add := func(s string) {
			if len(s) >= MinLength-2 {
				set[s] = true
			}
		}
		add(v)
		if trimmed := strings.TrimSpace(v); len(trimmed) >= MinLength {
			add(trimmed)
		}
		if strings.Contains(v, "\n") { // a value that is printed line by line
			for line := range strings.SplitSeq(v, "\n") {
				if len(line) >= 2*MinLength {
					add(line)
				}
			}
		}
		for _, html := range []bool{true, false} {
			var j bytes.Buffer
			enc := json.NewEncoder(&j)
			enc.SetEscapeHTML(html)
			if err := enc.Encode(v); err == nil {
				add(j.String()[1 : j.Len()-2]) // without quotes and newline
			}
		}
		add(url.QueryEscape(v))
		add(url.PathEscape(v))
		add(hex.EncodeToString([]byte(v)))
		add(strings.ToUpper(hex.EncodeToString([]byte(v))))
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for shift := range 3 {
				// Encode v behind 0, 1 or 2 unknown bytes and keep the
				// characters that depend on v alone.
				e := enc.EncodeToString(append(make([]byte, shift), v...))
				head := [3]int{0, 2, 3}[shift]
				tail := len(e)
				if (shift+len(v))%3 != 0 {
					tail--
				}
				if tail-head >= MinLength {
					add(e[head:tail])
				}
			}
		}
	}
	r := &Redactor{}
	for s := range set {
		r.needles = append(r.needles, []byte(s))
		r.longest = max(r.longest, len(s))
	}
	slices.SortFunc(r.needles, func(a, b []byte) int {
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return bytes.Compare(a, b)
	})
	return r
}

// span is a part of a text that secrets cover.
type span struct{ from, to int }

// spans returns what secrets cover in b, in order; parts that overlap are one.
func (r *Redactor) spans(b []byte) []span {
	var all []span
	for _, n := range r.needles {
		for at := 0; ; {
			i := bytes.Index(b[at:], n)
			if i < 0 {
				break
			}
			from := at + i
			if k := len(all) - 1; k >= 0 && from < all[k].to && from >= all[k].from {
				all[k].to = max(all[k].to, from+len(n))
			} else {
				all = append(all, span{from, from + len(n)})
			}
			at = from + 1
		}
	}
	slices.SortFunc(all, func(x, y span) int { return x.from - y.from })
	out := all[:0]
	for _, s := range all {
		if k := len(out) - 1; k >= 0 && s.from < out[k].to {
			out[k].to = max(out[k].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// Bytes returns b with every secret replaced; secrets that overlap become one
// mask. b is not changed.
func (r *Redactor) Bytes(b []byte) []byte {
	if r.Empty() {
		return b
	}
	spans := r.spans(b)
	if len(spans) == 0 {
		return b
	}
	out, _ := mask(nil, b, spans, 0)
	return out
}

// mask appends b to out with spans replaced. The first covered bytes belong to
// a secret whose mask is already there. It returns how many bytes after b's end
// the last span covers.
func mask(out, b []byte, spans []span, covered int) (_ []byte, beyond int) {
	at := min(covered, len(b))
	for _, s := range spans {
		if s.from >= len(b) {
			break
		}
		if s.from >= covered {
			out = append(out, b[min(at, s.from):s.from]...)
			out = append(out, Mask...)
		}
		covered = max(covered, s.to)
		at = max(at, min(s.to, len(b)))
	}
	return append(out, b[at:]...), max(covered-len(b), 0)
}

// String is Bytes for strings.
func (r *Redactor) String(s string) string {
	if r == nil || len(r.needles) == 0 {
		return s
	}
	return string(r.Bytes([]byte(s)))
}

// Empty reports whether the redactor replaces nothing.
func (r *Redactor) Empty() bool { return r == nil || len(r.needles) == 0 }

// With returns a redactor of r's values and more.
func (r *Redactor) With(values ...string) *Redactor {
	add := New(values...)
	if r.Empty() {
		return add
	}
	for _, n := range r.needles {
		if !slices.ContainsFunc(add.needles, func(m []byte) bool { return bytes.Equal(m, n) }) {
			add.needles = append(add.needles, n)
		}
		add.longest = max(add.longest, len(n))
	}
	slices.SortFunc(add.needles, func(a, b []byte) int { return len(b) - len(a) })
	return add
}

// Writer masks a stream: a secret that is split over chunks is found too. Up to
// one secret's length of bytes is held back until Close, which does not close
// the target.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser {
	return &writer{r: r, w: w}
}

type writer struct {
	mu   sync.Mutex
	r    *Redactor
	w    io.Writer
	held []byte
	// covered is how much of held belongs to a secret that was masked already.
	covered int
}

func (w *writer) Write(p []byte) (int, error) {
	if w.r.Empty() {
		return w.w.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, p...)
	// What may still be the start of a secret, also of a longer one than is
	// there already, stays back.
	if err := w.flush(len(w.held) - w.r.pending(w.held)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush writes the first n held bytes.
func (w *writer) flush(n int) error {
	out, beyond := mask(nil, w.held[:n], w.r.spans(w.held), w.covered)
	w.held, w.covered = append([]byte(nil), w.held[n:]...), beyond
	if len(out) == 0 {
		return nil
	}
	_, err := w.w.Write(out)
	return err
}

// pending is the length of the longest suffix of b that begins a secret.
func (r *Redactor) pending(b []byte) int {
	for k := min(r.longest-1, len(b)); k > 0; k-- {
		suffix := b[len(b)-k:]
		for _, n := range r.needles {
			if len(n) > k && bytes.HasPrefix(n, suffix) {
				return k
			}
		}
	}
	return 0
}

func (w *writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush(len(w.held))
}
