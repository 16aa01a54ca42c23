package agent

import "fmt"

// Telemetry is where an agent that can send spans sends them, over OTLP/HTTP.
// Spans tell where time went and nothing else.
type Telemetry struct {
	// Endpoint is the base address, as the agent reaches it; exporters add
	// /v1/traces.
	Endpoint string
	// Trace is the attempt's trace, 32 hex digits.
	Trace string
}

// Parent is the W3C traceparent under which the spans of a turn hang.
func (t *Telemetry) Parent(turn int) string {
	return fmt.Sprintf("00-%s-%s-01", t.Trace, TurnSpan(turn))
}

// TurnSpan is the id of the span that stands for a turn, 16 hex digits.
func TurnSpan(turn int) string { return fmt.Sprintf("f0f0%012x", turn) }
