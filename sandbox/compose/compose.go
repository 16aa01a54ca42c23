// Package compose is the provider of Compose projects: one service of a Compose
// file is the sandbox, the others stand beside it and are reachable over the
// project's networks by their service names, and in no other way.
//
// The file is read with the Compose project's own library and run against the
// engine's API; no command line tool is needed. Each sandbox is a project of its
// own, with a fresh name and the owner's labels on every container, network and
// volume from birth, and is destroyed as a whole. What would make two sandboxes
// of one file collide, or reach the host, is refused when the file is read.
//
// Differences from `docker compose up`, all of them on purpose: the service of
// the sandbox runs an exec server in place of its own command; ports are not
// published; mounted files of the project are copied into each sandbox instead
// of being shared with the host; variables come from `env`, `credentialEnv` and
// env files, never from the environment of this process by themselves; `logging`
// is left out, because the end of each log is kept with a failed attempt.
package compose

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// Kind is the provider's name in YAML.
const Kind = "compose"

// Spec is the start point of a sandbox, as YAML and JSON spell it.
type Spec struct {
	File             string   `yaml:"file" json:"file" required:"true" format:"hostpath" doc:"The Compose file."`
	WorkspaceService string   `yaml:"workspaceService" json:"workspaceService" required:"true" format:"nonblank" doc:"The service that is the sandbox."`
	Profiles         []string `yaml:"profiles,omitempty" json:"profiles,omitempty" doc:"Profiles of the Compose file that are on."`
	EnvFiles         []string `yaml:"envFiles,omitempty" json:"envFiles,omitempty" format:"hostpath" doc:"Files of variables for the Compose file; default the .env file beside it."`
	// Env are variables for the Compose file. They are part of the identity.
	Env map[string]string `yaml:"env,omitempty" json:"env,omitempty" keys:"env" doc:"Variables for the Compose file."`
	// CredentialEnv are variables whose values are read from this process's
	// environment at run time. Name and revision are part of the identity.
	CredentialEnv map[string]Credential `yaml:"credentialEnv,omitempty" json:"credentialEnv,omitempty" keys:"env" doc:"Secret variables for the Compose file, read from the host's environment at run time."`
	// ReadyTimeout bounds the wait until every service is ready; 0 is
	// DefaultReadyTimeout.
	ReadyTimeout time.Duration `yaml:"readyTimeout,omitempty" json:"readyTimeout,omitempty" doc:"How long the services may take to become ready; default 5m."`
	// Engine is "docker" (or empty) or "podman".
	Engine string `yaml:"engine,omitempty" json:"engine,omitempty" enum:"docker,podman" doc:"The engine that runs the project; default docker."`
	// Guest is as for the docker provider.
	Guest string `yaml:"guest,omitempty" json:"guest,omitempty" enum:"auto,off" doc:"off uses the engine's own exec in place of the exec server."`
}

// Credential is where the value of a secret variable comes from.
type Credential struct {
	From     string `yaml:"from,omitempty" json:"from,omitempty" format:"env" doc:"The variable of the host that holds the value; default the same name."`
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty" doc:"Changes the identity when it changes, as the value itself does not."`
}

// DefaultReadyTimeout bounds the wait for the services of a sandbox.
const DefaultReadyTimeout = 5 * time.Minute

// Label names the start point for people.
func (s Spec) Label() string { return s.File + " (" + s.WorkspaceService + ")" }

// SecretEnv names the variables of the host that hold secrets.
func (s Spec) SecretEnv() []string {
	var out []string
	for name, c := range s.CredentialEnv {
		out = append(out, c.from(name))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (c Credential) from(name string) string {
	if c.From != "" {
		return c.From
	}
	return name
}

// From returns a layer whose sandboxes are a service of a Compose project. dir is
// the folder that relative paths of the spec refer to.
func From(s Spec, dir string) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(), Spec: s, Dir: dir})
}

// Definition lets YAML say `compose: {file: …, workspaceService: …}`.
func Definition() sandbox.Definition {
	return sandbox.Definition{
		Kind: Kind, Remedy: remedy, Provider: func() sandbox.Provider { return shared() },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("compose: a template needs a *Spec, got %T", spec)
			}
			if _, err := load(context.Background(), *s, dir); err != nil {
				return sandbox.Template{}, err
			}
			return sandbox.Template{Provider: shared(), Spec: *s, Dir: dir}, nil
		},
	}
}

const remedy = "Start Docker Engine 20.10 or newer, or point DOCKER_HOST or a docker context at one; the compose plugin is not needed."

func specOf(t sandbox.Template) (Spec, error) {
	switch v := t.Spec.(type) {
	case Spec:
		return v, nil
	case *Spec:
		if v != nil {
			return *v, nil
		}
	}
	return Spec{}, fmt.Errorf("compose: a template needs a Spec, got %T", t.Spec)
}

// Options are the settings of a Provider. The zero value is the engines at their
// usual places.
type Options struct {
	// Docker and Podman make the containers; nil is one at the usual places.
	Docker, Podman *docker.Provider
	// Getenv reads this process's environment; nil is os.LookupEnv.
	Getenv func(string) (string, bool)
}

// Provider runs Compose projects. It is safe for concurrent use.
type Provider struct {
	engines map[string]*docker.Provider
	getenv  func(string) (string, bool)
}

