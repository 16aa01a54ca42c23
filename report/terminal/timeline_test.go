package terminal

import (
	"bytes"
	"strings"
	"testing"

	"assay/record"
	"assay/report"
)

func TestTimeline(t *testing.T) {
	a := &record.Attempt{Verdict: record.Passed, SpansLeft: 3, Spans: []record.Span{
		{ID: "a", Name: "interaction", StartMS: 10, MS: 900},
		{ID: "b", Parent: "a", Name: "tool", StartMS: 20, MS: 30, Failed: true, Attributes: map[string]string{"tool_name": "Bash\x1b[2J"}},
		{ID: "c", Parent: "gone", Name: "other", StartMS: 30, MS: 1},
	}}
	var b bytes.Buffer
	if err := Page(&b, &report.Page{Run: &record.StoredRun{}, Attempt: a}, Options{}); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "TIMELINE")
	for _, want := range []string{"at 10ms  900ms  interaction\n", "at 20ms  30ms     tool Bash", "  failed\n", "at 30ms  1ms    other\n", "… 3 more\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("a control character came through: %q", got)
	}
}
