package fake

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
)

// builtin returns a command that a shell does itself, or nil.
func builtin(name string) func(s *shell, args []string) int {
	switch name {
	case ":", "true", "shopt", "hash":
		return func(*shell, []string) int { return 0 }
	case "false":
		return func(*shell, []string) int { return 1 }
	case "cd":
		return (*shell).cd
	case "pwd":
		return (*shell).pwd
	case "echo":
		return (*shell).echo
	case "printf":
		return (*shell).printf
	case "export":
		return (*shell).export
	case "unset":
		return (*shell).unset
	case "set":
		return (*shell).set
	case "shift":
		return (*shell).shift
	case "exit":
		return (*shell).exit
	case "return":
		return (*shell).ret
	case "break":
		return (*shell).brk
	case "continue":
		return (*shell).cont
	case "eval":
		return (*shell).eval
	case "exec":
		return (*shell).exec
	case "trap":
		return (*shell).trap
	case "wait":
		return (*shell).wait
	case "read":
		return (*shell).read
	case "test":
		return (*shell).testCmd
	case "[":
		return (*shell).bracket
	case "command":
		return (*shell).commandCmd
	case "type":
		return (*shell).typeCmd
	case "umask":
		return (*shell).umask
	case "kill":
		return (*shell).kill
	case "ulimit":
		return (*shell).ulimit
	case "getopts":
		return (*shell).getopts
	case ".", "source":
		return (*shell).dot
	default:
		return nil
	}
}

func (s *shell) say(out string) int { return b2i(!s.p.print(1, out)) }

func (s *shell) cd(args []string) int {
	dir := s.Get("HOME").String()
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) > 0 {
		dir = args[0]
	}
	if dir == "-" {
		dir = s.Get("OLDPWD").String()
	}
	full := path.Clean(s.p.abs(dir))
	i, err := s.p.m.tree.stat(full, s.p.cred(), true)
	switch {
	case err == nil && !i.isDir():
		err = fail("cd", dir, syscall.ENOTDIR)
	case err == nil && !s.p.m.tree.access(full, s.p.cred(), 1):
		err = fail("cd", dir, syscall.EACCES)
	}
	if err != nil {
		s.errorf("cd: %s", plain(err))
		return 1
	}
	s.setString("OLDPWD", s.p.cwd)
	s.p.cwd = full
	s.setString("PWD", full)
	return 0
}

func (s *shell) pwd(args []string) int {
	dir := s.p.cwd
	if slices.Contains(args, "-P") {
		dir = s.p.m.tree.realpath(dir, s.p.cred())
	}
	return s.say(dir + "\n")
}

func (s *shell) echo(args []string) int {
	newline, escapes := true, false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		newline = newline && !strings.Contains(args[0], "n")
		escapes = escapes || strings.Contains(args[0], "e")
		args = args[1:]
	}
	out := strings.Join(args, " ")
	if escapes {
		if got, _, err := expand.Format(s.config(), strings.ReplaceAll(out, "%", "%%"), nil); err == nil {
			out = got
		}
	}
	if newline {
		out += "\n"
	}
	return s.say(out)
}

func (s *shell) printf(args []string) int {
	if len(args) > 1 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		s.errorf("printf: a format is missing")
		return 2
	}
	format, args := args[0], args[1:]
	var out strings.Builder
	for {
		got, n, err := expand.Format(s.config(), format, args)
		if err != nil {
			s.errorf("printf: %v", err)
			return 1
		}
		out.WriteString(got)
		args = args[min(n, len(args)):]
		if n == 0 || len(args) == 0 {
			return s.say(out.String())
		}
	}
}

func (s *shell) export(args []string) int {
	for _, a := range args {
		name, value, has := strings.Cut(a, "=")
		if has {
			s.setString(name, value)
		}
		v := s.vars[name]
		v.Exported = true
		s.vars[name] = v
	}
	return 0
}

func (s *shell) unset(args []string) int {
	for _, a := range args {
		switch {
		case a == "-v" || a == "-f":
		case slices.Contains(args, "-f"):
			delete(s.funcs, a)
		case s.vars[a].ReadOnly:
			s.errorf("unset: %s: readonly variable", a)
			return 1
		default:
			delete(s.vars, a)
		}
	}
	return 0
}

