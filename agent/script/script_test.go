package script_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"assay/agent"
	"assay/agent/agenttest"
	"assay/agent/script"
	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func driver(tb testing.TB) sandbox.Driver { return driverOf(tb, fake.Script{}) }

func driverOf(tb testing.TB, s fake.Script) sandbox.Driver {
	tb.Helper()
	p := fake.New(s)
	d, err := p.Create(context.Background(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = d.Stop(context.Background()) })
	return d
}

const hang = "setsid sh -c 'while :; do sleep 1; done' & touch started; sleep 3600"

func fixed(c agenttest.Case) func(testing.TB) agenttest.Case {
	return func(testing.TB) agenttest.Case { return c }
}

func TestAgentPromises(t *testing.T) {
	play := func(c agenttest.Case, turns ...script.Turn) func(testing.TB) agenttest.Case {
		c.Agent, c.Turns = script.Agent{Turns: turns}, len(turns)
		return fixed(c)
	}
	works := script.Turn{Commands: []string{"echo done >answer.txt", "cat answer.txt"}, Reply: "finished"}
	agenttest.Run(t, agenttest.Harness{Driver: driver, Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{
		agenttest.Works: play(agenttest.Case{Reply: "finished", Changes: []string{"answer.txt"}, Tools: []string{"bash", "bash"}}, works, works, works),
		agenttest.Fails: play(agenttest.Case{}, script.Turn{Commands: []string{"echo no >&2; exit 4", "touch never"}}),
		agenttest.Hangs: play(agenttest.Case{}, script.Turn{Commands: []string{hang}}),
	}})
}

func TestOraclePromises(t *testing.T) {
	solution := func(c agenttest.Case, shell string) func(testing.TB) agenttest.Case {
		c.Agent, c.Turns = script.Oracle{}, 1
		c.Session = func(s *agent.Session) { s.Solution = &sandbox.Command{Shell: shell} }
		return fixed(c)
	}
	agenttest.Run(t, agenttest.Harness{Driver: driver, Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{
		agenttest.Works: solution(agenttest.Case{Reply: "The solution ran.", Changes: []string{"answer.txt"}, Tools: []string{"bash"}}, "echo done >answer.txt"),
		agenttest.Fails: solution(agenttest.Case{}, "echo no >&2; exit 4"),
		agenttest.Hangs: solution(agenttest.Case{}, hang),
	}})
}

func TestNopPromises(t *testing.T) {
	agenttest.Run(t, agenttest.Harness{Driver: driver, Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{
		agenttest.Works: fixed(agenttest.Case{Agent: script.Nop{}}),
	}})
}

func session(t *testing.T) *agent.Session {
	t.Helper()
	return &agent.Session{Number: 1, Eval: "demo", Sandbox: sandbox.New(driver(t), sandbox.Options{HostDir: t.TempDir()}), Scratch: "/tmp/.s-1", Notes: sandbox.Quiet{}}
}

