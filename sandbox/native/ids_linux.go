package native

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// The identities inside. root is only there where a namespace can have more than
// one identity.
const (
	userName = "user"
	userUID  = 1000
	userHome = "/home/user"
)

// identities says which user and group ids a sandbox has.
type identities struct {
	// many: any user; else a single one, which is the person who runs this.
	many bool
	// helpers: the maps are written by newuidmap(1) and newgidmap(1).
	helpers  bool
	uid, gid []syscall.SysProcIDMap
}

// findIdentities looks at who runs this process and what the machine grants him.
func findIdentities() identities {
	if os.Geteuid() == 0 {
		uid, gid := wholeMap("/proc/self/uid_map"), wholeMap("/proc/self/gid_map")
		if holds(uid, userUID) && holds(gid, userUID) {
			return identities{many: true, uid: uid, gid: gid}
		}
		return identities{}
	}
	name := ""
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		name = u.Username
	}
	for _, tool := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(tool); err != nil {
			return identities{}
		}
	}
	uid := subordinate("/etc/subuid", name, os.Geteuid(), os.Geteuid())
	gid := subordinate("/etc/subgid", name, os.Geteuid(), os.Getegid())
	if holds(uid, userUID) && holds(gid, userUID) {
		return identities{many: true, helpers: true, uid: uid, gid: gid}
	}
	return identities{}
}

// wholeMap maps every identity of this process's namespace to itself.
func wholeMap(file string) []syscall.SysProcIDMap {
	b, _ := os.ReadFile(file) // no map means no identities
	var out []syscall.SysProcIDMap
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 3 {
			continue
		}
		from, err1 := strconv.ParseInt(f[0], 10, 64)
		size, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 == nil && err2 == nil && size > 0 && int64(int(from+size)) == from+size {
			out = append(out, syscall.SysProcIDMap{ContainerID: int(from), HostID: int(from), Size: int(size)})
		}
	}
	return out
}

// subordinate maps root to the person himself and the ids from 1 on to what
// subuid(5) grants him by name or number; nil without a grant.
func subordinate(file, name string, uid, self int) []syscall.SysProcIDMap {
	b, _ := os.ReadFile(file) // no file is no grant
	return parseSubordinate(b, name, uid, self)
}

func parseSubordinate(b []byte, name string, uid, self int) []syscall.SysProcIDMap {
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(f) != 3 || f[0] != strconv.Itoa(uid) && (name == "" || f[0] != name) {
			continue
		}
		first, err1 := strconv.Atoi(f[1])
		size, err2 := strconv.Atoi(f[2])
		if err1 != nil || err2 != nil || first <= 0 || size < userUID {
			continue
		}
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: self, Size: 1}, {ContainerID: 1, HostID: first, Size: size}}
	}
	return nil
}

// holds says whether id and root are among the ids inside.
func holds(m []syscall.SysProcIDMap, id int) bool {
	root, own := false, false
	for _, r := range m {
		root = root || r.ContainerID == 0
		own = own || r.ContainerID <= id && id < r.ContainerID+r.Size
	}
	return root && own
}

// ambient are the capabilities that building the root needs of a process that is
// not root in its own user namespace; all are given up afterwards.
var ambient = []uintptr{0 /* chown */, 1 /* dac_override */, 3 /* fowner */, 4 /* fsetid */, 8 /* setpcap */, 12 /* net_admin */, 21 /* sys_admin */, 24 /* sys_resource */}

// capabilities are those and the ones that the exec server keeps where there are
// many identities, as bits.
const capabilities = 1<<0 | 1<<1 | 1<<2 /* dac_read_search */ | 1<<3 | 1<<4 | 1<<5 /* kill */ | 1<<6 /* setgid */ | 1<<7 /* setuid */ |
	1<<8 | 1<<10 /* net_bind_service */ | 1<<12 | 1<<21 | 1<<24

// namespaces are those that a sandbox has from the start.
const namespaces = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET

// write gives a process in a user namespace of its own its identities; uid and
// gid are what it is inside where there is a single one.
func (ids identities) write(pid, uid, gid int) error {
	us, gs := ids.uid, ids.gid
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	if !ids.many {
		us = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(), Size: 1}}
		gs = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(), Size: 1}}
		if err := os.WriteFile(dir+"setgroups", []byte("deny"), 0); err != nil {
			return err
		}
	}
	for _, one := range []struct {
		file string
		m    []syscall.SysProcIDMap
	}{{"uid_map", us}, {"gid_map", gs}} {
		var text []byte // the kernel takes the whole of it in one write
		for _, r := range one.m {
			text = fmt.Appendf(text, "%d %d %d\n", r.ContainerID, r.HostID, r.Size)
		}
		if err := os.WriteFile(dir+one.file, text, 0); err != nil {
			return err
		}
	}
	return nil
}

// attr returns how a process of these identities is cloned. uid and gid are what
// it is inside where there is a single identity.
func (ids identities) attr(uid, gid int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: namespaces,
		Setsid:     true,
	}
	switch {
	case ids.helpers:
	case ids.many:
		a.UidMappings, a.GidMappings, a.GidMappingsEnableSetgroups = ids.uid, ids.gid, true
	default:
		if uid != 0 {
			a.AmbientCaps = ambient
		}
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// grant writes the maps of a process with the setuid helpers.
func (ids identities) grant(pid int) error {
	for _, one := range []struct {
		tool string
		m    []syscall.SysProcIDMap
	}{{"newuidmap", ids.uid}, {"newgidmap", ids.gid}} {
		args := []string{strconv.Itoa(pid)}
		for _, r := range one.m {
			args = append(args, strconv.Itoa(r.ContainerID), strconv.Itoa(r.HostID), strconv.Itoa(r.Size))
		}
		if out, err := exec.Command(one.tool, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", one.tool, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
