package e2b

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/e2b/e2bapi"
)

// Recipe is a template as a file describes it: what a Builder does, in YAML.
type Recipe struct {
	Name    string   `yaml:"name" json:"name,omitempty" min:"1" doc:"Name of the template, as name or name:tag; omitted is the file's name."`
	Tags    []string `yaml:"tags" json:"tags,omitempty" doc:"Further tags of the build."`
	From    Source   `yaml:"from" json:"from" doc:"Where to start; omitted is E2B's base image."`
	Context string   `yaml:"context" json:"context,omitempty" format:"hostpath" doc:"Folder that copy steps read below, relative to this file; omitted is the file's own. Its .dockerignore counts."`
	CPUs    int      `yaml:"cpus" json:"cpus,omitempty" min:"1" max:"256" doc:"CPUs of every sandbox of the template."`
	Memory  int64    `yaml:"memory" json:"memory,omitempty" format:"size" doc:"Memory of every sandbox of the template, such as 2GiB."`
	Steps   []Action `yaml:"steps" json:"steps,omitempty" doc:"What to do, in order. Each is a layer that later builds use again."`
	Start   string   `yaml:"start" json:"start,omitempty" format:"nonblank" doc:"A command that runs in every sandbox from its start."`
	Ready   *Ready   `yaml:"ready" json:"ready,omitempty" doc:"When a sandbox counts as ready."`
}

// Source is where a template starts: at most one of its first four fields.
type Source struct {
	Template   string        `yaml:"template" json:"template,omitempty" format:"nonblank" doc:"Another template, as name or name:tag."`
	Image      string        `yaml:"image" json:"image,omitempty" format:"nonblank" doc:"A container image."`
	Dockerfile string        `yaml:"dockerfile" json:"dockerfile,omitempty" format:"hostpath" doc:"A Dockerfile of one stage, relative to this file."`
	Agent      string        `yaml:"agent" json:"agent,omitempty" enum:"claude-code,codex,bub" doc:"A coding agent, installed at its pinned version."`
	Version    string        `yaml:"version" json:"version,omitempty" min:"1" doc:"Another version of the agent."`
	Packages   []string      `yaml:"pythonPackages" json:"pythonPackages,omitempty" min:"1" doc:"Python packages beside bub: those that its pythonPlugins name."`
	Registry   *RegistryName `yaml:"registry" json:"registry,omitempty" doc:"How a private image is pulled."`
}

// RegistryName is a registry's user, whose password is in the environment.
type RegistryName struct {
	User        string `yaml:"user" json:"user" required:"true" min:"1" doc:"User name."`
	PasswordEnv string `yaml:"passwordEnv" json:"passwordEnv" required:"true" format:"env" doc:"Host variable that holds the password."`
}

// Action is one step: exactly one of Apt, Pip, Npm, Run, Copy, Env, Workdir and
// User.
type Action struct {
	Apt     []string          `yaml:"apt" json:"apt,omitempty" min:"1" doc:"Debian packages, without recommended ones."`
	Pip     []string          `yaml:"pip" json:"pip,omitempty" min:"1" doc:"Python packages, for everybody."`
	Npm     []string          `yaml:"npm" json:"npm,omitempty" min:"1" doc:"npm packages, for everybody."`
	Run     string            `yaml:"run" json:"run,omitempty" format:"nonblank" doc:"A script, run by bash."`
	Copy    string            `yaml:"copy" json:"copy,omitempty" format:"glob" doc:"File, folder or pattern below the context."`
	Env     map[string]string `yaml:"env" json:"env,omitempty" keys:"env" doc:"Variables of later steps and of the sandbox."`
	Workdir string            `yaml:"workdir" json:"workdir,omitempty" min:"1" doc:"Working directory from here on."`
	User    string            `yaml:"user" json:"user,omitempty" min:"1" doc:"User from here on."`
	To      string            `yaml:"to" json:"to,omitempty" min:"1" doc:"Where copy puts it."`
	As      string            `yaml:"as" json:"as,omitempty" min:"1" doc:"User of this run, or owner of what this copy puts."`
	Mode    string            `yaml:"mode" json:"mode,omitempty" min:"1" doc:"Permission bits of what copy puts, such as \"0755\"."`
}

