// Package opencode drives OpenCode, one `opencode run --format json` process
// per turn. Its configuration and its sessions are in a folder of their own per
// attempt, outside the workdir; see docs/agents/opencode.md.
package opencode

import (
	"context"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/agent"
	"assay/agent/internal/coding"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// Version is the version that is used when none is given.
const Version = "1.18.33"

// Agent is OpenCode. The zero value asks a provider that OpenCode knows, with
// the experiment's model as "provider/model".
type Agent struct {
	Version string `yaml:"version" json:"version" doc:"The exact version; default 1.18.33."`
	Install string `yaml:"install" json:"install,omitempty" enum:"staged,sandbox,never" doc:"How a missing CLI is installed; default staged, else by npm in the sandbox."`

	APIKeyEnv  string            `yaml:"apiKeyEnv" json:"apiKeyEnv,omitempty" format:"env" doc:"The host variable with the key, which the CLI gets under the same name; default OPENAI_API_KEY."`
	BaseURL    string            `yaml:"baseUrl" json:"baseUrl,omitempty" format:"url" doc:"The address of another service, with /v1; the model is then a plain name."`
	BaseURLEnv string            `yaml:"baseUrlEnv" json:"-" format:"env" doc:"A host variable that holds the address where it is set; baseUrl counts where it is not."`
	API        string            `yaml:"api" json:"api,omitempty" enum:"chat,responses,messages" doc:"The API of the service at baseUrl; default chat."`
	Context    int               `yaml:"contextTokens" json:"contextTokens,omitempty" min:"0" doc:"The model's context at baseUrl, in tokens; default 128000."`
	Output     int               `yaml:"outputTokens" json:"outputTokens,omitempty" min:"0" doc:"The longest answer of the model at baseUrl, in tokens; default 32000."`
	Env        map[string]string `yaml:"env" json:"env,omitempty" doc:"Further variables of the CLI and of what it runs."`
	SecretEnv  []string          `yaml:"secretEnv" json:"secretEnv,omitempty" format:"env" doc:"Further host variables that the CLI gets."`

	Args         []string                `yaml:"args" json:"args,omitempty" doc:"Further arguments of the CLI."`
	StallTimeout time.Duration           `yaml:"stallTimeout" json:"stallTimeout,omitempty" doc:"The longest silence; default none, because the CLI says nothing while a tool runs."`
	Prices       map[string]coding.Price `yaml:"prices" json:"prices,omitempty" doc:"USD per million tokens, by model, for models at baseUrl."`
	MCPServers   []coding.MCPServer      `yaml:"mcpServers" json:"mcpServers,omitempty" doc:"MCP servers for the agent."`
	Skills       []coding.Skill          `yaml:"skills" json:"skills,omitempty" doc:"Skills for the agent."`
	ConfigFile   string                  `yaml:"configFile" json:"configFile,omitempty" doc:"An opencode.json of this project; model, small_model, provider and mcp are reserved."`
	PostSetup    []string                `yaml:"postSetup" json:"postSetup,omitempty" doc:"Commands after everything is installed."`
	PreTeardown  []string                `yaml:"preTeardown" json:"preTeardown,omitempty" doc:"Commands before it is taken away."`
	// Dir is the host folder that relative paths start from.
	Dir string `yaml:"-" json:"-"`
}

// Definition lets YAML name the agent.
func Definition() agent.Definition {
	return agent.Definition{
		Name: "opencode", Summary: "OpenCode " + Version,
		Options: func() any { return new(Agent) },
		Agent: func(options any, dir string) (agent.Agent, error) {
			a := *options.(*Agent)
			a.Dir, a.BaseURL = dir, coding.BaseURL(a.BaseURL, a.BaseURLEnv)
			return a, a.validate()
		},
		Remedy: "The model's key, and the CLI in the image or npm on this host; ripgrep in the image for skills.",
	}
}

func (a Agent) validate() error {
	for _, err := range []error{coding.CheckEnv(a.Env), coding.CheckMCP(a.MCPServers), coding.CheckSkills(a.Skills)} {
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

func (a Agent) configFile() ([]byte, coding.Item, error) {
	body, item, err := coding.ConfigFile(a.Dir, a.ConfigFile)
	if err != nil {
		return nil, item, err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return nil, item, &fault.Error{Class: fault.Config, Code: "agent-config-file", What: "read " + a.ConfigFile, Fix: "Write a JSON object.", Err: err}
	}
	for _, reserved := range []string{"model", "small_model", "provider", "mcp"} {
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

func (a Agent) keyEnv() string {
	if a.APIKeyEnv != "" {
		return a.APIKeyEnv
	}
	return "OPENAI_API_KEY"
}

func (a Agent) cli() coding.CLI {
	return coding.CLI{
		Name: "opencode", Command: "opencode", Version: a.version(), Package: "opencode-ai",
		Native: func(m coding.Machine) (string, string, bool) {
			libc := ""
			if m.Musl {
				libc = "-musl"
			}
			return "opencode-linux-" + m.Arch + libc + "@" + a.version(), "bin/opencode", true
		},
	}
}

// Info describes the agent.
func (a Agent) Info() agent.Info {
	identity := a
	identity.Version = a.version()
	return agent.Info{
		Name: "opencode", Version: a.version(), Harness: a.cli().Harness(), Identity: identity,
		SecretEnv: append([]string{a.keyEnv()}, a.SecretEnv...), Coverage: coverage(),
		Files: coding.HostFiles(a.Dir, a.Skills, nil),
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
	if len(a.Skills) > 0 {
		res, err := s.Sandbox.RunShell(ctx, "command -v rg", sandbox.CommandOptions{Label: "look for ripgrep"})
		if err != nil {
			return agent.Installed{}, err
		}
		if res.Code != 0 {
			return agent.Installed{}, fault.Configf("agent-ensure-failed", "Put ripgrep (`rg`) into the image.", "OpenCode cannot load skills without ripgrep, and the sandbox has none")
		}
	}
	return f.Installed(nil), coding.Link(ctx, s, f, "opencode")
}

func (a Agent) home(s *agent.Session) string { return path.Join(s.Scratch, "opencode") }

func (a Agent) env(s *agent.Session) map[string]string {
	h := a.home(s)
	env := map[string]string{
		"XDG_CONFIG_HOME": path.Join(h, "config"), "XDG_DATA_HOME": path.Join(h, "data"),
		"XDG_STATE_HOME": path.Join(h, "state"), "XDG_CACHE_HOME": path.Join(h, "cache"),
		"TMPDIR":                      path.Join(h, "tmp"), // it leaves libraries there
		"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
		"OPENCODE_CONFIG_CONTENT": string(coding.Document(a.config(s))),
	}
	for _, name := range append([]string{a.keyEnv()}, a.SecretEnv...) {
		if v, ok := s.Secrets[name]; ok {
			env[name] = v
		}
	}
	maps.Copy(env, a.Env)
	return env
}

// custom is the name of the provider at BaseURL.
const custom = "main"

func (a Agent) model(s *agent.Session) string {
	if a.BaseURL != "" && s.Model != "" {
		return custom + "/" + s.Model
	}
	return s.Model
}

// config is the attempt's configuration. It names the key's variable and never
// holds the key.
func (a Agent) config(s *agent.Session) map[string]any {
	c := map[string]any{
		"autoupdate": false, "share": "disabled",
		"permission": map[string]any{"edit": "allow", "bash": "allow", "webfetch": "allow", "external_directory": "allow"},
		// Titles are model calls that no event tells of.
		"agent": map[string]any{"title": map[string]any{"disable": true}},
	}
	if m := a.model(s); m != "" {
		c["model"], c["small_model"] = m, m
	}
	if a.BaseURL != "" {
		npm := map[string]string{"responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}[a.API]
		if npm == "" {
			npm = "@ai-sdk/openai-compatible"
		}
		limit := map[string]any{"context": orDefault(a.Context, 128_000), "output": orDefault(a.Output, 32_000)}
		model := map[string]any{"limit": limit}
		if p, ok := a.Prices[s.Model]; ok {
			model["cost"] = map[string]any{"input": p.Input, "output": p.Output, "cache_read": p.CacheRead}
		}
		c["enabled_providers"] = []string{custom}
		c["provider"] = map[string]any{custom: map[string]any{
			"npm": npm, "options": map[string]any{"baseURL": a.BaseURL, "apiKey": "{env:" + a.keyEnv() + "}"},
			"models": map[string]any{s.Model: model},
		}}
	}
	if len(a.MCPServers) > 0 {
		servers := map[string]any{}
		for _, m := range a.MCPServers {
			d := map[string]any{"enabled": true}
			if m.URL != "" {
				d["type"], d["url"] = "remote", m.URL
				if len(m.Headers) > 0 {
					d["headers"] = m.Headers
				}
			} else {
				d["type"], d["command"] = "local", append([]string{m.Command}, m.Args...)
				if len(m.Env) > 0 {
					d["environment"] = m.Env
				}
			}
			servers[m.Name] = d
		}
		c["mcp"] = servers
	}
	return c
}

func orDefault(n, d int) int {
	if n == 0 {
		return d
	}
	return n
}

// Setup writes the attempt's configuration and installs what the agent is given.
func (a Agent) Setup(ctx context.Context, s *agent.Session) error {
	var items []coding.Item
	config := path.Join(a.home(s), "config", "opencode")
	files := []archive.File{{Name: "README", Mode: 0o600, Body: []byte("The configuration of one attempt.\n")}}
	if a.ConfigFile != "" {
		body, item, err := a.configFile()
		if err != nil {
			return err
		}
		files, items = append(files, archive.File{Name: "opencode.json", Mode: 0o600, Body: body}), append(items, item)
	}
	if err := s.Sandbox.WriteFiles(ctx, config, files...); err != nil {
		return err
	}
	if err := s.Sandbox.WriteFiles(ctx, path.Join(a.home(s), "tmp"), archive.File{Name: ".keep", Mode: 0o600}); err != nil {
		return err
	}
	for _, m := range a.MCPServers {
		items = append(items, coding.Item{Kind: "mcp", Name: m.Name})
	}
	for _, k := range a.Skills {
		item, err := coding.PutSkill(ctx, s, a.Dir, k, path.Join(config, "skills"))
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

// Teardown runs the author's commands and removes the configuration.
func (a Agent) Teardown(ctx context.Context, s *agent.Session) error {
	if err := coding.Hooks(ctx, s, a.PreTeardown, a.env(s)); err != nil {
		return err
	}
	_, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"rm", "-rf", "--", a.home(s)})
	return err
}

// conversation is what is kept with a session.
type conversation struct{ id string }

type conversationKey struct{}

// Send runs one turn.
func (a Agent) Send(ctx context.Context, s *agent.Session, in agent.Input) (agent.Turn, error) {
	c := agent.Value(s, conversationKey{}, func() *conversation { return &conversation{} })
	message, err := coding.Message(ctx, s, in)
	if err != nil {
		return agent.Turn{}, err
	}
	argv := []string{coding.Bin(s, "opencode"), "run", "--format", "json", "--thinking", "--auto"}
	if c.id != "" {
		argv = append(argv, "--session", c.id)
	}
	if m := a.model(s); m != "" {
		argv = append(argv, "--model", m)
	}
	if s.ReasoningEffort != "" {
		argv = append(argv, "--variant", s.ReasoningEffort)
	}
	stall := a.StallTimeout
	if stall == 0 {
		stall = -1 // a tool is only told of when it has ended
	}
	servers := make([]string, 0, len(a.MCPServers))
	for _, m := range a.MCPServers {
		servers = append(servers, m.Name)
	}
	p := newParser(servers)
	ran := coding.Run(ctx, s, coding.Process{
		Argv: append(argv, a.Args...), Env: a.env(s), Stdin: message, Label: "opencode, turn " + strconv.Itoa(in.Turn), Stall: stall,
	}, p)
	priced := a.BaseURL == "" || a.hasPrice(s.Model)
	end := p.end(ran, priced)
	if !priced {
		coding.Cost(end.Usage, s.Model, nil)
	}
	turn, err := coding.Conclude(s, "OpenCode", coverage(), ran, p.script, end, c.id == "")
	if err != nil {
		return turn, err
	}
	c.id = p.session
	if p.subagents {
		low := coverage()
		low.Usage, low.Actions, low.Events = agent.Partial, agent.Partial, agent.Partial
		if turn.Coverage != nil {
			low = turn.Coverage.Worst(low)
		}
		turn.Coverage = &low
	}
	return turn, nil
}

func (a Agent) hasPrice(model string) bool {
	return slices.Contains(slices.Collect(maps.Keys(a.Prices)), model)
}

// mcpName makes SERVER_TOOL of a declared server the canonical name.
func mcpName(tool string, servers []string) string {
	for _, s := range servers {
		if rest, ok := strings.CutPrefix(tool, s+"_"); ok {
			return coding.MCPTool(s, rest)
		}
	}
	return coding.Canonical(tool)
}

var (
	_ agent.Agent   = Agent{}
	_ agent.Ensurer = Agent{}
	_ agent.Starter = Agent{}
)
