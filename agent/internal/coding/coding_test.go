package coding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

func TestLines(t *testing.T) {
	for _, size := range []int{1, 2, 3, 7, 100} {
		var got []string
		long := 0
		l := lines{limit: 5, each: func(b []byte) { got = append(got, string(b)) }, long: func() { long++ }}
		text := "ab\n\nabcde\nabcdef\nxyz\ntail"
		for i := 0; i < len(text); i += size {
			if n, err := l.Write([]byte(text[i:min(i+size, len(text))])); err != nil || n == 0 {
				t.Fatal(n, err)
			}
		}
		l.close()
		if want := []string{"ab", "", "abcde", "xyz", "tail"}; !slices.Equal(got, want) || long != 1 {
			t.Errorf("pieces of %d: %q, %d too long", size, got, long)
		}
	}
}

// TestBounds: a stream of any size is kept in bounded memory, and what was cut
// lowers the coverage.
func TestBounds(t *testing.T) {
	normal := agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete}
	var tr Transcript
	big := strings.Repeat("é", 300<<10)
	for i := range 200 {
		id := fmt.Sprint(i)
		tr.Start(id, "", ToolBash, map[string]string{"command": "x"})
		tr.Finish(id, "completed", big)
	}
	size := 0
	for _, e := range tr.Events {
		size += len(e.Text) + len(e.Input) + len(e.Output) + len(e.Raw)
		if len(e.Output) > 0 && !json.Valid(e.Output) {
			t.Fatal("a cut output is no JSON")
		}
	}
	if size > maxTurn+2*maxPayload || len(tr.Events) != 400 {
		t.Errorf("%d events of %d bytes are kept", len(tr.Events), size)
	}
	c := tr.Coverage(normal)
	if c == nil || c.Actions != agent.Partial || c.Messages != agent.Complete || c.Usage != agent.Complete {
		t.Errorf("coverage = %+v", c)
	}
	var clean Transcript
	clean.Say("hi")
	if clean.Coverage(normal) != nil || clean.Lost() != "" || clean.Message != "hi" {
		t.Errorf("a clean turn: %+v %q", clean.Coverage(normal), clean.Lost())
	}
	clean.Start("a", "", "x", nil)
	if c := clean.Coverage(normal); c == nil || c.Actions != agent.Partial {
		t.Errorf("an open call: %+v", c)
	}
	var half Transcript
	half.Bad()
	if c := half.Coverage(normal); c == nil || c.Messages != agent.Partial {
		t.Errorf("a bad line: %+v", c)
	}
}

