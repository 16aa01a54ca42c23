package fake

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// flow is what a statement asks of those around it.
type flow uint8

const (
	goOn flow = iota
	breaking
	continuing
	returning
	exiting
)

// shell interprets scripts in a process. It is a POSIX shell with the usual
// parts of bash; what it does not know it refuses with exit 2.
type shell struct {
	p      *proc
	name   string
	params []string
	vars   map[string]expand.Variable
	funcs  map[string]*syntax.Stmt
	opts   map[string]bool // errexit, nounset, pipefail, noglob, xtrace
	traps  map[string]string
	jobs   []*proc
	last   int
	flow   flow
	levels int // of loops to leave, for breaking and continuing
	guard  int // inside a condition, where errexit does not apply
	loops  int
	locals []map[string]*expand.Variable
	calls  int
	subst  int // status of the last command substitution
}

func newShell(p *proc, name string, params []string) *shell {
	s := &shell{
		p: p, name: name, params: params, vars: map[string]expand.Variable{}, funcs: map[string]*syntax.Stmt{},
		opts: map[string]bool{}, traps: map[string]string{},
	}
	for k, v := range p.env {
		s.vars[k] = expand.Variable{Set: true, Exported: true, Kind: expand.String, Str: v}
	}
	s.setString("PWD", p.cwd)
	if !s.vars["IFS"].IsSet() {
		s.setString("IFS", " \t\n")
	}
	return s
}

func (s *shell) setString(name, value string) {
	v := s.vars[name]
	v.Set, v.Kind, v.Str, v.List, v.Map = true, expand.String, value, nil, nil
	s.vars[name] = v
}

// fork is the shell of a child process.
func (s *shell) fork(p *proc) *shell {
	c := *s
	c.p = p
	c.params = slices.Clone(s.params)
	c.vars, c.funcs, c.opts = maps.Clone(s.vars), maps.Clone(s.funcs), maps.Clone(s.opts)
	c.traps = map[string]string{}
	for sig, action := range s.traps {
		if action == "" {
			c.traps[sig] = ""
		}
	}
	c.jobs, c.flow, c.guard, c.loops = nil, goOn, 0, 0
	c.locals = append([]map[string]*expand.Variable(nil), s.locals...)
	return &c
}

// substitute runs $(...) in a child.
func (s *shell) substitute(w io.Writer, cs *syntax.CmdSubst) error {
	buf := &buffer{}
	child := s.p.m.newProc(s.p, s.p.job, s.p.argv)
	child.fds[1] = newFile(buf)
	sub := s.fork(child)
	if err := s.p.m.launch(child, func(*proc) int { return sub.body(cs.Stmts) }); err != nil {
		return err
	}
	s.subst = s.p.wait(child)
	s.last = s.subst
	_, err := w.Write(buf.bytes())
	return err
}

// body runs statements as a whole process does, with its EXIT trap.
func (s *shell) body(list []*syntax.Stmt) int {
	s.stmts(list)
	return s.leave()
}

func (s *shell) leave() int {
	code := s.last
	if action := s.traps["EXIT"]; action != "" && !s.p.dead() {
		delete(s.traps, "EXIT")
		s.flow = goOn
		s.source(action, "trap")
		if s.flow != exiting {
			s.last = code
		}
	}
	return s.last
}

func (s *shell) errorf(format string, args ...any) {
	s.p.print(2, path.Base(s.name)+": "+fmt.Sprintf(format, args...)+"\n")
}

// source runs a text in this shell.
func (s *shell) source(script, name string) int {
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), name)
	if err != nil {
		s.errorf("syntax error: %v", err)
		s.last = 2
		return 2
	}
	s.stmts(f.Stmts)
	return s.last
}

// alive runs traps that are due and reports whether the process goes on.
func (s *shell) alive() bool {
	if s.p.dead() {
		s.flow = exiting
		return false
	}
	for _, sig := range s.p.takePending() {
		code := s.last
		s.source(s.traps[strings.TrimPrefix(signalName(sig), "SIG")], "trap")
		if s.flow != goOn {
			return false
		}
		s.last = code
	}
	return true
}

