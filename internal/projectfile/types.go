package projectfile

import "time"

// The shapes below are what a user writes. Tags of a field:
//
//	yaml      its name; ",either" marks the alternatives of a union, of which
//	          the kind of the value picks one
//	required  it must be there
//	min, max  bounds of a number, or of the length of text, a list or a map
//	enum      the values it may have
//	format    a named form of text, see Format
//	keys      a named form of the keys of a map
//	doc       what it is for, shown by editors
//
// The structs of providers and agents may use the same tags; they need no type
// of this package.

// Project is assay.yaml.
type Project struct {
	Name           string             `yaml:"name" min:"1" doc:"Name of the project."`
	Defaults       *Defaults          `yaml:"defaults" doc:"Lowest level of configuration; an experiment or eval overrides."`
	Profiles       map[string]Profile `yaml:"profiles" doc:"Named sandbox layers that experiments choose with profile."`
	MaxConcurrency *int               `yaml:"maxConcurrency" min:"1" max:"10000" doc:"Attempts at once in a run."`
	Record         string             `yaml:"record" min:"1" doc:"Folder of the results; default .assay/record."`
	Judge          *Judge             `yaml:"judge" doc:"The model that grades judge checks."`
	Telemetry      *Telemetry         `yaml:"telemetry" doc:"Receive the spans of agents that can send them; true, or where."`
}

// Telemetry says that spans of agents are received, and where.
type Telemetry struct {
	On bool            `yaml:",either" enum:"true"`
	At *TelemetryPlace `yaml:",either"`
}

// TelemetryPlace is where sandboxes reach this machine.
type TelemetryPlace struct {
	Host string `yaml:"host" min:"1" doc:"Name or address of this machine as sandboxes see it; default: in the sandbox."`
	Port int    `yaml:"port" min:"1" max:"65535" doc:"Port of the receiver; default any free one."`
}

// Defaults are the lowest level of configuration.
type Defaults struct {
	Sandbox *Layer        `yaml:"sandbox" doc:"Sandbox of pairs that declare none."`
	Timeout time.Duration `yaml:"timeout" doc:"Limit of one attempt."`
}

// Profile is a named sandbox layer.
type Profile struct {
	Sandbox *Layer `yaml:"sandbox" required:"true" doc:"The layer."`
}

// Judge configures the grading model.
type Judge struct {
	Model     string        `yaml:"model" min:"1" doc:"Name of the model."`
	BaseURL   string        `yaml:"baseUrl" format:"url" doc:"Base address of the service; default https://api.openai.com/v1."`
	API       string        `yaml:"api" enum:"openai,anthropic" doc:"What the service speaks; default told by the address."`
	APIKeyEnv string        `yaml:"apiKeyEnv" format:"env" doc:"Host variable that holds the key; default ASSAY_JUDGE_KEY."`
	Timeout   time.Duration `yaml:"timeout" doc:"Limit of one call, with its retries; default 180s."`
}

// EvalJudge declares that an eval asks a judge.
type EvalJudge struct {
	On     bool   `yaml:",either" enum:"true"`
	Config *Judge `yaml:",either"`
}

// Layer is a sandbox layer. Besides these fields it takes the name of at most
// one provider.
type Layer struct {
	// Provider is the start point; nil for a command-only layer.
	Provider  *Choice
	User      string            `yaml:"user" min:"1" doc:"Identity of every command; omitted is what the start point declares."`
	Lifetime  time.Duration     `yaml:"lifetime" doc:"Life of one sandbox; required with sandboxReuse."`
	Env       map[string]string `yaml:"env" keys:"env" doc:"Variables of every command."`
	SecretEnv []string          `yaml:"secretEnv" format:"env" doc:"Names of host variables whose values every command gets; redacted everywhere."`
	Path      []string          `yaml:"path" format:"abspath" doc:"Folders put before PATH."`
	Workdir   string            `yaml:"workdir" format:"abspath" doc:"Working folder, where the provider lets one choose."`
	Resources *Resources        `yaml:"resources" doc:"Limits of one sandbox."`
	Network   *Network          `yaml:"network" doc:"What the sandbox may reach."`
	Prepare   []Command         `yaml:"prepare" doc:"Commands of each attempt, before the baseline."`
	Setup     []Command         `yaml:"setup" doc:"Commands once per sandbox, in order."`
	Teardown  []Command         `yaml:"teardown" doc:"Commands once per sandbox, last first, always."`
}

