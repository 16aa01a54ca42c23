// Package archtest holds the house in order: imports point to lower floors,
// every package has a comment, nothing hides in an init function, and only the
// outermost packages touch the process's own arguments, streams and exit. The
// files are parsed in this process, tests included, whatever their build tags,
// so that no cached answer of a child can go stale.
package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// rules is a house: see floors.go for what each field means.
type rules struct {
	module      string
	floors      []floor // lowest first
	testOnly    []string
	guarded     []guard
	modules     []guard
	leanRooms   []string
	leanModules []string
	process     []string
}

type floor struct {
	name  string
	rooms []string
}

// guard says that only the rooms in by may import what; "x/*" is everything
// below x.
type guard struct {
	what string
	by   []string
	why  string
}

// problem is one broken rule.
type problem struct {
	pos  string // file:line
	text string // what is wrong and what to do
	line string // the offending line
}

func (p problem) String() string {
	if p.line == "" {
		return p.pos + ": " + p.text
	}
	return p.pos + ": " + p.text + "\n\t" + p.line
}

// check parses every Go file of the module in fsys and returns what breaks the
// rules, in path order.
func check(fsys fs.FS, r rules) ([]problem, error) {
	files := map[string][]string{} // folder → its Go files
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			if strings.HasSuffix(p, ".go") {
				files[path.Dir(p)] = append(files[path.Dir(p)], p)
			}
			return nil
		}
		if p == "." {
			return nil
		}
		if n := d.Name(); n == "testdata" || n == "vendor" || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") {
			return fs.SkipDir
		}
		if _, err := fs.Stat(fsys, p+"/go.mod"); err == nil {
			return fs.SkipDir // a module of its own
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []problem
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		found, err := r.checkPackage(fsys, dir, files[dir])
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// source is one parsed file.
type source struct {
	name string
	test bool
	text []byte
	fset *token.FileSet
	ast  *ast.File
}

func (s source) at(pos token.Pos, format string, a ...any) problem {
	n := s.fset.Position(pos).Line
	lines := bytes.Split(s.text, []byte("\n"))
	return problem{fmt.Sprintf("%s:%d", s.name, n), fmt.Sprintf(format, a...), strings.TrimSpace(string(lines[n-1]))}
}

func (r rules) checkPackage(fsys fs.FS, dir string, names []string) ([]problem, error) {
	var found []problem
	if r.floorOf(dir) < 0 && !within(dir, r.testOnly) {
		found = append(found, problem{pos: dir, text: "this package is on no floor: add it to internal/archtest/floors.go and to ARCHITECTURE.md"})
	}
	commented := false
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s := source{name, strings.HasSuffix(name, "_test.go"), text, fset, f}
		commented = commented || f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != ""
		found = append(found, r.checkInit(s)...)
		if !s.test {
			found = append(found, r.checkImports(dir, s)...)
			found = append(found, r.checkProcess(dir, s)...)
		}
	}
	if !commented {
		found = append(found, problem{pos: dir, text: "the package has no comment: say in one sentence what it is for"})
	}
	return found, nil
}

// checkInit finds init functions: start-up work that no caller asked for.
func (r rules) checkInit(s source) []problem {
	var found []problem
	for _, d := range s.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			found = append(found, s.at(fn.Pos(), "init function: call it from where it is needed"))
		}
	}
	return found
}

// checkImports holds a file that is no test to the floors and walls. Tests may
// look anywhere; the compiler keeps cycles out of them.
func (r rules) checkImports(dir string, s source) []problem {
	var found []problem
	for _, spec := range s.ast.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			found = append(found, s.at(spec.Pos(), "import path: %v", err))
			continue
		}
		why := ""
		switch {
		case imp == r.module:
			why = r.refuse(dir, ".")
		case strings.HasPrefix(imp, r.module+"/"):
			why = r.refuse(dir, strings.TrimPrefix(imp, r.module+"/"))
		case strings.Contains(strings.Split(imp, "/")[0], "."):
			why = r.refuseModule(dir, imp)
		}
		if why != "" {
			found = append(found, s.at(spec.Pos(), "%s", why))
		}
	}
	return found
}

