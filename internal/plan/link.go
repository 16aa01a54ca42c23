package plan

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/carry"
	"assay/internal/lease"
	"assay/ref"
	"assay/sandbox"
)

// Link makes the plan. The error joins every problem of the whole selection,
// each a *fault.Error; no provider was asked for more than a key.
func Link(ctx context.Context, suite *assay.Suite, sel Selection, prior Prior) (*Plan, error) {
	ctx = sandbox.WithMemo(ctx)
	l := linker{suite: suite, sel: sel, envs: map[string]*Environment{}, problems: map[string]*problem{}, seen: map[*assay.Eval]bool{}, gated: map[ref.EvalID]bool{}, groupLane: map[string]string{}}
	if err := l.validate(); err != nil {
		return nil, err
	}
	exps, err := selectExperiments(suite.Experiments, sel.Experiment)
	if err != nil {
		return nil, err
	}
	evals, problems := selectEvals(suite, exps, sel)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	p := &Plan{Width: sel.MaxConcurrency, rerun: sel.Rerun, keep: sel.KeepSandbox}
	if p.Width == 0 {
		p.Width = suite.MaxConcurrency
	}
	for i, x := range exps {
		if len(evals[i]) == 0 {
			p.Notices = append(p.Notices, Notice{"experiment-selects-nothing", fmt.Sprintf("experiment %s selects none of the named evals and is left out", x.ID)})
			continue
		}
		p.Experiments = append(p.Experiments, l.experiment(ctx, p, x, evals[i]))
	}
	if err := l.joined(); err != nil {
		return nil, err
	}
	p.Adopt(prior)
	if len(l.ungated) > 0 {
		p.Notices = append(p.Notices, Notice{"eval-without-gate", fmt.Sprintf("%d evals have no check that decides, so whatever the agent does passes: %s", len(l.ungated), some(l.ungated, 8))})
	}
	if len(l.unsolved) > 0 {
		p.Notices = append(p.Notices, Notice{"eval-solution-missing", fmt.Sprintf("%d pairs will be errored, because the agent needs a solution and the eval has none: %s", len(l.unsolved), some(l.unsolved, 8))})
	}
	return p, nil
}

type linker struct {
	suite    *assay.Suite
	sel      Selection
	envs     map[string]*Environment
	order    []string
	problems map[string]*problem
	seen     map[*assay.Eval]bool // whose files were looked at
	gated    map[ref.EvalID]bool  // whose checks were looked at
	ungated  []string             // evals without a check that decides
	unsolved []string             // pairs of an agent that needs a solution
	inert    bool
	groupOf  map[ref.EvalID]*assay.Group
	// identities computes what results depend on; bare are the layers of the pair
	// at hand without plugins.
	identities *carry.Planner
	bare       []Level
	// groupLane is the lane of the first member of each experiment's groups.
	groupLane map[string]string
}

// problem is one kind of problem with the pairs that have it.
type problem struct {
	err   *fault.Error
	pairs []string
}

// report notes a problem of a pair, or with "" of a definition by itself. Equal
// problems are told once.
func (l *linker) report(pair string, err *fault.Error) {
	key := err.Code + "\x00" + err.What
	p := l.problems[key]
	if p == nil {
		p = &problem{err: err}
		l.problems[key] = p
		l.order = append(l.order, key)
	}
	if pair != "" {
		p.pairs = append(p.pairs, pair)
	}
}

func (l *linker) joined() error {
	var all []error
	for _, k := range l.order {
		p := l.problems[k]
		e := *p.err
		if len(p.pairs) > 0 {
			e.What += " (" + some(p.pairs, 5) + ")"
		}
		all = append(all, &e)
	}
	return errors.Join(all...)
}

