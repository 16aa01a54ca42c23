package projectfile

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func value(t *testing.T, doc string) any {
	t.Helper()
	n, problems := Parse([]byte(doc))
	if len(problems) > 0 {
		t.Fatalf("%q: %v", doc, problems)
	}
	v, ok := n.Value()
	if !ok {
		t.Fatalf("%q has no value", doc)
	}
	return v
}

// Scalars are resolved by the core schema of YAML 1.2, whatever YAML 1.1 said.
func TestScalars(t *testing.T) {
	for in, want := range map[string]any{
		"yes": "yes", "No": "No", "on": "on", "true": true, "True": true, "FALSE": false, "tRue": "tRue",
		"null": nil, "~": nil, "Null": nil, "nil": "nil", `""`: "", "''": "", "'true'": "true", `"12"`: "12",
		"12": int64(12), "-3": int64(-3), "+4": int64(4), "012": int64(12), "0o14": int64(12), "0x1F": int64(31), "0b1": "0b1", "1_000": "1_000", "0o9": "0o9",
		"1.5": 1.5, ".5": 0.5, "1e3": 1000.0, "-1.": -1.0, "1.2.3": "1.2.3", "2001-01-01": "2001-01-01", "12:30": "12:30", "1e": "1e", "0x": "0x",
		`"a\tb\u00e9\x41"`: "a\tbéA", "'it''s'": "it's", "a b  c": "a b  c", "a # c": "a", "a#c": "a#c", "é": "é", "http://x:1/y": "http://x:1/y",
		"|\n  one\n   two\n\n  three\n": "one\n two\n\nthree\n", "|-\n  x\n": "x", "|+\n  x\n\n": "x\n\n\n", ">\n  a\n  b\n\n  c\n": "a b\nc\n", "a\n  b": "a b",
	} {
		if got := value(t, "k: "+in+"\n").(map[string]any)["k"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %#v, want %#v", in, got, want)
		}
	}
}

func TestStructure(t *testing.T) {
	for doc, want := range map[string]any{
		"a: [1, {b: c}, [d]]\n":              map[string]any{"a": []any{int64(1), map[string]any{"b": "c"}, []any{"d"}}},
		"- a\n- - b\n  - c\n- d: e\n  f: g":  []any{"a", []any{"b", "c"}, map[string]any{"d": "e", "f": "g"}},
		"\uFEFFa: b\r\nc: d\r\n":             map[string]any{"a": "b", "c": "d"},
		"%YAML 1.2\n---\na: b\n...\n":        map[string]any{"a": "b"},
		"# only\na: # x\n  b: c # y\n":       map[string]any{"a": map[string]any{"b": "c"}},
		"a: &x {b: 1}\nc: *x\nd: [*x, *x]\n": map[string]any{"a": map[string]any{"b": int64(1)}, "c": map[string]any{"b": int64(1)}, "d": []any{map[string]any{"b": int64(1)}, map[string]any{"b": int64(1)}}},
		"{}":                                 map[string]any{},
		"1: a\ntrue: b\n":                    map[string]any{"1": "a", "true": "b"},
	} {
		if got := value(t, doc); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %#v, want %#v", doc, got, want)
		}
	}
}

// A file that was made to hurt gets an answer: a code, quickly, in little memory.
func TestHostileFiles(t *testing.T) {
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		p, n := string(rune('a'+i-1)), string(rune('a'+i))
		bomb += n + ": &" + n + "1 [" + strings.TrimSuffix(strings.Repeat("*"+map[bool]string{true: "a0", false: p + "1"}[i == 1]+", ", 10), ", ") + "]\n"
	}
	for name, tc := range map[string]struct{ doc, code string }{
		"aliases":       {bomb, "yaml-too-large"},
		"flow depth":    {"a: " + strings.Repeat("[", 100_000), "yaml-too-deep"},
		"closed depth":  {strings.Repeat("[", 65) + strings.Repeat("]", 65), "yaml-too-deep"},
		"dashes":        {strings.Repeat("- ", 100_000) + "x", "yaml-too-deep"},
		"indentation":   {deep(100), "yaml-too-deep"},
		"question":      {strings.Repeat("? ", 1000) + "x", "yaml-unsupported"},
		"self alias":    {"a: &a [*a]\n", "yaml-syntax"},
		"many values":   {"a: [" + strings.Repeat("1,", maxNodes+10) + "1]", "yaml-too-large"},
		"too large":     {strings.Repeat("a", MaxFile+1), "file-too-large"},
		"zero byte":     {"a: \x00", "file-encoding"},
		"utf-16":        {"\xff\xfea\x00", "file-encoding"},
		"surrogate":     {"a: \xed\xa0\x80", "file-encoding"},
		"two documents": {"a: 1\n---\nb: 2\n", "yaml-unsupported"},
		"old directive": {"%YAML 1.1\n---\na: 1\n", "yaml-unsupported"},
		"comment only":  {"# nothing\n", "file-empty"},
		"dashes only":   {"---\n", "file-empty"},
		"tabs":          {"a:\n\tb: c\n", "yaml-syntax"},
		"complex key":   {"[a]: b\n", "yaml-syntax"},
	} {
		start := time.Now()
		_, problems := Parse([]byte(tc.doc))
		codes := map[string]bool{}
		for _, p := range problems {
			codes[p.Code] = true
		}
		if !codes[tc.code] {
			t.Errorf("%s: got %.300v, want %s", name, problems, tc.code)
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}

func deep(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestNearest(t *testing.T) {
	names := []string{"timeout", "workspace", "maxConcurrency", "run"}
	for typed, want := range map[string]string{
		"timout": "timeout", "tiemout": "timeout", "max_concurrency": "maxConcurrency", "MAXCONCURRENCY": "maxConcurrency",
		"rnu": "run", "work-space": "workspace", "zebra": "", "": "", "r": "",
	} {
		if got := Nearest(typed, names); got != want {
			t.Errorf("%q: got %q, want %q", typed, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: 1\n", "- [x, {y: z}]\n", "a: |\n  x\n", "a: &b c\nd: *b\n", "? a\n", "%YAML 1.2\n---\nx\n", "a: 'b\n", "a:\n- b\n", "<<: *a", "!!x y", "{a: b", "a: \"\\x\"", "- - - -"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1<<16 {
			return
		}
		n, problems := Parse([]byte(s))
		if n == nil && len(problems) == 0 {
			t.Fatal("neither a document nor a problem")
		}
		for _, p := range problems {
			if p.Code == "" || p.Message == "" || p.Fix == "" {
				t.Fatalf("incomplete problem %+v", p)
			}
			if strings.Contains(p.Message, "cannot be read as YAML") {
				t.Fatalf("the YAML library panicked: %s", p.Message)
			}
		}
		if n != nil {
			for _, target := range []any{new(Eval), new(Experiment), new(Project), new(Group)} {
				Decode(n, target, Kinds{})
			}
		}
	})
}

// quick and the library return the same for every document that quick reads.
func FuzzQuick(f *testing.F) {
	for _, s := range quickDocuments() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, bad := badText([]byte(s)); bad || len(s) > 1<<14 {
			return
		}
		got, ok := quick(s)
		if !ok {
			return
		}
		want, problems := parseAll(s)
		if len(problems) > 0 {
			t.Fatalf("%q: quick reads what the library refuses: %v", s, problems)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q: library -, quick +\n%s", s, diff)
		}
	})
}

