// Package bub drives Bub, one `bub run` process per turn, and reads the tape
// that it keeps of each session. Bub cannot be installed where this package is
// tested, so it is held to recorded tapes and to a stand-in; see
// docs/agents/bub.md.
package bub

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Version is the version that is used when none is given.
const Version = "0.4.0"

// Agent is Bub.
type Agent struct {
	Version string `yaml:"version" json:"version" doc:"The exact version; default 0.4.0."`
	Install string `yaml:"install" json:"install,omitempty" enum:"never,uv" doc:"never (default): it must be in the image; uv: uv tool install when it is not."`

	OTelPlugin    string   `yaml:"otelPlugin" json:"otelPlugin,omitempty" doc:"The telemetry plugin, as name==version; a part of the install's fingerprint."`
	PythonPlugins []string `yaml:"pythonPlugins" json:"pythonPlugins,omitempty" doc:"Further Python plugins, as name==version; a part of the install's fingerprint."`

	APIKeyEnv  string                  `yaml:"apiKeyEnv" json:"apiKeyEnv,omitempty" format:"env" doc:"The host variable with the key; default BUB_API_KEY."`
	BaseURL    string                  `yaml:"baseUrl" json:"baseUrl,omitempty" format:"url" doc:"The address of the model's service, with /v1 (BUB_API_BASE)."`
	BaseURLEnv string                  `yaml:"baseUrlEnv" json:"-" format:"env" doc:"A host variable that holds the address where it is set; baseUrl counts where it is not."`
	Env        map[string]string       `yaml:"env" json:"env,omitempty" doc:"Further variables of the CLI and of what it runs."`
	SecretEnv  []string                `yaml:"secretEnv" json:"secretEnv,omitempty" format:"env" doc:"Further host variables that the CLI gets."`
	Prices     map[string]coding.Price `yaml:"prices" json:"prices,omitempty" doc:"USD per million tokens, by model, where the agent reports no cost."`

	PostSetup   []string `yaml:"postSetup" json:"postSetup,omitempty" doc:"Commands after everything is installed."`
	PreTeardown []string `yaml:"preTeardown" json:"preTeardown,omitempty" doc:"Commands before it is taken away."`
}

// Definition lets YAML name the agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name: "bub", Summary: "Bub " + Version,
		Options: func() any { return new(Agent) },
		Agent: func(options any, _ string) (agent.Agent, error) {
			a := *options.(*Agent)
			a.BaseURL = coding.BaseURL(a.BaseURL, a.BaseURLEnv)
			return a, a.validate()
		},
		Remedy: "BUB_API_KEY, and an image with bub and its plugins (`uv tool install`).",
	}
}

func (a Agent) validate() error {
	for _, p := range a.plugins() {
		name, version, ok := strings.Cut(p, "==")
		if !ok || name == "" || version == "" || strings.ContainsAny(p, " \t\n;'\"") || strings.HasPrefix(p, "-") {
			return fault.Configf("agent-plugin-name", "Write it as name==version.", "the Python plugin %q has no exact version", p)
		}
	}
	return coding.CheckEnv(a.Env)
}

func (a Agent) plugins() []string {
	all := slices.Clone(a.PythonPlugins)
	if a.OTelPlugin != "" {
		all = append(all, a.OTelPlugin)
	}
	slices.Sort(all)
	return all
}

func (a Agent) version() string {
	if a.Version != "" {
		return a.Version
	}
	return Version
}

func (a Agent) keyEnv() string {
	if a.APIKeyEnv != "" {
		return a.APIKeyEnv
	}
	return "BUB_API_KEY"
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	identity := a
	identity.Version = a.version()
	return agent.Info{
		Name: "bub", Version: a.version(), Identity: identity, SecretEnv: append([]string{a.keyEnv()}, a.SecretEnv...), Coverage: coverage(),
		Harness: sandbox.Harness{Name: "bub", Version: a.version()},
	}
}

func coverage() agent.Coverage {
	return agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete}
}

// fingerprint prints what is installed beside the command: name==version of
// each distribution that is asked for, by the interpreter that runs it.
const fingerprint = `b=$(command -v bub) || exit 3
p=$(sed -n '1s/^#! *//p' "$b")
[ -n "$p" ] || exit 4
$p - "$@" <<'PY'
import importlib.metadata as m, sys
for n in sys.argv[1:]:
    try: print(n + "==" + m.version(n))
    except m.PackageNotFoundError: print(n + "==absent")
PY`

// Ensure verifies the fingerprint of the install: the presence of the command
// is not enough.
func (a Agent) Ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	if err := a.validate(); err != nil {
		return agent.Installed{}, err
	}
	want := append([]string{"bub==" + a.version()}, a.plugins()...)
	have, err := a.look(ctx, s, want)
	if err != nil {
		return agent.Installed{}, err
	}
	if !slices.Equal(have, want) && a.Install == "uv" {
		argv := []string{"uv", "tool", "install", "--force", want[0]}
		for _, p := range a.plugins() {
			argv = append(argv, "--with", p)
		}
		if _, err := s.Sandbox.RunCommandOrThrow(ctx, argv, sandbox.CommandOptions{Env: map[string]string{"CI": "1"}, Label: "install bub"}); err != nil {
			return agent.Installed{}, fault.Wrap(err, fault.ClassOf(err), "agent-install-failed", "install bub")
		}
		if have, err = a.look(ctx, s, want); err != nil {
			return agent.Installed{}, err
		}
	}
	if !slices.Equal(have, want) {
		return agent.Installed{}, &fault.Error{
			Class: fault.Config, Code: "agent-fingerprint-mismatch",
			What: fmt.Sprintf("bub with %s is expected, the sandbox has %s", strings.Join(want, ", "), strings.Join(have, ", ")),
			Fix:  "Put exactly these into the image with `uv tool install`, or set `install: uv`.",
		}
	}
	return agent.Installed{Version: a.version(), Details: map[string]any{"fingerprint": have}}, nil
}

