package carry

import (
	"path"
	"slices"
	"strings"

	"assay/sandbox"
)

// interpreters run the file that follows.
var interpreters = map[string]bool{
	"sh": true, "bash": true, "dash": true, "zsh": true, "python": true, "python3": true, "node": true, "ruby": true, "perl": true,
	"deno": true, "bun": true, ".": true, "source": true, "exec": true, "time": true, "env": true,
}

// programs are the files that a command runs, as far as it can be told without a
// shell: what stands where a command does, and what an interpreter is given. Not
// everything that it names: a log that it writes would change with every run.
func programs(c sandbox.Command) []string {
	var out []string
	for _, words := range simple(c) {
		for i, w := range words {
			if i == 0 && strings.Contains(w, "/") {
				out = append(out, w)
			}
			if strings.HasPrefix(w, "-") || strings.Contains(w, "=") {
				continue
			}
			if !interpreters[path.Base(w)] {
				if i > 0 {
					out = append(out, w)
				}
				break
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// simple splits a command into simple ones, without assignments in front and
// without redirections.
func simple(c sandbox.Command) [][]string {
	if len(c.Argv) > 0 {
		return [][]string{c.Argv}
	}
	var out [][]string
	for _, part := range strings.FieldsFunc(c.Shell, func(r rune) bool { return strings.ContainsRune("\n;|&()", r) }) {
		var words []string
		for _, w := range strings.Fields(part) {
			if len(words) == 0 && strings.Contains(w, "=") {
				continue
			}
			if strings.ContainsAny(w, "<>") {
				break
			}
			words = append(words, strings.Trim(w, "'\""))
		}
		if len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}
