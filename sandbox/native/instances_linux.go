package native

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"assay/fault"
	"assay/record"
	"assay/sandbox"
)

// groupPrefix starts the ids of cgroups in the inventory.
const groupPrefix = "cgroup:"

// Inventory lists the sandboxes on disk, and the cgroups that runners which died
// have left. Sandboxes in memory end with their runner and are not listed.
func (p *Provider) Inventory(context.Context) ([]sandbox.Instance, error) {
	out, err := p.deadGroups(), error(nil)
	if derr := ours(p.boxes()); derr != nil {
		if errors.Is(derr, fs.ErrNotExist) {
			derr = nil
		}
		return out, derr
	}
	entries, derr := os.ReadDir(p.boxes())
	if derr != nil && !errors.Is(derr, fs.ErrNotExist) {
		err = derr
	}
	for _, e := range entries {
		dir := filepath.Join(p.boxes(), e.Name())
		i := sandbox.Instance{ID: e.Name(), Kind: "sandbox", State: "stopped"}
		if running(dir) {
			i.State = "running"
		}
		// A folder without a description was being made or removed when its maker
		// died; it has no owner, which is how it is listed.
		if about, derr := describe(dir); derr == nil {
			i.Labels, i.Created = about.Labels, about.Made
		} else if i.State == "running" {
			continue // it is being made
		}
		out = append(out, i)
	}
	return out, err
}

// deadGroups lists the cgroups whose runner is gone, as their names tell.
func (p *Provider) deadGroups() []sandbox.Instance {
	p.mu.Lock()
	cgs := p.cgs
	p.mu.Unlock()
	if cgs == nil {
		cgs = findCgroups()
	}
	self := record.CurrentOwner()
	seen := map[string]bool{}
	var out []sandbox.Instance
	for _, dir := range cgs.parents {
		entries, _ := os.ReadDir(dir) // what cannot be listed cannot be removed
		for _, e := range entries {
			pid, start, dead := orphaned(e.Name())
			path := filepath.Join(dir, e.Name())
			if !dead || seen[path] {
				continue
			}
			seen[path] = true
			o := sandbox.Owner{Host: self.Host, Boot: self.Boot, PIDNamespace: self.PIDNamespace, PID: pid, StartTime: start}
			out = append(out, sandbox.Instance{ID: groupPrefix + path, Kind: "cgroup", Name: e.Name(), Labels: o.Labels()})
		}
	}
	return out
}

// Destroy removes a sandbox on disk, or a cgroup that was left.
func (p *Provider) Destroy(ctx context.Context, id string) error {
	if path, ok := strings.CutPrefix(id, groupPrefix); ok {
		if !strings.HasPrefix(filepath.Base(path), boxPrefix) {
			return fault.Configf("sandbox-unknown", "Name one that `sandbox list` shows.", "%s is no cgroup of a sandbox", path)
		}
		return drop(ctx, path)
	}
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return fault.Configf("sandbox-unknown", "Name one that `sandbox list` shows.", "%q is no id of a sandbox", id)
	}
	if err := ours(p.boxes()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	x := &box{dir: filepath.Join(p.boxes(), id)}
	if _, err := os.Lstat(x.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p.endOwn(ctx, id)
	if running(x.dir) {
		return &fault.Error{Class: fault.Resource, Code: "sandbox-busy", What: "remove sandbox " + id, Fix: "End the process that runs it.", Err: errBusy}
	}
	if err := x.remove(); err != nil {
		return &fault.Error{Class: fault.Resource, Code: "sandbox-stop-failed", What: "remove sandbox " + id, Err: err}
	}
	return nil
}

// endOwn ends a sandbox that this process itself runs.
func (p *Provider) endOwn(ctx context.Context, id string) {
	p.mu.Lock()
	d := p.kept[id]
	p.mu.Unlock()
	if d != nil {
		_ = d.Stop(ctx) // what it leaves is seen by the caller
	}
}