// validate finds what is wrong with the suite itself, whatever is selected.
func (l *linker) validate() error {
	seenX, seenE := map[ref.ExperimentID]string{}, map[ref.EvalID]string{}
	for _, x := range l.suite.Experiments {
		if err := ref.CheckPathID(string(x.ID)); err != nil {
			l.report("", fault.Configf("id-invalid", "Give the experiment a path-like id.", "experiment: %v", err))
		}
		if from, dup := seenX[x.ID]; dup {
			l.report("", fault.Configf("duplicate-id", "Rename one of them.", "experiment id %s is defined twice: in %s and in %s", x.ID, source(from), source(x.Source)))
		}
		seenX[x.ID] = x.Source
		if x.Agent == nil {
			l.report("", fault.Configf("experiment-agent-missing", "Set the experiment's agent.", "experiment %s has no agent", x.ID))
		}
		if x.Attempts < 0 || x.MaxConcurrency < 0 || x.Budget < 0 || x.Timeout < 0 {
			l.report("", fault.Configf("experiment-negative", "Use a positive number, or leave the field out.", "experiment %s has a negative number of attempts, concurrency, budget or timeout", x.ID))
		}
		if x.Profile != "" {
			if _, ok := l.suite.Profiles[x.Profile]; !ok {
				names := slices.Sorted(maps.Keys(l.suite.Profiles))
				l.report("", fault.Configf("profile-unknown", "Name one of the profiles of assay.yaml: "+some(names, 10)+".", "experiment %s chooses the profile %q, which does not exist", x.ID, x.Profile))
			}
		}
		if x.MaxUses < 0 || x.MaxUses > 0 && !x.SandboxReuse {
			l.report("", fault.Configf("sandbox.reuse-max-uses", "Use a positive number, together with sandboxReuse.", "experiment %s limits the uses of a sandbox to %d", x.ID, x.MaxUses))
		}
		if x.SharedState != "" {
			if err := lease.CheckKey(x.SharedState); err != nil {
				l.report("", fault.Configf(fault.CodeOf(err), fault.FixOf(err), "experiment %s: %v", x.ID, err))
			}
		}
	}
	for i := range l.suite.Evals {
		e := &l.suite.Evals[i]
		if err := ref.CheckPathID(string(e.ID)); err != nil {
			l.report("", fault.Configf("id-invalid", "Give the eval a path-like id.", "eval: %v", err))
		}
		if from, dup := seenE[e.ID]; dup {
			l.report("", fault.Configf("duplicate-id", "Rename one of them.", "eval id %s is defined twice: in %s and in %s", e.ID, source(from), source(e.Source)))
		}
		seenE[e.ID] = e.Source
		declared := e.Prompt != "" || len(e.Turns) > 0
		if e.Test != nil && declared || e.Test == nil && !declared {
			l.report("", fault.Configf("eval-body", "Give it either a prompt (or turns) or a Test function.", "eval %s has no body, or two", e.ID))
		}
		if e.Prompt != "" && len(e.Turns) > 0 {
			l.report("", fault.Configf("eval-body", "Keep one of prompt and turns.", "eval %s has both a prompt and turns", e.ID))
		}
		if e.KeepProcesses && e.Hidden != "" {
			l.report("", fault.Configf("eval-keep-processes-hidden", "Remove one of them.", "eval %s has hidden files and keepProcesses: the agent's processes could read the hidden files", e.ID))
		}
	}
	l.groups()
	l.plugins()
	return l.joined()
}

func source(s string) string {
	if s == "" {
		return "Go code"
	}
	return s
}

func (l *linker) experiment(ctx context.Context, p *Plan, x *assay.Experiment, evals []*assay.Eval) *Experiment {
	out := &Experiment{Def: x, ID: x.ID, Agent: x.Agent.Info(), Attempts: max(x.Attempts, 1), EarlyExit: x.EarlyExit, Budget: x.Budget}
	if l.sel.Attempts > 0 {
		out.Attempts = l.sel.Attempts
	}
	if l.sel.Budget > 0 {
		out.Budget = l.sel.Budget
	}
	if l.sel.EarlyExit != nil {
		out.EarlyExit = *l.sel.EarlyExit
	}
	evals = l.grouped(evals)
	links := make([]Slot, len(evals))
	for i, e := range evals {
		links[i] = l.pair(ctx, p, out, e)
		l.identify(p, &links[i])
	}
	add := func(i, ordinal int) {
		s := links[i]
		s.Ref.Ordinal = ordinal
		out.Slots = append(out.Slots, &s)
	}
	// All first attempts precede any second attempt; but the sandbox of a group is
	// not given up while somebody comes for it, so its attempts stay together.
	for ordinal := range out.Attempts {
		for i := range links {
			g := l.groupOf[evals[i].ID]
			if g == nil {
				add(i, ordinal)
			}
			if g == nil || ordinal > 0 || i > 0 && l.groupOf[evals[i-1].ID] == g {
				continue
			}
			for n := range out.Attempts {
				for j := i; j < len(evals) && l.groupOf[evals[j].ID] == g; j++ {
					add(j, n)
				}
			}
		}
	}
	return out
}

