package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"assay/fault"
	"assay/ref"

	"github.com/google/go-cmp/cmp"
)

func TestMissingRoot(t *testing.T) {
	empty := t.TempDir()
	for _, root := range []string{filepath.Join(empty, "none"), empty} {
		_, err := OpenReader(root)
		if fault.CodeOf(err) != CodeRootMissing || fault.ClassOf(err) != fault.Config || !strings.Contains(fault.FixOf(err), "assay exp") {
			t.Errorf("%s: %v, code %q, fix %q", root, err, fault.CodeOf(err), fault.FixOf(err))
		}
	}
	if entries, _ := os.ReadDir(empty); len(entries) != 0 {
		t.Errorf("reading made %v", entries)
	}
	file := filepath.Join(empty, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, rootFile), []byte(`{"format":"assay.record/v9","writer":"assay v3"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{file, newer} {
		if _, err := OpenReader(root); fault.CodeOf(err) != CodeFormatInvalid {
			t.Errorf("%s: %v", root, err)
		}
	}
}

func TestDamageStaysWhereItIs(t *testing.T) {
	root := t.TempDir()
	secret := filepath.Join(t.TempDir(), "id_rsa")
	if err := os.WriteFile(secret, []byte(`{"id":"stolen"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	w := mustOpen(t, root)
	run := testRun("x", 8)
	rw := mustStart(t, w, run)
	dirs := make([]string, len(run.Slots))
	for i := range run.Slots {
		a := testAttempt(run, i, Passed)
		mustSeal(t, rw, Sealed{Attempt: a, Events: raws(2, `{"n":%d}`), Diff: &Diff{}})
		dirs[i] = filepath.Join(root, dirOf(AttemptRef{run.ID, a.ID}))
	}
	spoil := func(i int, name string, how func(path string) error) {
		path := filepath.Join(dirs[i], name)
		if err := errors.Join(os.Remove(path), how(path)); err != nil {
			t.Fatal(err)
		}
	}
	text := func(s string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(s), 0o600) }
	}
	spoil(0, attemptFile, text(`{"id":`))
	spoil(1, attemptFile, func(string) error { return nil })
	spoil(2, attemptFile, func(path string) error { return os.Symlink(secret, path) })
	spoil(3, attemptFile, func(path string) error { return syscall.Mkfifo(path, 0o600) }) // opening it would wait for ever
	good, err := os.ReadFile(filepath.Join(dirs[7], attemptFile))
	if err != nil {
		t.Fatal(err)
	}
	spoil(4, attemptFile, text(string(good))) // another attempt's file
	spoil(5, eventsFile, text("{\"n\":0}\n{broken\n"))
	spoil(6, diffFile, text(`[]`))
	future := strings.Replace(string(good), "{", `{"newField":{"a":[1]},`, 1)
	spoil(7, attemptFile, text(future))
	if err := os.Symlink(dirs[5], filepath.Join(root, runsDir, string(run.ID), attemptsDir, ref.New())); err != nil {
		t.Fatal(err)
	}
	// A run whose declaration is damaged, one that is still being made.
	other := testRun("y", 1)
	mustStart(t, w, other)
	if err := os.WriteFile(filepath.Join(root, runsDir, string(other.ID), runFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	r := mustReader(t, root)
	runs, problems, err := r.Runs(t.Context())
	if err != nil || len(runs) != 1 || len(problems) != 1 || problems[0].Run != other.ID {
		t.Fatalf("runs %v, problems %v, %v", runs, problems, err)
	}
	for rs, err := range r.Slots(t.Context(), runs) {
		if err != nil {
			t.Fatal(err)
		}
		var good []int
		for i, s := range rs.Slots {
			if s.Attempt != nil {
				good = append(good, i)
			} else if s.Origin != "" || s.Reason != "running" {
				t.Errorf("slot %d: %+v", i, s)
			}
		}
		if !slices.Equal(good, []int{5, 6, 7}) || len(rs.Problems) != 5 {
			t.Errorf("good slots %v, problems %v", good, rs.Problems)
		}
		for _, p := range rs.Problems {
			if strings.Contains(p.Message, "stolen") || strings.Contains(p.Message, root) || p.Attempt == "" {
				t.Errorf("problem %+v", p)
			}
		}
	}
	id := func(i int) AttemptRef { return AttemptRef{run.ID, ref.AttemptID(filepath.Base(dirs[i]))} }
	if _, err := r.Attempt(id(0)); fault.CodeOf(err) != CodeAttemptUnreadable {
		t.Errorf("damaged attempt: %v", err)
	}
	if _, err := r.Attempt(AttemptRef{run.ID, ref.NewAttempt()}); fault.CodeOf(err) != CodeAttemptNotFound {
		t.Errorf("missing attempt: %v", err)
	}
	if _, err := r.Attempt(AttemptRef{"../../etc", "passwd"}); fault.CodeOf(err) != CodeAttemptNotFound {
		t.Errorf("path as an id: %v", err)
	}
	n, failed := 0, false
	for _, err := range r.Events(id(5)) {
		n++
		failed = err != nil
	}
	if n != 2 || !failed {
		t.Errorf("damaged events: %d, failed %v", n, failed)
	}
	if _, err := r.Diff(id(6)); err == nil {
		t.Error("damaged diff: no error")
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	run := testRun("x", 1)
	a := testAttempt(run, 0, Passed)
	mustSeal(t, mustStart(t, w, run), Sealed{Attempt: a})
	r := mustReader(t, root)
	if _, err := r.Find(t.Context(), ref.LocatorOf(ref.NewAttempt())); fault.CodeOf(err) != CodeLocatorNotFound {
		t.Errorf("unknown locator: %v", err)
	}
	// A tree that was merged by hand may hold an attempt twice.
	other := testRun("y", 1)
	mustStart(t, w, other)
	twin := filepath.Join(root, dirOf(AttemptRef{other.ID, a.ID}))
	if err := os.CopyFS(twin, os.DirFS(filepath.Join(root, dirOf(AttemptRef{run.ID, a.ID})))); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Find(t.Context(), a.Locator); fault.CodeOf(err) != CodeLocatorAmbiguous || !strings.Contains(fault.FixOf(err), "--page attempt-") {
		t.Errorf("ambiguous locator: %v, fix %q", err, fault.FixOf(err))
	}
}

func TestStatusOfAnUnfinishedRun(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	me := *CurrentOwner()
	cases := map[string]struct {
		change func(o *Owner)
		want   Status
	}{
		"this process":      {func(*Owner) {}, StatusRunning},
		"number reused":     {func(o *Owner) { o.Start = "1" }, StatusInterrupted},
		"no such process":   {func(o *Owner) { o.PID, o.Start = 1<<22+1, "5" }, StatusInterrupted},
		"before a reboot":   {func(o *Owner) { o.Boot = "another" }, StatusInterrupted},
		"another machine":   {func(o *Owner) { o.Host = "elsewhere" }, StatusUnfinished},
		"another pid space": {func(o *Owner) { o.PIDNamespace = "pid:[1]" }, StatusUnfinished},
	}
	for name, c := range cases {
		o := me
		c.change(&o)
		if runtime.GOOS != "linux" && name != "this process" && name != "another machine" {
			continue // only Linux tells these apart
		}
		run := testRun("x", 1)
		run.Owner = &o
		mustStart(t, w, run)
		got, err := mustReader(t, root).Run(run.ID)
		if err != nil || got.Status != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got.Status, err, c.want)
		}
	}
}

func TestMembersAreReadUpToTheLastWholeLine(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	source := testRun("x", 2)
	src := mustStart(t, w, source)
	a := testAttempt(source, 0, Failed)
	mustSeal(t, src, Sealed{Attempt: a})
	run := testRun("x", 3)
	run.StartedAt = epoch.Add(time.Hour)
	rw := mustStart(t, w, run)
	if err := rw.Members([]Member{
		{SlotRef: run.Slots[0], Origin: Carried, Run: source.ID, Attempt: a.ID},
		{SlotRef: run.Slots[1], Origin: Accepted, Run: source.ID, Attempt: ref.NewAttempt()}, // gone since
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, runsDir, string(run.ID), membersFile)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"eval":"basic/eval-0002","ordinal":0,"origin":"carr`)
	_ = f.Close()
	got := allSlots(t, mustReader(t, root))[1]
	s := got.Slots
	if len(got.Run.Problems) > 0 || s[0].Origin != Carried || s[0].Attempt == nil || s[0].Attempt.Locator != a.Locator {
		t.Errorf("carried slot %+v, problems %v", s[0], got.Run.Problems)
	}
	if s[1].Origin != Accepted || s[1].Attempt != nil || s[1].Problem == nil {
		t.Errorf("slot whose source is gone: %+v", s[1])
	}
	if s[2].Origin != "" {
		t.Errorf("slot of the torn line: %+v", s[2])
	}
}

// Running one eval again hides no other result; an interrupted run adds what it
// sealed; the newest declaration counts where nothing has a result.
func TestCurrentStateIsPerSlot(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	start := func(hour int, slots ...SlotRef) (Run, *RunWriter) {
		run := testRun("x", 0)
		run.StartedAt = epoch.Add(time.Duration(hour) * time.Hour)
		run.Slots = slots
		return run, mustStart(t, w, run)
	}
	a0, a1, b0, c0 := SlotRef{"a", 0}, SlotRef{"a", 1}, SlotRef{"b", 0}, SlotRef{"c", 0}
	second, rw2 := start(2, a0, b0, c0) // written first, started later
	first, rw1 := start(1, a0, a1, b0, SlotRef{"d", 0})
	third, rw3 := start(3, c0, b0, a1) // a1 is declared, its older result stays
	for i := range first.Slots[:3] {
		mustSeal(t, rw1, Sealed{Attempt: testAttempt(first, i, Passed)})
	}
	mustSeal(t, rw2, Sealed{Attempt: testAttempt(second, 0, Failed)})
	retry := testAttempt(second, 0, Errored) // a second try in the same run
	retry.StartedAt = retry.StartedAt.Add(time.Minute)
	mustSeal(t, rw2, Sealed{Attempt: retry})
	mustSeal(t, rw3, Sealed{Attempt: testAttempt(third, 1, Skipped)})

	r := mustReader(t, root)
	var got []string
	for _, s := range Current(allSlots(t, r)) {
		verdict := NotRun
		if s.Attempt != nil {
			verdict = s.Attempt.Verdict
		}
		got = append(got, fmt.Sprintf("%s#%d %s %d", s.Eval, s.Ordinal, verdict, s.Run.StartedAt.Sub(epoch)/time.Hour))
	}
	want := []string{"c#0 not-run 3", "b#0 skipped 3", "a#1 passed 1", "a#0 errored 2", "d#0 not-run 1"}
	if !slices.Equal(got, want) {
		t.Errorf("current state %q, want %q", got, want)
	}

	runs, _, err := r.Runs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sources := Sources(runs)
	for eval, hour := range map[ref.EvalID]time.Duration{"a": 3, "b": 3, "c": 3, "d": 1} {
		if s := sources[Pair{"x", eval}]; s == nil || s.StartedAt.Sub(epoch) != hour*time.Hour {
			t.Errorf("source of %s: %+v", eval, s)
		}
	}
}

func TestReadingStopsWithItsContext(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	run := testRun("x", 1)
	mustSeal(t, mustStart(t, w, run), Sealed{Attempt: testAttempt(run, 0, Passed)})
	r := mustReader(t, root)
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, _, err := r.Runs(ctx); !errors.Is(err, cause) {
		t.Errorf("Runs: %v", err)
	}
	for _, err := range r.Attempts(ctx, []AttemptRef{{run.ID, ref.NewAttempt()}}) {
		if !errors.Is(err, cause) {
			t.Errorf("Attempts: %v", err)
		}
	}
}

// generate writes a tree of n attempts in runs of 100 without syncing.
func generate(tb testing.TB, root string, n int) {
	tb.Helper()
	w := mustOpen(tb, root)
	for done := 0; done < n; done += 100 {
		run := testRun(fmt.Sprintf("exp-%02d", done/100%10), 100)
		run.StartedAt = epoch.Add(time.Duration(done) * time.Minute)
		mustStart(tb, w, run)
		for i := range run.Slots {
			a := testAttempt(run, i, []Verdict{Passed, Failed}[i%2])
			for k := range 6 {
				a.Checks = append(a.Checks, Check{Name: fmt.Sprintf("check %d", k), Kind: "file", Severity: Gate, Outcome: Matched})
			}
			files, err := attemptFiles(Sealed{Attempt: a})
			if err != nil {
				tb.Fatal(err)
			}
			dir := filepath.Join(root, dirOf(AttemptRef{run.ID, a.ID}))
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, attemptFile), files[0].Data, 0o600)); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

func BenchmarkReader10k(b *testing.B) {
	root := filepath.Join(b.TempDir(), "record")
	const n = 10_000
	generate(b, root, n)
	b.ReportAllocs()
	for b.Loop() {
		r := mustReader(b, root)
		if got := len(Current(allSlots(b, r))); got != 1000 {
			b.Fatalf("%d current slots", got)
		}
	}
}

func TestBriefLeavesOutTurnsAndIdentityOnly(t *testing.T) {
	root := t.TempDir()
	w := mustOpen(t, root)
	run := testRun("x", 1)
	a := testAttempt(run, 0, Failed)
	a.Identity = &Identity{Domain: "d", Digest: "x"}
	mustSeal(t, mustStart(t, w, run), Sealed{Attempt: a})
	r := mustReader(t, root)
	at := AttemptRef{run.ID, a.ID}
	whole, err := r.Attempt(at)
	if err != nil || whole.Identity == nil || len(whole.Turns) != 1 {
		t.Fatalf("whole: %+v, %v", whole, err)
	}
	short, err := r.Brief().Attempt(at)
	if err != nil {
		t.Fatal(err)
	}
	whole.Turns, whole.Identity = nil, nil
	if d := cmp.Diff(whole, short); d != "" {
		t.Error(d)
	}
}
