package terminal

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"assay/record"
	"assay/ref"
	"assay/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

func id(name string) string { return "01jz0000000000000000000000"[:26-len(name)] + name }

func fixture(tb testing.TB) *record.Reader {
	tb.Helper()
	r, err := record.OpenReader(filepath.Join("..", "..", "record", "testdata", "v1"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; -update writes it anew. Got:\n%s", name, got)
	}
}

func summary(t *testing.T, sel report.Selection, o Options) []byte {
	t.Helper()
	m, err := report.Build(t.Context(), fixture(t), sel)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Summary(&b, m, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func page(t *testing.T, run, attempt string, o Options) []byte {
	t.Helper()
	p, err := report.ReadPage(fixture(t), record.AttemptRef{Run: ref.RunID(id(run)), Attempt: ref.AttemptID(id(attempt))})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Page(&b, p, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGoldens(t *testing.T) {
	golden(t, "summary.txt", summary(t, report.Selection{}, Options{}))
	golden(t, "run.txt", summary(t, report.Selection{Runs: []ref.RunID{ref.RunID(id("r3"))}}, Options{Width: 40}))
	golden(t, "page-passed.txt", page(t, "r2", "a04", Options{}))
	golden(t, "page-failed.txt", page(t, "r2", "a06", Options{}))
	golden(t, "page-errored.txt", page(t, "r2", "a08", Options{}))
	golden(t, "page-censored.txt", page(t, "r2", "a09", Options{}))
}

func TestNoEscapesUnlessColour(t *testing.T) {
	outputs := map[string][]byte{"summary": summary(t, report.Selection{}, Options{})}
	for _, a := range []string{"a04", "a06", "a08"} {
		outputs[a] = page(t, "r2", a, Options{})
	}
	for name, out := range outputs {
		for _, r := range string(out) {
			if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e {
				t.Errorf("%s holds %U", name, r)
			}
		}
		if bytes.Contains(out, []byte("52;c;")) {
			t.Errorf("%s holds the inside of an escape sequence", name)
		}
	}
	// With colour the only sequences are SGR, and the text is the same.
	for name, out := range map[string][]byte{"summary": summary(t, report.Selection{}, Options{Color: true}), "a06": page(t, "r2", "a06", Options{Color: true})} {
		if !bytes.Contains(out, []byte("\x1b[31mfailed\x1b[0m")) {
			t.Errorf("%s has no red", name)
		}
		plain := string(out)
		for _, sgr := range []string{"0", "1", "2", "31", "32", "33", "35"} {
			plain = strings.ReplaceAll(plain, "\x1b["+sgr+"m", "")
		}
		if plain != string(outputs[name]) {
			t.Errorf("%s: colour changes more than colour", name)
		}
	}
}

func TestIdsAreNeverCut(t *testing.T) {
	eval := strings.Repeat("very-long-folder/", 20) + "eval"
	loc := ref.LocatorOf(ref.NewAttempt())
	run := &report.Run{ID: ref.NewRun(), Experiment: ref.ExperimentID(strings.Repeat("e/", 90) + "x"), Slots: []report.Slot{{Eval: ref.EvalID(eval), Locator: loc, Verdict: record.Failed, Why: strings.Repeat("why ", 500)}}}
	m := &report.Model{Runs: []*report.Run{run}}
	var b bytes.Buffer
	if err := Summary(&b, m, Options{Width: 20}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{eval, string(loc), string(run.ID), string(run.Experiment)} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in the output", want)
		}
	}
}

func TestManyEqualFailuresDoNotFillTheScreen(t *testing.T) {
	run := &report.Run{ID: ref.NewRun(), Experiment: "x"}
	g := report.Group{Verdict: record.Errored, Why: "engine gone"}
	for range 205 {
		g.Members = append(g.Members, report.GroupMember{Run: run, Eval: "e", Locator: ref.LocatorOf(ref.NewAttempt())})
	}
	m := &report.Model{Runs: []*report.Run{run}, Groups: []report.Group{g}}
	for all, lines := range map[bool]int{false: 15, true: 215} {
		var b bytes.Buffer
		if err := Summary(&b, m, Options{All: all}); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\n"); n > lines || all && n < 205 || strings.Count(b.String(), "engine gone") != 1 || !strings.Contains(b.String(), "×205") {
			t.Errorf("all %v: %d lines:\n%.600s", all, n, b.String())
		}
	}
}

type fullDisk struct{ left int }

var errFull = errors.New("no space left on device")

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteErrorsAreReturned(t *testing.T) {
	m, err := report.Build(t.Context(), fixture(t), report.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Summary(&fullDisk{}, m, Options{}); !errors.Is(err, errFull) {
		t.Errorf("Summary: %v", err)
	}
	p, err := report.ReadPage(fixture(t), record.AttemptRef{Run: ref.RunID(id("r2")), Attempt: ref.AttemptID(id("a06"))})
	if err != nil {
		t.Fatal(err)
	}
	if err := Page(&fullDisk{}, p, Options{}); !errors.Is(err, errFull) {
		t.Errorf("Page: %v", err)
	}
}