func (s *shell) stmts(list []*syntax.Stmt) int {
	for _, st := range list {
		if s.flow != goOn || !s.alive() {
			break
		}
		s.stmt(st)
	}
	return s.last
}

func (s *shell) stmt(st *syntax.Stmt) int {
	if st.Coprocess || st.Disown {
		return s.refuse("coprocesses are not supported")
	}
	if st.Background {
		return s.background(st)
	}
	if st.Negated {
		s.guard++
	}
	s.last = s.redirected(st)
	if st.Negated {
		s.guard--
		s.last = b2i(s.last == 0)
		return s.last
	}
	if _, list := st.Cmd.(*syntax.BinaryCmd); s.last != 0 && s.opts["errexit"] && s.guard == 0 && s.flow == goOn && (!list || isPipe(st.Cmd)) {
		s.flow = exiting
	}
	return s.last
}

func isPipe(c syntax.Command) bool {
	b, ok := c.(*syntax.BinaryCmd)
	return ok && (b.Op == syntax.Pipe || b.Op == syntax.PipeAll)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *shell) refuse(what string) int {
	s.errorf("%s", what)
	s.last = 2
	s.flow = exiting
	return 2
}

func (s *shell) background(st *syntax.Stmt) int {
	child := s.p.m.newProc(s.p, s.p.job, s.p.argv)
	child.fds[0] = newFile(&text{})
	sub := s.fork(child)
	fg := *st
	fg.Background = false
	if err := s.p.m.launch(child, func(*proc) int { sub.stmt(&fg); return sub.leave() }); err != nil {
		s.last = 254
		return s.last
	}
	s.jobs = append(s.jobs, child)
	s.last = 0
	return 0
}

// redirected runs a command with its redirections.
func (s *shell) redirected(st *syntax.Stmt) int {
	if len(st.Redirs) == 0 {
		return s.command(st.Cmd)
	}
	before := maps.Clone(s.p.fds)
	for _, f := range before {
		f.retain()
	}
	restore := func() {
		for _, f := range s.p.fds {
			f.release()
		}
		s.p.fds = before
	}
	for _, r := range st.Redirs {
		if err := s.redirect(r); err != nil {
			restore()
			s.errorf("%v", plain(err))
			return 1
		}
	}
	code := 0
	if st.Cmd != nil {
		code = s.command(st.Cmd)
	}
	if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) == 1 && call.Args[0].Lit() == "exec" {
		for _, f := range before {
			f.release()
		}
		return code
	}
	restore()
	return code
}

// plain is an error as programs print it.
func plain(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Path + ": " + pe.Err.Error()
	}
	return err.Error()
}

func (s *shell) setFD(n int, f *file) {
	if f != nil {
		f.retain()
	}
	if old := s.p.fds[n]; old != nil {
		old.release()
	}
	if f == nil {
		delete(s.p.fds, n)
		return
	}
	s.p.fds[n] = f
}

func (s *shell) redirect(r *syntax.Redirect) error {
	fd := -1
	if r.N != nil {
		n, err := strconv.Atoi(r.N.Value)
		if err != nil {
			return fmt.Errorf("redirection of {%s} is not supported", r.N.Value)
		}
		fd = n
	}
	or := func(def int) int {
		if fd >= 0 {
			return fd
		}
		return def
	}
	if r.Op == syntax.Hdoc || r.Op == syntax.DashHdoc {
		doc, err := expand.Document(s.config(), r.Hdoc)
		if err != nil {
			return err
		}
		s.setFD(or(0), newFile(&text{rest: doc}))
		return nil
	}
	arg, err := expand.Literal(s.config(), r.Word)
	if err != nil {
		return err
	}
	var m openMode
	switch r.Op {
	case syntax.WordHdoc:
		s.setFD(or(0), newFile(&text{rest: arg + "\n"}))
		return nil
	case syntax.DplIn, syntax.DplOut:
		def := b2i(r.Op == syntax.DplOut)
		if arg == "-" {
			s.setFD(or(def), nil)
			return nil
		}
		n, err := strconv.Atoi(arg)
		if err != nil || s.p.fds[n] == nil {
			return fmt.Errorf("%s: bad file descriptor", arg)
		}
		s.setFD(or(def), s.p.fds[n])
		return nil
	case syntax.RdrIn:
		m = openMode{read: true}
	case syntax.RdrInOut:
		m = openMode{read: true, write: true, create: true}
	case syntax.AppOut, syntax.AppAll:
		m = openMode{write: true, create: true, appending: true}
	default:
		m = openMode{write: true, create: true, trunc: true}
	}
	f, err := s.p.open(arg, m)
	if err != nil {
		return err
	}
	s.setFD(or(b2i(m.write && r.Op != syntax.RdrInOut)), f)
	if r.Op == syntax.RdrAll || r.Op == syntax.AppAll {
		s.setFD(2, f)
	}
	return nil
}