var optionLetters = map[byte]string{'e': "errexit", 'u': "nounset", 'f': "noglob", 'x': "xtrace", 'a': "allexport"}

// options takes leading shell options from args; it returns what is left.
func (s *shell) options(args []string) ([]string, error) {
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			return args[1:], nil
		}
		if len(a) < 2 || a[0] != '-' && a[0] != '+' {
			return args, nil
		}
		args = args[1:]
		on := a[0] == '-'
		for i := 1; i < len(a); i++ {
			switch name := optionLetters[a[i]]; {
			case name != "":
				s.opts[name] = on
			case a[i] == 'o' && len(args) > 0:
				s.opts[args[0]] = on
				args = args[1:]
			case strings.IndexByte("mhbBCEHTl", a[i]) >= 0: // no effect here
			default:
				return nil, fmt.Errorf("invalid option %s", a)
			}
		}
	}
	return args, nil
}

func (s *shell) set(args []string) int {
	if len(args) == 0 {
		for _, k := range slices.Sorted(maps.Keys(s.vars)) {
			s.p.print(1, k+"="+s.vars[k].String()+"\n")
		}
		return 0
	}
	params := slices.Contains(args, "--")
	rest, err := s.options(args)
	if err != nil {
		s.errorf("set: %v", err)
		return 2
	}
	if params || len(rest) > 0 {
		s.params = rest
	}
	return 0
}

func (s *shell) number(args []string, def int) int {
	if len(args) == 0 {
		return def
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		s.errorf("%s: a number is needed", args[0])
		return 2
	}
	return n
}

func (s *shell) shift(args []string) int {
	n := s.number(args, 1)
	if n < 0 || n > len(s.params) {
		return 1
	}
	s.params = s.params[n:]
	return 0
}

func (s *shell) exit(args []string) int {
	s.last = s.number(args, s.last) & 0xff
	s.flow = exiting
	return s.last
}

func (s *shell) ret(args []string) int {
	s.last = s.number(args, s.last) & 0xff
	s.flow = returning
	return s.last
}

func (s *shell) leaveLoop(args []string, how flow) int {
	if s.loops == 0 {
		return 0
	}
	s.levels, s.flow = min(max(s.number(args, 1), 1), s.loops), how
	return 0
}

func (s *shell) brk(args []string) int  { return s.leaveLoop(args, breaking) }
func (s *shell) cont(args []string) int { return s.leaveLoop(args, continuing) }

func (s *shell) eval(args []string) int {
	s.last = 0
	return s.source(strings.Join(args, " "), "eval")
}

func (s *shell) exec(args []string) int {
	if len(args) == 0 {
		return 0
	}
	s.p.env = s.environ()
	s.p.rename(args)
	s.last = s.p.execve(args, 0)
	s.flow = exiting
	delete(s.traps, "EXIT")
	return s.last
}

func (s *shell) trap(args []string) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) < 2 {
		return 0
	}
	action := args[0]
	for _, name := range args[1:] {
		name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
		if n, err := strconv.Atoi(name); err == nil {
			name = "EXIT"
			if n != 0 {
				name = strings.TrimPrefix(signalName(syscall.Signal(n)), "SIG")
			}
		}
		if name == "EXIT" || name == "ERR" || name == "DEBUG" {
			s.traps[name] = action
			if action == "-" {
				delete(s.traps, name)
			}
			continue
		}
		sig, ok := signals[name]
		if !ok {
			s.errorf("trap: %s: bad signal", name)
			return 1
		}
		s.p.mu.Lock()
		s.p.ignored[sig], s.p.trapped[sig] = action == "", action != "" && action != "-"
		s.p.mu.Unlock()
		s.traps[name] = action
	}
	return 0
}

func (s *shell) wait(args []string) int {
	if len(args) == 0 {
		for _, j := range s.jobs {
			s.p.wait(j)
		}
		return 0
	}
	code := 0
	for _, a := range args {
		i := slices.IndexFunc(s.jobs, func(j *proc) bool { return strconv.Itoa(j.pid) == a })
		if i < 0 {
			s.errorf("wait: %s is no child of this shell", a)
			return 127
		}
		code = s.p.wait(s.jobs[i])
	}
	return code
}

