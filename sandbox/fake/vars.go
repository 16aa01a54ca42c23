package fake

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// environ is what a program that the shell starts gets.
func (s *shell) environ() map[string]string {
	env := map[string]string{}
	for k, v := range s.vars {
		if v.Exported && v.IsSet() {
			env[k] = v.String()
		}
	}
	return env
}

// Get implements expand.Environ.
func (s *shell) Get(name string) expand.Variable {
	str := func(v string) expand.Variable { return expand.Variable{Set: true, Kind: expand.String, Str: v} }
	switch name {
	case "?":
		return str(strconv.Itoa(s.last))
	case "#":
		return str(strconv.Itoa(len(s.params)))
	case "@", "*":
		return expand.Variable{Set: true, Kind: expand.Indexed, List: s.params}
	case "$":
		return str(strconv.Itoa(s.p.pid))
	case "PPID":
		return str(strconv.Itoa(s.p.ppid))
	case "!":
		if len(s.jobs) > 0 {
			return str(strconv.Itoa(s.jobs[len(s.jobs)-1].pid))
		}
		return expand.Variable{}
	case "0":
		return str(s.name)
	case "-":
		return str("")
	case "UID", "EUID":
		return str(strconv.Itoa(s.p.who.uid))
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n >= 1 && n <= len(s.params) {
			return str(s.params[n-1])
		}
		return expand.Variable{}
	}
	if u, ok := strings.CutPrefix(name, "HOME "); ok {
		if found, ok := s.p.m.lookup(u); ok {
			return str(found.home)
		}
		return str("~" + u)
	}
	return s.vars[name]
}

// Each implements expand.Environ.
func (s *shell) Each(f func(name string, v expand.Variable) bool) {
	for k, v := range s.vars {
		if !f(k, v) {
			return
		}
	}
}

// Set implements expand.WriteEnviron.
func (s *shell) Set(name string, v expand.Variable) error {
	old, had := s.vars[name]
	if had && old.ReadOnly {
		return fmt.Errorf("%s: readonly variable", name)
	}
	if v.Kind == expand.KeepValue {
		old.Exported, old.ReadOnly = old.Exported || v.Exported, old.ReadOnly || v.ReadOnly
		s.vars[name] = old
		return nil
	}
	if !v.IsSet() {
		delete(s.vars, name)
		return nil
	}
	v.Exported = v.Exported || had && old.Exported || s.opts["allexport"]
	s.vars[name] = v
	return nil
}

func (s *shell) config() *expand.Config {
	c := &expand.Config{
		Env: s, NoUnset: s.opts["nounset"],
		CmdSubst: func(w io.Writer, cs *syntax.CmdSubst) error { return s.substitute(w, cs) },
		ProcSubst: func(*syntax.ProcSubst) (string, error) {
			return "", errors.New("process substitution is not supported")
		},
	}
	if !s.opts["noglob"] {
		c.ReadDir2 = func(dir string) ([]fs.DirEntry, error) {
			list, err := s.p.m.tree.readDir(s.p.abs(dir), s.p.cred())
			out := make([]fs.DirEntry, len(list))
			for i, f := range list {
				out[i] = dirEntry{f}
			}
			return out, err
		}
	}
	return c
}

type dirEntry struct{ i info }

func (d dirEntry) Name() string               { return d.i.name }
func (d dirEntry) IsDir() bool                { return d.i.isDir() }
func (d dirEntry) Type() fs.FileMode          { return d.i.mode().Type() }
func (d dirEntry) Info() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }

func (i info) mode() fs.FileMode {
	m := fs.FileMode(i.perm & 0o777)
	switch i.kind {
	case directory:
		m |= fs.ModeDir
	case symlink:
		m |= fs.ModeSymlink
	case nullDevice, zeroDevice:
		m |= fs.ModeDevice | fs.ModeCharDevice
	}
	return m
}

func (s *shell) declare(c *syntax.DeclClause) int {
	local := c.Variant.Value == "local"
	var export, readonly bool
	switch c.Variant.Value {
	case "export":
		export = true
	case "readonly":
		readonly = true
	case "local", "declare", "typeset":
	default:
		return s.refuse(c.Variant.Value + " is not supported")
	}
	for _, a := range c.Args {
		if a.Name == nil {
			opt, err := expand.Literal(s.config(), a.Value)
			if err != nil {
				return s.expandError(err)
			}
			if strings.HasPrefix(opt, "-") {
				export, readonly = export || strings.Contains(opt, "x"), readonly || strings.Contains(opt, "r")
				continue
			}
			name, value, _ := strings.Cut(opt, "=")
			s.setString(name, value)
			continue
		}
		name := a.Name.Value
		if (local || !export && !readonly) && len(s.locals) > 0 {
			scope := s.locals[len(s.locals)-1]
			if _, done := scope[name]; !done {
				if old, ok := s.vars[name]; ok {
					scope[name] = &old
				} else {
					scope[name] = nil
				}
				delete(s.vars, name)
			}
		}
		if !a.Naked {
			if err := s.assign(a); err != nil {
				return s.expandError(err)
			}
		}
		v := s.vars[name]
		v.Exported, v.ReadOnly = v.Exported || export, v.ReadOnly || readonly
		s.vars[name] = v
	}
	return s.subst
}

// test evaluates [[ ... ]].
func (s *shell) test(x syntax.TestExpr) (bool, error) {
	switch x := x.(type) {
	case *syntax.Word:
		v, err := expand.Literal(s.config(), x)
		return v != "", err
	case *syntax.ParenTest:
		return s.test(x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			ok, err := s.test(x.X)
			return !ok, err
		}
		v, err := expand.Literal(s.config(), x.X.(*syntax.Word))
		if err != nil {
			return false, err
		}
		return s.unary(x.Op.String(), v)
	case *syntax.BinaryTest:
		return s.binaryTest(x)
	default:
		return false, fmt.Errorf("%T is not supported", x)
	}
}

func (s *shell) binaryTest(x *syntax.BinaryTest) (bool, error) {
	switch x.Op {
	case syntax.AndTest, syntax.OrTest:
		ok, err := s.test(x.X)
		if err != nil || ok == (x.Op == syntax.OrTest) {
			return ok, err
		}
		return s.test(x.Y)
	}
	l, err := expand.Literal(s.config(), x.X.(*syntax.Word))
	if err != nil {
		return false, err
	}
	word := x.Y.(*syntax.Word)
	switch x.Op {
	case syntax.TsMatch, syntax.TsMatchShort, syntax.TsNoMatch:
		pat, err := expand.Pattern(s.config(), word)
		return matches(pat, l) == (x.Op != syntax.TsNoMatch), err
	}
	r, err := expand.Literal(s.config(), word)
	if err != nil {
		return false, err
	}
	if x.Op == syntax.TsReMatch {
		re, err := regexp.Compile(r)
		if err != nil {
			return false, err
		}
		m := re.FindStringSubmatch(l)
		if m != nil {
			s.vars["BASH_REMATCH"] = expand.Variable{Set: true, Kind: expand.Indexed, List: m}
		}
		return m != nil, nil
	}
	return s.compare(l, x.Op.String(), r)
}
