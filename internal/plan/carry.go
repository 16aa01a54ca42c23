package plan

import (
	"fmt"
	"strings"
	"time"

	"assay"
	"assay/fault"
	"assay/internal/carry"
	"assay/record"
	"assay/ref"
)

// Rerun widens what is executed beyond what has no usable result.
type Rerun string

// The values of Rerun.
const (
	RerunNone   Rerun = ""       // errored, skipped and missing results
	RerunFailed Rerun = "failed" // and failed ones
	RerunAll    Rerun = "all"    // everything
)

// The reasons of a slot's action.
const (
	ReasonUnchanged   = "unchanged"       // carried: nothing that it depends on changed
	ReasonNew         = "new"             // no run had the slot
	ReasonStale       = "stale"           // Changed tells what changed
	ReasonErrored     = "errored"         // the result is no verdict
	ReasonSkipped     = "skipped"         // it was skipped
	ReasonInterrupted = "interrupted"     // its run has no result for it
	ReasonSlow        = "exceeds-timeout" // it took longer than it may now
	ReasonRerun       = "rerun"           // asked for
	ReasonKeep        = "keep-sandbox"    // a carried result has no sandbox to keep
	ReasonEarlyExit   = "early-exit"      // not needed: a carried attempt passed
)

// Past is what the record knows of a slot: the result in the newest run that has
// the pair, whatever older runs say, so that nothing comes back from before a
// change.
type Past struct {
	// Attempt is the result, nil when that run has none for the slot.
	Attempt *record.Attempt
	// Identity is what the result stands for: the attempt's own, or what it was
	// accepted for.
	Identity *record.Identity
	// Accepted is set when it was accepted for something else than its own.
	Accepted bool
}

// Prior tells what the record knows; nil knows nothing.
type Prior interface {
	// Past returns what is known of a slot, nil when no run had it.
	Past(ref.Slot) *Past
}

// Adopt decides for every slot whether a recorded result holds or it is
// executed, and which environments are needed for that. It may be called again
// with newer knowledge.
func (p *Plan) Adopt(prior Prior) {
	for _, x := range p.Experiments {
		passed := map[ref.EvalID]bool{}
		for _, s := range x.Slots {
			p.decide(s, prior)
			if s.Action == Carry && s.PriorVerdict == record.Passed {
				passed[s.Ref.Eval] = true
			}
		}
		if !x.EarlyExit {
			continue
		}
		for _, s := range x.Slots {
			if s.Action == Execute && passed[s.Ref.Eval] {
				s.Action, s.Reason, s.Changed = Skip, ReasonEarlyExit, nil
			}
		}
	}
	p.Environments = nil
	seen := map[*Environment]bool{}
	for _, s := range p.Executing() {
		if s.Environment != nil && !seen[s.Environment] {
			seen[s.Environment] = true
			p.Environments = append(p.Environments, s.Environment)
		}
	}
}

// Executing returns the slots that are executed, in discovery order.
func (p *Plan) Executing() []*Slot {
	var out []*Slot
	for _, x := range p.Experiments {
		out = append(out, x.Executing()...)
	}
	return out
}

// Executing returns the slots of the experiment that are executed.
func (e *Experiment) Executing() []*Slot {
	var out []*Slot
	for _, s := range e.Slots {
		if s.Action != Carry && s.Action != Skip {
			out = append(out, s)
		}
	}
	return out
}

// Carried returns the slots of the experiment whose results are carried.
func (e *Experiment) Carried() []*Slot {
	var out []*Slot
	for _, s := range e.Slots {
		if s.Action == Carry {
			out = append(out, s)
		}
	}
	return out
}

// Member is how a run refers to the result of a carried slot: the attempt stays
// where it lies, and evidence is never copied.
func Member(s *Slot) record.Member {
	m := record.Member{
		SlotRef: record.SlotRef{Eval: s.Ref.Eval, Ordinal: s.Ref.Ordinal},
		Origin:  record.Carried, Run: s.Past.Attempt.Run, Attempt: s.Past.Attempt.ID,
	}
	if s.Past.Accepted {
		// It holds because somebody said so, which stays visible.
		m.Origin, m.Identity = record.Accepted, s.Past.Identity
	}
	return m
}

// decide says what happens to a slot and why.
func (p *Plan) decide(s *Slot, prior Prior) {
	s.Action, s.Reason, s.Changed, s.Prior, s.PriorVerdict, s.Past = Execute, ReasonNew, nil, "", "", nil
	if prior == nil {
		return
	}
	past := prior.Past(s.Ref)
	switch {
	case past == nil:
		return
	case past.Attempt == nil:
		s.Reason = ReasonInterrupted
		return
	}
	a := past.Attempt
	s.Past, s.Prior, s.PriorVerdict = past, a.Locator, a.Verdict
	switch {
	case p.rerun == RerunAll:
		s.Reason = ReasonRerun
	case a.Verdict == record.Skipped:
		s.Reason = ReasonSkipped
	case a.Verdict != record.Passed && a.Verdict != record.Failed:
		s.Reason = ReasonErrored
	case !carry.Equal(past.Identity, s.Identity):
		s.Reason = ReasonStale
		for _, c := range carry.Changes(past.Identity, s.Identity) {
			s.Changed = append(s.Changed, c.String())
		}
	case !Within(a, s.Timeout):
		s.Reason = ReasonSlow
	case p.rerun == RerunFailed && a.Verdict == record.Failed:
		s.Reason = ReasonRerun
	case p.keep == "all", p.keep == "failed" && a.Verdict == record.Failed:
		s.Reason = ReasonKeep
	default:
		s.Action, s.Reason = Carry, ReasonUnchanged
	}
}

