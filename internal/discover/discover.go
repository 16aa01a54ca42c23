// Package discover turns the files of a project folder into an assay.Suite, and
// says everything that is wrong with them at once.
//
// It changes nothing and uses no network. One broken file never hides what is
// wrong with another.
package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/projectfile"
	"assay/ref"
	"assay/sandbox"
)

// Problem is one thing that is wrong with a project.
type Problem = projectfile.Problem

// Options say what files may name.
type Options struct {
	Sandboxes *sandbox.Registry
	Agents    *agent.Registry
}

// Problems is everything that is wrong with a project, sorted by file and line.
type Problems struct{ list []Problem }

// Problems returns the problems.
func (p *Problems) Problems() []Problem { return slices.Clone(p.list) }

// maxShown is how many problems the text of an error lists.
const maxShown = 50

// Error lists the problems, one a line, and counts those it leaves out.
func (p *Problems) Error() string {
	var b strings.Builder
	for i, one := range p.list {
		if i == maxShown {
			fmt.Fprintf(&b, "\n  and %d more", len(p.list)-maxShown)
			break
		}
		b.WriteString("\n  " + one.String())
	}
	return b.String()
}

// ProblemsOf returns the problems of an error of this package, or nil.
func ProblemsOf(err error) []Problem {
	if p := (*Problems)(nil); errors.As(err, &p) {
		return p.Problems()
	}
	return nil
}

// problemError is the error of a project with problems: a *fault.Error of class
// Config, code "project-invalid", around Problems. It is nil without problems.
func problemError(list []Problem) error {
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	files := map[string]bool{}
	for _, p := range list {
		files[p.File] = true
	}
	what := fmt.Sprintf("%s in %s", count(len(list), "problem"), count(len(files), "file"))
	return &fault.Error{Class: fault.Config, Scope: fault.ScopeRun, Code: "project-invalid", What: what, Fix: "Correct the files; nothing was run.", Err: &Problems{list}}
}

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// The names of a project's files and folders.
const (
	projectFile    = "assay.yaml"
	experimentsDir = "experiments"
	evalsDir       = "evals"
	evalFile       = "eval.yaml"
	evalSuffix     = ".eval.yaml"
	groupFile      = "group.yaml"
)

// Root finds the project root of a folder: the nearest folder, itself or
// upwards, with assay.yaml, else the nearest with experiments/ or evals/. The
// error has the code "project-missing".
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fault.Configf("project-missing", "Name a folder with -C.", "there is no folder %s", dir)
	}
	is := func(p string, dir bool) bool {
		info, err := os.Stat(p)
		return err == nil && info.IsDir() == dir
	}
	upwards := func(found func(string) bool) string {
		for d := dir; ; d = filepath.Dir(d) {
			if found(d) {
				return d
			}
			if d == filepath.Dir(d) {
				return ""
			}
		}
	}
	if d := upwards(func(d string) bool { return is(filepath.Join(d, projectFile), false) }); d != "" {
		return d, nil
	}
	if d := upwards(func(d string) bool {
		return is(filepath.Join(d, experimentsDir), true) || is(filepath.Join(d, evalsDir), true)
	}); d != "" {
		return d, nil
	}
	return "", fault.Configf("project-missing", "Run `assay init` to make a project here, or name its folder with -C.", "neither %s nor a folder above it has assay.yaml, experiments/ or evals/", dir)
}

// Load reads the project that dir is in. Its error is a *fault.Error of class
// Config; ProblemsOf gives the single problems. Evals, experiments and groups
// are in the order of their files' paths, by code points.
func Load(ctx context.Context, dir string, o Options) (*assay.Suite, error) {
	root, err := Root(dir)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fault.Wrap(err, fault.Config, "project-missing", "open the project folder")
	}
	l := &loader{root: root, real: real, kinds: projectfile.Kinds{Sandboxes: o.Sandboxes, Agents: o.Agents}}
	l.find()
	suite := &assay.Suite{Root: root}
	l.project(suite)
	if err := l.readAll(ctx); err != nil {
		return nil, err
	}
	l.collect(suite)
	if err := problemError(l.problems); err != nil {
		return nil, err
	}
	return suite, nil
}

