// Package e2b is the provider of E2B's cloud sandboxes and of servers that speak
// its protocol.
//
// A sandbox is created with its owner's metadata and an explicit life, an exec
// server is uploaded and started as root, and everything else goes over its one
// stream: an attempt costs five requests, whatever it does. A stream that breaks
// is taken up where it stopped; nothing is lost as long as the sandbox lives.
// Credentials are read from the environment and are in no argument, log or
// record.
package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"assay/fault"
	"assay/internal/cloudbox"
	"assay/internal/guest/relay"
	"assay/sandbox"
	"assay/sandbox/e2b/e2bapi"
)

// Kind is the provider's name in YAML.
const Kind = "e2b"

// The public templates of the coding agents, by the tag that names the agent's
// version and the recipe's revision.
const (
	ClaudeCodeTemplate = "assay-claude-code:" + ClaudeCodeVersion + "-r1"
	CodexTemplate      = "assay-codex:" + CodexVersion + "-r1"
	BubTemplate        = "assay-bub:" + BubVersion + "-r1"
)

// DefaultWorkdir is where an agent works unless the layer names another place.
const DefaultWorkdir = "/home/user/workspace"

// Spec is the start point of a sandbox, as YAML and JSON spell it.
type Spec struct {
	// Template is a template's id or name, with an optional ":tag", or a
	// snapshot's id.
	Template string `yaml:"template" json:"template"`
}

// From returns a layer that starts from a template or snapshot.
func From(template string) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(), Spec: Spec{Template: template}})
}

// Definition lets YAML say `e2b: {template: …}`.
func Definition() sandbox.Definition {
	return sandbox.Definition{
		Kind: Kind, Remedy: remedy, Provider: func() sandbox.Provider { return shared() },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("e2b: a template needs a *Spec, got %T", spec)
			}
			if err := s.check(); err != nil {
				return sandbox.Template{}, err
			}
			return sandbox.Template{Provider: shared(), Spec: *s, Dir: dir}, nil
		},
	}
}

const remedy = "Set E2B_API_KEY to a key of your team (https://e2b.dev/dashboard)."

func (s Spec) check() error {
	if s.Template == "" {
		return fault.Configf("sandbox.e2b-template-missing", "Name one, for example `e2b: {template: base}`.", "the e2b sandbox names no template")
	}
	if strings.ContainsAny(s.Template, " \t\n") || s.Template != strings.ToLower(s.Template) {
		return fault.Configf("sandbox.e2b-template-invalid", "Write the template as name or name:tag, in lower case.", "%q is no template name", s.Template)
	}
	return nil
}

func specOf(t sandbox.Template) (Spec, error) {
	var s Spec
	switch v := t.Spec.(type) {
	case Spec:
		s = v
	case *Spec:
		if v != nil {
			s = *v
		}
	default:
		return s, fmt.Errorf("e2b: a template needs a Spec, got %T", t.Spec)
	}
	return s, s.check()
}

// Options are the settings of a Provider. The zero value is E2B as the
// environment's E2B_ variables describe it.
type Options struct {
	// Client is copied; its HTTP, Sent and Slow are the provider's own unless
	// they are set.
	Client *e2bapi.Client
	// CreateEvery and CreateBurst space the creation of sandboxes; 0 is one
	// per 200 ms and 5 at once. An answer of 429 holds everybody back besides.
	CreateEvery time.Duration
	CreateBurst int
	// Concurrency is the recommended number of sandboxes; 0 is 20.
	Concurrency int
	// Guest names the exec server's program; "" finds the one that ships.
	Guest string
	// Patience is how long a broken connection is tried again; 0 is a minute.
	Patience time.Duration
}

// Provider makes sandboxes of one account. It is safe for concurrent use.
type Provider struct {
	o        Options
	pacer    *cloudbox.Pacer
	requests atomic.Int64
	guest    cloudbox.Program

	mu  sync.Mutex
	api *e2bapi.Client
}

// New returns a provider of its own, for programs that use several accounts.
func New(o Options) *Provider {
	if o.CreateEvery == 0 {
		o.CreateEvery = 200 * time.Millisecond
	}
	if o.CreateBurst == 0 {
		o.CreateBurst = 5
	}
	return &Provider{o: o, pacer: cloudbox.NewPacer(o.CreateEvery, o.CreateBurst)}
}

