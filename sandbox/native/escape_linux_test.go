package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// attackArg makes this test program try one thing from inside a sandbox.
const attackArg = "--try"

// attackPath is where the test program stands inside.
const attackPath = "/mnt/try"

// attacks are what only raw system calls can try. Each returns nil when it
// succeeded, which is a hole.
var attacks = map[string]func(arg string) error{
	"mount": func(string) error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
	"remount-proc-sys": func(string) error {
		return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "")
	},
	"umount":     func(string) error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) },
	"pivot-root": func(string) error { return unix.PivotRoot("/", "/") },
	"chroot":     func(string) error { return unix.Chroot("/tmp") },
	"fsopen":     func(string) error { _, err := unix.Fsopen("tmpfs", 0); return err },
	"open-tree": func(string) error {
		_, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
		return err
	},
	"mount-setattr": func(string) error {
		return unix.MountSetattr(unix.AT_FDCWD, "/proc/sys", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
	},
	"unshare-user": func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"unshare-net":  func(string) error { return unix.Unshare(unix.CLONE_NEWNET) },
	"clone-user": func(string) error {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	},
	"clone3-user": func(string) error {
		args := [11]uint64{unix.CLONE_NEWUSER, 0, 0, 0, uint64(unix.SIGCHLD)}
		pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 64, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	},
	"setns-of-init": func(string) error {
		fd, err := unix.Open("/proc/1/ns/mnt", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		return unix.Setns(fd, 0)
	},
	"ptrace-init":    func(string) error { return unix.PtraceSeize(1) },
	"ptrace-outside": func(pid string) error { return unix.PtraceSeize(number(pid)) },
	"read-init-memory": func(string) error {
		b := make([]byte, 8)
		local := []unix.Iovec{{Base: &b[0], Len: 8}}
		_, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
		return err
	},
	"write-init-memory": func(string) error { _, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0); return err },
	"init-root":         func(string) error { _, err := os.ReadDir("/proc/1/root"); return err },
	"init-files":        func(string) error { _, err := os.Readlink("/proc/1/fd/0"); return err },
	"init-program":      func(string) error { _, err := os.OpenFile("/proc/1/exe", os.O_RDONLY, 0); return err },
	"kill-outside":      func(pid string) error { return unix.Kill(number(pid), 0) },
	"pidfd-outside":     func(pid string) error { _, err := unix.PidfdOpen(number(pid), 0); return err },
	"device-node":       func(string) error { return openNode(unix.S_IFBLK, 254, 0) },
	"memory-node":       func(string) error { return openNode(unix.S_IFCHR, 1, 1) },
	"vsock":             func(string) error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
	"packet-socket":     func(string) error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); return err },
	"raw-socket":        func(string) error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP); return err },
	"crypto-socket":     func(string) error { _, err := unix.Socket(38, unix.SOCK_SEQPACKET, 0); return err },
	"bpf":               func(string) error { return call(unix.SYS_BPF, 0, 0, 0) },
	"perf":              func(string) error { return call(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0) },
	"userfaultfd":       func(string) error { return call(unix.SYS_USERFAULTFD, 0, 0, 0) },
	"io-uring":          func(string) error { return refusedCall(unix.SYS_IO_URING_SETUP) },
	"keyring":           func(string) error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true); return err },
	"kernel-log":        func(string) error { _, err := unix.Klogctl(3, make([]byte, 64)); return err },
	"reboot":            func(string) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"set-time":          func(string) error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
	"set-host-name":     func(string) error { return unix.Sethostname([]byte("x")) },
	"swap":              func(string) error { return call(unix.SYS_SWAPOFF, 0, 0, 0) },
	"file-handle": func(string) error {
		_, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, make([]byte, 8)), 0)
		return err
	},
	"feed-terminal": func(string) error {
		b := byte('x')
		return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b)))
	},
	"abstract-socket": func(name string) error { _, err := net.Dial("unix", "@"+name); return err },
	"loopback":        func(addr string) error { _, err := net.Dial("tcp", addr); return err },
	"network":         func(addr string) error { _, err := net.Dial("udp", "192.0.2.1:53"); return err },
	"future-call":     func(string) error { return refusedCall(600) },
	"raise-limit": func(string) error {
		return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	},
	"gain-capability": func(string) error {
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		d := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
		return unix.Capset(&h, &d[0])
	},
}

func number(s string) int {
	n := 0
	_, _ = fmt.Sscan(s, &n) // the test passes numbers
	return n
}

