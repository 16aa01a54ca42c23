package sandbox

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Hook is author code that runs once per sandbox. It returns an error to make
// the attempt errored.
type Hook func(ctx context.Context, s *Sandbox, n Notes) error

// Command is a declared command of a layer or an eval. Exactly one of Shell and
// Argv is set.
type Command struct {
	// Shell is a script for bash, or sh where there is no bash.
	Shell string
	// Argv is run without a shell.
	Argv []string
	// Name is shown instead of the command.
	Name string
	// Cwd is resolved against the workdir.
	Cwd  string
	Env  map[string]string
	User string
	// Timeout bounds the command; 0 leaves only the attempt's deadline.
	Timeout time.Duration
	// Host runs the command on the host, with ASSAY_SANDBOX_ID set.
	Host bool
	// ID and Revision are the declared identity for carry.
	ID, Revision string
}

// Label is what people see of the command.
func (c Command) Label() string {
	switch {
	case c.Name != "":
		return c.Name
	case c.Shell != "":
		return c.Shell
	default:
		return Summary(c.Argv)
	}
}

// Step is one element of a layer's chain: a declared command or a Go hook.
type Step struct {
	Command Command
	Hook    Hook // set for Go hooks
}

// Label is what people see of the step.
func (s Step) Label() string {
	if s.Hook != nil {
		return "hook"
	}
	return s.Command.Label()
}

// Layer declares, as an immutable value, how a sandbox is made ready: at most
// one start point, settings, and chains of commands and hooks. Every method
// returns a new layer and leaves the receiver as it was, so that one layer can
// be the base of many and be shared by concurrent attempts.
//
// The zero Layer is empty: command-only, with nothing in it.
type Layer struct{ l layerData }

type layerData struct {
	template  *Template
	user      string
	lifetime  time.Duration
	env       map[string]string
	secretEnv []string
	path      []string
	workdir   string
	resources Resources
	network   Network
	prepare   []Step
	setup     []Step
	teardown  []Step
	revision  string
}

// From returns a template-bearing layer.
func From(t Template) Layer { return Layer{layerData{template: &t}} }

// NewLayer returns an empty command-only layer.
func NewLayer() Layer { return Layer{} }

func (l Layer) with(change func(*layerData)) Layer {
	d := l.l
	// Chains and maps are copied so that two layers made from one never share
	// a backing array.
	d.env = maps.Clone(d.env)
	for _, s := range []*[]Step{&d.prepare, &d.setup, &d.teardown} {
		*s = slices.Clone(*s)
	}
	d.path, d.secretEnv = slices.Clone(d.path), slices.Clone(d.secretEnv)
	change(&d)
	return Layer{d}
}

// Setup appends hooks that run once per sandbox, in order, after it was created
// and before the baseline. When one fails the later ones are skipped.
func (l Layer) Setup(hooks ...Hook) Layer {
	return l.with(func(d *layerData) { d.setup = appendHooks(d.setup, hooks) })
}

// Teardown appends hooks that run once per sandbox, last first, after the
// agent's teardown and before the sandbox is destroyed. They run if and only if
// the sandbox reached its setup point, also when setup failed.
func (l Layer) Teardown(hooks ...Hook) Layer {
	return l.with(func(d *layerData) { d.teardown = appendHooks(d.teardown, hooks) })
}

// Prepare appends commands that run for every attempt, before the baseline.
func (l Layer) Prepare(commands ...Command) Layer {
	return l.with(func(d *layerData) { d.prepare = appendCommands(d.prepare, commands) })
}

// PrepareFunc appends Go hooks to the commands that run for every attempt.
func (l Layer) PrepareFunc(hooks ...Hook) Layer {
	return l.with(func(d *layerData) { d.prepare = appendHooks(d.prepare, hooks) })
}

// SetupCommands is Setup for declared commands.
func (l Layer) SetupCommands(commands ...Command) Layer {
	return l.with(func(d *layerData) { d.setup = appendCommands(d.setup, commands) })
}

// TeardownCommands is Teardown for declared commands.
func (l Layer) TeardownCommands(commands ...Command) Layer {
	return l.with(func(d *layerData) { d.teardown = appendCommands(d.teardown, commands) })
}

// User sets the identity of every command; "" is what the start point declares.
func (l Layer) User(u string) Layer { return l.with(func(d *layerData) { d.user = u }) }

