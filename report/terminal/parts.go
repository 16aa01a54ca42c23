package terminal

import (
	"io"

	"assay/report"
	"assay/sandbox"
)

// Diff writes what the agent changed, as its page shows it.
func Diff(w io.Writer, pg *report.Page, o Options) error {
	p := newPrinter(w, o)
	p.diff(pg)
	return p.b.Flush()
}

// Command renders one recorded command in a line.
func Command(c *sandbox.CommandRecord) string { return commandLine(c) }