func call(nr, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall(nr, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// refusedCall makes a call with nonsense: only the filter's own refusals count as
// one, the kernel's complaint about the nonsense does not.
func refusedCall(nr uintptr) error {
	_, _, errno := unix.Syscall(nr, 0, 0, 0)
	if errno == unix.EPERM || errno == unix.ENOSYS {
		return errno
	}
	return nil
}

func openNode(kind uint32, major, minor uint32) error {
	const node = "/tmp/.node"
	if err := unix.Mknod(node, kind|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return err
	}
	defer func() { _ = os.Remove(node) }()
	f, err := os.Open(node)
	if err == nil {
		_ = f.Close()
	}
	return err
}

// attack runs in the sandbox; exit 3 is a hole.
func attack(args []string) int {
	if args[0] == "fill" {
		return fill(args[1])
	}
	f, ok := attacks[args[0]]
	if !ok {
		fmt.Println("no such attack")
		return 2
	}
	if err := f(args[1]); err != nil {
		fmt.Println(err)
		return 0
	}
	return 3
}

// fill makes files until that is refused, and tells how many there were.
func fill(dir string) int {
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			fmt.Println(i, errors.Is(err, syscall.ENOSPC))
			return 0
		}
		_ = f.Close()
	}
}

// insiders are the identities that attacks are tried as.
func insiders(p *Provider) []string {
	if p.identities().many {
		return []string{"", "root"}
	}
	return []string{""}
}

// withSelf is the host's tools with this test program.
func withSelf(tb testing.TB) Spec {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	// Others must be able to execute it.
	dir, err := os.MkdirTemp("/tmp", "try-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), copyFile(self, filepath.Join(dir, "try"))); err != nil {
		tb.Fatal(err)
	}
	return Spec{Mounts: []Mount{{Host: filepath.Join(dir, "try"), Path: attackPath}}}
}

func TestEscapesBySystemCall(t *testing.T) {
	t.Setenv("HTTP_PROXY", "")
	p := provider(t)
	r := request(t, p, withSelf(t))
	d := create(t, p, r)
	outside := exec.Command("sleep", "1000")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outside.Process.Kill(); _ = outside.Wait() })
	// Its pid is not one of the few inside.
	pid := fmt.Sprint(outside.Process.Pid)
	abstract := "escape-" + pid
	ul, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ul.Close() })
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tl.Close() })
	args := map[string]string{"ptrace-outside": pid, "kill-outside": pid, "pidfd-outside": pid, "abstract-socket": abstract, "loopback": tl.Addr().String()}
	for _, user := range insiders(p) {
		for name := range attacks {
			got := try(t, d, user, attackPath+" "+attackArg+" "+name+" '"+args[name]+"'")
			if got.Code != 0 {
				t.Errorf("%s as %q: %+v", name, user, got)
			}
		}
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process outside: %v", err)
	}
}

// secrets prepares what must not be seen: a file in the home directory and a
// variable of this process, both with a word that is returned.
func secrets(t *testing.T) (word, file string) {
	word = "s3cret-" + fmt.Sprint(os.Getpid())
	t.Setenv("ESCAPE_SECRET", word)
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(home, ".escape-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file = filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte(word), 0o644); err != nil {
		t.Fatal(err)
	}
	return word, file
}

