package report

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/testreq"
	"assay/record"
	"assay/ref"
)

func TestMain(m *testing.M) { testreq.Main(m) }

func fixture(tb testing.TB) *record.Reader {
	tb.Helper()
	r, err := record.OpenReader(filepath.Join("..", "record", "testdata", "v1"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

func id(name string) string { return "01jz0000000000000000000000"[:26-len(name)] + name }

func build(t *testing.T, sel Selection) *Model {
	t.Helper()
	m, err := Build(t.Context(), fixture(t), sel)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func slotNames(m *Model) (out []string) {
	for _, r := range m.Runs {
		for _, s := range r.Slots {
			out = append(out, string(r.ID[24:])+" "+string(s.Eval)+" "+string(s.Verdict))
		}
	}
	return out
}

func TestSelection(t *testing.T) {
	all := []string{
		"r2 basic/fix passed", "r2 basic/polite passed", "r2 basic/rename failed", "r2 basic/rename2 failed", "r2 infra/one errored",
		"r2 infra/judge errored", "r2 later skipped", "r2 never not-run", "r2 only/carried passed",
	}
	cases := map[string]struct {
		sel  Selection
		want []string
	}{
		// The unfinished newest run counts for what it sealed; where it sealed
		// nothing the older result stays; what only it declares is not run.
		"current":        {Selection{}, append(slices.Clone(all), "r1 basic/rename failed", "r1 only/here failed", "r3 basic/fix passed", "r3 basic/new not-run")},
		"run":            {Selection{Runs: []ref.RunID{ref.RunID(id("r3"))}}, []string{"r3 basic/fix passed", "r3 basic/rename not-run", "r3 basic/new not-run"}},
		"same run twice": {Selection{Runs: []ref.RunID{ref.RunID(id("r2")), ref.RunID(id("r2"))}}, all},
		"latest":         {Selection{Latest: true}, []string{"r1 basic/fix passed", "r1 basic/rename failed", "r1 only/here failed"}},
		"experiment":     {Selection{Experiments: []ref.ExperimentID{"ci/codex"}}, all},
	}
	for name, c := range cases {
		if got := slotNames(build(t, c.sel)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q\nwant %q", name, got, c.want)
		}
	}
	if _, err := Build(t.Context(), fixture(t), Selection{Runs: []ref.RunID{ref.NewRun()}}); fault.CodeOf(err) != record.CodeRunNotFound {
		t.Errorf("unknown run: %v", err)
	}
	if _, err := Build(t.Context(), fixture(t), Selection{Runs: []ref.RunID{"x"}, Latest: true}); fault.CodeOf(err) != "usage" {
		t.Errorf("run and latest: %v", err)
	}
}

func TestTotalsLeaveOutWhatIsUnknown(t *testing.T) {
	tot := build(t, Selection{Runs: []ref.RunID{ref.RunID(id("r2"))}}).Totals
	if tot.Passed != 3 || tot.Failed != 2 || tot.Errored != 2 || tot.Skipped != 1 || tot.NotRun != 1 || tot.Slots() != 9 {
		t.Errorf("counts %+v", tot)
	}
	if tot.Carried != 1 || tot.SoftFailed != 1 {
		t.Errorf("carried %d, soft %d", tot.Carried, tot.SoftFailed)
	}
	if rate, n := tot.PassRate(); rate != 0.6 || n != 5 {
		t.Errorf("rate %v on %d, want 3 of 5: errored, skipped and not-run are left out", rate, n)
	}
	// Six executed and not skipped; the censored and the one without a time are
	// not in the mean, nor is the carried one.
	if d := tot.Duration; d.Known != 4 || d.Of != 6 {
		t.Errorf("durations %+v", d)
	}
	if mean, ok := tot.Duration.Mean(); !ok || mean != 12_345 {
		t.Errorf("mean %v, %v", mean, ok)
	}
	if c := tot.CostUSD; c.Known != 1 || c.Of != 7 || c.Sum != 0.0421 {
		t.Errorf("cost %+v", c)
	}
	if tk := tot.Tokens; tk.Known != 1 || tk.Sum != 32_000 {
		t.Errorf("tokens %+v", tk)
	}
	limit := int64(600_000)
	for name, a := range map[string]*record.Attempt{
		"censored": {Verdict: record.Failed, DurationMS: &limit, CensoredMS: &limit},
		"errored":  {Verdict: record.Errored, DurationMS: &limit},
	} {
		var tot Totals
		tot.add(&Slot{Verdict: a.Verdict, Origin: record.Executed, Result: a})
		if d := tot.Duration; d.Known != 0 || d.Of != 1 {
			t.Errorf("a %s attempt is in the mean: %+v", name, d)
		}
	}
	empty := Totals{NotRun: 3}
	if _, n := empty.PassRate(); n != 0 {
		t.Error("a rate of nothing")
	}
	if _, ok := empty.Duration.Mean(); ok {
		t.Error("a mean of nothing")
	}
}

func TestEqualFailuresAreOneGroup(t *testing.T) {
	m := build(t, Selection{})
	var got []string
	members := 0
	for _, g := range m.Groups {
		first, _, _ := strings.Cut(g.Why, "\n")
		got = append(got, string(g.Verdict)+" "+first)
		members += len(g.Members)
	}
	want := []string{
		"failed tests pass: go test ./...",
		"errored sandbox.prepare: sandbox.prepare-failed: image example.com/x:1 does not exist",
		"errored grade: unavailable: judge-key-missing",
	}
	if !slices.Equal(got, want) || len(m.Groups[0].Members) != 4 || members != 6 {
		t.Errorf("groups %q with %d members", got, members)
	}
	if m.Groups[1].Fix == "" || m.Groups[1].Measured || !m.Groups[0].Measured {
		t.Errorf("groups %+v", m.Groups)
	}
}

func TestWhy(t *testing.T) {
	gate := func(o record.Outcome) record.Check {
		return record.Check{Name: "g", Severity: record.Gate, Outcome: o, Detail: "d"}
	}
	soft := record.Check{Name: "s", Severity: record.Soft, Outcome: record.Mismatched}
	optional := record.Check{Name: "o", Severity: record.Gate, Outcome: record.Unavailable, Optional: true}
	cases := map[string]struct {
		a    record.Attempt
		why  string
		soft int
	}{
		"first missed gate":  {record.Attempt{Verdict: record.Failed, Checks: []record.Check{soft, gate(record.Matched), gate(record.Mismatched)}}, "g: d", 1},
		"errored by a check": {record.Attempt{Verdict: record.Errored, Checks: []record.Check{optional, gate(record.Mismatched), gate(record.Unavailable)}}, "g: unavailable: d", 0},
		"error wins":         {record.Attempt{Verdict: record.Errored, Error: &record.ErrorInfo{Code: "c", Message: "m"}, Checks: []record.Check{gate(record.Unavailable)}}, "c: m", 0},
		"no cause":           {record.Attempt{Verdict: record.Errored}, "no cause is recorded", 0},
		"no gate":            {record.Attempt{Verdict: record.Failed}, "no missed gate is recorded", 0},
		"skip":               {record.Attempt{Verdict: record.Skipped, Skip: "no gpu"}, "no gpu", 0},
		"passed":             {record.Attempt{Verdict: record.Passed, Checks: []record.Check{gate(record.Matched)}}, "", 0},
		"one soft":           {record.Attempt{Verdict: record.Passed, Checks: []record.Check{soft}}, "soft: s", 1},
		"two soft":           {record.Attempt{Verdict: record.Passed, Checks: []record.Check{soft, soft}}, "2 soft checks missed, first: s", 2},
	}
	for name, c := range cases {
		if why, n := Why(&c.a); why != c.why || n != c.soft {
			t.Errorf("%s: %q, %d", name, why, n)
		}
	}
}

func TestResolve(t *testing.T) {
	r := fixture(t)
	a01 := record.AttemptRef{Run: ref.RunID(id("r1")), Attempt: ref.AttemptID(id("a01"))}
	loc := string(ref.LocatorOf(a01.Attempt))
	other := string(ref.LocatorOf(ref.AttemptID(id("a02"))))
	r1, r2 := []ref.RunID{a01.Run}, []ref.RunID{ref.RunID(id("r2"))}
	page := "attempt-" + id("a01")
	cases := map[string]struct {
		t    Target
		ok   bool
		code string
	}{
		"nothing":                   {Target{}, false, ""},
		"runs only":                 {Target{Runs: r1}, false, ""},
		"locator":                   {Target{Locator: loc}, true, ""},
		"run and page":              {Target{Runs: r1, Page: page}, true, ""},
		"carried result's page":     {Target{Runs: r2, Page: page}, true, ""},
		"page alone":                {Target{Page: page}, true, ""},
		"all agree":                 {Target{Locator: loc, Runs: r1, Page: page}, true, ""},
		"locator against page":      {Target{Locator: other, Runs: r1, Page: page}, false, "usage"},
		"locator against run":       {Target{Locator: loc, Runs: r2}, false, "usage"},
		"malformed locator":         {Target{Locator: "@x"}, false, "malformed-locator"},
		"unknown locator":           {Target{Locator: "@1000000000000"}, false, record.CodeLocatorNotFound},
		"page that is no attempt":   {Target{Runs: r1, Page: "overview"}, false, "usage"},
		"page with a path":          {Target{Runs: r1, Page: "attempt-../../x"}, false, "usage"},
		"page of an unknown run":    {Target{Runs: []ref.RunID{ref.NewRun()}, Page: page}, false, record.CodeRunNotFound},
		"unknown attempt in a run":  {Target{Runs: r1, Page: "attempt-" + string(ref.NewAttempt())}, false, record.CodeAttemptNotFound},
		"attempt of another run":    {Target{Runs: []ref.RunID{ref.RunID(id("r3"))}, Page: page}, false, record.CodeAttemptNotFound},
		"page of no run, not found": {Target{Page: "attempt-" + string(ref.NewAttempt())}, false, record.CodeAttemptNotFound},
	}
	for name, c := range cases {
		at, ok, err := Resolve(t.Context(), r, c.t)
		if ok != c.ok || fault.CodeOf(err) != c.code || (err == nil) != (c.code == "") {
			t.Errorf("%s: %v, %v, %v", name, at, ok, err)
		}
		if ok && at != a01 {
			t.Errorf("%s: found %v", name, at)
		}
		if err != nil && fault.FixOf(err) == "" {
			t.Errorf("%s: no fix: %v", name, err)
		}
	}
}

func TestDamagedPartsAreNamed(t *testing.T) {
	root := filepath.Join(t.TempDir(), "record")
	if err := os.CopyFS(root, os.DirFS(filepath.Join("..", "record", "testdata", "v1"))); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "runs", id("r2"), "attempts")
	for name, content := range map[string]string{
		id("a04") + "/diff.json":       "{",
		id("a06") + "/commands.ndjson": "{\"summary\":\"x\",\"outcome\":\"ok\"}\n{\"type\":\"truncated\",\"lines\":40,\"bytes\":9,\"reason\":\"over the limit\"}\n",
		id("a06") + "/events.ndjson":   "{\"type\":\"message\"}\n{brok\n",
		id("a07") + "/attempt.json":    "{}",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := record.OpenReader(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	page := func(name string) *Page {
		p, err := ReadPage(r, record.AttemptRef{Run: ref.RunID(id("r2")), Attempt: ref.AttemptID(id(name))})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := page("a04"); p.Missing["diff"] == "" || p.Diff != nil {
		t.Errorf("damaged diff: %+v", p.Missing)
	}
	p := page("a06")
	if p.CommandCount != 41 || !strings.Contains(p.Missing["commands"], "40 left out") || p.Missing["events"] == "" || len(p.Events) != 1 {
		t.Errorf("truncated commands and damaged events: %d, %v, %v", p.CommandCount, p.Events, p.Missing)
	}
	m, err := Build(t.Context(), r, Selection{Runs: []ref.RunID{ref.RunID(id("r2"))}})
	if err != nil || len(m.Problems) != 1 || string(m.Problems[0].Attempt) != id("a07") {
		t.Fatalf("damaged attempt: %v, %v", m.Problems, err)
	}
	if m.Totals.NotRun != 2 || m.Totals.Failed != 1 { // never failed, never passed
		t.Errorf("totals %+v", m.Totals)
	}
}
