package fake

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

func findCmd(p *proc, argv []string) int {
	f, err := parseFind(p, argv[1:])
	if err != nil {
		return usage(p, argv, err)
	}
	code := 0
	for _, root := range f.roots {
		base := strings.Count(strings.TrimRight(root, "/"), "/")
		var found []string
		err := p.walkTree(root, func(name string, i info) error {
			depth := strings.Count(strings.TrimRight(name, "/"), "/") - base
			if name == root {
				depth = 0
			}
			if depth > f.maxDepth || depth < f.minDepth {
				return nil
			}
			for _, test := range f.tests {
				if !test(name, i) {
					return nil
				}
			}
			found = append(found, name)
			return nil
		})
		if err != nil {
			code = p.complain(argv, err)
		}
		code = max(code, f.act(p, argv, found))
	}
	return code
}

type finder struct {
	roots              []string
	maxDepth, minDepth int
	tests              []func(name string, i info) bool
	exec               []string
	together, zero     bool
	remove             bool
}

func parseFind(p *proc, args []string) (*finder, error) {
	f := &finder{maxDepth: 1 << 20}
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "!" {
		f.roots = append(f.roots, args[0])
		args = args[1:]
	}
	if len(f.roots) == 0 {
		f.roots = []string{"."}
	}
	negate := false
	add := func(test func(name string, i info) bool) {
		if negate {
			inner := test
			test = func(name string, i info) bool { return !inner(name, i) }
		}
		negate = false
		f.tests = append(f.tests, test)
	}
	for len(args) > 0 {
		op := args[0]
		args = args[1:]
		switch op {
		case "!", "-not":
			negate = !negate
			continue
		case "-print", "-a", "-and", "-depth", "-xdev":
			continue
		case "-print0":
			f.zero = true
			continue
		case "-delete":
			f.remove = true
			continue
		case "-empty":
			add(func(name string, i info) bool {
				if !i.isDir() {
					return i.kind == regular && i.size == 0
				}
				kids, err := p.m.tree.readDir(p.abs(name), p.cred())
				return err == nil && len(kids) == 0
			})
			continue
		case "-exec":
			end := -1
			for i, a := range args {
				if a == ";" || a == "+" {
					end = i
					break
				}
			}
			if end < 1 {
				return nil, errors.New("-exec has no end")
			}
			f.exec, f.together, args = args[:end], args[end] == "+", args[end+1:]
			continue
		}
		if len(args) == 0 {
			return nil, fmt.Errorf("%s is not supported or needs a value", op)
		}
		v := args[0]
		args = args[1:]
		switch op {
		case "-name":
			add(func(name string, _ info) bool { return matches(v, path.Base(name)) })
		case "-iname":
			add(func(name string, _ info) bool { return matches(strings.ToLower(v), strings.ToLower(path.Base(name))) })
		case "-path", "-wholename":
			add(func(name string, _ info) bool {
				return matches(strings.ReplaceAll(v, "*", "**"), name) || matches(v, name)
			})
		case "-type":
			add(func(_ string, i info) bool {
				return v == "f" && i.kind == regular || v == "d" && i.isDir() || v == "l" && i.kind == symlink
			})
		case "-newer":
			ref, err := p.stat(v, true)
			if err != nil {
				return nil, err
			}
			add(func(_ string, i info) bool { return i.mtime > ref.mtime })
		case "-maxdepth", "-mindepth":
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, fmt.Errorf("%s is no number", v)
			}
			if op == "-maxdepth" {
				f.maxDepth = n
			} else {
				f.minDepth = n
			}
		default:
			return nil, fmt.Errorf("%s is not supported", op)
		}
	}
	return f, nil
}

func (f *finder) act(p *proc, argv, found []string) int {
	code := 0
	switch {
	case f.remove:
		for i := len(found) - 1; i >= 0; i-- {
			if err := p.m.tree.remove(p.abs(found[i]), p.cred()); err != nil {
				code = p.complain(argv, named(err, found[i]))
			}
		}
	case f.exec != nil && f.together && len(found) > 0:
		var cmd []string
		for _, a := range f.exec {
			if a == "{}" {
				cmd = append(cmd, found...)
			} else {
				cmd = append(cmd, a)
			}
		}
		code = p.spawn(cmd)
	case f.exec != nil && !f.together:
		for _, name := range found {
			cmd := make([]string, len(f.exec))
			for i, a := range f.exec {
				cmd[i] = strings.ReplaceAll(a, "{}", name)
			}
			p.spawn(cmd)
		}
	case f.exec == nil:
		end := "\n"
		if f.zero {
			end = "\x00"
		}
		for _, name := range found {
			p.print(1, name+end)
		}
	}
	return code
}

// spawn runs a child and waits for it.
func (p *proc) spawn(argv []string) int {
	child := p.m.newProc(p, p.job, argv)
	if p.m.launch(child, func(c *proc) int { return c.execve(argv, 0) }) != nil {
		return 254
	}
	return p.wait(child)
}

func xargsCmd(p *proc, argv []string) int {
	// Options end at the command.
	n := 1
	for n < len(argv) && strings.HasPrefix(argv[n], "-") {
		if strings.ContainsAny(argv[n], "nIdP") && len(argv[n]) == 2 {
			n++
		}
		n++
	}
	n = min(n, len(argv))
	o, _, err := flags(argv[:n], "0n:I:d:rtP:")
	if err != nil {
		return usage(p, argv, err)
	}
	cmd := argv[n:]
	if len(cmd) == 0 {
		cmd = []string{"echo"}
	}
	body, err := readAll(fdio{p, 0})
	if err != nil && !errors.Is(err, io.EOF) {
		return 1
	}
	var items []string
	switch {
	case has(o, "0"):
		items = strings.FieldsFunc(string(body), func(r rune) bool { return r == 0 })
	case has(o, "I", "d"):
		items = lines(body)
	default:
		items = strings.Fields(string(body))
	}
	code := 0
	run := func(c []string) {
		if p.spawn(c) != 0 {
			code = 123
		}
	}
	if has(o, "I") {
		for _, it := range items {
			c := make([]string, len(cmd))
			for i, a := range cmd {
				c[i] = strings.ReplaceAll(a, o["I"], it)
			}
			run(c)
		}
		return code
	}
	per := max(len(items), 1)
	if has(o, "n") {
		if per, err = strconv.Atoi(o["n"]); err != nil || per < 1 {
			return usage(p, argv, fmt.Errorf("%s is no number", o["n"]))
		}
	}
	if len(items) == 0 && !has(o, "r") {
		run(cmd)
	}
	for len(items) > 0 {
		k := min(per, len(items))
		run(append(append([]string(nil), cmd...), items[:k]...))
		items = items[k:]
	}
	return code
}