func TestEscapesByShell(t *testing.T) {
	word, file := secrets(t)
	world := filepath.Join(t.TempDir(), "world")
	if err := errors.Join(os.Mkdir(world, 0o777), os.Chmod(world, 0o777)); err != nil {
		t.Fatal(err)
	}
	before := hostState(t)
	p := provider(t)
	d := create(t, p, request(t, p, Spec{}))
	for _, user := range insiders(p) {
		for _, script := range []string{
			"cat " + file,
			"ls " + filepath.Dir(file),
			"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep " + word,
			"for p in /proc/[0-9]*; do cat $p/root" + file + "; done | grep .",
			"for p in /proc/[0-9]*; do cat $p/cwd/../../.." + file + "; done | grep .",
			"ls -A /root/.ssh /home/*/.ssh /root/.aws /root/.config",
			"cat /etc/shadow || cat /etc/gshadow || cat /etc/ssl/private/*",
			"ls /var/run/docker.sock /run/docker.sock /run/dbus /run/systemd",
			"touch " + world + "/made",
			"echo x >/proc/sys/kernel/core_pattern",
			"echo 1 >/proc/sys/vm/drop_caches",
			"echo x >/proc/sys/kernel/hostname",
			"echo h >/proc/sysrq-trigger",
			"echo 10000 >/proc/sys/user/max_user_namespaces",
			"touch /sys/made || echo mem >/sys/power/state || echo 1 >/sys/kernel/uevent_helper",
			"mkdir /sys/fs/cgroup/made || mkdir /sys/fs/cgroup/*/made",
			"echo max >/sys/fs/cgroup/pids/pids.max || echo 1 >/sys/fs/cgroup/cgroup.procs || echo $$ >/sys/fs/cgroup/pids/cgroup.procs",
			"ls /dev | grep -E '^(sd|vd|nvme|mem|kmsg|kvm|fuse|loop)'",
			"cat /proc/kcore | head -c1 | grep .",
			"cat /proc/keys | grep .",
			"mount -t tmpfs none /mnt",
			"mount --bind / /mnt",
			"umount -l /proc/sys",
			"unshare -Ur true",
			"unshare -n true",
			"nsenter -t 1 -m true",
			"chroot / true",
			"kill -9 1; kill -STOP 1; test ! -d /proc/1",
			"cp /bin/sh /tmp/sh && chmod 4755 /tmp/sh && chown root /tmp/sh && setpriv --reuid 1000 --clear-groups /tmp/sh -pc 'id -u' | grep -x 0",
			"grep NoNewPrivs: /proc/self/status | grep 0",
			"su -c true root </dev/null && [ $(id -u) != 0 ]",
			"hostname changed",
		} {
			got := try(t, d, user, script)
			if got.Code == 0 {
				t.Errorf("as %q, %s succeeded: %q", user, script, got.out)
			}
			if strings.Contains(got.out+got.err, word) {
				t.Errorf("as %q, %s shows the secret", user, script)
			}
		}
		// What a program without a bug can see of the host's tree is the tools.
		if top := run(t, d, user, "ls -A / | tr '\\n' ' '"); strings.Contains(top, "host") || strings.Contains(top, "work") {
			t.Errorf("the root holds %q", top)
		}
	}
	run(t, d, "", "echo alive")
	if after := hostState(t); after != before {
		t.Errorf("the host changed: %s, before %s", after, before)
	}
	if left, err := os.ReadDir(world); err != nil || len(left) > 0 {
		t.Errorf("the host's directory holds %v, %v", left, err)
	}
}

// hostState is what attacks would change.
func hostState(t *testing.T) string {
	t.Helper()
	var out []string
	for _, f := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/self/mountinfo", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname"} {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			// On a busy machine others mount too; a sandbox's own sources are "none".
			if !strings.Contains(line, " - ") || strings.Contains(line, " none ") {
				out = append(out, line)
			}
		}
	}
	for _, d := range []string{"/", "/etc", "/usr", "/usr/bin", "/tmp/.node"} {
		if st, err := os.Stat(d); err == nil {
			out = append(out, fmt.Sprint(st.ModTime()))
		}
	}
	return strings.Join(out, "\n")
}

// Writes to the host's tools stay inside.
func TestWritesStayInside(t *testing.T) {
	p := provider(t)
	if !p.identities().many {
		t.Skip("without several identities nothing inside may write to the tools at all")
	}
	before := hostState(t)
	d := create(t, p, request(t, p, Spec{}))
	run(t, d, "root", "echo evil >>/etc/passwd; echo evil >/usr/bin/env; rm -rf /usr/share /etc/ssl; rm /usr/bin/id; mkdir /usr/made; echo x >/etc/made")
	if after := hostState(t); after != before {
		t.Errorf("the host changed: %s, before %s", after, before)
	}
	for _, f := range []string{"/usr/made", "/etc/made"} {
		if _, err := os.Lstat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is on the host: %v", f, err)
		}
	}
	e := create(t, p, request(t, p, Spec{}))
	run(t, e, "", "id && test ! -e /usr/made")
}

