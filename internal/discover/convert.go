package discover

import (
	"fmt"
	"maps"
	"slices"

	"assay"
	"assay/internal/projectfile"
	"assay/ref"
	"assay/sandbox"
)

type layer = sandbox.Layer

// field is a place in a file; nil is its root.
type field = *projectfile.Field

// layer converts a sandbox layer.
func (f *file) layer(in *projectfile.Layer, at field) sandbox.Layer {
	l := sandbox.NewLayer()
	if in == nil {
		return l
	}
	if c := in.Provider; c != nil {
		def, _ := f.l.kinds.Sandboxes.Lookup(c.Name)
		if clean(f, at.Key(c.Name)) {
			t, err := def.Template(c.Options, f.dir())
			if err != nil {
				f.reportErr(at.Key(c.Name), err)
			} else {
				l = l.WithTemplate(t)
			}
		}
	}
	if in.User != "" {
		l = l.User(in.User)
	}
	if in.Lifetime != 0 {
		l = l.Lifetime(in.Lifetime)
	}
	if len(in.Env) > 0 {
		l = l.Env(in.Env)
	}
	if len(in.SecretEnv) > 0 {
		l = l.SecretEnv(in.SecretEnv...)
	}
	for i, name := range in.SecretEnv {
		if _, ok := in.Env[name]; ok {
			f.report(at.Key("secretEnv").Index(i), "field-conflict", fmt.Sprintf("%s is also in env", name), "Keep one of them.")
		}
	}
	if len(in.Path) > 0 {
		l = l.Path(in.Path...)
	}
	if in.Workdir != "" {
		l = l.Workdir(in.Workdir)
	}
	if r := in.Resources; r != nil {
		l = l.Resources(sandbox.Resources{CPUs: r.CPUs, Memory: r.Memory, PIDs: r.PIDs, Disk: r.Disk})
	}
	if n := in.Network; n != nil {
		net := sandbox.Network{Mode: n.Mode}
		if n.Allow != nil {
			net = sandbox.Network{Mode: "allow", Allow: n.Allow.Allow}
		}
		l = l.Network(net)
	}
	if len(in.Prepare) > 0 {
		l = l.Prepare(f.commands(in.Prepare, at.Key("prepare"))...)
	}
	if len(in.Setup) > 0 {
		l = l.SetupCommands(f.commands(in.Setup, at.Key("setup"))...)
	}
	if len(in.Teardown) > 0 {
		l = l.TeardownCommands(f.commands(in.Teardown, at.Key("teardown"))...)
	}
	return l
}

// clean reports whether the file has no problem at or below a place: a provider
// is only given options that were read in full.
func clean(f *file, at field) bool {
	prefix := at.String()
	for _, p := range f.problems {
		if len(p.Field) >= len(prefix) && p.Field[:len(prefix)] == prefix {
			return false
		}
	}
	return true
}

func (f *file) commands(in []projectfile.Command, at field) []sandbox.Command {
	out := make([]sandbox.Command, len(in))
	for i, c := range in {
		out[i] = f.command(c, at.Index(i))
	}
	return out
}

func (f *file) command(in projectfile.Command, at field) sandbox.Command {
	c := in.Sandbox()
	if len(c.Argv) > 0 && c.Argv[0] == "" {
		f.report(at.Key("argv").Index(0), "bad-value", "the executable has no name", "Name an executable.")
	}
	return c
}

