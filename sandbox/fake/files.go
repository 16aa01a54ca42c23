package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"syscall"
)

func (p *proc) stat(name string, follow bool) (info, error) {
	i, err := p.m.tree.stat(p.abs(name), p.cred(), follow)
	return i, named(err, name)
}

// named puts the name that the user gave into an error.
func named(err error, name string) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return &fs.PathError{Op: pe.Op, Path: name, Err: pe.Err}
	}
	return err
}

func lsCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "aAl1dRhFtrp")
	if err != nil {
		return usage(p, argv, err)
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	code, shown := 0, 0
	var list func(name string, header bool)
	list = func(name string, header bool) {
		kids, err := p.m.tree.readDir(p.abs(name), p.cred())
		if err != nil {
			code = p.complain(argv, named(err, name))
			return
		}
		if header {
			if shown > 0 {
				p.print(1, "\n")
			}
			p.print(1, name+":\n")
		}
		shown++
		if has(o, "a") {
			for _, dot := range []string{".", ".."} {
				if i, err := p.stat(name+"/"+dot, true); err == nil {
					p.lsEntry(o, i, dot)
				}
			}
		}
		for _, k := range kids {
			if has(o, "a", "A") || !strings.HasPrefix(k.name, ".") {
				p.lsEntry(o, k, k.name)
			}
		}
		if has(o, "R") {
			for _, k := range kids {
				if k.isDir() {
					list(name+"/"+k.name, true)
				}
			}
		}
	}
	var dirs []string
	for _, n := range names {
		i, err := p.stat(n, !has(o, "l", "d"))
		switch {
		case err != nil:
			code = p.complain(argv, err)
		case i.isDir() && !has(o, "d"):
			dirs = append(dirs, n)
		default:
			p.lsEntry(o, i, n)
			shown++
		}
	}
	for _, d := range dirs {
		list(d, len(names) > 1 || has(o, "R"))
	}
	return code
}

func (p *proc) lsEntry(o map[string]string, i info, name string) {
	if has(o, "l") {
		mode := strings.Replace(i.mode().String(), "L", "l", 1)
		if i.isDir() {
			mode = "d" + mode[1:]
		}
		line := fmt.Sprintf("%s 1 %d %d %d %s %s", mode, i.uid, i.gid, i.size, i.modTime().UTC().Format("Jan _2 15:04"), name)
		if i.kind == symlink {
			line += " -> " + i.target
		}
		p.print(1, line+"\n")
		return
	}
	if has(o, "F", "p") && i.isDir() {
		name += "/"
	}
	p.print(1, name+"\n")
}

func mkdirCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "pm:v")
	if err != nil || len(names) == 0 {
		return usage(p, argv, errors.Join(err, errors.New("a name is needed")))
	}
	code := 0
	for _, n := range names {
		perm := 0o777 &^ p.mask
		if has(o, "p") {
			err = p.m.tree.mkdirAll(path.Clean(p.abs(n)), perm, p.cred())
		} else {
			err = p.m.tree.mkdir(p.abs(n), perm, p.cred())
		}
		if err == nil && has(o, "m") {
			err = p.chmodBy(n, o["m"])
		}
		if err != nil {
			code = p.complain(argv, named(err, n))
		}
	}
	return code
}

func rmCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "rRfdv")
	if err != nil {
		return usage(p, argv, err)
	}
	code := 0
	for _, n := range names {
		i, err := p.stat(n, false)
		switch {
		case errors.Is(err, fs.ErrNotExist) && has(o, "f"):
			continue
		case err == nil && i.isDir() && !has(o, "r", "R"):
			err = fail("rm", n, syscall.EISDIR)
		case err == nil:
			err = p.m.tree.removeAll(p.abs(n), p.cred())
		}
		if err != nil {
			code = p.complain(argv, named(err, n))
		}
	}
	return code
}

