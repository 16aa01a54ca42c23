// Package carry says what a result depends on, so that a later run can tell
// whether an old one still holds.
//
// The identity of a pair of experiment and eval is a manifest: each input that
// was declared, by name, with its value or the digest of its content, and one
// digest over all of them. Equal digests of one domain mean that nothing that
// can be seen from here has changed. What cannot be seen, such as the body of a
// Go func or an image that moved behind its tag, is part of it by its declared
// revision only.
package carry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/record"
	"assay/sandbox"
)

// Domain names the recipe of the digest. It changes whenever the recipe does, so
// that values of another recipe simply do not match.
const Domain = "assay.carry/v1"

// evaluation is the revision of how checks are evaluated and a verdict is
// folded: raise it when the same evidence can give another verdict.
const evaluation = "1"

// Level is a sandbox layer and who declared it: "config", "profile",
// "experiment", "group" or "eval".
type Level struct {
	Owner string
	Layer sandbox.Layer
	// Plugins are the owner's, in order.
	Plugins []assay.Plugin
}

// Pair is an experiment and an eval with everything resolved that their results
// depend on.
type Pair struct {
	Experiment *assay.Experiment
	Agent      agent.Info
	Eval       *assay.Eval
	// Judge is the grading model's plain settings, nil without one.
	Judge any
	// Group is the group that the eval is run in, or nil.
	Group *assay.Group
	// Levels are from the lowest to the nearest; none for a direct agent.
	Levels []Level
	// Prepares are the owners of the levels that have prepare commands, in the
	// order in which these run: that of the start point comes first.
	Prepares []string
	Settings sandbox.Settings
	// Provider is the kind and start point for people, such as "docker
	// node:24-slim", and Key the provider's key; "" for a direct agent.
	Provider string
	Key      sandbox.Key
}

// input is one input: its name and its value in full.
type input struct{ name, text string }

// Planner computes the identities of one plan. It reads every file once, and
// what pairs share is computed once. It is for one goroutine.
type Planner struct {
	root  string
	trees map[string]*tree
	exps  map[*assay.Experiment][]input
	evals map[*assay.Eval][]input
	buf   []input
}

// NewPlanner returns a planner for a project folder; "" is none.
func NewPlanner(root string) *Planner {
	return &Planner{root: root, trees: map[string]*tree{}, exps: map[*assay.Experiment][]input{}, evals: map[*assay.Eval][]input{}}
}

// Identity returns the identity of a pair. The error names a file that cannot be
// read, and has the code "carry-input-unreadable".
func (p *Planner) Identity(pair Pair) (*record.Identity, error) {
	exp, err := p.experiment(pair)
	if err != nil {
		return nil, err
	}
	eval, err := p.eval(pair.Eval)
	if err != nil {
		return nil, err
	}
	in := append(append(p.buf[:0], exp...), eval...)
	in, err = p.pair(in, pair)
	if err != nil {
		return nil, err
	}
	p.buf = in
	return seal(in), nil
}

// seal sorts the inputs and digests them.
func seal(in []input) *record.Identity {
	slices.SortFunc(in, func(a, b input) int { return strings.Compare(a.name, b.name) })
	h := sha256.New()
	id := &record.Identity{Domain: Domain, Inputs: make(map[string]string, len(in))}
	var buf []byte
	put := func(s string) {
		buf = append(fmt.Appendf(buf[:0], "%d:", len(s)), s...)
		h.Write(buf)
	}
	put(Domain)
	for _, x := range in {
		put(x.name)
		put(x.text)
		id.Inputs[x.name] = brief(x.text)
	}
	id.Digest = hex.EncodeToString(h.Sum(nil))
	return id
}

// maxBrief is how long a value may be to be shown as it is, in bytes.
const maxBrief = 160

