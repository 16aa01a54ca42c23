package command_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"assay/agent"
	"assay/agent/agenttest"
	"assay/agent/command"
	"assay/fault"
	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/docker"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { testreq.Main(m) }

func num(n int64) *int64 { return &n }

// playing is the command agent with the scripted program in one of its modes.
func playing(tb testing.TB, mode string) command.Agent {
	tb.Helper()
	dir, err := filepath.Abs("testdata")
	if err != nil {
		tb.Fatal(err)
	}
	return command.Agent{
		Run: `sh "$ASSAY_AGENT_DIR/agent.sh"`, Files: ".", Dir: dir, Events: "events.jsonl", Env: map[string]string{"MODE": mode},
	}
}

func harness(driver func(testing.TB) sandbox.Driver) agenttest.Harness {
	edits := func(mode string, change func(*command.Agent, *agenttest.Case)) func(testing.TB) agenttest.Case {
		return func(tb testing.TB) agenttest.Case {
			a, c := playing(tb, mode), agenttest.Case{Changes: []string{"answer.txt"}, Tools: []string{"edit"}}
			if change != nil {
				change(&a, &c)
			}
			c.Agent = a
			return c
		}
	}
	return agenttest.Harness{Driver: driver, Cases: map[agenttest.Behaviour]func(testing.TB) agenttest.Case{
		agenttest.Works:   edits("works", func(_ *command.Agent, c *agenttest.Case) { c.Reply = "finished" }),
		agenttest.Fails:   edits("fails", nil),
		agenttest.Hangs:   edits("hangs", nil),
		agenttest.Digests: edits("digest", nil),
		agenttest.ReadsSecret: edits("secret", func(a *command.Agent, _ *agenttest.Case) {
			a.SecretEnv = []string{"AGENT_KEY", "OTHER_KEY"}
		}),
		agenttest.ReportsUsage: edits("usage", func(_ *command.Agent, c *agenttest.Case) {
			c.Usage = &agent.Usage{InputTokens: num(12), CacheReadTokens: num(400), OutputTokens: num(7)}
		}),
		agenttest.LosesCall: edits("loses", nil),
		agenttest.Junk:      edits("junk", func(_ *command.Agent, c *agenttest.Case) { c.Unknown = "brand-new-event" }),
		agenttest.HalfLine:  edits("half", nil),
		agenttest.HugeLine:  edits("huge", nil),
		agenttest.Missing: edits("works", func(a *command.Agent, c *agenttest.Case) {
			a.Probe, a.Install = "cat /tmp/installed", []string{"echo 1.2.3 >/tmp/installed", "true"}
			c.Reply = "finished"
		}),
		agenttest.Absent: edits("works", func(a *command.Agent, _ *agenttest.Case) {
			a.Probe, a.Install = "cat /tmp/installed", []string{"echo nothing useful"}
		}),
	}}
}

func fakeDriver(tb testing.TB) sandbox.Driver {
	tb.Helper()
	p := fake.New(fake.Script{})
	d, err := p.Create(context.Background(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = d.Stop(context.Background()) })
	return d
}

func TestPromisesInAFake(t *testing.T) { agenttest.Run(t, harness(fakeDriver)) }

func TestPromisesInAFakeWithoutEvents(t *testing.T) {
	h := harness(fakeDriver)
	for _, b := range []agenttest.Behaviour{agenttest.ReportsUsage, agenttest.LosesCall, agenttest.Junk, agenttest.HalfLine, agenttest.HugeLine, agenttest.Fails} {
		delete(h.Cases, b)
	}
	for b, mk := range h.Cases {
		h.Cases[b] = func(tb testing.TB) agenttest.Case {
			c := mk(tb)
			a := c.Agent.(command.Agent)
			a.Events, c.Tools = "", nil
			if a.Env["MODE"] == "works" {
				a.Env = map[string]string{"MODE": "plain"}
			}
			c.Agent = a
			return c
		}
	}
	agenttest.Run(t, h)
}