func TestCanonical(t *testing.T) {
	for own, want := range map[string]string{"Bash": "bash", "exec_command": "bash", "MultiEdit": "edit", "fs.read": "read", "WebSearch": "web_search", "Task": "agent", "Zap": "Zap"} {
		if got := Canonical(own); got != want {
			t.Errorf("%s = %s, want %s", own, got, want)
		}
	}
	for _, c := range []struct{ name, in, want string }{
		{ToolWrite, `{"file_path":"a","content":"b"}`, `{"content":"b","path":"a"}`},
		{ToolWrite, `{"filePath":"a","path":"b"}`, `{"filePath":"a","path":"b"}`},
		{ToolBash, `{"cmd":"ls"}`, `{"command":"ls"}`},
		{ToolSkill, `{"skill":"greet"}`, `{"name":"greet"}`},
		{"mcp__a__b", `{"cmd":"ls"}`, `{"cmd":"ls"}`},
		{ToolBash, `[1]`, `[1]`},
	} {
		if got := string(CanonicalInput(c.name, json.RawMessage(c.in))); got != c.want {
			t.Errorf("%s %s = %s, want %s", c.name, c.in, got, c.want)
		}
	}
	for in, want := range map[string]string{
		`/bin/bash -lc 'echo two'`: "echo two", `/usr/bin/bash -lc "printf '%s' \"a\$b\""`: `printf '%s' "a$b"`, "bash -c ls": "ls",
		"/bin/bash -lc 'a\nb'": "a\nb", `bash -lc 'it'\''s'`: "it's", `bash -lc 'a' 'b'`: `bash -lc 'a' 'b'`, "ls -l": "ls -l", `bash -lc 'open`: `bash -lc 'open`,
	} {
		if got := Unwrap(in); got != want {
			t.Errorf("%s = %q, want %q", in, got, want)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		f     Failure
		code  string
		class fault.Class
	}{
		{Failure{Status: 401}, "agent-auth", fault.Config},
		{Failure{Status: 429, Message: "insufficient_quota"}, "agent-quota", fault.Config},
		{Failure{Status: 429}, "agent-rate-limited", fault.Transient},
		{Failure{Status: 529, Kind: "server_error"}, "agent-overloaded", fault.Transient},
		{Failure{Status: 500}, "agent-service-failed", fault.Transient},
		{Failure{Status: 599}, "agent-service-failed", fault.Transient},
		{Failure{Message: "unexpected status 404 Not Found: no"}, "agent-model-unknown", fault.Config},
		{Failure{Message: "connect ECONNREFUSED 127.0.0.1:1"}, "agent-unreachable", fault.Transient},
		{Failure{Kind: "model_not_found"}, "agent-model-unknown", fault.Config},
		{Failure{Message: "stream disconnected before completion"}, "agent-stream-cut", fault.Transient},
		{Failure{Status: 400, Message: "no such field"}, "agent-request-invalid", fault.Config},
		{Failure{Message: "segmentation fault at 0x500"}, "agent-failed", fault.Unknown},
	} {
		if e := c.f.Judge(); e.Code != c.code || e.Class != c.class || e.Fix == "" {
			t.Errorf("%+v = %s %s", c.f, e.Code, e.Class)
		}
	}
}

func TestCost(t *testing.T) {
	u := &agent.Usage{InputTokens: Count(1_000_000), CacheReadTokens: Count(1_000_000), OutputTokens: Count(100_000)}
	prices := map[string]Price{"gpt-5": {Input: 1.25, CacheRead: 0.125, Output: 10}}
	Cost(u, "gpt-5", prices)
	if u.CostUSD == nil || *u.CostUSD != 1.25+0.125+1 {
		t.Errorf("cost = %v", u.CostUSD)
	}
	for _, model := range []string{"gpt-5-unheard-of", ""} {
		u := &agent.Usage{InputTokens: Count(1), OutputTokens: Count(1)}
		if Cost(u, model, prices); u.CostUSD != nil {
			t.Errorf("an unknown model costs %v", *u.CostUSD)
		}
	}
	Cost(nil, "gpt-5", prices)
}

func TestChecks(t *testing.T) {
	for _, c := range []struct {
		err  error
		code string
	}{
		{CheckMCP([]MCPServer{{Name: "a.b", Command: "x"}}), "agent-mcp-name"},
		{CheckMCP([]MCPServer{{Name: "a", Command: "x"}, {Name: "a", URL: "http://x"}}), "agent-mcp-name"},
		{CheckMCP([]MCPServer{{Name: "a"}}), "agent-mcp-kind"},
		{CheckSkills([]Skill{{}}), "agent-source"},
		{CheckSkills([]Skill{{Git: "https://x/y.git"}}), "agent-source-ref"},
		{CheckSkills([]Skill{{Git: "https://x/y.git", Ref: "main", Path: "../z"}}), "agent-source"},
		{CheckPlugins([]Plugin{{Name: "-x", Marketplace: Source{Path: "m"}}}), "agent-plugin-name"},
		{CheckPlugins([]Plugin{{Name: "x", Marketplace: Source{Path: "m", Ref: "main"}}}), "agent-source-ref"},
		{CheckEnv(map[string]string{"PATH": "x"}), "command-path-managed"},
	} {
		if fault.CodeOf(c.err) != c.code || fault.FixOf(c.err) == "" {
			t.Errorf("%v: want %s", c.err, c.code)
		}
	}
}

type speaker struct {
	script Transcript
	ended  bool
}

func (s *speaker) Line([]byte)         {}
func (s *speaker) Ended() bool         { return s.ended }
func (s *speaker) Abort() error        { return nil }
func (s *speaker) Script() *Transcript { return &s.script }

// TestSilence: the limit waits for a tool that runs, ends what waits for the
// model, and after the end of the turn is another.
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name     string
		parser   *speaker
		quiet    time.Duration
		tool     bool
		why      string
		forced   bool
		wantKill bool
	}{
		{name: "the model is silent", parser: &speaker{}, quiet: 2 * time.Hour, wantKill: true, why: "agent-stalled"},
		{name: "not for long", parser: &speaker{}, quiet: time.Minute},
		{name: "a tool runs", parser: &speaker{}, quiet: 2 * time.Hour, tool: true},
		{name: "done and here", parser: &speaker{ended: true}, quiet: time.Minute, wantKill: true, forced: true},
	} {
		if c.tool {
			c.parser.script.Start("a", "", ToolBash, nil)
		}
		var why error
		w := &watch{parser: c.parser, stall: time.Hour, grace: time.Second, last: time.Now().Add(-c.quiet), cancel: func(err error) { why = err }}
		w.fire()
		w.end()
		if (why != nil) != c.wantKill || fault.CodeOf(why) != c.why || errors.Is(why, errForced) != c.forced {
			t.Errorf("%s: %v", c.name, why)
		}
	}
}

func FuzzUnwrap(f *testing.F) {
	f.Add(`/bin/bash -lc 'echo two'`)
	f.Add("bash -c \"a\\\"")
	f.Fuzz(func(t *testing.T, s string) {
		if got := Unwrap(s); len(got) > len(s) {
			t.Errorf("%q grew to %q", s, got)
		}
	})
}

// BenchmarkLines reads 50 MB of event lines.
func BenchmarkLines(b *testing.B) {
	line := append(bytes.Repeat([]byte("x"), 2000), '\n')
	for b.Loop() {
		n := 0
		l := lines{limit: agent.MaxEventLine, each: func([]byte) { n++ }, long: func() {}}
		for range 50 << 20 / len(line) {
			if _, err := l.Write(line); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.SetBytes(50 << 20)
}
