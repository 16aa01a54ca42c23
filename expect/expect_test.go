package expect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"assay/expect"
)

type named string

// outcome is "yes", "no" or "error".
func outcome(r expect.Result) string {
	switch {
	case r.Err != nil:
		return "error"
	case r.OK:
		return "yes"
	default:
		return "no"
	}
}

func TestMatchers(t *testing.T) {
	for _, c := range []struct {
		m    expect.Matcher
		v    any
		want string
	}{
		{expect.Contains("b"), "abc", "yes"},
		{expect.Contains("x"), "abc", "no"},
		{expect.Contains(""), "", "yes"},
		{expect.Contains("b"), []byte("abc"), "yes"},
		{expect.Contains("b"), named("abc"), "yes"},
		{expect.Contains("1m"), time.Minute, "yes"},
		{expect.Contains("no"), errors.New("no way"), "yes"},
		{expect.Contains("1"), 1, "error"},
		{expect.Contains("1"), json.Number("1"), "error"},
		{expect.Contains("x"), nil, "error"},
		{expect.Excludes("x"), "abc", "yes"},
		{expect.Excludes("b"), "abc", "no"},
		{expect.Excludes("b"), 7, "error"},
		{expect.Matches(`^a.c$`), "abc", "yes"},
		{expect.Matches(`(?m)^b`), "a\nb", "yes"},
		{expect.Matches(`^b`), "a\nb", "no"},
		{expect.Matches(`(`), "abc", "error"},
		{expect.Equals("abc"), []byte("abc"), "yes"},
		{expect.Equals("abc"), named("abc"), "yes"},
		{expect.Equals("1"), 1, "no"},
		{expect.Equals(1), int64(1), "yes"},
		{expect.Equals(1), 1.0, "yes"},
		{expect.Equals(uint8(1)), json.Number("1"), "yes"},
		{expect.Equals("5"), json.Number("5"), "no"},
		{expect.Equals(int64(math.MaxInt64)), int64(math.MaxInt64 - 1), "no"},
		{expect.Equals(uint64(math.MaxUint64)), uint64(math.MaxUint64), "yes"},
		{expect.Equals(int64(-1)), uint64(math.MaxUint64), "no"},
		{expect.Equals(math.NaN()), math.NaN(), "no"},
		{expect.Equals(nil), nil, "yes"},
		{expect.Equals(nil), "", "no"},
		{expect.Equals(true), true, "yes"},
		{expect.Equals([]any{1, "a"}), []any{1.0, "a"}, "yes"},
		{expect.Equals([]any{1}), []any{1, 2}, "no"},
		{expect.Equals(map[string]any{"a": 1}), map[string]any{"a": 1.0}, "yes"},
		{expect.Equals(map[string]any{"a": nil}), map[string]any{"b": nil}, "no"},
		{expect.Equals(struct{ A int }{1}), struct{ A int }{1}, "yes"},
		{expect.IsTrue(), true, "yes"},
		{expect.IsTrue(), "true", "no"},
		{expect.IsFalse(), false, "yes"},
		{expect.IsFalse(), nil, "no"},
		{expect.IsDefined(), 0, "yes"},
		{expect.IsDefined(), "", "no"},
		{expect.IsDefined(), nil, "no"},
		{expect.IsDefined(), (*int)(nil), "no"},
		{expect.IsDefined(), []int{}, "yes"},
		{expect.And(), 1, "yes"},
		{expect.And(expect.Contains("a"), expect.Contains("b")), "ab", "yes"},
		{expect.And(expect.Contains("a"), expect.Contains("b")), "a", "no"},
		{expect.And(expect.Contains("a"), expect.Matches("(")), "a", "error"},
		{expect.Or(), 1, "no"},
		{expect.Or(expect.Contains("a"), expect.Contains("b")), "b", "yes"},
		{expect.Or(expect.Contains("a"), expect.Contains("b")), "c", "no"},
		{expect.Or(expect.Matches("("), expect.Contains("b")), "b", "yes"},
		{expect.Or(expect.Matches("("), expect.Contains("b")), "c", "error"},
		{expect.Not(expect.Contains("a")), "b", "yes"},
		{expect.Not(expect.Contains("a")), "a", "no"},
		{expect.Not(expect.Contains("a")), 1, "error"},
		{expect.Not(expect.Not(expect.Contains("a"))), "a", "yes"},
		{expect.Satisfies("even", func(v any) bool { return v.(int)%2 == 0 }), 4, "yes"},
	} {
		r := c.m.Match(c.v)
		if got := outcome(r); got != c.want {
			t.Errorf("%s on %#v: %s (%q, %v), want %s", c.m.Label, c.v, got, r.Detail, r.Err, c.want)
		}
		if outcome(r) == "no" && r.Detail == "" && c.m.Label != "" {
			t.Errorf("%s on %#v gives no reason", c.m.Label, c.v)
		}
	}
}

