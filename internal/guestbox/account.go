package guestbox

import (
	"strconv"
	"strings"

	"assay/fault"
)

// Account is a user of an image, found from outside of it.
type Account struct {
	Name     string // empty for a uid without an entry
	UID, GID uint32
	Home     string // empty for a uid without an entry
}

// FindAccount resolves "", "name", "uid" and either with ":group" or ":gid" by
// the text of passwd(5) and group(5) files; "" is root. An unknown name is an
// error with code "no-such-user".
func FindAccount(passwd, group []byte, spec string) (Account, error) {
	who, grp, hasGroup := strings.Cut(spec, ":")
	if who == "" {
		who = "0"
	}
	id, numeric := parseID(who)
	a, found := Account{UID: id}, false
	for f := range lines(passwd, 7) {
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			continue
		}
		if f[0] == who || numeric && uid == id && !found {
			a, found = Account{Name: f[0], UID: uid, GID: gid, Home: f[5]}, true
			if f[0] == who {
				break
			}
		}
	}
	if !found && !numeric && who == "root" {
		a, found = Account{Name: "root", Home: "/root"}, true
	}
	if !found && !numeric {
		return a, fault.Configf("no-such-user", "Name a user that the image has, or a numeric uid.", "the image has no user %q", who)
	}
	if !hasGroup || grp == "" {
		return a, nil
	}
	if gid, ok := parseID(grp); ok {
		a.GID = gid
		return a, nil
	}
	for f := range lines(group, 3) {
		if gid, ok := parseID(f[2]); ok && f[0] == grp {
			a.GID = gid
			return a, nil
		}
	}
	return a, fault.Configf("no-such-user", "Name a group that the image has, or a numeric gid.", "the image has no group %q", grp)
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil
}

// lines yields the colon-separated lines that have at least n fields.
func lines(b []byte, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range strings.SplitSeq(string(b), "\n") {
			if f := strings.Split(line, ":"); len(f) >= n && !strings.HasPrefix(line, "#") {
				if !yield(f) {
					return
				}
			}
		}
	}
}