// Record returns the record root of the project that dir is in, from its project
// file alone: whoever only reads results needs no definitions, and they may be
// broken or many. A project file that cannot be read leaves the usual place.
func Record(dir string, o Options) (string, error) {
	root, err := Root(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", fault.Wrap(err, fault.Config, "project-missing", "open the project folder")
	}
	l := &loader{root: root, real: real, kinds: projectfile.Kinds{Sandboxes: o.Sandboxes, Agents: o.Agents}}
	suite := &assay.Suite{Root: root}
	l.project(suite)
	if suite.Record == "" {
		return filepath.Join(root, ".assay", "record"), nil
	}
	return suite.Record, nil
}

// loader is one Load.
type loader struct {
	root, real string
	kinds      projectfile.Kinds
	files      []*source
	problems   []Problem
	plugins    pluginFiles
}

// kind of a source file.
type kind uint8

const (
	kindExperiment kind = iota
	kindEval
	kindGroup
)

// source is one file that defines something, and what came of it. It is filled
// by one goroutine.
type source struct {
	kind kind
	// path is relative to the root, with slashes.
	path string
	id   string
	// symlink is set when the file is one.
	symlink bool
	// workspace is set when the folder has an entry of that name.
	workspace bool

	experiment *assay.Experiment
	eval       *assay.Eval
	group      *assay.Group
	root       *projectfile.Node
	problems   []Problem
	// opaque are folders, relative to the root, that hold an eval's own files.
	opaque []string
}

func (l *loader) report(p Problem) { l.problems = append(l.problems, p) }

