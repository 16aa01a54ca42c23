package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/enter"
	"assay/internal/ocistore"
	"assay/ref"
	"assay/sandbox"
)

// machine is what a provider knows of this machine.
type machine struct {
	whoOnce sync.Once
	who     identities

	mu    sync.Mutex
	prog  *program
	tools *tools
	store *ocistore.Store
	cgs   *cgroups
	live  map[string]string  // instance → owner token
	kept  map[string]*driver // those of them that are on disk

	joined func() // called when a first process exists; for tests
}

const (
	// DefaultPIDs limits the processes and threads of a sandbox that sets no
	// limit.
	DefaultPIDs = 4096
	// helloLimit bounds the making of one sandbox.
	helloLimit = 30 * time.Second
	// endLimit bounds the clean-up after a sandbox that was not to be.
	endLimit = 30 * time.Second
	hostname = "sandbox"
)

func (p *Provider) identities() identities {
	p.whoOnce.Do(func() { p.who = findIdentities() })
	return p.who
}

// Info describes the provider.
func (p *Provider) Info() sandbox.Info {
	info := sandbox.Info{
		Kind: Kind, Concurrency: max(4, 2*runtime.NumCPU()), RetryCreate: true,
		Reuse: true, Network: true, AllowList: true, Limits: true, Reset: true,
	}
	if p.identities().many {
		info.Users = sandbox.UsersAny
	}
	info.Keep = !p.identities().helpers
	return info
}

// program returns the exec server, loaded once.
func (p *Provider) program() (*program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prog != nil {
		return p.prog, nil
	}
	pr, err := load(p.o)
	if err == nil {
		p.prog = pr
	}
	return pr, err
}

func (p *Provider) hostTools() (*tools, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tools == nil {
		t, err := findTools()
		if err != nil {
			return nil, &startError{"look at the host's tools", "", errnoOf(err)}
		}
		p.tools = t
	}
	return p.tools, nil
}

// groups returns the machine's cgroups; the first look removes what runners that
// died have left.
func (p *Provider) groups() *cgroups {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cgs == nil {
		p.cgs = findCgroups()
		p.cgs.sweep()
	}
	return p.cgs
}

// Close releases what the provider holds; no sandbox of it may be alive.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	if p.prog != nil {
		errs = append(errs, p.prog.file.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	p.prog, p.store = nil, nil
	return errors.Join(errs...)
}

// Instances lists the live sandboxes of an owner token.
func (p *Provider) Instances(token string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []string
	for id, t := range p.live {
		if t == token {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *Provider) enlist(d *driver, token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		p.live, p.kept = map[string]string{}, map[string]*driver{}
	}
	p.live[d.id] = token
	if d.box != nil {
		p.kept[d.id] = d
	}
}

func (p *Provider) delist(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, id)
	delete(p.kept, id)
}

// start is a prepared start point.
type startPoint struct {
	image *unpacked // nil: the host's own tools
}

// Prepare looks at the host's tools, or fetches and unpacks the image. Stages
// are "tools", "image" and "unpack".
func (p *Provider) Prepare(ctx context.Context, t sandbox.Template, _ sandbox.Harness, s sandbox.Steps) (sandbox.Prepared, error) {
	spec, err := specOf(t)
	if err != nil {
		return sandbox.Prepared{}, err
	}
	if spec.Image != "" {
		return p.prepareImage(ctx, spec, t.Dir, s)
	}
	err = s.Do(ctx, "tools", func(context.Context) error {
		if cause := fault.Cause(ctx); cause != nil {
			return cause
		}
		_, err := p.hostTools()
		return err
	})
	if err != nil {
		return sandbox.Prepared{}, err
	}
	return sandbox.Prepared{Ref: "host-tools", Data: &startPoint{}}, nil
}

