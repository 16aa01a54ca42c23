package codingtest

import (
	"strings"

	"assay/agent"
	"assay/internal/otlp"
)

// Spans sends a message with a receiver of spans and needs one of the wanted
// name, below the span that stands for the turn.
func (tr *Trial) Spans(text, name string) {
	t := tr.T
	t.Helper()
	var hub otlp.Hub
	t.Cleanup(func() { _ = hub.Close() })
	r, err := hub.Open(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	s := tr.NewSession()
	s.Telemetry = &agent.Telemetry{Endpoint: r.Endpoint("127.0.0.1"), Trace: "5b8efff798038103d269b633813fc60c"}
	if _, err := tr.Send(t.Context(), s, text); err != nil {
		t.Fatal(err)
	}
	spans, _, bad := r.Spans()
	parents := map[string]string{}
	for _, sp := range spans {
		parents[sp.ID] = sp.Parent
	}
	var seen []string
	for _, sp := range spans {
		seen = append(seen, sp.Name)
		id := sp.Parent
		for range spans {
			if id == agent.TurnSpan(int(tr.turns.Load())) || id == "" {
				break
			}
			id = parents[id]
		}
		if strings.Contains(sp.Name, name) && sp.Trace == s.Telemetry.Trace && id == agent.TurnSpan(int(tr.turns.Load())) {
			if bad > 0 {
				t.Errorf("%d requests could not be read", bad)
			}
			return
		}
	}
	t.Errorf("no span %q below the turn among %d spans %q, %d bad", name, len(spans), seen[:min(len(seen), 30)], bad)
}
