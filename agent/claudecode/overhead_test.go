package claudecode

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/agent/internal/codingtest"
)

// standIn puts a program in the CLI's place that prints a whole turn around what
// body prints.
func standIn(tb testing.TB, tr *codingtest.Trial, body string) string {
	tb.Helper()
	script := `#!/bin/sh
cat >/dev/null
echo '{"type":"system","subtype":"init","session_id":"s","tools":[],"mcp_servers":[]}'
` + body + `
echo '{"type":"assistant","session_id":"s","message":{"id":"m","role":"assistant","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":1,"output_tokens":1}}}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"hi","session_id":"s","usage":{"input_tokens":1,"output_tokens":1}}'
`
	name := filepath.Join(tb.TempDir(), "claude")
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		tb.Fatal(err)
	}
	if _, err := tr.Box.RunCommandOrThrow(tb.Context(), []string{"sh", "-c", `mkdir -p "$(dirname "$2")" && ln -sfn "$1" "$2"`, "sh", name, coding.Bin(tr.Session, "claude")}); err != nil {
		tb.Fatal(err)
	}
	return name
}

// A stream of 50 MB is read with bounded memory: what is over the bounds of a
// turn is cut, and the evidence says so.
func TestLongStream(t *testing.T) {
	tr := codingtest.Bare(t, Agent{}, "m")
	var stream bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&stream, `{"type":"assistant","session_id":"s","message":{"id":"m%d","role":"assistant","content":[{"type":"tool_use","id":"t%d","name":"Bash","input":{"command":"x"}}]}}`+"\n", i, i)
		fmt.Fprintf(&stream, `{"type":"user","session_id":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s"}]}}`+"\n", i, strings.Repeat("x", 500_000))
	}
	file := filepath.Join(t.TempDir(), "stream")
	if err := os.WriteFile(file, stream.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	stream = bytes.Buffer{}
	standIn(t, tr, "cat "+file)
	done, peak := make(chan struct{}), uint64(0)
	var watch sync.WaitGroup
	runtime.GC()
	watch.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	turn := tr.Turn("go")
	close(done)
	watch.Wait()
	kept := 0
	for _, e := range turn.Events {
		kept += len(e.Text) + len(e.Input) + len(e.Output) + len(e.Raw)
	}
	if len(turn.Events) != 201 || turn.Coverage == nil || turn.Coverage.Actions != agent.Partial {
		t.Errorf("%d events, coverage %+v", len(turn.Events), turn.Coverage)
	}
	if kept > 34<<20 || peak > 160<<20 {
		t.Errorf("%d MB are kept and %d MB were used at most", kept>>20, peak>>20)
	}
	t.Logf("%d MB are kept, %d MB were used at most", kept>>20, peak>>20)
}

// BenchmarkTurn is what a turn costs besides the CLI itself: the target is less
// than 30 ms. overhead-ms compares it with the same program run bare.
func BenchmarkTurn(b *testing.B) {
	tr := codingtest.Bare(b, Agent{}, "m")
	name := standIn(b, tr, "")
	var whole, bare time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		if turn, err := (Agent{}).Send(b.Context(), tr.Session, agent.Input{Text: "go", Turn: i + 1}); err != nil || turn.Message != "hi" {
			b.Fatal(turn, err)
		}
		whole += time.Since(begin)
		begin = time.Now()
		cmd := exec.Command(name)
		cmd.Stdin = bytes.NewReader([]byte("go"))
		if out, err := cmd.Output(); err != nil || len(out) == 0 {
			b.Fatal(err)
		}
		bare += time.Since(begin)
	}
	b.ReportMetric(float64((whole-bare).Microseconds())/1000/float64(b.N), "overhead-ms")
}
