package discover

import (
	"fmt"
	"maps"

	"assay"
)

// Merge joins the suite of a project folder with that of a program. Go
// definitions come after those of files; what files leave out the program
// gives. An id or profile that both define is a problem; the error is like that
// of Load.
func Merge(files, program assay.Suite) (*assay.Suite, error) {
	out := files
	var problems []Problem
	clash := func(what, id, source string) {
		if source == "" {
			source = "Go program"
		}
		problems = append(problems, Problem{File: source, Code: "duplicate-id", Message: fmt.Sprintf("the %s %q is defined again in Go", what, id), Fix: "Rename or remove one of them."})
	}
	if out.Name == "" {
		out.Name = program.Name
	}
	if out.Root == "" {
		out.Root = program.Root
	}
	if out.Record == "" {
		out.Record = program.Record
	}
	out.Judge = out.Judge.Over(program.Judge)
	if out.Telemetry == nil {
		out.Telemetry = program.Telemetry
	}
	if out.MaxConcurrency == 0 {
		out.MaxConcurrency = program.MaxConcurrency
	}
	if out.Defaults.Timeout == 0 {
		out.Defaults.Timeout = program.Defaults.Timeout
	}
	if out.Defaults.Sandbox.IsZero() {
		out.Defaults.Sandbox = program.Defaults.Sandbox
	}
	out.Experiments = join(files.Experiments, program.Experiments, "experiment", func(x assay.Experiment) (string, string) { return string(x.ID), x.Source }, clash)
	out.Evals = join(files.Evals, program.Evals, "eval", func(x assay.Eval) (string, string) { return string(x.ID), x.Source }, clash)
	out.Groups = join(files.Groups, program.Groups, "group", func(x assay.Group) (string, string) { return x.ID, x.Source }, clash)
	out.Profiles = maps.Clone(files.Profiles)
	for name, l := range program.Profiles {
		if _, ok := out.Profiles[name]; ok {
			clash("profile", name, projectFile)
			continue
		}
		if out.Profiles == nil {
			out.Profiles = map[string]layer{}
		}
		out.Profiles[name] = l
	}
	if err := problemError(problems); err != nil {
		return nil, err
	}
	return &out, nil
}

func join[T any](files, program []T, what string, name func(T) (id, source string), clash func(what, id, source string)) []T {
	sources := make(map[string]string, len(files)+len(program))
	out := make([]T, 0, len(files)+len(program))
	for _, x := range files {
		id, source := name(x)
		sources[id] = source
		out = append(out, x)
	}
	for _, x := range program {
		id, source := name(x)
		if first, ok := sources[id]; ok {
			if first == "" {
				first = source
			}
			clash(what, id, first)
			continue
		}
		sources[id] = source
		out = append(out, x)
	}
	return out
}