func (s *shell) read(args []string) int {
	raw := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "-r":
			raw = true
		case args[0] == "-p" && len(args) > 1:
			args = args[1:]
		default:
			s.errorf("read: option %s is not supported", args[0])
			return 2
		}
		args = args[1:]
	}
	var line []byte
	var err error
	one := make([]byte, 1)
	escaped := false
	for {
		var n int
		if n, err = (fdio{s.p, 0}).Read(one); n == 0 && err != nil {
			break
		}
		if n == 0 {
			continue
		}
		if one[0] == '\n' {
			if escaped {
				line, escaped = line[:len(line)-1], false
				continue
			}
			break
		}
		escaped = !raw && one[0] == '\\' && !escaped
		line = append(line, one[0])
	}
	if len(args) == 0 {
		args = []string{"REPLY"}
	}
	fields := expand.ReadFields(s.config(), string(line), len(args), raw)
	for i, name := range args {
		v := ""
		if i < len(fields) {
			v = fields[i]
		}
		s.setString(name, v)
	}
	return b2i(err != nil)
}

func (s *shell) commandCmd(args []string) int {
	if len(args) > 0 && (args[0] == "-v" || args[0] == "-V") {
		return s.find(args[1:], func(name, where string) string { return where })
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 0
	}
	if b := builtin(args[0]); b != nil {
		return b(s, args[1:])
	}
	return s.external(args)
}

func (s *shell) typeCmd(args []string) int {
	return s.find(args, func(name, where string) string { return name + " is " + where })
}

func (s *shell) find(args []string, show func(name, where string) string) int {
	code := 0
	for _, name := range args {
		where, ok := name, true
		if _, isFunc := s.funcs[name]; !isFunc {
			if builtin(name) == nil {
				var status int
				where, status = s.p.find(name, s.Get("PATH").String())
				ok = status == 0
			}
		}
		if !ok {
			code = 1
			continue
		}
		s.say(show(name, where) + "\n")
	}
	return code
}

func (s *shell) umask(args []string) int {
	if len(args) == 0 {
		return s.say(fmt.Sprintf("%04o\n", s.p.mask))
	}
	n, err := strconv.ParseUint(args[0], 8, 32)
	if err != nil {
		s.errorf("umask: %s: not supported", args[0])
		return 1
	}
	s.p.mask = uint32(n) & 0o777
	return 0
}

func (s *shell) ulimit([]string) int { return s.say("unlimited\n") }

func (s *shell) dot(args []string) int {
	if len(args) == 0 {
		s.errorf("a file name is missing")
		return 2
	}
	body, err := s.p.m.tree.readFile(s.p.abs(args[0]), s.p.cred())
	if err != nil {
		s.errorf("%s", plain(err))
		return 1
	}
	params := s.params
	if len(args) > 1 {
		s.params = args[1:]
		defer func() { s.params = params }()
	}
	s.last = 0
	s.source(string(body), args[0])
	if s.flow == returning {
		s.flow = goOn
	}
	return s.last
}

func (s *shell) kill(args []string) int { return killCmd(s.p, append([]string{"kill"}, args...)) }

func (s *shell) getopts(args []string) int {
	if len(args) < 2 {
		return 2
	}
	list := s.params
	if len(args) > 2 {
		list = args[2:]
	}
	at, _ := strconv.Atoi(s.Get("OPTIND").String())
	at = max(at, 1)
	if at > len(list) || len(list[at-1]) < 2 || list[at-1][0] != '-' || list[at-1] == "--" {
		return 1
	}
	a := list[at-1]
	i := strings.IndexByte(args[0], a[1])
	if i < 0 || a[1] == ':' {
		s.setString(args[1], "?")
		s.setString("OPTIND", strconv.Itoa(at+1))
		return 0
	}
	s.setString(args[1], a[1:2])
	if i+1 < len(args[0]) && args[0][i+1] == ':' {
		switch {
		case len(a) > 2:
			s.setString("OPTARG", a[2:])
		case at < len(list):
			s.setString("OPTARG", list[at])
			at++
		}
	} else if len(a) > 2 {
		return s.refuse("getopts: joined options are not supported")
	}
	s.setString("OPTIND", strconv.Itoa(at+1))
	return 0
}

func (s *shell) bracket(args []string) int {
	if len(args) == 0 || args[len(args)-1] != "]" {
		s.errorf("[: missing ]")
		return 2
	}
	return s.testCmd(args[:len(args)-1])
}