func (f *file) experiment(in *projectfile.Experiment) *assay.Experiment {
	x := &assay.Experiment{
		ID: ref.ExperimentID(f.s.id), Description: in.Description, Model: in.Model, ReasoningEffort: in.ReasoningEffort,
		Flags: in.Flags, Labels: in.Labels, EarlyExit: in.EarlyExit, Timeout: in.Timeout, Budget: in.Budget,
		Profile: in.Profile, SandboxReuse: in.SandboxReuse.On || in.SandboxReuse.Limits != nil, Source: f.path,
	}
	if r := in.SandboxReuse.Limits; r != nil {
		x.MaxUses = r.MaxUses
	}
	at := field(nil)
	if a := in.Agent; a != nil && a.Name != "" {
		where := at.Key("agent")
		if clean(f, where) {
			def, _ := f.l.kinds.Agents.Lookup(a.Name)
			made, err := def.Agent(a.Options, f.dir())
			if err != nil {
				f.reportErr(where, err)
			}
			x.Agent = made
		}
	}
	if in.Evals != nil {
		x.Evals = in.Evals.Prefixes
		if in.Evals.All != "" {
			x.Evals = []string{"*"}
		}
	}
	if in.Attempts != nil {
		x.Attempts = *in.Attempts
	}
	if in.MaxConcurrency != nil {
		x.MaxConcurrency = *in.MaxConcurrency
	}
	if in.SharedState != nil {
		x.SharedState = in.SharedState.Key
	}
	x.Judge = judgeConfig(in.Judge)
	x.Sandbox = f.layer(in.Sandbox, at.Key("sandbox"))
	x.SetupCommands = f.commands(in.Setup, at.Key("setup"))
	x.TeardownCommands = f.commands(in.Teardown, at.Key("teardown"))
	x.Plugins = f.pluginsOf(in.Plugins, at.Key("plugins"))
	f.s.root = f.root
	return x
}

func (f *file) group(in *projectfile.Group) *assay.Group {
	g := &assay.Group{ID: f.s.id, OnUnavailable: in.OnUnavailable, Source: f.path}
	if g.OnUnavailable == "" {
		g.OnUnavailable = "stop-group"
	}
	for _, e := range in.Evals {
		g.Evals = append(g.Evals, ref.EvalID(e))
	}
	g.Sandbox = f.layer(in.Sandbox, field(nil).Key("sandbox"))
	g.Plugins = f.pluginsOf(in.Plugins, field(nil).Key("plugins"))
	return g
}

func (f *file) eval(in *projectfile.Eval) *assay.Eval {
	e := &assay.Eval{
		ID: ref.EvalID(f.s.id), Description: in.Description, Tags: in.Tags, Timeout: in.Timeout,
		Files: in.Files, KeepProcesses: in.KeepProcesses, Metadata: in.Metadata, Revision: in.Revision, Dir: f.dir(), Source: f.path,
	}
	at := field(nil)
	e.Judge = evalJudge(in.Judge)
	e.Sandbox = f.layer(in.Sandbox, at.Key("sandbox"))
	e.Setup = f.commands(in.Setup, at.Key("setup"))
	e.Teardown = f.commands(in.Teardown, at.Key("teardown"))
	if in.Workspace != "" {
		e.Workspace = f.folder(in.Workspace, at.Key("workspace"))
	} else if f.s.workspace {
		e.Workspace = f.defaultWorkspace()
	}
	if in.Hidden != "" {
		e.Hidden = f.folder(in.Hidden, at.Key("hidden"))
	}
	if in.Prompt != nil {
		e.Prompt = f.prompt(in.Prompt, at.Key("prompt"))
	}
	for i, t := range in.Turns {
		where := at.Key("turns").Index(i)
		spec := assay.TurnSpec{NewSession: t.NewSession, Checks: f.checks(t.Checks, where.Key("checks"))}
		if t.Prompt != nil {
			spec.Prompt = f.prompt(t.Prompt, where.Key("prompt"))
		}
		e.Turns = append(e.Turns, spec)
	}
	e.Checks = f.checks(in.Checks, at.Key("checks"))
	f.solution(e, in.Solution, at.Key("solution"))
	if in.Diff != nil {
		e.Diff = assay.DiffRules{Ignore: in.Diff.Ignore, Include: in.Diff.Include}
	}
	f.clashes(e, at.Key("files"))
	for i, p := range in.Inputs {
		if full, ok := f.input(p, at.Key("inputs").Index(i)); ok {
			e.Inputs = append(e.Inputs, full)
		}
	}
	e.Plugins = f.pluginsOf(in.Plugins, at.Key("plugins"))
	return e
}

