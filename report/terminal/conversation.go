package terminal

import (
	"fmt"
	"strconv"
	"strings"

	"assay/record"
	"assay/report"
)

// The bounds of a conversation on a page, in lines of each part; --format json
// and the record hold the rest.
const (
	maxTurnLines  = 12
	maxThinkLines = 6
	maxCallLines  = 8
)

// conversation writes the turns with what happened in each: messages, tool calls
// with their results, and how long and how dear it was.
func (p *printer) conversation(pg *report.Page) {
	turns := pg.Attempt.Turns
	if len(turns) == 0 && len(pg.Talk) == 0 {
		return
	}
	p.heading("CONVERSATION")
	byTurn := map[int][]report.Entry{}
	for i := range pg.Talk {
		e := &pg.Talk[i]
		if e.Turn == 0 && len(turns) == 1 {
			e.Turn = turns[0].Turn // it can belong to no other
		}
		byTurn[e.Turn] = append(byTurn[e.Turn], *e)
	}
	for i := range turns {
		t := &turns[i]
		p.turnHead(t)
		entries := byTurn[t.Turn]
		delete(byTurn, t.Turn)
		asked, said := false, false
		for _, e := range entries {
			asked = asked || e.Kind == "user"
			said = said || e.Kind == "assistant" && e.Text == t.Reply
		}
		if !asked {
			p.block("    > ", t.Prompt, maxTurnLines, false)
		}
		for j := range entries {
			p.entry(&entries[j])
		}
		if t.Reply != "" && !said {
			p.block("    < ", t.Reply, maxTurnLines, false)
		}
	}
	// What belongs to no turn that was recorded.
	for _, e := range pg.Talk {
		if _, ok := byTurn[e.Turn]; ok {
			p.entry(&e)
		}
	}
	if pg.TalkLeft > 0 {
		p.linef("  … %d more are in the record", pg.TalkLeft)
	}
}

func (p *printer) turnHead(t *record.Turn) {
	status := t.Status
	if status == "" {
		status = "send failed"
	}
	line := fmt.Sprintf("  turn %d", t.Turn)
	if t.Session > 1 {
		line += fmt.Sprintf(" of session %d", t.Session)
	}
	line += "  " + clean(status) + "  " + duration(t.MS)
	if t.Exit != nil {
		line += "  exit " + strconv.Itoa(*t.Exit)
	}
	if t.StopReason != "" {
		line += "  " + clean(t.StopReason)
	}
	if u := usageLine(t.Usage, nil); u != "" {
		line += "  (" + u + ")"
	}
	p.line(line)
}

func (p *printer) entry(e *report.Entry) {
	switch e.Kind {
	case "user":
		p.block("    > ", e.Text, maxTurnLines, false)
	case "assistant":
		p.block("    < ", e.Text, maxTurnLines, false)
	case "thinking":
		p.block("    ~ ", e.Text, maxThinkLines, false)
	case "tool", "subagent":
		p.call(e)
	default:
		p.line("    ! ", clip(clean(strings.TrimSpace(e.Kind+" "+e.Name+" "+e.Text+" "+e.Output)), 500))
	}
}

func (p *printer) call(e *report.Entry) {
	line := "    * " + clean(e.Name)
	if e.Kind != "tool" {
		line += " (" + clean(e.Kind) + ")"
	}
	status := e.Status
	sgr := map[string]string{"completed": "32", "": "35"}[status]
	if sgr == "" {
		sgr = "31"
	}
	if status == "" {
		status = "no end was seen"
	}
	line += "  " + p.paint(sgr, clean(status))
	if e.Took != nil {
		line += "  " + duration(e.Took.Milliseconds())
	}
	p.line(line)
	if e.Input != "" && e.Input != "{}" && e.Input != "null" {
		p.block("        ", e.Input, maxCallLines, false)
	}
	if strings.TrimSpace(e.Output) != "" && e.Output != "null" {
		p.block("      | ", e.Output, maxCallLines, true)
	}
}
