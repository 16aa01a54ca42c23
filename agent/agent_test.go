package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"assay/agent"
)

func TestReadEvents(t *testing.T) {
	for _, c := range []struct {
		name, in string
		types    []agent.EventType
		bad      int
	}{
		{"nothing", "", nil, 0},
		{"empty lines", "\n \n\r\n\t\n", nil, 0},
		{"one without its newline", `{"type":"message","text":"x"}`, []agent.EventType{"message"}, 0},
		{"dos line ends", "{\"type\":\"thinking\"}\r\n{\"type\":\"error\"}\r\n", []agent.EventType{"thinking", "error"}, 0},
		{"unknown type", `{"type":"brand-new","x":1}`, []agent.EventType{"brand-new"}, 0},
		{"known type, field of another shape", `{"type":"message","role":7}`, []agent.EventType{"message"}, 0},
		{"junk between", "x\n{\"type\":\"usage\"}\nnull\n[]\n\"s\"\n7\n", []agent.EventType{"usage"}, 5},
		{"no type", `{"text":"x"}`, nil, 1},
		{"type of another shape", `{"type":7}`, nil, 1},
		{"half", `{"type":"mess`, nil, 1},
		{"two in a line", `{"type":"usage"}{"type":"usage"}`, nil, 1},
		{"usage below zero", `{"type":"usage","usage":{"inputTokens":-5}}`, nil, 1},
		{"cost below zero, in another event", `{"type":"message","text":"x","usage":{"costUSD":-0.5}}`, nil, 1},
		{"cost without end", `{"type":"usage","usage":{"costUSD":1e400}}`, nil, 1},
		{"usage of another shape", `{"type":"usage","usage":"much"}`, nil, 1},
		{"usage of nothing", `{"type":"usage","usage":{"inputTokens":0,"costUSD":0}}`, []agent.EventType{"usage"}, 0},
		{"binary", "\x00\xff\n{\"type\":\"usage\"}\n", []agent.EventType{"usage"}, 1},
		{"a line of the greatest length", `{"type":"message","text":"` + strings.Repeat("x", agent.MaxEventLine-30) + "\"}\n", []agent.EventType{"message"}, 0},
		{"a longer line, then another", strings.Repeat("y", agent.MaxEventLine+1) + "\n{\"type\":\"usage\"}\n", []agent.EventType{"usage"}, 1},
		{"a longer line at the end", strings.Repeat("y", agent.MaxEventLine+100), nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			events, bad, err := agent.ReadEvents(strings.NewReader(c.in))
			if err != nil || bad != c.bad {
				t.Errorf("%d bad lines, error %v; want %d", bad, err, c.bad)
			}
			var types []agent.EventType
			for _, e := range events {
				types = append(types, e.Type)
			}
			if !slices.Equal(types, c.types) {
				t.Errorf("types %q, want %q", types, c.types)
			}
		})
	}
}

func TestUnknownEventsKeepTheirOriginal(t *testing.T) {
	const unknown, odd = `{"type":"brand-new","n":12345678901234567890}`, `{"type":"message","text":["x"]}`
	events, _, err := agent.ReadEvents(strings.NewReader(unknown + "\n" + odd + "\n" + `{"type":"message","text":"x"}`))
	if err != nil || len(events) != 3 {
		t.Fatal(events, err)
	}
	if string(events[0].Raw) != unknown || string(events[1].Raw) != odd || events[2].Raw != nil {
		t.Errorf("originals %q, %q, %q", events[0].Raw, events[1].Raw, events[2].Raw)
	}
}

