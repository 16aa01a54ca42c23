package run

import (
	"context"
	"path/filepath"

	"assay"
	"assay/fault"
	"assay/internal/event"
	"assay/internal/lease"
	"assay/internal/plan"
	"assay/internal/redact"
	"assay/record"
	"assay/ref"
)

func join(state, name string) string {
	if state == "" {
		return ""
	}
	return filepath.Join(state, name)
}

func (c *conductor) duties() duties { return duties(join(c.o.State, "teardowns")) }

func (c *conductor) leases() lease.Dir { return Leases(c.o.State) }

// Leases are the leases of a project.
func Leases(state string) lease.Dir { return lease.Dir{Path: join(state, "leases")} }

// TeardownOptions are what running leftover teardowns needs.
type TeardownOptions struct {
	Experiments []*assay.Experiment
	// State and Root are those of Options.
	State, Root string
	Env         func(name string) (string, bool)
	Sink        event.Sink
}

// bare is the state of an experiment that runs nothing but its own hooks.
func (o TeardownOptions) bare(def *assay.Experiment) *experiment {
	c := &conductor{o: Options{State: o.State, Root: o.Root, Env: o.Env, Sink: o.Sink}}
	var values []string
	if def.Agent != nil {
		for _, name := range def.Agent.Info().SecretEnv {
			if v, ok := o.Env(name); ok {
				values = append(values, v)
			}
		}
	}
	return &experiment{c: c, x: &plan.Experiment{Def: def, ID: def.ID}, mask: redact.New(values...)}
}

// Teardown runs the teardowns that dead runs of experiments owe, and nothing
// else.
func Teardown(ctx context.Context, o TeardownOptions) []Paid {
	out := make([]Paid, 0, len(o.Experiments))
	for _, def := range o.Experiments {
		x := o.bare(def)
		out = append(out, x.pay(ctx, x.c.duties()))
	}
	return out
}

// Recover repairs a shared state that was left: the lease is taken from its dead
// owner by its token, the teardowns of the experiments that use it run, and only
// when all succeeded the lease is given back.
func Recover(ctx context.Context, o TeardownOptions, key, token string) (tornDown []ref.ExperimentID, err error) {
	var users []*experiment
	for _, def := range o.Experiments {
		if def.SharedState == key {
			users = append(users, o.bare(def))
		}
	}
	if len(users) == 0 {
		return nil, fault.Configf("shared-state-unused", "Select the experiment whose `sharedState:` has this key.", "no selected experiment uses shared state %s", key)
	}
	l, err := Leases(o.State).Recover(key, token, lease.Holder{Owner: *record.CurrentOwner(), Experiment: users[0].x.ID})
	if err != nil {
		return nil, err
	}
	why := ""
	for _, x := range users {
		if err = x.compensate(ctx); err != nil {
			why = "the teardown of experiment " + string(x.x.ID) + " failed: " + x.mask.String(err.Error())
			break
		}
		tornDown = append(tornDown, x.x.ID)
		dead, _, derr := x.c.duties().left(x.x.ID)
		for _, m := range dead {
			if derr == nil {
				derr = x.c.duties().done(m.Experiment, m.Run)
			}
		}
		if err = derr; err != nil {
			why = err.Error()
			break
		}
	}
	if rerr := l.Release(why); err == nil {
		err = rerr
	}
	return tornDown, err
}