// find lists the files of the project.
func (l *loader) find() {
	if ext := "assay.yml"; exists(filepath.Join(l.root, ext)) {
		l.report(misnamed(ext, projectFile))
	}
	l.walk(experimentsDir, 0)
	l.walk(evalsDir, 0)
	slices.SortFunc(l.files, func(a, b *source) int { return cmp.Compare(a.path, b.path) })
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

func misnamed(file, want string) Problem {
	return Problem{File: file, Code: "file-name", Message: "a file of this name is not read", Fix: "Rename it to " + want + "."}
}

// maxFolders is how deep folders are searched.
const maxFolders = 64

// walk searches one folder. Folders that are symlinks are not entered: they
// could lead out of the project, or in a circle.
func (l *loader) walk(dir string, depth int) {
	entries, err := os.ReadDir(filepath.Join(l.root, filepath.FromSlash(dir)))
	if err != nil {
		if depth > 0 || !errors.Is(err, fs.ErrNotExist) {
			l.report(Problem{File: dir, Code: "folder-unreadable", Message: "the folder cannot be read: " + cause(err), Fix: "Check its permissions."})
		}
		return
	}
	if depth > maxFolders {
		l.report(Problem{File: dir, Code: "folder-too-deep", Message: fmt.Sprintf("folders are nested more than %d deep", maxFolders), Fix: "Move the files up."})
		return
	}
	inEvals := dir == evalsDir || strings.HasPrefix(dir, evalsDir+"/")
	hasEval, workspace := false, false
	for _, e := range entries {
		name := e.Name()
		if inEvals && (name == evalFile || strings.HasSuffix(name, evalSuffix)) {
			hasEval = true
		}
		workspace = workspace || name == "workspace"
	}
	for _, e := range entries {
		name := e.Name()
		full := dir + "/" + name
		if !e.IsDir() {
			l.file(full, e, inEvals, workspace)
			continue
		}
		switch name {
		case ".assay", ".git", "node_modules":
			continue
		case "workspace", "hidden", "solution":
			if hasEval {
				continue // an eval's own files, which may be a project themselves
			}
		}
		l.walk(full, depth+1)
	}
}

// file notes one file if its name says that it defines something.
func (l *loader) file(full string, e fs.DirEntry, inEvals, workspace bool) {
	name := e.Name()
	s := &source{path: full, symlink: e.Type()&fs.ModeSymlink != 0, workspace: workspace}
	below := strings.TrimPrefix(full, evalsDir+"/")
	switch {
	case !inEvals && strings.HasSuffix(name, ".yaml"):
		s.kind, s.id = kindExperiment, strings.TrimSuffix(strings.TrimPrefix(full, experimentsDir+"/"), ".yaml")
	case inEvals && name == evalFile:
		s.kind, s.id = kindEval, path.Dir(below)
		if s.id == "." {
			l.report(Problem{File: full, Code: "eval-id", Message: "an eval's folder gives its id, and this file is in evals/ itself", Fix: "Move it to evals/<name>/eval.yaml or evals/<name>.eval.yaml."})
			return
		}
	case inEvals && strings.HasSuffix(name, evalSuffix):
		s.kind, s.id = kindEval, strings.TrimSuffix(below, evalSuffix)
	case inEvals && name == groupFile:
		s.kind, s.id = kindGroup, path.Dir(below)
		if s.id == "." {
			s.id = evalsDir
		}
	case !inEvals && strings.HasSuffix(name, ".yml"), inEvals && (name == "eval.yml" || name == "group.yml" || strings.HasSuffix(name, ".eval.yml")):
		l.report(misnamed(full, strings.TrimSuffix(name, ".yml")+".yaml"))
		return
	default:
		return
	}
	if err := ref.CheckPathID(s.id); err != nil || strings.HasSuffix(s.id, "/") {
		msg := fmt.Sprintf("the path gives the id %q, which is none", s.id)
		if err != nil {
			msg = err.Error()
		}
		l.report(Problem{File: full, Code: "bad-id", Message: msg, Fix: "Rename the file."})
		return
	}
	l.files = append(l.files, s)
}

// cause is an error's text without the path, which the problem names.
func cause(err error) string {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// readAll reads the files, as many at once as there are processors.
func (l *loader) readAll(ctx context.Context) error {
	work := make(chan *source)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), max(1, len(l.files))) {
		wg.Go(func() {
			for s := range work {
				l.read(s)
			}
		})
	}
	for _, s := range l.files {
		if ctx.Err() != nil {
			break
		}
		work <- s
	}
	close(work)
	wg.Wait()
	if err := fault.Cause(ctx); err != nil {
		return &fault.Error{Class: fault.Canceled, Code: "canceled", What: "read the project", Err: err}
	}
	return nil
}

// open reads a definition's bytes; a symlink may lead to another file of the
// project only.
func (l *loader) open(rel string, symlink bool) ([]byte, *Problem) {
	full := filepath.Join(l.root, filepath.FromSlash(rel))
	fail := func(code, message, fix string) ([]byte, *Problem) {
		return nil, &Problem{File: rel, Code: code, Message: message, Fix: fix}
	}
	if symlink && !l.inside(full) {
		return fail("path-escapes", "the file is a symlink that leads out of the project or nowhere", "Copy the file into the project.")
	}
	data, err := readRegular(full)
	switch {
	case errors.Is(err, errNotRegular):
		return fail("file-unreadable", "this is no regular file", "Replace it with a file.")
	case err != nil:
		return fail("file-unreadable", "the file cannot be read: "+cause(err), "Check its permissions.")
	case len(data) > projectfile.MaxFile:
		return fail("file-too-large", fmt.Sprintf("the file has more than %d bytes", projectfile.MaxFile), "Move long texts into files of their own.")
	}
	return data, nil
}

// inside reports whether a path, with its symlinks followed, is in the project.
func (l *loader) inside(full string) bool {
	to, err := filepath.EvalSymlinks(full)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(l.real, to)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}
