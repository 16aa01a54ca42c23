package dash

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

const (
	// The frame between these appears at once on terminals that know them.
	syncOn  = "\x1b[?2026h"
	syncOff = "\x1b[?2026l"

	eraseBelow = "\x1b[J"
	home       = "\x1b[H"
	// kept is how many permanent lines are remembered for a repaint.
	kept = 200
)

// screen knows what stands on the terminal and makes the bytes that change it.
// The cursor always rests at the start of the row below the panel. A terminal in
// its line mode makes a carriage return of every line end.
type screen struct {
	columns, rows int
	panel         []string // as drawn
	tail          []string // the latest permanent lines
	repaint       bool     // the size changed: nothing drawn is where it was
}

// fits reports whether the screen was drawn for this size.
func (s *screen) fits(columns, rows int) bool { return s.columns == columns && s.rows == rows }

// resize takes a new size.
func (s *screen) resize(columns, rows int) {
	if s.columns != 0 && !s.fits(columns, rows) {
		s.repaint = true
	}
	s.columns, s.rows = columns, rows
}

// frame returns the bytes that append the permanent lines and put panel below
// them, or "" when nothing changes.
func (s *screen) frame(permanent, panel []string) string {
	if !s.repaint && len(permanent) == 0 && slices.Equal(panel, s.panel) {
		return ""
	}
	s.tail = append(s.tail, permanent...)
	if len(s.tail) > kept {
		s.tail = slices.Clone(s.tail[len(s.tail)-kept:])
	}
	var b strings.Builder
	b.WriteString(syncOn)
	switch {
	case s.repaint:
		b.WriteString(home + eraseBelow)
		permanent = s.visible(len(panel))
	case len(s.panel) > 0:
		fmt.Fprintf(&b, "\x1b[%dA\r%s", len(s.panel), eraseBelow)
	}
	for _, l := range permanent {
		b.WriteString(l + "\n")
	}
	for _, l := range panel {
		b.WriteString(l + "\n")
	}
	b.WriteString(syncOff)
	s.panel, s.repaint = panel, false
	return b.String()
}

// visible returns the latest permanent lines that fit above a panel of that
// height.
func (s *screen) visible(panel int) []string {
	room := s.rows - 1 - panel
	i := len(s.tail)
	for i > 0 {
		room -= max(1, (ansi.StringWidth(s.tail[i-1])+s.columns-1)/s.columns)
		if room < 0 {
			break
		}
		i--
	}
	return s.tail[i:]
}