// Create makes one sandbox.
func (p *Provider) Create(ctx context.Context, r sandbox.CreateRequest) (sandbox.Driver, error) {
	if r.Notes == nil {
		r.Notes = sandbox.Quiet{}
	}
	spec, err := specOf(r.Template)
	if err != nil {
		return nil, err
	}
	if cause := fault.Cause(ctx); cause != nil {
		return nil, cause
	}
	out, err := egressOf(r.Network)
	if err != nil {
		return nil, err
	}
	prog, err := p.program()
	if err != nil {
		return nil, err
	}
	blue, err := p.blueprint(r, spec)
	if err != nil {
		return nil, err
	}
	blue.plan.Proxy = out != nil
	ctx, cancel := fault.WithTimeout(ctx, "native-create", helloLimit, "built-in")
	defer cancel()
	d, err := p.launch(ctx, prog, blue, r, out)
	if err != nil {
		return nil, p.explain(err)
	}
	return d, nil
}

// blueprint is everything about a sandbox that is known before it starts.
type blueprint struct {
	ids  identities
	plan *enter.Plan
	user string // "" is the namespace's own first identity
	// uid and gid are what the person who runs this is inside, where there is a
	// single identity.
	uid, gid int
	env      map[string]string
	workdir  string
	lifetime time.Duration
}

func (p *Provider) blueprint(r sandbox.CreateRequest, spec Spec) (*blueprint, error) {
	b := &blueprint{user: r.User, workdir: r.Workdir, ids: p.identities(), lifetime: r.Lifetime}
	var img *unpacked
	if sp, ok := r.From.Data.(*startPoint); ok {
		img = sp.image
	} else if spec.Image != "" {
		return nil, fmt.Errorf("native: Create needs the result of Prepare")
	}
	if img != nil && b.ids.helpers {
		// What an ordinary user unpacked is all his own: one identity.
		b.ids = identities{}
	}
	if img == nil {
		t, err := p.hostTools()
		if err != nil {
			return nil, err
		}
		b.plan = t.plan(b.ids.many)
		b.env = map[string]string{"PATH": t.path, "LANG": "C.UTF-8", "SHELL": shellOf()}
		if b.user == "" {
			b.user = userName
		}
		if b.user != "root" && b.user != "0" && b.user != "0:0" {
			b.uid, b.gid = userUID, userUID
		}
	} else if err := p.imageBlueprint(b, img); err != nil {
		return nil, err
	}
	if b.workdir == "" {
		b.workdir = userHome + "/workspace"
		if img == nil && (b.user == userName || b.uid == 0) {
			// Made with the root, which is faster than asking for it afterwards.
			uid, gid := uint32(b.uid), uint32(b.gid)
			b.plan.Dirs = append(b.plan.Dirs, enter.Dir{Path: b.workdir, Mode: 0o755, UID: uid, GID: gid})
		}
	}
	b.workdir = path.Clean(b.workdir)
	if !path.IsAbs(b.workdir) {
		return nil, fault.Configf("sandbox.workdir", "Give an absolute path.", "the working directory %q is not absolute", r.Workdir)
	}
	b.plan.Many = b.ids.many
	b.plan.Hostname = hostname
	b.plan.Base = baseDir()
	b.plan.Size, b.plan.Inodes = diskOf(r.Resources.Disk)
	for _, m := range spec.Mounts {
		host, err := resolveMount(m)
		if err != nil {
			return nil, err
		}
		b.plan.Mounts = append(b.plan.Mounts, enter.Mount{Host: host, Path: m.Path, Writable: m.Mode == "rw"})
	}
	b.plan.Files = append(b.plan.Files,
		enter.File{Path: "/etc/hostname", Mode: 0o644, Data: hostname + "\n"},
		enter.File{Path: "/etc/hosts", Mode: 0o644, Data: "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost\n"},
		// There is no name server inside: the proxy resolves names.
		enter.File{Path: "/etc/resolv.conf", Mode: 0o644, Data: "# Names are resolved by the proxy.\n"},
	)
	return b, nil
}

// resolveMount finds the host path of a mount now: what a symlink leads to later
// is not mounted.
func resolveMount(m Mount) (string, error) {
	host, err := filepath.EvalSymlinks(m.Host)
	if err != nil {
		return "", fault.Configf("sandbox.native-mount", "Make the path or correct it.", "the mount's host path %s cannot be used: %v", m.Host, err)
	}
	return host, nil
}

// baseDir is an existing directory that is covered in the sandbox's own view
// while its root is built.
func baseDir() string {
	for _, d := range []string{"/tmp", "/mnt", "/run", "/var"} {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			return d
		}
	}
	return "/"
}

