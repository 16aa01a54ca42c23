package compose

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/redact"
	"assay/sandbox"
	"assay/sandbox/docker"
)

const (
	// readyLimit names the limit of the wait for the services.
	readyLimit = "ready-timeout"
	// cleanLimit bounds the removal of a project that did not come up.
	cleanLimit = 30 * time.Second
	// poolPatience is how long a sandbox waits for addresses of an engine from
	// which this process holds no other network.
	poolPatience = 2 * time.Minute
)

// group is one sandbox's project while it comes up and lives.
type group struct {
	pr     *project
	engine *docker.Engine
	p      *docker.Provider
	images map[string]sandbox.Prepared
	r      sandbox.CreateRequest
	names  names
	fill   *strings.Replacer // puts secrets into their places
	mask   *redact.Redactor
	budget *budget

	mu       sync.Mutex
	members  docker.Group
	networks map[string]string // by key of the file
	ids      map[string]string // containers by service
	started  map[string]chan struct{}
	sandbox  sandbox.Driver
	holds    int
}

// Create brings a project up. On error nothing of it is left.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if r.Notes == nil {
		r.Notes = sandbox.Quiet{}
	}
	if r.Owner.Token == "" {
		r.Owner.Token = random(16)
	}
	st, err := p.startOf(ctx, r)
	if err != nil {
		return nil, err
	}
	secrets, err := p.credentials(st.project.spec)
	if err != nil {
		return nil, err
	}
	if err := st.project.permit(r); err != nil {
		return nil, err
	}
	engine := p.engine(st.project.spec)
	e, err := engine.Engine(ctx)
	if err != nil {
		return nil, err
	}
	var pairs []string
	for name, v := range secrets {
		pairs = append(pairs, placeholder(name), v)
	}
	g := &group{
		pr: st.project, engine: e, p: engine, images: st.images, r: r, fill: strings.NewReplacer(pairs...), budget: budgetOf(e.Host()),
		mask: redact.New(slices.Collect(maps.Values(secrets))...), names: names{"env-" + random(8)},
		networks: map[string]string{}, ids: map[string]string{}, started: map[string]chan struct{}{},
	}
	for _, name := range g.pr.names() {
		g.started[name] = make(chan struct{})
	}
	if why := g.pr.replaced(); why != "" {
		_ = r.Notes.Diagnostic(sandbox.Diagnostic{Code: "compose-command-replaced", Level: sandbox.Warning, Message: why, DedupeKey: "compose-command-replaced"})
	}
	if err := g.up(ctx); err != nil {
		return nil, errors.Join(err, g.clean(ctx))
	}
	return g.driver(), nil
}

// startOf is what Prepare found, also where that was in another process.
func (p *Provider) startOf(ctx context.Context, r sandbox.CreateRequest) (*start, error) {
	if st, ok := r.From.Data.(*start); ok && st != nil {
		return st, nil
	}
	if r.From.Ref == "" {
		return nil, errors.New("compose: Create needs the result of Prepare")
	}
	pr, err := p.project(ctx, r.Template)
	if err != nil {
		return nil, err
	}
	st := &start{project: pr, images: map[string]sandbox.Prepared{}}
	for _, name := range pr.names() {
		ref := r.From.Details["image."+name]
		if ref == "" {
			return nil, fmt.Errorf("compose: the prepared start point names no image for service %s", name)
		}
		st.images[name] = sandbox.Prepared{Ref: ref}
	}
	return st, nil
}

// permit refuses what cannot be enforced, before anything is made.
func (pr *project) permit(r sandbox.CreateRequest) error {
	switch r.Network.Mode {
	case "", "default":
		return nil
	case "none":
	default:
		return fault.Configf("sandbox.network-unsupported", "Use `network: default` or `network: none`.", "the compose provider cannot enforce network mode %q", r.Network.Mode)
	}
	for _, key := range pr.networks() {
		if pr.p.Networks[key].External {
			return fault.Configf("sandbox.network-unsupported", "Remove the external network, or `network: none`.", "%s: network: none cannot be enforced on the external network %s", pr.src.path("networks", key), key)
		}
	}
	return nil
}

// up makes everything and waits until it is ready.
func (g *group) up(ctx context.Context) error {
	if err := g.connect(ctx); err != nil {
		return err
	}
	limit := g.pr.spec.ReadyTimeout
	if limit == 0 {
		limit = DefaultReadyTimeout
	}
	outer, cancel := fault.WithTimeout(ctx, readyLimit, limit, "readyTimeout")
	defer cancel()
	// The first failure ends the others; it is the one that is told.
	ctx, fail := context.WithCancelCause(outer)
	defer fail(nil)
	var first error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range g.pr.names() {
		wg.Go(func() {
			if err := g.bring(ctx, name); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil || errors.Is(first, errSibling) {
					first = err
				}
				fail(errSibling)
			}
		})
	}
	wg.Wait()
	if errors.Is(first, errSibling) {
		return fault.Cause(outer)
	}
	return first
}

