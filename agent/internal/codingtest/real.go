package codingtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/sandbox"
)

// Failed is a message whose answer must be a failed send.
type Failed struct {
	Text, Code string
	Class      fault.Class
	Acceptance agent.Acceptance
}

// Failures sends each message in a conversation of its own. They mostly wait for
// a CLI's own retries, so they do it at once.
func (tr *Trial) Failures(cases []Failed) {
	tr.T.Run("failures", func(t *testing.T) { tr.failures(t, cases) })
}

func (tr *Trial) failures(t *testing.T, cases []Failed) {
	for i, c := range cases {
		s := tr.NewSession()
		s.Number += i
		t.Run(strings.ReplaceAll(c.Text, " ", "-"), func(t *testing.T) {
			t.Parallel()
			turn, err := tr.Send(t.Context(), s, c.Text)
			var se *agent.SendError
			if !errors.As(err, &se) {
				t.Fatalf("turn %+v, error %v; want a failed send", turn, err)
			}
			if fault.CodeOf(err) != c.Code || fault.ClassOf(err) != c.Class || se.Acceptance != c.Acceptance {
				t.Errorf("%s %s %s: %v; want %s %s %s", fault.CodeOf(err), fault.ClassOf(err), se.Acceptance, err, c.Code, c.Class, c.Acceptance)
			}
		})
	}
}

// Want is what a turn must come to.
type Want struct {
	Text    string
	Message string
	Tools   []string
	// Input and Output are the uncached input and the output tokens; 0 is not
	// looked at.
	Input, Output int64
}

// Turns sends messages in the first conversation.
func (tr *Trial) Turns(wants []Want) {
	tr.T.Helper()
	for _, w := range wants {
		turn := tr.Turn(w.Text)
		if turn.Status != agent.Completed || turn.Message != w.Message {
			tr.T.Errorf("%s: %s %q; want %q", w.Text, turn.Status, turn.Message, w.Message)
		}
		if got := Tools(turn); !slices.Equal(got, w.Tools) {
			tr.T.Errorf("%s: tools %q; want %q", w.Text, got, w.Tools)
		}
		if w.Input == 0 {
			continue
		}
		if u := turn.Usage; u == nil || *u.InputTokens != w.Input || *u.OutputTokens != w.Output {
			tr.T.Errorf("%s: usage %+v; want input %d, output %d", w.Text, u, w.Input, w.Output)
		}
	}
}

// Cancel ends a turn whose tool never ends, and needs everything that it
// started to be gone.
func (tr *Trial) Cancel() {
	t := tr.T
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		turn, err := tr.Send(ctx, tr.NewSession(), "hang tool")
		if err == nil {
			err = fmt.Errorf("a whole turn: %+v", turn)
		}
		done <- err
	}()
	await(t, filepath.Join(tr.Box.Workdir(), "started"), done)
	cancel()
	if err := <-done; fault.ClassOf(err) != fault.Canceled {
		t.Errorf("canceled: %v", err)
	}
	out, err := tr.Box.RunShell(t.Context(), `for p in /proc/[0-9]*; do [ "$(readlink $p/cwd)" = "$PWD" ] && tr '\0' ' ' < $p/cmdline | grep '^tail -f /dev/null'; done; true`)
	if err != nil || out.Stdout != "" {
		t.Errorf("left behind: %q, %v", out.Stdout, err)
	}
}

// await returns when a file is there, or fails when the send ended first.
func await(t *testing.T, file string, done <-chan error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		select {
		case err := <-done:
			t.Fatalf("the send ended before %s was there: %v", file, err)
		case <-tick.C:
		}
	}
}

// Put writes a file below dir.
func Put(t *testing.T, dir, name, body string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Killed kills the CLI in the middle of a turn, as running out of memory does,
// and needs a turn that nobody takes for an answer.
func (tr *Trial) Killed(program string) {
	t := tr.T
	t.Helper()
	done := make(chan error, 1)
	started := filepath.Join(tr.Box.Workdir(), "started")
	if err := os.Remove(started); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	go func() {
		turn, err := tr.Send(t.Context(), tr.NewSession(), "hang tool")
		if err == nil {
			err = fmt.Errorf("a whole turn: %+v", turn)
		}
		done <- err
	}()
	await(t, started, done)
	out, err := tr.Box.RunShell(t.Context(), `for p in /proc/[0-9]*; do [ "$(readlink $p/cwd)" = "$PWD" ] && [ "$(cat $p/comm)" = "$PROGRAM" ] && kill -9 ${p#/proc/} && echo killed; done; true`, sandbox.CommandOptions{Env: map[string]string{"PROGRAM": program}})
	if err != nil || !strings.Contains(out.Stdout, "killed") {
		t.Fatalf("no %s to kill: %q, %v", program, out.Stdout, err)
	}
	var se *agent.SendError
	if err := <-done; !errors.As(err, &se) || fault.CodeOf(err) != "agent-incomplete" || se.Acceptance != agent.Started || len(se.Events) == 0 {
		t.Errorf("killed: %v", err)
	}
}

// FarServer is an MCP server over HTTP with the tool say, and its address.
func FarServer(t *testing.T) string {
	t.Helper()
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Version   string `json:"protocolVersion"`
				Arguments struct {
					Text string `json:"text"`
				} `json:"arguments"`
			} `json:"params"`
		}
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed) // it has nothing to say by itself
			return
		}
		if json.NewDecoder(r.Body).Decode(&m) != nil || len(m.ID) == 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := any(map[string]any{})
		switch m.Method {
		case "initialize":
			result = map[string]any{"protocolVersion": m.Params.Version, "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "far", "version": "1"}}
		case "tools/list":
			result = map[string]any{"tools": []any{map[string]any{"name": "say", "description": "says it", "inputSchema": map[string]any{"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}, "required": []string{"text"}}}}}
		case "tools/call":
			result = map[string]any{"content": []any{map[string]any{"type": "text", "text": "far: " + m.Params.Arguments.Text}}}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result}); err != nil {
			t.Logf("answer an MCP client: %v", err)
		}
	}))
	t.Cleanup(func() { hs.CloseClientConnections(); hs.Close() })
	return hs.URL
}
