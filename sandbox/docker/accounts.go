package docker

import (
	"bufio"
	"bytes"
	"strconv"
	"strings"

	"assay/fault"
)

// accounts are the users and groups of a container, read from its own files.
// The formats are passwd(5) and group(5).
type accounts struct {
	users  []passwdEntry
	groups map[string]uint32
}

type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

func parseAccounts(passwd, group []byte) accounts {
	a := accounts{groups: map[string]uint32{}}
	eachLine(passwd, func(f []string) {
		if len(f) < 7 {
			return
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 == nil && err2 == nil {
			a.users = append(a.users, passwdEntry{f[0], uint32(uid), uint32(gid), f[5]})
		}
	})
	eachLine(group, func(f []string) {
		if len(f) < 3 {
			return
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			if _, dup := a.groups[f[0]]; !dup {
				a.groups[f[0]] = uint32(gid)
			}
		}
	})
	return a
}

func eachLine(b []byte, use func(fields []string)) {
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		if line := sc.Text(); line != "" && line[0] != '#' {
			use(strings.Split(line, ":"))
		}
	}
}

// plainUser is a user as the engine's own exec is told of it.
type plainUser struct {
	account
	gid  uint32
	spec string // for the engine
}

// find resolves "", "name", "uid", "name:group" and "uid:gid"; "" is root. home
// is empty for a uid without an entry.
func (a accounts) find(user string) (plainUser, error) {
	if user == "" {
		user = "0"
	}
	name, group, hasGroup := strings.Cut(user, ":")
	u := plainUser{spec: user}
	entry, ok := a.byName(name)
	if !ok {
		uid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return u, fault.Configf("no-such-user", "Name a user that the image has, or a numeric uid.", "the image has no user %q", name)
		}
		u.uid = uint32(uid)
		entry, ok = a.byUID(u.uid)
	}
	if ok {
		u.account, u.gid = account{name: entry.name, uid: entry.uid, home: entry.home}, entry.gid
	} else if u.uid == 0 {
		u.name, u.home = "root", "/root"
	}
	if hasGroup && group != "" {
		gid, known := a.groups[group]
		if !known {
			n, err := strconv.ParseUint(group, 10, 32)
			if err != nil {
				return u, fault.Configf("no-such-user", "Name a group that the image has, or a numeric gid.", "the image has no group %q", group)
			}
			gid = uint32(n)
		}
		u.gid = gid
	}
	return u, nil
}

func (a accounts) byName(name string) (passwdEntry, bool) {
	for _, e := range a.users {
		if e.name == name {
			return e, true
		}
	}
	return passwdEntry{}, false
}

func (a accounts) byUID(uid uint32) (passwdEntry, bool) {
	for _, e := range a.users {
		if e.uid == uid {
			return e, true
		}
	}
	return passwdEntry{}, false
}