// errSibling ends what is under way when a service failed.
var errSibling = &fault.Error{Class: fault.Canceled, Code: "sandbox.service-failed", What: "another service failed"}

// connect makes the networks and volumes.
func (g *group) connect(ctx context.Context) error {
	internal := g.r.Network.Mode == "none"
	own := 0
	for _, key := range g.pr.networks() {
		n := g.pr.p.Networks[key]
		if !n.External {
			own++
			continue
		}
		id, err := g.engine.NetworkByName(ctx, n.Name)
		if docker.StatusOf(err) == http.StatusNotFound {
			return fault.Configf("sandbox.compose-external", "Make it with `docker network create`.", "%s: the external network %s does not exist", g.pr.src.path("networks", key), n.Name)
		}
		if err != nil {
			return err
		}
		g.networks[key] = id
	}
	for _, key := range g.pr.volumes() {
		v := g.pr.p.Volumes[key]
		if v.External {
			has, err := g.engine.HasVolume(ctx, v.Name)
			if err == nil && !has {
				err = fault.Configf("sandbox.compose-external", "Make it with `docker volume create`.", "%s: the external volume %s does not exist", g.pr.src.path("volumes", key), v.Name)
			}
			if err != nil {
				return err
			}
			continue
		}
		name := g.names.part(key)
		g.note(func(m *docker.Group) { m.Volumes = append(m.Volumes, name) })
		if err := g.engine.CreateVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: v.Driver, DriverOpts: v.DriverOpts, Labels: g.labels(v.Labels, "volume", key)}); err != nil {
			return err
		}
	}
	var since time.Time
	for {
		err := g.makeNetworks(ctx, own, internal)
		if !exhausted(err) {
			return err
		}
		// Somebody else was faster. What was made goes back, so that two who
		// each have half of what they need do not wait for each other.
		if cerr := g.dropNetworks(ctx); cerr != nil {
			return errors.Join(err, cerr)
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) > poolPatience && g.budget.alone() {
			return outOfPools(err)
		}
		g.r.Notes.Progress(sandbox.Progress{Message: "waiting for a free network of the container engine: it has no addresses left"})
		select {
		case <-ctx.Done():
			return errors.Join(outOfPools(err), fault.Cause(ctx))
		case <-time.After(relook):
		}
	}
}

func (g *group) makeNetworks(ctx context.Context, own int, internal bool) error {
	if err := g.budget.acquire(ctx, own, g.engine.Pools, g.r.Notes); err != nil {
		return err
	}
	g.holds = own
	for _, key := range g.pr.networks() {
		n := g.pr.p.Networks[key]
		if n.External {
			continue
		}
		ipv6 := n.EnableIPv6
		id, err := g.engine.CreateNetwork(ctx, g.names.part(key), client.NetworkCreateOptions{
			Driver: "bridge", Internal: bool(n.Internal) || internal, Attachable: n.Attachable, EnableIPv6: ipv6, Options: n.DriverOpts, Labels: g.labels(n.Labels, "network", key),
		})
		if err != nil {
			return err
		}
		g.networks[key] = id
		g.note(func(m *docker.Group) { m.Networks = append(m.Networks, id) })
	}
	return nil
}

func (g *group) dropNetworks(ctx context.Context) error {
	g.mu.Lock()
	nets := docker.Group{Networks: g.members.Networks}
	g.members.Networks = nil
	g.mu.Unlock()
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanLimit, "built-in")
	defer cancel()
	err := g.engine.Destroy(clean, nets)
	g.giveBack()
	return err
}

func (g *group) giveBack() {
	g.mu.Lock()
	n := g.holds
	g.holds = 0
	g.mu.Unlock()
	if n > 0 {
		g.budget.release(n)
	}
}

// bring starts one service when those that it waits for are as far as it says,
// and waits until it is ready.
func (g *group) bring(ctx context.Context, name string) error {
	svc := g.pr.p.Services[name]
	for _, dep := range slices.Sorted(maps.Keys(svc.DependsOn)) {
		begun, ok := g.started[dep]
		if !ok {
			continue // off, and not required
		}
		select {
		case <-begun:
		case <-ctx.Done():
			return errSibling // the one that is waited for says why
		}
		if err := g.await(ctx, dep, condition(svc.DependsOn[dep].Condition)); err != nil {
			return err
		}
	}
	files, err := g.pr.files(name)
	if err != nil {
		return err
	}
	tar, err := pack(files, g.fill)
	if err != nil {
		return err
	}
	if name == g.pr.spec.WorkspaceService {
		err = g.own(ctx, svc, tar)
	} else {
		err = g.beside(ctx, name, tar)
	}
	if err != nil {
		return g.failed(ctx, name, err)
	}
	close(g.started[name])
	return g.await(ctx, name, ready)
}

