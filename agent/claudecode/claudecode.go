// Package claudecode drives Claude Code, one process per turn, over its
// stream-json output. Its configuration is a folder of its own per attempt,
// outside the workdir; see docs/agents/claude-code.md.
package claudecode

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Version is the version that is used when none is given.
const Version = "2.1.207"

// Agent is Claude Code. The zero value is ready.
type Agent struct {
	Version string `yaml:"version" json:"version" doc:"The exact version; default 2.1.207."`
	Install string `yaml:"install" json:"install,omitempty" enum:"staged,sandbox,never" doc:"How a missing CLI is installed; default staged, else by npm in the sandbox."`

	APIKeyEnv  string            `yaml:"apiKeyEnv" json:"apiKeyEnv,omitempty" format:"env" doc:"The host variable with the key; default ANTHROPIC_API_KEY."`
	BaseURL    string            `yaml:"baseUrl" json:"baseUrl,omitempty" format:"url" doc:"The model service's address, without /v1."`
	BaseURLEnv string            `yaml:"baseUrlEnv" json:"-" format:"env" doc:"A host variable that holds the address where it is set; baseUrl counts where it is not."`
	Env        map[string]string `yaml:"env" json:"env,omitempty" doc:"Further variables of the CLI and of what it runs."`
	SecretEnv  []string          `yaml:"secretEnv" json:"secretEnv,omitempty" format:"env" doc:"Further host variables that the CLI gets."`

	MaxTurns           int                `yaml:"maxTurns" json:"maxTurns,omitempty" min:"0" doc:"The most model calls of a turn."`
	AppendSystemPrompt string             `yaml:"appendSystemPrompt" json:"appendSystemPrompt,omitempty" doc:"Text after the CLI's own system prompt."`
	Args               []string           `yaml:"args" json:"args,omitempty" doc:"Further arguments of the CLI."`
	AllowRoot          bool               `yaml:"allowRoot" json:"allowRoot,omitempty" doc:"Let it run as root, which the CLI refuses by itself (sets IS_SANDBOX=1)."`
	StallTimeout       time.Duration      `yaml:"stallTimeout" json:"stallTimeout,omitempty" doc:"The longest silence while no tool runs; default 10m."`
	MCPServers         []coding.MCPServer `yaml:"mcpServers" json:"mcpServers,omitempty" doc:"MCP servers for the agent."`
	Skills             []coding.Skill     `yaml:"skills" json:"skills,omitempty" doc:"Skills for the agent."`
	Plugins            []coding.Plugin    `yaml:"plugins" json:"plugins,omitempty" doc:"Native plugins, installed anew for every attempt."`
	SettingsFile       string             `yaml:"settingsFile" json:"settingsFile,omitempty" doc:"A settings.json of this project; model and env are reserved."`
	PostSetup          []string           `yaml:"postSetup" json:"postSetup,omitempty" doc:"Commands after everything is installed."`
	PreTeardown        []string           `yaml:"preTeardown" json:"preTeardown,omitempty" doc:"Commands before it is taken away."`
	// Dir is the host folder that relative paths start from.
	Dir string `yaml:"-" json:"-"`
}

// Definition lets YAML name the agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name: "claude-code", Summary: "Claude Code " + Version,
		Options: func() any { return new(Agent) },
		Agent: func(options any, dir string) (agent.Agent, error) {
			a := *options.(*Agent)
			a.Dir, a.BaseURL = dir, coding.BaseURL(a.BaseURL, a.BaseURLEnv)
			return a, a.validate()
		},
		Remedy: "ANTHROPIC_API_KEY, a user other than root in the sandbox, and the CLI in the image or npm on this host.",
	}
}

func (a Agent) validate() error {
	for _, err := range []error{coding.CheckEnv(a.Env), coding.CheckMCP(a.MCPServers), coding.CheckSkills(a.Skills), coding.CheckPlugins(a.Plugins)} {
		if err != nil {
			return err
		}
	}
	if a.SettingsFile != "" {
		_, err := a.settings()
		return err
	}
	return nil
}

// settings reads the settings file and refuses what is set elsewhere.
func (a Agent) settings() ([]byte, error) {
	body, _, err := coding.ConfigFile(a.Dir, a.SettingsFile)
	if err != nil {
		return nil, err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "agent-config-file", What: "read " + a.SettingsFile, Fix: "Write a JSON object.", Err: err}
	}
	for _, reserved := range []string{"model", "env"} {
		if _, ok := top[reserved]; ok {
			return nil, fault.Configf("agent-config-reserved", "Use the experiment's `model:` and the agent's `env:`.", "%s sets %q, which is not its to set", a.SettingsFile, reserved)
		}
	}
	return body, nil
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
	return "ANTHROPIC_API_KEY"
}