var shared = sync.OnceValue(func() *Provider { return New(Options{}) })

// API returns the client that the provider uses.
func (p *Provider) API() *e2bapi.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.api == nil {
		c := e2bapi.Client{}
		if p.o.Client != nil {
			c = *p.o.Client
		} else {
			c = *e2bapi.FromEnvironment()
		}
		if c.HTTP == nil {
			c.HTTP = &http.Client{Transport: cloudbox.Transport()}
		}
		sent := c.Sent
		c.Sent = func(method, path string) {
			p.requests.Add(1)
			if sent != nil {
				sent(method, path)
			}
		}
		if c.Slow == nil {
			c.Slow = p.pacer.Hold
		}
		p.api = &c
	}
	return p.api
}

// Requests is the number of requests that were sent so far.
func (p *Provider) Requests() int64 { return p.requests.Load() }

// Close drops idle connections. The provider stays usable.
func (p *Provider) Close() error {
	p.API().HTTP.CloseIdleConnections()
	return nil
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	n := p.o.Concurrency
	if n == 0 {
		n = 20
	}
	return sandbox.Info{
		Kind: Kind, Concurrency: n, RetryCreate: true, Users: sandbox.UsersAny, Keep: true, Reuse: true, Network: true, Reset: true,
	}
}

// checkLimit bounds Check.
const checkLimit = 20 * time.Second

// Check asks the control plane whether it knows the key.
func (p *Provider) Check(ctx context.Context) error {
	api := p.API()
	if api.Key == "" {
		return fault.Configf("sandbox.e2b-credentials", remedy, "E2B sandboxes need an API key and E2B_API_KEY is empty")
	}
	ctx, cancel := fault.WithTimeout(ctx, "engine-call", checkLimit, "built-in")
	defer cancel()
	var none []e2bapi.Info
	_, _, err := api.Do(ctx, http.MethodGet, "/v2/sandboxes?limit=1", nil, &none)
	if err == nil {
		return nil
	}
	out := explain("ask "+api.URL()+" about the account", err)
	if out.Fix == "" || out.Class != fault.Config {
		out.Class, out.Fix = fault.Config, "Check the network and E2B_API_URL or E2B_DOMAIN."
	}
	return out
}

// Key is the template as it is named, at its service.
func (p *Provider) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	s, err := specOf(t)
	if err != nil {
		return "", err
	}
	return sandbox.Key(Kind + "/" + p.API().URL() + "/" + s.Template), nil
}

// Prepare has nothing to make: templates are built beforehand.
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, _ sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	spec, err := specOf(t)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	err = s.Do(ctx, "guest", func(ctx context.Context) error {
		_, err := p.program()
		return errors.Join(err, fault.Cause(ctx))
	})
	if err != nil {
		return sandbox.Prepared{}, err
	}
	return sandbox.Prepared{Ref: spec.Template}, nil
}

// program is the exec server for the service's machines.
func (p *Provider) program() ([]byte, error) { return p.guest.Read(p.o.Guest) }

func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// request is what to ask the service for.
func (p *Provider) request(r sandbox.CreateRequest) (e2bapi.NewSandbox, error) {
	s, err := specOf(r.Template)
	if err != nil {
		return e2bapi.NewSandbox{}, err
	}
	if r.Resources != (sandbox.Resources{}) {
		return e2bapi.NewSandbox{}, fault.Configf("sandbox.limits-unsupported", "Set CPUs and memory where the template is built.", "E2B fixes CPUs, memory and disk in the template, not per sandbox")
	}
	n := e2bapi.NewSandbox{TemplateID: s.Template, Metadata: r.Owner.Labels()}
	d, err := cloudbox.Life(r)
	if err != nil {
		return n, err
	}
	n.Timeout = seconds(d)
	switch r.Network.Mode {
	case "", "default":
	case "none":
		no := false
		n.Internet = &no
	case "allow":
		n.Network = &e2bapi.Network{AllowOut: r.Network.Allow, DenyOut: []string{"0.0.0.0/0"}}
	default:
		return n, fault.Configf("sandbox.network-mode", "Use default, none or allow.", "network mode %q is not known", r.Network.Mode)
	}
	return n, nil
}

