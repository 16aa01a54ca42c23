package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"assay/internal/guest/guesttest"
)

// secretsIn are the forms in which a value may lie in a byte stream. The cut
// ones are what is left of it when it is masked after it was cut.
func secretsIn(v string) map[string]string {
	j, _ := json.Marshal(v)
	return map[string]string{
		"as it is": v, "base 64": base64.StdEncoding.EncodeToString([]byte(v))[:len(v)], "URL": url.QueryEscape(v),
		"path": url.PathEscape(v), "hex": hex.EncodeToString([]byte(v)), "JSON": strings.Trim(string(j), `"`),
		"the head of it": v[:len(v)*2/3], "the tail of it": v[len(v)/3:],
	}
}

// leaks names what of a value is in a text.
func leaks(where string, body []byte, values map[string]string) []string {
	var out []string
	for name, v := range values {
		for form, s := range secretsIn(v) {
			if bytes.Contains(body, []byte(s)) {
				out = append(out, where+" holds "+name+" ("+form+")")
			}
		}
	}
	return out
}

// watchProcesses looks at the arguments of every process of this machine, over
// and over, until it is stopped, and returns in which a value was.
func watchProcesses(values map[string]string) (stop func() []string) {
	done, found := make(chan struct{}), make(chan []string)
	go func() {
		seen := map[string]bool{}
		for {
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is a good one
			for _, p := range lines {
				body, err := os.ReadFile(p)
				if err != nil {
					continue // it ended
				}
				for _, l := range leaks("a process", bytes.ReplaceAll(body, []byte{0}, []byte{' '}), values) {
					seen[l] = true
				}
			}
			select {
			case <-done:
				found <- slices.Sorted(maps.Keys(seen))
				return
			default:
			}
		}
	}()
	return func() []string { close(done); return <-found }
}

// A secret that an agent prints, writes and encodes wherever it can is in
// nothing that is kept or shown, and in no process list; a variable that nobody
// named does not reach the sandbox at all.
func TestSecretsLeaveNoTrace(t *testing.T) {
	values := map[string]string{
		"AGENT_KEY": `ag/ent+key "q"&<x>=0123456789`,
		"LAYER_KEY": "layer~key/ä%20:abcdefghij",
		"JUDGE_KEY": "judge-key-9876543210-zyx",
		"OTHER_KEY": "nobody-named-this-one-0000",
	}
	nativeWorks(t) // the local sandbox hands on the whole environment, and says so
	m, at := scripted(t, `rules: [{when: "", plain: true, steps: [{text: '{"rationale": "seen `+values["JUDGE_KEY"]+`", "score": 0.2}'}]}]`)
	dir := t.TempDir()
	spill := `#!/bin/sh
for v in "$AGENT_KEY" "$LAYER_KEY"; do
  printf '%s\n' "$v"; printf '%s' "$v" | base64 -w0; echo; printf 'x%s' "$v" | base64 -w0; echo; printf '%s' "$v" | od -An -tx1 -v | tr -d ' \n'; echo
  printf '%s\n' "$v" >&2
  printf '%s' "$v" > "kept-$(printf %s "$v" | cksum | cut -d' ' -f1).txt"
done | tee spilled.txt
{ head -c 60000 /dev/zero | tr '\0' x; printf '%s' "$AGENT_KEY"; } > long.txt
printf '{"type":"operation.started","id":"1","name":"bash","input":{"command":"echo %s"}}\n' "$LAYER_KEY" > events.jsonl
printf '{"type":"operation.finished","id":"1","status":"failed","output":"%s"}\n' "$LAYER_KEY" >> events.jsonl
printf '{"type":"vendor.news","text":"%s"}\n' "$LAYER_KEY" >> events.jsonl
cat long.txt
[ -z "$OTHER_KEY$JUDGE_KEY" ] || echo "a variable that nobody named" > unnamed.txt
`
	write(t, dir, map[string]string{
		"assay.yaml": "judge: {model: m, baseUrl: '" + at + "/v1', apiKeyEnv: JUDGE_KEY}\n",
		"experiments/x.yaml": "agent: {command: {run: 'sh \"$ASSAY_AGENT_DIR/spill.sh\"', files: ../agent, secretEnv: [AGENT_KEY], events: events.jsonl}}\n" +
			"sandbox: {native: {}, secretEnv: [LAYER_KEY], prepare: ['echo \"preparing with $LAYER_KEY\"']}\n",
		"agent/spill.sh": spill,
		"evals/e.eval.yaml": `prompt: go
checks:
  - {run: 'cat spilled.txt; echo "$LAYER_KEY" >&2; exit 3', name: prints}
  - {file: spilled.txt, contains: never there, soft: true}
  - {reply: {equals: nothing}, soft: true}
  - {judge: {criteria: Is it clean?}, atLeast: 0.9}
  - {judge: {criteria: Is the file clean?, file: long.txt}}
  - {file: unnamed.txt, exists: false, name: only named variables}
teardown: ['echo "gone $LAYER_KEY"; exit 1']
`,
	})
	env := []string{"ASSAY_GUEST=" + guesttest.Build(t)}
	for k, v := range values {
		env = append(env, k+"="+v)
	}
	shown := map[string][]byte{}
	show := func(name string, args ...string) string {
		out, errs, _ := output(t, dir, env, args...)
		shown[name] = []byte(out + errs)
		return out
	}
	stop := watchProcesses(values)
	show("exp", "exp")
	show("exp --json", "exp", "--json", "--rerun=all")
	if !bytes.Contains(shown["exp --json"], []byte(`"type":"receipt"`)) {
		t.Errorf("%s", shown["exp --json"])
	}
	for _, l := range stop() {
		t.Error(l)
	}
	slot := slotsOf(t, dir)["e"]
	for _, c := range slot.Checks {
		if c.Severity == "gate" && c.Kind == "file" && c.Outcome != "matched" {
			t.Errorf("%+v", c)
		}
	}
	if slot.Verdict != "failed" || len(slot.Checks) != 6 {
		t.Fatalf("the attempt did not come to its checks: %+v\n%s", slot, shown["exp"])
	}
	for name, args := range map[string][]string{"show": {"show"}, "page": {"show", slot.Locator}, "show --json": {"show", "--json"}, "trajectory": {"show", slot.Locator, "--format", "atif"}} {
		if out := show(name, args...); len(out) < 20 {
			t.Errorf("%s says nothing: %q", name, out)
		}
	}
	var found []string
	for name, body := range shown {
		found = append(found, leaks(name, body, values)...)
	}
	kept := 0
	err := filepath.WalkDir(filepath.Join(dir, ".assay"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(p)
		kept++
		found = append(found, leaks(p, body, values)...)
		return err
	})
	if err != nil || kept == 0 {
		t.Fatalf("%d files were kept, %v", kept, err)
	}
	for _, r := range m.Requests() {
		found = append(found, leaks("a request to the judge", r.Body, values)...)
	}
	if len(m.Requests()) < 3 {
		t.Errorf("%d requests to the judge", len(m.Requests()))
	}
	for _, f := range found {
		t.Error(f)
	}
	// That they were looked for in vain means something only if they were masked.
	if !bytes.Contains(shown["page"], []byte("<redacted>")) {
		t.Errorf("nothing was masked:\n%s", shown["page"])
	}
}
