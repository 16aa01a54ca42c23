// Package vercel is the provider of Vercel Sandbox: one named, non-persistent
// microVM per sandbox, started from a snapshot, an image or a runtime.
//
// An exec server is uploaded and started with sudo. Its output is the log of one
// command, as text; its input is files, because commands have none. Vercel cuts
// log streams after some minutes: a cut stream is taken up where it stopped, and
// nothing is lost as long as the session runs. Every operation on a sandbox is
// one request. Credentials are read from the environment and are in no argument,
// log or record.
package vercel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"assay/fault"
	"assay/internal/cloudbox"
	"assay/internal/guest"
	"assay/internal/guest/relay"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/vercel/vercelapi"
)

// Kind is the provider's name in YAML.
const Kind = "vercel"

// DefaultWorkdir is Vercel's own.
const DefaultWorkdir = "/vercel/sandbox"

// DefaultRuntime is what snapshots are taken on unless another is named.
const DefaultRuntime = "node24"

// Spec is the start point of a sandbox, as YAML and JSON spell it: exactly one
// of SnapshotID, Runtime and Image.
type Spec struct {
	// SnapshotID is a snapshot of the same team and project.
	SnapshotID string `yaml:"snapshotId,omitempty" json:"snapshotId,omitempty"`
	// Runtime is one of Vercel's, such as "node24".
	Runtime string `yaml:"runtime,omitempty" json:"runtime,omitempty"`
	// Image is one of Vercel's, such as "vercel/sandbox/node:24".
	Image string `yaml:"image,omitempty" json:"image,omitempty"`
	// VCPUs come with 2048 MB of memory each; 0 is Vercel's default.
	VCPUs int `yaml:"vcpus,omitempty" json:"vcpus,omitempty"`
}

// Snapshot returns a layer that starts from a snapshot.
func Snapshot(id string) sandbox.Layer { return From(Spec{SnapshotID: id}) }

// From returns a layer of a start point.
func From(s Spec) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(), Spec: s})
}

// Definition lets YAML say `vercel: {snapshotId: …}`.
func Definition() sandbox.Definition {
	return sandbox.Definition{
		Kind: Kind, Remedy: remedy, Provider: func() sandbox.Provider { return shared() },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("vercel: a template needs a *Spec, got %T", spec)
			}
			if err := s.check(); err != nil {
				return sandbox.Template{}, err
			}
			return sandbox.Template{Provider: shared(), Spec: *s, Dir: dir}, nil
		},
	}
}

const remedy = "Set VERCEL_TOKEN, VERCEL_TEAM_ID and VERCEL_PROJECT_ID, or VERCEL_OIDC_TOKEN (`vercel env pull`)."

func (s Spec) check() error {
	n := 0
	for _, v := range []string{s.SnapshotID, s.Runtime, s.Image} {
		if strings.ContainsAny(v, " \t\n") {
			return fault.Configf("sandbox.vercel-source", "Write the id or name as Vercel prints it.", "%q is no start point", v)
		}
		if v != "" {
			n++
		}
	}
	if n != 1 {
		return fault.Configf("sandbox.vercel-source", "Name exactly one of snapshotId, runtime and image, for example `vercel: {runtime: node24}`.", "the vercel sandbox names %d start points", n)
	}
	if s.VCPUs < 0 {
		return fault.Configf("sandbox.vercel-vcpus", "Name 1 or more.", "%d vCPUs are none", s.VCPUs)
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
		return s, fmt.Errorf("vercel: a template needs a Spec, got %T", t.Spec)
	}
	return s, s.check()
}

// Options are the settings of a Provider. The zero value is Vercel as the
// environment's VERCEL_ variables describe it; VERCEL_SANDBOX_API_URL names
// another server.
type Options struct {
	// Client is copied; its HTTP, Sent and Slow are the provider's own unless
	// they are set.
	Client *vercelapi.Client
	// CreateEvery and CreateBurst space the creation of sandboxes; 0 is one
	// per 300 ms and 10 at once. An answer of 429 holds everybody back besides.
	CreateEvery time.Duration
	CreateBurst int
	// Concurrency is the recommended number of sandboxes; 0 is 1.
	Concurrency int
	// Guest names the exec server's program; "" finds the one that ships.
	Guest string
	// Patience is how long a broken connection is tried again; 0 is a minute.
	Patience time.Duration
}