// Create makes a sandbox, uploads the exec server and connects to it.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	n, err := p.request(r)
	if err != nil {
		return nil, err
	}
	program, err := p.program()
	if err != nil {
		return nil, err
	}
	if err := p.pacer.Wait(ctx); err != nil {
		return nil, err
	}
	api := p.API()
	s, err := api.Create(ctx, n)
	if err != nil {
		return nil, p.unmade(ctx, r.Owner, err)
	}
	return p.open(ctx, api, s, program, r.User, r.Workdir)
}

// open connects to a sandbox that was just made, and destroys it when that
// fails.
func (p *Provider) open(ctx context.Context, api *e2bapi.Client, s *e2bapi.Sandbox, program []byte, user, workdir string) (sandbox.Driver, error) {
	if workdir == "" {
		workdir = DefaultWorkdir
	}
	m := newMachine(api, s, program, workdir)
	d, err := cloudbox.Open(ctx, cloudbox.Options{
		Machine: m, User: user, Workdir: workdir, Tunnel: relay.Options{Patience: p.o.Patience},
	})
	if err == nil {
		return &driver{d}, nil
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanupLimit, "built-in")
	defer cancel()
	if kerr := m.Destroy(clean); kerr != nil {
		return nil, &fault.Error{Code: "sandbox-provision-reconcile-failed", What: "destroy the unfinished sandbox " + s.SandboxID, Fix: "Destroy it in E2B's dashboard.", Err: errors.Join(err, kerr)}
	}
	if fault.ClassOf(err) != fault.Unknown || fault.Cause(ctx) != nil {
		return nil, err
	}
	return nil, explain("start the exec server in sandbox "+s.SandboxID, err)
}

// cleanupLimit bounds what is done after a failed or cancelled Create.
const cleanupLimit = 30 * time.Second

// unmade handles a Create call that failed: what it may have made is found by
// its token and destroyed.
func (p *Provider) unmade(ctx context.Context, o sandbox.Owner, err error) error {
	out := explain("create an E2B sandbox", err)
	if cloudbox.Unsent(err) || refused(err) {
		return out
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanupLimit, "built-in")
	defer cancel()
	if rerr := p.settle(clean, o); rerr != nil {
		// Not to be repeated: there may be one already.
		return &fault.Error{Code: "sandbox-provision-reconcile-failed", What: out.What, Fix: "Look for a sandbox with metadata " + tokenKey + "=" + o.Token + ".", Err: errors.Join(err, rerr)}
	}
	if cause := fault.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return out
}

// refused reports whether the service said that it made nothing.
func refused(err error) bool {
	s := e2bapi.StatusOf(err)
	return s >= 400 && s < 500 && s != http.StatusRequestTimeout
}

const tokenKey = sandbox.LabelPrefix + "token"

// looks are the pauses between looks for what an ambiguous call may have made:
// the service may still be making it.
var looks = []time.Duration{0, 300 * time.Millisecond, 1500 * time.Millisecond}

// settle reconciles until nothing new can be expected.
func (p *Provider) settle(ctx context.Context, o sandbox.Owner) error {
	for _, pause := range looks {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		n, err := p.reconcile(ctx, o)
		if err != nil {
			return err
		}
		if n > 0 {
			return nil // one call makes one
		}
	}
	return nil
}

func (p *Provider) reconcile(ctx context.Context, o sandbox.Owner) (int, error) {
	if o.Token == "" {
		return 0, errors.New("e2b: an owner without a token finds nothing")
	}
	found, err := p.API().List(ctx, e2bapi.Filter{Metadata: map[string]string{tokenKey: o.Token}})
	if err != nil {
		return 0, explain("look for what an earlier request may have made", err)
	}
	for _, i := range found {
		if i.Metadata[tokenKey] != o.Token {
			continue // a server that ignores the filter
		}
		if _, err := p.API().Kill(ctx, i.SandboxID); err != nil {
			return 0, explain("destroy sandbox "+i.SandboxID, err)
		}
	}
	return len(found), nil
}

// Reconcile destroys what a Create with this owner's token may have made.
func (p *Provider) Reconcile(ctx context.Context, o sandbox.Owner) error {
	_, err := p.reconcile(ctx, o)
	return err
}

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.Reconciler = (*Provider)(nil)
)