// brief is a value for people: itself when it is short, else its digest.
func brief(text string) string {
	if len(text) <= maxBrief && !strings.ContainsAny(text, "\n\x1b") {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("sha256:%s (%d bytes)", hex.EncodeToString(sum[:6]), len(text))
}

// experiment are the inputs that all pairs of an experiment share.
func (p *Planner) experiment(pair Pair) ([]input, error) {
	x := pair.Experiment
	if in, ok := p.exps[x]; ok {
		return in, nil
	}
	l := list{}
	l.add("evaluation", evaluation)
	l.add("experiment", string(x.ID))
	l.add("agent", pair.Agent.Name)
	l.text("agent version", pair.Agent.Version)
	l.plain("agent harness", pair.Agent.Harness)
	l.plain("agent direct", pair.Agent.Direct)
	l.plain("agent secretEnv", slices.Sorted(slices.Values(pair.Agent.SecretEnv)))
	l.plain("agent artifacts", pair.Agent.Artifacts)
	if err := l.fields("agent", pair.Agent.Identity); err != nil {
		return nil, fault.Configf("agent-identity-invalid", "Make Info().Identity plain data that encodes to JSON.", "the identity of agent %s of experiment %s is no plain data: %v", pair.Agent.Name, x.ID, err)
	}
	for _, path := range pair.Agent.Files {
		if err := p.upload(&l, "agent files "+p.short(path), path, nil); err != nil {
			return nil, err
		}
	}
	l.text("model", x.Model)
	l.text("reasoningEffort", x.ReasoningEffort)
	l.each("flags", x.Flags)
	l.plain("sandboxReuse", x.SandboxReuse)
	l.text("sharedState", x.SharedState)
	p.exps[x] = l.in
	return l.in, nil
}

// eval are the inputs that all pairs of an eval share.
func (p *Planner) eval(e *assay.Eval) ([]input, error) {
	if in, ok := p.evals[e]; ok {
		return in, nil
	}
	l := list{}
	l.add("eval", string(e.ID))
	l.plain("tags", e.Tags)
	l.each("metadata", e.Metadata)
	l.text("revision", e.Revision)
	if e.Test != nil {
		l.add("test", "func")
	}
	for _, up := range []struct {
		name, path string
		ignore     []string
	}{{"workspace", e.Workspace, []string{".git"}}, {"hidden", e.Hidden, nil}, {"solution files", e.SolutionDir, nil}} {
		if up.path == "" {
			continue
		}
		if err := p.upload(&l, up.name, p.at(e.Dir, up.path), up.ignore); err != nil {
			return nil, fmt.Errorf("eval %s: %w", e.ID, err)
		}
	}
	for _, path := range e.Inputs {
		full := p.at(e.Dir, path)
		if err := p.upload(&l, "input "+p.short(full), full, []string{".git"}); err != nil {
			return nil, fmt.Errorf("eval %s: %w", e.ID, err)
		}
	}
	for name, body := range e.Files {
		l.add("files "+name, content(body))
	}
	if err := p.commands(&l, "setup", e.Setup, e.Dir); err != nil {
		return nil, err
	}
	if err := p.commands(&l, "teardown", e.Teardown, e.Dir); err != nil {
		return nil, err
	}
	l.text("prompt", e.Prompt)
	for i, t := range e.Turns {
		name := fmt.Sprintf("turn %d", i+1)
		l.add(name, t.Prompt)
		l.plain(name+" newSession", t.NewSession)
		l.checks(name+" ", t.Checks)
	}
	l.checks("", e.Checks)
	l.plain("keepProcesses", e.KeepProcesses)
	l.plain("solution", e.Solution)
	l.plain("diff ignore", e.Diff.Ignore)
	l.plain("diff include", e.Diff.Include)
	p.evals[e] = l.in
	return l.in, nil
}

// pair are the inputs of the two together: the sandbox, the group, plugins.
func (p *Planner) pair(in []input, pair Pair) ([]input, error) {
	l := list{in: in}
	if g := pair.Group; g != nil {
		l.add("group", g.ID)
		l.plain("group evals", g.Evals)
		l.text("group onUnavailable", g.OnUnavailable)
	}
	l.plain("judge", pair.Judge)
	if pair.Key == "" && len(pair.Levels) == 0 {
		return l.in, nil
	}
	l.add("sandbox", pair.Provider)
	l.add("sandbox key", string(pair.Key))
	s := pair.Settings
	l.text("sandbox user", s.User)
	l.text("sandbox workdir", s.Workdir)
	for k, v := range s.Env {
		l.add("sandbox env "+k, v)
	}
	// Names of secrets, never their values: a new key makes no result stale.
	l.plain("sandbox secretEnv", s.SecretEnv)
	l.plain("sandbox path", s.Path)
	l.plain("sandbox resources", s.Resources)
	if s.Network.Mode != "default" {
		l.plain("sandbox network", s.Network)
	}
	if len(pair.Prepares) > 1 {
		l.add("order of prepare commands", strings.Join(pair.Prepares, ", "))
	}
	for _, v := range pair.Levels {
		l.text(v.Owner+" sandbox revision", v.Layer.HookRevision())
		for _, chain := range []struct {
			name  string
			steps []sandbox.Step
		}{{"prepare", v.Layer.PrepareSteps()}, {"setup", v.Layer.SetupSteps()}, {"teardown", v.Layer.TeardownSteps()}} {
			for i, st := range chain.steps {
				if err := p.step(&l, fmt.Sprintf("%s sandbox %s %d", v.Owner, chain.name, i+1), st, pair.Eval.Dir); err != nil {
					return nil, err
				}
			}
		}
		for i, plug := range v.Plugins {
			name := fmt.Sprintf("%s plugin %d", v.Owner, i+1)
			l.plain(name, plug) // hooks are funcs: their shape only
		}
	}
	return l.in, nil
}

func (p *Planner) step(l *list, name string, st sandbox.Step, dir string) error {
	if st.Hook != nil {
		l.add(name, "func")
		return nil
	}
	return p.command(l, name, st.Command, dir)
}

func (p *Planner) commands(l *list, name string, cs []sandbox.Command, dir string) error {
	for i, c := range cs {
		if err := p.command(l, fmt.Sprintf("%s %d", name, i+1), c, dir); err != nil {
			return err
		}
	}
	return nil
}

// command is a command by content; with a declared identity that stands for it.
// Scripts of the project that a host command runs are part of it.
func (p *Planner) command(l *list, name string, c sandbox.Command, dir string) error {
	if c.ID != "" || c.Revision != "" {
		l.add(name, "id "+quote(c.ID)+" revision "+quote(c.Revision))
		return nil
	}
	l.add(name, Text(c))
	if !c.Host || p.root == "" {
		return nil
	}
	at := p.at(dir, c.Cwd)
	if c.Cwd == "" {
		at = dir
	}
	for _, word := range programs(c) {
		path := p.at(at, word)
		if !p.inside(path) || !regular(path) {
			continue
		}
		t, err := p.tree(path, nil)
		if err != nil {
			return err
		}
		l.add(name+" file "+p.short(path), t.text)
	}
	return nil
}

func (p *Planner) at(dir, path string) string {
	if filepath.IsAbs(path) || dir == "" {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

func (p *Planner) inside(path string) bool {
	rel, err := filepath.Rel(p.root, path)
	return err == nil && filepath.IsLocal(rel)
}

// short is a host path below the project, for people and for the digest: where
// the project lies is no input.
func (p *Planner) short(path string) string {
	if rel, err := filepath.Rel(p.root, path); p.root != "" && err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return filepath.Base(path)
}

// maxNamed is how many files of an upload are inputs of their own, so that a
// change names its file; of larger ones the whole is one input.
const maxNamed = 16

// upload adds the content of a host file or folder.
func (p *Planner) upload(l *list, name, path string, ignore []string) error {
	t, err := p.tree(path, ignore)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: "carry-input-unreadable", What: "read " + name + ", which the result depends on", Err: err, Fix: "Correct the path, or make the files readable."}
	}
	if len(t.files) == 0 || len(t.files) > maxNamed {
		l.add(name, t.text)
		return nil
	}
	for _, f := range t.files {
		l.add(name+" "+f.name, f.text)
	}
	return nil
}

// list collects inputs.
type list struct{ in []input }

func (l *list) add(name, text string) { l.in = append(l.in, input{name, text}) }

// text adds a value that may be absent.
func (l *list) text(name, text string) {
	if text != "" {
		l.add(name, text)
	}
}

// plain adds plain data; a zero value is none.
func (l *list) plain(name string, v any) { l.text(name, Text(v)) }

// each adds every entry of a map.
func (l *list) each(name string, m map[string]any) {
	for k, v := range m {
		text := Text(v)
		if text == "" {
			text = fmt.Sprintf("%v", v) // set to zero is not the same as not set
		}
		if word, ok := v.(string); ok && json.Valid([]byte(word)) {
			text = strconv.Quote(word) // "1" is not the same as 1
		}
		l.add(name+" "+k, text)
	}
}

// fields adds every field of a value that encodes to JSON; anything but an object
// is one input.
func (l *list) fields(name string, v any) error {
	if v == nil {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		return err
	}
	m, ok := plain.(map[string]any)
	if !ok {
		l.plain(name+" identity", plain)
		return nil
	}
	for k, v := range m {
		l.plain(name+" "+k+":", v)
	}
	return nil
}

// checks adds checks by name, and their order.
func (l *list) checks(prefix string, cs []assay.Check) {
	seen := map[string]int{}
	var order []string
	for i := range cs {
		name := cs[i].Name
		if name == "" {
			name = kind(&cs[i])
		}
		seen[name]++
		if n := seen[name]; n > 1 {
			name = fmt.Sprintf("%s #%d", name, n)
		}
		order = append(order, name)
		l.add(prefix+"check "+name, Text(cs[i]))
	}
	if len(order) > 1 {
		l.add(prefix+orderOf, strings.Join(order, ", "))
	}
}

// orderOf is the input that holds the order of checks.
const orderOf = "order of checks"