// Provider makes sandboxes of one project. It is safe for concurrent use.
type Provider struct {
	o        Options
	pacer    *cloudbox.Pacer
	requests atomic.Int64
	guest    cloudbox.Program
	// installing bounds uploads, see machine.
	installing chan struct{}

	mu  sync.Mutex
	api *vercelapi.Client
}

// New returns a provider of its own, for programs that use several accounts.
func New(o Options) *Provider {
	if o.CreateEvery == 0 {
		o.CreateEvery = 300 * time.Millisecond
	}
	if o.CreateBurst == 0 {
		o.CreateBurst = 10
	}
	return &Provider{o: o, pacer: cloudbox.NewPacer(o.CreateEvery, o.CreateBurst), installing: make(chan struct{}, atOnce)}
}

var shared = sync.OnceValue(func() *Provider { return New(Options{}) })

// API returns the client that the provider uses.
func (p *Provider) API() *vercelapi.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.api == nil {
		c := vercelapi.Client{Credentials: vercelapi.FromEnvironment, BaseURL: os.Getenv("VERCEL_SANDBOX_API_URL")}
		if p.o.Client != nil {
			c = *p.o.Client
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
		n = 1
	}
	return sandbox.Info{
		Kind: Kind, Concurrency: n, RetryCreate: true, Users: sandbox.UsersRoot, Keep: true, Reuse: true, Network: true, Reset: true,
	}
}

// checkLimit bounds Check.
const checkLimit = 20 * time.Second

// Check asks Vercel whether it knows the token, the team and the project.
func (p *Provider) Check(ctx context.Context) error {
	api := p.API()
	if _, err := api.Credentials(); err != nil {
		return &fault.Error{Class: fault.Config, Code: "sandbox.vercel-credentials", Fix: remedy, What: "Vercel sandboxes need credentials", Err: err}
	}
	ctx, cancel := fault.WithTimeout(ctx, "engine-call", checkLimit, "built-in")
	defer cancel()
	_, err := api.List(ctx, vercelapi.Filter{NamePrefix: namePrefix + "check-", Limit: 1})
	if err == nil {
		return nil
	}
	out := explain("ask Vercel about the project", err)
	if out.Fix == "" || out.Class != fault.Config {
		out.Class, out.Fix = fault.Config, "Check the network, and that the token may use the team and project."
	}
	return out
}

// Key is the start point.
func (p *Provider) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	s, err := specOf(t)
	if err != nil {
		return "", err
	}
	return sandbox.Key(fmt.Sprintf("%s/%s", Kind, s.name())), nil
}

func (s Spec) name() string {
	out := s.SnapshotID
	switch {
	case s.Runtime != "":
		out = "runtime:" + s.Runtime
	case s.Image != "":
		out = "image:" + s.Image
	}
	if s.VCPUs > 0 {
		out += fmt.Sprintf("/%d", s.VCPUs)
	}
	return out
}

// Prepare has nothing to make: snapshots are taken beforehand.
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
	return sandbox.Prepared{Ref: spec.name()}, nil
}

// program is the exec server for the service's machines.
func (p *Provider) program() ([]byte, error) { return p.guest.Read(p.o.Guest) }

// namePrefix starts the names of sandboxes made here.
const namePrefix = "sb-"

// nameOf is the sandbox's name: it is unique per Create and known before it, so
// that a call that got no answer can be looked up, and cannot be carried out
// twice.
func nameOf(o sandbox.Owner) string { return namePrefix + strings.ToLower(o.Token) }

// The tags of a sandbox. They are few, because services limit them: three that
// are searched by, and two with the rest.
const (
	tagToken = sandbox.LabelPrefix + "token"
	tagRun   = sandbox.LabelPrefix + "run"
	tagHost  = sandbox.LabelPrefix + "host"
	tagProc  = sandbox.LabelPrefix + "process"
	tagWhat  = sandbox.LabelPrefix + "what"
)

const tagBar = "|"

// tags packs an owner into tags.
func tags(o sandbox.Owner) map[string]string {
	return map[string]string{
		tagToken: o.Token, tagRun: string(o.Run), tagHost: o.Host,
		tagProc: strings.Join([]string{o.Boot, o.PIDNamespace, fmt.Sprint(o.PID), o.StartTime}, tagBar),
		tagWhat: strings.Join([]string{string(o.Invocation), string(o.Attempt), string(o.Experiment), string(o.Eval)}, tagBar),
	}
}

