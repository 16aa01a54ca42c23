package server

import (
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"assay/internal/guest/wire"
)

// maxAccounts bounds what is read of passwd and group, in bytes.
const maxAccounts = 4 << 20

// users resolves identities by the sandbox's own files, read at each call: a
// command may add users.
type users struct {
	mu    sync.Mutex
	homes map[uint32]string // made for users without a home
}

type account struct {
	name  string
	uid   uint32
	gid   uint32
	home  string
	shell string
}

type group struct {
	name    string
	gid     uint32
	members []string
}

// lookup resolves "", "name", "uid" and either with ":group" or ":gid".
func (u *users) lookup(spec string) wire.Message {
	r, err := u.resolve(spec)
	if err != nil {
		return &wire.User{Result: resultOf(err, "look up user")}
	}
	return r
}

func (u *users) resolve(spec string) (*wire.User, error) {
	who, grp, hasGroup := strings.Cut(spec, ":")
	if who == "" {
		who = strconv.Itoa(os.Geteuid())
	}
	a, known, err := findAccount(who)
	if err != nil {
		return nil, err
	}
	groups := readGroups()
	r := &wire.User{Name: a.name, UID: a.uid, GID: a.gid, Home: a.home, Shell: a.shell}
	if spec == "" {
		r.GID = uint32(os.Getegid())
	}
	for _, g := range groups {
		for _, m := range g.members {
			if known && m == a.name && g.gid != r.GID {
				r.Groups = append(r.Groups, g.gid)
			}
		}
	}
	if hasGroup {
		// As container engines have it, an explicit group replaces them all.
		if r.GID, err = findGroup(grp, groups); err != nil {
			return nil, err
		}
		r.Groups = nil
	}
	if r.Shell == "" {
		r.Shell = "/bin/sh"
	}
	if r.Home == "" {
		if r.Home, err = u.home(r.UID, r.GID, r.Groups); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// findAccount finds a name or a numeric uid; a uid needs no entry.
func findAccount(who string) (account, bool, error) {
	uid, numErr := strconv.ParseUint(who, 10, 32)
	var byID account
	found := false
	for f := range records("/etc/passwd", 7) {
		id, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		a := account{name: f[0], uid: uint32(id), gid: uint32(gid), home: f[5], shell: f[6]}
		if a.name == who {
			return a, true, nil
		}
		if numErr == nil && !found && id == uid {
			byID, found = a, true
		}
	}
	switch {
	case found:
		return byID, true, nil
	case numErr == nil:
		return account{uid: uint32(uid)}, false, nil
	}
	return account{}, false, coded{wire.CodeNoUser, fmt.Sprintf("no user %q in /etc/passwd", who)}
}

func readGroups() []group {
	var gs []group
	for f := range records("/etc/group", 4) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		gs = append(gs, group{f[0], uint32(gid), strings.Split(f[3], ",")})
	}
	return gs
}

func findGroup(which string, groups []group) (uint32, error) {
	for _, g := range groups {
		if g.name == which {
			return g.gid, nil
		}
	}
	if gid, err := strconv.ParseUint(which, 10, 32); err == nil {
		return uint32(gid), nil
	}
	return 0, coded{wire.CodeNoUser, fmt.Sprintf("no group %q in /etc/group", which)}
}

// records yields the lines of a colon-separated file that have at least n
// fields. A file that is missing or no regular file has none.
func records(name string, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return
		}
		b, _ := io.ReadAll(io.LimitReader(f, maxAccounts)) // what could be read counts
		for line := range strings.SplitSeq(string(b), "\n") {
			if f := strings.Split(line, ":"); len(f) >= n && !strings.HasPrefix(line, "#") {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// home finds a writable home for a user without one: "/" if he can write there,
// else a private directory in /tmp.
func (u *users) home(uid, gid uint32, groups []uint32) (string, error) {
	var st unix.Stat_t
	if uid == 0 || unix.Stat("/", &st) == nil && writable(&st, uid, gid, groups) {
		return "/", nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if h := u.homes[uid]; h != "" && private(h, uid) {
		return h, nil
	}
	name := path.Join("/tmp", ".home-"+strconv.FormatUint(uint64(uid), 10))
	for i := 0; ; i++ {
		h := name
		if i > 0 {
			h += "-" + strconv.Itoa(i)
		}
		err := unix.Mkdir(h, 0o700)
		if err == nil && os.Geteuid() == 0 {
			err = unix.Lchown(h, int(uid), int(gid))
		}
		if err == unix.EEXIST && private(h, uid) {
			err = nil // of an earlier call, or made by the user for himself
		}
		if err == unix.EEXIST && i < 100 {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("make a home directory: %w", err)
		}
		if u.homes == nil {
			u.homes = map[uint32]string{}
		}
		u.homes[uid] = h
		return h, nil
	}
}

// private says whether name is a directory, not a link, that belongs to uid.
func private(name string, uid uint32) bool {
	var st unix.Stat_t
	return unix.Lstat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == uid
}

func writable(st *unix.Stat_t, uid, gid uint32, groups []uint32) bool {
	const wx = 0o3
	switch {
	case st.Uid == uid:
		return st.Mode>>6&wx == wx
	case st.Gid == gid:
		return st.Mode>>3&wx == wx
	}
	for _, g := range groups {
		if st.Gid == g {
			return st.Mode>>3&wx == wx
		}
	}
	return st.Mode&wx == wx
}
