// Package assay is the vocabulary of an author: Eval, Experiment, Group, Suite,
// and T, which an eval's test drives.
//
// A program of your own runs the same engine as the assay command:
//
//	func main() { app.Main(assay.Suite{…}) }
//
// Main lives in package app and not here, because the engine imports this
// package for Eval; Main here would be a cycle.
package assay

import (
	"context"
	"time"

	"assay/agent"
	"assay/judge"
	"assay/ref"
	"assay/sandbox"
)

// Suite is everything that is defined: in files of a project folder, in Go, or
// both. An id that is defined twice is an error.
type Suite struct {
	Name        string
	Experiments []Experiment
	Evals       []Eval
	Groups      []Group
	Defaults    Defaults
	// Profiles are named sandbox layers that experiments choose.
	Profiles map[string]sandbox.Layer
	// Root is the project folder, "" for a program without one.
	Root string
	// Record is the record root; "" is .assay/record below Root.
	Record string
	// MaxConcurrency is the project's width; 0 leaves it to the providers.
	MaxConcurrency int
	// Judge is the lowest level of the judge's configuration.
	Judge judge.Config
	// Telemetry, when set, receives the spans of agents that can send them.
	Telemetry *Telemetry
}

// Telemetry says how spans of agents are received. They tell where time went and
// decide nothing.
type Telemetry struct {
	// Host is the name under which sandboxes reach this machine; "" leaves it to
	// the provider, and else to a receiver in the sandbox.
	Host string
	// Port is that of Host; 0 is any free one.
	Port int
}

// Defaults is the lowest level of configuration.
type Defaults struct {
	Sandbox sandbox.Layer
	Timeout time.Duration
}

// Experiment is one run configuration: which agent and model, in which sandbox,
// on which evals, how often and within which limits.
type Experiment struct {
	// ID is the path below experiments/ without ".yaml"; Go authors give it.
	ID              ref.ExperimentID
	Description     string
	Agent           agent.Agent
	Model           string
	ReasoningEffort string
	// Flags are experimental conditions that agent and eval can see.
	Flags map[string]any
	// Labels are for reports only.
	Labels map[string]any
	// Evals are "*" or id prefixes; nil means all.
	Evals []string
	// Select, when set, chooses further among them.
	Select func(Eval) bool
	// Attempts per eval; 0 means 1.
	Attempts  int
	EarlyExit bool
	Timeout   time.Duration
	// Budget in USD; 0 is none.
	Budget float64
	// MaxConcurrency of this experiment; 1 is a strict critical section from
	// before sandbox creation until the sandbox is gone; 0 is no gate.
	MaxConcurrency int
	Profile        string
	Sandbox        sandbox.Layer
	// SandboxReuse lets attempts use a sandbox one after the other: MaxConcurrency
	// sandboxes at most, each reset before it is handed on. It needs a lifetime of
	// the sandbox.
	SandboxReuse bool
	// MaxUses is how many attempts one reused sandbox serves; 0 is no limit.
	MaxUses     int
	SharedState string
	// Judge overrides the project's judge.
	Judge judge.Config
	// Setup and Teardown run on the host once per run, only if something will
	// execute. The commands run first.
	SetupCommands    []sandbox.Command
	TeardownCommands []sandbox.Command
	Setup            HostHook
	Teardown         HostHook
	// Plugins are reusable conditions of all its pairs.
	Plugins []Plugin
	// Source is the file it was defined in, or "".
	Source string
}

// HostHook is author code that runs on the host for a whole experiment.
type HostHook func(ctx context.Context, n sandbox.Notes) error

