// Package annotate writes annotations of GitHub Actions: lines of a job's log
// that GitHub shows at the top of its page.
//
// Format: workflow commands, https://docs.github.com/actions/reference/workflow-commands-for-github-actions
package annotate

import (
	"fmt"
	"strings"

	"assay/internal/event"
	"assay/sandbox"
)

// messageLimit bounds a message: GitHub shows about 4 KiB.
const messageLimit = 3000

// Prepare returns the annotation of a sandbox that could not be prepared: one
// line.
func Prepare(e event.Prepare) string {
	lines := []string{
		fmt.Sprintf("stage %s, class %s", e.Stage, e.Class),
		"set by " + strings.Join(e.Levels, ", "),
		"cause: " + e.Message,
	}
	if e.Log != "" {
		log := strings.Split(e.Log, "\n")
		lines = append(lines, log[max(0, len(log)-15):]...)
	}
	text := strings.Join(lines, "\n")
	if r := []rune(text); len(r) > messageLimit {
		text = string(r[:messageLimit-1]) + "…"
	}
	return Error(e.Headline, text)
}

// Error returns an error annotation.
func Error(title, message string) string {
	return "::error title=" + property(title) + "::" + data(message)
}

var (
	dataEscapes     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscapes = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func data(s string) string     { return dataEscapes.Replace(sandbox.StripControl(s)) }
func property(s string) string { return propertyEscapes.Replace(sandbox.Clean(s)) }
