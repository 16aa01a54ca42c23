package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

// outcome is one run of the command as a job of GitHub Actions.
type outcome struct {
	exit           int
	stdout, stderr string
	page, summary  string
}

func asJob(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	cmd := command(t, dir, args...)
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "ASSAY_GUEST="+guesttest.Build(t), "GITHUB_ACTIONS=true", "GITHUB_STEP_SUMMARY="+page, "CI=true")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := err.(*exec.ExitError); err != nil && !ok || ok && exit.ExitCode() > 3 {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	testreq.Owns(cmd.Process.Pid)
	o := outcome{exit: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
	for p, into := range map[string]*string{page: &o.page, filepath.Join(dir, ".assay", "record", "summary.md"): &o.summary} {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Error(err)
		}
		*into = string(b)
	}
	if !strings.HasPrefix(o.page, "before\n") || !strings.Contains(o.page, o.summary) {
		t.Errorf("the job's page is %q, the summary %q", o.page, o.summary)
	}
	return o
}

// annotations are the error annotations of a job.
func (o outcome) annotations() []string {
	var found []string
	for _, l := range strings.Split(o.stdout+o.stderr, "\n") {
		if strings.HasPrefix(l, "::error") {
			found = append(found, l)
		}
	}
	return found
}

// prepareError is what an attempt of the record says of its sandbox.
type prepareError struct {
	Headline, Stage, Class, Cause, Log string
	Levels                             []string
}

// verdicts reads the newest run.
func verdicts(t *testing.T, dir string) map[string][]struct {
	Verdict string
	Error   *struct{ Prepare *prepareError }
} {
	t.Helper()
	cmd := command(t, dir, "show", "--latest", "--json")
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Runs []struct {
			Slots []struct {
				Eval, Verdict string
				Error         *struct{ Prepare *prepareError }
			}
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string][]struct {
		Verdict string
		Error   *struct{ Prepare *prepareError }
	}{}
	for _, r := range doc.Runs {
		for _, s := range r.Slots {
			out[s.Eval] = append(out[s.Eval], struct {
				Verdict string
				Error   *struct{ Prepare *prepareError }
			}{s.Verdict, s.Error})
		}
	}
	return out
}

// unbuild removes after the test what it built.
func unbuild(t *testing.T, of string) {
	t.Helper()
	cli, _ := testreq.Engine(t)
	t.Cleanup(func() {
		ctx := context.Background()
		list, err := cli.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("label", "assay.image.of="+of)})
		if err != nil {
			t.Error(err)
		}
		for _, i := range list.Items {
			if _, err := cli.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
				t.Logf("remove %s: %v", i.ID, err) // another run may use it
			}
		}
	})
}

// Of five evals two share a Dockerfile that cannot be built: they are errored
// once each, the others pass, and the job is told once.
func TestBrokenDockerfileOfTwoEvals(t *testing.T) {
	testreq.Docker(t)
	image := testimage.Slice(t)
	dir := t.TempDir()
	// The evals with a sandbox of their own cannot have the experiment's too, so
	// the common one is the config's.
	write(t, dir, map[string]string{
		"assay.yaml":             "defaults:\n  sandbox: {docker: {image: \"" + image + "\"}}\n",
		"experiments/x.yaml":     "agent: {command: {run: 'echo done > done.txt'}}\n",
		"env/broken/Dockerfile":  "FROM " + image + "\nRUN echo the reason >&2; exit 9\n",
		"evals/good-1.eval.yaml": "prompt: hi\nchecks: [{run: 'test -f done.txt'}]\n",
		"evals/good-2.eval.yaml": "prompt: hi\nchecks: [{run: 'test -f done.txt'}]\n",
		"evals/good-3.eval.yaml": "prompt: hi\nchecks: [{run: 'test -f done.txt'}]\n",
		"evals/bad-1.eval.yaml":  "prompt: hi\nsandbox: {docker: {dockerfile: ../env/broken/Dockerfile}}\n",
		"evals/bad-2.eval.yaml":  "prompt: hi\nsandbox: {docker: {dockerfile: ../env/broken/Dockerfile}}\n",
	})
	o := asJob(t, dir, "exp", "x")
	if o.exit != 1 {
		t.Errorf("exit %d\n%s%s", o.exit, o.stdout, o.stderr)
	}
	v := verdicts(t, dir)
	var headlines []string
	for eval, attempts := range v {
		if len(attempts) != 1 {
			t.Errorf("%s has %d attempts", eval, len(attempts))
			continue
		}
		a := attempts[0]
		if strings.HasPrefix(eval, "good") {
			if a.Verdict != "passed" {
				t.Errorf("%s: %s", eval, a.Verdict)
			}
			continue
		}
		if a.Verdict != "errored" || a.Error == nil || a.Error.Prepare == nil {
			t.Errorf("%s: %+v", eval, a)
			continue
		}
		p := a.Error.Prepare
		headlines = append(headlines, p.Headline)
		if p.Stage != "dockerfile" || p.Class != "config" || !strings.Contains(p.Cause, "exit code 9") || !strings.Contains(p.Log, "the reason") || !slices.Equal(p.Levels, []string{"eval bad-1", "eval bad-2"}) {
			t.Errorf("%s: %+v", eval, p)
		}
	}
	if len(v) != 5 || len(headlines) != 2 || headlines[0] != headlines[1] {
		t.Errorf("%d evals, headlines %q", len(v), headlines)
	}
	if a := o.annotations(); len(a) != 1 || !strings.Contains(a[0], "the reason") || !strings.Contains(a[0], "eval bad-1, eval bad-2") {
		t.Errorf("annotations %q", a)
	}
	for name, text := range map[string]string{"summary": o.summary, "terminal": o.stdout} {
		for _, want := range []string{"config at dockerfile", "the reason", "exit code 9", "eval bad-1, eval bad-2"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s lacks %q:\n%s", name, want, text)
			}
		}
	}
	if !strings.Contains(o.summary, "| x | command | 3 | 0 | 2 |") {
		t.Errorf("summary:\n%s", o.summary)
	}
}

