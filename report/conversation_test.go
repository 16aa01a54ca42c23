package report

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func talkOf(t *testing.T, lines ...string) talk {
	t.Helper()
	var out talk
	for _, l := range lines {
		var e eventLine
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatal(err)
		}
		out.add(&e)
	}
	return out
}

func TestConversationPairsCalls(t *testing.T) {
	got := talkOf(t,
		`{"type":"message","role":"user","text":"go","turn":1}`,
		`{"type":"thinking","text":"hm","turn":1}`,
		`{"type":"operation.started","id":"a","name":"bash","input":{"command":"ls"},"turn":1,"at":"2026-01-01T00:00:00Z"}`,
		`{"type":"operation.started","id":"b","kind":"subagent","name":"helper","turn":1}`,
		`{"type":"operation.finished","id":"a","status":"completed","output":"a.txt\n","turn":1,"at":"2026-01-01T00:00:01.5Z"}`,
		`{"type":"message","role":"assistant","text":"done","turn":1}`,
		// The ids begin anew in the next turn.
		`{"type":"operation.started","id":"a","name":"edit","turn":2,"at":"2026-01-01T00:00:09Z"}`,
		`{"type":"operation.finished","id":"a","status":"failed","output":{"error":1},"turn":2}`,
		`{"type":"operation.finished","id":"x","status":"failed","turn":2}`,
		`{"type":"usage","usage":{},"turn":2}`,
		`{"type":"vendor.news","turn":2}`,
	).entries
	kinds := make([]string, len(got))
	for i, e := range got {
		kinds[i] = e.Kind
	}
	if s := strings.Join(kinds, ","); s != "user,thinking,tool,subagent,assistant,tool,result without its call,vendor.news" {
		t.Fatal(s)
	}
	if c := got[2]; c.Name != "bash" || c.Input != `{"command":"ls"}` || c.Output != "a.txt\n" || c.Status != "completed" || c.Took == nil || *c.Took != 1500*time.Millisecond {
		t.Errorf("call %+v", c)
	}
	if c := got[3]; c.Status != "" || c.Took != nil {
		t.Errorf("a call without an end %+v", c)
	}
	if c := got[5]; c.Turn != 2 || c.Status != "failed" || c.Output != `{"error":1}` || c.Took != nil {
		t.Errorf("second turn %+v", c)
	}
}

func TestConversationIsBounded(t *testing.T) {
	var tk talk
	for range maxEntries + 10 {
		tk.add(&eventLine{truncation: truncation{Type: "message"}, Role: "assistant", Text: strings.Repeat("ä", maxEntryText)})
	}
	if len(tk.entries) != maxEntries || tk.left != 10 || len(tk.entries[0].Text) > maxEntryText+20 {
		t.Errorf("%d entries, %d left, %d bytes", len(tk.entries), tk.left, len(tk.entries[0].Text))
	}
}
