package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"assay/fault"
	"assay/sandbox"
)

func TestSubordinateIdentities(t *testing.T) {
	want := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1001, Size: 1}, {ContainerID: 1, HostID: 100000, Size: 65536}}
	for file, ok := range map[string]bool{
		"ann:100000:65536\n":                          true,
		"1001:100000:65536":                           true,
		"bob:200000:65536\n\n# x\nann:100000:65536\n": true,
		"ann:100000:10\nann:100000:65536":             true, // too few for a user
		"bob:100000:65536":                            false,
		"ann:x:65536":                                 false,
		"ann:0:65536":                                 false,
		"annabel:100000:65536":                        false,
		"":                                            false,
	} {
		got := parseSubordinate([]byte(file), "ann", 1001, 1001)
		if ok && !reflect.DeepEqual(got, want) || !ok && got != nil {
			t.Errorf("%q grants %v", file, got)
		}
	}
}

func TestDiagnosis(t *testing.T) {
	with := func(root bool, values ...string) kernel {
		return kernel{root: root, read: func(name string) ([]byte, error) {
			for _, kv := range values {
				if k, v, _ := strings.Cut(kv, "="); strings.HasSuffix(name, k) {
					return []byte(v + "\n"), nil
				}
			}
			return nil, os.ErrNotExist
		}}
	}
	for _, c := range []struct {
		step string
		err  error
		k    kernel
		code string
		fix  string
	}{
		{"make namespaces", syscall.ENOSPC, with(false), "sandbox.native-unavailable", "user.max_user_namespaces"},
		{"make namespaces", syscall.EPERM, with(true, "max_user_namespaces=0"), "sandbox.native-unavailable", "user.max_user_namespaces"},
		{"make namespaces", syscall.EPERM, with(false, "unprivileged_userns_clone=0"), "sandbox.native-unavailable", "kernel.unprivileged_userns_clone=1"},
		{"detach from the host's mounts", syscall.EACCES, with(false, "apparmor_restrict_unprivileged_userns=1"), "sandbox.native-unavailable", "apparmor_restrict_unprivileged_userns=0"},
		{"make namespaces", syscall.EACCES, with(false, "memfd_noexec=2"), "sandbox.native-unavailable", "vm.memfd_noexec"},
		{"mount", syscall.ENODEV, with(false, "osrelease=4.4.0"), "sandbox.native-unavailable", "4.4.0"},
		{"open", syscall.ENOSYS, with(false), "sandbox.native-unavailable", "5.12"},
		{"overlay", syscall.EINVAL, with(true), "sandbox.native-unavailable", "from an image"},
		{"mount", syscall.EPERM, with(true), "sandbox.native-unavailable", "container"},
		{"mount", syscall.EPERM, with(false), "sandbox.native-unavailable", "docker"},
		{"write", syscall.ENOSPC, with(false), "enospc", "disk"},
		{"make namespaces", syscall.EAGAIN, with(false), "sandbox.native-exhausted", "ulimit"},
	} {
		se := &startError{c.step, "", c.err}
		if code, fix := diagnose(se, c.k); code != c.code || !strings.Contains(fix, c.fix) {
			t.Errorf("%s: %v is %s, %q; want %s and %q", c.step, c.err, code, fix, c.code, c.fix)
		}
	}
	err := (&Provider{}).explain(fmt.Errorf("around: %w", &startError{"mount", "/x", syscall.EPERM}))
	if fault.ClassOf(err) != fault.Config || !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "mount /x") {
		t.Errorf("explained: %v", err)
	}
}