func TestPromisesInDocker(t *testing.T) {
	_, host := testreq.Engine(t)
	image := testimage.Slice(t)
	t.Setenv("ASSAY_GUEST", guesttest.Build(t))
	p := docker.New(docker.Options{Host: host})
	t.Cleanup(func() { _ = p.Close() })
	template := sandbox.Template{Provider: p, Spec: docker.Spec{Image: image}}
	from, err := p.Prepare(t.Context(), template, sandbox.Harness{}, once{})
	if err != nil {
		t.Fatal(err)
	}
	agenttest.Run(t, harness(func(tb testing.TB) sandbox.Driver {
		d, err := p.Create(context.Background(), sandbox.CreateRequest{
			From: from, Template: template, Network: sandbox.Network{Mode: "none"}, Notes: sandbox.Quiet{},
			Owner: sandbox.Owner{Invocation: ref.NewInvocation(), Run: ref.NewRun(), Attempt: ref.NewAttempt(), PID: os.Getpid(), Token: ref.New()},
		})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := d.Stop(context.Background()); err != nil {
				tb.Error(err)
			}
		})
		return d
	}))
}

type once struct{}

func (once) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

// session starts an attempt of an agent in a fake.
func session(t *testing.T, a command.Agent) *agent.Session {
	t.Helper()
	s := &agent.Session{Number: 1, Sandbox: sandbox.New(fakeDriver(t), sandbox.Options{}), Scratch: "/tmp/.s-1", Notes: sandbox.Quiet{}}
	if _, err := a.Ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t *testing.T, a command.Agent, s *agent.Session, in agent.Input) agent.Turn {
	t.Helper()
	turn, err := a.Send(t.Context(), s, in)
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func TestEventsThatWereThereBeforeAreNotTheAgents(t *testing.T) {
	a := playing(t, "works")
	s := session(t, a)
	if err := s.Sandbox.WriteText(t.Context(), "events.jsonl", `{"type":"operation.started","id":"old","name":"old"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for _, e := range send(t, a, s, agent.Input{Turn: 1}).Events {
		if e.ID == "old" {
			t.Errorf("an event from before the turn is reported: %+v", e)
		}
	}
}

func TestEventsFileBegunAnew(t *testing.T) {
	a := playing(t, "anew")
	s := session(t, a)
	if turn := send(t, a, s, agent.Input{Turn: 1}); len(turn.Events) != 3 || turn.Coverage.Actions != agent.Complete {
		t.Errorf("the first turn is %+v", turn)
	}
	// The same bytes again may be old or new, and nobody claims to know.
	if turn := send(t, a, s, agent.Input{Turn: 2}); turn.Coverage == nil || turn.Coverage.Actions != agent.Partial {
		t.Errorf("the second turn is %+v with the coverage %+v", turn, turn.Coverage)
	}
	b := playing(t, "usage")
	b.Run = `rm -f "$ASSAY_EVENTS_FILE"; ` + b.Run
	if turn := send(t, b, s, agent.Input{Turn: 3}); turn.Usage == nil || *turn.Usage.InputTokens != 12 {
		t.Errorf("a file that was begun anew was not read from its start: %+v", turn)
	}
}

func TestFilesOfAMessage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a note.txt")
	if err := os.WriteFile(file, []byte("read me"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := playing(t, "files")
	s := session(t, a)
	if turn := send(t, a, s, agent.Input{Turn: 1, Files: []string{file}}); turn.Message != "read me" {
		t.Errorf("the reply is %q", turn.Message)
	}
	_, err := a.Send(t.Context(), s, agent.Input{Turn: 2, Files: []string{file + ".missing"}})
	var se *agent.SendError
	if !errors.As(err, &se) || se.Acceptance != agent.Rejected {
		t.Errorf("a file that does not exist gave %v", err)
	}
}

// Files of different folders with one name do not overwrite each other.
func TestFilesWithOneName(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"a/n.txt", "b/n.txt", "c/n-2.txt", "d/n.txt"} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, p)
	}
	a := command.Agent{Run: `cd "$ASSAY_FILES_DIR" && for f in *; do echo "$f=$(cat "$f")"; done`}
	turn := send(t, a, session(t, a), agent.Input{Turn: 1, Files: files})
	if want := "n-2.txt=c/n-2.txt\nn-3.txt=b/n.txt\nn-4.txt=d/n.txt\nn.txt=a/n.txt"; turn.Message != want {
		t.Errorf("%q, want %q", turn.Message, want)
	}
}

func TestEnvironment(t *testing.T) {
	a := playing(t, "env")
	a.Env["EXTRA"] = "x y"
	s := session(t, a)
	s.Model, s.ReasoningEffort, s.Number = "big-1", "high", 2
	got := strings.Split(send(t, a, s, agent.Input{Turn: 4}).Message, "\n")
	for _, want := range []string{
		"ASSAY_AGENT_DIR=/tmp/.s-1/agent", "ASSAY_EVENTS_FILE=" + s.Sandbox.Path("events.jsonl"), "ASSAY_MODEL=big-1",
		"ASSAY_PROMPT_FILE=/tmp/.s-1/prompt-4.txt", "ASSAY_REASONING_EFFORT=high", "ASSAY_SESSION=2", "ASSAY_TURN=4", "EXTRA=x y",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in the environment %q", want, got)
		}
	}
}

func TestEnsure(t *testing.T) {
	for _, c := range []struct {
		name, probe string
		install     []string
		version     string
		code        string
	}{
		{"no probe, no install", "", nil, "", ""},
		{"there", "echo '  2.0.1 (build 7)'; echo more", []string{"exit 9"}, "2.0.1 (build 7)", ""},
		{"installed", "cat /tmp/v", []string{"echo 3 >/tmp/v"}, "3", ""},
		{"no probe installs every time", "", []string{"echo x >>/tmp/v"}, "", ""},
		{"absent", "false", nil, "", "agent-ensure-failed"},
		{"install does not help", "false", []string{"true"}, "", "agent-ensure-failed"},
		{"install fails", "false", []string{"exit 9", "touch /tmp/never"}, "", "agent-install-failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &agent.Session{Sandbox: sandbox.New(fakeDriver(t), sandbox.Options{}), Scratch: "/tmp/.s-1", Notes: sandbox.Quiet{}}
			got, err := command.Agent{Run: "true", Probe: c.probe, Install: c.install}.Ensure(t.Context(), s)
			if fault.CodeOf(err) != c.code || got.Version != c.version {
				t.Errorf("got %+v and %v, want version %q and code %q", got, err, c.version, c.code)
			}
			if ok, err := s.Sandbox.PathExists(t.Context(), "/tmp/never"); ok || err != nil {
				t.Errorf("an install command ran after one had failed (%v)", err)
			}
		})
	}
}

func TestDefinitionRefusesWhatCannotWork(t *testing.T) {
	d := command.Definition()
	for _, c := range []struct {
		a    command.Agent
		code string
	}{
		{command.Agent{}, "agent-command-run-missing"},
		{command.Agent{Run: " \n"}, "agent-command-run-missing"},
		{command.Agent{Run: "x", Env: map[string]string{"PATH": "/x"}}, "command-path-managed"},
		{command.Agent{Run: "x", Events: "../out.jsonl"}, "agent-command-events"},
		{command.Agent{Run: "x", Events: "."}, "agent-command-events"},
		{command.Agent{Run: "x", Events: "a/../b.jsonl"}, ""},
		{command.Agent{Run: "x", Events: "/tmp/e"}, ""},
	} {
		o := c.a
		_, err := d.Agent(&o, "/dir")
		if fault.CodeOf(err) != c.code {
			t.Errorf("%+v: %v, want the code %q", c.a, err, c.code)
		}
		if c.code != "" && (fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "") {
			t.Errorf("%+v: the error %v is not the user's to fix", c.a, err)
		}
	}
}

// A turn that a limit ended still tells what was done and used; one that was
// interrupted is not looked at.
func TestEventsOfATurnThatRanOutOfTime(t *testing.T) {
	line := `{"type":"operation.started","id":"1","name":"edit","usage":{"inputTokens":5,"costUSD":0.5}}`
	a := command.Agent{Run: "echo '" + line + "' >>events.jsonl; sleep 3600", Events: "events.jsonl"}
	for name, c := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		want int
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return fault.WithTimeout(ctx, "attempt-deadline", time.Minute, "flag")
		}, 1},
		"interrupt": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Minute, cancel)
			return ctx, cancel
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := c.end(t.Context())
				defer cancel()
				d := fakeDriver(t)
				s := &agent.Session{Number: 1, Sandbox: sandbox.New(d, sandbox.Options{}), Scratch: "/tmp/.s-1", Notes: sandbox.Quiet{}}
				_, err := a.Send(ctx, s, agent.Input{Turn: 1, Text: "go"})
				var se *agent.SendError
				if !errors.As(err, &se) || len(se.Events) != c.want || (se.Usage != nil) != (c.want > 0) {
					t.Fatalf("error %v with %+v", err, se)
				}
				if err := d.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
