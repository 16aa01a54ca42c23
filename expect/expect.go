// Package expect has the matchers: pure functions from a value to a match, with
// a reason in words when there is none.
package expect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Result is the answer of a matcher.
type Result struct {
	OK bool
	// Detail says what was expected and what was there, on one or a few lines.
	Detail string
	// Score is set by measurements: a finite number from 0 to 1.
	Score *float64
	// Err is set when the value could not be judged at all.
	Err error
}

// Matcher judges one value. The zero Matcher is invalid.
type Matcher struct {
	// Label names the expectation, such as `contains "ok"`.
	Label string
	// Match judges a value; it is pure.
	Match func(value any) Result
	// Measures is true for matchers that give a score rather than an answer.
	Measures bool
}

// text makes a matcher of a predicate over text. Values that are no text are an
// error.
func text(label string, ok func(string) bool) Matcher {
	return Matcher{Label: label, Match: func(v any) Result {
		s, err := asText(v)
		if err != nil {
			return Result{Err: err}
		}
		if ok(s) {
			return Result{OK: true}
		}
		return Result{Detail: fmt.Sprintf("expected %s, received %s", label, Show(s))}
	}}
}

func asText(v any) (string, error) {
	switch v := v.(type) {
	case json.Number:
		return "", fmt.Errorf("the value is a number, not text")
	case string:
		return v, nil
	case []byte:
		return string(v), nil
	case json.RawMessage:
		return string(v), nil
	case fmt.Stringer:
		return v.String(), nil
	case error:
		return v.Error(), nil
	}
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.String { // of a named type
		return rv.String(), nil
	}
	return "", fmt.Errorf("the value is %T, not text", v)
}

// Contains matches text that has s in it.
func Contains(s string) Matcher {
	return text(fmt.Sprintf("text that contains %s", Show(s)), func(v string) bool { return strings.Contains(v, s) })
}

// Excludes matches text that does not have s in it.
func Excludes(s string) Matcher {
	return text(fmt.Sprintf("text without %s", Show(s)), func(v string) bool { return !strings.Contains(v, s) })
}

// Matches matches text in which the regular expression (RE2) finds something.
func Matches(pattern string) Matcher {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return Matcher{Label: "pattern " + Show(pattern), Match: func(any) Result { return Result{Err: err} }}
	}
	return text("text that matches /"+pattern+"/", re.MatchString)
}

// Equals matches a value that is deeply equal. Numbers compare by value, and
// text equals bytes of the same content.
func Equals(want any) Matcher {
	return Matcher{Label: "equal to " + Show(want), Match: func(v any) Result {
		if equal(want, v) {
			return Result{OK: true}
		}
		return Result{Detail: fmt.Sprintf("expected %s, received %s", Show(want), Show(v))}
	}}
}

func equal(a, b any) bool {
	if as, err := asText(a); err == nil {
		if bs, err := asText(b); err == nil {
			return as == bs
		}
	}
	if x, ok := number(a); ok {
		y, ok := number(b)
		if i, whole := integer(a); ok && whole {
			if j, whole := integer(b); whole {
				return i.Cmp(j) == 0
			}
		}
		return ok && x == y
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	}
	return reflect.DeepEqual(a, b)
}

func number(v any) (float64, bool) {
	rv := reflect.ValueOf(v)
	switch {
	case !rv.IsValid():
		return 0, false
	case rv.CanInt():
		return float64(rv.Int()), true
	case rv.CanUint():
		return float64(rv.Uint()), true
	case rv.CanFloat():
		return rv.Float(), true
	}
	if n, ok := v.(json.Number); ok {
		f, err := n.Float64()
		return f, err == nil
	}
	return 0, false
}

// integer returns a whole number exactly: a float64 has no more than 53 bits.
func integer(v any) (*big.Int, bool) {
	if n, ok := v.(json.Number); ok {
		if len(n) > 64 {
			return nil, false
		}
		return new(big.Int).SetString(string(n), 10)
	}
	switch rv := reflect.ValueOf(v); {
	case !rv.IsValid():
		return nil, false
	case rv.CanInt():
		return big.NewInt(rv.Int()), true
	case rv.CanUint():
		return new(big.Int).SetUint64(rv.Uint()), true
	case rv.CanFloat() && rv.Float() == math.Trunc(rv.Float()) && !math.IsInf(rv.Float(), 0):
		i, _ := big.NewFloat(rv.Float()).Int(nil)
		return i, true
	}
	return nil, false
}