// pair links one eval with one experiment.
func (l *linker) pair(ctx context.Context, p *Plan, x *Experiment, e *assay.Eval) Slot {
	s := Slot{Ref: ref.Slot{Experiment: x.ID, Eval: e.ID}, Experiment: x, Eval: e}
	s.Timeout, s.TimeoutLayer = timeout(l.sel.Timeout, x.Def, e, l.suite)
	s.Judge, s.Telemetry = judgeOf(l.suite, x.Def, e), l.suite.Telemetry
	name := fmt.Sprintf("experiment %s × eval %s", x.ID, e.ID)
	levels := []Level{{"config", l.suite.Defaults.Sandbox}}
	if x.Def.Profile != "" {
		levels = append(levels, Level{"profile " + x.Def.Profile, l.suite.Profiles[x.Def.Profile]})
	}
	levels = append(levels, Level{"experiment " + string(x.ID), x.Def.Sandbox})
	group := l.groupOf[e.ID]
	if group != nil {
		levels = append(levels, Level{"group " + group.ID, group.Sandbox})
	}
	levels = append(levels, Level{"eval " + string(e.ID), e.Sandbox})
	if x.Agent.Direct {
		if group != nil {
			l.report(name, fault.Configf("eval-group-direct-agent", "Leave the group's evals out of the experiment, or use an agent that works in a sandbox.", "eval group %s shares a sandbox, and agent %s has none", group.ID, x.Agent.Name))
			return s
		}
		if slices.ContainsFunc(levels[1:], func(v Level) bool { return !v.Layer.IsZero() }) && !l.inert {
			l.inert = true
			p.Notices = append(p.Notices, Notice{"sandbox-inert", fmt.Sprintf("agent %s of experiment %s runs without a sandbox: its sandbox layer has no effect and its hooks do not run", x.Agent.Name, x.ID)})
		}
		return s
	}
	owner := -1
	var explicit []int
	for i, v := range levels {
		if _, ok := v.Layer.Template(); !ok {
			continue
		}
		// A nearer level replaces the defaults of config and profile; the
		// experiment and the eval each say it explicitly.
		if owner >= 0 && explicitly(v.Name) && explicitly(levels[owner].Name) {
			explicit = append(explicit, owner, i)
		}
		owner = i
	}
	switch {
	case len(explicit) > 0:
		l.report(name, fault.Configf("sandbox.template-conflict", "Keep the provider on one of them; the other may still add env, prepare, setup and teardown.", "both %s and %s say where the sandbox starts from", levels[explicit[0]].Name, levels[explicit[1]].Name))
		return s
	case owner < 0:
		l.report(name, fault.Configf("sandbox.template-missing", "Add `sandbox: {docker: {image: …}}`, or another provider, to the experiment, the eval or assay.yaml's defaults.", "nothing says where the sandbox starts from"))
		return s
	}
	// Commands of a level whose start point was replaced were written for
	// another start point: only its settings stay.
	for i := range levels {
		if _, ok := levels[i].Layer.Template(); ok && i != owner {
			levels[i].Layer = levels[i].Layer.SettingsOnly()
		}
	}
	l.attach(levels, x.Def, group, e)
	s.Layers, s.Owner = levels, owner
	s.Settings = resolve(levels)
	s.Environment = l.environment(ctx, p, name, x, levels[owner])
	if s.Environment != nil {
		l.supported(name, s.Settings, s.Environment.Info)
		l.keepable(name, s.Environment.Info)
		l.commands(name, levels, e, s.Environment.Info)
		l.lane(name, &s)
	}
	l.files(e)
	l.gates(x, e)
	return s
}

// explicitly tells that a level chooses a start point for itself, rather than as
// a default of others.
func explicitly(level string) bool {
	return level != "config" && !strings.HasPrefix(level, "profile ")
}