// Choice is the name of a registered kind and its decoded options.
type Choice struct {
	Name string
	// Options are what the registry's definition gave, filled.
	Options any
}

// Resources are limits of one sandbox.
type Resources struct {
	CPUs   float64 `yaml:"cpus" min:"0.01" max:"4096" doc:"Number of CPUs."`
	Memory int64   `yaml:"memory" format:"size" doc:"Memory, such as 2GiB."`
	PIDs   int64   `yaml:"pids" min:"1" max:"4194304" doc:"Number of processes."`
	Disk   int64   `yaml:"disk" format:"size" doc:"Disk space, such as 10GiB."`
}

// Network is "default", "none" or a list of host names.
type Network struct {
	Mode  string     `yaml:",either" enum:"default,none"`
	Allow *AllowList `yaml:",either"`
}

// AllowList names what a sandbox may reach.
type AllowList struct {
	Allow []string `yaml:"allow" required:"true" min:"1" format:"hostname" doc:"Host names; *. at the start allows every name below."`
}

// Command is a script, or a map that says more.
type Command struct {
	Shell  string         `yaml:",either" format:"nonblank" doc:"A script, run by bash, or sh where there is no bash."`
	Fields *CommandFields `yaml:",either"`
}

// CommandFields is a command with its settings.
type CommandFields struct {
	Run      string            `yaml:"run" format:"nonblank" doc:"A script, run by bash, or sh where there is no bash."`
	Argv     []string          `yaml:"argv" min:"1" doc:"Executable and arguments; no shell interprets them."`
	Name     string            `yaml:"name" min:"1" doc:"Shown instead of the command."`
	Cwd      string            `yaml:"cwd" min:"1" doc:"Folder, relative to the workdir."`
	Env      map[string]string `yaml:"env" keys:"env" doc:"Variables of this command."`
	User     string            `yaml:"user" min:"1" doc:"Identity of this command."`
	Timeout  time.Duration     `yaml:"timeout" doc:"Limit of this command."`
	Host     bool              `yaml:"host" doc:"Run on the host, with ASSAY_SANDBOX_ID set."`
	ID       string            `yaml:"id" min:"1" doc:"Identity for carry."`
	Revision string            `yaml:"revision" min:"1" doc:"Revision for carry."`
}

// Rules says that a command is a script or an argument list.
func (CommandFields) Rules() []Rule { return []Rule{{ExactlyOne, []string{"run", "argv"}}} }

// Experiment is experiments/**/<name>.yaml.
type Experiment struct {
	Description     string         `yaml:"description" doc:"For people."`
	Agent           *Agent         `yaml:"agent" required:"true" doc:"The agent, with its options."`
	Model           string         `yaml:"model" min:"1" doc:"Model that the agent is told to use."`
	ReasoningEffort string         `yaml:"reasoningEffort" min:"1" doc:"Effort that the agent is told to spend."`
	Flags           map[string]any `yaml:"flags" doc:"Conditions that agent and eval see; part of the identity."`
	Labels          map[string]any `yaml:"labels" keys:"nonblank" format:"label" doc:"Text or numbers for reports only."`
	Evals           *Evals         `yaml:"evals" doc:"The string * or id prefixes; default all."`
	Attempts        *int           `yaml:"attempts" min:"1" max:"100000" doc:"Attempts per eval; default 1."`
	EarlyExit       bool           `yaml:"earlyExit" doc:"Stop an eval's attempts after the first that passed."`
	Timeout         time.Duration  `yaml:"timeout" doc:"Limit of one attempt."`
	Budget          float64        `yaml:"budget" min:"0.000001" max:"1000000000" doc:"US dollars after which nothing more starts."`
	MaxConcurrency  *int           `yaml:"maxConcurrency" min:"1" max:"10000" doc:"Attempts of this experiment at once; 1 is strictly one after the other."`
	Profile         string         `yaml:"profile" min:"1" doc:"Name of a profile of assay.yaml."`
	Sandbox         *Layer         `yaml:"sandbox" doc:"The sandbox layer."`
	SandboxReuse    Reuse          `yaml:"sandboxReuse" doc:"Attempts use a sandbox one after the other; needs a lifetime of the sandbox."`
	SharedState     *SharedState   `yaml:"sharedState" doc:"External state that runs of this key must not share at once."`
	Judge           *Judge         `yaml:"judge" doc:"Overrides the project's judge."`
	Setup           []Command      `yaml:"setup" doc:"Commands on the host, once per run, only if something will run."`
	Teardown        []Command      `yaml:"teardown" doc:"Commands on the host, once per run, after setup was entered."`
	Plugins         []Plugin       `yaml:"plugins" doc:"Reusable conditions of all its sandboxes."`
}

