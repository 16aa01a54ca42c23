package showjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"assay/record"
	"assay/ref"
	"assay/report"
)

var update = flag.Bool("update", false, "write the golden file anew")

func model(tb testing.TB) *report.Model {
	tb.Helper()
	r, err := record.OpenReader(filepath.Join("..", "..", "record", "testdata", "v1"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	m, err := report.Build(tb.Context(), r, report.Selection{})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func TestGolden(t *testing.T) {
	var doc, pretty bytes.Buffer
	if err := Write(&doc, model(t)); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(doc.Bytes(), []byte("}\n")) || bytes.Count(doc.Bytes(), []byte("\n")) != 1 {
		t.Error("it is not one line")
	}
	if err := json.Indent(&pretty, doc.Bytes(), "", " "); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "show.json")
	if *update {
		if err := os.WriteFile(path, pretty.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pretty.Bytes(), want) {
		t.Errorf("show.json differs; -update writes it anew. Got:\n%s", pretty.Bytes())
	}
}

func TestAbsentFactsAreAbsent(t *testing.T) {
	m := &report.Model{Runs: []*report.Run{{ID: "r", Experiment: "x", Slots: []report.Slot{
		{Eval: "a", Verdict: record.NotRun, Why: "budget"},
		{Eval: "b", Verdict: record.Passed, Result: &record.Attempt{Usage: &record.Usage{OutputTokens: new(int64)}}},
	}}}}
	var b bytes.Buffer
	if err := Write(&b, m); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Schema string
		Runs   []struct{ Slots []map[string]any }
		Totals map[string]int
	}
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	keys := func(m map[string]any) (out []string) {
		for k := range m {
			out = append(out, k)
		}
		slices.Sort(out)
		return out
	}
	slots := doc.Runs[0].Slots
	if got := keys(slots[0]); !slices.Equal(got, []string{"eval", "ordinal", "reason", "verdict"}) {
		t.Errorf("slot that did not run has %v", got)
	}
	// A reported zero stays a zero.
	if got := slots[1]["usage"].(map[string]any); len(got) != 1 || got["outputTokens"] != 0.0 {
		t.Errorf("usage %v", got)
	}
	if doc.Schema != "assay.show/v1" || len(doc.Totals) != 6 {
		t.Errorf("schema %q, totals %v", doc.Schema, doc.Totals)
	}
	b.Reset()
	if err := Write(&b, &report.Model{}); err != nil || !strings.Contains(b.String(), `"runs":[]`) {
		t.Errorf("no runs: %s, %v", b.String(), err)
	}
}

// large is a model whose document has more than 10 MB.
func large() *report.Model {
	run := &report.Run{ID: ref.NewRun(), Experiment: "x"}
	for range 1000 {
		run.Slots = append(run.Slots, report.Slot{Eval: "e", Verdict: record.Failed, Result: &record.Attempt{
			Checks: []record.Check{{Name: "c", Detail: strings.Repeat("<d>\x1b\u2028", 450)}},
		}})
	}
	return &report.Model{Runs: []*report.Run{run}}
}

func TestTenMegabytesThroughAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(Write(w, large()), w.Close())
	}()
	data, err := io.ReadAll(r)
	if err := errors.Join(err, <-done, r.Close()); err != nil {
		t.Fatal(err)
	}
	var doc struct{ Runs []struct{ Slots []any } }
	if err := json.Unmarshal(data, &doc); err != nil || len(data) < 10<<20 || len(doc.Runs[0].Slots) != 1000 {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

func TestWriteErrorsAreReturned(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer func() { _ = full.Close() }()
	for name, m := range map[string]*report.Model{"small": model(t), "large": large()} {
		if err := Write(full, m); err == nil {
			t.Errorf("%s: a full disk is not an error", name)
		}
	}
}
