package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"assay"
	"assay/fault"
	"assay/internal/atomicfile"
	"assay/internal/attempt"
	"assay/internal/event"
	"assay/record"
	"assay/ref"
)

// A marker says that the teardown of an experiment is owed. It is written before
// the setup is entered and removed after the teardown, so that one which is found
// without its owner is a duty of whoever comes next. Its name holds the run: a
// run removes its own only.
type marker struct {
	Experiment ref.ExperimentID `json:"experiment"`
	Run        ref.RunID        `json:"run"`
	Owner      record.Owner     `json:"owner"`
	EnteredAt  time.Time        `json:"enteredAt"`

	file string
}

// duties is the folder of markers.
type duties string

func (d duties) path(id ref.ExperimentID, run ref.RunID) string {
	return filepath.Join(string(d), url.PathEscape(string(id))+"."+string(run)+".json")
}

// owe writes the marker of a run; without a folder there is nothing to do.
func (d duties) owe(m marker) error {
	if d == "" {
		return nil
	}
	if err := os.MkdirAll(string(d), atomicfile.DirMode); err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return (&atomicfile.Disk{}).Replace(d.path(m.Experiment, m.Run), append(b, '\n'))
}

// done removes the marker of a run.
func (d duties) done(id ref.ExperimentID, run ref.RunID) error {
	if d == "" {
		return nil
	}
	err := os.Remove(d.path(id, run))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// left returns the markers of an experiment, oldest first, in two parts: those
// whose owner is dead, and the others.
func (d duties) left(id ref.ExperimentID) (dead, others []marker, err error) {
	if d == "" {
		return nil, nil, nil
	}
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	prefix := url.PathEscape(string(id)) + "."
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || filepath.Ext(e.Name()) != ".json" {
			continue
		}
		m := marker{file: filepath.Join(string(d), e.Name())}
		b, err := os.ReadFile(m.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its run has just ended
		}
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", m.file, err)
		}
		if m.Experiment != id {
			continue
		}
		if record.LivenessOf(&m.Owner) == record.Dead {
			dead = append(dead, m)
		} else {
			others = append(others, m)
		}
	}
	slices.SortFunc(dead, func(a, b marker) int { return a.EnteredAt.Compare(b.EnteredAt) })
	return dead, others, nil
}

// lock lets one process at a time pay what is owed. Its error says that another
// does.
func (d duties) lock() (release func(), err error) {
	l := flock.New(filepath.Join(string(d), ".lock"), flock.SetPermissions(atomicfile.FileMode))
	ok, err := l.TryLock()
	if err == nil && !ok {
		err = fault.Configf("teardown-busy", "Wait until it is done.", "another process runs leftover teardowns of this project")
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Unlock() }, nil
}

// hasTeardown reports whether an experiment has something to tear down.
func hasTeardown(d *assay.Experiment) bool { return len(d.TeardownCommands) > 0 || d.Teardown != nil }

// Paid is what became of the leftover teardown of one experiment.
type Paid struct {
	Experiment ref.ExperimentID
	// Owed is how many dead runs had left one.
	Owed int
	// Waits says why nothing was done, "" where it was or there was nothing to do.
	Waits string
	Err   error
}

// pay runs the teardown of an experiment once for all its dead runs, and removes
// their markers when it succeeded.
func (x *experiment) pay(ctx context.Context, d duties) Paid {
	p := Paid{Experiment: x.x.ID}
	dead, others, err := d.left(x.x.ID)
	p.Owed, p.Err = len(dead), err
	for _, m := range others {
		p.Waits = fmt.Sprintf("the run %s, process %d on %s, is not known to be dead", m.Run, m.Owner.PID, m.Owner.Host)
	}
	if err != nil || len(dead) == 0 {
		return p
	}
	if r, left := x.c.leases().Left(x.x.Def.SharedState); left && x.x.Def.SharedState != "" {
		p.Waits = fmt.Sprintf("shared state %s was left by %s and needs its own recovery first", r.Key, r)
		return p
	}
	if p.Waits != "" {
		return p // what it would tear down may be in use
	}
	release, err := d.lock()
	if err != nil {
		p.Err = err
		return p
	}
	defer release()
	// Whoever had the lock before may have paid.
	if dead, _, p.Err = d.left(x.x.ID); p.Err != nil || len(dead) == 0 {
		p.Owed = 0
		return p
	}
	if p.Err = x.compensate(ctx); p.Err != nil {
		return p
	}
	for _, m := range dead {
		p.Err = errors.Join(p.Err, d.done(m.Experiment, m.Run))
	}
	return p
}

// compensate runs the teardown on its own time, which a second signal shortens.
func (x *experiment) compensate(ctx context.Context) error {
	force := x.c.o.Force
	if force == nil {
		force = ctx
	}
	ctx, cancel := attempt.OnHost(force)
	defer cancel()
	def := x.x.Def
	return attempt.Bounded(ctx, func(ctx context.Context) error {
		return x.hooks(ctx, "experiment.teardown", def.TeardownCommands, def.Teardown)
	})
}

// heal pays what runs that died owe, before anything of this run is set up, also
// where nothing will be. After a signal the rest stays owed.
func (c *conductor) heal(ctx context.Context) {
	for _, x := range c.experiments {
		if fault.Cause(ctx) != nil {
			return
		}
		p := x.pay(ctx, c.duties())
		switch {
		case p.Err != nil:
			x.mu.Lock()
			x.diags = append(x.diags, record.Diagnostic{Phase: "experiment.teardown", Code: "leftover-teardown-failed", Level: "error", Message: x.mask.String(p.Err.Error()), Count: 1})
			if x.err == nil {
				// As red as the run that left it: what it releases is still there.
				x.err = attempt.ErrorInfo(&fault.Error{Class: fault.ClassOf(p.Err), Code: "leftover-teardown-failed", Stage: "experiment.teardown", Fix: fault.FixOf(p.Err), What: "the teardown that an earlier run owed", Err: p.Err}, x.mask)
			}
			x.mu.Unlock()
			c.o.Sink(event.Notice{Code: "leftover-teardown-failed", Level: "warning", Message: fmt.Sprintf("the teardown of experiment %s that an earlier run owed failed and is still owed (`assay exp %s --teardown` runs it alone): %s", p.Experiment, p.Experiment, x.mask.String(p.Err.Error()))})
		case p.Owed > 0 && p.Waits != "":
			c.o.Sink(event.Notice{Code: "leftover-teardown-waits", Level: "warning", Message: fmt.Sprintf("a teardown of experiment %s is owed and waits: %s", p.Experiment, p.Waits)})
		case p.Owed > 0:
			c.o.Sink(event.Notice{Code: "leftover-teardown", Level: "info", Message: fmt.Sprintf("ran the teardown of experiment %s that %s had left", p.Experiment, count(p.Owed, "earlier run"))})
		}
	}
}