// Evals is "*" or a list of id prefixes.
type Evals struct {
	All      string   `yaml:",either" enum:"*"`
	Prefixes []string `yaml:",either" min:"1" format:"nonblank"`
}

// Reuse is true, or the limits of reuse.
type Reuse struct {
	On     bool         `yaml:",either"`
	Limits *ReuseLimits `yaml:",either"`
}

// ReuseLimits say how long a sandbox is reused.
type ReuseLimits struct {
	MaxUses int `yaml:"maxUses" required:"true" min:"1" max:"100000" doc:"Attempts that one sandbox serves."`
}

// SharedState names external state.
type SharedState struct {
	Key string `yaml:"key" required:"true" format:"statekey" doc:"Stable name, not secret."`
}

// Agent is the name of an agent, or a map of its name to its options.
type Agent struct{ Choice }

// Eval is eval.yaml or <name>.eval.yaml.
type Eval struct {
	Description   string            `yaml:"description" doc:"For people."`
	Tags          []string          `yaml:"tags" format:"nonblank" doc:"For selection with --tag."`
	Sandbox       *Layer            `yaml:"sandbox" doc:"The sandbox layer."`
	Timeout       time.Duration     `yaml:"timeout" doc:"Limit of one attempt."`
	Workspace     string            `yaml:"workspace" format:"hostpath" doc:"Folder uploaded to the workdir before the first turn; default ./workspace when it exists."`
	Files         map[string]string `yaml:"files" keys:"relpath" doc:"Further files of the workdir, by path."`
	Setup         []Command         `yaml:"setup" doc:"Commands of each attempt, after the upload, before the baseline."`
	Prompt        *Prompt           `yaml:"prompt" doc:"What the agent is told; short for one turn."`
	Turns         []Turn            `yaml:"turns" min:"1" doc:"Several turns, instead of prompt."`
	Hidden        string            `yaml:"hidden" format:"hostpath" doc:"Folder uploaded after the last turn, before the checks; the agent never sees it."`
	KeepProcesses bool              `yaml:"keepProcesses" doc:"Leave what the agent started running during the checks."`
	Checks        []Check           `yaml:"checks" doc:"What must be true afterwards."`
	Solution      *Solution         `yaml:"solution" doc:"What the oracle agent runs: a script file of the eval, or a command."`
	Teardown      []Command         `yaml:"teardown" doc:"Commands of each attempt, after the checks."`
	Diff          *Diff             `yaml:"diff" doc:"What the list of changes leaves out and takes in."`
	Judge         *EvalJudge        `yaml:"judge" doc:"Overrides the judge of the experiment and the project."`
	Metadata      map[string]any    `yaml:"metadata" doc:"Stored with each attempt."`
	Revision      string            `yaml:"revision" min:"1" doc:"Names what cannot be seen here; change it when results of before no longer hold."`
	Inputs        []string          `yaml:"inputs" format:"hostpath" doc:"Further files and folders whose content a result depends on."`
	Plugins       []Plugin          `yaml:"plugins" doc:"Reusable conditions of its sandboxes."`
}

// Rules says that an eval tells the agent something in one way, and that hidden
// files need the agent's processes gone.
func (Eval) Rules() []Rule {
	return []Rule{{ExactlyOne, []string{"prompt", "turns"}}, {AtMostOne, []string{"keepProcesses", "hidden"}}}
}

// Prompt is text, or the file that holds it.
type Prompt struct {
	Text string      `yaml:",either" format:"nonblank"`
	File *PromptFile `yaml:",either"`
}

// PromptFile names the file of a prompt.
type PromptFile struct {
	File string `yaml:"file" required:"true" format:"hostpath" doc:"File with the prompt, relative to this file."`
}

