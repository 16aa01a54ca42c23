package codingtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"assay/agent"
	"assay/agent/internal/coding"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Read is what a parser makes of a whole stream.
type Read struct {
	Message string
	Events  []agent.Event
	End     coding.End
}

// Golden parses every transcript of testdata that a CLI once wrote and compares
// what comes of it. Transcripts are as the CLI wrote them but for its paths.
func Golden(t *testing.T, parse func(lines [][]byte) Read) {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			body, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := parse(bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n")))
			for i := range got.Events {
				if len(got.Events[i].Raw) > 0 {
					got.Events[i].Raw = json.RawMessage(`"kept"`)
				}
			}
			out, err := json.MarshalIndent(got, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(f, ".jsonl") + ".golden.json"
			if *update {
				if err := os.WriteFile(golden, append(out, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(want) != string(out)+"\n" {
				t.Errorf("%s reads as\n%s\nwant\n%s", f, out, want)
			}
		})
	}
}

// Fuzz feeds arbitrary lines to a parser: it never panics, what it keeps
// encodes, and a stream without an end of the turn never ends one.
func Fuzz(f *testing.F, terminal string, parse func(lines [][]byte) Read) {
	files, err := filepath.Glob("testdata/*/*.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		f.Add(body[:len(body)/2])
		for _, l := range bytes.Split(body, []byte("\n")) {
			if len(l) < 4096 {
				f.Add(l)
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := parse(bytes.Split(body, []byte("\n")))
		if _, err := json.Marshal(got); err != nil {
			t.Fatalf("what was kept does not encode: %v", err)
		}
		// JSON can spell the word with escapes, so only text without any tells.
		if got.End.Said && !bytes.ContainsRune(body, '\\') && !strings.Contains(strings.ToLower(string(body)), terminal) {
			t.Fatalf("a turn ended without %q: %+v", terminal, got.End)
		}
	})
}