func quickDocuments() []string {
	return []string{
		"a: 1\nb: two words # c\nc:\n  d: 'it''s'\n  e: \"x\\ny\"\nf:\n- g\n- h: i\n  j: k\n-  l: m\n   n: o\n",
		"# c\n\na: |\n  one\n\n   two\n\nb: |-\n    x\nc: [1, {d: e, f: [g]}, 'h', \"i\"] # j\nk: {}\nl: []\nm:\nn: ~x\n",
		"prompt: p\nchecks:\n  - run: npm test\n  - {file: a.b, matches: 'c'}\n  - changed: src/d.tsx\n\n  - {reply: {matches: '(?i)e'}}\n  - plain text: no\n",
		"x: é\ny: {a: é, b: c}\nz: 'é' # d\n", "- a\n- b\n", "- a: b\n  c:\n  - d\n  - e\n", "a: -5\nb: -\nc: .5\n", "a:\n  - |\n    x\n  - y\n",
		"a: b\n  c\n", "a: [b,\n c]\n", "a: 'b\n c'\n", "a:\n    b: c\n  d: e\n", "a: b: c\n", "a:\n# x\n  # y\n  b: c\n", "a: |\n\n  b\n", "{a: b}\n", "text\n",
		"a: http://x:1/y#z\n", "a: x  \n", "a: b #\n", "a: '' \n", "a: [a b, c d]\n", "a: {b: c d}\n", "a: [1.5, true, null, 0x1F]\n", "a: 5 # é\n",
	}
}

// The same over documents put together from pieces, right and wrong ones, which
// reaches combinations that mutation of bytes does not.
func TestQuickAgrees(t *testing.T) {
	pieces := []string{
		"a:", "b: x", "c: 'it''s' # c", "d: \"q\\n\\\"\"", "e: [1, {f: g, h: [i]}, 'j']", "k: {l: m n, o: {}}", "p: |", "q: |-", "r: >", "- s", "- t: u", "- [v]", "- - w", "-",
		"x y", "z: a: b", "", "# c", "  ", "aa: -5m", "bb: [", "cc: ]", "dd: é", "ee: {é: f}", "ff: 1.5", "gg: ~", "hh: null", "ii: [null, ~, true]", "jj: http://k:1/#l", "kk: m #n", "- 'o'", "- \"p\"",
		"ll: {m: 'n', o: \"p\"}", "mm: [a b , c]", "nn: [a,b]", "oo: {a: b,}", "pp: {a}", "qq: 'r' s", "rr: *a", "ss: &a b", "tt: !!str u", "? v", "<<: w", "1: x", "a/b.c: y", "-z: a", ".b: c", "- a: |", "-  dd: e",
		"a: |2", "a: 'b", "a: b\tc", "---", "...", "a: @b", "a: b # é", "é: b", "a:b", "a: 'é' # c", "a: [é, b]", "a: [b]c", "a: {b: c} d", "=: a", "a: =", "a: <<", "- <<", "a: 2001-01-01", "a: 0x1F", "a: [ b, c ]", "a: { b: c }", "a: []", "a: {}", "a: - b", "a: -", "a: ---",
	}
	r := rand.New(rand.NewPCG(1, 2))
	read := 0
	for range 60_000 {
		var b strings.Builder
		indent := 0
		for range 1 + r.IntN(6) {
			indent = max(0, indent+[]int{0, 0, 0, 2, 2, -2, 4, -4, 1}[r.IntN(9)])
			b.WriteString(strings.Repeat(" ", indent) + pieces[r.IntN(len(pieces))] + "\n")
		}
		doc := b.String()
		got, ok := quick(doc)
		if !ok {
			continue
		}
		read++
		want, problems := parseAll(doc)
		if len(problems) > 0 {
			t.Fatalf("%q: quick reads what the library refuses: %v", doc, problems)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q: library -, quick +\n%s", doc, diff)
		}
	}
	if read < 3000 {
		t.Errorf("quick read only %d documents", read)
	}
	t.Logf("quick read %d documents", read)
}
