package discover

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"assay"
	"assay/fault"
	"assay/internal/projectfile"
	"assay/ref"
)

// file is one file while it is turned into a definition.
type file struct {
	l    *loader
	path string // relative to the root, with slashes
	root *projectfile.Node
	s    *source // nil for assay.yaml

	problems []Problem
}

// load reads and decodes a file into target; it is false when there is nothing
// to convert.
func (f *file) load(target any) bool {
	data, bad := f.l.open(f.path, f.s == nil || f.s.symlink)
	if bad != nil {
		f.problems = append(f.problems, *bad)
		return false
	}
	root, problems := projectfile.Parse(data)
	f.root = root
	f.add(problems)
	if root == nil {
		return false
	}
	f.add(projectfile.Decode(root, target, f.l.kinds))
	return true
}

func (f *file) add(problems []Problem) {
	for _, p := range problems {
		p.File = f.path
		f.problems = append(f.problems, p)
	}
}

// report says what is wrong at a place of the file.
func (f *file) report(at *projectfile.Field, code, message, fix string) {
	line, column := at.Position(f.root)
	f.problems = append(f.problems, Problem{File: f.path, Line: line, Column: column, Field: at.String(), Code: code, Message: message, Fix: fix})
}

// reportErr reports an error of a provider or agent.
func (f *file) reportErr(at *projectfile.Field, err error) {
	code := fault.CodeOf(err)
	if code == "" {
		code = "bad-value"
	}
	f.report(at, code, err.Error(), fault.FixOf(err))
}

// dir is the host folder that relative paths of the file start from.
func (f *file) dir() string {
	return filepath.Join(f.l.root, filepath.FromSlash(path.Dir(f.path)))
}

// project reads assay.yaml into the suite.
func (l *loader) project(suite *assay.Suite) {
	if !exists(filepath.Join(l.root, projectFile)) {
		return
	}
	f := &file{l: l, path: projectFile}
	var p projectfile.Project
	if f.load(&p) {
		suite.Name = p.Name
		if p.MaxConcurrency != nil {
			suite.MaxConcurrency = *p.MaxConcurrency
		}
		suite.Judge, suite.Telemetry = judgeConfig(p.Judge), telemetry(p.Telemetry)
		if p.Record != "" {
			suite.Record = p.Record
			if !filepath.IsAbs(p.Record) {
				suite.Record = filepath.Join(l.root, p.Record)
			}
		}
		at := (*projectfile.Field)(nil)
		if p.Defaults != nil {
			suite.Defaults.Timeout = p.Defaults.Timeout
			suite.Defaults.Sandbox = f.layer(p.Defaults.Sandbox, at.Key("defaults").Key("sandbox"))
		}
		for name, profile := range p.Profiles {
			if suite.Profiles == nil {
				suite.Profiles = map[string]layer{}
			}
			suite.Profiles[name] = f.layer(profile.Sandbox, at.Key("profiles").Key(name).Key("sandbox"))
		}
	}
	l.problems = append(l.problems, f.problems...)
}

// read fills one source.
func (l *loader) read(s *source) {
	f := &file{l: l, path: s.path, s: s}
	switch s.kind {
	case kindExperiment:
		var x projectfile.Experiment
		if f.load(&x) {
			s.experiment = f.experiment(&x)
		}
	case kindEval:
		var x projectfile.Eval
		if f.load(&x) {
			s.eval = f.eval(&x)
		}
	case kindGroup:
		var x projectfile.Group
		if f.load(&x) {
			s.group = f.group(&x)
			s.root = f.root
		}
	}
	s.problems = f.problems
}

// collect puts the definitions into the suite and checks what spans files.
func (l *loader) collect(suite *assay.Suite) {
	opaque := map[string]bool{}
	for _, s := range l.files {
		for _, dir := range s.opaque {
			opaque[dir] = true
		}
	}
	evals := make(map[string]string, len(l.files)) // id → path
	suite.Evals = make([]assay.Eval, 0, len(l.files))
	kept := l.files[:0:0]
	for _, s := range l.files {
		if within(opaque, s.path) {
			continue
		}
		kept = append(kept, s)
		l.problems = append(l.problems, s.problems...)
		if s.kind == kindEval {
			if first, ok := evals[s.id]; ok {
				l.report(Problem{File: s.path, Code: "duplicate-id", Message: fmt.Sprintf("the id %q is already that of %s", s.id, first), Fix: "Rename or remove one of them."})
				continue
			}
			evals[s.id] = s.path
			if s.eval != nil {
				suite.Evals = append(suite.Evals, *s.eval)
				s.eval = nil // large projects: not kept twice
			}
		}
		if s.experiment != nil {
			l.checkProfile(suite, s)
			suite.Experiments = append(suite.Experiments, *s.experiment)
		}
	}
	l.groups(suite, kept, evals)
	l.problems = append(l.problems, l.plugins.problems...)
}

// within reports whether a folder of the set holds the path.
func within(dirs map[string]bool, p string) bool {
	if len(dirs) == 0 {
		return false
	}
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if dirs[d] {
			return true
		}
	}
	return false
}

func (l *loader) checkProfile(suite *assay.Suite, s *source) {
	name := s.experiment.Profile
	if _, ok := suite.Profiles[name]; ok || name == "" {
		return
	}
	names := make([]string, 0, len(suite.Profiles))
	for n := range suite.Profiles {
		names = append(names, n)
	}
	fix := "Add it below `profiles:` of assay.yaml."
	if near := projectfile.Nearest(name, names); near != "" {
		fix = "Did you mean " + near + "?"
	}
	f := &file{l: l, path: s.path, root: s.root}
	f.report((*projectfile.Field)(nil).Key("profile"), "profile-unknown", fmt.Sprintf("there is no profile %q", name), fix)
	l.problems = append(l.problems, f.problems...)
}

// groups resolves the members of groups.
func (l *loader) groups(suite *assay.Suite, files []*source, evals map[string]string) {
	owner := map[ref.EvalID]string{}
	for _, s := range files {
		if s.group == nil {
			continue
		}
		f := &file{l: l, path: s.path, root: s.root}
		base := path.Dir(strings.TrimPrefix(s.path, evalsDir+"/"))
		at := (*projectfile.Field)(nil).Key("evals")
		for i, member := range s.group.Evals {
			id := ref.EvalID(path.Join(base, string(member)))
			s.group.Evals[i] = id
			if _, ok := evals[string(id)]; !ok {
				f.report(at.Index(i), "eval-group-member-unresolved", fmt.Sprintf("there is no eval %q", id), nearEval(string(member), base, evals))
				continue
			}
			if other, ok := owner[id]; ok {
				f.report(at.Index(i), "eval-group-member-overlap", fmt.Sprintf("the eval %q is already a member of %s", id, other), "An eval is in one group, once.")
				continue
			}
			owner[id] = s.path
		}
		l.problems = append(l.problems, f.problems...)
		suite.Groups = append(suite.Groups, *s.group)
	}
}

func nearEval(member, base string, evals map[string]string) string {
	var names []string
	for id := range evals {
		if base == "." {
			names = append(names, id)
		} else if below, ok := strings.CutPrefix(id, base+"/"); ok {
			names = append(names, below)
		}
	}
	slices.Sort(names)
	if near := projectfile.Nearest(member, names); near != "" {
		return "Did you mean " + near + "?"
	}
	return "Name evals by their ids relative to this folder."
}
