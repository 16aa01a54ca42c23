package carry

import (
	"strings"
	"testing"

	"assay/sandbox"
)

// A script that is run is an input; a log that is written is none.
func TestPrograms(t *testing.T) {
	for shell, want := range map[string]string{
		"./warm.sh x":                          "./warm.sh",
		"echo up >> ../marks":                  "",
		"A=1 ./up && cd x; ./down > log":       "./down,./up",
		"bash -e tools/up.sh arg":              "tools/up.sh",
		"cat data.json":                        "",
		". ./env.sh\nmake":                     "./env.sh",
		"env X=1 python3 -u 'gen.py' out.json": "gen.py",
		"(./a | ./b)":                          "./a,./b",
		"":                                     "",
	} {
		if got := strings.Join(programs(sandbox.Command{Shell: shell}), ","); got != want {
			t.Errorf("%q runs %q, want %q", shell, got, want)
		}
	}
	if got := programs(sandbox.Command{Argv: []string{"node", "x y.js", "z"}}); len(got) != 1 || got[0] != "x y.js" {
		t.Errorf("%q", got)
	}
}
