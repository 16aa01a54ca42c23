package terminal

import (
	"fmt"
	"strconv"
	"strings"

	"assay/record"
	"assay/report"
)

// lanes shows which attempts used which shared sandbox, in order, and what the
// handovers took and found. whole lists every use.
func (p *printer) lanes(lanes []report.Lane, whole bool) {
	for _, l := range lanes {
		n := "1 attempt"
		if len(l.Uses) != 1 {
			n = strconv.Itoa(len(l.Uses)) + " attempts"
		}
		p.linef("  sandbox %d  %s %s  %s", l.Ordinal, clean(l.Provider), clip(clean(l.ID), 24), n)
		if !whole {
			continue
		}
		rows := make([][]string, 0, len(l.Uses))
		for _, u := range l.Uses {
			took := ""
			if a := u.Slot.Result; a.DurationMS != nil {
				took = duration(*a.DurationMS)
			}
			rows = append(rows, []string{"   use " + strconv.Itoa(u.Use), string(u.Slot.Verdict), clean(string(u.Slot.Eval)) + "#" + strconv.Itoa(u.Slot.Ordinal), took, handover(u)})
		}
		p.table(rows, func(col int, row []string, cell string) string {
			if col == 1 {
				return p.verdict(record.Verdict(cell), 0)
			}
			return cell
		})
	}
}

// handover tells how the sandbox came to an attempt.
func handover(u report.LaneUse) string {
	if u.Use == 1 {
		return "new"
	}
	var parts []string
	if u.ResetMS != nil {
		parts = append(parts, "reset "+duration(*u.ResetMS))
	}
	if u.Changed > 0 {
		parts = append(parts, fmt.Sprintf("outside the workdir: %d changed", u.Changed))
	}
	if len(u.Ports) > 0 {
		parts = append(parts, "listening: "+strings.Trim(fmt.Sprint(u.Ports), "[]"))
	}
	return strings.Join(parts, ", ")
}