// decode reads one JSON document. Numbers are float64, except for whole numbers
// that a float64 cannot hold, which stay json.Number.
func decode(s string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the document")
	}
	return plain(doc), nil
}

func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return v
		}
		if i, whole := integer(v); whole {
			if exact, _ := new(big.Float).SetInt(i).Float64(); new(big.Float).SetInt(i).Cmp(big.NewFloat(exact)) != 0 {
				return v
			}
		}
		return f
	}
	return v
}

// structure turns maps and lists of any Go type into those of decoded JSON.
func structure(v any) any {
	if m, ok := v.(Matcher); ok {
		return m
	}
	if _, err := asText(v); err == nil {
		return v
	}
	rv := reflect.ValueOf(v)
	switch {
	case rv.Kind() == reflect.Map && rv.Type().Key().Kind() == reflect.String:
		out := make(map[string]any, rv.Len())
		for it := rv.MapRange(); it.Next(); {
			out[it.Key().String()] = structure(it.Value().Interface())
		}
		return out
	case rv.Kind() == reflect.Slice || rv.Kind() == reflect.Array:
		out := make([]any, rv.Len())
		for i := range out {
			out[i] = structure(rv.Index(i).Interface())
		}
		return out
	}
	return v
}

// JSON matches text that is a JSON document, or a decoded document, of which
// want is a part: every key of an object must be there and match, arrays match
// element by element, and a Matcher in want judges the value at its place.
func JSON(want any) Matcher {
	want = structure(want)
	return Matcher{Label: "JSON with " + Show(want), Match: func(v any) Result {
		doc := structure(v)
		if s, err := asText(v); err == nil {
			if doc, err = decode(s); err != nil {
				return Result{Detail: "expected one JSON document: " + err.Error()}
			}
		}
		if r := part(want, doc, "$"); !r.OK || r.Err != nil {
			return r
		}
		return Result{OK: true}
	}}
}

func part(want, have any, at string) Result {
	switch w := want.(type) {
	case Matcher:
		r := w.Match(have)
		if !r.OK && r.Err == nil {
			r.Detail = "at " + at + ": " + r.Detail
		}
		return r
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return Result{Detail: fmt.Sprintf("at %s: expected an object, received %s", at, Show(have))}
		}
		keys := make([]string, 0, len(w))
		for k := range w {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			hv, ok := h[k]
			if !ok {
				return Result{Detail: fmt.Sprintf("at %s: the key %q is missing", at, k)}
			}
			if r := part(w[k], hv, at+"."+k); !r.OK {
				return r
			}
		}
		return Result{OK: true}
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return Result{Detail: fmt.Sprintf("at %s: expected an array of %d, received %s", at, len(w), Show(have))}
		}
		for i := range w {
			if r := part(w[i], h[i], fmt.Sprintf("%s[%d]", at, i)); !r.OK {
				return r
			}
		}
		return Result{OK: true}
	}
	if equal(want, have) {
		return Result{OK: true}
	}
	return Result{Detail: fmt.Sprintf("at %s: expected %s, received %s", at, Show(want), Show(have))}
}

// Satisfies matches what f accepts; label names the expectation.
func Satisfies(label string, f func(any) bool) Matcher {
	return Matcher{Label: label, Match: func(v any) Result {
		if f(v) {
			return Result{OK: true}
		}
		return Result{Detail: fmt.Sprintf("expected %s, received %s", label, Show(v))}
	}}
}

// IsTrue matches true.
func IsTrue() Matcher {
	return Satisfies("true", func(v any) bool { b, ok := v.(bool); return ok && b })
}

// IsFalse matches false.
func IsFalse() Matcher {
	return Satisfies("false", func(v any) bool { b, ok := v.(bool); return ok && !b })
}

