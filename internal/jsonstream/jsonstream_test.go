package jsonstream_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"assay/internal/board/boardtest"
	"assay/internal/emit"
	"assay/internal/event"
	"assay/internal/jsonstream"
	"assay/record"
	"assay/ref"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// buffer may be read while a view writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func stream(t *testing.T, events ...event.Event) string {
	t.Helper()
	var b bytes.Buffer
	v := jsonstream.New(&b, jsonstream.Options{})
	for _, e := range events {
		v.Handle(e)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestStory(t *testing.T) {
	got := stream(t, append(boardtest.Story(), event.Interrupt{Signal: "SIGINT", Level: 1}, event.End{})...)
	path := filepath.Join("testdata", "story.ndjson")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, d)
	}
}

// What a reader relies on: every line parses, has one discriminator, and the
// one receipt is last.
func TestShape(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(stream(t, boardtest.Story()...), "\n"), "\n")
	for i, l := range lines {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		_, isEvent := m["event"]
		if isReceipt := m["type"] == "receipt"; isReceipt != (i == len(lines)-1) || isEvent == isReceipt {
			t.Errorf("line %d of %d: %s", i, len(lines), l)
		}
	}
	// The document has a word on every event of the stream.
	doc, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines[:len(lines)-1] {
		var m struct{ Event string }
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(doc), "### `"+m.Event+"`") {
			t.Errorf("docs/json.md says nothing of %q", m.Event)
		}
	}
}

// A slot has one result; a sealed attempt replaces a slot that was given up.
func TestOneResultPerSlot(t *testing.T) {
	s := boardtest.Slot("x", "a", 0)
	got := stream(t,
		event.NotRun{Slot: s, Reason: "interrupted"}, event.NotRun{Slot: s, Reason: "halted"},
		event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 1, record.Passed)},
		event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, 2, record.Failed)},
		event.NotRun{Slot: s, Reason: "late"},
	)
	var verdicts []string
	for l := range strings.Lines(got) {
		var m struct{ Verdict string }
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatal(err)
		}
		verdicts = append(verdicts, m.Verdict)
	}
	if want := []string{"not-run", "passed"}; !reflect.DeepEqual(verdicts, want) {
		t.Errorf("verdicts %v, want %v", verdicts, want)
	}
}

func TestProgressOnlyAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b buffer
		v := jsonstream.New(&b, jsonstream.Options{})
		v.Handle(event.Start{Time: time.Now(), Total: 3, Reused: 1})
		time.Sleep(29 * time.Second)
		v.Handle(event.Progress{Message: "not a line of its own"})
		synctest.Wait()
		if n := strings.Count(b.String(), "\n"); n != 1 {
			t.Errorf("%d lines after 29 s", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want := `{"event":"progress","elapsedMs":30000,"total":3,"reused":1,"running":0,"waiting":0,"queued":2,"passed":0,"failed":0,"errored":0,"skipped":0,"notRun":0}`
		if got := strings.Split(b.String(), "\n")[1]; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
}

// 10 MB through a pipe arrive whole, and every failure is in them.
func TestTenMegabytesThroughAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan int)
	go func() {
		n := 0
		for s := bufio.NewReaderSize(r, 1<<16); ; n++ {
			line, err := s.ReadBytes('\n')
			if err == io.EOF && len(line) == 0 {
				break
			}
			if !json.Valid(line) {
				n = -1 << 30
			}
		}
		lines <- n
	}()
	v := jsonstream.New(w, jsonstream.Options{})
	long := strings.Repeat("x", 5000)
	const n = 1000
	for i := range n {
		s := ref.Slot{Experiment: "x", Eval: "a", Ordinal: i}
		a := boardtest.Attempt(s, 1, record.Failed)
		a.Checks[1].Detail, a.Checks[2].Detail = long, long
		v.Handle(event.AttemptDone{Slot: s, Attempt: a})
	}
	v.Handle(event.End{})
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got := <-lines; got != 2*n+1 {
		t.Fatalf("%d whole lines, want %d", got, 2*n+1)
	}
}

func TestWriteFailureIsReturned(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	v := jsonstream.New(w, jsonstream.Options{})
	v.Handle(event.End{})
	if err := v.Close(); !emit.Quiet(err) || v.Err() == nil {
		t.Fatalf("a reader that left: %v", err)
	}
	// A value that JSON cannot hold is a failure, not a missing line.
	v = jsonstream.New(io.Discard, jsonstream.Options{})
	v.Handle(event.Diagnostic{Diagnostic: record.Diagnostic{Code: "c", Data: json.RawMessage("{")}})
	if err := v.Close(); err == nil {
		t.Fatal("an unencodable value was ignored")
	}
}
