package snapshot

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"assay/fault"
)

// Rules have at most this many entries a list, of at most this many bytes each.
const (
	maxPatterns     = 256
	maxPatternBytes = 4096
)

// Check reports the first pattern that cannot be used.
func (r Rules) Check() error {
	for _, list := range []struct {
		name     string
		patterns []string
	}{{"ignore", r.Ignore}, {"include", r.Include}} {
		if len(list.patterns) > maxPatterns {
			return fault.Configf("ledger-bad-pattern", fmt.Sprintf("keep at most %d patterns in diff.%s", maxPatterns, list.name),
				"diff.%s has %d patterns", list.name, len(list.patterns))
		}
		for _, p := range list.patterns {
			if _, err := compile(p); err != nil {
				return fault.Configf("ledger-bad-pattern", "correct or remove this pattern",
					"diff.%s: pattern %q: %v", list.name, p, err)
			}
		}
	}
	return nil
}

// pattern is one compiled gitignore pattern (gitignore(5), without negation).
type pattern struct {
	dirOnly bool
	// elems are the path elements of an anchored pattern, "**" standing alone.
	// A pattern without a slash is "**" and one element: any depth.
	elems []string
}

func compile(text string) (pattern, error) {
	var p pattern
	switch {
	case text == "" || strings.Trim(text, "/") == "":
		return p, fmt.Errorf("it is empty")
	case len(text) > maxPatternBytes:
		return p, fmt.Errorf("it is longer than %d bytes", maxPatternBytes)
	case text[0] == '!':
		return p, fmt.Errorf("a leading ! has no meaning here; use diff.include")
	case strings.IndexByte(text, 0) >= 0:
		return p, fmt.Errorf("it holds a NUL byte")
	}
	text = strings.TrimPrefix(text, "./")
	body := strings.TrimRight(text, "/")
	p.dirOnly = body != text
	anchored := strings.Contains(body, "/")
	for _, e := range strings.Split(strings.TrimPrefix(body, "/"), "/") {
		switch {
		case e == "" || e == "." || e == "..":
			return p, fmt.Errorf("it has the element %q", e)
		case e == "**":
			if len(p.elems) > 0 && p.elems[len(p.elems)-1] == "**" {
				continue
			}
		default:
			// path.Match knows [^a]; gitignore also knows [!a] and treats a run of
			// stars inside an element as one.
			for strings.Contains(e, "**") {
				e = strings.ReplaceAll(e, "**", "*")
			}
			e = strings.ReplaceAll(e, "[!", "[^")
			if _, err := path.Match(e, "x"); err != nil {
				return p, err
			}
		}
		p.elems = append(p.elems, e)
	}
	if !anchored && p.elems[0] != "**" {
		p.elems = append([]string{"**"}, p.elems...)
	}
	return p, nil
}

// match tells whether the pattern names the path itself (not a parent of it).
func (p pattern) match(elems []string, dir bool) bool {
	return (dir || !p.dirOnly) && matchElems(p.elems, elems)
}

// matchElems matches with backtracking over the last "**" only, so its cost is
// at most len(pat) times len(elems) matches of one element.
func matchElems(pat, elems []string) bool {
	pi, ei, star, mark := 0, 0, -1, 0
	for ei < len(elems) {
		switch {
		case pi < len(pat) && pat[pi] == "**":
			star, mark = pi, ei
			pi++
			if pi == len(pat) {
				// A trailing ** names everything below, not the directory itself.
				return true
			}
			continue
		case pi < len(pat) && matchElem(pat[pi], elems[ei]):
			pi++
			ei++
			continue
		case star < 0:
			return false
		}
		mark++
		pi, ei = star+1, mark
	}
	return pi == len(pat)
}

func matchElem(pat, elem string) bool {
	if !strings.ContainsAny(pat, `*?[\`) {
		return pat == elem
	}
	ok, err := path.Match(pat, elem)
	return ok && err == nil
}

// below tells whether the pattern could name something inside dir.
func (p pattern) below(dir []string) bool {
	pi := 0
	for _, e := range dir {
		if pi < len(p.elems) && p.elems[pi] == "**" {
			return true
		}
		if pi >= len(p.elems) || !matchElem(p.elems[pi], e) {
			return false
		}
		pi++
	}
	return pi < len(p.elems)
}

// matcher applies frozen rules.
type matcher struct {
	names   map[string]bool // excluded names at any depth, files and directories
	ignore  []pattern
	include []pattern
}

func newMatcher(r Rules, always ...string) (*matcher, error) {
	m := &matcher{names: map[string]bool{}}
	if err := r.Check(); err != nil {
		return nil, err
	}
	for _, text := range slices.Concat(DefaultExclusions(), r.Ignore, always) {
		p, err := compile(text)
		if err != nil {
			return nil, err
		}
		if len(p.elems) == 2 && p.elems[0] == "**" && !p.dirOnly && !strings.ContainsAny(p.elems[1], `*?[\`) {
			m.names[p.elems[1]] = true
			continue
		}
		m.ignore = append(m.ignore, p)
	}
	for _, text := range r.Include {
		p, err := compile(text)
		if err != nil {
			return nil, err
		}
		m.include = append(m.include, p)
	}
	return m, nil
}

// state is what a directory passes on to its entries.
type state struct{ excluded, included bool }

func (s state) captured() bool { return s.included || !s.excluded }

// enter returns the state of the entry at elems, whose parent has state s.
func (m *matcher) enter(s state, elems []string, dir bool) state {
	name := elems[len(elems)-1]
	if !s.excluded {
		s.excluded = m.names[name]
		for i := 0; i < len(m.ignore) && !s.excluded; i++ {
			s.excluded = m.ignore[i].match(elems, dir)
		}
	}
	for i := 0; i < len(m.include) && !s.included; i++ {
		s.included = m.include[i].match(elems, dir)
	}
	return s
}

// descend tells whether a directory that is not captured can hold something
// that is.
func (m *matcher) descend(elems []string) bool {
	return slices.ContainsFunc(m.include, func(p pattern) bool { return p.below(elems) })
}