// Labels unpacks tags into the labels of an owner.
func Labels(tags map[string]string) map[string]string {
	var o sandbox.Owner
	o.Token, o.Run, o.Host = tags[tagToken], ref.RunID(tags[tagRun]), tags[tagHost]
	if f := strings.Split(tags[tagProc], tagBar); len(f) == 4 {
		o.Boot, o.PIDNamespace, o.StartTime = f[0], f[1], f[3]
		_, _ = fmt.Sscan(f[2], &o.PID) // 0 is no process
	}
	if f := strings.SplitN(tags[tagWhat], tagBar, 4); len(f) == 4 {
		o.Invocation, o.Attempt = ref.InvocationID(f[0]), ref.AttemptID(f[1])
		o.Experiment, o.Eval = ref.ExperimentID(f[2]), ref.EvalID(f[3])
	}
	return o.Labels()
}

// request is what to ask the service for.
func (p *Provider) request(r sandbox.CreateRequest) (vercelapi.NewSandbox, error) {
	s, err := specOf(r.Template)
	if err != nil {
		return vercelapi.NewSandbox{}, err
	}
	if r.Resources != (sandbox.Resources{}) {
		return vercelapi.NewSandbox{}, fault.Configf("sandbox.limits-unsupported", "Set `vcpus` of the vercel sandbox: each comes with 2048 MB.", "Vercel sells CPUs and memory together and has no other limits")
	}
	if r.User != "" && r.User != "root" {
		return vercelapi.NewSandbox{}, fault.Configf("sandbox.user-unsupported", "Leave `user` out, or name root.", "a Vercel sandbox runs as its own user or as root, not as %q", r.User)
	}
	n := vercelapi.NewSandbox{Name: nameOf(r.Owner), Image: s.Image, Runtime: s.Runtime, Tags: tags(r.Owner)}
	if s.SnapshotID != "" {
		n.Source = &vercelapi.Source{Type: "snapshot", SnapshotID: s.SnapshotID}
	}
	if s.VCPUs > 0 {
		n.Resources = &vercelapi.Resources{VCPUs: s.VCPUs}
	}
	d, err := cloudbox.Life(r)
	if err != nil {
		return n, err
	}
	n.Timeout = d.Milliseconds()
	switch r.Network.Mode {
	case "", "default":
	case "none":
		n.NetworkPolicy = vercelapi.Policy{Mode: "deny-all"}
	case "allow":
		n.NetworkPolicy = vercelapi.Policy{Allow: slices.Clone(r.Network.Allow)}
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
	made, err := api.Create(ctx, n)
	if err != nil {
		return nil, p.unmade(ctx, r.Owner, err)
	}
	return p.open(ctx, api, made, program, r.User, r.Workdir, n.Timeout)
}

// permit lets commands be root besides the sandbox's own user.
func permit(name string, u guest.User) error {
	if u.UID == 0 && (name == "root" || name == "0") {
		return nil
	}
	return fault.Configf("sandbox.user-unsupported", "Leave `user` out, or name root.", "a Vercel sandbox runs as its own user or as root, not as %q", name)
}

// open connects to a sandbox that was just made, and destroys it when that
// fails. asked is the life that was asked for, in milliseconds.
func (p *Provider) open(ctx context.Context, api *vercelapi.Client, made *vercelapi.Created, program []byte, user, workdir string, asked int64) (sandbox.Driver, error) {
	if workdir == "" {
		workdir = DefaultWorkdir
	}
	m := p.newMachine(api, made, program, workdir)
	var d *cloudbox.Driver
	var err error
	if made.Session.Timeout < asked {
		err = lifeError("a life of %s was asked for and %s was granted", time.Duration(asked)*time.Millisecond, time.Duration(made.Session.Timeout)*time.Millisecond)
	} else {
		d, err = cloudbox.Open(ctx, cloudbox.Options{
			Machine: m, EarlyInput: true, User: user, Workdir: workdir, Permit: permit,
			Tunnel: relay.Options{Patience: p.o.Patience, Linger: linger},
		})
	}
	if err == nil {
		return &driver{d}, nil
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanupLimit, "built-in")
	defer cancel()
	if kerr := m.Destroy(clean); kerr != nil {
		return nil, &fault.Error{Code: "sandbox-provision-reconcile-failed", What: "destroy the unfinished sandbox " + m.name, Fix: "Delete it in Vercel's dashboard.", Err: errors.Join(err, kerr)}
	}
	if fault.ClassOf(err) != fault.Unknown || fault.Cause(ctx) != nil {
		return nil, err
	}
	return nil, explain("start the exec server in sandbox "+m.name, err)
}

// cleanupLimit bounds what is done after a failed or cancelled Create.
const cleanupLimit = 30 * time.Second

// unmade handles a Create call that failed: what it may have made has a name.
func (p *Provider) unmade(ctx context.Context, o sandbox.Owner, err error) error {
	out := explain("create a Vercel sandbox", err)
	clash := vercelapi.StatusOf(err) == http.StatusBadRequest && strings.Contains(err.Error(), "already exists")
	if !clash && (cloudbox.Unsent(err) || refused(err)) {
		return out
	}
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanupLimit, "built-in")
	defer cancel()
	if rerr := p.settle(clean, o); rerr != nil {
		return &fault.Error{Code: "sandbox-provision-reconcile-failed", What: out.What, Fix: "Look for a sandbox named " + nameOf(o) + ".", Err: errors.Join(err, rerr)}
	}
	if cause := fault.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if clash {
		out.Class = fault.Transient // an earlier try had made it after all
	}
	return out
}