// gates tells of evals that cannot turn red, or cannot turn green.
func (l *linker) gates(x *Experiment, e *assay.Eval) {
	if x.Agent.NeedsSolution && e.Solution == nil {
		l.unsolved = append(l.unsolved, fmt.Sprintf("%s × %s", x.ID, e.ID))
	}
	if e.Test != nil || l.gated[e.ID] {
		return
	}
	l.gated[e.ID] = true
	decides := func(cs []assay.Check) bool {
		return slices.ContainsFunc(cs, func(c assay.Check) bool { return !c.Soft && (c.Judge == nil || c.Gate != nil) })
	}
	ok := decides(e.Checks)
	for _, t := range e.Turns {
		ok = ok || decides(t.Checks)
	}
	if !ok {
		l.ungated = append(l.ungated, string(e.ID))
	}
}

// files confines what an eval uploads to the project. Each eval is looked at
// once, however many experiments select it.
func (l *linker) files(e *assay.Eval) {
	if l.seen[e] {
		return
	}
	l.seen[e] = true
	for _, up := range []struct{ field, path string }{{"workspace", e.Workspace}, {"hidden", e.Hidden}} {
		if up.path == "" {
			continue
		}
		full := up.path
		if !filepath.IsAbs(full) {
			full = filepath.Join(e.Dir, full)
		}
		if err := sandbox.Confine(l.suite.Root, full); err != nil {
			fe := fault.Configf("eval-files", "Correct the path, or create the folder.", "%s of eval %s: %v", up.field, e.ID, err)
			if c := fault.CodeOf(err); c != "" {
				fe.Code = c
			}
			l.report("", fe)
		}
	}
}

func timeout(flag time.Duration, x *assay.Experiment, e *assay.Eval, s *assay.Suite) (time.Duration, string) {
	for _, c := range []struct {
		d     time.Duration
		layer string
	}{{flag, "flag"}, {x.Timeout, "experiment"}, {e.Timeout, "eval"}, {s.Defaults.Timeout, "config"}} {
		if c.d > 0 {
			return c.d, c.layer
		}
	}
	return 0, ""
}

// resolve merges the plain fields: the nearer level wins, maps and lists add up.
func resolve(levels []Level) sandbox.Settings {
	var out sandbox.Settings
	out.Env = map[string]string{}
	for _, v := range levels {
		s := v.Layer.Settings()
		set := func(to *string, from string) {
			if from != "" {
				*to = from
			}
		}
		set(&out.User, s.User)
		set(&out.Workdir, s.Workdir)
		if s.Lifetime > 0 {
			out.Lifetime = s.Lifetime
		}
		maps.Copy(out.Env, s.Env)
		out.SecretEnv = append(out.SecretEnv, s.SecretEnv...)
		out.Path = append(s.Path, out.Path...)
		if s.Network.Mode != "" {
			out.Network = s.Network
		}
		if s.Resources.CPUs > 0 {
			out.Resources.CPUs = s.Resources.CPUs
		}
		for _, r := range []struct{ to, from *int64 }{
			{&out.Resources.Memory, &s.Resources.Memory},
			{&out.Resources.PIDs, &s.Resources.PIDs},
			{&out.Resources.Disk, &s.Resources.Disk},
		} {
			if *r.from > 0 {
				*r.to = *r.from
			}
		}
	}
	return out
}

// environment returns the shared start point of a level's template.
func (l *linker) environment(ctx context.Context, p *Plan, pair string, x *Experiment, owner Level) *Environment {
	t, _ := owner.Layer.Template()
	if t.Provider == nil {
		l.report(pair, fault.Configf("provider-binding-missing", "Make the layer with a provider's own function.", "the sandbox of %s has a start point without a provider", owner.Name))
		return nil
	}
	info := t.Provider.Info()
	spec, err := json.Marshal(t.Spec)
	if err != nil {
		l.report(pair, fault.Configf("sandbox.spec-invalid", "Use plain data.", "the %s start point of %s is no plain data: %v", info.Kind, owner.Name, err))
		return nil
	}
	// The same declaration in the same folder with the same harness is asked
	// for its key once, however many pairs share it.
	id := fmt.Sprintf("%p %s\x00%s\x00%s\x00%s@%s %q", t.Provider, info.Kind, t.Dir, spec, x.Agent.Harness.Name, x.Agent.Harness.Version, x.Agent.Harness.Install)
	if env, ok := l.envs[id]; ok {
		if env != nil {
			env.set(owner.Name)
		}
		return env
	}
	key, err := t.Provider.Key(ctx, t, x.Agent.Harness)
	if err != nil {
		fe := sandbox.Judge(ctx, t.Provider, err)
		l.report(pair, &fault.Error{Class: fault.Config, Code: cmp.Or(fe.Code, "sandbox.key-failed"), Fix: fe.Fix, What: fmt.Sprintf("%s sandbox of %s", info.Kind, owner.Name), Err: err})
		l.envs[id] = nil
		return nil
	}
	shared := fmt.Sprintf("%p %s\x00%s", t.Provider, info.Kind, key)
	env := l.envs[shared]
	if env == nil {
		env = &Environment{Provider: t.Provider, Info: info, Template: t, Harness: x.Agent.Harness, Key: key}
		l.envs[shared] = env
		p.Environments = append(p.Environments, env)
	}
	env.set(owner.Name)
	l.envs[id] = env
	return env
}

