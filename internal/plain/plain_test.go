package plain_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"assay/internal/board"
	"assay/internal/board/boardtest"
	"assay/internal/emit"
	"assay/internal/event"
	"assay/internal/plain"
	"assay/record"
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

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
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

func options() plain.Options {
	return plain.Options{Options: board.Options{Command: "assay exp docker"}}
}

func TestStory(t *testing.T) {
	var b bytes.Buffer
	v := plain.New(&b, options())
	for _, e := range boardtest.Story() {
		v.Handle(e)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if unicode.IsControl(r) && r != '\n' || r >= 0x2500 && r < 0x2600 {
			t.Errorf("control or box character %q", r)
		}
	}
	golden(t, "story.golden", b.String())
}

func TestHeartbeatAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b buffer
		v := plain.New(&b, options())
		beats := func() int {
			synctest.Wait()
			return strings.Count(b.String(), "still running")
		}
		slot := boardtest.Slot("x", "a", 0)
		v.Handle(event.Start{Time: time.Now(), Total: 1})
		v.Handle(event.AttemptStarted{Time: time.Now(), Slot: slot})
		time.Sleep(29 * time.Second)
		if n := beats(); n != 0 {
			t.Errorf("%d heartbeats before 30 s", n)
		}
		v.Handle(event.Notice{Code: "c", Message: "a word"})
		time.Sleep(29 * time.Second)
		if n := beats(); n != 0 {
			t.Errorf("%d heartbeats 29 s after a line", n)
		}
		time.Sleep(2 * time.Second)
		if n := beats(); n != 1 {
			t.Errorf("%d heartbeats after 31 s of silence", n)
		}
		time.Sleep(5 * time.Minute)
		if n := beats(); n < 9 || n > 12 {
			t.Errorf("%d heartbeats in 5 min of silence", n)
		}
		v.Handle(event.AttemptDone{Slot: slot, Attempt: boardtest.Attempt(slot, 1, record.Passed)})
		v.Handle(event.End{Time: time.Now()})
		n := beats()
		time.Sleep(2 * time.Minute)
		if beats() != n {
			t.Error("a heartbeat after the end")
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWriteFailureIsReturned(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	v := plain.New(w, options())
	for _, e := range boardtest.Story() {
		v.Handle(e)
	}
	if err := v.Close(); !emit.Quiet(err) || v.Err() == nil {
		t.Fatalf("a reader that left: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	v = plain.New(full, options())
	v.Handle(boardtest.Story()[0])
	if err := v.Close(); err == nil || emit.Quiet(err) {
		t.Fatalf("a full disk: %v", err)
	}
}