// Within reports whether a result was had within a limit; 0 is none. Time in
// queues does not count.
func Within(a *record.Attempt, limit time.Duration) bool {
	return limit <= 0 || a.DurationMS != nil && *a.DurationMS <= limit.Milliseconds()
}

// attach adds the plugins of each level's owner to its layer, and keeps the
// layers as they were declared for the identity.
func (l *linker) attach(levels []Level, x *assay.Experiment, g *assay.Group, e *assay.Eval) {
	l.bare = append(l.bare[:0], levels...)
	for i := range levels {
		if plugins := pluginsOf(levels[i].Name, x, g, e); len(plugins) > 0 {
			levels[i].Layer = assay.Attach(levels[i].Layer, plugins)
		}
	}
}

func pluginsOf(level string, x *assay.Experiment, g *assay.Group, e *assay.Eval) []assay.Plugin {
	switch owner, _, _ := strings.Cut(level, " "); {
	case owner == "experiment":
		return x.Plugins
	case owner == "group" && g != nil:
		return g.Plugins
	case owner == "eval":
		return e.Plugins
	}
	return nil
}

// plugins refuses what is wrong with the plugins of the whole suite.
func (l *linker) plugins() {
	check := func(owner string, ps []assay.Plugin) {
		if len(ps) == 0 {
			return
		}
		if err := assay.CheckPlugins(owner, ps); err != nil {
			l.report("", fault.Configf(fault.CodeOf(err), fault.FixOf(err), "%v", err))
		}
	}
	for i := range l.suite.Experiments {
		check("experiment "+string(l.suite.Experiments[i].ID), l.suite.Experiments[i].Plugins)
	}
	for i := range l.suite.Evals {
		e := &l.suite.Evals[i]
		check("eval "+string(e.ID), e.Plugins)
		if g := l.groupOf[e.ID]; g != nil && len(e.Plugins) > 0 {
			l.report("", fault.Configf("eval-group-member-layer", "Move the plugins to the group.", "eval %s shares the sandbox of group %s and has plugins of its own", e.ID, g.ID))
		}
	}
	for i := range l.suite.Groups {
		check("group "+l.suite.Groups[i].ID, l.suite.Groups[i].Plugins)
	}
}

// judged are the judge's settings that a grade depends on.
type judged struct {
	Model, BaseURL string
	Timeout        time.Duration
}

// identify computes what the results of a linked pair depend on.
func (l *linker) identify(p *Plan, s *Slot) {
	pair := carry.Pair{Experiment: s.Experiment.Def, Agent: s.Experiment.Agent, Eval: s.Eval, Settings: s.Settings}
	if x := s.Experiment; x.Agent.Direct && !l.inert && len(x.Def.Plugins)+len(s.Eval.Plugins) > 0 {
		l.inert = true
		p.Notices = append(p.Notices, Notice{"sandbox-inert", fmt.Sprintf("agent %s of experiment %s runs without a sandbox: plugins have no effect", x.Agent.Name, x.ID)})
	}
	if !s.Experiment.Agent.Direct {
		if s.Environment == nil {
			return // a problem that was told
		}
		pair.Provider, pair.Key = s.Environment.Label(), s.Environment.Key
		g := l.groupOf[s.Eval.ID]
		pair.Group = g
		for _, v := range s.Prepares() {
			owner, _, _ := strings.Cut(v.Name, " ")
			if len(v.Layer.PrepareSteps()) > 0 {
				pair.Prepares = append(pair.Prepares, owner)
			}
		}
		for _, v := range l.bare {
			owner, _, _ := strings.Cut(v.Name, " ")
			pair.Levels = append(pair.Levels, carry.Level{Owner: owner, Layer: v.Layer, Plugins: pluginsOf(v.Name, s.Experiment.Def, g, s.Eval)})
		}
	}
	if j := s.Judge; j != nil {
		pair.Judge = judged{j.Model, j.BaseURL, j.Timeout}
	}
	if l.identities == nil {
		l.identities = carry.NewPlanner(l.suite.Root)
	}
	id, err := l.identities.Identity(pair)
	if err != nil {
		if len(l.order) > 0 {
			return // what is wrong with its files was most likely told
		}
		l.report("", &fault.Error{Class: fault.Config, Code: fault.CodeOf(err), Fix: fault.FixOf(err), Err: err})
		return
	}
	s.Identity = id
}
