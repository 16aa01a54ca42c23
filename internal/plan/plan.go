// Package plan links evals with experiments: it selects, resolves every field
// that several levels can set, finds all problems at once, asks providers for
// keys, and orders the slots. It creates nothing and uses no network.
package plan

import (
	"time"

	"assay"
	"assay/agent"
	"assay/judge"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// Selection is what the command line asks for.
type Selection struct {
	// Experiment selects experiments; "" is all.
	Experiment string
	// Evals are id prefixes, each of which must match something.
	Evals []string
	Tags  []string
	// The overrides; zero means none.
	Attempts       int
	Timeout        time.Duration
	Budget         float64
	MaxConcurrency int
	EarlyExit      *bool
	// KeepSandbox is "", "failed" or "all".
	KeepSandbox string
	// Rerun widens what is executed.
	Rerun Rerun
}

// Plan is everything a run will do, as data.
type Plan struct {
	Experiments []*Experiment
	// Environments are the distinct start points of what is executed, in order of
	// first use.
	Environments []*Environment
	// Width is the explicit global width, 0 when providers decide.
	Width int
	// Notices are worth saying once, such as an inert sandbox layer.
	Notices []Notice

	rerun Rerun
	keep  string
}

// Notice is something worth saying once.
type Notice struct{ Code, Message string }

// Slots returns all slots in discovery order.
func (p *Plan) Slots() []*Slot {
	var out []*Slot
	for _, e := range p.Experiments {
		out = append(out, e.Slots...)
	}
	return out
}

// Experiment is one selected experiment with its overrides resolved.
type Experiment struct {
	Def       *assay.Experiment
	ID        ref.ExperimentID
	Agent     agent.Info
	Attempts  int
	EarlyExit bool
	Budget    float64
	Slots     []*Slot
}

// Environment is a distinct start point: what is prepared once.
type Environment struct {
	Provider sandbox.Provider
	Info     sandbox.Info
	Template sandbox.Template
	Harness  sandbox.Harness
	Key      sandbox.Key
	// Levels are the levels that set it, such as "experiment codex" or
	// "eval button", in order of first use.
	Levels []string
	// Default is true when a level set it that is shared by the whole run.
	Default bool
}

// Action is what happens to a slot.
type Action string

// The actions.
const (
	Execute Action = "execute"
	Carry   Action = "carry"
	Skip    Action = "skip" // it gets no result, and needs none
)

// Slot is one planned attempt.
type Slot struct {
	Ref        ref.Slot
	Experiment *Experiment
	Eval       *assay.Eval
	// Environment is nil for a direct agent.
	Environment *Environment
	// Layers are the layers that apply, from the lowest level to the nearest;
	// nil for a direct agent.
	Layers []Level
	// Owner is the index in Layers of the one that bears the template.
	Owner    int
	Settings sandbox.Settings
	// Lane names the sandboxes that this slot may share with other slots of its
	// experiment; "" is a sandbox of its own.
	Lane string
	// Group is the eval group whose one sandbox the slot uses, or nil.
	Group *assay.Group
	// Timeout is the attempt's limit, 0 for none, and who set it.
	Timeout      time.Duration
	TimeoutLayer string
	// Telemetry is how spans of the agent are received, nil when nobody asked.
	Telemetry *assay.Telemetry
	// Judge is the resolved judge, nil when the eval needs none.
	Judge *judge.Config

	Action  Action
	Reason  string
	Changed []string
	// Prior is the recorded attempt that Reason speaks of, or "".
	Prior ref.Locator
	// PriorVerdict belongs to Prior.
	PriorVerdict record.Verdict
	// Identity is what a result depends on, shared by all attempts of a pair.
	Identity *record.Identity
	// Past is what Prior is, with more detail; nil without.
	Past *Past
}

// Prepares are the layers in the order of their prepare commands: that of the
// start point's owner first.
func (s *Slot) Prepares() []Level {
	if len(s.Layers) == 0 {
		return nil
	}
	out := []Level{s.Layers[s.Owner]}
	for i, lv := range s.Layers {
		if i != s.Owner {
			out = append(out, lv)
		}
	}
	return out
}

// Level is a layer and the level that declared it.
type Level struct {
	// Name is "config", "profile heavy", "experiment x", "group g" or "eval y".
	Name  string
	Layer sandbox.Layer
}

// Start names the start point within its provider, such as "node:24-slim"; ""
// where the provider has only one.
func (e *Environment) Start() string {
	if n, ok := e.Template.Spec.(interface{ Label() string }); ok {
		return n.Label()
	}
	return ""
}

// Label names the start point with its provider, such as "docker node:24-slim".
func (e *Environment) Label() string {
	if start := e.Start(); start != "" {
		return e.Info.Kind + " " + start
	}
	return e.Info.Kind
}
