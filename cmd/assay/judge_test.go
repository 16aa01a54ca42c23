package main

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"assay/internal/modeltest"
)

// scripted serves a model in this process.
func scripted(t *testing.T, script string) (*modeltest.Server, string) {
	t.Helper()
	s, err := modeltest.ParseScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.New(s)
	hs := httptest.NewServer(m)
	t.Cleanup(func() { m.Release(); hs.CloseClientConnections(); hs.Close() })
	return m, hs.URL
}

// output runs the program to its end.
func output(t *testing.T, dir string, env []string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// slotsOf is what show tells of every slot, by eval.
func slotsOf(t *testing.T, dir string) map[string]shownSlot {
	t.Helper()
	out, errs, _ := output(t, dir, nil, "show", "--json")
	var doc struct{ Runs []struct{ Slots []shownSlot } }
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	slots := map[string]shownSlot{}
	for _, r := range doc.Runs {
		for _, s := range r.Slots {
			slots[s.Eval] = s
		}
	}
	return slots
}

type shownSlot struct {
	Eval, Verdict, Locator, Attempt string
	Error                           *struct{ Code, Phase string }
	Checks                          []struct {
		Kind, Outcome, Reason, Severity string
		Value, Threshold                *float64
		Judge                           *struct{ Model, BaseURL, Rationale, Output, Changes string }
	}
}

var judgedProject = map[string]string{
	"experiments/x.yaml": "agent: {script: {turns: [{commands: ['echo hi > a.txt'], reply: I wrote a.txt.}]}}\nsandbox: {fake: {}}\n",
	"evals/good.eval.yaml": "prompt: write a.txt\nchecks:\n  - {judge: The change is minimal., gate: 0.7}\n" +
		"  - {judge: {closedQA: Is the tone friendly?}}\n",
	"evals/bad.eval.yaml":   "prompt: write a.txt\nchecks: [{judge: {factuality: It wrote b.txt.}, gate: 0.5}]\n",
	"evals/plain.eval.yaml": "prompt: write a.txt\nchecks: [{changed: a.txt}]\n",
}

func TestJudgeDecides(t *testing.T) {
	m, url := scripted(t, `
rules:
  - {when: Is the output the word ready, plain: true, steps: [{text: '{"score": 1}'}]}
  - {when: The change is minimal., plain: true, steps: [{text: '{"rationale": "One file.", "score": 0.9}'}]}
  - {when: Is the tone friendly, plain: true, steps: [{text: '{"rationale": "No.", "score": 0}'}]}
  - {when: It wrote b.txt., plain: true, steps: [{text: '{"rationale": "Another file.", "score": 0}'}]}
`)
	dir := t.TempDir()
	write(t, dir, judgedProject)
	write(t, dir, map[string]string{"assay.yaml": "judge: {model: grader-1, baseUrl: '" + url + "/v1'}\n"})
	out, errs, exit := output(t, dir, []string{"ASSAY_JUDGE_KEY=judge-key-0123456789"}, "exp")
	if exit != 1 {
		t.Fatalf("exit %d\n%s%s", exit, out, errs)
	}
	slots := slotsOf(t, dir)
	if g := slots["good"]; g.Verdict != "passed" || *g.Checks[0].Value != 0.9 || *g.Checks[0].Threshold != 0.7 || g.Checks[0].Severity != "gate" ||
		g.Checks[0].Judge.Model != "grader-1" || g.Checks[0].Judge.BaseURL != url+"/v1" || g.Checks[0].Judge.Rationale != "One file." ||
		!strings.Contains(g.Checks[0].Judge.Changes, "+hi") || g.Checks[0].Judge.Output != "I wrote a.txt." ||
		g.Checks[1].Severity != "soft" || *g.Checks[1].Value != 0 || g.Checks[1].Outcome != "matched" {
		t.Errorf("good: %+v", g)
	}
	if b := slots["bad"]; b.Verdict != "failed" || *b.Checks[0].Value != 0 {
		t.Errorf("bad: %+v", b)
	}
	// One precheck for the whole run, and one request for each check.
	if n := len(m.Requests()); n != 4 {
		t.Errorf("%d requests", n)
	}
	if page, _, _ := output(t, dir, nil, "show", slots["bad"].Locator); !strings.Contains(page, "Another file.") {
		t.Errorf("the page does not tell the rationale:\n%s", page)
	}
}

// A judge that does not answer before the run makes only its own slots errored,
// without an attempt; the others run.
func TestJudgePrecheckFails(t *testing.T) {
	m, url := scripted(t, `rules: [{when: "", plain: true, steps: [{fail: {status: 401}}]}]`)
	dir := t.TempDir()
	write(t, dir, judgedProject)
	write(t, dir, map[string]string{"assay.yaml": "judge: {model: grader-1, baseUrl: '" + url + "/v1'}\n"})
	out, errs, exit := output(t, dir, []string{"ASSAY_JUDGE_KEY=judge-key-0123456789"}, "exp")
	if exit != 1 || !strings.Contains(out+errs, "judge-precheck-failed") {
		t.Errorf("exit %d\n%s%s", exit, out, errs)
	}
	slots := slotsOf(t, dir)
	for _, eval := range []string{"good", "bad"} {
		if s := slots[eval]; s.Verdict != "errored" || s.Locator != "" || s.Attempt != "" || s.Error == nil || s.Error.Code != "judge-precheck-failed" || s.Error.Phase != "judge.precheck" {
			t.Errorf("%s: %+v", eval, s)
		}
	}
	if slots["plain"].Verdict != "passed" || len(m.Requests()) != 1 {
		t.Errorf("plain: %+v after %d requests", slots["plain"], len(m.Requests()))
	}
}

// Without a key nothing is asked, and unavailable is not a score.
func TestJudgeWithoutKey(t *testing.T) {
	m, url := scripted(t, `rules: []`)
	dir := t.TempDir()
	write(t, dir, judgedProject)
	write(t, dir, map[string]string{"assay.yaml": "judge: {model: grader-1, baseUrl: '" + url + "/v1', apiKeyEnv: NOT_SET_HERE}\n"})
	out, errs, exit := output(t, dir, nil, "exp")
	slots := slotsOf(t, dir)
	if g := slots["good"]; exit != 1 || g.Verdict != "errored" || g.Locator == "" || g.Checks[0].Outcome != "unavailable" || g.Checks[0].Reason != "judge-key-missing" || g.Checks[0].Value != nil {
		t.Errorf("exit %d, good: %+v", exit, g)
	}
	if !strings.Contains(out+errs, "NOT_SET_HERE") || len(m.Requests()) != 0 {
		t.Errorf("%d requests\n%s%s", len(m.Requests()), out, errs)
	}
}
