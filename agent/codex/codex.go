// Package codex drives the Codex CLI, one `codex exec --json` process per turn.
// Its home is a folder of its own per attempt, outside the workdir; see
// docs/agents/codex.md.
package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Version is the version that is used when none is given.
const Version = "0.144.1"

// Agent is the Codex CLI. The zero value is ready.
type Agent struct {
	Version string `yaml:"version" json:"version" doc:"The exact version; default 0.144.1."`
	Install string `yaml:"install" json:"install,omitempty" enum:"staged,sandbox,never" doc:"How a missing CLI is installed; default staged, else by npm in the sandbox."`

	APIKeyEnv  string            `yaml:"apiKeyEnv" json:"apiKeyEnv,omitempty" format:"env" doc:"The host variable with the key; default CODEX_API_KEY."`
	BaseURL    string            `yaml:"baseUrl" json:"baseUrl,omitempty" format:"url" doc:"The address of another service with the Responses API, with /v1."`
	BaseURLEnv string            `yaml:"baseUrlEnv" json:"-" format:"env" doc:"A host variable that holds the address where it is set; baseUrl counts where it is not."`
	Env        map[string]string `yaml:"env" json:"env,omitempty" doc:"Further variables of the CLI and of what it runs."`
	SecretEnv  []string          `yaml:"secretEnv" json:"secretEnv,omitempty" format:"env" doc:"Further host variables that the CLI gets."`

	Args         []string                `yaml:"args" json:"args,omitempty" doc:"Further arguments of the CLI."`
	StallTimeout time.Duration           `yaml:"stallTimeout" json:"stallTimeout,omitempty" doc:"The longest silence while no tool runs; default 10m."`
	Prices       map[string]coding.Price `yaml:"prices" json:"prices,omitempty" doc:"USD per million tokens, by model, where the agent reports no cost."`
	MCPServers   []coding.MCPServer      `yaml:"mcpServers" json:"mcpServers,omitempty" doc:"MCP servers for the agent."`
	Skills       []coding.Skill          `yaml:"skills" json:"skills,omitempty" doc:"Skills for the agent."`
	Plugins      []coding.Plugin         `yaml:"plugins" json:"plugins,omitempty" doc:"Native plugins, installed anew for every attempt."`
	ConfigFile   string                  `yaml:"configFile" json:"configFile,omitempty" doc:"A config.toml of this project; model, provider, effort, MCP and otel are reserved."`
	PostSetup    []string                `yaml:"postSetup" json:"postSetup,omitempty" doc:"Commands after everything is installed."`
	PreTeardown  []string                `yaml:"preTeardown" json:"preTeardown,omitempty" doc:"Commands before it is taken away."`
	// Dir is the host folder that relative paths start from.
	Dir string `yaml:"-" json:"-"`
}

// Definition lets YAML name the agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name: "codex", Summary: "Codex CLI " + Version,
		Options: func() any { return new(Agent) },
		Agent: func(options any, dir string) (agent.Agent, error) {
			a := *options.(*Agent)
			a.Dir, a.BaseURL = dir, coding.BaseURL(a.BaseURL, a.BaseURLEnv)
			return a, a.validate()
		},
		Remedy: "CODEX_API_KEY, and the CLI in the image or npm on this host.",
	}
}

func (a Agent) validate() error {
	for _, err := range []error{coding.CheckEnv(a.Env), coding.CheckMCP(a.MCPServers), coding.CheckSkills(a.Skills), coding.CheckPlugins(a.Plugins)} {
		if err != nil {
			return err
		}
	}
	if a.ConfigFile != "" {
		_, _, err := a.configFile()
		return err
	}
	return nil
}

// configFile reads the config file and refuses what is set elsewhere.
func (a Agent) configFile() ([]byte, coding.Item, error) {
	body, item, err := coding.ConfigFile(a.Dir, a.ConfigFile)
	if err != nil {
		return nil, item, err
	}
	var top map[string]any
	if err := toml.Unmarshal(body, &top); err != nil {
		return nil, item, &fault.Error{Class: fault.Config, Code: "agent-config-file", What: "read " + a.ConfigFile, Fix: "Write TOML.", Err: err}
	}
	for _, reserved := range []string{"model", "model_provider", "model_providers", "model_reasoning_effort", "mcp_servers", "otel"} {
		if _, ok := top[reserved]; ok {
			return nil, item, fault.Configf("agent-config-reserved", "Use the experiment's and the agent's own fields.", "%s sets %q, which is not its to set", a.ConfigFile, reserved)
		}
	}
	return body, item, nil
}

func (a Agent) version() string {
	if a.Version != "" {
		return a.Version
	}
	return Version
}

// key is the variable that the CLI itself reads.
const key = "CODEX_API_KEY"