// Turn is one message to the agent.
type Turn struct {
	Prompt     *Prompt `yaml:"prompt" required:"true" doc:"What the agent is told."`
	NewSession bool    `yaml:"newSession" doc:"Open another conversation."`
	Checks     []Check `yaml:"checks" doc:"Evaluated right after this turn."`
}

// Solution is a script file, or a command.
type Solution struct {
	File    string         `yaml:",either" format:"hostpath" doc:"Script of the eval; its folder is uploaded and named by $SOLUTION_DIR."`
	Command *CommandFields `yaml:",either"`
}

// Diff are the rules of the change ledger.
type Diff struct {
	Ignore  []string `yaml:"ignore" format:"glob" doc:"Patterns of paths that are left out."`
	Include []string `yaml:"include" format:"glob" doc:"Patterns of paths that are taken in although the repository ignores them."`
}

// Group is evals/**/group.yaml.
type Group struct {
	Evals         []string `yaml:"evals" required:"true" min:"1" format:"nonblank" doc:"Ids relative to this folder, in order."`
	Sandbox       *Layer   `yaml:"sandbox" doc:"The sandbox layer that the members share."`
	Plugins       []Plugin `yaml:"plugins" doc:"Reusable conditions of the sandbox that the members share."`
	OnUnavailable string   `yaml:"onUnavailable" enum:"stop-group,replace-sandbox" doc:"What follows when the shared sandbox is lost; default stop-group."`
}

// Check is one declared check: exactly one kind of CheckKinds, the fields that
// the kind takes, and the common fields.
type Check struct {
	Run             *Command    `yaml:"run" doc:"A command that must exit 0."`
	Exit            *int        `yaml:"exit" min:"0" max:"255" doc:"The wanted exit code."`
	Stdout          *Match      `yaml:"stdout" doc:"What the command must print."`
	Stderr          *Match      `yaml:"stderr" doc:"What the command must print on standard error."`
	File            string      `yaml:"file" min:"1" doc:"A file of the sandbox."`
	Exists          *bool       `yaml:"exists" doc:"Whether the file is there."`
	Contains        string      `yaml:"contains" min:"1" doc:"Text that the file has."`
	Excludes        string      `yaml:"excludes" min:"1" doc:"Text that the file has not."`
	Matches         string      `yaml:"matches" format:"regex" doc:"Regular expression (RE2) that the file matches."`
	Equals          *string     `yaml:"equals" doc:"The whole content."`
	JSON            any         `yaml:"json" doc:"Part of the JSON document that the file is."`
	Reply           *Match      `yaml:"reply" doc:"The last message of the agent."`
	Changed         string      `yaml:"changed" format:"glob" doc:"Path or pattern that the agent added or modified."`
	Deleted         string      `yaml:"deleted" format:"glob" doc:"Path or pattern that the agent deleted."`
	Unchanged       string      `yaml:"unchanged" format:"glob" doc:"Path or pattern that the agent left alone."`
	NoChanges       bool        `yaml:"noChanges" enum:"true" doc:"The agent changed nothing."`
	CalledTool      *Tool       `yaml:"calledTool" doc:"A tool call that happened."`
	NotCalledTool   *Tool       `yaml:"notCalledTool" doc:"A tool call that did not happen."`
	ToolOrder       []string    `yaml:"toolOrder" min:"1" format:"nonblank" doc:"Tools that were called in this order."`
	UsedNoTools     bool        `yaml:"usedNoTools" enum:"true" doc:"No tool was called."`
	NoFailedActions bool        `yaml:"noFailedActions" enum:"true" doc:"No tool call failed."`
	MaxToolCalls    *int        `yaml:"maxToolCalls" min:"0" max:"1000000000" doc:"At most so many tool calls."`
	MaxTokens       *int64      `yaml:"maxTokens" min:"0" max:"1000000000000" doc:"At most so many tokens."`
	MaxCost         *float64    `yaml:"maxCost" min:"0" max:"1000000000" doc:"At most so many US dollars."`
	Succeeded       bool        `yaml:"succeeded" enum:"true" doc:"Every turn completed."`
	Event           string      `yaml:"event" min:"1" doc:"An event of this type happened."`
	NotEvent        string      `yaml:"notEvent" min:"1" doc:"No event of this type happened."`
	Judge           *JudgeCheck `yaml:"judge" doc:"A model grades the work from 0 to 1."`

	Name     string   `yaml:"name" min:"1" doc:"Name in reports."`
	Soft     bool     `yaml:"soft" doc:"Reported, never decides."`
	Gate     *float64 `yaml:"gate" min:"0" max:"1" doc:"A measurement decides: it must be at least this."`
	AtLeast  *float64 `yaml:"atLeast" min:"0" max:"1" doc:"A measurement is held to this and does not decide."`
	Optional bool     `yaml:"optional" doc:"Missing evidence does not make the attempt errored."`
	Stop     bool     `yaml:"stop" doc:"A miss ends the attempt here."`
}