// diskOf returns the bytes and files that a sandbox may have: what was asked
// for, else a quarter of the machine's memory. A file that is empty takes memory
// too, so their number is limited with the bytes.
func diskOf(asked int64) (size, inodes int64) {
	size = asked
	if size <= 0 {
		size = 1 << 30
		var si unix.Sysinfo_t
		if unix.Sysinfo(&si) == nil {
			size = max(size, int64(si.Totalram)*int64(si.Unit)/4)
		}
	}
	return size, min(max(size>>14, 1<<14), 4<<20)
}

// launch makes the sandbox. On error nothing of it is left.
func (p *Provider) launch(ctx context.Context, prog *program, b *blueprint, r sandbox.CreateRequest, out *egress) (*driver, error) {
	id := ref.New()
	if len(id) > 20 {
		id = id[len(id)-20:]
	}
	if !r.Keep {
		return p.start(ctx, prog, b, r, out, id, nil)
	}
	x, err := p.newBox(id, b, r)
	if err != nil {
		return nil, err
	}
	d, err := p.start(ctx, prog, b, r, out, id, x)
	if err != nil {
		if rerr := x.remove(); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return nil, err
	}
	return d, nil
}

// start starts the first process of a sandbox whose files are in memory, or in x.
// On error nothing runs.
func (p *Provider) start(ctx context.Context, prog *program, b *blueprint, r sandbox.CreateRequest, out *egress, id string, x *box) (_ *driver, err error) {
	d := &driver{p: p, id: id, res: r.Resources, size: b.plan.Size, box: x}
	cg, err := p.groups().create(r.Resources)
	if err != nil {
		return nil, err
	}
	d.cg = cg
	b.plan.Cgroups = cg.shown()
	b.plan.Rlimits, b.plan.CPUs = cg.rest(r.Resources)
	join := func(pid int) error {
		if p.joined != nil {
			p.joined()
		}
		return cg.join(pid)
	}
	d.proc, err = prog.start(ctx, startRequest{plan: b.plan, ids: b.ids, uid: b.uid, gid: b.gid, join: join})
	if err != nil {
		return nil, cg.removed(err)
	}
	p.enlist(d, r.Owner.Token)
	defer func() {
		if err != nil {
			clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", endLimit, "built-in")
			defer cancel()
			if serr := d.end(clean, false); serr != nil {
				err = fmt.Errorf("%w (and: %w)", err, serr)
			}
		}
	}()
	if out != nil {
		d.proxy = out.serve(d.proc.way, r.Notes)
	}
	if err := d.greet(ctx, b); err != nil {
		return nil, err
	}
	return d, nil
}

// greet says hello to the exec server, resolves the sandbox's user and makes
// the working directory.
func (d *driver) greet(ctx context.Context, b *blueprint) error {
	g, err := guest.Dial(ctx, d.proc.stream, guest.Options{})
	if err != nil {
		if cause := fault.Cause(ctx); cause != nil {
			return cause
		}
		return &startError{"greet the exec server", "", err}
	}
	d.Box.Client = g
	d.Box.Gone = d.gone
	d.Box.Env = b.env
	if d.proxy != nil {
		for k, v := range proxyEnv() {
			if _, set := d.Box.Env[k]; !set {
				d.Box.Env[k] = v
			}
		}
	}
	if d.Box.User, err = g.Lookup(ctx, b.user); err != nil {
		return d.Box.Failed(ctx, err)
	}
	if !b.plan.Many {
		info := g.Info()
		if d.Box.User.UID != info.UID || d.Box.User.GID != info.GID {
			return noSwitch(b.user)
		}
		d.Box.User.Groups = nil
		d.Box.Permit = func(name string, u guest.User) error {
			if u.UID != info.UID || u.GID != info.GID {
				return noSwitch(name)
			}
			return nil
		}
	}
	d.workdir = b.workdir
	if err := d.Limit(ctx, b.lifetime); err != nil {
		return err
	}
	return d.makeWorkdir(ctx)
}

func noSwitch(name string) error {
	return fault.Configf("sandbox.user-unsupported", "Leave `user` out, run as root, or install newuidmap and grant subordinate ids (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 \"$USER\").",
		"this sandbox has a single identity and cannot run anything as %q", name)
}