func (a Agent) cli() coding.CLI {
	return coding.CLI{
		Name: "claude-code", Command: "claude", Version: a.version(), Package: "@anthropic-ai/claude-code",
		Native: func(m coding.Machine) (string, string, bool) {
			libc := ""
			if m.Musl {
				libc = "-musl"
			}
			return "@anthropic-ai/claude-code-linux-" + m.Arch + libc + "@" + a.version(), "claude", true
		},
	}
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	identity := a
	identity.Version = a.version()
	return agent.Info{
		Name: "claude-code", Version: a.version(), Harness: a.cli().Harness(), Identity: identity,
		SecretEnv: append([]string{a.keyEnv()}, a.SecretEnv...), Coverage: coverage(), Telemetry: true,
		Files: coding.HostFiles(a.Dir, a.Skills, a.Plugins),
	}
}

func coverage() agent.Coverage {
	return agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete}
}

// Ensure finds or installs the pinned CLI, and says before any model is asked
// when it would refuse its user.
func (a Agent) Ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	if err := a.validate(); err != nil {
		return agent.Installed{}, err
	}
	f, err := a.cli().Ensure(ctx, s, a.Install)
	if err != nil {
		return agent.Installed{}, err
	}
	if f.Root && !a.AllowRoot {
		return agent.Installed{}, fault.Configf("agent-root-refused", "Set `user:` of the sandbox to a user other than root, or the agent's `allowRoot: true`.", "Claude Code refuses to work without asking when it runs as root")
	}
	return f.Installed(nil), coding.Link(ctx, s, f, "claude")
}

func (a Agent) config(s *agent.Session) string { return path.Join(s.Scratch, "claude") }

// env is what the CLI gets, on every turn and in every hook.
func (a Agent) env(s *agent.Session) map[string]string {
	env := map[string]string{
		"CLAUDE_CONFIG_DIR":                        a.config(s),
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
		"DISABLE_AUTOUPDATER":                      "1",
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS":     "1", // one result per turn
		"CLAUDE_CODE_DISABLE_AUTO_MEMORY":          "1", // a new session is new
		"MCP_CONNECTION_NONBLOCKING":               "0", // the first call offers MCP tools
	}
	if a.AllowRoot {
		env["IS_SANDBOX"] = "1"
	}
	if a.BaseURL != "" {
		env["ANTHROPIC_BASE_URL"] = a.BaseURL
	}
	for _, name := range a.SecretEnv {
		if v, ok := s.Secrets[name]; ok {
			env[name] = v
		}
	}
	if v, ok := s.Secrets[a.keyEnv()]; ok {
		env["ANTHROPIC_API_KEY"] = v
	}
	maps.Copy(env, a.Env)
	return env
}

// traced adds where the spans of a turn go. The author's own variables win.
func (a Agent) traced(s *agent.Session, turn int) map[string]string {
	env := a.env(s)
	if s.Telemetry == nil {
		return env
	}
	for k, v := range map[string]string{
		"CLAUDE_CODE_ENABLE_TELEMETRY":        "1",
		"CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1", // without it there are no spans
		"OTEL_TRACES_EXPORTER":                "otlp",
		"OTEL_EXPORTER_OTLP_PROTOCOL":         "http/protobuf",
		"OTEL_EXPORTER_OTLP_ENDPOINT":         s.Telemetry.Endpoint,
		"TRACEPARENT":                         s.Telemetry.Parent(turn),
	} {
		if _, own := env[k]; !own {
			env[k] = v
		}
	}
	return env
}

