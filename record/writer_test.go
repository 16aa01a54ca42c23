package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"assay/fault"
	"assay/internal/atomicfile"
	"assay/internal/testreq"
	"assay/ref"

	"github.com/google/go-cmp/cmp"
)

func TestSealedAttemptComesBackWhole(t *testing.T) {
	root := filepath.Join(t.TempDir(), "deep", "record")
	w := mustOpen(t, root)
	run := testRun("local/claude", 2)
	rw := mustStart(t, w, run)
	a := testAttempt(run, 1, Failed)
	text := "new\n"
	diff := &Diff{Windows: []Window{{Label: "turn1", Rows: []Row{{Path: "a.go", Status: "added", After: &Side{Mode: "100644", Size: 4, Text: &text}}}}}}
	mustSeal(t, rw, Sealed{Attempt: a, Diff: diff, Commands: raws(3, `{"summary":"c%d"}`), Events: raws(2, `{"type":"message","text":"%d"}`)})
	if err := rw.End(End{CompletedAt: epoch, Completion: Completed}); err != nil {
		t.Fatal(err)
	}

	r := mustReader(t, root)
	all := allSlots(t, r)
	if len(all) != 1 || len(all[0].Slots) != 2 || all[0].Run.Status != StatusEnded {
		t.Fatalf("read %+v", all)
	}
	if s := all[0].Slots[0]; s.Origin != "" || s.Reason != "not-recorded" {
		t.Errorf("empty slot: %+v", s)
	}
	got := all[0].Slots[1]
	if d := cmp.Diff(&a, got.Attempt); d != "" || got.Origin != Executed {
		t.Errorf("attempt (origin %q): %s", got.Origin, d)
	}
	at, err := r.Find(t.Context(), a.Locator)
	if err != nil || at != (AttemptRef{run.ID, a.ID}) {
		t.Fatalf("Find: %v, %v", at, err)
	}
	gotDiff, err := r.Diff(at)
	if err != nil || cmp.Diff(diff, gotDiff) != "" {
		t.Errorf("diff %v: %s", err, cmp.Diff(diff, gotDiff))
	}
	var commands, events []string
	for raw, err := range r.Commands(at) {
		commands = append(commands, fmt.Sprint(string(raw), err))
	}
	for raw, err := range r.Events(at) {
		events = append(events, fmt.Sprint(string(raw), err))
	}
	if len(commands) != 3 || commands[2] != `{"summary":"c2"}<nil>` || len(events) != 2 {
		t.Errorf("commands %v, events %v", commands, events)
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "record")
	w := mustOpen(t, root)
	run := testRun("x", 2)
	rw := mustStart(t, w, run)
	mustSeal(t, rw, Sealed{Attempt: testAttempt(run, 0, Passed), Events: raws(1, `{"n":%d}`)})
	if err := rw.Member(Member{SlotRef: run.Slots[1], Origin: Carried, Run: ref.NewRun(), Attempt: ref.NewAttempt()}); err != nil {
		t.Fatal(err)
	}
	if err := rw.End(End{Completion: Completed}); err != nil {
		t.Fatal(err)
	}
	files := 0
	_ = filepath.WalkDir(base, func(path string, d fs.DirEntry, _ error) error {
		info, _ := d.Info()
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			files++
		}
		if path != base && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if files != 7 { // lock, record, run, attempt, events, members, end
		t.Errorf("%d files, want 7", files)
	}
}

// Every step of every operation fails once: the error is clear, what was
// readable before is readable after, and nothing half-made is visible.
func TestEachFailingStepLeavesTheOldState(t *testing.T) {
	run := testRun("x", 4)
	first, second := testAttempt(run, 0, Passed), testAttempt(run, 1, Failed)
	member := Member{SlotRef: run.Slots[2], Origin: Carried, Run: ref.NewRun(), Attempt: ref.NewAttempt()}
	other := testRun("y", 1)
	ops := map[string]func(w *Writer, rw *RunWriter) error{
		"StartRun": func(w *Writer, _ *RunWriter) error { _, err := w.StartRun(other); return err },
		"Seal": func(_ *Writer, rw *RunWriter) error {
			return rw.Seal(Sealed{Attempt: second, Events: raws(5, `{"n":%d}`), Diff: &Diff{}})
		},
		"Member": func(_ *Writer, rw *RunWriter) error { return rw.Member(member) },
		"End":    func(_ *Writer, rw *RunWriter) error { return rw.End(End{Completion: Completed}) },
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				root := filepath.Join(t.TempDir(), "record")
				w := mustOpen(t, root)
				rw := mustStart(t, w, run)
				mustSeal(t, rw, Sealed{Attempt: first})
				before := tree(t, root)
				left, failedAt := n, atomicfile.Step("")
				w.disk.Fault = func(step atomicfile.Step, _ string) error {
					if left--; left == 0 {
						failedAt = step
						return syscall.ENOSPC
					}
					return nil
				}
				err := op(w, rw)
				w.disk.Fault = nil
				if left > 0 { // it has fewer steps than n
					if err != nil || n < 4 {
						t.Fatalf("without a fault after %d steps: %v", n, err)
					}
					return
				}
				if fault.CodeOf(err) != CodeFull || fault.ClassOf(err) != fault.Resource || fault.FixOf(err) == "" {
					t.Fatalf("step %d (%s): error %v, code %q", n, failedAt, err, fault.CodeOf(err))
				}
				after := tree(t, root)
				// The sync of a folder after the rename is the one step that can
				// fail with the new state in place, for the small files only.
				if failedAt != atomicfile.SyncDir || name == "StartRun" || name == "Seal" {
					delete(after, "runs/"+string(run.ID)+"/"+membersFile) // may be there, empty
					if !maps.Equal(before, after) {
						t.Errorf("step %d (%s) changed the record: %s", n, failedAt, cmp.Diff(before, after))
					}
				}
				if got := allSlots(t, mustReader(t, root)); got[0].Slots[0].Attempt == nil {
					t.Errorf("step %d (%s): the first attempt is gone", n, failedAt)
				}
				// Trying again works.
				if err := op(w, rw); err != nil && name != "Member" {
					t.Errorf("step %d (%s): second try: %v", n, failedAt, err)
				}
			}
		})
	}
}

func TestFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	testreq.Root(t)
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=2m"); err != nil {
		testreq.Missing(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	root := filepath.Join(dir, "record")
	w := mustOpen(t, root)
	run := testRun("x", 50)
	rw := mustStart(t, w, run)
	sealed := 0
	var err error
	for ; sealed < len(run.Slots) && err == nil; sealed++ {
		a := testAttempt(run, sealed, Passed)
		a.Turns[0].Reply = strings.Repeat("r", 100<<10)
		err = rw.Seal(Sealed{Attempt: a})
	}
	sealed--
	if fault.CodeOf(err) != CodeFull || fault.ClassOf(err) != fault.Resource || !strings.Contains(fault.FixOf(err), "--record") {
		t.Fatalf("after %d attempts: %v (code %q, fix %q)", sealed, err, fault.CodeOf(err), fault.FixOf(err))
	}
	r := mustReader(t, root)
	rs := allSlots(t, r)[0]
	got := 0
	for _, s := range rs.Slots {
		if s.Attempt != nil {
			got++
		}
	}
	if got != sealed || len(rs.Problems) > 0 {
		t.Errorf("%d attempts readable, %d were sealed, problems %v", got, sealed, rs.Problems)
	}
	if left, _ := os.ReadDir(filepath.Join(root, tmpDir)); len(left) != 0 {
		t.Errorf("left in .tmp: %v", left)
	}
	_ = r.Close()
	_ = w.Close()
}