// testCmd is test(1): the rules by number of arguments, then -a and -o.
func (s *shell) testCmd(args []string) int {
	ok, err := s.evalTest(args)
	if err != nil {
		s.errorf("test: %v", err)
		return 2
	}
	return b2i(!ok)
}

func (s *shell) evalTest(args []string) (bool, error) {
	switch len(args) {
	case 0:
		return false, nil
	case 1:
		return args[0] != "", nil
	case 2:
		if args[0] == "!" {
			return args[1] == "", nil
		}
		return s.unary(args[0], args[1])
	case 3:
		if args[1] != "-a" && args[1] != "-o" {
			if ok, err := s.compare(args[0], args[1], args[2]); !errors.Is(err, errOperator) {
				return ok, err
			}
		}
	}
	for _, op := range []string{"-o", "-a"} {
		if i := slices.Index(args[1:], op) + 1; i > 0 {
			l, err := s.evalTest(args[:i])
			if err != nil {
				return false, err
			}
			r, err := s.evalTest(args[i+1:])
			return op == "-a" && l && r || op == "-o" && (l || r), err
		}
	}
	if args[0] == "!" {
		ok, err := s.evalTest(args[1:])
		return !ok, err
	}
	if args[0] == "(" && args[len(args)-1] == ")" {
		return s.evalTest(args[1 : len(args)-1])
	}
	return false, fmt.Errorf("%q is not understood", args)
}

var errOperator = errors.New("unknown operator")

func (s *shell) unary(op, arg string) (bool, error) {
	t, who, full := s.p.m.tree, s.p.cred(), s.p.abs(arg)
	i, err := t.stat(full, who, op != "-h" && op != "-L")
	there := err == nil && arg != ""
	switch op {
	case "-n":
		return arg != "", nil
	case "-z":
		return arg == "", nil
	case "-e", "-a":
		return there, nil
	case "-f":
		return there && i.kind == regular, nil
	case "-d":
		return there && i.isDir(), nil
	case "-h", "-L":
		return there && i.kind == symlink, nil
	case "-c":
		return there && (i.kind == nullDevice || i.kind == zeroDevice), nil
	case "-s":
		return there && i.size > 0, nil
	case "-r":
		return there && t.access(full, who, 4), nil
	case "-w":
		return there && t.access(full, who, 2), nil
	case "-x":
		return there && t.access(full, who, 1), nil
	case "-O":
		return there && i.uid == who.uid, nil
	case "-b", "-p", "-S", "-t", "-u", "-g", "-k":
		return false, nil
	case "-v":
		return s.Get(arg).IsSet(), nil
	}
	return false, fmt.Errorf("%s: %w", op, errOperator)
}

func (s *shell) compare(l, op, r string) (bool, error) {
	switch op {
	case "=", "==":
		return l == r, nil
	case "!=":
		return l != r, nil
	case "<":
		return l < r, nil
	case ">":
		return l > r, nil
	case "-nt", "-ot", "-ef":
		a, errA := s.p.m.tree.stat(s.p.abs(l), s.p.cred(), true)
		b, errB := s.p.m.tree.stat(s.p.abs(r), s.p.cred(), true)
		switch op {
		case "-ef":
			return errA == nil && errB == nil && a.ino == b.ino, nil
		case "-nt":
			return errA == nil && (errB != nil || a.mtime > b.mtime), nil
		default:
			return errB == nil && (errA != nil || a.mtime < b.mtime), nil
		}
	}
	cmp := map[string]func(a, b int64) bool{
		"-eq": func(a, b int64) bool { return a == b }, "-ne": func(a, b int64) bool { return a != b },
		"-lt": func(a, b int64) bool { return a < b }, "-le": func(a, b int64) bool { return a <= b },
		"-gt": func(a, b int64) bool { return a > b }, "-ge": func(a, b int64) bool { return a >= b },
	}[op]
	if cmp == nil {
		return false, fmt.Errorf("%s: %w", op, errOperator)
	}
	a, errA := strconv.ParseInt(strings.TrimSpace(l), 10, 64)
	b, errB := strconv.ParseInt(strings.TrimSpace(r), 10, 64)
	if errA != nil || errB != nil {
		return false, fmt.Errorf("%q and %q are not both numbers", l, r)
	}
	return cmp(a, b), nil
}

// sleep waits for d on the program's clock; it reports false when the process
// was killed.
func (p *proc) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}