// New returns a provider of its own.
func New(o Options) *Provider {
	p := &Provider{engines: map[string]*docker.Provider{docker.Docker: o.Docker, docker.Podman: o.Podman}, getenv: o.Getenv}
	for kind, e := range p.engines {
		if e == nil {
			p.engines[kind] = docker.New(docker.Options{Engine: kind})
		}
	}
	if p.getenv == nil {
		p.getenv = os.LookupEnv
	}
	return p
}

// shared is the provider of layers and YAML, so that equal projects are prepared
// once.
var shared = sync.OnceValue(func() *Provider { return New(Options{}) })

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	return sandbox.Info{Kind: Kind, Concurrency: 10, RetryCreate: true, Users: sandbox.UsersAny, Reuse: true, Network: true, Limits: true, Reset: true}
}

// Close drops idle connections. The provider stays usable.
func (p *Provider) Close() error {
	var errs []error
	for _, e := range p.engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

func (p *Provider) engine(s Spec) *docker.Provider {
	if s.Engine == docker.Podman {
		return p.engines[docker.Podman]
	}
	return p.engines[docker.Docker]
}

// Check asks whether Docker answers. A project that names another engine is
// checked when it is prepared.
func (p *Provider) Check(ctx context.Context) error {
	err := p.engines[docker.Docker].Check(ctx)
	if err == nil || p.engines[docker.Podman].Check(ctx) == nil {
		return nil
	}
	return err
}

// Classify judges errors of engine calls.
func (p *Provider) Classify(err error) fault.Class { return p.engines[docker.Docker].Classify(err) }

// Key covers the resolved project, the content of every file of it that enters a
// container, and what its images are made of.
func (p *Provider) Key(ctx context.Context, t sandbox.Template, h sandbox.Harness) (sandbox.Key, error) {
	pr, err := p.project(ctx, t)
	if err != nil {
		return "", err
	}
	sum, err := p.sum(ctx, pr, h)
	return sandbox.Key(Kind + "/" + sum), err
}

func (p *Provider) project(ctx context.Context, t sandbox.Template) (*project, error) {
	s, err := specOf(t)
	if err != nil {
		return nil, err
	}
	return load(ctx, s, t.Dir)
}

func (p *Provider) sum(ctx context.Context, pr *project, h sandbox.Harness) (string, error) {
	doc, err := json.Marshal(pr.p.Services)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	part := func(name string, b []byte) { _, _ = fmt.Fprintf(sum, "%s %d\n%s\n", name, len(b), b) }
	// Paths of this host are no content.
	part("services", []byte(strings.ReplaceAll(string(doc), pr.root, ".")))
	rest, err := json.Marshal([]any{pr.p.Networks, pr.p.Volumes, pr.spec.WorkspaceService, pr.spec.CredentialEnv, pr.spec.Engine, pr.spec.Guest})
	if err != nil {
		return "", err
	}
	part("rest", []byte(strings.ReplaceAll(string(rest), pr.root, ".")))
	for _, name := range pr.names() {
		files, err := pr.files(name)
		if err != nil {
			return "", err
		}
		b, err := pack(files, nil)
		if err != nil {
			return "", err
		}
		part("files "+name, b)
		t, hs := pr.image(p.engine(pr.spec), name, h)
		key, err := p.engine(pr.spec).Key(ctx, t, hs)
		if err != nil {
			return "", pr.inService(name, err)
		}
		part("image "+name, []byte(key))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// start is what Prepare found out, for Create in the same process.
type start struct {
	project *project
	images  map[string]sandbox.Prepared
}

// Prepare pulls, builds or finds the image of every service.
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, h sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	pr, err := p.project(ctx, t)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	if _, err := p.credentials(pr.spec); err != nil {
		return sandbox.Prepared{}, err
	}
	out := start{project: pr, images: map[string]sandbox.Prepared{}}
	details := map[string]string{}
	made := map[string]sandbox.Prepared{}
	for _, name := range pr.names() {
		it, hs := pr.image(p.engine(pr.spec), name, h)
		key, err := p.engine(pr.spec).Key(ctx, it, hs)
		if err != nil {
			return sandbox.Prepared{}, pr.inService(name, err)
		}
		from, ok := made[string(key)]
		if !ok {
			if from, err = p.engine(pr.spec).Prepare(ctx, it, hs, s); err != nil {
				return sandbox.Prepared{}, pr.inService(name, err)
			}
			made[string(key)] = from
		}
		if err := pr.platform(name, from); err != nil {
			return sandbox.Prepared{}, err
		}
		out.images[name] = from
		details["image."+name] = from.Ref
	}
	main := out.images[pr.spec.WorkspaceService]
	for k, v := range main.Details {
		details[k] = v
	}
	return sandbox.Prepared{Ref: main.Ref, Details: details, Data: &out}, nil
}

// credentials reads the secret variables of this process.
func (p *Provider) credentials(s Spec) (map[string]string, error) {
	out := map[string]string{}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(s.CredentialEnv)) {
		from := s.CredentialEnv[name].from(name)
		v, ok := p.getenv(from)
		if !ok || v == "" {
			missing = append(missing, from)
			continue
		}
		out[name] = v
	}
	if len(missing) > 0 {
		return nil, fault.Configf("secret-env-missing", "Set them in the environment and run again.", "environment variables named by credentialEnv are not set: %s", strings.Join(missing, ", "))
	}
	return out, nil
}

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.Reconciler = (*Provider)(nil)
)