// IsDefined matches anything but nil and empty text.
func IsDefined() Matcher {
	return Satisfies("a value", func(v any) bool {
		rv := reflect.ValueOf(v)
		switch rv.Kind() {
		case reflect.Invalid:
			return false
		case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface, reflect.Func, reflect.Chan:
			return !rv.IsNil()
		case reflect.String:
			return rv.Len() > 0
		default:
			return true
		}
	})
}

// And matches when all do; Or when any does; Not turns one around. A part that
// cannot judge makes And and Not unable to; Or only when nothing matches.
func And(ms ...Matcher) Matcher {
	return Matcher{Label: join(ms, " and "), Match: func(v any) Result {
		for _, m := range ms {
			if r := m.Match(v); !r.OK || r.Err != nil {
				return r
			}
		}
		return Result{OK: true}
	}}
}

// Or matches when any of its parts does.
func Or(ms ...Matcher) Matcher {
	return Matcher{Label: join(ms, " or "), Match: func(v any) Result {
		var details []string
		var err error
		for _, m := range ms {
			r := m.Match(v)
			if r.OK {
				return r
			}
			if r.Err != nil {
				err = r.Err
			} else {
				details = append(details, r.Detail)
			}
		}
		return Result{Detail: strings.Join(details, "; "), Err: err}
	}}
}

// Not matches when m does not.
func Not(m Matcher) Matcher {
	return Matcher{Label: "not " + m.Label, Match: func(v any) Result {
		r := m.Match(v)
		if r.Err != nil {
			return r
		}
		if r.OK {
			return Result{Detail: fmt.Sprintf("expected not %s, received %s", m.Label, Show(v))}
		}
		return Result{OK: true}
	}}
}

func join(ms []Matcher, sep string) string {
	labels := make([]string, len(ms))
	for i, m := range ms {
		labels[i] = m.Label
	}
	return strings.Join(labels, sep)
}

// Similarity measures how alike two texts are: 1 minus the edit distance over
// the longer length, in characters. Texts over 20,000 characters cannot be
// measured.
func Similarity(to string) Matcher {
	return Matcher{Label: "similar to " + Show(to), Measures: true, Match: func(v any) Result {
		s, err := asText(v)
		if err != nil {
			return Result{Err: err}
		}
		a, b := []rune(s), []rune(to)
		if max(len(a), len(b)) > 20_000 {
			return Result{Err: fmt.Errorf("texts over 20,000 characters are not compared")}
		}
		score := 1.0
		if n := max(len(a), len(b)); n > 0 {
			score = 1 - float64(distance(a, b))/float64(n)
		}
		return Result{OK: score == 1, Score: &score, Detail: fmt.Sprintf("similarity %.3f", score)}
	}}
}

func distance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, ra := range a {
		prev := row[0]
		row[0] = i + 1
		for j, rb := range b {
			cost := prev
			if ra != rb {
				cost = 1 + min(prev, row[j], row[j+1])
			}
			prev, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// Finite reports whether a measurement is a finite number from 0 to 1.
func Finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) && f >= 0 && f <= 1 }

// Show renders a value for a message: on one line, with escapes, at most about
// 200 bytes, cut in the middle.
func Show(v any) string {
	if m, ok := v.(Matcher); ok {
		return m.Label
	}
	var s string
	if t, err := asText(v); err == nil {
		s = fmt.Sprintf("%q", clip(t, 160))
		if utf8.RuneCountInString(t) > 160 {
			s += fmt.Sprintf(" (%d bytes)", len(t))
		}
		return s
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(labelled(v)); err == nil {
		s = strings.TrimSpace(b.String())
	} else {
		s = fmt.Sprintf("%v", v)
	}
	return clip(s, 200)
}

// labelled puts labels where matchers are.
func labelled(v any) any {
	switch v := v.(type) {
	case Matcher:
		return v.Label
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = labelled(v[k])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = labelled(v[i])
		}
		return out
	}
	return v
}

// clip keeps the start and the end of s, n characters in all.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n*2/3]) + "…" + string(r[len(r)-n/3:])
}
