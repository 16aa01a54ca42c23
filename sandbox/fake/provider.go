// Package fake is a provider that needs no infrastructure: sandboxes in memory,
// with a file system, users, a shell and the usual small programs. Commands can
// have canned answers and every operation can be made to fail, so that evals
// and the engine can be tried without a container engine.
//
// It is a real implementation of the contract and passes the whole suite. Time
// comes only from package time and nothing waits outside of channels, timers
// and locks, so that it works in a testing/synctest bubble, where a sleep of an
// hour takes no time.
//
// It isolates nothing and is no security boundary: nothing in it reaches the
// host, but nothing but the simulation runs either.
package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"assay/fault"
	"assay/ref"
	"assay/sandbox"
)

// Provider makes sandboxes in memory. Make one with New.
type Provider struct {
	script Script
	err    error // why the script cannot be used

	check, prepare, create, exec, put, get, stop, life trip
	stopped                                            trip

	mu        sync.Mutex
	instances map[string]*machine
	asleep    map[string]bool // of instances, those that are suspended
	made      int

	brief bool // nobody can come back to it, so that nothing can be kept
}

// New returns a provider that follows a script. A script with errors makes
// Check and Key fail.
func New(s Script) *Provider {
	p := &Provider{script: s, instances: map[string]*machine{}}
	p.err = p.script.compile()
	p.create.reached = make(chan struct{})
	return p
}

// CreateStalled is closed when a Create stands still because of Fault.Stall: its
// instance exists by then.
func (p *Provider) CreateStalled() <-chan struct{} { return p.create.reached }

// Spec is how YAML names a fake sandbox: `fake: {}` or `fake: {script: FILE}`.
type Spec struct {
	// Script is a file that says what the sandbox holds, how commands answer
	// and what goes wrong. Relative paths start at the file that names it.
	Script string `yaml:"script,omitempty" json:"script,omitempty"`
}

// Label names the start point for people.
func (s Spec) Label() string { return s.Script }

// Template returns the start point of the provider's sandboxes.
func (p *Provider) Template() sandbox.Template {
	return sandbox.Template{Provider: p, Spec: p.script}
}

// Layer returns a layer that starts from the provider's template.
func (p *Provider) Layer() sandbox.Layer { return sandbox.From(p.Template()) }

// Definition lets YAML name the provider.
func Definition() sandbox.Definition {
	return sandbox.Definition{
		Kind: "fake", Provider: func() sandbox.Provider { return New(Script{}) },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("a fake sandbox has no spec of type %T", spec)
			}
			var script Script
			if s.Script != "" {
				var err error
				if script, err = ReadScript(scriptPath(dir, s.Script)); err != nil {
					return sandbox.Template{}, err
				}
			}
			// Its sandboxes are gone with the process, so that none can be kept.
			p := New(script)
			p.brief = true
			t := p.Template()
			t.Dir = dir
			return t, nil
		},
		Remedy: "nothing: it runs in memory",
	}
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	return sandbox.Info{Kind: "fake", Concurrency: 100, RetryCreate: true, Users: sandbox.UsersAny, Keep: !p.brief, Reuse: true, Reset: true}
}

// Check fails when the script is wrong or orders it.
func (p *Provider) Check(ctx context.Context) error {
	if p.err != nil {
		return p.err
	}
	return p.check.next(ctx, "check", p.script.Faults.Check)
}

// Key names the script's content.
func (p *Provider) Key(_ context.Context, t sandbox.Template, h sandbox.Harness) (sandbox.Key, error) {
	if p.err != nil {
		return "", p.err
	}
	b, err := json.Marshal(struct {
		Spec any
		H    sandbox.Harness
	}{t.Spec, h})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return sandbox.Key("fake-" + hex.EncodeToString(sum[:12])), nil
}

// Prepare has one step, which fails when the script orders it.
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, h sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	key, err := p.Key(ctx, t, h)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	f := p.script.Faults.Prepare
	stage := f.Stage
	if stage == "" {
		stage = "prepare"
	}
	err = s.Do(ctx, stage, func(ctx context.Context) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return p.prepare.next(ctx, "prepare", f)
	})
	return sandbox.Prepared{Ref: string(key)}, err
}

// Create makes an instance. A fault comes after the instance exists.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m, err := newMachine(p, r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.instances[m.id] = m
	p.made++
	p.mu.Unlock()
	if err := p.create.next(ctx, "create", p.script.Faults.Create); err != nil {
		m.end(errGone)
		return nil, err
	}
	return m, nil
}

// Classify knows the errors that scripts order.
func (p *Provider) Classify(err error) fault.Class {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.class
	}
	return fault.Unknown
}

// Reconcile removes what the owner's token finds.
func (p *Provider) Reconcile(_ context.Context, o sandbox.Owner) error {
	for _, id := range p.Instances(o.Token) {
		p.Vanish(id)
	}
	return nil
}

// Instances lists the live instances of an owner's token, or all for "".
func (p *Provider) Instances(token string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for id, m := range p.instances {
		if token == "" || m.labels[sandbox.LabelPrefix+"token"] == token {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Labels returns the labels of a live instance.
func (p *Provider) Labels(id string) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.instances[id]; m != nil {
		return m.labels
	}
	return nil
}

// Vanish removes an instance behind its driver's back.
func (p *Provider) Vanish(id string) {
	p.mu.Lock()
	m := p.instances[id]
	p.mu.Unlock()
	if m != nil {
		m.end(errGone)
	}
}

func (p *Provider) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.instances, id)
	delete(p.asleep, id)
}

// Stats counts calls, and instances that were made and are alive.
type Stats struct {
	Checks, Prepares, Creates, Execs, Puts, Gets, Stops int
	Made, Alive                                         int
}

// Stats returns what has happened so far. Stops counts calls, not instances.
func (p *Provider) Stats() Stats {
	p.mu.Lock()
	made, alive := p.made, len(p.instances)
	p.mu.Unlock()
	return Stats{
		Checks: p.check.count(), Prepares: p.prepare.count(), Creates: p.create.count(), Execs: p.exec.count(),
		Puts: p.put.count(), Gets: p.get.count(), Stops: p.stopped.count(), Made: made, Alive: alive,
	}
}

func newID() string { return "fake-" + ref.New() }

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.Reconciler = (*Provider)(nil)
)