// clashes finds files of which one would have to be a folder of another.
func (f *file) clashes(e *assay.Eval, at field) {
	if len(e.Files) < 2 {
		return
	}
	names := slices.Sorted(maps.Keys(e.Files))
	for i, a := range names {
		for _, b := range names[i+1:] {
			if len(b) > len(a) && b[:len(a)] == a && b[len(a)] == '/' {
				f.report(at.Key(b), "field-conflict", fmt.Sprintf("%s is below %s, which is a file", b, a), "Rename one of them.")
				break
			}
		}
	}
}

func (f *file) checks(in []projectfile.Check, at field) []assay.Check {
	if len(in) == 0 {
		return nil
	}
	out := make([]assay.Check, len(in))
	for i := range in {
		out[i] = f.check(&in[i], at.Index(i))
	}
	return out
}

func (f *file) check(in *projectfile.Check, at field) assay.Check {
	c := assay.Check{
		Changed: in.Changed, Deleted: in.Deleted, Unchanged: in.Unchanged, NoChanges: in.NoChanges,
		ToolOrder: in.ToolOrder, UsedNoTools: in.UsedNoTools, NoFailedActions: in.NoFailedActions,
		MaxToolCalls: in.MaxToolCalls, MaxTokens: in.MaxTokens, MaxCost: in.MaxCost, Succeeded: in.Succeeded,
		Event: in.Event, NotEvent: in.NotEvent,
		Name: in.Name, Soft: in.Soft, Gate: in.Gate, AtLeast: in.AtLeast, Optional: in.Optional, Stop: in.Stop,
		Reply: match(in.Reply), CalledTool: tool(in.CalledTool), NotCalledTool: tool(in.NotCalledTool),
		Judge: judgeCheck(in.Judge),
	}
	if in.Run != nil {
		c.Run = &assay.RunCheck{Command: f.command(*in.Run, at.Key("run")), Stdout: match(in.Stdout), Stderr: match(in.Stderr)}
		if in.Exit != nil {
			c.Run.Exit = *in.Exit
		}
		if c.Run.Command.Host {
			f.report(at.Key("run").Key("host"), "field-conflict", "a check runs in the sandbox", "Remove `host:`.")
		}
	}
	if in.File != "" {
		c.File = &assay.FileCheck{Path: in.File, Exists: in.Exists}
		m := projectfile.Match{Contains: in.Contains, Excludes: in.Excludes, Matches: in.Matches, Equals: in.Equals, JSON: in.JSON}
		if m != (projectfile.Match{}) {
			c.File.Match = match(&m)
		} else if in.Exists == nil {
			// {file: x} alone says that it is there.
			yes := true
			c.File.Exists = &yes
		}
	}
	return c
}

func match(in *projectfile.Match) *assay.ValueMatch {
	if in == nil {
		return nil
	}
	return &assay.ValueMatch{Contains: in.Contains, Excludes: in.Excludes, Matches: in.Matches, Equals: in.Equals, JSON: leaves(in.JSON)}
}

func tool(in *projectfile.Tool) *assay.ToolMatch {
	if in == nil {
		return nil
	}
	return &assay.ToolMatch{Name: in.Name, Input: leaves(in.Input), Output: match(in.Output), Status: in.Status, Count: in.Count}
}

// leaves replaces maps such as {contains: npm} in a partial structure by the
// expectation that they spell: maps that have no other keys than those of an
// expectation, all with text.
func leaves(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = leaves(v[i])
		}
		return out
	case map[string]any:
		if m, ok := leaf(v); ok {
			return m
		}
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = leaves(v[k])
		}
		return out
	default:
		return v
	}
}

func leaf(v map[string]any) (assay.ValueMatch, bool) {
	var m assay.ValueMatch
	for k, x := range v {
		s, ok := x.(string)
		if !ok {
			return m, false
		}
		switch k {
		case "contains":
			m.Contains = s
		case "excludes":
			m.Excludes = s
		case "matches":
			m.Matches = s
		case "equals":
			m.Equals = &s
		default:
			return m, false
		}
	}
	return m, len(v) > 0
}