func TestReadEventsReturnsTheReadersError(t *testing.T) {
	broken := errors.New("the line is cut")
	events, bad, err := agent.ReadEvents(io.MultiReader(strings.NewReader("{\"type\":\"usage\"}\n"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(events) != 1 || bad != 0 {
		t.Errorf("%d events, %d bad, error %v", len(events), bad, err)
	}
}

func FuzzReadEvents(f *testing.F) {
	for _, s := range []string{"", "{}", `{"type":"message","text":"x"}`, "{\"type\":\"a\"}\n\n{", `{"type":"usage","usage":{"inputTokens":1}}`, "\xff\n", `{"type":"message","at":"x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		events, bad, err := agent.ReadEvents(iotest.OneByteReader(bytes.NewReader(in)))
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for l := range bytes.SplitSeq(in, []byte("\n")) {
			if len(bytes.TrimSpace(l)) > 0 {
				lines++
			}
		}
		if len(events)+bad != lines {
			t.Fatalf("%d events and %d bad lines of %d", len(events), bad, lines)
		}
		var out bytes.Buffer
		for _, e := range events {
			if e.Type == "" {
				t.Fatalf("an event without a type: %+v", e)
			}
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatalf("an event that does not encode: %+v: %v", e, err)
			}
			out.Write(append(b, '\n'))
		}
		again, bad, err := agent.ReadEvents(&out)
		if err != nil || bad != 0 || len(again) != len(events) {
			t.Fatalf("%d events became %d with %d bad lines, error %v", len(events), len(again), bad, err)
		}
	})
}

func n(v int64) *int64 { return &v }

func TestUsage(t *testing.T) {
	a := &agent.Usage{InputTokens: n(1), CacheReadTokens: n(0), CostUSD: new(float64)}
	b := &agent.Usage{InputTokens: n(2), OutputTokens: n(5), ReasoningTokens: n(4)}
	sum := a.Add(b)
	want := &agent.Usage{InputTokens: n(3), CacheReadTokens: n(0), OutputTokens: n(5), ReasoningTokens: n(4), CostUSD: new(float64)}
	if !reflect.DeepEqual(sum, want) {
		t.Errorf("sum %+v", sum)
	}
	if *a.InputTokens != 1 || *b.InputTokens != 2 {
		t.Error("Add changed its parts")
	}
	if got := (*agent.Usage)(nil).Add(nil); got != nil {
		t.Errorf("nothing and nothing is %+v", got)
	}
	if (*agent.Usage)(nil).Add(a) != a || a.Add(nil) != a {
		t.Error("a sum with nothing is not the other side")
	}
	for _, c := range []struct {
		u     *agent.Usage
		sum   int64
		known bool
	}{{nil, 0, false}, {&agent.Usage{}, 0, false}, {&agent.Usage{Requests: n(3)}, 0, false}, {&agent.Usage{OutputTokens: n(0)}, 0, true}, {sum, 8, true}} {
		if got, known := c.u.Tokens(); got != c.sum || known != c.known {
			t.Errorf("%+v: %d tokens, known %v; want %d, %v (reasoning is part of output)", c.u, got, known, c.sum, c.known)
		}
	}
}

func TestUsageCheck(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		u    *agent.Usage
		want string
	}{
		{nil, ""},
		{&agent.Usage{}, ""},
		{&agent.Usage{InputTokens: n(0), CacheReadTokens: n(1), CacheCreationTokens: n(2), OutputTokens: n(3), ReasoningTokens: n(4), Requests: n(5), CostUSD: f(0.1)}, ""},
		{&agent.Usage{InputTokens: n(-1)}, "inputTokens is -1"},
		{&agent.Usage{CacheReadTokens: n(-1)}, "cacheReadTokens is -1"},
		{&agent.Usage{CacheCreationTokens: n(-1)}, "cacheCreationTokens is -1"},
		{&agent.Usage{OutputTokens: n(-1)}, "outputTokens is -1"},
		{&agent.Usage{ReasoningTokens: n(-1)}, "reasoningTokens is -1"},
		{&agent.Usage{Requests: n(-1)}, "requests is -1"},
		{&agent.Usage{CostUSD: f(-2)}, "costUSD is -2"},
		{&agent.Usage{CostUSD: f(math.NaN())}, "costUSD is NaN"},
		{&agent.Usage{CostUSD: f(math.Inf(1))}, "costUSD is +Inf"},
	} {
		got := ""
		if err := c.u.Check(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.u, got, c.want)
		}
	}
}

func TestWorstCoverage(t *testing.T) {
	levels := []agent.Level{"", agent.None, agent.Partial, agent.Complete}
	rank := map[agent.Level]int{agent.Partial: 1, agent.Complete: 2}
	for _, a := range levels {
		for _, b := range levels {
			got := agent.Coverage{Actions: a}.Worst(agent.Coverage{Actions: b}).Actions
			if rank[got] != min(rank[a], rank[b]) {
				t.Errorf("the worst of %q and %q is %q", a, b, got)
			}
		}
	}
	all := agent.Coverage{Events: "complete", Actions: "partial", Messages: "complete", Usage: "partial", Status: "complete", Data: "partial"}
	if got := all.Worst(all); got != all {
		t.Errorf("a channel was mixed up: %+v", got)
	}
}

func TestValueIsMadeOncePerSessionAndKey(t *testing.T) {
	type key struct{}
	s, other := &agent.Session{}, &agent.Session{}
	made := 0
	var wg sync.WaitGroup
	got := make([]*int, 8)
	for i := range got {
		wg.Go(func() { got[i] = agent.Value(s, key{}, func() *int { made++; return new(int) }) })
	}
	wg.Wait()
	for _, p := range got {
		if p != got[0] {
			t.Fatal("two values under one key")
		}
	}
	if made != 1 {
		t.Errorf("the value was made %d times", made)
	}
	if agent.Value(other, key{}, func() *int { return new(int) }) == got[0] || agent.Value(s, "another", func() *int { return new(int) }) == got[0] {
		t.Error("sessions or keys share a value")
	}
}

func TestSendError(t *testing.T) {
	cause := errors.New("the service said no")
	var err error = &agent.SendError{Acceptance: agent.Rejected, Err: cause}
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error()) {
		t.Errorf("%v does not wrap its cause", err)
	}
}

func TestRegistry(t *testing.T) {
	r := agent.NewRegistry(agent.Definition{Name: "b"}, agent.Definition{Name: "a", Summary: "x"})
	if !slices.Equal(r.Names(), []string{"a", "b"}) {
		t.Errorf("names %q", r.Names())
	}
	if d, ok := r.Lookup("a"); !ok || d.Summary != "x" {
		t.Errorf("%+v, %v", d, ok)
	}
	if _, ok := new(agent.Registry).Lookup("a"); ok {
		t.Error("the zero registry has an agent")
	}
}
