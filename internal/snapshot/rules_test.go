package snapshot

import (
	"os"
	"slices"
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/testreq"
)

func TestPatterns(t *testing.T) {
	tests := []struct {
		pattern string
		yes, no []string // a trailing slash marks a directory
	}{
		{"__pycache__", []string{"__pycache__", "__pycache__/", "a/b/__pycache__/"}, []string{"x__pycache__", "__pycache__/f"}},
		{"*venv*/", []string{"venv/", "a/my-venv3/", ".venv/"}, []string{"venv", "a/venv.txt"}},
		{"/top", []string{"top", "top/"}, []string{"a/top"}},
		{"a/b", []string{"a/b", "a/b/"}, []string{"x/a/b", "a", "a/b/c"}},
		{"a/*.log", []string{"a/x.log", "a/.log"}, []string{"a/b/x.log", "x.log"}},
		{"**/x", []string{"x", "a/x", "a/b/x"}, []string{"ax"}},
		{"a/**", []string{"a/b", "a/b/c"}, []string{"a", "a/", "b/a/c"}},
		{"a/**/z", []string{"a/z", "a/b/z", "a/b/c/z"}, []string{"z", "a/b"}},
		{"**/a/**/b/**", []string{"a/b/c", "x/a/y/b/c"}, []string{"a/b", "b/a/c"}},
		{"f[0-9]?", []string{"f1x", "d/f9y"}, []string{"f1", "fax"}},
		{"[!a]x", []string{"bx"}, []string{"ax"}},
		{`\*`, []string{"*"}, []string{"x"}},
		{"./a", []string{"a"}, nil},
		{"a**b", []string{"ab", "axxb"}, []string{"a/b"}},
		{"\xff", []string{"\xff", "d/\xff"}, []string{"\xfe"}},
	}
	for _, tt := range tests {
		p, err := compile(tt.pattern)
		if err != nil {
			t.Errorf("%q: %v", tt.pattern, err)
			continue
		}
		for path, want := range expected(tt.yes, tt.no) {
			name, dir := strings.CutSuffix(path, "/")
			if p.match(strings.Split(name, "/"), dir) != want {
				t.Errorf("%q matches %q: want %v", tt.pattern, path, want)
			}
		}
	}
}

func expected(yes, no []string) map[string]bool {
	m := map[string]bool{}
	for _, p := range yes {
		m[p] = true
	}
	for _, p := range no {
		m[p] = false
	}
	return m
}

func TestBadPatterns(t *testing.T) {
	for _, p := range []string{"", "/", "!x", "a/../b", "a//b", "[", "a\x00", strings.Repeat("x", 4097)} {
		err := Rules{Include: []string{p}}.Check()
		if fault.CodeOf(err) != "ledger-bad-pattern" || fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "" {
			t.Errorf("%.20q: %v", p, err)
		}
	}
	if err := (Rules{Ignore: slices.Repeat([]string{"x"}, 257)}).Check(); fault.CodeOf(err) != "ledger-bad-pattern" {
		t.Errorf("257 patterns: %v", err)
	}
	if err := (Rules{Ignore: slices.Repeat([]string{strings.Repeat("x", 4096)}, 256)}).Check(); err != nil {
		t.Errorf("the most that is allowed: %v", err)
	}
}

func TestWhatIsCaptured(t *testing.T) {
	b := newBench(t)
	b.do(Request{Op: OpMark, Rules: Rules{
		Ignore:  []string{"*.log", "/data/"},
		Include: []string{"node_modules/mine/**", "keep.log", "dist/"},
	}})
	for _, p := range []string{
		"a.log", "keep.log", "x/keep.log", "x/b.log", "data/f", "x/data/f", "node_modules/other/f", "node_modules/mine/f",
		"node_modules/mine/node_modules/f", "sub/node_modules/mine/f", "dist/f", "x/dist/f", "build/f", "x/__pycache__/f", "my-venv/f",
		".git/f", "x/.cache/f", "plain",
	} {
		b.write(p, "x")
	}
	wantSummary(t, b.turn(), "added dist/f", "added keep.log", "added node_modules/mine/f", "added node_modules/mine/node_modules/f",
		"added plain", "added x/data/f", "added x/dist/f", "added x/keep.log")
}

// TestPatternsAreGits compares with git's own reading of ignore files.
func TestPatternsAreGits(t *testing.T) {
	testreq.Git(t)
	b := newBench(t)
	git(t, b.root, "init", "-q", ".")
	paths := []string{"a", "b", "ab", "a.log", "d/a", "d/b", "d/a.log", "d/e/a", "d/e/b.log", "x/d/a", "venv/a", "d/myvenv/b", "a-b/c"}
	for _, p := range paths {
		b.write(p, "")
	}
	patterns := []string{
		"a", "*.log", "/a", "d/", "d/*", "d/**", "**/a", "d/**/a", "*venv*/", "?", "[ab]", "[!a]", "/d/e", "e/", "**/e/**", "a*", "d/?", "x/d",
	}
	for _, text := range patterns {
		b.must(os.WriteFile(b.path(".git/info/exclude"), []byte(text+"\n"), 0o644))
		out := git(t, b.root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard")
		theirs := strings.FieldsFunc(out, func(r rune) bool { return r == 0 })
		m, err := compile(text)
		b.must(err)
		var ours []string
		for _, p := range paths {
			elems := strings.Split(p, "/")
			for i := range elems {
				if m.match(elems[:i+1], i+1 < len(elems)) {
					ours = append(ours, p)
					break
				}
			}
		}
		slices.Sort(ours)
		slices.Sort(theirs)
		if !slices.Equal(ours, theirs) {
			t.Errorf("%q\n ours %q\n git  %q", text, ours, theirs)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, s := range []string{"a", "*/b", "**/a/**", "[a-", `\`, "a**b", "/x/", "[^]a]", "\xff*"} {
		f.Add(s, "a/b/c")
	}
	f.Fuzz(func(t *testing.T, text, path string) {
		p, err := compile(text)
		if err != nil {
			return
		}
		elems := strings.Split(path, "/")
		matched := p.match(elems, true)
		if p.match(elems, false) && !matched {
			t.Errorf("%q matches the file %q but not the directory", text, path)
		}
		for i := range elems {
			if matched && i > 0 && !p.below(elems[:i]) {
				t.Errorf("%q matches %q but finds nothing below %q", text, path, elems[:i])
			}
		}
		if !strings.ContainsAny(text, `*?[\`) && p.match(p.elems[len(p.elems)-1:], true) != (len(p.elems) == 1 || p.elems[0] == "**") {
			t.Errorf("%q does not match itself", text)
		}
	})
}
