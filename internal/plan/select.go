package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"assay"
	"assay/fault"
	"assay/ref"
)

// selectExperiments finds the experiments that a selector names: an exact id, a
// directory at any depth, a directory with the start of a file name, or the
// path of the experiment's file.
func selectExperiments(all []assay.Experiment, sel string) ([]*assay.Experiment, error) {
	var out []*assay.Experiment
	pick := func(ok func(id string) bool) bool {
		for i := range all {
			if ok(string(all[i].ID)) {
				out = append(out, &all[i])
			}
		}
		return len(out) > 0
	}
	if len(all) == 0 {
		return nil, fault.Configf("experiments-missing", "Add a file below experiments/, or run `assay init` in an empty folder.", "the project has no experiments")
	}
	if sel == "" {
		pick(func(string) bool { return true })
		return out, nil
	}
	s := strings.TrimSuffix(strings.TrimPrefix(path.Clean(strings.ReplaceAll(sel, "\\", "/")), "./"), "/")
	file := false
	if ext := path.Ext(s); ext == ".yaml" || ext == ".yml" {
		file = true
		s = strings.TrimSuffix(s, ext)
		if i := strings.LastIndex("/"+s, "/experiments/"); i >= 0 {
			s = s[i+len("experiments/"):]
		}
	} else {
		s = strings.TrimPrefix(s, "experiments/")
	}
	dir, base := path.Split(s)
	if pick(func(id string) bool { return id == s }) ||
		!file && (pick(func(id string) bool { return strings.HasPrefix(id, s+"/") }) ||
			pick(func(id string) bool { return strings.Contains("/"+id, "/"+s+"/") }) ||
			pick(func(id string) bool { d, b := path.Split(id); return d == dir && strings.HasPrefix(b, base) })) {
		return out, nil
	}
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = string(all[i].ID)
	}
	return nil, fault.Configf("experiment-unknown", "Name one of: "+some(near(sel, ids), 12)+".", "no experiment matches %q", sel)
}

// evalIDs are the ids of all evals.
type evalIDs map[ref.EvalID]bool

func idsOf(suite *assay.Suite) evalIDs {
	ids := make(evalIDs, len(suite.Evals))
	for i := range suite.Evals {
		ids[suite.Evals[i].ID] = true
	}
	return ids
}

// matches reports whether an eval id is selected by a prefix: a whole id selects
// that eval alone, also when it begins others; else a directory with or without
// its slash, or the start of a name.
func (ids evalIDs) matches(id ref.EvalID, prefix string) bool {
	if ids[ref.EvalID(prefix)] {
		return string(id) == prefix
	}
	return strings.HasPrefix(string(id), prefix)
}

// selectEvals returns, per experiment, the evals that it and the command line
// select, in discovery order.
func selectEvals(suite *assay.Suite, exps []*assay.Experiment, sel Selection) ([][]*assay.Eval, []error) {
	if len(suite.Evals) == 0 {
		return nil, []error{fault.Configf("evals-missing", "Add an eval below evals/, or run `assay init` in an empty folder.", "the project has no evals")}
	}
	var problems []error
	all := idsOf(suite)
	used := make([]bool, len(sel.Evals))
	tagUsed := map[string]bool{}
	out := make([][]*assay.Eval, len(exps))
	total := 0
	for i, x := range exps {
		own := map[string]bool{}
		for j := range suite.Evals {
			e := &suite.Evals[j]
			if !all.selects(x, e, own) {
				continue
			}
			named := len(sel.Evals) == 0
			for k, prefix := range sel.Evals {
				if all.matches(e.ID, strings.TrimPrefix(prefix, "evals/")) {
					named, used[k] = true, true
				}
			}
			for _, t := range e.Tags {
				tagUsed[t] = tagUsed[t] || named
			}
			if !named || !tagged(e.Tags, sel.Tags) {
				continue
			}
			out[i] = append(out[i], e)
		}
		total += len(out[i])
		for _, p := range x.Evals {
			if p != "*" && !own[p] {
				problems = append(problems, fault.Configf("eval-prefix-unmatched", "Correct `evals:` of the experiment; `assay list` names the evals.", "experiment %s selects %q, which matches no eval", x.ID, p))
			}
		}
	}
	ids := make([]string, len(suite.Evals))
	for j := range suite.Evals {
		ids[j] = string(suite.Evals[j].ID)
	}
	for k, prefix := range sel.Evals {
		if !used[k] {
			problems = append(problems, fault.Configf("eval-prefix-unmatched", "Name one of: "+some(near(prefix, ids), 12)+".", "the eval prefix %q matches no eval of the selected experiments", prefix))
		}
	}
	for _, t := range sel.Tags {
		if !tagUsed[t] && total > 0 {
			problems = append(problems, fault.Configf("tag-unmatched", "`assay list` shows the tags.", "no selected eval has the tag %s", t))
		}
	}
	if total == 0 && len(problems) == 0 {
		why := "the selected experiments select no evals"
		if len(sel.Tags) > 0 {
			why = fmt.Sprintf("no selected eval has the tag %s", strings.Join(sel.Tags, " or "))
		}
		problems = append(problems, fault.Configf("nothing-selected", "See `assay list` and `assay exp list`.", "%s", why))
	}
	return out, problems
}

// tagged reports whether one of the wanted tags is there, or none is wanted.
func tagged(have, want []string) bool {
	return len(want) == 0 || slices.ContainsFunc(want, func(t string) bool { return slices.Contains(have, t) })
}

// Count is how many evals an experiment itself selects.
func Count(suite *assay.Suite, x *assay.Experiment) int {
	all, n := idsOf(suite), 0
	for i := range suite.Evals {
		if all.selects(x, &suite.Evals[i], nil) {
			n++
		}
	}
	return n
}

// selects reports whether an experiment's own evals field and function select an
// eval, and notes in used which of its prefixes did.
func (ids evalIDs) selects(x *assay.Experiment, e *assay.Eval, used map[string]bool) bool {
	ok := len(x.Evals) == 0
	for _, p := range x.Evals {
		if p == "*" || ids.matches(e.ID, p) {
			ok = true
			if used != nil {
				used[p] = true
			}
		}
	}
	return ok && (x.Select == nil || x.Select(*e))
}

// near sorts candidates by how alike they are to s: those that share a start
// first.
func near(s string, candidates []string) []string {
	out := slices.Clone(candidates)
	common := func(c string) int {
		n := 0
		for n < len(c) && n < len(s) && c[n] == s[n] {
			n++
		}
		if strings.Contains(c, s) {
			n += len(s)
		}
		return n
	}
	slices.SortStableFunc(out, func(a, b string) int { return common(b) - common(a) })
	return out
}

func some(s []string, n int) string {
	if len(s) <= n {
		return strings.Join(s, ", ")
	}
	return strings.Join(s[:n], ", ") + fmt.Sprintf(", and %d more", len(s)-n)
}
