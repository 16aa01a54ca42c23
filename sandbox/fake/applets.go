package fake

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// appletNames are the programs of a fresh tree. "test", "[", "printf", "echo"
// and others are also builtins of the shell.
func appletNames() []string {
	return strings.Fields("[ basename bash cat chmod chown cmp cp cut date dirname echo egrep env false fgrep find grep head hostname id kill " +
		"ln ls mkdir mktemp mv nohup printf pwd readlink realpath rm rmdir sed seq setsid sh sha256sum sleep sort tail tee test " +
		"timeout touch tr true uname uniq wc which whoami xargs yes")
}

// applet returns the program of a name, or nil.
func applet(name string) func(p *proc, argv []string) int {
	switch name {
	case "sh", "bash":
		return shCmd
	case "[", "test", "echo", "printf", "pwd", "true", "false":
		return func(p *proc, argv []string) int { return builtin(name)(newShell(p, name, nil), argv[1:]) }
	case "cat":
		return catCmd
	case "head":
		return headCmd
	case "tail":
		return tailCmd
	case "wc":
		return wcCmd
	case "tee":
		return teeCmd
	case "sort":
		return sortCmd
	case "uniq":
		return uniqCmd
	case "cut":
		return cutCmd
	case "tr":
		return trCmd
	case "grep", "egrep", "fgrep":
		return grepCmd
	case "sed":
		return sedCmd
	case "find":
		return findCmd
	case "xargs":
		return xargsCmd
	case "sha256sum":
		return sumCmd
	case "cmp":
		return cmpCmd
	case "seq":
		return seqCmd
	case "yes":
		return yesCmd
	case "kill":
		return killCmd
	}
	return fileOrEnvApplet(name)
}

func fileOrEnvApplet(name string) func(p *proc, argv []string) int {
	switch name {
	case "ls":
		return lsCmd
	case "mkdir":
		return mkdirCmd
	case "rm":
		return rmCmd
	case "rmdir":
		return rmdirCmd
	case "cp":
		return cpCmd
	case "mv":
		return mvCmd
	case "ln":
		return lnCmd
	case "touch":
		return touchCmd
	case "chmod":
		return chmodCmd
	case "chown":
		return chownCmd
	case "mktemp":
		return mktempCmd
	case "readlink", "realpath":
		return readlinkCmd
	case "basename", "dirname":
		return nameCmd
	case "sleep":
		return sleepCmd
	case "timeout":
		return timeoutCmd
	case "env":
		return envCmd
	case "setsid", "nohup":
		return wrapCmd
	case "id":
		return idCmd
	case "whoami":
		return func(p *proc, _ []string) int { return p.say(p.who.name + "\n") }
	case "hostname":
		return func(p *proc, _ []string) int { return p.say("sandbox\n") }
	case "uname":
		return unameCmd
	case "date":
		return dateCmd
	case "which":
		return whichCmd
	default:
		return nil
	}
}

func (p *proc) say(s string) int { return b2i(!p.print(1, s)) }

// complain prints an error of a program and returns 1.
func (p *proc) complain(argv []string, err error) int {
	p.print(2, path.Base(argv[0])+": "+plain(err)+"\n")
	return 1
}

func usage(p *proc, argv []string, err error) int {
	p.complain(argv, err)
	return 2
}

// flags takes options as getopt does: spec lists the letters, one followed by
// ":" takes a value. Words of long are accepted as --word or --word=value.
func flags(argv []string, spec string, long ...string) (map[string]string, []string, error) {
	got, rest := map[string]string{}, []string{}
	args := argv[1:]
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return got, append(rest, args[i+1:]...), nil
		case strings.HasPrefix(a, "--"):
			name, value, _ := strings.Cut(a[2:], "=")
			if !slices.Contains(long, name) {
				return nil, nil, fmt.Errorf("option --%s is not supported", name)
			}
			got[name] = value
		case len(a) > 1 && a[0] == '-':
			for j := 1; j < len(a); j++ {
				k := strings.IndexByte(spec, a[j])
				if k < 0 || a[j] == ':' {
					return nil, nil, fmt.Errorf("option -%c is not supported", a[j])
				}
				if k+1 >= len(spec) || spec[k+1] != ':' {
					got[a[j:j+1]] = ""
					continue
				}
				value := a[j+1:]
				if value == "" {
					if i++; i >= len(args) {
						return nil, nil, fmt.Errorf("option -%c needs a value", a[j])
					}
					value = args[i]
				}
				got[a[j:j+1]] = value
				break
			}
		default:
			rest = append(rest, a)
		}
	}
	return got, rest, nil
}

func has(o map[string]string, names ...string) bool {
	for _, n := range names {
		if _, ok := o[n]; ok {
			return true
		}
	}
	return false
}

// source opens an input by name; "-" is the standard input.
func (p *proc) source(name string) (io.Reader, func(), error) {
	if name == "-" {
		return fdio{p, 0}, func() {}, nil
	}
	f, err := p.open(name, openMode{read: true})
	if err != nil {
		return nil, nil, err
	}
	f.retain()
	return streamReader{p, f}, f.release, nil
}