// refused reports whether the service said that it made nothing.
func refused(err error) bool {
	s := vercelapi.StatusOf(err)
	return s >= 400 && s < 500 && s != http.StatusRequestTimeout
}

// looks are the pauses between looks for what an ambiguous call may have made.
var looks = []time.Duration{0, 300 * time.Millisecond, 1500 * time.Millisecond}

func (p *Provider) settle(ctx context.Context, o sandbox.Owner) error {
	for _, pause := range looks {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		found, err := p.reconcile(ctx, o)
		if err != nil || found {
			return err
		}
	}
	return nil
}

func (p *Provider) reconcile(ctx context.Context, o sandbox.Owner) (bool, error) {
	if o.Token == "" {
		return false, errors.New("vercel: an owner without a token finds nothing")
	}
	found, err := p.API().Delete(ctx, nameOf(o))
	if err != nil {
		return false, explain("delete sandbox "+nameOf(o), err)
	}
	return found, nil
}

// Reconcile destroys what a Create with this owner's token may have made.
func (p *Provider) Reconcile(ctx context.Context, o sandbox.Owner) error {
	_, err := p.reconcile(ctx, o)
	return err
}

// Instance is one sandbox of the project.
type Instance struct {
	ID, State string
	Labels    map[string]string
	Started   time.Time
}

// Instances lists the sandboxes that were made here and have all of the given
// owner labels.
func (p *Provider) Instances(ctx context.Context, labels map[string]string) ([]Instance, error) {
	f := vercelapi.Filter{NamePrefix: namePrefix}
	for _, k := range []string{tagToken, tagRun, tagHost} {
		if v := labels[k]; v != "" {
			f.Tag = k + ":" + v
			break
		}
	}
	all, err := p.API().List(ctx, f)
	if err != nil {
		return nil, explain("list the sandboxes", err)
	}
	var out []Instance
	for _, s := range all {
		if s.Tags[tagToken] == "" {
			continue
		}
		i := Instance{ID: s.Name, State: s.Status, Labels: Labels(s.Tags), Started: time.UnixMilli(s.CreatedAt)}
		fits := true
		for k := range maps.Keys(labels) {
			fits = fits && i.Labels[k] == labels[k]
		}
		if fits {
			out = append(out, i)
		}
	}
	return out, nil
}

// Destroy deletes a sandbox by its name, or a snapshot by its id; one that is
// gone is no error.
func (p *Provider) Destroy(ctx context.Context, name string) error {
	if strings.HasPrefix(name, snapshotPrefix) {
		err := p.API().DeleteSnapshot(ctx, name)
		if s := vercelapi.StatusOf(err); err != nil && s != http.StatusNotFound && s != http.StatusGone {
			return explain("delete snapshot "+name, err)
		}
		return nil
	}
	if _, err := p.API().Delete(ctx, name); err != nil {
		return explain("delete sandbox "+name, err)
	}
	return nil
}

var (
	_ sandbox.Provider   = (*Provider)(nil)
	_ sandbox.Reconciler = (*Provider)(nil)
)