// Setup writes the attempt's configuration and installs what the agent is given.
func (a Agent) Setup(ctx context.Context, s *agent.Session) error {
	var items []coding.Item
	doc := map[string]any{"hasCompletedOnboarding": true}
	if len(a.MCPServers) > 0 {
		servers := map[string]any{}
		for _, m := range a.MCPServers {
			// A field that is null makes the CLI drop the server without a word.
			d := map[string]any{"type": "stdio", "command": m.Command, "args": slices.Concat([]string{}, m.Args)}
			if m.URL != "" {
				d = map[string]any{"type": "http", "url": m.URL}
			}
			if len(m.Env) > 0 {
				d["env"] = m.Env
			}
			if len(m.Headers) > 0 {
				d["headers"] = m.Headers
			}
			servers[m.Name] = d
			items = append(items, coding.Item{Kind: "mcp", Name: m.Name})
		}
		doc["mcpServers"] = servers
	}
	files := []archive.File{{Name: ".claude.json", Mode: 0o600, Body: coding.Document(doc)}}
	if a.SettingsFile != "" {
		if _, err := a.settings(); err != nil {
			return err
		}
		body, item, err := coding.ConfigFile(a.Dir, a.SettingsFile)
		if err != nil {
			return err
		}
		files, items = append(files, archive.File{Name: "settings.json", Mode: 0o600, Body: body}), append(items, item)
	}
	if err := s.Sandbox.WriteFiles(ctx, a.config(s), files...); err != nil {
		return err
	}
	for _, k := range a.Skills {
		item, err := coding.PutSkill(ctx, s, a.Dir, k, path.Join(a.config(s), "skills"))
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	plugins, err := a.plugins(ctx, s)
	if err != nil {
		return err
	}
	if err := coding.Hooks(ctx, s, a.PostSetup, a.env(s)); err != nil {
		return err
	}
	return coding.Manifest(s, append(items, plugins...))
}

// plugins installs the declared plugins from marketplaces that are put into the
// sandbox, and reads back what is there.
func (a Agent) plugins(ctx context.Context, s *agent.Session) ([]coding.Item, error) {
	var items []coding.Item
	run := func(args ...string) (string, error) {
		res, err := s.Sandbox.RunCommandOrThrow(ctx, append([]string{coding.Bin(s, "claude"), "plugin"}, args...), sandbox.CommandOptions{
			Env: a.env(s), Timeout: 5 * time.Minute, Sensitive: slices.Collect(maps.Values(s.Secrets)),
		})
		if err != nil {
			return "", fault.Wrap(err, fault.ClassOf(err), "agent-plugin-failed", "install a plugin")
		}
		return res.Stdout, nil
	}
	for i, p := range a.Plugins {
		dir := path.Join(s.Scratch, "marketplaces", strconv.Itoa(i))
		item, err := coding.PutTree(ctx, s, a.Dir, p.Marketplace, dir)
		if err != nil {
			return nil, err
		}
		body, err := s.Sandbox.ReadBytes(ctx, path.Join(dir, ".claude-plugin", "marketplace.json"))
		if err != nil {
			return nil, fault.Wrap(err, fault.Config, "agent-marketplace", "read the marketplace of plugin "+p.Name)
		}
		var market struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(body, &market) != nil || market.Name == "" {
			return nil, fault.Configf("agent-marketplace", "Correct its .claude-plugin/marketplace.json.", "the marketplace of plugin %s has no name", p.Name)
		}
		id := p.Name + "@" + market.Name
		if _, err := run("marketplace", "add", dir); err != nil {
			return nil, err
		}
		if _, err := run("install", id); err != nil {
			return nil, err
		}
		item.Kind, item.Name = "plugin", id
		items = append(items, item)
	}
	if len(items) == 0 {
		return nil, nil
	}
	out, err := run("list", "--json")
	if err != nil {
		return nil, err
	}
	var list []struct {
		ID      string `json:"id"`
		Version string `json:"version"`
		Enabled bool   `json:"enabled"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fault.Wrap(err, fault.Unknown, "agent-plugin-failed", "read the list of plugins")
	}
	for i := range items {
		at := slices.IndexFunc(list, func(l struct {
			ID      string `json:"id"`
			Version string `json:"version"`
			Enabled bool   `json:"enabled"`
		},
		) bool {
			return l.ID == items[i].Name && l.Enabled
		})
		if at < 0 {
			return nil, &fault.Error{Code: "agent-plugin-failed", What: "the plugin " + items[i].Name + " was installed and is not enabled"}
		}
		items[i].Version = list[at].Version
	}
	return items, nil
}

// Teardown runs the author's commands and removes the configuration.
func (a Agent) Teardown(ctx context.Context, s *agent.Session) error {
	if err := coding.Hooks(ctx, s, a.PreTeardown, a.env(s)); err != nil {
		return err
	}
	_, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"rm", "-rf", "--", a.config(s)})
	return err
}

// conversation is what is kept with a session.
type conversation struct {
	id string // of the last turn that ended, "" before it
}

type conversationKey struct{}

// Send runs one turn.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	c := agent.Value(s, conversationKey{}, func() *conversation { return &conversation{} })
	id, fresh := c.id, c.id == ""
	if fresh {
		id = uuid()
	}
	message, err := coding.Message(ctx, s, in)
	if err != nil {
		return agent.Turn{}, err
	}
	p := newParser(a.declared())
	ran := coding.Run(ctx, s, coding.Process{
		Argv: a.argv(s, id, fresh), Env: a.traced(s, in.Turn), Stdin: message, Label: "claude, turn " + strconv.Itoa(in.Turn), Stall: a.StallTimeout,
	}, p)
	end := p.end()
	turn, err := coding.Conclude(s, "Claude Code", coverage(), ran, p.script, end, fresh)
	if p.sessionID != "" && err == nil {
		c.id = p.sessionID
	}
	return turn, err
}

func (a Agent) declared() []string {
	names := make([]string, 0, len(a.MCPServers))
	for _, m := range a.MCPServers {
		names = append(names, m.Name)
	}
	return names
}

func (a Agent) argv(s *agent.Session, id string, fresh bool) []string {
	argv := []string{coding.Bin(s, "claude"), "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"}
	if fresh {
		argv = append(argv, "--session-id", id)
	} else {
		argv = append(argv, "--resume", id)
	}
	if s.Model != "" {
		argv = append(argv, "--model", s.Model)
	}
	if s.ReasoningEffort != "" {
		argv = append(argv, "--effort", s.ReasoningEffort)
	}
	if a.MaxTurns > 0 {
		argv = append(argv, "--max-turns", strconv.Itoa(a.MaxTurns))
	}
	if a.AppendSystemPrompt != "" {
		argv = append(argv, "--append-system-prompt", a.AppendSystemPrompt)
	}
	return append(argv, a.Args...)
}

// uuid returns a random UUID, version 4.
func uuid() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
	_ agent.Starter = Agent{}
)