func rmdirCmd(p *proc, argv []string) int {
	code := 0
	for _, n := range argv[1:] {
		i, err := p.stat(n, false)
		if err == nil && !i.isDir() {
			err = fail("rmdir", n, syscall.ENOTDIR)
		}
		if err == nil {
			err = p.m.tree.remove(p.abs(n), p.cred())
		}
		if err != nil {
			code = p.complain(argv, named(err, n))
		}
	}
	return code
}

// into is the target of a copy or move: inside it when it is a directory.
func (p *proc) into(target, source string) string {
	if i, err := p.stat(target, true); err == nil && i.isDir() {
		return target + "/" + path.Base(path.Clean(source))
	}
	return target
}

func cpCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "rRafpPdvLTn")
	if err != nil || len(names) < 2 {
		return usage(p, argv, errors.Join(err, errors.New("a source and a target are needed")))
	}
	deep := has(o, "r", "R", "a")
	target := names[len(names)-1]
	code := 0
	for _, n := range names[:len(names)-1] {
		to := target
		if !has(o, "T") {
			to = p.into(target, n)
		}
		if strings.HasSuffix(n, "/.") {
			to = target
		}
		if err := p.copyTree(n, to, deep, deep && !has(o, "L")); err != nil {
			code = p.complain(argv, err)
		}
	}
	return code
}

func (p *proc) copyTree(from, to string, deep, keepLinks bool) error {
	i, err := p.stat(from, !keepLinks)
	if err != nil {
		return err
	}
	t, who := p.m.tree, p.cred()
	switch i.kind {
	case directory:
		if !deep {
			return fmt.Errorf("%s is a directory (not copied)", from)
		}
		if err := t.mkdir(p.abs(to), i.perm|0o700, who); err != nil && !isErrno(err, syscall.EEXIST) {
			return named(err, to)
		}
		kids, err := t.readDir(p.abs(from), who)
		if err != nil {
			return named(err, from)
		}
		for _, k := range kids {
			if p.dead() {
				return errors.New("interrupted")
			}
			if err := p.copyTree(from+"/"+k.name, to+"/"+k.name, deep, keepLinks); err != nil {
				return err
			}
		}
		return nil
	case symlink:
		if _, err := p.stat(to, false); err == nil {
			if err := t.remove(p.abs(to), who); err != nil {
				return named(err, to)
			}
		}
		return named(t.symlink(i.target, p.abs(to), who), to)
	default:
		body, err := t.readFile(p.abs(from), who)
		if err != nil {
			return named(err, from)
		}
		h, err := t.open(p.abs(to), openMode{write: true, create: true, trunc: true}, i.perm&^p.mask, who)
		if err != nil {
			return named(err, to)
		}
		_, err = h.Write(body)
		return err
	}
}

func mvCmd(p *proc, argv []string) int {
	_, names, err := flags(argv, "fnvT")
	if err != nil || len(names) < 2 {
		return usage(p, argv, errors.Join(err, errors.New("a source and a target are needed")))
	}
	target := names[len(names)-1]
	code := 0
	for _, n := range names[:len(names)-1] {
		if err := p.m.tree.rename(p.abs(strings.TrimRight(n, "/")), p.abs(p.into(target, n)), p.cred()); err != nil {
			code = p.complain(argv, named(err, n))
		}
	}
	return code
}

func lnCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "sfnvT")
	if err != nil || len(names) == 0 {
		return usage(p, argv, errors.Join(err, errors.New("a target is needed")))
	}
	name := "."
	if len(names) > 1 {
		name = names[1]
	}
	if !has(o, "n", "T") {
		name = p.into(name, names[0])
	}
	if has(o, "f") {
		if _, err := p.stat(name, false); err == nil {
			if err := p.m.tree.remove(p.abs(name), p.cred()); err != nil {
				return p.complain(argv, named(err, name))
			}
		}
	}
	if has(o, "s") {
		err = p.m.tree.symlink(names[0], p.abs(name), p.cred())
	} else {
		err = p.m.tree.link(p.abs(names[0]), p.abs(name), p.cred())
	}
	if err != nil {
		return p.complain(argv, named(err, name))
	}
	return 0
}

func touchCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "camd:t:r:")
	if err != nil || has(o, "d", "t", "r") {
		return usage(p, argv, errors.Join(err, errors.New("only the current time can be set")))
	}
	code := 0
	for _, n := range names {
		_, err := p.stat(n, true)
		switch {
		case err == nil:
			err = p.m.tree.setattr("touch", p.abs(n), p.cred(), true, func(f *node) { f.mtime = p.m.tree.now() })
		case errors.Is(err, fs.ErrNotExist) && !has(o, "c"):
			_, err = p.m.tree.open(p.abs(n), openMode{write: true, create: true}, 0o666&^p.mask, p.cred())
		}
		if err != nil {
			code = p.complain(argv, named(err, n))
		}
	}
	return code
}

// chmodBy applies an octal or symbolic mode.
func (p *proc) chmodBy(name, mode string) error {
	i, err := p.stat(name, true)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(mode, 8, 32); err == nil {
		return named(p.m.tree.chmod(p.abs(name), uint32(n), p.cred()), name)
	}
	perm := i.perm
	for part := range strings.SplitSeq(mode, ",") {
		k := strings.IndexAny(part, "+-=")
		if k < 0 {
			return fmt.Errorf("mode %q is not understood", mode)
		}
		var bits, who uint32
		for _, c := range part[k+1:] {
			switch c {
			case 'r':
				bits |= 0o444
			case 'w':
				bits |= 0o222
			case 'x':
				bits |= 0o111
			case 'X':
				if i.isDir() || i.perm&0o111 != 0 {
					bits |= 0o111
				}
			case 's', 't':
			default:
				return fmt.Errorf("mode %q is not understood", mode)
			}
		}
		for _, c := range part[:k] {
			switch c {
			case 'u':
				who |= 0o700
			case 'g':
				who |= 0o070
			case 'o':
				who |= 0o007
			case 'a':
				who |= 0o777
			default:
				return fmt.Errorf("mode %q is not understood", mode)
			}
		}
		if who == 0 {
			who = 0o777 &^ p.mask
		}
		switch part[k] {
		case '+':
			perm |= bits & who
		case '-':
			perm &^= bits & who
		default:
			perm = perm&^who | bits&who
		}
	}
	return named(p.m.tree.chmod(p.abs(name), perm, p.cred()), name)
}