func TestReadOnlyRoot(t *testing.T) {
	testreq.Root(t)
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		testreq.Missing(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	root := filepath.Join(dir, "record")
	w := mustOpen(t, root)
	run := testRun("x", 1)
	mustSeal(t, mustStart(t, w, run), Sealed{Attempt: testAttempt(run, 0, Passed)})
	_ = w.Close()
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{root, filepath.Join(dir, "other")} {
		_, err := Open(at, "test")
		if fault.CodeOf(err) != CodeRootUnwritable || fault.ClassOf(err) != fault.Config || !strings.Contains(fault.FixOf(err), "--record") {
			t.Errorf("%s: %v (code %q, fix %q)", at, err, fault.CodeOf(err), fault.FixOf(err))
		}
	}
	r := mustReader(t, root) // reading needs no lock and no write
	if got := allSlots(t, r); got[0].Slots[0].Attempt == nil {
		t.Error("the attempt cannot be read")
	}
	_ = r.Close()
}

func TestOpenRefusesWhatIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cases := map[string]struct{ root, code, says string }{
		"file":           {write("file", ""), CodeFormatInvalid, "not a folder"},
		"below a file":   {filepath.Join(write("file2", ""), "record"), CodeIO, ""},
		"foreign folder": {filepath.Dir(write("photos/cat.jpg", "")), CodeFormatInvalid, "cat.jpg"},
		"newer format":   {filepath.Dir(write("newer/record.json", `{"format":"assay.record/v9","writer":"assay v3.1"}`)), CodeFormatInvalid, "assay v3.1"},
		"damaged":        {filepath.Dir(write("damaged/record.json", `{"form`)), CodeFormatInvalid, "damaged"},
	}
	before := tree(t, dir)
	for name, c := range cases {
		_, err := Open(c.root, "test")
		code := fault.CodeOf(err)
		if c.code == CodeIO {
			if code != CodeIO && code != CodeRootUnwritable {
				t.Errorf("%s: code %q", name, code)
			}
		} else if code != c.code {
			t.Errorf("%s: %v, code %q, want %q", name, err, code, c.code)
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || fault.FixOf(err) == "" || fault.ClassOf(err) != fault.Config {
			t.Errorf("%s: error %v, fix %q", name, err, fault.FixOf(err))
		}
	}
	if d := cmp.Diff(before, tree(t, dir)); d != "" {
		t.Errorf("something was half-made: %s", d)
	}
}

func TestParallelStartRuns(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			run := testRun("x", 1)
			rw, err := w.StartRun(run)
			if err == nil {
				err = rw.Seal(Sealed{Attempt: testAttempt(run, 0, Passed)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all := allSlots(t, mustReader(t, root))
	if len(all) != 50 {
		t.Fatalf("%d runs, want 50", len(all))
	}
	for _, rs := range all {
		if rs.Slots[0].Attempt == nil {
			t.Errorf("run %s lost its attempt", rs.Run.ID)
		}
	}
	same := testRun("x", 1)
	mustStart(t, w, same)
	if _, err := w.StartRun(same); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second run of one id: %v", err)
	}
}

func TestSealRefusesWhatDoesNotBelong(t *testing.T) {
	w := mustOpen(t, t.TempDir())
	run := testRun("x", 2)
	rw := mustStart(t, w, run)
	if err := rw.Member(Member{SlotRef: run.Slots[1], Origin: Carried, Run: ref.NewRun(), Attempt: ref.NewAttempt()}); err != nil {
		t.Fatal(err)
	}
	change := func(f func(*Attempt)) error {
		a := testAttempt(run, 0, Passed)
		f(&a)
		return rw.Seal(Sealed{Attempt: a})
	}
	cases := map[string]struct {
		err  error
		code string
	}{
		"id that is a path": {change(func(a *Attempt) { a.ID = "../../../../etc/passwd0000" }), CodeCoreInvalid},
		"other run":         {change(func(a *Attempt) { a.Run = ref.NewRun() }), CodeCoreInvalid},
		"other locator":     {change(func(a *Attempt) { a.Locator = ref.LocatorOf(ref.NewAttempt()) }), CodeCoreInvalid},
		"undeclared slot":   {change(func(a *Attempt) { a.Ordinal = 7 }), CodeCoreInvalid},
		"no verdict":        {change(func(a *Attempt) { a.Verdict = NotRun }), CodeCoreInvalid},
		"carried slot":      {change(func(a *Attempt) { a.Eval = run.Slots[1].Eval }), CodeDuplicateSlot},
		"second member":     {rw.Member(Member{SlotRef: run.Slots[1], Run: ref.NewRun(), Attempt: ref.NewAttempt()}), CodeDuplicateSlot},
	}
	for name, c := range cases {
		if fault.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v, code %q, want %q", name, c.err, fault.CodeOf(c.err), c.code)
		}
	}
	if err := rw.End(End{Completion: Completed}); err != nil {
		t.Fatal(err)
	}
	if err := change(func(*Attempt) {}); fault.CodeOf(err) != CodeRunEnded {
		t.Errorf("after the end: %v", err)
	}
	if err := rw.End(End{}); fault.CodeOf(err) != CodeRunEnded {
		t.Errorf("second end: %v", err)
	}
}

func TestLargeAttemptsArePublishedWithMarkers(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	run := testRun("x", 1)
	rw := mustStart(t, w, run)
	a := testAttempt(run, 0, Failed)
	nan, threshold := math.NaN(), 0.5
	a.Checks[0].Value, a.Checks[0].Threshold = &nan, &threshold
	for i := range 20_000 {
		a.Checks = append(a.Checks, Check{Name: fmt.Sprintf("check %d", i), Kind: "command", Severity: Gate, Outcome: Matched, Detail: strings.Repeat("d", 2000)})
		a.Diagnostics = append(a.Diagnostics, Diagnostic{Code: "c", Level: "warning", Message: strings.Repeat("m", 500), Count: 1})
	}
	a.Facts = Facts{"com.example.big": mustFact(t, strings.Repeat("f", 60_000))}
	detail := a.Checks[1].Detail
	diff := &Diff{}
	big := strings.Repeat("\x01", 900<<10) // six times as long in JSON
	for i := range 300 {
		win := Window{Label: fmt.Sprintf("turn%d", i)}
		for j := range 10 {
			row := Row{Path: fmt.Sprintf("f%d", j), Status: "added", After: &Side{Size: 1}}
			if i == 0 {
				row.After.Text = &big
			}
			win.Rows = append(win.Rows, row)
		}
		diff.Windows = append(diff.Windows, win)
	}
	events := raws(30_000, `{"type":"message","n":%d,"text":"`+strings.Repeat("e", 1000)+`"}`)
	events = append(events, json.RawMessage(`{"type":"message","text":"`+strings.Repeat("z", 3<<20)+`"}`), json.RawMessage(`{broken`))
	mustSeal(t, rw, Sealed{Attempt: a, Diff: diff, Events: events, Commands: raws(10_000, `{"summary":"c%d"}`)})
	if a.Checks[1].Detail != detail || len(diff.Windows) != 300 || diff.Windows[0].Rows[0].After.Text == nil {
		t.Error("the caller's value was changed")
	}

	r := mustReader(t, root)
	got := allSlots(t, r)[0].Slots[0]
	if got.Attempt == nil || got.Attempt.Verdict != Failed || got.Attempt.Fold() != Failed {
		t.Fatalf("attempt: %+v, problem %v", got.Attempt, got.Problem)
	}
	if got.Attempt.Checks[0].Value != nil || !strings.Contains(strings.Join(got.Attempt.Trimmed, "\n"), "checks[0].value (NaN)") {
		t.Errorf("NaN: value %v, trimmed %v", got.Attempt.Checks[0].Value, got.Attempt.Trimmed[:3])
	}
	if string(got.Attempt.Facts["com.example.big"].Value) != string(a.Facts["com.example.big"].Value) {
		t.Error("a fact was changed")
	}
	gotDiff, err := r.Diff(got.At)
	if err != nil || gotDiff.Partial != CapReached || len(gotDiff.Windows) > maxWindows {
		t.Fatalf("diff: %v, %+v", err, gotDiff.Partial)
	}
	rows := 0
	for _, win := range gotDiff.Windows {
		rows += len(win.Rows)
	}
	if rows != maxRows || !gotDiff.Windows[0].Rows[0].After.Elided {
		t.Errorf("%d rows, first %+v", rows, gotDiff.Windows[0].Rows[0].After)
	}
	n, size, markers := 0, 0, 0
	for raw, err := range r.Events(got.At) {
		if err != nil {
			t.Fatal(err)
		}
		n, size = n+1, size+len(raw)+1
		if strings.Contains(string(raw), `"type":"truncated"`) {
			markers++
		}
	}
	if size > maxEvents+1024 || n < 10_000 || markers != 2 { // the middle, and the broken line
		t.Errorf("%d events, %d bytes, %d markers", n, size, markers)
	}
	commands := 0
	for range r.Commands(got.At) {
		commands++
	}
	if commands != 10_000 {
		t.Errorf("%d commands", commands)
	}
}

func TestFailedOutputIsKeptWhole(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	run := testRun("x", 1)
	rw := mustStart(t, w, run)
	out := strings.Repeat("0123456789", 400_000)
	raw, _ := json.Marshal(map[string]string{"stdout": out})
	a := testAttempt(run, 0, Failed)
	mustSeal(t, rw, Sealed{Attempt: a, Commands: []json.RawMessage{raw}})
	for got, err := range mustReader(t, root).Commands(AttemptRef{run.ID, a.ID}) {
		if err != nil || string(got) != string(raw) {
			t.Errorf("%d of %d bytes, %v", len(got), len(raw), err)
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	w := mustOpen(b, b.TempDir())
	run := testRun("x", 1)
	rw := mustStart(b, w, run)
	text := strings.Repeat("line\n", 100)
	diff := &Diff{Windows: []Window{{Label: "turn1", Rows: []Row{{Path: "a", Status: "added", After: &Side{Text: &text}}}}}}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			mustSeal(b, rw, Sealed{Attempt: testAttempt(run, 0, Passed), Diff: diff, Events: raws(20, `{"n":%d}`), Commands: raws(5, `{"n":%d}`)})
		}
	})
}