func (e *Environment) set(level string) {
	if !slices.Contains(e.Levels, level) {
		e.Levels = append(e.Levels, level)
	}
	if level == "config" || strings.HasPrefix(level, "profile ") {
		e.Default = true
	}
}

// supported refuses, before anything runs, what a provider cannot do.
func (l *linker) supported(pair string, s sandbox.Settings, info sandbox.Info) {
	refuse := func(code, fix, what string) {
		l.report(pair, fault.Configf(code, fix, "the %s sandbox %s", info.Kind, what))
	}
	if code := userCode(s.User, info); code != "" {
		refuse(code, "Remove `user:`.", "cannot run commands as user "+s.User)
	}
	if m := s.Network.Mode; m != "" && m != "default" && !info.Network {
		refuse("sandbox.network-unsupported", "Remove `network:`, or use a provider that isolates.", "cannot limit the network to "+m)
	} else if m == "allow" && !info.AllowList {
		refuse("sandbox.network-unsupported", "Use `network: none` or `network: default`, or a provider with allow-lists, such as native.", "cannot limit the network to named hosts")
	}
	if s.Resources != (sandbox.Resources{}) && !info.Limits {
		refuse("sandbox.limits-unsupported", "Remove `resources:`, or use a provider that isolates.", "cannot limit resources")
	}
	if _, ok := s.Env["PATH"]; ok {
		refuse("command-path-managed", "Use `path:` to put directories before PATH.", "manages PATH itself, so `env: {PATH: …}` has no place")
	}
}

// userCode is the code of the error that a provider cannot switch to a user, or
// "" when it can.
func userCode(user string, info sandbox.Info) string {
	switch {
	case user == "" || info.Users == sandbox.UsersAny || info.Users == sandbox.UsersRoot && user == "root":
		return ""
	case info.Kind == "local":
		return "sandbox.local-user-unsupported"
	default:
		return "sandbox.user-unsupported"
	}
}

// commands refuses, before anything runs, declared commands that could only
// fail.
func (l *linker) commands(pair string, levels []Level, e *assay.Eval, info sandbox.Info) {
	check := func(c *sandbox.Command) {
		if _, ok := c.Env["PATH"]; ok && !c.Host {
			l.report(pair, fault.Configf("command-path-managed", "Use `path:` of the sandbox to put directories before PATH.", "the command %q sets PATH, which the %s sandbox manages", c.Label(), info.Kind))
		}
		switch code := userCode(c.User, info); {
		case c.Host && c.User != "":
			l.report(pair, fault.Configf("host-user-unsupported", "Remove `user:` from the command.", "the host command %q cannot run as user %s", c.Label(), c.User))
		case code != "":
			l.report(pair, fault.Configf(code, "Remove `user:` from the command.", "the %s sandbox cannot run the command %q as user %s", info.Kind, c.Label(), c.User))
		}
	}
	for i := range levels {
		layer := &levels[i].Layer
		for _, chain := range [][]sandbox.Step{layer.PrepareSteps(), layer.SetupSteps(), layer.TeardownSteps()} {
			for j := range chain {
				check(&chain[j].Command)
			}
		}
	}
	for _, chain := range [][]sandbox.Command{e.Setup, e.Teardown} {
		for i := range chain {
			check(&chain[i])
		}
	}
	checks := func(cs []assay.Check) {
		for i := range cs {
			if cs[i].Run != nil {
				check(&cs[i].Run.Command)
			}
		}
	}
	for i := range e.Turns {
		checks(e.Turns[i].Checks)
	}
	checks(e.Checks)
}

// Coverage is the agent's normal coverage.
func (e *Experiment) Coverage() agent.Coverage { return e.Agent.Coverage }
