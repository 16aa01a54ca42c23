// Package command is the agent for any command-line program: it is run once per
// turn in the workdir with the prompt on its standard input and in a file, and
// what it prints is its reply.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"assay/agent"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Agent runs a program. Only Run is needed.
type Agent struct {
	// Run is a shell script, run once per turn. It finds the prompt on its
	// standard input and in the file $ASSAY_PROMPT_FILE.
	Run string `yaml:"run" json:"run"`
	// Probe succeeds when the program is there. Install runs when it fails, and
	// before every attempt where there is no Probe.
	Probe   string   `yaml:"probe" json:"probe,omitempty"`
	Install []string `yaml:"install" json:"install,omitempty"`
	// Events names a file of event lines that the program writes, read after
	// each turn; relative to the workdir, and never part of the diff.
	Events string `yaml:"events" json:"events,omitempty"`
	// Files is a host folder that is put beside the agent, outside the workdir,
	// as $ASSAY_AGENT_DIR.
	Files string            `yaml:"files" json:"files,omitempty"`
	Env   map[string]string `yaml:"env" json:"env,omitempty"`
	// SecretEnv names host variables that the program gets.
	SecretEnv []string `yaml:"secretEnv" json:"secretEnv,omitempty"`
	// Dir is the host folder that Files is relative to.
	Dir string `yaml:"-" json:"-"`
}

// Definition lets YAML name the agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name:    "command",
		Summary: "any command-line program, run once per turn",
		Options: func() any { return new(Agent) },
		Agent: func(options any, dir string) (agent.Agent, error) {
			a := *options.(*Agent)
			a.Dir = dir
			return a, a.validate()
		},
		Remedy: "The program must be in the sandbox; `probe` and `install` can put it there.",
	}
}

func (a Agent) validate() error {
	if strings.TrimSpace(a.Run) == "" {
		return fault.Configf("agent-command-run-missing", "Give the agent's command as `run:`.", "the command agent has no command to run")
	}
	if _, ok := a.Env["PATH"]; ok {
		return fault.Configf("command-path-managed", "Use `path:` of the sandbox.", "PATH is managed by the sandbox and cannot be set for the agent")
	}
	return nil
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	info := agent.Info{
		Name: "command", Identity: a, SecretEnv: slices.Clone(a.SecretEnv),
		Harness:  sandbox.Harness{},
		Coverage: agent.Coverage{Messages: agent.Complete, Status: agent.Complete},
	}
	if a.Events != "" {
		info.Coverage.Events, info.Coverage.Actions, info.Coverage.Usage = agent.Complete, agent.Complete, agent.Complete
		if !path.IsAbs(a.Events) {
			info.Artifacts = []string{path.Clean(a.Events)}
		}
	}
	return info
}

func (a Agent) env(s *agent.Session) map[string]string {
	env := maps.Clone(a.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, s.Secrets)
	if a.Files != "" {
		env["ASSAY_AGENT_DIR"] = path.Join(s.Scratch, "agent")
	}
	if s.Model != "" {
		env["ASSAY_MODEL"] = s.Model
	}
	if s.ReasoningEffort != "" {
		env["ASSAY_REASONING_EFFORT"] = s.ReasoningEffort
	}
	return env
}

func secrets(s *agent.Session) []string { return slices.Collect(maps.Values(s.Secrets)) }

// Ensure puts the agent's files in place, then probes for the program, installs
// it when the probe fails, and probes again.
func (a Agent) Ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	if err := a.validate(); err != nil {
		return agent.Installed{}, err
	}
	if a.Files != "" {
		src := a.Files
		if !filepath.IsAbs(src) {
			src = filepath.Join(a.Dir, src)
		}
		if err := s.Sandbox.UploadDirectory(ctx, src, path.Join(s.Scratch, "agent")); err != nil {
			return agent.Installed{}, fault.Wrap(err, fault.Unknown, "agent-files", "put the agent's files in place")
		}
	}
	opts := sandbox.CommandOptions{Env: a.env(s), Sensitive: secrets(s)}
	probe := func() (sandbox.Result, bool, error) {
		res, err := s.Sandbox.RunShell(ctx, a.Probe, opts)
		return res, err == nil && res.Code == 0, err
	}
	if a.Probe != "" {
		if res, ok, err := probe(); err != nil || ok {
			return installed(res), err
		}
	}
	for _, c := range a.Install {
		if _, err := s.Sandbox.RunShellOrThrow(ctx, c, opts); err != nil {
			return agent.Installed{}, fault.Wrap(err, fault.ClassOf(err), "agent-install-failed", "install the agent")
		}
	}
	if a.Probe == "" {
		return agent.Installed{}, nil
	}
	res, ok, err := probe()
	if err != nil {
		return agent.Installed{}, err
	}
	if !ok {
		what := "after its installation"
		if len(a.Install) == 0 {
			what = "and no `install:` is given"
		}
		return agent.Installed{}, &fault.Error{Code: "agent-ensure-failed", What: fmt.Sprintf("the agent's program is not there %s: the probe %q gave exit %d: %s", what, a.Probe, res.Code, sandbox.Tail(res.Stderr+res.Stdout, 240)), Fix: "Put the program into the image, or correct `probe:` and `install:`."}
	}
	return installed(res), nil
}