func (a Agent) keyEnv() string {
	if a.APIKeyEnv != "" {
		return a.APIKeyEnv
	}
	return key
}

func (a Agent) cli() coding.CLI {
	return coding.CLI{
		Name: "codex", Command: "codex", Version: a.version(), Package: "@openai/codex",
		Native: func(m coding.Machine) (string, string, bool) {
			triple := map[string]string{"x64": "x86_64", "arm64": "aarch64"}[m.Arch] + "-unknown-linux-musl"
			return "@openai/codex@" + a.version() + "-linux-" + m.Arch, "vendor/" + triple + "/bin/codex", true
		},
	}
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	identity := a
	identity.Version = a.version()
	return agent.Info{
		Name: "codex", Version: a.version(), Harness: a.cli().Harness(), Identity: identity,
		SecretEnv: append([]string{a.keyEnv()}, a.SecretEnv...), Coverage: coverage(), Telemetry: true,
		Files: coding.HostFiles(a.Dir, a.Skills, a.Plugins),
	}
}

func coverage() agent.Coverage {
	return agent.Coverage{Events: agent.Complete, Actions: agent.Complete, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete}
}

// Ensure finds or installs the pinned CLI.
func (a Agent) Ensure(ctx context.Context, s *agent.Session) (agent.Installed, error) {
	if err := a.validate(); err != nil {
		return agent.Installed{}, err
	}
	f, err := a.cli().Ensure(ctx, s, a.Install)
	if err != nil {
		return agent.Installed{}, err
	}
	return f.Installed(nil), coding.Link(ctx, s, f, "codex")
}

func (a Agent) home(s *agent.Session) string { return path.Join(s.Scratch, "codex") }

func (a Agent) env(s *agent.Session) map[string]string {
	env := map[string]string{"CODEX_HOME": a.home(s)}
	for _, name := range a.SecretEnv {
		if v, ok := s.Secrets[name]; ok {
			env[name] = v
		}
	}
	if v, ok := s.Secrets[a.keyEnv()]; ok {
		env[key] = v
	}
	maps.Copy(env, a.Env)
	return env
}

// traced adds the span under which those of a turn hang.
func (a Agent) traced(s *agent.Session, turn int) map[string]string {
	env := a.env(s)
	if _, own := env["TRACEPARENT"]; s.Telemetry != nil && !own {
		env["TRACEPARENT"] = s.Telemetry.Parent(turn)
	}
	return env
}

// Setup writes the attempt's configuration and installs what the agent is given.
func (a Agent) Setup(ctx context.Context, s *agent.Session) error {
	var items []coding.Item
	var config []byte
	if a.ConfigFile != "" {
		body, item, err := a.configFile()
		if err != nil {
			return err
		}
		config, items = body, append(items, item)
	}
	if err := s.Sandbox.WriteFiles(ctx, a.home(s), archive.File{Name: "config.toml", Mode: 0o600, Body: config}); err != nil {
		return err
	}
	for _, m := range a.MCPServers {
		items = append(items, coding.Item{Kind: "mcp", Name: m.Name})
	}
	for _, k := range a.Skills {
		item, err := coding.PutSkill(ctx, s, a.Dir, k, path.Join(a.home(s), "skills"))
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	for i, p := range a.Plugins {
		item, err := a.plugin(ctx, s, i, p)
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	if err := coding.Hooks(ctx, s, a.PostSetup, a.env(s)); err != nil {
		return err
	}
	return coding.Manifest(s, items)
}

// plugin installs one plugin from a marketplace that is put into the sandbox.
func (a Agent) plugin(ctx context.Context, s *agent.Session, i int, p coding.Plugin) (coding.Item, error) {
	dir := path.Join(s.Scratch, "marketplaces", strconv.Itoa(i))
	item, err := coding.PutTree(ctx, s, a.Dir, p.Marketplace, dir)
	if err != nil {
		return item, err
	}
	run := func(into any, args ...string) error {
		res, err := s.Sandbox.RunCommandOrThrow(ctx, append([]string{coding.Bin(s, "codex"), "plugin"}, args...), sandbox.CommandOptions{
			Env: a.env(s), Timeout: 5 * time.Minute, Sensitive: slices.Collect(maps.Values(s.Secrets)),
		})
		if err == nil {
			err = json.Unmarshal([]byte(res.Stdout), into)
		}
		if err != nil {
			return fault.Wrap(err, fault.ClassOf(err), "agent-plugin-failed", "install the plugin "+p.Name)
		}
		return nil
	}
	var market struct {
		Name string `json:"marketplaceName"`
	}
	if err := run(&market, "marketplace", "add", dir, "--json"); err != nil {
		return item, err
	}
	var added struct {
		Version string `json:"version"`
	}
	item.Kind, item.Name = "plugin", p.Name+"@"+market.Name
	err = run(&added, "add", item.Name, "--json")
	item.Version = added.Version
	return item, err
}

// Teardown runs the author's commands and removes the configuration.
func (a Agent) Teardown(ctx context.Context, s *agent.Session) error {
	if err := coding.Hooks(ctx, s, a.PreTeardown, a.env(s)); err != nil {
		return err
	}
	_, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"rm", "-rf", "--", a.home(s)})
	return err
}

