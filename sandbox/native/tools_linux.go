package native

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"assay/internal/guest/enter"
	"assay/internal/guestbox"
)

// tools is what a sandbox of the host's own tools is made of, looked up once.
type tools struct {
	trees, links, hide []string
	path               string
	passwd, group      string // entries of the system's own users
}

// topLevel are the directories that hold programs; most of them are links into
// /usr on many hosts. nix and gnu are where two distributions keep everything.
var topLevel = []string{"usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu"}

func findTools() (*tools, error) {
	t := &tools{}
	for _, name := range topLevel {
		st, err := os.Lstat("/" + name)
		switch {
		case err != nil:
			continue
		case st.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink("/" + name)
			if err != nil {
				return nil, err
			}
			t.links = append(t.links, name, to)
		case st.IsDir():
			t.trees = append(t.trees, name)
		}
	}
	t.hide = append(private("/etc"), selfUnder(t.trees)...)
	t.path = toolPath(os.Getenv("PATH"), t.trees)
	t.passwd, t.group = systemAccounts()
	return t, nil
}

// private lists what in a tree not everybody may read: keys and passwords. A
// directory is listed without its content.
func private(root string) []string {
	var out []string
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if d != nil && d.IsDir() && p != root {
				return filepath.SkipDir // it was listed on the way in
			}
			return nil
		}
		st, err := d.Info()
		if err != nil || p == root || d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := st.Mode().Perm()
		switch {
		case d.IsDir() && mode&0o005 != 0o005:
			out = append(out, p)
			return filepath.SkipDir
		case !d.IsDir() && mode&0o004 == 0:
			out = append(out, p)
		}
		return nil
	})
	return out
}

// selfUnder lists the running program where it would be in sight.
func selfUnder(trees []string) []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	for _, t := range trees {
		if within("/"+t, self) {
			return []string{self}
		}
	}
	return nil
}

// toolPath is the system's path and those places of the caller's own that are
// visible inside.
func toolPath(own string, trees []string) string {
	path := guestbox.SystemPath
	have := map[string]bool{}
	for p := range strings.SplitSeq(path, ":") {
		have[p] = true
	}
	for p := range strings.SplitSeq(own, ":") {
		if !filepath.IsAbs(p) || have[p] {
			continue
		}
		for _, t := range trees {
			if within("/"+t, filepath.Clean(p)) {
				have[p] = true
				path = p + ":" + path
			}
		}
	}
	return path
}

// systemAccounts are the users and groups of the host that belong to no person.
func systemAccounts() (passwd, group string) {
	keep := func(file string, fields int) string {
		b, _ := os.ReadFile(file) // without one there are none
		var out strings.Builder
		for line := range strings.SplitSeq(string(b), "\n") {
			f := strings.Split(line, ":")
			if len(f) < fields {
				continue
			}
			id, err := strconv.Atoi(f[2])
			if err != nil || id >= userUID && id != 65534 || f[0] == userName || f[0] == "root" {
				continue
			}
			if fields == 4 {
				f[3] = "" // members are people
			}
			out.WriteString(strings.Join(f, ":") + "\n")
		}
		return out.String()
	}
	return keep("/etc/passwd", 7), keep("/etc/group", 4)
}

// shellOf is the login shell of the sandbox's user.
func shellOf() string {
	if _, err := os.Stat("/bin/bash"); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// plan is the root of the host's own tools.
func (t *tools) plan(many bool) *enter.Plan {
	passwd := "root:x:0:0:root:/root:" + shellOf() + "\n"
	group := "root:x:0:\n"
	if many {
		passwd, group = passwd+t.passwd, group+t.group
	} else {
		passwd, group = passwd+"nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", group+"nogroup:x:65534:\n"
	}
	passwd += userName + ":x:" + strconv.Itoa(userUID) + ":" + strconv.Itoa(userUID) + "::" + userHome + ":" + shellOf() + "\n"
	group += userName + ":x:" + strconv.Itoa(userUID) + ":\n"
	p := &enter.Plan{Trees: t.trees, Links: t.links, Hide: t.hide}
	p.Dirs = []enter.Dir{
		{Path: "/root", Mode: 0o700},
		{Path: "/tmp", Mode: 0o1777},
		{Path: "/run", Mode: 0o755},
		{Path: "/run/lock", Mode: 0o1777},
		{Path: "/var/tmp", Mode: 0o1777},
		{Path: "/var/lib", Mode: 0o755},
		{Path: "/var/log", Mode: 0o755},
		{Path: "/var/cache", Mode: 0o755},
		{Path: "/opt", Mode: 0o755},
		{Path: "/srv", Mode: 0o755},
		{Path: "/mnt", Mode: 0o755},
		{Path: "/etc", Mode: 0o755},
		{Path: "/home", Mode: 0o755},
		{Path: userHome, Mode: 0o755, UID: userUID, GID: userUID},
	}
	p.Files = append(p.Files, enter.File{Path: "/etc/passwd", Mode: 0o644, Data: passwd}, enter.File{Path: "/etc/group", Mode: 0o644, Data: group})
	return p
}
