// Package orphan finds what runs that died have left at providers, and removes
// it. An instance is an orphan when its owner is known to be dead and no registry
// lists it as kept; what nobody can judge from here is unverified and left alone
// unless somebody insists.
package orphan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"assay/fault"
	"assay/internal/keep"
	"assay/record"
	"assay/sandbox"
)

// Found is an instance whose owner does not live.
type Found struct {
	Provider string            `json:"provider"`
	Instance sandbox.Instance  `json:"instance"`
	Owner    sandbox.Owner     `json:"-"`
	Life     record.Liveness   `json:"owner"`
	remove   sandbox.Inventory // of the provider
}

// Place is a provider to look at.
type Place struct {
	Kind      string
	Inventory sandbox.Inventory
}

// LifeOf judges the owner of an instance.
func LifeOf(o sandbox.Owner) record.Liveness {
	return record.LivenessOf(&record.Owner{Host: o.Host, Boot: o.Boot, PIDNamespace: o.PIDNamespace, PID: o.PID, Start: o.StartTime})
}

// Find looks at one place. extra is a registry that is asked besides those that
// the owners named.
func Find(ctx context.Context, p Place, extra keep.Registry) ([]Found, error) {
	all, err := p.Inventory.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	kept := registries{read: map[string]map[string]bool{}}
	var out []Found
	for _, i := range all {
		o := sandbox.OwnerOf(i.Labels)
		life := LifeOf(o)
		if life == record.Live {
			continue
		}
		// A sandbox and what belongs to it have one token; the entry names the
		// sandbox.
		if kept.holds(p.Kind, i.ID, o.Registry, extra.Dir) || kept.token(p.Kind, all, o.Token, o.Registry, extra.Dir) {
			continue
		}
		if life == record.Dead && (moved(o.Registry) || elsewhere(o, i.Created)) {
			life = record.Unverified
		}
		out = append(out, Found{Provider: p.Kind, Instance: i, Owner: o, Life: life, remove: p.Inventory})
	}
	return out, nil
}

// elsewhere reports whether the owner, by its boot a process of before this
// machine started, made something after that: then it runs on another machine that
// has the same name and id, such as a second copy of one image.
func elsewhere(o sandbox.Owner, created time.Time) bool {
	return o.Boot != self().Boot && !booted().IsZero() && created.After(booted())
}

var self = sync.OnceValue(record.CurrentOwner)

// booted is when this machine started, zero where the system does not tell:
// btime of proc_stat(5).
var booted = sync.OnceValue(func() time.Time {
	b, _ := os.ReadFile("/proc/stat")
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && n > 0 {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
})

// moved reports whether the project of a registry is not where it was: what it
// keeps nobody can tell then. A registry without a file is just empty.
func moved(registry string) bool {
	if registry == "" {
		return false
	}
	_, err := os.Stat(filepath.Dir(registry))
	return err != nil
}

// registries reads each registry once.
type registries struct{ read map[string]map[string]bool }

func (r registries) holds(kind, id string, dirs ...string) bool {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		ids, ok := r.read[dir]
		if !ok {
			ids = map[string]bool{}
			entries, err := keep.Registry{Dir: dir}.List()
			for _, e := range entries {
				ids[e.ID] = true
			}
			// Of what cannot be read nobody knows what it keeps.
			ids["*"] = err != nil
			r.read[dir] = ids
		}
		if ids["*"] || ids[keep.IDOf(kind, id)] {
			return true
		}
	}
	return false
}

// token reports whether an instance with the same owner token is kept.
func (r registries) token(kind string, all []sandbox.Instance, token string, dirs ...string) bool {
	if token == "" {
		return false
	}
	return slices.ContainsFunc(all, func(i sandbox.Instance) bool {
		return i.Labels[sandbox.LabelPrefix+"token"] == token && r.holds(kind, i.ID, dirs...)
	})
}

// Remove destroys what was found, in its order, and returns what is gone. The
// error joins what could not be removed.
func Remove(ctx context.Context, found []Found) ([]Found, error) {
	var gone []Found
	var errs []error
	for _, f := range found {
		if err := f.remove.Destroy(ctx, f.Instance.ID); err != nil {
			errs = append(errs, fmt.Errorf("%s %s %s: %w", f.Provider, f.Instance.Kind, f.Instance.ID, err))
			continue
		}
		gone = append(gone, f)
	}
	return gone, errors.Join(errs...)
}

// sweepLimit bounds what a run does for the dead.
const sweepLimit = 30 * time.Second

// Sweep removes the orphans with dead owners from places, all at once. It is for
// the start of a run, which it must not fail: errors are returned for a notice.
func Sweep(ctx context.Context, places []Place, extra keep.Registry) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	var mu sync.Mutex
	var gone []Found
	var errs []error
	var all sync.WaitGroup
	for _, p := range places {
		all.Go(func() {
			var found []Found
			err := fault.Caught(func() (err error) { found, err = Find(ctx, p, extra); return err })
			dead := slices.DeleteFunc(found, func(f Found) bool { return f.Life != record.Dead })
			var removed []Found
			rerr := fault.Caught(func() (err error) { removed, err = Remove(ctx, dead); return err })
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, removed...)
			if err = errors.Join(err, rerr); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.Kind, err))
			}
		})
	}
	all.Wait()
	return gone, errors.Join(errs...)
}

// Counted says how many of each kind there are, such as "2 containers, 1 network".
func Counted(found []Found) string {
	n := map[string]int{}
	var kinds []string
	for _, f := range found {
		k := f.Provider + " " + f.Instance.Kind
		if n[k]++; n[k] == 1 {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		s := ""
		if n[k] > 1 {
			s = "s"
		}
		kinds[i] = fmt.Sprintf("%d %s%s", n[k], k, s)
	}
	return strings.Join(kinds, ", ")
}
