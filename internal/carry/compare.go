package carry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"assay/record"
)

// Equal reports whether a result of identity old still holds for now.
func Equal(old, now *record.Identity) bool {
	return old != nil && now != nil && old.Domain == now.Domain && old.Digest == now.Digest
}

// Change is one input that is not what it was.
type Change struct {
	Input string
	// Old and New are its values, "" where it was or is absent.
	Old, New string
}

// String is the change in one line.
func (c Change) String() string {
	show := func(s string) string {
		if s == "" {
			return "none"
		}
		return s
	}
	return fmt.Sprintf("%s: %s → %s", c.Input, show(c.Old), show(c.New))
}

// Changes are the inputs that differ, by name. There is at least one when the
// two are not equal.
func Changes(old, now *record.Identity) []Change {
	switch {
	case Equal(old, now):
		return nil
	case old == nil || now == nil:
		return []Change{{Input: "identity", Old: domain(old), New: domain(now)}}
	case old.Domain != now.Domain:
		return []Change{{Input: "recipe of the identity", Old: old.Domain, New: now.Domain}}
	}
	names := map[string]bool{}
	was, is := old.Values(), now.Values()
	for name := range was {
		names[name] = true
	}
	for name := range is {
		names[name] = true
	}
	var out, order []Change
	checks := false
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c := Change{name, was[name], is[name]}
		if c.Old == c.New {
			continue
		}
		if strings.HasSuffix(name, orderOf) {
			order = append(order, c)
			continue
		}
		checks = checks || strings.Contains(name, "check ")
		out = append(out, c)
	}
	// An added or removed check changes the order too, which says nothing new.
	if !checks {
		out = append(out, order...)
	}
	if len(out) == 0 {
		out = []Change{{Input: "identity", Old: short(old.Digest), New: short(now.Digest)}}
	}
	return out
}

func domain(id *record.Identity) string {
	if id == nil {
		return ""
	}
	return id.Domain
}

func short(digest string) string { return digest[:min(12, len(digest))] }