// Lifetime bounds the life of one sandbox.
func (l Layer) Lifetime(t time.Duration) Layer {
	return l.with(func(d *layerData) { d.lifetime = t })
}

// Env adds variables to every command. PATH is managed; see Path.
func (l Layer) Env(env map[string]string) Layer {
	return l.with(func(d *layerData) {
		if d.env == nil {
			d.env = map[string]string{}
		}
		maps.Copy(d.env, env)
	})
}

// SecretEnv names host variables whose values every command gets. Values are
// read at run time and redacted wherever a byte is kept or shown.
func (l Layer) SecretEnv(names ...string) Layer {
	return l.with(func(d *layerData) { d.secretEnv = append(d.secretEnv, names...) })
}

// Path appends directories that are put before PATH, in order.
func (l Layer) Path(dirs ...string) Layer {
	return l.with(func(d *layerData) { d.path = append(d.path, dirs...) })
}

// Workdir asks for a working directory, where the provider lets one choose.
func (l Layer) Workdir(dir string) Layer {
	return l.with(func(d *layerData) { d.workdir = dir })
}

// Resources limits each sandbox.
func (l Layer) Resources(r Resources) Layer {
	return l.with(func(d *layerData) { d.resources = r })
}

// Network sets what a sandbox may reach.
func (l Layer) Network(n Network) Layer { return l.with(func(d *layerData) { d.network = n }) }

// Revision names the behaviour of the layer's Go hooks. Nobody can see into a
// func: change the revision when results of before no longer hold.
func (l Layer) Revision(r string) Layer {
	return l.with(func(d *layerData) { d.revision = r })
}

// HookRevision is what Revision was given, or "".
func (l Layer) HookRevision() string { return l.l.revision }

// WithTemplate returns the layer with t as its start point.
func (l Layer) WithTemplate(t Template) Layer {
	return l.with(func(d *layerData) { d.template = &t })
}

// Template returns the start point, if the layer bears one.
func (l Layer) Template() (Template, bool) {
	if l.l.template == nil {
		return Template{}, false
	}
	return *l.l.template, true
}

// SettingsOnly returns the layer without its start point and its chains: what
// is left of a level whose start point a nearer level replaced.
func (l Layer) SettingsOnly() Layer {
	return l.with(func(d *layerData) {
		d.template, d.prepare, d.setup, d.teardown, d.revision = nil, nil, nil, nil, ""
	})
}

// Settings are the plain fields of a layer.
type Settings struct {
	User      string
	Lifetime  time.Duration
	Env       map[string]string
	SecretEnv []string
	Path      []string
	Workdir   string
	Resources Resources
	Network   Network
}

// Settings returns copies of the plain fields.
func (l Layer) Settings() Settings {
	return Settings{
		User: l.l.user, Lifetime: l.l.lifetime, Env: maps.Clone(l.l.env), SecretEnv: slices.Clone(l.l.secretEnv),
		Path: slices.Clone(l.l.path), Workdir: l.l.workdir, Resources: l.l.resources, Network: l.l.network,
	}
}

// PrepareSteps, SetupSteps and TeardownSteps return the chains in append order.
func (l Layer) PrepareSteps() []Step { return slices.Clone(l.l.prepare) }

// SetupSteps returns the setup chain in append order.
func (l Layer) SetupSteps() []Step { return slices.Clone(l.l.setup) }

// TeardownSteps returns the teardown chain in append order; it runs last first.
func (l Layer) TeardownSteps() []Step { return slices.Clone(l.l.teardown) }

// IsZero reports whether the layer declares nothing.
func (l Layer) IsZero() bool {
	d := l.l
	return d.template == nil && d.user == "" && d.lifetime == 0 && len(d.env) == 0 && len(d.secretEnv) == 0 &&
		len(d.path) == 0 && d.workdir == "" && d.resources == (Resources{}) && d.network.Mode == "" &&
		len(d.prepare)+len(d.setup)+len(d.teardown) == 0 && d.revision == ""
}

func appendHooks(to []Step, hooks []Hook) []Step {
	for _, h := range hooks {
		to = append(to, Step{Hook: h})
	}
	return to
}

func appendCommands(to []Step, commands []Command) []Step {
	for _, c := range commands {
		to = append(to, Step{Command: c})
	}
	return to
}