// The same Dockerfile as everybody's sandbox: no attempt starts.
func TestBrokenDockerfileOfTheConfig(t *testing.T) {
	testreq.Docker(t)
	image := testimage.Slice(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"assay.yaml":         "defaults:\n  sandbox: {docker: {dockerfile: env/Dockerfile}}\n",
		"env/Dockerfile":     "FROM " + image + "\nRUN echo the reason >&2; exit 9\n",
		"experiments/x.yaml": "agent: {command: {run: 'true'}}\n",
		"evals/a.eval.yaml":  "prompt: hi\n", "evals/b.eval.yaml": "prompt: hi\n",
	})
	o := asJob(t, dir, "exp")
	if o.exit != 2 || len(o.annotations()) != 1 || !strings.Contains(o.summary, "nothing ran") || !strings.Contains(o.summary, "the reason") || !strings.Contains(o.stderr, "so no attempt can start") {
		t.Errorf("exit %d\n%s\n%s\n%s", o.exit, o.stdout, o.stderr, o.summary)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, ".assay", "record", "runs")); err == nil && len(entries) > 0 {
		t.Errorf("%d runs were recorded", len(entries))
	}
}

// The second run of an experiment builds nothing, pulls nothing, and says so.
func TestSecondRunBuildsNothing(t *testing.T) {
	testreq.Docker(t)
	image := testimage.Slice(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"experiments/x.yaml":        "agent: {command: {run: 'true'}}\nsandbox: {docker: {dockerfile: ../env/second-run.Dockerfile}}\n",
		"env/second-run.Dockerfile": "FROM " + image + "\nRUN echo " + filepath.Base(dir) + dir + "\n",
		"evals/a.eval.yaml":         "prompt: hi\nchecks: [{run: 'true'}]\n",
	})
	unbuild(t, "../env/second-run.Dockerfile")
	first := asJob(t, dir, "exp", "--rerun", "all")
	second := asJob(t, dir, "exp", "--rerun", "all")
	if first.exit != 0 || !strings.Contains(first.stdout, "second-run.Dockerfile: built\n") {
		t.Errorf("first: exit %d\n%s%s", first.exit, first.stdout, first.stderr)
	}
	if second.exit != 0 || !strings.Contains(second.stdout, "second-run.Dockerfile: built before") || strings.Contains(second.stdout, "RUN echo") {
		t.Errorf("second: exit %d\n%s%s", second.exit, second.stdout, second.stderr)
	}
}

// A scripted provider that fails in each way, through the whole program.
func TestScriptedProviderFailsInEachClass(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		exit   int // with the sandbox as the config's default
		shared int // with it as one eval's own, beside one that works
		want   string
		class  string
	}{
		"a bad token":        {"check: {config: 'the API token is not valid'}", 2, 2, "the API token is not valid", ""},
		"a service in parts": {"check: {class: resource}", 3, 3, "the fake sandbox is not ready", ""},
		"a failing step":     {"prepare: {config: 'RUN make', stage: dockerfile}", 2, 1, "could not be prepared (config at dockerfile)", "config"},
		"memory":             {"prepare: {resource: 'killed', stage: install}", 3, 1, "could not be prepared (resource: oom at install)", "resource"},
		"disk":               {"prepare: {resource: 'no space left', stage: image}", 3, 1, "could not be prepared (resource: enospc at image)", "resource"},
		"a busy registry":    {"prepare: {transient: 9, stage: image}", 3, 1, "could not be prepared (transient at image)", "transient"},
		"an odd error":       {"prepare: {class: unknown}", 3, 1, "could not be prepared (unknown at prepare)", "unknown"},
	} {
		for where, exit := range map[string]int{"config": c.exit, "eval": c.shared} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				files := map[string]string{
					"bad.yaml": "faults: {" + c.faults + "}\n", "experiments/x.yaml": "agent: nop\n",
					"evals/a.eval.yaml": "prompt: hi\nchecks: [{run: 'true'}]\n", "evals/b.eval.yaml": "prompt: hi\nchecks: [{run: 'true'}]\n",
				}
				if where == "config" {
					files["assay.yaml"] = "defaults: {sandbox: {fake: {script: bad.yaml}}}\n"
				} else {
					files["assay.yaml"] = "defaults: {sandbox: {fake: {}}}\n"
					files["evals/b.eval.yaml"] += "sandbox: {fake: {script: ../bad.yaml}}\n"
				}
				write(t, dir, files)
				o := asJob(t, dir, "exp")
				if o.exit != exit || !strings.Contains(o.stdout+o.stderr, c.want) || !strings.Contains(o.summary, c.want) {
					t.Fatalf("exit %d, want %d with %q\n%s\n%s\n%s", o.exit, exit, c.want, o.stdout, o.stderr, o.summary)
				}
				if n := len(o.annotations()); c.class != "" && n != 1 {
					t.Errorf("%d annotations", n)
				}
				if c.class == "" || where == "config" {
					return
				}
				v := verdicts(t, dir)
				if len(v["a"]) != 1 || v["a"][0].Verdict != "passed" || len(v["b"]) != 1 || v["b"][0].Verdict != "errored" {
					t.Fatalf("%+v", v)
				}
				if p := v["b"][0].Error.Prepare; p == nil || p.Class != c.class || !slices.Equal(p.Levels, []string{"eval b"}) {
					t.Errorf("%+v", p)
				}
			})
		}
	}
}
