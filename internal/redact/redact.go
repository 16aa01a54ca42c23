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
		if j, err := json.Marshal(v); err == nil {
			add(string(j[1 : len(j)-1]))
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

// Bytes returns b with every secret replaced, longest first; b is not changed.
func (r *Redactor) Bytes(b []byte) []byte {
	if r == nil {
		return b
	}
	for _, n := range r.needles {
		if bytes.Contains(b, n) {
			b = bytes.ReplaceAll(b, n, []byte(Mask))
		}
	}
	return b
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
}

func (w *writer) Write(p []byte) (int, error) {
	if w.r.Empty() {
		return w.w.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = w.r.Bytes(append(w.held, p...))
	// What may still be the start of a secret stays back.
	keep := w.r.pending(w.held)
	if out := w.held[:len(w.held)-keep]; len(out) > 0 {
		if _, err := w.w.Write(out); err != nil {
			return 0, err
		}
	}
	w.held = append([]byte(nil), w.held[len(w.held)-keep:]...)
	return len(p), nil
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
	if len(w.held) == 0 {
		return nil
	}
	_, err := w.w.Write(w.r.Bytes(w.held))
	w.held = nil
	return err
}
