package attempt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/internal/otlp"
	"assay/record"
	"assay/sandbox"
)

// The limits of telemetry. It may be lost, and must not be waited for.
const (
	relayStart = 5 * time.Second
	relayStop  = 3 * time.Second
	keptSpans  = 300 // of an attempt, the longest
)

// telemetry is where the agent's spans come in.
type telemetry struct {
	sent  *agent.Telemetry
	spans func() (spans []otlp.Span, left, bad int)
	stop  func() // idempotent; returns when nothing more comes
}

// sentTurn is the time of one send.
type sentTurn struct {
	turn       int
	start, end time.Time
}

// openTelemetry opens a receiver: on this machine where the sandbox reaches it,
// else beside the agent. That it cannot be had is a diagnostic and nothing else.
func (a *attempt) openTelemetry(ctx context.Context) error {
	want := a.slot.Telemetry
	if want == nil || !a.info.Telemetry || a.env.Hub == nil {
		return errNothing
	}
	host := want.Host
	if r, ok := sandbox.AsDriver[sandbox.Reacher](a.driver); ok && host == "" {
		host = r.ReachHost()
	}
	var err error
	var t *telemetry
	if host != "" {
		t, err = a.onThisMachine(ctx, host, want.Port)
	} else {
		t, err = a.besideTheAgent(ctx)
	}
	if err != nil {
		a.diagnostic("telemetry.configure", sandbox.Diagnostic{Code: "telemetry-configure-failed", Level: sandbox.Warning, Message: "the agent's spans are not recorded: " + err.Error()})
		return nil
	}
	var b [16]byte
	rand.Read(b[:])
	t.sent.Trace = hex.EncodeToString(b[:])
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tele = t
	for _, s := range a.sessions {
		s.Telemetry = t.sent
	}
	return nil
}

func (a *attempt) onThisMachine(ctx context.Context, host string, port int) (*telemetry, error) {
	r, err := a.env.Hub.Open(ctx, host, port)
	if err != nil {
		return nil, err
	}
	return &telemetry{sent: &agent.Telemetry{Endpoint: r.Endpoint(host)}, spans: r.Spans, stop: r.Close}, nil
}

// besideTheAgent runs a receiver in the sandbox, with an interpreter that is
// there, and reads what it prints.
func (a *attempt) besideTheAgent(ctx context.Context) (*telemetry, error) {
	shell, err := a.sb.Shell(ctx)
	if err != nil {
		return nil, err
	}
	var b [8]byte
	rand.Read(b[:])
	word := hex.EncodeToString(b[:])
	relay := otlp.NewRelay()
	in, hold := io.Pipe()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		argv := append(shell, "-c", otlp.RelayScript, "sh", word, otlp.RelayNode, otlp.RelayPython)
		ended <- fault.Caught(func() error {
			_, err := a.sb.RunCommand(run, argv, sandbox.CommandOptions{Stdin: in, Stdout: relay, OutputLimit: 4 << 10, Label: "receiver of spans"})
			return err
		})
		_ = in.Close()
	}()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		_ = hold.Close() // it ends by itself, with all that it got
		limit := time.NewTimer(relayStop)
		defer limit.Stop()
		select {
		case <-ended:
		case <-limit.C:
			cancel()
			<-ended
		}
		cancel()
	}
	limit := time.NewTimer(relayStart)
	defer limit.Stop()
	select {
	case port := <-relay.Port:
		return &telemetry{sent: &agent.Telemetry{Endpoint: fmt.Sprintf("http://127.0.0.1:%d/%s", port, word)}, spans: relay.Spans, stop: stop}, nil
	case err = <-ended:
		ended <- nil
		if err == nil {
			err = errors.New("the sandbox has neither node nor python3 to receive them with")
		}
	case <-limit.C:
		err = fmt.Errorf("the receiver did not start within %s", relayStart)
	case <-ctx.Done():
		err = fault.Cause(ctx)
	}
	stop()
	return nil, err
}

// closeTelemetry ends the receiver and keeps what it got. It is called when the
// agent has nothing more to say, and again at the end of every attempt.
func (a *attempt) closeTelemetry() {
	a.mu.Lock()
	t := a.tele
	a.tele = nil
	a.mu.Unlock()
	if t == nil {
		return
	}
	t.stop()
	spans, left, bad := t.spans()
	if left > 0 || bad > 0 {
		a.diagnostic("telemetry.collect", sandbox.Diagnostic{Code: "telemetry-collect-failed", Level: sandbox.Warning, Message: fmt.Sprintf("not all of the agent's spans are recorded: %d were too many, %d requests could not be read", left, bad)})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.spans = timeline(spans, t.sent.Trace, a.sent, a.begin)
	a.spansLeft = len(spans) - len(a.spans) + left
}

// timeline places spans in the attempt: by the turn under which they hang, else
// by the turn in whose time they began, else in none.
func timeline(spans []otlp.Span, trace string, sent []sentTurn, begin time.Time) []record.Span {
	parents := make(map[string]string, len(spans))
	for _, s := range spans {
		parents[s.ID] = s.Parent
	}
	byID := map[string]int{}
	for _, w := range sent {
		byID[agent.TurnSpan(w.turn)] = w.turn
	}
	turnOf := func(s otlp.Span) int {
		id := s.Parent
		for range 64 { // a cycle is the sender's own
			if n, ok := byID[id]; ok && s.Trace == trace {
				return n
			}
			if id == "" {
				break
			}
			id = parents[id]
		}
		for _, w := range sent {
			if !s.Start.Before(w.start) && !s.Start.After(w.end) {
				return w.turn
			}
		}
		return 0
	}
	var out []record.Span
	for _, s := range otlp.Longest(spans, keptSpans) {
		r := record.Span{ID: s.ID, Parent: s.Parent, Name: s.Name, StartMS: s.Start.Sub(begin).Milliseconds(), MS: s.End.Sub(s.Start).Milliseconds(), Turn: turnOf(s), Failed: s.Failed}
		if _, ok := byID[s.Parent]; ok {
			r.Parent = ""
		}
		for _, k := range []string{"tool_name", "tool_use_id", "model", "gen_ai.request.model"} {
			if v := s.Attributes[k]; v != "" {
				if r.Attributes == nil {
					r.Attributes = map[string]string{}
				}
				r.Attributes[k] = v
			}
		}
		out = append(out, r)
	}
	return out
}