func TestJSON(t *testing.T) {
	for _, c := range []struct {
		want any
		have any
		ok   string
		at   string // part of the detail
	}{
		{map[string]any{"a": 1}, `{"a":1,"b":2}`, "yes", ""},
		{map[string]any{"a": 1}, `{"b":2}`, "no", `"a" is missing`},
		{map[string]any{"a": map[string]any{"b": []any{1, map[string]any{"c": "x"}}}}, `{"a":{"b":[1,{"c":"y"}]}}`, "no", "$.a.b[1].c"},
		{map[string]any{"a": nil}, `{"a":null}`, "yes", ""},
		{map[string]any{"a": nil}, `{}`, "no", "missing"},
		{[]any{1}, `[1,2]`, "no", "an array of 1"},
		{[]any{}, `{}`, "no", "an array of 0"},
		{map[string]any{}, `[]`, "no", "an object"},
		{map[string]any{"a": expect.Contains("x")}, `{"a":"axb"}`, "yes", ""},
		{map[string]any{"a": expect.Contains("x")}, `{"a":"ab"}`, "no", "at $.a"},
		{map[string]any{"a": expect.Contains("x")}, `{"a":1}`, "error", ""},
		{map[string]string{"a": "x"}, `{"a":"x","b":1}`, "yes", ""},
		{map[named][]int{"a": {1, 2}}, `{"a":[1,2]}`, "yes", ""},
		{[]string{"a"}, `["b"]`, "no", "$[0]"},
		{"x", `"x"`, "yes", ""},
		{5, `5`, "yes", ""},
		{"5", `5`, "no", ""},
		{int64(9007199254740993), `9007199254740993`, "yes", ""},
		{int64(9007199254740993), `9007199254740992`, "no", ""},
		{0.1, `0.1`, "yes", ""},
		{1, `1e999999999`, "no", ""},
		{map[string]any{"a": 1}, map[string]any{"a": 1.0}, "yes", ""},
		{map[string]any{"a": 1}, map[string]int{"a": 1}, "yes", ""},
		{map[string]any{}, `{}}`, "no", "more after"},
		{map[string]any{}, `{} {}`, "no", "more after"},
		{map[string]any{}, `{}]`, "no", "more after"},
		{map[string]any{}, "{}\n \t", "yes", ""},
		{map[string]any{}, `{"a":`, "no", "JSON document"},
		{map[string]any{}, ``, "no", "JSON document"},
		{map[string]any{}, []byte(`{}`), "yes", ""},
		{map[string]any{}, json.RawMessage(`{}`), "yes", ""},
		{1, 7, "no", "expected 1, received 7"},
	} {
		r := expect.JSON(c.want).Match(c.have)
		if got := outcome(r); got != c.ok || !strings.Contains(r.Detail, c.at) {
			t.Errorf("JSON(%v) on %v: %s %q %v, want %s with %q", c.want, c.have, got, r.Detail, r.Err, c.ok, c.at)
		}
	}
}

func TestJSONDoesNotChangeWhatItGets(t *testing.T) {
	have := map[string]any{"a": []any{json.Number("1")}}
	expect.JSON(map[string]any{"a": []any{1}}).Match(have)
	if fmt.Sprintf("%T", have["a"].([]any)[0]) != "json.Number" {
		t.Errorf("the value was changed: %#v", have)
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":null}]}`, `1e400`, `-0`, `12345678901234567890`, `"x"`, `[[[]]]`, `{"a":1}}`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		var v any
		valid := json.Unmarshal([]byte(doc), &v) == nil
		// Every document contains itself, and no text that is none contains
		// anything.
		r := expect.JSON(v).Match(doc)
		if valid && strings.TrimSpace(doc) != "" && !r.OK && !strings.ContainsAny(doc, "123456789") {
			t.Fatalf("%q does not match itself: %s", doc, r.Detail)
		}
		if !json.Valid([]byte(doc)) && (r.OK || expect.JSON(map[string]any{}).Match(doc).OK) {
			t.Fatalf("%q is no JSON and matches", doc)
		}
		if s := expect.JSON(v).Label; strings.Contains(s, "0x") && !strings.Contains(doc, "0x") {
			t.Fatalf("the label %q has an address", s)
		}
	})
}

func TestSimilarity(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		score float64
	}{
		{"", "", 1},
		{"abc", "abc", 1},
		{"abc", "", 0},
		{"abc", "abd", 2.0 / 3},
		{"kitten", "sitting", 1 - 3.0/7},
		{"日本", "日本語", 2.0 / 3},
		{"ab", "ba", 0},
	} {
		for _, turned := range []bool{false, true} {
			a, b := c.a, c.b
			if turned {
				a, b = b, a
			}
			m := expect.Similarity(a)
			r := m.Match(b)
			if r.Err != nil || r.Score == nil || math.Abs(*r.Score-c.score) > 1e-9 || r.OK != (c.score == 1) || !m.Measures {
				t.Errorf("%q to %q: %+v, want %v", a, b, r, c.score)
			}
		}
	}
	if r := expect.Similarity("a").Match(strings.Repeat("x", 20_001)); r.Err == nil || r.Score != nil {
		t.Errorf("too long a text was measured: %+v", r)
	}
	if r := expect.Similarity("a").Match(1); r.Err == nil {
		t.Error("a number was measured")
	}
}

func TestFinite(t *testing.T) {
	for f, want := range map[float64]bool{0: true, 1: true, 0.5: true, -0.1: false, 1.01: false, math.Inf(1): false, math.Inf(-1): false} {
		if expect.Finite(f) != want {
			t.Errorf("Finite(%v) is %v", f, !want)
		}
	}
	if expect.Finite(math.NaN()) {
		t.Error("NaN is finite")
	}
}

func TestShow(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{"a\nb", `"a\nb"`},
		{[]byte("x"), `"x"`},
		{nil, "null"},
		{1.5, "1.5"},
		{map[string]any{"b": 1, "a": "<&>"}, `{"a":"<&>","b":1}`},
		{expect.Contains("x"), `text that contains "x"`},
		{map[string]any{"a": []any{expect.IsTrue()}}, `{"a":["true"]}`},
	} {
		if got := expect.Show(c.v); got != c.want {
			t.Errorf("Show(%#v) is %s, want %s", c.v, got, c.want)
		}
	}
	long := expect.Show(strings.Repeat("é", 5000))
	if len([]rune(long)) > 200 || !strings.Contains(long, "…") || !strings.Contains(long, "10000 bytes") || strings.Contains(long, "\n") {
		t.Errorf("a long text is shown as %s", long)
	}
}