type streamReader struct {
	p *proc
	s stream
}

func (r streamReader) Read(b []byte) (int, error) { return r.s.read(r.p, b) }

// each calls use for each named input, or the standard one.
func (p *proc) each(argv, names []string, use func(name string, r io.Reader) error) int {
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, n := range names {
		r, done, err := p.source(n)
		if err == nil {
			err = use(n, r)
			done()
		}
		if err != nil {
			if p.dead() {
				return 1
			}
			code = p.complain(argv, err)
		}
	}
	return code
}

const maxText = 256 << 20

func readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxText))
	if len(b) == maxText {
		return nil, errors.New("the input is too large")
	}
	return b, err
}

func lines(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// allLines reads the lines of all inputs.
func (p *proc) allLines(argv, names []string) ([]string, int) {
	var out []string
	code := p.each(argv, names, func(_ string, r io.Reader) error {
		b, err := readAll(r)
		out = append(out, lines(b)...)
		return err
	})
	return out, code
}

func sumCmd(p *proc, argv []string) int {
	_, names, err := flags(argv, "b")
	if err != nil {
		return usage(p, argv, err)
	}
	return p.each(argv, names, func(name string, r io.Reader) error {
		h := sha256.New()
		if _, err := io.Copy(h, r); err != nil {
			return err
		}
		p.print(1, hex.EncodeToString(h.Sum(nil))+"  "+name+"\n")
		return nil
	})
}

func cmpCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "s")
	if err != nil || len(names) != 2 {
		return usage(p, argv, errors.Join(err, errors.New("two files are needed")))
	}
	var body [2][]byte
	for i, n := range names {
		if code := p.each(argv, []string{n}, func(_ string, r io.Reader) error { var err error; body[i], err = readAll(r); return err }); code != 0 {
			return 2
		}
	}
	if bytes.Equal(body[0], body[1]) {
		return 0
	}
	if !has(o, "s") {
		p.print(1, names[0]+" "+names[1]+" differ\n")
	}
	return 1
}

func seqCmd(p *proc, argv []string) int {
	nums := []int{}
	for _, a := range argv[1:] {
		n, err := strconv.Atoi(a)
		if err != nil {
			return usage(p, argv, fmt.Errorf("%s is no whole number", a))
		}
		nums = append(nums, n)
	}
	from, step, to := 1, 1, 0
	switch len(nums) {
	case 1:
		to = nums[0]
	case 2:
		from, to = nums[0], nums[1]
	case 3:
		from, step, to = nums[0], nums[1], nums[2]
	}
	if len(nums) == 0 || len(nums) > 3 || step == 0 {
		return usage(p, argv, errors.New("one to three numbers are needed"))
	}
	var b strings.Builder
	for n := from; step > 0 && n <= to || step < 0 && n >= to; n += step {
		fmt.Fprintln(&b, n)
		if b.Len() > chunk {
			if !p.print(1, b.String()) {
				return 1
			}
			b.Reset()
		}
	}
	return p.say(b.String())
}

func yesCmd(p *proc, argv []string) int {
	word := "y"
	if len(argv) > 1 {
		word = strings.Join(argv[1:], " ")
	}
	block := strings.Repeat(word+"\n", max(1, chunk/(len(word)+1)))
	for p.print(1, block) {
	}
	return 1
}

func killCmd(p *proc, argv []string) int {
	sig := syscall.SIGTERM
	args := argv[1:]
	if len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		name := strings.TrimPrefix(strings.ToUpper(args[0][1:]), "SIG")
		used := 1
		if name == "S" && len(args) > 1 {
			name, used = strings.TrimPrefix(strings.ToUpper(args[1]), "SIG"), 2
		}
		args = args[used:]
		if n, err := strconv.Atoi(name); err == nil {
			sig = syscall.Signal(n)
		} else if s, ok := signals[name]; ok {
			sig = s
		} else {
			return usage(p, argv, fmt.Errorf("%s is no signal", name))
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	code := 0
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		target := p.m.process(pid)
		if err != nil || target == nil {
			p.print(2, "kill: "+a+": no such process\n")
			code = 1
			continue
		}
		if p.who.uid != 0 && p.who.uid != target.who.uid {
			p.print(2, "kill: "+a+": operation not permitted\n")
			code = 1
			continue
		}
		target.signal(sig)
	}
	return code
}

func sleepCmd(p *proc, argv []string) int {
	var total time.Duration
	for _, a := range argv[1:] {
		d, err := duration(a)
		if err != nil {
			return usage(p, argv, err)
		}
		total += d
	}
	return b2i(!p.sleep(total))
}

