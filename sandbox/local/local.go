// Package local is the provider that isolates nothing: commands run on this
// machine, as this user, in a working tree that is really there.
//
// It observes only. What an agent changes stays changed; nothing is reverted.
// The change ledger keeps its objects in a private directory outside of the
// tree and never reads or writes the tree's own .git, so HEAD, index, staged
// and unstaged work stay as they were but for what the agent itself does.
//
// Commands inherit the environment of this process, with every secret in it:
// use it only for agents and evals that you would run by hand. One attempt runs
// at a time, and later attempts see what earlier ones changed.
//
// On Linux every command runs below a supervisor, so that a timeout ends its
// whole process tree, new sessions included. A service that a command leaves
// behind outlives the command, but not the attempt: Stop ends it. Where no
// supervisor can run, a timeout ends the command's process group only, and the
// error says that the sandbox is unusable.
package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"assay/fault"
	"assay/internal/guest/guestbin"
	"assay/ref"
	"assay/sandbox"
)

// Provider runs commands on this machine. The zero value is ready.
type Provider struct {
	// Guest is the program that supervises commands; empty finds it.
	Guest string

	mu        sync.Mutex
	instances map[string]string // id → owner token
	found     guestbin.Guest
}

// Spec is how YAML names a local sandbox: `local: {dir: .}`.
type Spec struct {
	// Dir is the working directory; relative paths start at the file that names
	// it. Empty is the root of the git repository around that file.
	Dir string `yaml:"dir,omitempty" json:"dir,omitempty"`
}

// Template returns a start point. dir is the working directory, "" the root of
// the git repository around base; a relative dir starts at base.
func (p *Provider) Template(dir, base string) sandbox.Template {
	return sandbox.Template{Provider: p, Spec: Spec{Dir: dir}, Dir: base}
}

// Label names the start point for people.
func (s Spec) Label() string { return s.Dir }

// Layer returns a layer that starts from the directory dir, "" being the root
// of the git repository around the current directory.
func Layer(dir string) sandbox.Layer {
	return sandbox.From((&Provider{}).Template(dir, ""))
}

// Definition lets YAML name the provider. All templates of one definition share
// a provider, so that only one attempt at a time runs on this machine.
func Definition() sandbox.Definition {
	p := &Provider{}
	return sandbox.Definition{
		Kind: "local", Provider: func() sandbox.Provider { return p },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("a local sandbox has no spec of type %T", spec)
			}
			return p.Template(s.Dir, dir), nil
		},
		Remedy: "a git repository, or `dir` naming a directory that you may write",
	}
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	return sandbox.Info{
		Kind: "local", Concurrency: 1, Exclusive: true, Users: sandbox.UsersNone,
		Warning: "the local sandbox isolates nothing: commands run on this machine as you, with your environment, and their changes stay",
	}
}

// Check has nothing to look at: the directory belongs to a template.
func (p *Provider) Check(context.Context) error { return nil }

// Key names the directory. Its content is whatever is there.
func (p *Provider) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	dir, err := resolve(t)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(dir))
	return sandbox.Key("local-" + hex.EncodeToString(sum[:12])), nil
}

// Prepare names the directory. An experiment's setup, which comes later, may
// still make it.
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, _ sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	var dir string
	err := s.Do(ctx, "resolve", func(ctx context.Context) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var err error
		dir, err = resolve(t)
		return err
	})
	return sandbox.Prepared{Ref: dir, Data: dir}, err
}

// Create opens the directory. A user is refused before anything runs.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if r.User != "" {
		return nil, fault.Configf("sandbox.local-user-unsupported", "Remove `user`, or use a container.", "the local sandbox runs everything as you and cannot run it as %q", r.User)
	}
	if r.Workdir != "" {
		return nil, fault.Configf("sandbox.local-workdir-unsupported", "Name the directory with `local: {dir: ...}`.", "the local sandbox takes its working directory from dir, not from workdir")
	}
	dir, err := resolve(r.Template)
	if err == nil {
		err = usable(dir)
	}
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	private, err := privateDir(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Resource, "sandbox.local-private", "make the private directory of the change ledger")
	}
	d := &driver{id: "local-" + ref.New(), dir: dir, private: private}
	d.forget = func() { p.forget(d.id) }
	out, err := p.attach(ctx, d, r.Notes)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(private))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instances == nil {
		p.instances = map[string]string{}
	}
	p.instances[d.id] = r.Owner.Token
	return out, nil
}

// Classify knows no error: this machine has no service that could fail.
func (p *Provider) Classify(error) fault.Class { return fault.Unknown }

// Instances lists the open sandboxes of an owner's token in this process.
func (p *Provider) Instances(token string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for id, t := range p.instances {
		if t == token {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (p *Provider) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.instances, id)
}

// resolve finds the directory of a template, without symlinks.
func resolve(t sandbox.Template) (string, error) {
	var spec Spec
	switch s := t.Spec.(type) {
	case Spec:
		spec = s
	case *Spec:
		spec = *s
	default:
		return "", fmt.Errorf("a local sandbox has no spec of type %T", t.Spec)
	}
	base := t.Dir
	if base == "" || !filepath.IsAbs(base) {
		wd, err := os.Getwd()
		if err != nil {
			return "", err
		}
		base = filepath.Join(wd, base)
	}
	if spec.Dir == "" {
		return gitRoot(base)
	}
	dir := spec.Dir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(base, dir)
	}
	// An experiment's setup may still make the directory: only Create needs it.
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Clean(dir), nil
	}
	if err != nil {
		return "", &fault.Error{Class: fault.Config, Code: "sandbox.local-dir", What: "the directory of the local sandbox", Err: err, Fix: "Make the directory or name another with `local: {dir: ...}`."}
	}
	return real, nil
}

// gitRoot walks up to the directory that holds .git.
func gitRoot(base string) (string, error) {
	real, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", &fault.Error{Class: fault.Config, Code: "sandbox.local-dir", What: "look for a git repository", Err: err, Fix: "Name a directory with `local: {dir: ...}`."}
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", fault.Configf("sandbox.local-no-repository", "Run inside of a git repository, or name a directory with `local: {dir: ...}`.", "there is no git repository around %s", base)
		}
	}
}

// usable says why dir cannot be a working directory.
func usable(dir string) error {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: errors.New("not a directory")}
	}
	if err == nil {
		// Only making a file proves that files can be made.
		var f *os.File
		if f, err = os.CreateTemp(dir, ".writable-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: "sandbox.local-dir", What: "the directory of the local sandbox cannot be used", Err: err, Fix: "Name a directory that you may write with `local: {dir: ...}`."}
	}
	return nil
}

// privateDir makes the ledger's directory outside of the working tree.
func privateDir(dir string) (string, error) {
	tmp := os.TempDir()
	if real, err := filepath.EvalSymlinks(tmp); err == nil {
		tmp = real
	}
	if rel, err := filepath.Rel(dir, tmp); err == nil && filepath.IsLocal(rel) && filepath.Dir(dir) != dir {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(cache, 0o700); err != nil {
			return "", err
		}
		tmp = cache
	}
	return os.MkdirTemp(tmp, "sandbox-")
}

var _ sandbox.Provider = (*Provider)(nil)