// JudgeCheck is a criterion for a grading model, or a question of another kind.
type JudgeCheck struct {
	Criterion string         `yaml:",either" format:"nonblank"`
	Question  *JudgeQuestion `yaml:",either"`
}

// JudgeQuestion is one question with its material.
type JudgeQuestion struct {
	Criteria   string `yaml:"criteria" format:"nonblank" doc:"How well the work meets this."`
	ClosedQA   string `yaml:"closedQA" format:"nonblank" doc:"A question about the work; yes is 1, no is 0."`
	Factuality string `yaml:"factuality" format:"nonblank" doc:"The right answer, with whose facts the output is compared."`
	Summary    string `yaml:"summary" format:"nonblank" doc:"The source that the output sums up."`
	Input      string `yaml:"input" min:"1" doc:"What was asked; default the conversation."`
	Output     string `yaml:"output" min:"1" doc:"What is graded; default the last reply and the changes."`
	File       string `yaml:"file" min:"1" doc:"A file of the sandbox that is graded instead."`
}

// Rules says that a question is of one kind and has one output.
func (JudgeQuestion) Rules() []Rule {
	return []Rule{{ExactlyOne, []string{"criteria", "closedQA", "factuality", "summary"}}, {AtMostOne, []string{"output", "file"}}}
}

// CheckKind is a kind of check, named by its key, and the further fields that
// it takes besides those of CommonCheckFields.
type CheckKind struct {
	Name  string
	Extra []string
}

// CheckKinds lists what a check can be.
func CheckKinds() []CheckKind {
	kinds := []CheckKind{
		{"run", []string{"exit", "stdout", "stderr"}},
		{"file", []string{"exists", "contains", "excludes", "matches", "equals", "json"}},
		{"judge", []string{"gate", "atLeast"}},
	}
	for _, name := range []string{
		"reply", "changed", "deleted", "unchanged", "noChanges", "calledTool", "notCalledTool", "toolOrder", "usedNoTools",
		"noFailedActions", "maxToolCalls", "maxTokens", "maxCost", "succeeded", "event", "notEvent",
	} {
		kinds = append(kinds, CheckKind{Name: name})
	}
	return kinds
}

// CommonCheckFields are the fields of every check. Gate and atLeast are for
// measurements alone.
func CommonCheckFields() []string { return []string{"name", "soft", "optional", "stop"} }

// Match is an expectation of a text; all that is there must hold.
type Match struct {
	Contains string  `yaml:"contains" min:"1" doc:"Text that it has."`
	Excludes string  `yaml:"excludes" min:"1" doc:"Text that it has not."`
	Matches  string  `yaml:"matches" format:"regex" doc:"Regular expression (RE2) that it matches."`
	Equals   *string `yaml:"equals" doc:"The whole text."`
	JSON     any     `yaml:"json" doc:"Part of the JSON document that it is."`
}

// Rules says that an empty expectation is none.
func (Match) Rules() []Rule {
	return []Rule{{AtLeastOne, []string{"contains", "excludes", "matches", "equals", "json"}}}
}

// Tool selects tool calls.
type Tool struct {
	Name   string `yaml:"name" min:"1" doc:"Canonical name of the tool."`
	Input  any    `yaml:"input" doc:"Part of the input; leaves may be {contains: …} and its kin."`
	Output *Match `yaml:"output" doc:"What the call returned."`
	Status string `yaml:"status" enum:"completed,failed,rejected" doc:"How the call ended."`
	Count  *int   `yaml:"count" min:"0" max:"1000000000" doc:"Exact number of such calls."`
}

// Rules says that a selection of nothing in particular is none.
func (Tool) Rules() []Rule {
	return []Rule{{AtLeastOne, []string{"name", "input", "output", "status"}}}
}