// Eval is one test case: start files, what the agent is told, and checks. It is
// either declared (Prompt or Turns, Checks) or has a Test function, which then
// does the driving and checking.
type Eval struct {
	// ID is the path below evals/; Go authors give it.
	ID          ref.EvalID
	Description string
	Tags        []string
	Sandbox     sandbox.Layer
	Timeout     time.Duration
	// Workspace is a host folder uploaded to the workdir before the first turn.
	Workspace string
	// Files are written to the workdir after the workspace, by relative path.
	Files map[string]string
	// Setup runs for each attempt after the upload, before the baseline.
	Setup []sandbox.Command
	// Prompt is short for one turn.
	Prompt string
	Turns  []TurnSpec
	// Hidden is a host folder uploaded to the workdir after the last turn, when
	// the agent's processes are gone.
	Hidden string
	// KeepProcesses leaves what the agent started running during grading, such
	// as a server that a check asks. It excludes Hidden.
	KeepProcesses bool
	Checks        []Check
	// Solution is what the oracle agent runs in the workdir, with the files of
	// the host folder SolutionDir beside it in $SOLUTION_DIR.
	Solution    *sandbox.Command
	SolutionDir string
	Teardown    []sandbox.Command
	Diff        DiffRules
	Metadata    map[string]any
	// Judge declares that Test asks a judge, and overrides its configuration; a
	// declared judge check needs no declaration.
	Judge *judge.Config
	// Test drives the agent and checks what it did. It returns an error only
	// when it could not do its work; the attempt is errored then.
	Test func(ctx context.Context, t *T) error
	// Revision names what nobody can see from the outside: the body of Test, or
	// data that it reads. Change it when results of before no longer hold.
	Revision string
	// Inputs are host files and folders, relative to Dir, that Test or a command
	// reads without naming them elsewhere: their content enters carry.
	Inputs []string
	// Plugins are reusable conditions of the eval.
	Plugins []Plugin
	// Dir is the host folder that relative paths start from.
	Dir string
	// Source is the file it was defined in, or "".
	Source string
}

// TurnSpec is one declared turn.
type TurnSpec struct {
	Prompt     string
	NewSession bool
	// Checks are evaluated right after the turn.
	Checks []Check
}

// DiffRules say what the change ledger leaves out and takes back in, as
// gitignore-like patterns relative to the workdir.
type DiffRules struct {
	Ignore, Include []string
}

// Group is an ordered set of evals that share one sandbox.
type Group struct {
	ID            string
	Evals         []ref.EvalID
	Sandbox       sandbox.Layer
	OnUnavailable string // "stop-group" or "replace-sandbox"
	// Plugins are reusable conditions of the group's members.
	Plugins []Plugin
	Source  string
}

// Check is one declared check. Exactly one of the kinds is set.
type Check struct {
	// The kinds.
	Run             *RunCheck
	File            *FileCheck
	Reply           *ValueMatch
	Changed         string // path or pattern that the agent added or modified
	Deleted         string
	Unchanged       string
	NoChanges       bool
	CalledTool      *ToolMatch
	NotCalledTool   *ToolMatch
	ToolOrder       []string
	UsedNoTools     bool
	NoFailedActions bool
	MaxToolCalls    *int
	MaxTokens       *int64
	MaxCost         *float64
	Succeeded       bool
	Event           string // an event of this type happened
	NotEvent        string
	Judge           *JudgeCheck

	Name     string
	Soft     bool
	Gate     *float64
	AtLeast  *float64
	Optional bool
	// Stop ends the attempt here when the check is missed.
	Stop bool
}

// RunCheck runs a command in the sandbox and looks at how it ended.
type RunCheck struct {
	Command sandbox.Command
	// Exit is the wanted exit code.
	Exit           int
	Stdout, Stderr *ValueMatch
}

// FileCheck looks at one file of the sandbox.
type FileCheck struct {
	Path   string
	Exists *bool
	Match  *ValueMatch
}

// ValueMatch is a declared expectation of a text. All that is set must hold.
type ValueMatch struct {
	Contains string
	Excludes string
	Matches  string
	Equals   *string
	JSON     any // partial structure; leaves may be ValueMatch
}

// ToolMatch selects tool calls.
type ToolMatch struct {
	Name   string
	Input  any // partial structure of the input
	Output *ValueMatch
	Status string
	// Count, when set, is the exact number of matching calls.
	Count *int
}
