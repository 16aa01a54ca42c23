package testimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// sliceNeeds are the tools without which slice is not worth its name;
// sliceTools are taken where the host has them.
var (
	sliceNeeds = []string{"bash", "sh", "git", "tar", "grep", "sed", "awk", "find", "ps", "diff", "cat", "ls"}
	sliceTools = strings.Fields(`
		[ base32 base64 basename chgrp chmod chown cksum comm cp csplit cut date dd df dirname du echo env expand
		expr factor false fmt fold groups head hostid id install join link ln logname md5sum mkdir mkfifo mknod
		mktemp mv nice nl nohup nproc numfmt od paste pathchk pr printenv printf ptx pwd readlink realpath rm rmdir
		seq sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync
		tac tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink users vdir wc who
		whoami yes egrep fgrep xargs cmp diff3 sdiff pgrep pkill kill pidof top free uptime setsid flock hostname
		gzip gunzip zcat which getent script`)
)

// hostErr wraps ErrHost with what is missing and how to get it.
func hostErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrHost, fmt.Sprintf(format, a...))
}

func onLinux() error {
	if runtime.GOOS != "linux" {
		return hostErr("it is made from a Linux machine's own tools, and this is %s", runtime.GOOS)
	}
	return nil
}

// busybox returns a root with a static busybox and a link per applet.
func busybox() (*tree, error) {
	if err := onLinux(); err != nil {
		return nil, err
	}
	bin, err := exec.LookPath("busybox")
	if err != nil {
		return nil, hostErr("busybox not found in PATH (install busybox-static)")
	}
	static, err := isStatic(bin)
	if err != nil {
		return nil, err
	}
	if !static {
		return nil, hostErr("%s is not static (install busybox-static)", bin)
	}
	out, err := exec.Command(bin, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", bin, err)
	}
	t := skeleton("/bin/sh")
	if err := t.file("usr/bin/busybox", bin); err != nil {
		return nil, err
	}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			t.symlink("usr/bin/"+applet, "busybox")
		}
	}
	return t, nil
}

// sliceRoot returns a root with a small set of the host's tools and their
// libraries.
func sliceRoot() (*tree, error) {
	if err := onLinux(); err != nil {
		return nil, err
	}
	t := skeleton("/bin/bash")
	for _, name := range slices.Concat(sliceNeeds, sliceTools) {
		src, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err := t.file("usr/bin/"+name, src); err != nil {
			return nil, err
		}
	}
	for _, name := range sliceNeeds {
		if _, ok := t.entries["usr/bin/"+name]; !ok {
			return nil, hostErr("%s not found in PATH", name)
		}
	}
	// git warns at each init when its templates' folder is missing.
	t.dir("usr/share/git-core/templates", 0o755, 0)
	return t, t.addLibraries()
}

// sliceNode returns slice with the host's node and npm. npm's folder lands
// where node's own package puts it, wherever the host has it.
func sliceNode() (*tree, error) {
	t, err := sliceRoot()
	if err != nil {
		return nil, err
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, hostErr("node not found in PATH")
	}
	if err := t.file("usr/bin/node", node); err != nil {
		return nil, err
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, hostErr("npm not found in PATH")
	}
	if npm, err = filepath.EvalSymlinks(npm); err != nil {
		return nil, err
	}
	home, target := npmHome(npm)
	if home == "" {
		return nil, hostErr("cannot tell which folder %s belongs to", npm)
	}
	if err := t.copyDir(target, home); err != nil {
		return nil, err
	}
	for name, script := range map[string]string{"npm": "npm-cli.js", "npx": "npx-cli.js"} {
		rel, err := filepath.Rel(home, filepath.Join(filepath.Dir(npm), script))
		if err != nil {
			return nil, err
		}
		t.symlink("usr/bin/"+name, "/"+filepath.Join(target, rel))
	}
	return t, t.addLibraries()
}

// npmHome returns the host folder that holds all of npm, and its place in the
// image: node_modules/npm with its own dependencies in it, or a
// distribution's folder of all packages.
func npmHome(cli string) (home, target string) {
	for d := filepath.Dir(cli); d != "/" && d != "."; d = filepath.Dir(d) {
		switch filepath.Base(filepath.Dir(d)) {
		case "node_modules":
			return d, "usr/lib/node_modules/" + filepath.Base(d)
		case "nodejs":
			return filepath.Dir(d), "usr/share/nodejs"
		}
	}
	return "", ""
}

// addLibraries puts the shared libraries, and the loader, that the programs of
// the tree need. ldd starts several processes per program, so it is asked only
// about programs that link something no earlier program brought.
func (t *tree) addLibraries() error {
	have := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[name]
		if e.src == "" || e.mode&0o111 == 0 {
			continue
		}
		links, err := linked(e.src)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(links, func(l string) bool { return !have[l] }) {
			continue
		}
		out, err := exec.Command("ldd", e.src).Output()
		if err != nil {
			return hostErr("ldd %s: %v", e.src, err)
		}
		for _, lib := range libraries(string(out)) {
			have[filepath.Base(lib)] = true
			if err := t.file(merged(lib), lib); err != nil {
				return err
			}
		}
		for _, l := range links {
			if !have[l] {
				return hostErr("ldd %s does not say where %s is", e.src, l)
			}
		}
	}
	return nil
}

// libraries returns the absolute paths that ldd printed.
func libraries(out string) []string {
	var libs []string
	for _, f := range strings.Fields(out) {
		if strings.HasPrefix(f, "/") {
			libs = append(libs, f)
		}
	}
	return libs
}

// linked returns the names of the shared libraries that the program at path
// asks for; none for static programs and for files that are not programs.
func linked(path string) ([]string, error) {
	f, err := openELF(path)
	if f == nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.ImportedLibraries()
}

// isStatic reports whether the program at path runs without a loader.
func isStatic(path string) (bool, error) {
	f, err := openELF(path)
	if f == nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// openELF opens the program at path; it returns nil for a file that is none.
func openELF(path string) (*elf.File, error) {
	f, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil
	}
	return f, err
}