func TestScriptReportsEachCommand(t *testing.T) {
	a := script.Agent{Turns: []script.Turn{{Commands: []string{"echo a", "echo b >&2; exit 3", "echo never"}, Reply: "hello"}}}
	turn, err := a.Send(t.Context(), session(t), agent.Input{Turn: 1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range turn.Events {
		got = append(got, strings.Join([]string{string(e.Type), e.ID, e.Name, e.Status, string(e.Input), string(e.Output), e.Text}, "|"))
	}
	want := []string{
		`operation.started|call-1|bash||{"command":"echo a"}||`, `operation.finished|call-1||completed||"a\n"|`,
		`operation.started|call-2|bash||{"command":"echo b \u003e\u00262; exit 3"}||`, `operation.finished|call-2||failed||"b\n"|`,
		`message|||||` + `|hello`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if turn.Status != agent.Failed || !strings.Contains(turn.Reason, "exit 3") {
		t.Errorf("status %q, reason %q", turn.Status, turn.Reason)
	}
}

func TestScriptHasAsManyTurnsAsItHas(t *testing.T) {
	a := script.Agent{Turns: []script.Turn{{Reply: "one"}, {Reply: "two"}}}
	for n, want := range map[int]string{0: "", 1: "one", 2: "two", 3: ""} {
		turn, err := a.Send(t.Context(), session(t), agent.Input{Turn: n})
		var se *agent.SendError
		if want == "" {
			if !errors.As(err, &se) || se.Acceptance != agent.Rejected || fault.CodeOf(err) != "agent-script-ended" || fault.ClassOf(err) != fault.Config {
				t.Errorf("turn %d: %v", n, err)
			}
		} else if err != nil || turn.Message != want {
			t.Errorf("turn %d: %q, %v", n, turn.Message, err)
		}
	}
}

func TestOutOfMemoryIsNoFailedTask(t *testing.T) {
	s := &agent.Session{Sandbox: sandbox.New(driverOf(t, fake.Script{Commands: []fake.Response{{Match: "^big$", OOM: true}}}), sandbox.Options{}), Scratch: "/tmp/.s-1"}
	turn, err := script.Agent{Turns: []script.Turn{{Commands: []string{"exec big"}}}}.Send(t.Context(), s, agent.Input{Turn: 1})
	var se *agent.SendError
	if !errors.As(err, &se) || fault.ClassOf(err) != fault.Resource || fault.CodeOf(err) != "oom" || fault.FixOf(err) == "" {
		t.Fatalf("turn %+v, error %v", turn, err)
	}
	if len(se.Events) != 1 || se.Acceptance != agent.Started {
		t.Errorf("what came before is not in the error: %+v", se)
	}
}

func TestOracle(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "fix.txt"), []byte("fixed"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		solution *sandbox.Command
		dir      string
		want     string // content of out.txt
		code     string
	}{
		{"none", nil, "", "", "eval-solution-missing"},
		{"script with files", &sandbox.Command{Shell: `cat "$SOLUTION_DIR/fix.txt" >out.txt`}, dir, "fixed", ""},
		{"argv is not interpreted", &sandbox.Command{Argv: []string{"sh", "-c", `printf %s "$1" >out.txt`, "sh", "$HOME; 'x'"}}, "", "$HOME; 'x'", ""},
		{"env and cwd", &sandbox.Command{Shell: `printf %s "$A $PWD" >/tmp/o; cp /tmp/o "$OUT"`, Cwd: "/tmp", Env: map[string]string{"A": "b", "OUT": "/home/user/workspace/out.txt"}}, "", "b /tmp", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := session(t)
			s.Solution, s.SolutionDir = c.solution, c.dir
			turn, err := script.Oracle{}.Send(t.Context(), s, agent.Input{Turn: 1})
			if fault.CodeOf(err) != c.code {
				t.Fatalf("error %v, want the code %q", err, c.code)
			}
			if c.code != "" {
				return
			}
			if turn.Status != agent.Completed {
				t.Fatalf("%+v", turn)
			}
			if got, err := s.Sandbox.ReadText(t.Context(), "out.txt"); err != nil || got != c.want {
				t.Errorf("out.txt holds %q (%v), want %q", got, err, c.want)
			}
			again, err := script.Oracle{}.Send(t.Context(), s, agent.Input{Turn: 2})
			if err != nil || len(again.Events) != 1 || again.Message != "" {
				t.Errorf("a later turn did something: %+v, %v", again, err)
			}
		})
	}
}

func TestDefinitions(t *testing.T) {
	for _, d := range []agent.Definition{script.Definition(), script.OracleDefinition(), script.NopDefinition()} {
		o := d.Options()
		a, err := d.Agent(o, "")
		if d.Name == "script" {
			if fault.CodeOf(err) != "agent-script-empty" {
				t.Errorf("a script without turns: %v", err)
			}
			o.(*script.Agent).Turns = []script.Turn{{Reply: "x"}}
			a, err = d.Agent(o, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		if info := a.Info(); info.Name != d.Name || d.Summary == "" {
			t.Errorf("definition %q makes the agent %q", d.Name, info.Name)
		}
		if _, err := json.Marshal(a.Info()); err != nil {
			t.Error(err)
		}
	}
}
