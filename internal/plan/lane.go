package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"assay"
	"assay/fault"
	"assay/ref"
)

// LifetimeReserve is what a reused sandbox must live beyond the limit of the
// attempt that gets it: the time to end, grade and reset.
const LifetimeReserve = 30 * time.Second

// groups maps each eval to the group that lists it, and reports what is wrong
// with the groups themselves.
func (l *linker) groups() {
	known := map[ref.EvalID]*assay.Eval{}
	for i := range l.suite.Evals {
		known[l.suite.Evals[i].ID] = &l.suite.Evals[i]
	}
	l.groupOf = map[ref.EvalID]*assay.Group{}
	for i := range l.suite.Groups {
		g := &l.suite.Groups[i]
		if g.OnUnavailable != "" && g.OnUnavailable != "stop-group" && g.OnUnavailable != "replace-sandbox" {
			l.report("", fault.Configf("eval-group-on-unavailable", "Use stop-group or replace-sandbox.", "eval group %s has onUnavailable %q", g.ID, g.OnUnavailable))
		}
		if len(g.Evals) == 0 {
			l.report("", fault.Configf("eval-group-member-unresolved", "List the evals of the group.", "eval group %s has no members", g.ID))
		}
		for _, id := range g.Evals {
			e := known[id]
			if e == nil {
				l.report("", fault.Configf("eval-group-member-unresolved", "Name evals by their id below the group's folder: "+some(near(string(id), l.evalNames()), 5)+".", "eval group %s (%s) lists %s, which is no eval", g.ID, source(g.Source), id))
				continue
			}
			if other := l.groupOf[id]; other != nil {
				what := fmt.Sprintf("eval %s is in the groups %s and %s", id, other.ID, g.ID)
				if other == g {
					what = fmt.Sprintf("eval group %s lists %s twice", g.ID, id)
				}
				l.report("", fault.Configf("eval-group-member-overlap", "Keep it in one of them, once.", "%s", what))
				continue
			}
			if _, own := e.Sandbox.Template(); own || len(e.Sandbox.SetupSteps())+len(e.Sandbox.TeardownSteps()) > 0 {
				l.report("", fault.Configf("eval-group-member-layer", "Move the provider and its setup and teardown to the group.", "eval %s shares the sandbox of group %s and says itself how to make one", id, g.ID))
			}
			l.groupOf[id] = g
		}
	}
}

func (l *linker) evalNames() []string {
	out := make([]string, len(l.suite.Evals))
	for i := range l.suite.Evals {
		out[i] = string(l.suite.Evals[i].ID)
	}
	return out
}

// grouped puts the members of a group next to each other, in the group's order,
// at the place of the first: one sandbox serves them one after the other.
func (l *linker) grouped(evals []*assay.Eval) []*assay.Eval {
	if len(l.groupOf) == 0 {
		return evals
	}
	var out []*assay.Eval
	done := map[*assay.Group]bool{}
	for _, e := range evals {
		g := l.groupOf[e.ID]
		if g == nil {
			out = append(out, e)
			continue
		}
		if done[g] {
			continue
		}
		done[g] = true
		for _, id := range g.Evals {
			if i := slices.IndexFunc(evals, func(m *assay.Eval) bool { return m.ID == id }); i >= 0 {
				out = append(out, evals[i])
			}
		}
	}
	return out
}

// lane decides whether a slot uses a sandbox that others use too, and refuses
// what must not be shared before anything is made.
func (l *linker) lane(name string, s *Slot) {
	x, g, info := s.Experiment.Def, l.groupOf[s.Eval.ID], s.Environment.Info
	if !x.SandboxReuse && g == nil {
		return
	}
	who := "experiment " + string(x.ID) + " asks for sandboxReuse"
	if g != nil {
		s.Group, who = g, "eval group "+g.ID+" shares one sandbox"
	}
	refuse := func(code, fix, format string, args ...any) {
		l.report(name, fault.Configf(code, fix, "%s, %s", who, fmt.Sprintf(format, args...)))
	}
	set := s.Settings
	switch {
	case g != nil && x.SandboxReuse:
		l.report("", fault.Configf("eval-group-sandbox-reuse-conflict", "Remove sandboxReuse from the experiment, or leave the group's evals out of it.", "experiment %s has sandboxReuse and selects evals of group %s, which have a sandbox of their own", x.ID, g.ID))
		return
	case !info.Reuse || !info.Reset:
		refuse("sandbox.reuse-unavailable", "Use a provider that can reuse, such as native or docker, or remove the reuse.", "which the %s sandbox cannot do", info.Kind)
		return
	case l.sel.KeepSandbox != "":
		refuse("sandbox.reuse-keep-conflict", "Run without --keep-sandbox, or select an experiment without reuse.", "and a sandbox that is kept cannot be reused")
		return
	case set.User == "root" || set.User == "0":
		refuse("sandbox.reuse-root", "Give the sandbox an ordinary `user:`.", "but its agent is root, who could read and change what is recorded of earlier attempts")
		return
	case set.Lifetime == 0 && g == nil:
		refuse("sandbox.reuse-lifetime-missing", "Add `lifetime:` to the sandbox: how long one sandbox may live, such as 1h.", "which needs a lifetime")
		return
	case set.Lifetime > 0 && set.Lifetime < s.Timeout+LifetimeReserve:
		refuse("sandbox.lifetime-too-short", fmt.Sprintf("Raise `lifetime:` to more than %s, or lower the timeout.", s.Timeout+LifetimeReserve), "but the lifetime of %s is less than one attempt's limit of %s and %s for its end", set.Lifetime, s.Timeout, LifetimeReserve)
		return
	}
	s.Lane = laneKey(s)
	if g == nil {
		return
	}
	key := string(x.ID) + "\x00" + g.ID
	if first, ok := l.groupLane[key]; ok && first != s.Lane {
		l.report(name, fault.Configf("eval-group-incompatible", "Move user, workdir, limits, network, lifetime and diff rules from the members to the group.", "the members of eval group %s need different sandboxes", g.ID))
		return
	}
	l.groupLane[key] = s.Lane
}

// laneKey names everything that must be equal for attempts of one experiment to
// share a sandbox: how it starts, who works in it, whose hooks set it up, and
// what its reset leaves alone.
func laneKey(s *Slot) string {
	set := s.Settings
	owner := ""
	var hooks []string
	for _, lv := range s.Layers {
		if len(lv.Layer.SetupSteps())+len(lv.Layer.TeardownSteps()) > 0 {
			hooks = append(hooks, lv.Name)
		}
	}
	if s.Group != nil {
		owner = s.Group.ID
	}
	b, err := json.Marshal([]any{
		s.Environment.Info.Kind, fmt.Sprintf("%p", s.Environment.Provider), s.Environment.Key, set.User, set.Workdir, set.Resources, set.Network,
		set.Lifetime, set.Env, slices.Sorted(slices.Values(set.SecretEnv)), set.Path, hooks, owner,
		s.Experiment.Agent.Name, s.Experiment.Agent.Version, s.Experiment.Agent.Artifacts, s.Eval.Diff,
	})
	if err != nil {
		panic("plan: a lane's key is plain data: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