// Ready is when a sandbox counts as ready: a command, or one condition.
type Ready struct {
	Command   string     `yaml:",either" json:"command,omitempty" format:"nonblank" doc:"A command that succeeds then."`
	Condition *Condition `yaml:",either" json:"condition,omitempty"`
}

// Condition is exactly one of its fields.
type Condition struct {
	Port    int           `yaml:"port" json:"port,omitempty" min:"1" max:"65535" doc:"Something listens at it."`
	URL     string        `yaml:"url" json:"url,omitempty" format:"url" doc:"It answers with 200."`
	Process string        `yaml:"process" json:"process,omitempty" min:"1" doc:"A process of this name runs."`
	File    string        `yaml:"file" json:"file,omitempty" format:"abspath" doc:"It is there."`
	After   time.Duration `yaml:"after" json:"after,omitempty" doc:"So long after the start."`
}

func invalid(format string, args ...any) error {
	return fault.Configf("template-invalid", "Correct the template's file; `assay schema template` describes it.", format, args...)
}

// count is how many of the values are set.
func count(set ...bool) int {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}

// Builder returns the recipe as a Builder; dir is the folder of its file. The
// password of a registry is read with lookup.
func (r *Recipe) Builder(dir string, lookup func(string) (string, bool)) (*Builder, error) {
	folder := filepath.Join(dir, r.Context)
	if filepath.IsAbs(r.Context) {
		folder = r.Context
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return nil, invalid("context: there is no folder %s", folder)
	}
	b := Template(folder)
	if err := r.From.apply(b, dir, lookup); err != nil {
		return nil, err
	}
	for i, a := range r.Steps {
		if err := a.apply(b); err != nil {
			return nil, invalid("steps[%d]: %v", i, err)
		}
	}
	ready, err := r.Ready.command()
	switch {
	case err != nil:
		return nil, err
	case r.Start != "":
		b.SetStartCmd(r.Start, ready)
	case ready != "":
		b.SetReadyCmd(ready)
	}
	return b, b.err
}

func (s Source) apply(b *Builder, dir string, lookup func(string) (string, bool)) error {
	if count(s.Template != "", s.Image != "", s.Dockerfile != "", s.Agent != "") > 1 {
		return invalid("from: template, image, dockerfile and agent exclude each other")
	}
	if s.Agent == "" && (s.Version != "" || len(s.Packages) > 0) {
		return invalid("from: version and pythonPackages belong to an agent")
	}
	if s.Registry != nil && s.Image == "" {
		return invalid("from: a registry belongs to an image")
	}
	switch {
	case s.Template != "":
		b.FromTemplate(s.Template)
	case s.Image != "" && s.Registry != nil:
		password, ok := lookup(s.Registry.PasswordEnv)
		if !ok || password == "" {
			return fault.Configf("template-registry", "Set it to the registry's password.", "the variable %s is not set", s.Registry.PasswordEnv)
		}
		b.FromImage(s.Image, e2bapi.Registry{Username: s.Registry.User, Password: password})
	case s.Image != "":
		b.FromImage(s.Image)
	case s.Dockerfile != "":
		file := s.Dockerfile
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return fault.Wrap(err, fault.Config, "template-files", "read the Dockerfile")
		}
		b.FromDockerfile(string(text) + "\n")
	case s.Agent != "":
		agent := CodingAgentTemplate(s.Agent, AgentOptions{Version: s.Version, BubPythonPackages: s.Packages})
		agent.dir = b.dir
		*b = *agent
	}
	return b.err
}

