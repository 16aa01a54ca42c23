package dash

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
	"github.com/google/go-cmp/cmp"

	"assay/internal/board"
	"assay/internal/board/boardtest"
	"assay/internal/event"
	"assay/record"
)

var update = flag.Bool("update", false, "rewrite golden files")

// terminal is an emulated terminal in line mode.
type terminal struct {
	mu            sync.Mutex
	e             *vt.Emulator
	columns, rows int
	frames        int
	raw           bytes.Buffer
}

func newTerminal(columns, rows int) *terminal {
	return &terminal{e: vt.NewEmulator(columns, rows), columns: columns, rows: rows}
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frames++
	t.raw.Write(p)
	_, err := t.e.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
	return len(p), err
}

func (t *terminal) size() (int, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.columns, t.rows
}

func (t *terminal) resize(columns, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.columns, t.rows = columns, rows
	t.e.Resize(columns, rows)
}

func (t *terminal) drawn() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frames
}

// text returns what scrolled away and what stands on the screen.
func (t *terminal) text() (history, screen string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := func(cell func(x int) string) string {
		var b strings.Builder
		for x := range t.columns {
			b.WriteString(cell(x))
		}
		return strings.TrimRight(b.String(), " ") + "\n"
	}
	for y := range t.e.ScrollbackLen() {
		history += line(func(x int) string {
			if c := t.e.ScrollbackCellAt(x, y); c != nil {
				return c.Content
			}
			return " "
		})
	}
	for y := range t.rows {
		screen += line(func(x int) string {
			if c := t.e.CellAt(x, y); c != nil {
				return c.Content
			}
			return " "
		})
	}
	return history, strings.TrimRight(screen, "\n") + "\n"
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

// crowded is a board with every part of the panel filled.
func crowded(active int) *board.Board {
	b := board.New(board.Options{})
	running, _ := boardtest.Crowd(active, 0)
	for _, e := range running {
		b.Apply(e)
	}
	for i, v := range []record.Verdict{record.Passed, record.Failed, record.Errored, record.Skipped} {
		s := boardtest.Slot("crowd", fmt.Sprintf("done%d", i), 0)
		b.Apply(event.AttemptDone{Slot: s, Attempt: boardtest.Attempt(s, i, v)})
	}
	b.Apply(event.Queued{Slot: boardtest.Slot("crowd", "later", 0), For: "experiment setup"})
	b.Apply(event.Carried{Slot: boardtest.Slot("crowd", "old", 0), Verdict: record.Passed})
	b.Apply(event.NotRun{Slot: boardtest.Slot("crowd", "never", 0), Reason: "halted"})
	for i := range 3 {
		b.Apply(event.Prepare{Key: fmt.Sprint(i), Provider: "docker", Label: fmt.Sprintf("image%d 日本語", i), Status: event.Started, Stage: "pull"})
	}
	return b
}

// Whatever the size, the panel leaves one row and one column free.
func TestPanelFitsEverySize(t *testing.T) {
	now := boardtest.Epoch.Add(75 * time.Second)
	for _, active := range []int{0, 1, 5, 54} {
		b := crowded(active)
		for rows := range 40 {
			for _, columns := range []int{0, 1, 2, 5, 10, 20, 33, 80, 300} {
				panel := layout(b, Options{}, columns, rows, now)
				if len(panel) > max(rows-1, 0) {
					t.Errorf("%d active, %dx%d: %d rows", active, columns, rows, len(panel))
				}
				for _, l := range panel {
					if w := ansi.StringWidth(l); w > columns-1 {
						t.Errorf("%d active, %dx%d: row of %d columns: %q", active, columns, rows, w, l)
					}
				}
			}
		}
	}
}

func TestPanel(t *testing.T) {
	now := boardtest.Epoch.Add(75 * time.Second)
	var out strings.Builder
	for _, size := range [][2]int{{100, 30}, {80, 10}, {20, 10}, {40, 4}, {40, 2}} {
		fmt.Fprintf(&out, "== %dx%d\n", size[0], size[1])
		for _, l := range layout(crowded(12), Options{NoColor: true}, size[0], size[1], now) {
			out.WriteString(l + "\n")
		}
	}
	golden(t, "panel.golden", out.String())
}

// The pitfall of tables that are taller than the screen: 54 attempts on ten
// rows, drawn again and again, leave one panel and every permanent line once.
func TestFiftyFourAttemptsOnTenRows(t *testing.T) {
	for _, size := range [][2]int{{100, 10}, {20, 10}, {60, 3}} {
		synctest.Test(t, func(t *testing.T) {
			term := newTerminal(size[0], size[1])
			var stdout bytes.Buffer
			v := New(term, Options{Size: term.size, Summary: &stdout, NoColor: true, Options: board.Options{Command: "assay exp crowd"}})
			running, ending := boardtest.Crowd(54, 7)
			for _, e := range running {
				v.Handle(e)
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(3 * time.Second)
			for i, e := range ending {
				v.Handle(e)
				time.Sleep(70 * time.Millisecond)
				synctest.Wait()
				history, screen := term.text()
				if strings.Contains(history, "done") || i < len(ending)-1 && strings.Count(screen, "54 done") != 1 {
					t.Fatalf("%v: event %d: not one panel\nhistory:\n%s\nscreen:\n%s", size, i, history, screen)
				}
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			history, screen := term.text()
			all := strings.ReplaceAll(history+screen, "\n", "")
			for n := range 7 {
				if got := strings.Count(all, fmt.Sprintf("eval%02d#0", n)); got != 1 {
					t.Errorf("%v: failure %d stands there %d times\n%s%s", size, n, got, history, screen)
				}
			}
			if got := strings.Count(all, "failed   crowd"); got != 7 {
				t.Errorf("%v: %d failures\n%s%s", size, got, history, screen)
			}
			if strings.Contains(all, "54 done") {
				t.Errorf("%v: a panel is left\n%s%s", size, history, screen)
			}
			if !strings.Contains(stdout.String(), "FAILED  54 attempts: 47 passed, 7 failed, 0 errored") {
				t.Errorf("%v: no summary: %s", size, stdout.String())
			}
		})
	}
}

func TestFinalScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerminal(100, 60)
		v := New(term, Options{Size: term.size, Options: board.Options{Command: "assay exp"}})
		for _, e := range boardtest.Story() {
			v.Handle(e)
			time.Sleep(100 * time.Millisecond)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		_, screen := term.text()
		golden(t, "final.golden", screen)
	})
}

func TestFramesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerminal(80, 24)
		v := New(term, Options{Size: term.size})
		slot := boardtest.Slot("x", "a", 0)
		v.Handle(event.Start{Time: time.Now(), Total: 1})
		v.Handle(event.AttemptStarted{Time: time.Now(), Slot: slot})
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		before := term.drawn()
		for i := range 1000 {
			v.Handle(event.Progress{Slot: slot, Message: fmt.Sprint(i)})
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := term.drawn() - before; n > 41 || n < 30 {
			t.Errorf("%d frames in 10 s of changes", n)
		}
		time.Sleep(time.Second)
		before = term.drawn()
		time.Sleep(60 * time.Second)
		synctest.Wait()
		if n := term.drawn() - before; n > 61 || n < 40 {
			t.Errorf("%d frames in 60 s of quiet", n)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerminal(100, 30)
		v := New(term, Options{Size: term.size, NoColor: true})
		running, ending := boardtest.Crowd(20, 2)
		for _, e := range append(running, ending[:4]...) {
			v.Handle(e)
		}
		for _, size := range [][2]int{{40, 30}, {40, 8}, {120, 8}, {120, 40}, {21, 9}, {100, 30}} {
			time.Sleep(time.Second)
			term.resize(size[0], size[1])
			time.Sleep(time.Second)
			synctest.Wait()
			_, screen := term.text()
			if n := strings.Count(screen, "20 done"); n != 1 {
				t.Errorf("%v: %d panels\n%s", size, n, screen)
			}
		}
		_, screen := term.text()
		if strings.Count(screen, "failed   crowd") != 2 {
			t.Errorf("permanent lines are lost or doubled:\n%s", screen)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNoColor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, noColor := range []bool{true, false} {
			term := newTerminal(80, 24)
			v := New(term, Options{Size: term.size, NoColor: noColor})
			for _, e := range boardtest.Story() {
				v.Handle(e)
				time.Sleep(300 * time.Millisecond)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			if got := strings.Contains(term.raw.String(), "m"+"FAILED") || strings.Contains(term.raw.String(), red); got == noColor {
				t.Errorf("NoColor %v: colours %v", noColor, got)
			}
		}
	})
}