// installed takes the first line that a probe printed as the version.
func installed(res sandbox.Result) agent.Installed {
	line, _, _ := strings.Cut(strings.TrimSpace(res.Stdout), "\n")
	return agent.Installed{Version: sandbox.Tail(line, 120)}
}

// replyLimit bounds the reply, in bytes.
const replyLimit = 1 << 20

// Send runs the program once. A non-zero exit is a failed turn.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	name := fmt.Sprintf("prompt-%d.txt", in.Turn)
	files := []archive.File{{Name: name, Body: []byte(in.Text)}}
	if err := s.Sandbox.WriteFiles(ctx, s.Scratch, files...); err != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: err}
	}
	env := a.env(s)
	env["ASSAY_PROMPT_FILE"] = path.Join(s.Scratch, name)
	env["ASSAY_TURN"], env["ASSAY_SESSION"] = fmt.Sprint(in.Turn), fmt.Sprint(s.Number)
	if a.Events != "" {
		env["ASSAY_EVENTS_FILE"] = s.Sandbox.Path(a.Events)
	}
	res, err := s.Sandbox.RunShell(ctx, a.Run, sandbox.CommandOptions{
		Env: env, Stdin: strings.NewReader(in.Text), OutputLimit: 2 * replyLimit, Sensitive: secrets(s), Label: "agent turn",
	})
	if err == nil && res.OOM {
		err = &fault.Error{Class: fault.Resource, Code: "oom", What: "the agent was ended because memory ran out", Fix: "Raise `resources: {memory: …}` of the sandbox."}
	}
	events, coverage, readErr := a.events(ctx, s)
	if err != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: err, Events: events}
	}
	if readErr != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: readErr}
	}
	code := res.Code
	turn := agent.Turn{Status: agent.Completed, Message: strings.TrimRight(res.Stdout, "\n"), Events: events, Coverage: coverage, Exit: &code}
	for _, e := range events {
		turn.Usage = turn.Usage.Add(e.Usage)
	}
	if code != 0 {
		turn.Status, turn.Reason = agent.Failed, fmt.Sprintf("exit %d: %s", code, sandbox.Tail(res.Stderr, 240))
	}
	if a.Events == "" || !slices.ContainsFunc(events, func(e agent.Event) bool { return e.Type == agent.MessageEvent }) {
		turn.Events = append(turn.Events, agent.Event{Type: agent.MessageEvent, Role: "assistant", Text: turn.Message})
	} else {
		for _, e := range events {
			if e.Type == agent.MessageEvent && e.Role != "user" {
				turn.Message = e.Text
			}
		}
	}
	return turn, nil
}

// read is how far the events file was read, in bytes.
type read struct{ offset int }

type readKey struct{}

// events returns the lines that were added since the last turn.
func (a Agent) events(ctx context.Context, s *agent.Session) ([]agent.Event, *agent.Coverage, error) {
	if a.Events == "" {
		return nil, nil, nil
	}
	if ctx.Err() != nil {
		return nil, nil, nil
	}
	body, err := s.Sandbox.ReadBytes(ctx, a.Events)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &agent.Coverage{Messages: agent.Complete, Status: agent.Complete}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the agent's events: %w", err)
	}
	r := agent.Value(s, readKey{}, func() *read { return &read{} })
	if len(body) < r.offset { // the program began the file anew
		r.offset = 0
	}
	events, bad, _ := agent.ReadEvents(bytes.NewReader(body[r.offset:]))
	r.offset = len(body)
	if bad > 0 {
		s.Notes.Diagnostic(sandbox.Diagnostic{Code: "agent-events-bad-lines", Level: sandbox.Warning, Message: fmt.Sprintf("%d lines of the agent's events file are no events", bad), DedupeKey: "agent-events-bad-lines"})
		c := a.Info().Coverage
		c.Events, c.Actions, c.Usage = agent.Partial, agent.Partial, agent.Partial
		return events, &c, nil
	}
	return events, nil, nil
}

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
)
