package fake

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"syscall"
)

// appletMagic starts the files that stand for the programs of the simulation.
const appletMagic = "\x7fELF\x02\x01\x01 "

// find looks a program up as execvp does: its path and 0, or the exit status
// that a shell gives.
func (p *proc) find(name, dirs string) (string, int) {
	status := 127
	var try []string
	if strings.Contains(name, "/") {
		try = []string{p.abs(name)}
	} else if name != "" {
		for dir := range strings.SplitSeq(dirs, ":") {
			try = append(try, p.abs(path.Join(dir, name)))
		}
	}
	for _, full := range try {
		i, err := p.m.tree.stat(full, p.cred(), true)
		if err != nil {
			if isErrno(err, syscall.EACCES) {
				status = 126
			}
			continue
		}
		if i.kind != regular || !p.m.tree.access(full, p.cred(), 1) {
			status = 126
			continue
		}
		return full, 0
	}
	return "", status
}

// execve turns the process into a program and returns its exit status.
func (p *proc) execve(argv []string, depth int) int {
	if code, ok := p.scripted(argv); ok {
		return code
	}
	dirs, ok := p.env["PATH"]
	if !ok {
		dirs = "/bin:/usr/bin" // as execvp does
	}
	full, status := p.find(argv[0], dirs)
	if status != 0 {
		why := "not found"
		if status == 126 {
			why = "permission denied"
		}
		p.print(2, argv[0]+": "+why+"\n")
		return status
	}
	body, err := p.m.tree.readFile(full, super)
	if err != nil || depth > 4 {
		p.print(2, argv[0]+": cannot be executed\n")
		return 126
	}
	if name, ok := bytes.CutPrefix(body, []byte(appletMagic)); ok {
		run := applet(string(name))
		if run == nil {
			p.print(2, argv[0]+": exec format error\n")
			return 126
		}
		return run(p, argv)
	}
	line, _, _ := bytes.Cut(body, []byte("\n"))
	if bytes.IndexByte(line, 0) >= 0 {
		p.print(2, argv[0]+": exec format error\n")
		return 126
	}
	if rest, ok := bytes.CutPrefix(line, []byte("#!")); ok {
		interp := strings.SplitN(strings.TrimSpace(string(rest)), " ", 2)
		for i := range interp {
			interp[i] = strings.TrimSpace(interp[i])
		}
		return p.execve(append(append(interp, full), argv[1:]...), depth+1)
	}
	return shCmd(p, append([]string{"sh", full}, argv[1:]...))
}

// shCmd is sh and bash.
func shCmd(p *proc, argv []string) int {
	s := newShell(p, argv[0], nil)
	args := argv[1:]
	command, stdin := false, false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		a := args[0]
		if strings.HasPrefix(a, "--") {
			args = args[1:]
			if a == "--" {
				break
			}
			continue // --norc and the like: there are no start-up files
		}
		if a[0] == '-' {
			command, stdin = command || strings.Contains(a, "c"), stdin || strings.Contains(a, "s")
		}
		clean := a[:1] + strings.Map(func(r rune) rune {
			if strings.ContainsRune("csil", r) {
				return -1
			}
			return r
		}, a[1:])
		rest, err := s.options(append([]string{clean}, args[1:]...))
		if clean == a[:1] {
			rest = args[1:]
		} else if err != nil {
			p.print(2, argv[0]+": "+err.Error()+"\n")
			return 2
		}
		args = rest
		if command {
			break
		}
	}
	var script string
	switch {
	case command:
		if len(args) == 0 {
			p.print(2, argv[0]+": -c: a script is missing\n")
			return 2
		}
		script = args[0]
		if args = args[1:]; len(args) > 0 {
			s.name, args = args[0], args[1:]
		}
	case len(args) > 0 && !stdin:
		body, err := p.m.tree.readFile(p.abs(args[0]), p.cred())
		if err != nil {
			p.print(2, fmt.Sprintf("%s: %s\n", argv[0], plain(err)))
			return 127
		}
		script, s.name, args = string(body), args[0], args[1:]
	default:
		body, err := readAll(fdio{p, 0})
		if err != nil {
			return 1
		}
		script = string(body)
	}
	s.params = args
	s.source(script, s.name)
	return s.leave()
}