func TestMounts(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, sub := range []string{"ro", "rw"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, sub), 0o777), os.Chmod(filepath.Join(dir, sub), 0o777), os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, sub, "f"), []byte("from the host"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	p := provider(t)
	d := create(t, p, request(t, p, Spec{Mounts: []Mount{{Host: filepath.Join(dir, "ro"), Path: "/data/ro"}, {Host: filepath.Join(dir, "rw"), Path: "/data/rw", Mode: "rw"}}}))
	for _, user := range insiders(p) {
		if got := run(t, d, user, "cat /data/ro/f /data/rw/f"); got != "from the hostfrom the host" {
			t.Errorf("the mounts hold %q", got)
		}
		if got := try(t, d, user, "echo x >/data/ro/g || rm -f /data/ro/f && test ! -e /data/ro/f"); got.Code == 0 {
			t.Error("a read-only mount was written to")
		}
	}
	run(t, d, "", "echo back >/data/rw/g")
	if b, err := os.ReadFile(filepath.Join(dir, "rw", "g")); err != nil || string(b) != "back\n" {
		t.Errorf("the host got %q, %v", b, err)
	}
	missing := request(t, p, Spec{})
	missing.Template.Spec = Spec{Mounts: []Mount{{Host: "/no/such/place"}}}
	if _, err := p.Create(limited(t), missing); fault.CodeOf(err) != "sandbox.native-mount" || fault.ClassOf(err) != fault.Config {
		t.Errorf("a missing mount: %v", err)
	}
}

// A directory that a command swaps with a symlink while files go in and out
// leads neither direction astray.
func TestSymlinkRaces(t *testing.T) {
	p := provider(t)
	d := create(t, p, request(t, p, Spec{}))
	run(t, d, "", "mkdir -p /home/user/in/d /home/user/real && echo real >/home/user/in/d/f")
	ctx, cancel := context.WithCancel(limited(t))
	var swaps sync.WaitGroup
	swaps.Go(func() {
		_, _ = d.Exec(ctx, sandbox.Cmd{Dir: "/home/user/in", Argv: []string{"/bin/sh", "-c", "while :; do mv d e; ln -s /tmp d; rm d; mv e d; done"}})
	})
	for range 60 {
		var b bytes.Buffer
		if err := archive.PackFiles(&b, archive.File{Name: "d/put", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		_ = d.Put(ctx, "/home/user/in", &b)    // may lose the race
		_ = d.Get(ctx, "/home/user/in/d", &b)  // same
		_, _ = d.Stat(ctx, "/home/user/in/d/") // same
	}
	cancel()
	swaps.Wait()
	if got := try(t, d, "", "ls /tmp/put"); got.Code == 0 {
		t.Error("a file was put through a symlink")
	}
}

func TestExhaustion(t *testing.T) {
	p := provider(t)
	r := request(t, p, withSelf(t))
	r.Resources = sandbox.Resources{PIDs: 80, Disk: 16 << 20, Memory: 64 << 20}
	d := create(t, p, r)
	t.Run("disk", func(t *testing.T) {
		got := try(t, d, "", "dd if=/dev/zero of=/tmp/big bs=1M count=64")
		if got.Code == 0 || !strings.Contains(got.err, "No space left") {
			t.Errorf("a full disk: %+v", got)
		}
		var b bytes.Buffer
		if err := archive.PackFiles(&b, archive.File{Name: "f", Body: bytes.Repeat([]byte("full"), 1<<18)}); err != nil {
			t.Fatal(err)
		}
		if err := d.Put(limited(t), "/home/user", &b); fault.CodeOf(err) != "enospc" || fault.ClassOf(err) != fault.Resource {
			t.Errorf("Put to a full disk: %v", err)
		}
		run(t, d, "", "rm /tmp/big && echo x >/tmp/small")
	})
	t.Run("inodes", func(t *testing.T) {
		got := run(t, d, "", "mkdir /tmp/many && "+attackPath+" "+attackArg+" fill /tmp/many")
		if n := number(got); !strings.HasSuffix(got, " true") || n > 1<<14 || n < 1000 {
			t.Errorf("files until refused: %q", got)
		}
		run(t, d, "", "rm -r /tmp/many && echo x >/tmp/small")
	})
	t.Run("memory", func(t *testing.T) {
		x := try(t, d, "", "tail /dev/zero")
		if x.Code == 0 {
			t.Errorf("a command that eats all memory: %+v", x)
		}
		if d.cg.dirs["memory"] != "" && !x.OOM {
			t.Errorf("the end of memory is not named: %+v", x)
		}
		run(t, d, "", "echo alive")
	})
	t.Run("processes", func(t *testing.T) {
		x, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done"}, Dir: "/"})
		if err == nil && x.Code == 0 {
			t.Error("300 processes were started under a limit of 80")
		}
		ps, err := d.EndProcesses(limited(t))
		if err != nil || len(ps) > 80 {
			t.Errorf("%d processes, %v", len(ps), err)
		}
		run(t, d, "", "echo alive")
	})
}