// duration reads a number of seconds with an optional unit.
func duration(s string) (time.Duration, error) {
	unit := time.Second
	num := s
	if s != "" {
		if u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[s[len(s)-1]]; ok {
			unit, num = u, s[:len(s)-1]
		}
	}
	if num == "infinity" {
		return 1 << 62, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || f > 1e9 {
		return 0, fmt.Errorf("invalid time interval %q", s)
	}
	return time.Duration(f * float64(unit)), nil
}

func timeoutCmd(p *proc, argv []string) int {
	args := argv[1:]
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		if args[0] == "-k" || args[0] == "-s" {
			args = args[1:]
		}
		args = args[1:]
	}
	if len(args) < 2 {
		return usage(p, argv, errors.New("a time and a command are needed"))
	}
	d, err := duration(args[0])
	if err != nil {
		return usage(p, argv, err)
	}
	child := p.m.newProc(p, p.job, args[1:])
	if p.m.launch(child, func(c *proc) int { return c.execve(args[1:], 0) }) != nil {
		return 125
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-child.done:
		return child.exit.Code
	case <-p.ctx.Done():
		return 137
	case <-t.C:
		child.signal(syscall.SIGKILL)
		p.wait(child)
		return 124
	}
}

func envCmd(p *proc, argv []string) int {
	args := argv[1:]
	env := maps.Clone(p.env)
	for len(args) > 0 {
		a := args[0]
		switch {
		case a == "-i" || a == "-":
			env = map[string]string{}
		case a == "-u" && len(args) > 1:
			delete(env, args[1])
			args = args[1:]
		case strings.HasPrefix(a, "-") && a != "--":
			return usage(p, argv, fmt.Errorf("option %s is not supported", a))
		case strings.Contains(a, "="):
			k, v, _ := strings.Cut(a, "=")
			env[k] = v
		default:
			p.env = env
			p.rename(args)
			return p.execve(args, 0)
		}
		args = args[1:]
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return p.sayLines(out)
}

// wrapCmd is setsid and nohup: the simulation ends trees by descent, so a new
// session makes no difference.
func wrapCmd(p *proc, argv []string) int {
	args := argv[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	if len(args) == 0 {
		return usage(p, argv, errors.New("a command is needed"))
	}
	if path.Base(argv[0]) == "nohup" {
		p.mu.Lock()
		p.ignored[syscall.SIGHUP] = true
		p.mu.Unlock()
	}
	p.rename(args)
	return p.execve(args, 0)
}

func idCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "ugnrG")
	if err != nil {
		return usage(p, argv, err)
	}
	u := p.who
	if len(names) > 0 {
		found, ok := p.m.lookup(names[0])
		if !ok {
			return p.complain(argv, fmt.Errorf("%s: no such user", names[0]))
		}
		u = found
	}
	switch {
	case has(o, "u") && has(o, "n"), has(o, "n") && has(o, "g"):
		return p.say(u.name + "\n")
	case has(o, "u"):
		return p.say(strconv.Itoa(u.uid) + "\n")
	case has(o, "g", "G"):
		return p.say(strconv.Itoa(u.gid) + "\n")
	}
	return p.say(fmt.Sprintf("uid=%d(%s) gid=%d(%s) groups=%d(%s)\n", u.uid, u.name, u.gid, u.name, u.gid, u.name))
}

func unameCmd(p *proc, argv []string) int {
	o, _, err := flags(argv, "asnrvmo")
	if err != nil {
		return usage(p, argv, err)
	}
	var out []string
	for _, f := range []struct{ key, value string }{{"s", "Linux"}, {"n", "sandbox"}, {"r", "6.0"}, {"m", "x86_64"}} {
		if has(o, "a", f.key) || len(o) == 0 && f.key == "s" {
			out = append(out, f.value)
		}
	}
	return p.say(strings.Join(out, " ") + "\n")
}

func dateCmd(p *proc, argv []string) int {
	now := time.Now().UTC()
	format := "+%a %b %e %H:%M:%S UTC %Y"
	for _, a := range argv[1:] {
		switch {
		case strings.HasPrefix(a, "+"):
			format = a
		case a == "-u" || a == "--utc":
		case a == "-Iseconds":
			format = "+%Y-%m-%dT%H:%M:%S+00:00"
		default:
			return usage(p, argv, fmt.Errorf("%s is not supported", a))
		}
	}
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'F': "2006-01-02", 'T': "15:04:05", 'a': "Mon", 'b': "Jan", 'e': "_2", 'y': "06", 'j': "002", 'Z': "MST", 'z': "-0700"}
	var b strings.Builder
	for i := 1; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch c := format[i]; {
		case c == 's':
			fmt.Fprint(&b, now.Unix())
		case c == 'N':
			fmt.Fprintf(&b, "%09d", now.Nanosecond())
		case c == '%':
			b.WriteByte('%')
		case layouts[c] != "":
			b.WriteString(now.Format(layouts[c]))
		default:
			return usage(p, argv, fmt.Errorf("%%%c is not supported", c))
		}
	}
	return p.say(b.String() + "\n")
}

func whichCmd(p *proc, argv []string) int {
	code := 0
	for _, name := range argv[1:] {
		full, status := p.find(name, p.env["PATH"])
		if status != 0 {
			code = 1
			continue
		}
		p.print(1, full+"\n")
	}
	return code
}