func (a Action) apply(b *Builder) error {
	if n := count(len(a.Apt) > 0, len(a.Pip) > 0, len(a.Npm) > 0, a.Run != "", a.Copy != "", len(a.Env) > 0, a.Workdir != "", a.User != ""); n != 1 {
		return fmt.Errorf("a step is exactly one of apt, pip, npm, run, copy, env, workdir and user, and this is %d of them", n)
	}
	switch {
	case a.Copy == "" && (a.To != "" || a.Mode != ""):
		return fmt.Errorf("to and mode belong to copy")
	case a.As != "" && a.Copy == "" && a.Run == "":
		return fmt.Errorf("as belongs to run and copy")
	case a.Copy != "" && a.To == "":
		return fmt.Errorf("copy needs `to`")
	}
	switch {
	case len(a.Apt) > 0:
		b.AptInstallLean(a.Apt...)
	case len(a.Pip) > 0:
		b.PipInstall(a.Pip...)
	case len(a.Npm) > 0:
		b.NpmInstallGlobal(a.Npm...)
	case a.Run != "" && a.As != "":
		b.RunCmdAs(a.As, a.Run)
	case a.Run != "":
		b.RunCmd(a.Run)
	case a.Copy != "":
		o := CopyOptions{User: a.As}
		if a.Mode != "" {
			mode, err := strconv.ParseUint(a.Mode, 8, 12)
			if err != nil || mode == 0 {
				return fmt.Errorf("%q is no mode such as \"0755\"", a.Mode)
			}
			o.Mode = uint32(mode)
		}
		b.Copy(a.Copy, a.To, o)
	case len(a.Env) > 0:
		b.SetEnvs(a.Env)
	case a.Workdir != "":
		b.SetWorkdir(a.Workdir)
	default:
		b.SetUser(a.User)
	}
	return nil
}

// command is the shell command of a condition, "" for none.
func (r *Ready) command() (string, error) {
	switch {
	case r == nil:
		return "", nil
	case r.Condition == nil:
		return r.Command, nil
	}
	c := r.Condition
	if n := count(c.Port != 0, c.URL != "", c.Process != "", c.File != "", c.After != 0); n != 1 {
		return "", invalid("ready: it is exactly one of port, url, process, file and after, and this is %d of them", n)
	}
	switch {
	case c.Port != 0:
		return WaitForPort(c.Port), nil
	case c.URL != "":
		return WaitForURL(quote(c.URL), 0), nil
	case c.Process != "":
		return WaitForProcess(quote(c.Process)), nil
	case c.File != "":
		return WaitForFile(quote(c.File)), nil
	}
	return WaitForTimeout(c.After), nil
}

// StartPointRecipe says that E2B builds templates, from a Recipe.
func (p *Provider) StartPointRecipe() (noun string, recipe any) { return "template", &Recipe{} }

// BuildStartPoint builds a template from a *Recipe.
func (p *Provider) BuildStartPoint(ctx context.Context, s sandbox.StartPointBuild) (sandbox.StartPoint, error) {
	r, ok := s.Recipe.(*Recipe)
	if !ok {
		return sandbox.StartPoint{}, invalid("a template needs a *Recipe, got %T", s.Recipe)
	}
	b, err := r.Builder(s.Dir, os.LookupEnv)
	if err != nil {
		return sandbox.StartPoint{}, err
	}
	o := BuildOptions{Tags: r.Tags, CPUs: r.CPUs, MemoryMB: int(r.Memory >> 20), SkipCache: s.Anew}
	if s.Log != nil {
		o.Log = func(l e2bapi.LogEntry) { s.Log(l.Message) }
	}
	built, err := p.BuildTemplate(ctx, b, cmp.Or(r.Name, s.Name), o)
	if err != nil {
		return sandbox.StartPoint{}, err
	}
	return sandbox.StartPoint{ID: built.TemplateID, Name: built.Name, Tags: built.Tags, Layer: Kind + ": {template: " + built.Name + "}"}, nil
}

var _ sandbox.StartPointBuilder = (*Provider)(nil)
