// Package command is the agent for any command-line program: it is run once per
// turn in the workdir with the prompt on its standard input and in a file, and
// what it prints is its reply.
package command

import (
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Agent runs a program. Only Run is needed.
type Agent struct {
	// Run is a shell script, run once per turn. It finds the prompt on its
	// standard input and in the file $ASSAY_PROMPT_FILE, and files that were
	// given with the message in $ASSAY_FILES_DIR.
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
	if e := path.Clean(a.Events); a.Events != "" && (e == "." || e == ".." || strings.HasPrefix(e, "../")) {
		return fault.Configf("agent-command-events", "Name a file below the workdir, or an absolute one.", "the events file %q is outside the workdir", a.Events)
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
	if a.Files != "" {
		info.Files = []string{a.Files}
		if !filepath.IsAbs(a.Files) {
			info.Files[0] = filepath.Join(a.Dir, a.Files)
		}
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
	given := path.Join(s.Scratch, fmt.Sprintf("files-%d", in.Turn))
	for i, name := range coding.FileNames(in.Files) {
		if err := s.Sandbox.UploadFile(ctx, in.Files[i], path.Join(given, name)); err != nil {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: err}
		}
	}
	env := a.env(s)
	env["ASSAY_PROMPT_FILE"] = path.Join(s.Scratch, name)
	env["ASSAY_TURN"], env["ASSAY_SESSION"] = fmt.Sprint(in.Turn), fmt.Sprint(s.Number)
	if len(in.Files) > 0 {
		env["ASSAY_FILES_DIR"] = given
	}
	if a.Events != "" {
		env["ASSAY_EVENTS_FILE"] = s.Sandbox.Path(a.Events)
		if err := a.skipOld(ctx, s); err != nil {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Err: err}
		}
	}
	res, err := s.Sandbox.RunShell(ctx, a.Run, sandbox.CommandOptions{
		Env: env, Stdin: strings.NewReader(in.Text), OutputLimit: 2 * replyLimit, Sensitive: secrets(s), Label: "agent turn",
	})
	if err == nil && res.OOM {
		err = &fault.Error{Class: fault.Resource, Code: "oom", What: "the agent was ended because memory ran out", Fix: "Raise `resources: {memory: …}` of the sandbox."}
	}
	events, coverage, readErr := a.events(ctx, s)
	if err == nil {
		err = readErr
	}
	var usage *agent.Usage
	for _, e := range events {
		usage = usage.Add(e.Usage)
	}
	if err != nil {
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: err, Events: events, Usage: usage}
	}
	code := res.Code
	if (code == 126 || code == 127) && len(events) == 0 {
		// The shell's own word that the program did not run: there was no turn.
		return agent.Turn{}, &agent.SendError{Acceptance: agent.Rejected, Exit: &code, Err: &fault.Error{Class: fault.Config, Code: "agent-not-runnable", What: fmt.Sprintf("the agent's program could not run: exit %d: %s", code, sandbox.Tail(res.Stderr, 240)), Fix: "Put the program into the sandbox; `probe:` and `install:` of the agent find that out before the first turn."}}
	}
	turn := agent.Turn{Status: agent.Completed, Message: strings.TrimRight(res.Stdout, "\n"), Events: events, Usage: usage, Coverage: coverage, Exit: &code}
	if code != 0 {
		turn.Status, turn.Reason = agent.Failed, fmt.Sprintf("exit %d: %s", code, sandbox.Tail(res.Stderr, 240))
	}
	said := false
	for _, e := range events {
		if e.Type == agent.MessageEvent {
			turn.Message, said = e.Text, true
		}
	}
	if !said {
		turn.Events = append(turn.Events, agent.Event{Type: agent.MessageEvent, Role: "assistant", Text: turn.Message})
	}
	return turn, nil
}

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
)
