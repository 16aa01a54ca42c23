package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"assay/internal/guest/guesttest"
	"assay/internal/testreq"
)

// standIn speaks as much of Claude Code's protocol as one turn needs, and sends
// one span below that of its turn.
const standIn = `#!/bin/sh
case "$1" in --version) echo "9.9.9 (Claude Code)"; exit ;; esac
cat >/dev/null
if [ -n "$OTEL_EXPORTER_OTLP_ENDPOINT" ]; then node -e '
const [, trace, parent] = process.env.TRACEPARENT.split("-"), now = Date.now();
const body = JSON.stringify({resourceSpans: [{scopeSpans: [{spans: [{traceId: trace, spanId: "00000000000000aa", parentSpanId: parent, name: "claude_code.tool",
  startTimeUnixNano: String(now * 1e6), endTimeUnixNano: String((now + 20) * 1e6), attributes: [{key: "tool_name", value: {stringValue: "Bash"}}]}]}]}]});
const q = require("http").request(process.env.OTEL_EXPORTER_OTLP_ENDPOINT + "/v1/traces", {method: "POST", headers: {"content-type": "application/json"}});
q.end(body);'; fi
echo '{"type":"system","subtype":"init","session_id":"s","tools":[],"mcp_servers":[]}'
echo '{"type":"assistant","session_id":"s","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":1,"output_tokens":1}}}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"hi","session_id":"s","stop_reason":"end_turn","terminal_reason":"completed","num_turns":1,"usage":{"input_tokens":1,"output_tokens":1}}'
`

// spansOf runs the stand-in in a sandbox and returns the attempt's spans and the
// codes of its diagnostics.
func spansOf(t *testing.T, telemetry, sandbox string) (spans []struct {
	Name       string
	Turn       int
	MS         int64
	Attributes map[string]string
}, codes string,
) {
	t.Helper()
	dir := t.TempDir()
	bin, err := os.MkdirTemp("", "standin-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(bin) })
	write(t, dir, map[string]string{
		"assay.yaml": telemetry + "name: p\n",
		"experiments/x.yaml": "agent: {claude-code: {version: 9.9.9, install: never, allowRoot: true}}\nsandbox:\n  " + sandbox +
			"\n  path: [" + bin + "]\n  prepare: ['mkdir -p " + bin + " && cp standin " + bin + "/claude && chmod 755 " + bin + "/claude']\n",
		"evals/e/eval.yaml":         "prompt: say hi\nchecks: [{reply: {equals: hi}}]\n",
		"evals/e/workspace/standin": standIn,
		"experiments/work/keep":     "",
	})
	out, errs, exit := output(t, dir, []string{"ANTHROPIC_API_KEY=key-0123456789", "ASSAY_GUEST=" + guesttest.Build(t)}, "exp")
	if exit != 0 {
		t.Fatalf("exit %d\n%s%s", exit, out, errs)
	}
	attempts, err := filepath.Glob(filepath.Join(dir, ".assay", "record", "runs", "*", "attempts", "*", "attempt.json"))
	if err != nil || len(attempts) != 1 {
		t.Fatalf("attempts %q, %v", attempts, err)
	}
	body, err := os.ReadFile(attempts[0])
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Spans []struct {
			Name       string
			Turn       int
			MS         int64
			Attributes map[string]string
		}
		Diagnostics []struct{ Code string }
	}
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	for _, d := range a.Diagnostics {
		codes += d.Code + " "
	}
	return a.Spans, codes
}

func TestSpansComeIn(t *testing.T) {
	testreq.Need(t, "node")
	for name, sandbox := range map[string]string{
		"on this machine":  "local: {dir: work}", // the program in the sandbox reaches this machine
		"in the sandbox":   "native: {}",
		"at a given place": "local: {dir: work}",
	} {
		t.Run(name, func(t *testing.T) {
			telemetry := "telemetry: true\n"
			switch name {
			case "in the sandbox":
				nativeWorks(t)
			case "at a given place":
				telemetry = "telemetry: {host: localhost}\n"
			}
			spans, codes := spansOf(t, telemetry, sandbox)
			if len(spans) != 1 || spans[0].Name != "claude_code.tool" || spans[0].Turn != 1 || spans[0].MS != 20 || spans[0].Attributes["tool_name"] != "Bash" || codes != "" {
				t.Errorf("%+v, diagnostics %q", spans, codes)
			}
		})
	}
}

// nativeWorks skips where the embedded sandbox does not work.
func nativeWorks(t *testing.T) {
	t.Helper()
	out, _, _ := output(t, t.TempDir(), []string{"ASSAY_GUEST=" + guesttest.Build(t)}, "doctor")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "native" && f[2] == "works" {
			return
		}
	}
	testreq.Missing(t, "native", "the embedded sandbox does not work here")
}

func TestSpansThatAreLostChangeNothing(t *testing.T) {
	if spans, codes := spansOf(t, "", "local: {dir: work}"); len(spans) != 0 || codes != "" {
		t.Errorf("nobody asked for spans: %+v, %q", spans, codes)
	}
	// The attempt passes all the same.
	if spans, codes := spansOf(t, "telemetry: {host: 192.0.2.1, port: 4318}\n", "local: {dir: work}"); len(spans) != 0 || codes != "telemetry-configure-failed " {
		t.Errorf("a place that is not here: %+v, %q", spans, codes)
	}
}
