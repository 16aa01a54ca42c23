package board_test

import (
	"strings"
	"testing"

	"assay/internal/board"
	"assay/internal/event"
)

func TestPreparationIsTold(t *testing.T) {
	text := func(e event.Prepare) string {
		b := board.New(board.Options{})
		var all []string
		for _, l := range b.Apply(e) {
			all = append(all, l.Text)
		}
		return strings.Join(all, "\n")
	}
	if got := text(event.Prepare{Key: "k", Provider: "docker", Label: "a:1", Status: event.Done, Message: "pulled"}); !strings.HasSuffix(got, "prepared docker a:1: pulled") {
		t.Errorf("done: %q", got)
	}
	var log []string
	for i := range 40 {
		log = append(log, strings.Repeat("x", i))
	}
	got := text(event.Prepare{
		Key: "k", Provider: "docker", Label: "./Dockerfile", Status: event.Broken, Stage: "dockerfile", Class: "config",
		Headline: "docker ./Dockerfile could not be prepared (config at dockerfile)", Message: "RUN make: exit code 2", Log: strings.Join(log, "\n"), Levels: []string{"eval a", "eval b"},
	})
	for _, want := range []string{"could not be prepared (config at dockerfile)", "stage dockerfile, class config", "declared by eval a, eval b", "cause: RUN make: exit code 2", "| " + log[39], "| " + log[28]} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "| "+log[27]+"\n") {
		t.Errorf("more than the end of the log:\n%s", got)
	}
}