// command runs one command and returns its status.
func (s *shell) command(c syntax.Command) int {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return s.call(c)
	case *syntax.Block:
		return s.list(c.Stmts)
	case *syntax.Subshell:
		return s.subshell(c.Stmts)
	case *syntax.BinaryCmd:
		return s.binary(c)
	case *syntax.IfClause:
		return s.ifClause(c)
	case *syntax.WhileClause:
		return s.whileClause(c)
	case *syntax.ForClause:
		return s.forClause(c)
	case *syntax.CaseClause:
		return s.caseClause(c)
	case *syntax.FuncDecl:
		s.funcs[c.Name.Value] = c.Body
		return 0
	case *syntax.DeclClause:
		return s.declare(c)
	case *syntax.TestClause:
		ok, err := s.test(c.X)
		if err != nil {
			s.errorf("%v", err)
			return 2
		}
		return b2i(!ok)
	case *syntax.ArithmCmd:
		return s.arithm(c.X)
	case *syntax.LetClause:
		code := 1
		for _, x := range c.Exprs {
			code = s.arithm(x)
		}
		return code
	case *syntax.TimeClause:
		if c.Stmt == nil {
			return 0
		}
		return s.stmt(c.Stmt)
	default:
		return s.refuse(fmt.Sprintf("%T is not supported", c))
	}
}

// list is stmts with the status of an empty list.
func (s *shell) list(stmts []*syntax.Stmt) int {
	s.last = 0
	return s.stmts(stmts)
}

func (s *shell) arithm(x syntax.ArithmExpr) int {
	n, err := expand.Arithm(s.config(), x)
	if err != nil {
		s.errorf("%v", err)
		return 1
	}
	return b2i(n == 0)
}

func (s *shell) subshell(stmts []*syntax.Stmt) int {
	child := s.p.m.newProc(s.p, s.p.job, s.p.argv)
	sub := s.fork(child)
	if s.p.m.launch(child, func(*proc) int { sub.last = 0; return sub.body(stmts) }) != nil {
		return 254
	}
	return s.p.wait(child)
}

func (s *shell) binary(c *syntax.BinaryCmd) int {
	switch c.Op {
	case syntax.AndStmt, syntax.OrStmt:
		s.guard++
		code := s.stmt(c.X)
		s.guard--
		if s.flow != goOn || (code == 0) != (c.Op == syntax.AndStmt) {
			return code
		}
		return s.stmt(c.Y)
	default:
		return s.pipeline(c)
	}
}

func (s *shell) pipeline(c *syntax.BinaryCmd) int {
	var parts []*syntax.Stmt
	var all []bool
	for {
		parts, all = append(parts, c.Y), append(all, c.Op == syntax.PipeAll)
		left, ok := c.X.Cmd.(*syntax.BinaryCmd)
		if !ok || !isPipe(left) || len(c.X.Redirs) > 0 || c.X.Negated {
			parts = append(parts, c.X)
			break
		}
		c = left
	}
	slices.Reverse(parts)
	slices.Reverse(all)
	var from *file
	var children []*proc
	for i, st := range parts {
		child := s.p.m.newProc(s.p, s.p.job, s.p.argv)
		if from != nil {
			child.fds[0] = from
		}
		if i < len(parts)-1 {
			r, w := newPipe()
			child.fds[1] = w
			if all[i] {
				child.fds[2] = w
			}
			from = r
		}
		sub := s.fork(child)
		if s.p.m.launch(child, func(*proc) int { sub.stmt(st); return sub.leave() }) != nil {
			return 254
		}
		children = append(children, child)
	}
	code := 0
	for i, child := range children {
		got := s.p.wait(child)
		if i == len(children)-1 {
			if got != 0 || !s.opts["pipefail"] {
				code = got
			}
		} else if got != 0 && s.opts["pipefail"] {
			code = got
		}
	}
	return code
}