// walkTree calls f for a path and all below it, without following links.
func (p *proc) walkTree(name string, f func(name string, i info) error) error {
	i, err := p.stat(name, false)
	if err != nil {
		return err
	}
	if err := f(name, i); err != nil || !i.isDir() {
		return err
	}
	kids, err := p.m.tree.readDir(p.abs(name), p.cred())
	if err != nil {
		return named(err, name)
	}
	for _, k := range kids {
		if p.dead() {
			return errors.New("interrupted")
		}
		below := strings.TrimRight(name, "/") + "/" + k.name
		if err := p.walkTree(below, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func chmodCmd(p *proc, argv []string) int {
	args := argv[1:]
	deep := false
	for len(args) > 0 && (args[0] == "-R" || args[0] == "-v" || args[0] == "--") {
		deep = deep || args[0] == "-R"
		args = args[1:]
	}
	if len(args) < 2 {
		return usage(p, argv, errors.New("a mode and a file are needed"))
	}
	code := 0
	for _, n := range args[1:] {
		err := p.chmodBy(n, args[0])
		if deep && err == nil {
			err = p.walkTree(n, func(name string, i info) error {
				if i.kind == symlink {
					return nil
				}
				return p.chmodBy(name, args[0])
			})
		}
		if err != nil {
			code = p.complain(argv, err)
		}
	}
	return code
}

func chownCmd(p *proc, argv []string) int {
	o, args, err := flags(argv, "Rhv")
	if err != nil || len(args) < 2 {
		return usage(p, argv, errors.Join(err, errors.New("an owner and a file are needed")))
	}
	u, ok := p.m.lookup(strings.TrimSuffix(args[0], ":"))
	if !ok {
		return p.complain(argv, fmt.Errorf("%s: no such user", args[0]))
	}
	if p.who.uid != 0 && u.uid != p.who.uid {
		return p.complain(argv, errors.New("operation not permitted"))
	}
	code := 0
	for _, n := range args[1:] {
		err := p.walkTree(n, func(name string, _ info) error {
			if !has(o, "R") && name != n {
				return nil
			}
			return named(p.m.tree.chown(p.abs(name), cred{u.uid, u.gid}, p.cred()), name)
		})
		if err != nil {
			code = p.complain(argv, err)
		}
	}
	return code
}

func mktempCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "dp:tuq")
	if err != nil {
		return usage(p, argv, err)
	}
	pattern := "/tmp/tmp.XXXXXXXXXX"
	if len(names) > 0 {
		pattern = names[0]
	}
	if has(o, "p") {
		pattern = o["p"] + "/" + path.Base(pattern)
	}
	stem := strings.TrimRight(pattern, "X")
	if len(pattern)-len(stem) < 3 {
		return usage(p, argv, errors.New("the pattern needs three X"))
	}
	for range 100 {
		name := fmt.Sprintf("%s%0*x", stem, len(pattern)-len(stem), rand.Uint64()&0xffffff)
		if has(o, "d") {
			err = p.m.tree.mkdir(p.abs(name), 0o700, p.cred())
		} else {
			_, err = p.m.tree.open(p.abs(name), openMode{write: true, create: true, excl: true}, 0o600, p.cred())
		}
		if err == nil {
			return p.say(name + "\n")
		}
		if !isErrno(err, syscall.EEXIST) {
			break
		}
	}
	return p.complain(argv, err)
}

// realpath resolves all links of a path as far as it exists.
func (t *tree) realpath(p string, who cred) string {
	for range 40 {
		changed := false
		parts := strings.Split(path.Clean(p), "/")
		for i := 2; i <= len(parts); i++ {
			at := strings.Join(parts[:i], "/")
			f, err := t.stat(at, who, false)
			if err != nil || f.kind != symlink {
				continue
			}
			target := f.target
			if !path.IsAbs(target) {
				target = path.Dir(at) + "/" + target
			}
			p = path.Join(target, strings.Join(parts[i:], "/"))
			changed = true
			break
		}
		if !changed {
			break
		}
	}
	return path.Clean(p)
}

func readlinkCmd(p *proc, argv []string) int {
	o, names, err := flags(argv, "fnemsq")
	if err != nil {
		return usage(p, argv, err)
	}
	code := 0
	for _, n := range names {
		if path.Base(argv[0]) == "realpath" || has(o, "f", "e", "m") {
			full := p.m.tree.realpath(p.abs(n), p.cred())
			if _, err := p.stat(full, true); err != nil && !has(o, "m", "f") {
				code = p.complain(argv, named(err, n))
				continue
			}
			p.print(1, full+"\n")
			continue
		}
		i, err := p.stat(n, false)
		if err != nil || i.kind != symlink {
			code = 1
			continue
		}
		p.print(1, i.target+"\n")
	}
	return code
}

func nameCmd(p *proc, argv []string) int {
	args := argv[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return usage(p, argv, errors.New("a name is needed"))
	}
	if path.Base(argv[0]) == "dirname" {
		return p.say(path.Dir(strings.TrimRight(args[0], "/")) + "\n")
	}
	base := path.Base(args[0])
	if len(args) > 1 && base != args[1] {
		base = strings.TrimSuffix(base, args[1])
	}
	return p.say(base + "\n")
}