// conversation is what is kept with a session.
type conversation struct {
	thread string
	spent  usage // of the thread until the last turn that ended
}

type conversationKey struct{}

// Send runs one turn.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	c := agent.Value(s, conversationKey{}, func() *conversation { return &conversation{} })
	message, err := coding.Message(ctx, s, in)
	if err != nil {
		return agent.Turn{}, err
	}
	p := newParser()
	ran := coding.Run(ctx, s, coding.Process{
		Argv: a.argv(s, c.thread), Env: a.traced(s, in.Turn), Stdin: message, Label: "codex, turn " + strconv.Itoa(in.Turn), Stall: a.StallTimeout,
	}, p)
	end := p.end(c.spent)
	coding.Cost(end.Usage, s.Model, a.Prices)
	turn, err := coding.Conclude(s, "Codex", coverage(), ran, p.script, end, c.thread == "")
	if err != nil {
		return turn, err
	}
	if p.thread != "" {
		c.thread = p.thread
	}
	if p.usage != nil {
		c.spent = *p.usage
	}
	if strings.Contains(ran.Stderr, "tools::router") {
		// A call of a tool that is not there, or with arguments that do not
		// fit, is only told there.
		low := agent.Coverage{Events: agent.Partial, Actions: agent.Partial, Messages: agent.Complete, Usage: agent.Complete, Status: agent.Complete}
		if turn.Coverage != nil {
			low = turn.Coverage.Worst(low)
		}
		turn.Coverage = &low
	}
	return turn, nil
}

// argv is the command line of a turn; settings are flags, so that the author's
// own file stays as it is. None of them is secret.
func (a Agent) argv(s *agent.Session, thread string) []string {
	argv := []string{coding.Bin(s, "codex"), "exec"}
	if thread != "" {
		argv = append(argv, "resume")
	}
	argv = append(argv, "--json", "--skip-git-repo-check")
	set := func(k string, v any) { argv = append(argv, "-c", k+"="+literal(v)) }
	set("approval_policy", "never")
	set("sandbox_mode", "danger-full-access") // the sandbox around it is the boundary
	set("check_for_update_on_startup", false)
	set("analytics.enabled", false)
	if len(a.Plugins) == 0 {
		set("features.plugins", false)
	}
	hidden := append([]string{key}, a.SecretEnv...)
	if s.Telemetry != nil {
		set("otel.trace_exporter", map[string]any{"otlp-http": map[string]any{"endpoint": s.Telemetry.Endpoint + "/v1/traces", "protocol": "binary"}})
		hidden = append(hidden, "TRACEPARENT") // what the model runs is not traced
	}
	set("shell_environment_policy.exclude", hidden)
	if a.BaseURL != "" {
		set("model_provider", "main")
		set("model_providers.main", map[string]any{"name": "main", "base_url": a.BaseURL, "env_key": key, "wire_api": "responses"})
	}
	if s.ReasoningEffort != "" {
		set("model_reasoning_effort", s.ReasoningEffort)
	}
	for _, m := range a.MCPServers {
		t := map[string]any{}
		if m.URL != "" {
			t["url"] = m.URL
			if len(m.Headers) > 0 {
				t["http_headers"] = m.Headers
			}
		} else {
			t["command"] = m.Command
			if len(m.Args) > 0 {
				t["args"] = m.Args
			}
			if len(m.Env) > 0 {
				t["env"] = m.Env
			}
		}
		set("mcp_servers."+m.Name, t)
	}
	if s.Model != "" {
		argv = append(argv, "-m", s.Model)
	}
	argv = append(argv, a.Args...)
	if thread != "" {
		argv = append(argv, thread)
	}
	return append(argv, "-") // the message comes on the standard input
}

// literal renders a value as TOML: strings as basic strings, which have JSON's
// escapes, and maps as inline tables.
func literal(v any) string {
	switch v := v.(type) {
	case map[string]string:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = e
		}
		return literal(m)
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, literal(k)+"="+literal(v[k]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case []string:
		parts := make([]string, 0, len(v))
		for _, e := range v {
			parts = append(parts, literal(e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return `""`
	}
	return strings.TrimSpace(b.String())
}

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
	_ agent.Starter = Agent{}
)