// assign does name=value, or returns the variable as it was when it is only for
// one command.
func (s *shell) assign(a *syntax.Assign) error {
	if a.Array != nil {
		var list []string
		for _, e := range a.Array.Elems {
			if e.Index != nil {
				return errors.New("arrays with explicit indexes are not supported")
			}
			fields, err := expand.Fields(s.config(), e.Value)
			if err != nil {
				return err
			}
			list = append(list, fields...)
		}
		if a.Append {
			list = append(slices.Clone(s.vars[a.Name.Value].List), list...)
		}
		return s.Set(a.Name.Value, expand.Variable{Set: true, Kind: expand.Indexed, List: list})
	}
	value, err := expand.Literal(s.config(), a.Value)
	if err != nil {
		return err
	}
	if a.Index != nil {
		i, err := expand.Arithm(s.config(), a.Index)
		if err != nil || i < 0 || i > 1<<16 {
			return fmt.Errorf("%s: bad array index", a.Name.Value)
		}
		list := slices.Clone(s.vars[a.Name.Value].List)
		for len(list) <= i {
			list = append(list, "")
		}
		list[i] = value
		return s.Set(a.Name.Value, expand.Variable{Set: true, Kind: expand.Indexed, List: list})
	}
	if a.Append {
		value = s.Get(a.Name.Value).String() + value
	}
	return s.Set(a.Name.Value, expand.Variable{Set: true, Kind: expand.String, Str: value})
}

func (s *shell) call(c *syntax.CallExpr) int {
	s.subst = 0
	argv, err := expand.Fields(s.config(), c.Args...)
	if err != nil {
		return s.expandError(err)
	}
	if len(argv) == 0 {
		for _, a := range c.Assigns {
			if err := s.assign(a); err != nil {
				s.flow = exiting
				return s.expandError(err)
			}
		}
		return s.subst
	}
	saved := map[string]*expand.Variable{}
	for _, a := range c.Assigns {
		if old, ok := s.vars[a.Name.Value]; ok {
			saved[a.Name.Value] = &old
		} else {
			saved[a.Name.Value] = nil
		}
		if err := s.assign(a); err != nil {
			return s.expandError(err)
		}
		v := s.vars[a.Name.Value]
		v.Exported = true
		s.vars[a.Name.Value] = v
	}
	defer s.restore(saved)
	if s.opts["xtrace"] {
		s.p.print(2, "+ "+strings.Join(argv, " ")+"\n")
	}
	return s.invoke(argv)
}

func (s *shell) restore(saved map[string]*expand.Variable) {
	for k, old := range saved {
		if old == nil {
			delete(s.vars, k)
		} else {
			s.vars[k] = *old
		}
	}
}

// invoke runs a function, a builtin or a program.
func (s *shell) invoke(argv []string) int {
	if body, ok := s.funcs[argv[0]]; ok {
		return s.function(body, argv)
	}
	if b := builtin(argv[0]); b != nil {
		return b(s, argv[1:])
	}
	return s.external(argv)
}

func (s *shell) external(argv []string) int {
	child := s.p.m.newProc(s.p, s.p.job, argv)
	child.env, child.mask = s.environ(), s.p.mask
	if s.p.m.launch(child, func(p *proc) int { return p.execve(argv, 0) }) != nil {
		return 254
	}
	return s.p.wait(child)
}

func (s *shell) function(body *syntax.Stmt, argv []string) int {
	if s.calls > 500 {
		return s.refuse("functions are nested too deep")
	}
	params, loops := s.params, s.loops
	s.params, s.loops = argv[1:], 0
	s.locals = append(s.locals, map[string]*expand.Variable{})
	s.calls++
	code := s.stmt(body)
	s.calls--
	s.restore(s.locals[len(s.locals)-1])
	s.locals = s.locals[:len(s.locals)-1]
	s.params, s.loops = params, loops
	if s.flow == returning {
		s.flow = goOn
	}
	return code
}
