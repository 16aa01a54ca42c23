package annotate_test

import (
	"strings"
	"testing"

	"assay/internal/event"
	"assay/report/annotate"
)

func TestPrepare(t *testing.T) {
	got := annotate.Prepare(event.Prepare{
		Status: event.Broken, Stage: "dockerfile", Class: "resource", Headline: "docker a:1, b could not be prepared (resource: oom at dockerfile)",
		Message: "100% full", Log: "first\n::stop-commands::x\n\x1b[31mlast\x1b[0m\r", Levels: []string{"group g", "eval e"},
	})
	want := "::error title=docker a%3A1%2C b could not be prepared (resource%3A oom at dockerfile)::stage dockerfile, class resource%0Aset by group g, eval e%0Acause: 100%25 full%0Afirst%0A::stop-commands::x%0Alast"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAnnotationIsOneBoundedLine(t *testing.T) {
	got := annotate.Prepare(event.Prepare{Headline: "a\nb\r::error::c", Message: strings.Repeat("m\r\n", 5000), Log: strings.Repeat("l\n", 5000)})
	if strings.ContainsAny(got, "\r\n") || len(got) > 20_000 {
		t.Errorf("%d bytes: %.200q", len(got), got)
	}
	if !strings.HasPrefix(got, "::error title=a b%3A%3Aerror%3A%3Ac::") {
		t.Errorf("%.100q", got)
	}
}
