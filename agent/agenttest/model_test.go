package agenttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"

	"assay/agent"
	"assay/agent/agenttest"
	"assay/fault"
	"assay/sandbox"
)

// model is an agent that keeps every promise, with places where it can be made
// to break one.
type model struct {
	does agenttest.Behaviour

	info    func(*agent.Info)
	before  func(*context.Context, *agent.Session, *agent.Input)
	after   func(*model, *agent.Turn, *error)
	ensured func(*agent.Installed, *error)
	seen    atomic.Pointer[agent.Session]

	orphan, hoard, perSession, onArgv, secretArg           bool
	alwaysInstall, neverInstall, setupOnce, strictTeardown bool
}

// The programs: they read the message from standard input and write events.
var programs = map[agenttest.Behaviour]string{
	agenttest.Works:        `edit; printf finished`,
	agenttest.Missing:      `edit; printf finished`,
	agenttest.Fails:        `edit; echo 'cannot do it' >&2; exit 3`,
	agenttest.Hangs:        `setsid sh -c 'while :; do sleep 1; done' & touch started; sleep 3600`,
	agenttest.Digests:      `sha256sum | cut -d' ' -f1`,
	agenttest.ReadsSecret:  `printf %s "$AGENT_KEY" | sha256sum | cut -d' ' -f1`,
	agenttest.ReportsUsage: `ev '{"type":"usage","usage":{"inputTokens":12,"cacheReadTokens":400,"outputTokens":7}}'; edit`,
	agenttest.LosesCall:    `ev '{"type":"operation.started","id":"1","name":"bash"}'`,
	agenttest.Junk:         `ev warning; ev '{"type":"brand-new-event"}'; edit`,
	agenttest.HalfLine:     `edit; printf '{"type":"mess' >>$EVENTS`,
	agenttest.HugeLine:     `{ printf '{"type":"message","text":"'; head -c 9000000 /dev/zero | tr '\0' x; printf '"}\n'; } >>$EVENTS; edit`,
}

const prelude = `ev() { printf '%s\n' "$1" >>"$EVENTS"; }
edit() { ev '{"type":"operation.started","id":"1","name":"edit"}'; echo done >answer.txt; ev '{"type":"operation.finished","id":"1","status":"completed"}'; }
`

func (m *model) Info() agent.Info {
	i := agent.Info{
		Name: "model", Identity: map[string]string{"does": string(m.does)},
		Coverage: agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete},
	}
	if m.does == agenttest.ReadsSecret {
		i.SecretEnv = []string{"AGENT_KEY"}
	}
	if m.info != nil {
		m.info(&i)
	}
	return i
}

func (m *model) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	if m.before != nil {
		m.before(&ctx, s, &in)
	}
	turn, err := m.send(ctx, s, in)
	if m.after != nil {
		m.after(m, &turn, &err)
	}
	return turn, err
}

// send gives the program a file of events of its own for each turn.
func (m *model) send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	events := path.Join(s.Scratch, fmt.Sprintf("events-%d.jsonl", in.Turn))
	if m.hoard || m.perSession && s.Number == 2 {
		events = path.Join(s.Scratch, "events-1.jsonl")
	}
	if err := s.Sandbox.WriteText(ctx, path.Join(s.Scratch, "ready"), ""); err != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: err}
	}
	argv := []string{"/bin/sh", "-c", prelude + programs[m.does], "sh"}
	if m.onArgv {
		argv = append(argv, in.Text)
	}
	if m.secretArg {
		argv = append(argv, s.Secrets["AGENT_KEY"])
	}
	env := map[string]string{"EVENTS": events}
	for k, v := range s.Secrets {
		env[k] = v
	}
	if m.orphan {
		_, _ = s.Sandbox.RunShell(context.WithoutCancel(ctx), "setsid sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 &")
	}
	res, err := s.Sandbox.RunCommand(ctx, argv, sandbox.CommandOptions{Env: env, Stdin: strings.NewReader(in.Text)})
	if err != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.AcceptanceUnknown, Err: err}
	}
	body, err := s.Sandbox.ReadBytes(ctx, events)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: err}
	}
	got, bad, _ := agent.ReadEvents(bytes.NewReader(body))
	turn := agent.Turn{Status: agent.Completed, Message: strings.TrimSpace(res.Stdout), Events: got, Exit: &res.Code}
	c := m.Info().Coverage
	open := 0
	for _, e := range got {
		turn.Usage = turn.Usage.Add(e.Usage)
		switch e.Type {
		case agent.OperationStarted:
			open++
		case agent.OperationFinished:
			open--
		}
	}
	if turn.Usage == nil {
		c.Usage = agent.None
	}
	if open != 0 || bad > 0 {
		c.Actions = agent.Partial
	}
	if bad > 0 {
		c.Events, c.Usage = agent.Partial, agent.Partial
	}
	turn.Coverage = &c
	if res.Code != 0 {
		turn.Status, turn.Reason = agent.Failed, strings.TrimSpace(res.Stderr)
	}
	turn.Events = append(turn.Events, agent.Event{Type: agent.MessageEvent, Role: "assistant", Text: turn.Message})
	return turn, nil
}

func (m *model) Ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	i, err := m.ensure(ctx, s)
	if m.ensured != nil {
		m.ensured(&i, &err)
	}
	return i, err
}

func (m *model) ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	if m.does != agenttest.Missing && m.does != agenttest.Absent {
		_, err := s.Sandbox.RunCommand(ctx, []string{"true"})
		return agent.Installed{Version: "1"}, err
	}
	probe := func() (string, error) {
		res, err := s.Sandbox.RunCommand(ctx, []string{"cat", "/tmp/version"})
		return strings.TrimSpace(res.Stdout), err
	}
	v, err := probe()
	if err != nil || v != "" && !m.alwaysInstall {
		return agent.Installed{Version: v}, err
	}
	if m.does == agenttest.Missing && !m.neverInstall {
		if _, err := s.Sandbox.RunShellOrThrow(ctx, "echo 1 >/tmp/version"); err != nil {
			return agent.Installed{}, err
		}
	}
	if v, err = probe(); err == nil && v == "" {
		err = fault.Configf("agent-absent", "Install it.", "the agent is not there")
	}
	return agent.Installed{Version: v}, err
}

func (m *model) Setup(ctx context.Context, s *agent.Session) error {
	dir := path.Join(s.Scratch, "config")
	if m.setupOnce {
		if ok, err := s.Sandbox.PathExists(ctx, dir); ok || err != nil {
			return errors.New("it is there already")
		}
	}
	if err := s.Sandbox.WriteText(ctx, path.Join(dir, "a"), "x"); err != nil {
		return err
	}
	if m.does == agenttest.FailsSetup {
		return errors.New("the second file cannot be written")
	}
	return s.Sandbox.WriteText(ctx, path.Join(dir, "b"), "x")
}

func (m *model) Teardown(ctx context.Context, s *agent.Session) error {
	argv := []string{"rm", "-rf", "--", path.Join(s.Scratch, "config")}
	if m.strictTeardown {
		argv = []string{"rm", "--", path.Join(s.Scratch, "config", "b")}
	}
	_, err := s.Sandbox.RunCommandOrThrow(ctx, argv)
	return err
}
