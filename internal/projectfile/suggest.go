package projectfile

import (
	"slices"
	"strings"
)

// Nearest returns the name that a person most likely meant, or "".
func Nearest(typed string, names []string) string {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	best, bestDistance := "", 1+max(1, len(typed)/3)
	for _, n := range names {
		if plain(n) == plain(typed) {
			return n
		}
		if d := distance(typed, n, bestDistance); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	return best
}

// distance counts the insertions, deletions, substitutions and swaps of
// neighbours between two words, up to limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit || len(a) > 64 || len(b) > 64 {
		return limit
	}
	var old, prev []int
	cur := make([]int, len(b)+1)
	for j := range cur {
		cur[j] = j
	}
	for i := 1; i <= len(a); i++ {
		old, prev = prev, cur
		cur = make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], old[j-2]+1)
			}
		}
	}
	return cur[len(b)]
}

// didYouMean is the fix for a name that is not known.
func didYouMean(typed string, names []string) string {
	names = slices.Sorted(slices.Values(names))
	if n := Nearest(typed, names); n != "" {
		return "Did you mean " + n + "?"
	}
	if len(names) == 0 {
		return "Remove it."
	}
	return "Known here: " + strings.Join(names, ", ") + "."
}