// own starts the sandbox's container.
func (g *group) own(ctx context.Context, svc types.ServiceConfig, tar []byte) error {
	name := svc.Name
	mode, first, others := g.pr.join(name, g.networks)
	var bad error
	shape := docker.Shape{
		Name: g.names.container(name), Part: random(16), User: svc.User, Workdir: svc.WorkingDir, Env: variablesOf(svc, g.fill),
		Network: first, Others: others, Files: tar,
		Alter: func(c *container.Config, h *container.HostConfig) {
			bad = g.pr.common(svc, c, h, g.labels(nil, "service", name))
			if hc := health(svc.HealthCheck); hc != nil {
				c.Healthcheck = hc
			}
			h.NetworkMode, h.Mounts = mode, append(h.Mounts, g.pr.mounts(name, g.names)...)
			g.enforce(h)
		},
	}
	r := g.r
	r.Network = sandbox.Network{}
	r.From = g.images[name]
	r.Template = sandbox.Template{Provider: g.p, Spec: docker.Spec{Image: r.From.Ref, Guest: g.pr.spec.Guest}}
	d, err := g.p.CreateShaped(ctx, r, shape)
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	g.mu.Lock()
	g.sandbox = d
	g.mu.Unlock()
	g.born(name, d.ID())
	return nil
}

// enforce puts the limits of the sandbox's layer over those of the file.
func (g *group) enforce(h *container.HostConfig) {
	r := g.r.Resources
	if r.CPUs > 0 {
		h.NanoCPUs = int64(r.CPUs * 1e9)
	}
	if r.Memory > 0 {
		h.Memory, h.MemorySwap = r.Memory, r.Memory
	}
	if r.PIDs > 0 {
		pids := r.PIDs
		h.PidsLimit = &pids
	}
	g.seal(h)
}

// beside starts a companion.
func (g *group) beside(ctx context.Context, name string, tar []byte) error {
	c, h, err := g.pr.companion(name, g.images[name].Ref, g.labels(nil, "service", name), g.fill)
	if err != nil {
		return err
	}
	one := docker.Companion{Name: g.names.container(name), Part: random(16), Config: c, Host: h, Files: tar}
	h.NetworkMode, one.Network, one.Others = g.pr.join(name, g.networks)
	h.Mounts = g.pr.mounts(name, g.names)
	g.seal(h)
	id, err := g.engine.Create(ctx, one)
	if err != nil {
		return err
	}
	g.born(name, id)
	return g.engine.Start(ctx, id)
}

// seal closes the one way out that an internal network leaves: the engine passes
// questions about names that it does not know on to the world. Asked to pass them
// to a place inside the container, it answers those of the project only.
func (g *group) seal(h *container.HostConfig) {
	if g.r.Network.Mode == "none" && !h.NetworkMode.IsNone() {
		h.DNS = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
}

func (g *group) born(name, id string) {
	g.note(func(m *docker.Group) { m.Containers = append(m.Containers, id); g.ids[name] = id })
}

func (g *group) note(f func(*docker.Group)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.members)
}

func (g *group) id(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ids[name]
}

// labels are the owner's, what the file says, and those by which Compose's own
// tools know a project.
func (g *group) labels(own map[string]string, kind, key string) map[string]string {
	out := map[string]string{}
	for k, v := range own {
		if !strings.HasPrefix(k, sandbox.LabelPrefix) {
			out[k] = v
		}
	}
	maps.Copy(out, g.r.Owner.Labels())
	out["com.docker.compose.project"] = g.names.project
	out["com.docker.compose."+kind] = key
	return out
}

func (g *group) masked(s string) string { return g.mask.String(s) }

// clean removes a project that did not come up: what is known of it, and what
// carries its owner's token.
func (g *group) clean(ctx context.Context) error {
	defer g.giveBack()
	clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanLimit, "built-in")
	defer cancel()
	g.mu.Lock()
	all, d := g.members, g.sandbox
	g.mu.Unlock()
	var err error
	if d != nil {
		err = d.Stop(clean)
	}
	err = errors.Join(err, g.engine.Destroy(clean, all))
	left, ferr := g.engine.Find(clean, sandbox.LabelPrefix+"token", g.r.Owner.Token)
	if ferr == nil && !left.Empty() {
		ferr = g.engine.Destroy(clean, left)
	}
	if err = errors.Join(err, ferr); err != nil {
		return fmt.Errorf("project %s may be left: %w", g.names.project, err)
	}
	return nil
}

// Reconcile removes whatever an unclear Create of this owner may have made.
func (p *Provider) Reconcile(ctx context.Context, o sandbox.Owner) error {
	if o.Token == "" {
		return errors.New("compose: an owner without a token cannot be reconciled")
	}
	var errs []error
	for _, kind := range []string{docker.Docker, docker.Podman} {
		e, err := p.engines[kind].Engine(ctx)
		if err != nil {
			if fault.CodeOf(err) != "sandbox.engine-unreachable" {
				errs = append(errs, err)
			}
			continue // no engine, nothing made
		}
		all, err := e.Find(ctx, sandbox.LabelPrefix+"token", o.Token)
		if err == nil {
			err = e.Destroy(ctx, all)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
