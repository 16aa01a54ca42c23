package fake

import (
	"context"
	"errors"
	"slices"
	"strings"

	"assay/fault"
	"assay/internal/snapshot"
	"assay/sandbox"
)

// Suspend ends the machine's processes and keeps its tree, as long as the
// provider lives.
func (m *machine) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	if err := m.usable(); err != nil {
		return sandbox.Dormant{}, err
	}
	m.end(errors.New("it was suspended"))
	m.running.Wait()
	next := &machine{
		id: m.id, p: m.p, script: m.script, labels: m.labels, tree: m.tree, users: m.users, def: m.def, workdir: m.workdir,
		dead: make(chan struct{}), procs: map[int]*proc{}, used: m.used, stores: m.stores,
	}
	if next.stores == nil {
		next.stores = map[string]*snapshot.MemStore{}
	}
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	m.p.instances[m.id] = next
	if m.p.asleep == nil {
		m.p.asleep = map[string]bool{}
	}
	m.p.asleep[m.id] = true
	return sandbox.Dormant{ID: m.id}, nil
}

// Wake gives a suspended machine back.
func (p *Provider) Wake(_ context.Context, id string, _ sandbox.WakeRequest) (sandbox.Driver, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.instances[id]
	if m == nil || !p.asleep[id] {
		return nil, &fault.Error{Class: fault.Config, Code: "sandbox-removed", What: "no fake sandbox " + id + " sleeps", Fix: "Forget it with `sandbox stop`."}
	}
	delete(p.asleep, id)
	return m, nil
}

// Inventory lists the live instances.
func (p *Provider) Inventory(context.Context) ([]sandbox.Instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []sandbox.Instance
	for id, m := range p.instances {
		i := sandbox.Instance{ID: id, Kind: "sandbox", State: "running", Labels: m.labels, Expires: m.expires}
		if p.asleep[id] {
			i.State = "stopped"
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b sandbox.Instance) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Destroy removes an instance.
func (p *Provider) Destroy(_ context.Context, id string) error {
	p.Vanish(id)
	return nil
}

var (
	_ sandbox.Inventory = (*Provider)(nil)
	_ sandbox.Waker     = (*Provider)(nil)
	_ sandbox.Suspender = (*machine)(nil)
)