// tree writes files below a folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(body), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCgroupPlaces(t *testing.T) {
	t.Run("version 1", func(t *testing.T) {
		dir := tree(t, map[string]string{"memory/own/cgroup.procs": "", "pids/cgroup.procs": ""})
		mounts := fmt.Sprintf("30 24 0:26 / %[1]s/memory rw - cgroup cgroup rw,memory\n31 24 0:27 / %[1]s/pids rw - cgroup cgroup rw,pids\n32 24 0:28 / %[1]s/cpu rw - cgroup cgroup rw,cpu,cpuacct\n", dir)
		info := tree(t, map[string]string{"mountinfo": mounts, "cgroup": "4:memory:/own\n3:pids:/\n2:cpu,cpuacct:/\n0::/\n"})
		c := locate(info+"/mountinfo", info+"/cgroup")
		if want := map[string]string{"memory": dir + "/memory/own", "pids": dir + "/pids"}; c.unified || !reflect.DeepEqual(c.parents, want) {
			t.Errorf("places are %v, want %v", c.parents, want)
		}
	})
	t.Run("version 2", func(t *testing.T) {
		dir := tree(t, map[string]string{
			"user/cgroup.procs": "", "user/cgroup.subtree_control": "memory pids\n", "user/cgroup.controllers": "memory pids\n", "user/app/cgroup.procs": "", "cgroup.procs": "",
		})
		info := tree(t, map[string]string{"mountinfo": "30 24 0:26 / " + dir + " rw - cgroup2 cgroup2 rw\n", "cgroup": "0::/user/app\n"})
		c := locate(info+"/mountinfo", info+"/cgroup")
		if want := map[string]string{"memory": dir + "/user", "pids": dir + "/user"}; !c.unified || !reflect.DeepEqual(c.parents, want) {
			t.Errorf("places are %v, want %v", c.parents, want)
		}
		// Limits are written as version 2 has them.
		c.prefix = "box-1-2-"
		g, err := c.create(sandbox.Resources{Memory: 1 << 20, CPUs: 1.5})
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]string{"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "4096"} {
			if b, err := os.ReadFile(filepath.Join(dir, "user", "box-1-2-1", file)); err != nil || string(b) != want {
				t.Errorf("%s holds %q, %v", file, b, err)
			}
		}
		if got := g.shown(); !slices.Equal(got, []string{""}) {
			t.Errorf("shown are %q", got)
		}
		if limits, cpus := g.rest(sandbox.Resources{CPUs: 1.5, Memory: 1 << 20}); cpus != 2 || len(limits) != 1 {
			t.Errorf("what no cgroup limits: %v, %d processors", limits, cpus)
		}
	})
	t.Run("none", func(t *testing.T) {
		c := locate("/no/such/file", "/no/such/file")
		g, err := c.create(sandbox.Resources{Memory: 1 << 20})
		if err != nil || len(c.parents) > 0 || g.shown() != nil {
			t.Errorf("without cgroups: %v, %v", c.parents, err)
		}
		if limits, _ := g.rest(sandbox.Resources{Memory: 1 << 20}); len(limits) != 3 {
			t.Errorf("the limits of a process are %v", limits)
		}
	})
}

func TestSpec(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		code string
	}{
		{Spec{}, ""},
		{Spec{Mounts: []Mount{{Host: "rel", Path: "/x"}}}, ""},
		{Spec{Mounts: []Mount{{Path: "/x"}}}, "sandbox.native-mount"},
		{Spec{Mounts: []Mount{{Host: "/a", Path: "x"}}}, "sandbox.native-mount"},
		{Spec{Mounts: []Mount{{Host: "/a", Path: "/x/.."}}}, "sandbox.native-mount"},
		{Spec{Mounts: []Mount{{Host: "/a", Path: "/proc/x"}}}, "sandbox.native-mount"},
		{Spec{Mounts: []Mount{{Host: "/a", Path: "/x", Mode: "w"}}}, "sandbox.native-mount"},
		{Spec{Image: "a b"}, "sandbox.image-invalid"},
	} {
		s := c.spec
		_, err := Definition().Template(&s, "/folder")
		if fault.CodeOf(err) != c.code || err != nil && (fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "") {
			t.Errorf("%+v: %v", c.spec, err)
		}
	}
	s, err := specOf(sandbox.Template{Spec: &Spec{Mounts: []Mount{{Host: "data"}}}, Dir: "/folder"})
	if want := (Mount{Host: "/folder/data", Path: "/folder/data", Mode: "ro"}); err != nil || s.Mounts[0] != want {
		t.Errorf("the mount is %+v, %v", s.Mounts, err)
	}
}

func TestPrivateFilesAreFound(t *testing.T) {
	dir := tree(t, map[string]string{"open": "", "secret": "", "closed/inside": "", "sub/secret": "", "sub/open": ""})
	for name, mode := range map[string]os.FileMode{"secret": 0o640, "closed": 0o700, "sub/secret": 0o600} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{dir + "/closed", dir + "/secret", dir + "/sub/secret"}
	if got := private(dir); !slices.Equal(got, want) {
		t.Errorf("private are %q, want %q", got, want)
	}
}
