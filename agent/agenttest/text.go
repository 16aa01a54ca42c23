package agenttest

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func textPromises() []Promise {
	return []Promise{
		{"text-is-exact", textExact},
		{"text-large-is-exact", textLarge},
		{"secrets-reach-the-agent", secretsReach},
		{"secrets-stay-in-the-environment", secretsStay},
	}
}

// textExact: a message is text: nothing in it is an option, a pattern or a
// command.
func textExact(t testing.TB, h Harness) {
	c := caseOf(t, h, Digests)
	c.Changes = nil
	tr := bare(t, h, c)
	tr.ready()
	for _, text := range []string{
		"-", "--", "--help", "-n 5", "@file", "$(touch pwned) `touch pwned` ; touch pwned",
		`"quoted" 'quoted' \ \n %s ${HOME} ~ *`, "naïve 日本 🎉 \u202e", "two\nlines\r\nand a last without its end", "an end\n", "\n\n  spaces around \t", "EOF\nEND\n\x01\x7f",
	} {
		if turn := tr.turnOf(tr.first, text); turn.Message != digest(text) {
			t.Errorf("the text %q did not arrive as it is: the reply is %s", text, brief(turn.Message))
		}
	}
	if tr.watch != nil {
		if _, ok := tr.workdir()["pwned"]; ok {
			t.Error("a command in a message was run")
		}
	}
}

// maxArgument is safely below the 128 KiB that a kernel takes for one argument
// or variable.
const maxArgument = 96 << 10

// textLarge: a message of 1 MiB arrives to the last byte and is on no command
// line and in no variable.
func textLarge(t testing.TB, h Harness) {
	tr := open(t, h, Digests)
	text := strings.Repeat("0123456789abcde\n", 1<<16) + "end"
	if turn := tr.turnOf(tr.first, text); turn.Message != digest(text) {
		t.Errorf("a text of 1 MiB did not arrive as it is: the reply is %s", brief(turn.Message))
	}
	if tr.watch == nil {
		return
	}
	for _, c := range tr.watch.commands() {
		for _, a := range c.Argv {
			if len(a) > maxArgument {
				t.Errorf("an argument of %d bytes: %s", len(a), brief(a))
			}
		}
		for k, v := range c.Env {
			if len(v) > maxArgument {
				t.Errorf("the variable %s of %d bytes", k, len(v))
			}
		}
	}
}

// secretsReach: the agent sees the values of Info.SecretEnv, in every turn.
func secretsReach(t testing.TB, h Harness) {
	tr := open(t, h, ReadsSecret)
	name := tr.Agent.Info().SecretEnv[0]
	several(t, tr.Case, 2)
	for i := range 2 {
		if turn := tr.turn(tr.first); turn.Message != digest(tr.secrets[name]) {
			t.Errorf("turn %d: the reply is %s, want the digest of the value of %s", i+1, brief(turn.Message), name)
		}
	}
}

// secretsStay: values of secrets are in the environment of the agent's commands
// and nowhere else: on no command line, in no file, in no evidence.
func secretsStay(t testing.TB, h Harness) {
	tr := open(t, h, ReadsSecret)
	tr.turn(tr.first)
	if tr.watch == nil {
		t.Skip("a direct agent has no sandbox")
	}
	inEnv := false
	for name, value := range tr.secrets {
		for _, c := range tr.watch.commands() {
			inEnv = inEnv || c.Env[name] == value
			if slices.ContainsFunc(c.Argv, func(a string) bool { return strings.Contains(a, value) }) {
				t.Errorf("the value of %s is on a command line", name)
			}
		}
		if bytes.Contains(tr.watch.written(), []byte(value)) {
			t.Errorf("the value of %s was written into a file", name)
		}
		for _, r := range tr.observed {
			for _, s := range append([]string{r.Summary, r.Error, r.Stdout, r.Stderr, r.Cwd}, r.EnvKeys...) {
				if strings.Contains(s, value) {
					t.Errorf("the value of %s is in the evidence of %q", name, r.Summary)
				}
			}
		}
	}
	if !inEnv {
		t.Errorf("no command got a secret by its environment")
	}
}