func (a Agent) look(ctx context.Context, s *agent.Session, want []string) ([]string, error) {
	shell, err := s.Sandbox.Shell(ctx)
	if err != nil {
		return nil, err
	}
	argv := append(shell, "-c", fingerprint, "sh")
	for _, w := range want {
		name, _, _ := strings.Cut(w, "==")
		argv = append(argv, name)
	}
	res, err := s.Sandbox.RunCommand(ctx, argv, sandbox.CommandOptions{Label: "look at bub and its plugins"})
	if err != nil {
		return nil, err
	}
	if res.Code != 0 {
		return []string{"no bub"}, nil
	}
	return strings.Fields(res.Stdout), nil
}

func (a Agent) home(s *agent.Session) string { return path.Join(s.Scratch, "bub") }

func (a Agent) env(s *agent.Session) map[string]string {
	env := map[string]string{"BUB_HOME": a.home(s)}
	if s.Model != "" {
		env["BUB_MODEL"] = s.Model
		if a.BaseURL != "" && !strings.Contains(s.Model, ":") {
			env["BUB_MODEL"] = "openai:" + s.Model
		}
	}
	if a.BaseURL != "" {
		env["BUB_API_BASE"] = a.BaseURL
	}
	for _, name := range a.SecretEnv {
		if v, ok := s.Secrets[name]; ok {
			env[name] = v
		}
	}
	if v, ok := s.Secrets[a.keyEnv()]; ok {
		env["BUB_API_KEY"] = v
	}
	maps.Copy(env, a.Env)
	return env
}

// Setup makes the attempt's own home.
func (a Agent) Setup(ctx context.Context, s *agent.Session) error {
	if err := s.Sandbox.WriteFiles(ctx, a.home(s), archive.File{Name: ".keep", Mode: 0o600}); err != nil {
		return err
	}
	var items []coding.Item
	for _, p := range a.plugins() {
		name, version, _ := strings.Cut(p, "==")
		items = append(items, coding.Item{Kind: "plugin", Name: name, Version: version})
	}
	if err := coding.Hooks(ctx, s, a.PostSetup, a.env(s)); err != nil {
		return err
	}
	return coding.Manifest(s, items)
}

// Teardown runs the author's commands and removes the home.
func (a Agent) Teardown(ctx context.Context, s *agent.Session) error {
	if err := coding.Hooks(ctx, s, a.PreTeardown, a.env(s)); err != nil {
		return err
	}
	_, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"rm", "-rf", "--", a.home(s)})
	return err
}

// conversation is what is kept with a session: how far its tape was read.
type conversation struct {
	id     string
	offset int
	turns  int
}

type conversationKey struct{}

// maxArgument is the longest message: Bub takes it as an argument only.
const maxArgument = 96 << 10

// Send runs one turn.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	c := agent.Value(s, conversationKey{}, func() *conversation { return &conversation{id: "s" + strconv.Itoa(s.Number)} })
	message, err := coding.Message(ctx, s, in)
	if err == nil && len(message) > maxArgument {
		err = &agent.SendError{Acceptance: agent.Rejected, Err: fault.Configf("agent-message-too-long", "Put the text into a file of the eval and name it in the message.", "the message has %d bytes, Bub takes at most %d", len(message), maxArgument)}
	}
	if err != nil {
		return agent.Turn{}, err
	}
	out := &stdout{script: &coding.Transcript{}}
	ran := coding.Run(ctx, s, coding.Process{
		Argv: []string{"bub", "--workspace", s.Sandbox.Workdir(), "run", "--session-id", c.id, "--", message}, Env: a.env(s),
		Label: "bub, turn " + strconv.Itoa(in.Turn), Stall: -1, // it says nothing until it ends
	}, out)
	p := newParser()
	if ctx.Err() == nil {
		body, err := s.Sandbox.ReadBytes(ctx, tape(a.home(s), s.Sandbox.Workdir(), c.id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return agent.Turn{}, &agent.SendError{Acceptance: agent.Started, Err: err, Exit: ran.Exit}
		}
		if len(body) < c.offset {
			c.offset = 0 // the tape was begun anew
		}
		p.read(body[c.offset:])
		c.offset = len(body)
	}
	end := p.end(ran)
	model := s.Model[strings.LastIndexByte(s.Model, ':')+1:]
	coding.Cost(end.Usage, model, a.Prices)
	turn, err := coding.Conclude(s, "Bub", coverage(), ran, p.script, end, c.turns == 0)
	if err == nil {
		c.turns++
	}
	return turn, err
}

// tape is the file that Bub keeps of a session: named by the first halves of
// the MD5 sums of the workspace and of the session's id.
func tape(home, workspace, session string) string {
	half := func(s string) string {
		sum := md5.Sum([]byte(s))
		return hex.EncodeToString(sum[:8])
	}
	return path.Join(home, "tapes", half(workspace)+"__"+half(session)+".jsonl")
}

// stdout takes what Bub prints for people; the tape is what counts.
type stdout struct{ script *coding.Transcript }

func (o *stdout) Line([]byte)                {}
func (o *stdout) Ended() bool                { return false }
func (o *stdout) Abort() error               { return nil }
func (o *stdout) Script() *coding.Transcript { return o.script }

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
	_ agent.Starter = Agent{}
)
