package e2b

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"assay/internal/cloudbox"
	"assay/sandbox"
	"assay/sandbox/e2b/e2bapi"
)

// driver is a live sandbox.
type driver struct{ *cloudbox.Driver }

// Suspend keeps the sandbox's files and memory and pauses it.
func (d *driver) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	if err := d.Keep(ctx); err != nil {
		return sandbox.Dormant{}, err
	}
	m := d.Machine().(*machine)
	if err := m.api.Pause(ctx, m.s.SandboxID); err != nil && e2bapi.StatusOf(err) != http.StatusConflict {
		return sandbox.Dormant{}, explain("pause sandbox "+m.s.SandboxID, err)
	}
	return sandbox.Dormant{ID: m.s.SandboxID}, d.Detach()
}

// Leave lets the sandbox run on until its lifetime ends.
func (d *driver) Leave(ctx context.Context) error {
	if err := d.Keep(ctx); err != nil {
		return err
	}
	return d.Detach()
}

// Snapshot keeps the running sandbox as a start point and returns its name.
func (d *driver) Snapshot(ctx context.Context, name string) (string, error) {
	m := d.Machine().(*machine)
	s, err := m.api.CreateSnapshot(ctx, m.s.SandboxID, name)
	if err != nil {
		return "", explain("take a snapshot of sandbox "+m.s.SandboxID, err)
	}
	return s.SnapshotID, nil
}

// wakeLife is how long a sandbox that was woken lives where nobody says.
const wakeLife = time.Hour

// Wake resumes a sandbox, paused or running, for at least the lifetime longer.
func (p *Provider) Wake(ctx context.Context, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	lifetime, user, workdir := r.Lifetime, r.User, r.Workdir
	if lifetime == 0 {
		lifetime = wakeLife
	}
	program, err := p.program()
	if err != nil {
		return nil, err
	}
	api := p.API()
	s, _, err := api.Connect(ctx, id, seconds(lifetime))
	if err != nil {
		return nil, explain("wake sandbox "+id, err)
	}
	if workdir == "" {
		workdir = DefaultWorkdir
	}
	m := newMachine(api, s, program, workdir)
	d, err := cloudbox.Open(ctx, cloudbox.Options{Machine: m, User: user, Workdir: workdir})
	if err != nil {
		return nil, err // it was there before and stays
	}
	// A connection may have set another end than was asked for.
	if _, err := d.EnsureLifetime(ctx, lifetime); err != nil {
		return nil, fmt.Errorf("%w (%w)", err, d.Detach())
	}
	return &driver{d}, nil
}

// Instance is one sandbox of the account.
type Instance struct {
	ID       string
	State    string // "running" or "paused"
	Labels   map[string]string
	Started  time.Time
	Ends     time.Time
	Template string
	// CPUs and MemoryMB are facts of the template.
	CPUs, MemoryMB int
}

// Instances lists the sandboxes whose metadata has all of the given labels, in
// any state.
func (p *Provider) Instances(ctx context.Context, labels map[string]string) ([]Instance, error) {
	all, err := p.API().List(ctx, e2bapi.Filter{Metadata: labels})
	if err != nil {
		return nil, explain("list the sandboxes", err)
	}
	out := make([]Instance, 0, len(all))
	for _, i := range all {
		out = append(out, Instance{ID: i.SandboxID, State: i.State, Labels: i.Metadata, Started: i.StartedAt, Ends: i.EndAt, Template: i.TemplateID, CPUs: i.CPUCount, MemoryMB: i.MemoryMB})
	}
	return out, nil
}

// Inventory lists the sandboxes that carry owner labels.
func (p *Provider) Inventory(ctx context.Context) ([]sandbox.Instance, error) {
	all, err := p.Instances(ctx, nil)
	var out []sandbox.Instance
	for _, i := range all {
		if i.Labels[tokenKey] != "" {
			out = append(out, sandbox.Instance{ID: i.ID, Kind: "sandbox", State: i.State, Labels: i.Labels, Created: i.Started, Expires: i.Ends})
		}
	}
	return out, err
}

// Destroy kills a sandbox by its id; one that is gone is no error.
func (p *Provider) Destroy(ctx context.Context, id string) error {
	if _, err := p.API().Kill(ctx, id); err != nil {
		return explain("kill sandbox "+id, err)
	}
	return nil
}

var (
	_ sandbox.Inventory = (*Provider)(nil)
	_ sandbox.Waker     = (*Provider)(nil)
	_ sandbox.Suspender = (*driver)(nil)
	_ sandbox.Leaver    = (*driver)(nil)
)
