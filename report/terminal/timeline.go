package terminal

import (
	"fmt"
	"strings"

	"assay/record"
)

// maxSpanLines bounds the timeline of a page; the record holds the rest.
const maxSpanLines = 60

// timeline writes the agent's own spans, each below the one it is a part of.
func (p *printer) timeline(a *record.Attempt) {
	if len(a.Spans) == 0 {
		return
	}
	p.heading("TIMELINE as the agent tells it")
	depth := map[string]int{}
	rows := make([][]string, 0, len(a.Spans))
	for i := range a.Spans {
		s := &a.Spans[i]
		d := 0
		if up, ok := depth[s.Parent]; ok && s.Parent != "" {
			d = min(up+1, 8) // spans come in order of their start, so a parent came before
		}
		depth[s.ID] = d
		if i >= maxSpanLines {
			continue
		}
		name := strings.Repeat("  ", d) + clean(s.Name)
		for _, k := range []string{"tool_name", "model", "gen_ai.request.model"} {
			if v := s.Attributes[k]; v != "" {
				name += " " + clean(v)
			}
		}
		if s.Failed {
			name += "  failed"
		}
		rows = append(rows, []string{"at " + duration(s.StartMS), duration(s.MS), name})
	}
	p.table(rows, nil)
	if left := len(a.Spans) - len(rows) + a.SpansLeft; left > 0 {
		p.line(fmt.Sprintf("  … %d more", left))
	}
}