// refuse says why package from may not import package to, both of this module;
// it is empty when it may.
func (r rules) refuse(from, to string) string {
	if within(from, r.testOnly) {
		return ""
	}
	if within(to, r.testOnly) {
		return fmt.Sprintf("%s is for tests only", to)
	}
	for _, g := range r.guarded {
		if covers(g.what, to) && !within(from, g.by) && !sameRoom(r, from, to) {
			return fmt.Sprintf("%s may be imported by %s only: %s", to, strings.Join(g.by, ", "), g.why)
		}
	}
	f, t := r.floorOf(from), r.floorOf(to)
	switch {
	case f < 0 || t < 0, f > t:
		return "" // a package on no floor is reported by itself
	case f == t && sameRoom(r, from, to):
		return ""
	case f == t:
		return fmt.Sprintf("%s and %s are siblings on floor %s: siblings never import each other", from, to, r.floors[f].name)
	}
	return fmt.Sprintf("%s (floor %s) may not import %s (floor %s): imports point to lower floors", from, r.floors[f].name, to, r.floors[t].name)
}

// refuseModule is refuse for a package of another module.
func (r rules) refuseModule(from, imp string) string {
	if within(from, r.testOnly) {
		return ""
	}
	if within(from, r.leanRooms) && !slices.ContainsFunc(r.leanModules, func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") }) {
		return fmt.Sprintf("%s is linked into the guest: the standard library and %s only", from, strings.Join(r.leanModules, ", "))
	}
	for _, g := range r.modules {
		if strings.HasPrefix(imp+"/", strings.TrimSuffix(g.what, "/")+"/") && !within(from, g.by) {
			return fmt.Sprintf("%s may be imported by %s only: %s", imp, strings.Join(g.by, ", "), g.why)
		}
	}
	return ""
}

// checkProcess finds uses of the process's own arguments, streams and exit.
func (r rules) checkProcess(dir string, s source) []problem {
	if within(dir, r.process) || within(dir, r.testOnly) {
		return nil
	}
	name := ""
	for _, spec := range s.ast.Imports {
		if spec.Path.Value == `"os"` {
			name = "os"
			if spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	if name == "" {
		return nil
	}
	var found []problem
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok || x.Name != name || !slices.Contains([]string{"Args", "Stdout", "Stderr", "Exit"}, sel.Sel.Name) {
			return true
		}
		found = append(found, s.at(sel.Pos(), "os.%s belongs to %s: take a parameter or return an error", sel.Sel.Name, strings.Join(r.process, ", ")))
		return true
	})
	return found
}

// floorOf returns the index of the floor dir is on, or -1. The longest room
// that covers it decides.
func (r rules) floorOf(dir string) int {
	at, room := -1, ""
	for i, f := range r.floors {
		for _, rm := range f.rooms {
			if covers(rm, dir) && len(rm) > len(room) {
				at, room = i, rm
			}
		}
	}
	return at
}

// sameRoom reports whether one "x/..." room holds both packages.
func sameRoom(r rules, a, b string) bool {
	for _, f := range r.floors {
		for _, rm := range f.rooms {
			if strings.HasSuffix(rm, "/...") && covers(rm, a) && covers(rm, b) {
				return true
			}
		}
	}
	return false
}

func within(dir string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(rm string) bool { return covers(rm, dir) })
}

// covers reports whether dir is room, or below it for "x/..." (x included) and
// "x/*" (x excluded).
func covers(room, dir string) bool {
	if base, ok := strings.CutSuffix(room, "/..."); ok {
		return dir == base || strings.HasPrefix(dir, base+"/")
	}
	if base, ok := strings.CutSuffix(room, "/*"); ok {
		return strings.HasPrefix(dir, base+"/")
	}
	return dir == room
}
