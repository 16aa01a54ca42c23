package compose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// project is a Compose file, resolved and found to be fit for many sandboxes.
type project struct {
	p    *types.Project
	src  *sources
	spec Spec
	root string // the folder of the Compose file, absolute
}

// loadedName stands for the name that each sandbox's project gets.
const loadedName = "stack"

// The library reports on a global logger, which would write over the terminal.
var quiet = sync.OnceFunc(func() { logrus.SetOutput(io.Discard) })

// load reads, resolves and checks a project. It reads files only.
func load(ctx context.Context, s Spec, dir string) (*project, error) {
	quiet()
	file, err := filepath.Abs(filepath.Join(dir, filepath.FromSlash(s.File)))
	if filepath.IsAbs(s.File) {
		file, err = filepath.Abs(s.File)
	}
	if err != nil {
		return nil, err
	}
	pr := &project{spec: s, root: filepath.Dir(file)}
	if pr.src, err = readSources(file); err != nil {
		return nil, err
	}
	env, err := s.variables(pr.root, dir)
	if err != nil {
		return nil, err
	}
	unset := map[string]bool{}
	pr.p, err = loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir: pr.root, Environment: env, ConfigFiles: []types.ConfigFile{{Filename: file}},
	}, func(o *loader.Options) {
		o.SetProjectName(loadedName, true)
		o.Profiles = s.Profiles
		o.Interpolate = &interpolation.Options{
			LookupValue: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
			// The table of types stays the library's own.
			TypeCastMapping: o.Interpolate.TypeCastMapping,
			Substitute: func(text string, lookup template.Mapping) (string, error) {
				for _, name := range plainVariables(text) {
					if _, ok := lookup(name); !ok {
						unset[name] = true
					}
				}
				return template.SubstituteWithOptions(text, lookup, template.WithoutLogging)
			},
		}
	})
	if err != nil {
		return nil, pr.src.loadError(err)
	}
	if len(unset) > 0 {
		names := slices.Sorted(maps.Keys(unset))
		return nil, fault.Configf("sandbox.compose-variable-unset", "Give them in `env:` or `credentialEnv:`, in an env file, or write ${NAME:-default} in the file.",
			"%s: variables are not set: %s", pr.src.at("", names[0]), strings.Join(names, ", "))
	}
	return pr, pr.check()
}

// plainVariable is $NAME or ${NAME}: a variable without a default or a message.
var plainVariable = regexp.MustCompile(`\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))`)

func plainVariables(text string) []string {
	var out []string
	for _, m := range plainVariable.FindAllStringSubmatch(strings.ReplaceAll(text, "$$", ""), -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}

// placeholder stands for a secret until a sandbox is made. No file can hold it.
func placeholder(name string) string { return "\x02" + name + "\x03" }

// variables are what the Compose file can refer to.
func (s Spec) variables(root, dir string) (types.Mapping, error) {
	env := map[string]string{}
	maps.Copy(env, s.Env)
	for name := range s.CredentialEnv {
		if _, dup := env[name]; dup {
			return nil, fault.Configf("field-conflict", "Keep one of them.", "%s is in both env and credentialEnv", name)
		}
		env[name] = placeholder(name)
	}
	var files []string
	for _, f := range s.EnvFiles {
		if !filepath.IsAbs(f) {
			f = filepath.Join(dir, filepath.FromSlash(f))
		}
		files = append(files, f)
	}
	if files == nil {
		if f := filepath.Join(root, ".env"); regular(f) {
			files = []string{f}
		}
	}
	more, err := dotenv.GetEnvFromFile(env, files)
	if err != nil {
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox.compose-env-file", What: "read env files", Fix: "Check `envFiles:`.", Err: err}
	}
	out := types.Mapping(more)
	if out == nil {
		out = types.Mapping{}
	}
	maps.Copy(out, env) // what is written in the sandbox layer wins
	return out, nil
}

func regular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// names are the services that run, in order.
func (pr *project) names() []string { return slices.Sorted(maps.Keys(pr.p.Services)) }

// image is where the image of a service comes from, for the provider of
// containers. The agent's tools are baked into the sandbox's own service only.
func (pr *project) image(engine *docker.Provider, name string, h sandbox.Harness) (sandbox.Template, sandbox.Harness) {
	svc := pr.p.Services[name]
	spec := docker.Spec{Image: svc.Image}
	if svc.Build != nil {
		spec = buildSpec(pr.root, svc.Build)
	}
	t := sandbox.Template{Provider: engine, Spec: spec, Dir: pr.root}
	if name != pr.spec.WorkspaceService {
		h = sandbox.Harness{}
	}
	return t, h
}

// platform holds an image to the platform that its service asks for.
func (pr *project) platform(name string, from sandbox.Prepared) error {
	want := pr.p.Services[name].Platform
	got := from.Details["platform"]
	if want == "" || got == "" || want == got || strings.HasPrefix(want, got+"/") {
		return nil
	}
	return fault.Configf("sandbox.image-platform", "Use an image for that platform, or leave out `platform`.", "%s: service %s asks for platform %s and its image is for %s", pr.src.at(name, "platform"), name, want, got)
}

// inService names the service that an error is about.
func (pr *project) inService(name string, err error) error {
	if err == nil {
		return nil
	}
	at := pr.src.at(name, "image", "build")
	return &fault.Error{
		Class: fault.ClassOf(err), Code: fault.CodeOf(err), Stage: fault.StageOf(err), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err),
		What: fmt.Sprintf("%s: service %s", at, name), Err: err,
	}
}

// missing reports that a file is not there, for messages.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
