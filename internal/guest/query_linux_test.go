package guest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"assay/fault"
	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

func TestStat(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "f"), []byte("12345"), 0o640),
		os.Symlink("f\xff", filepath.Join(dir, "l")),
		syscall.Mkfifo(filepath.Join(dir, "p"), 0o644),
		os.Chmod(dir, 0o755|fs.ModeSticky),
	); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	tests := []struct {
		name string
		want guest.FileInfo
		code string
	}{
		{"f", guest.FileInfo{Type: "file", Mode: 0o640, Size: 5, UID: uid, GID: gid}, ""},
		{"l", guest.FileInfo{Type: "symlink", Mode: 0o777, Size: 2, UID: uid, GID: gid, Target: "f\xff"}, ""},
		{"p", guest.FileInfo{Type: "other", Mode: 0o644, UID: uid, GID: gid}, ""},
		{"no", guest.FileInfo{}, guest.CodeNotFound},
		{"f/x", guest.FileInfo{}, guest.CodeNotFound},
	}
	for _, tt := range tests {
		got, err := g.Stat(t.Context(), filepath.Join(dir, tt.name))
		if fault.CodeOf(err) != tt.code || got != tt.want || errors.Is(err, fs.ErrNotExist) != (tt.code != "") {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
	if got, err := g.Stat(t.Context(), dir); err != nil || got.Type != "dir" || got.Mode != 0o1755 {
		t.Errorf("dir: %+v, %v", got, err)
	}
}

// inRoot starts a guest whose root is a directory with the given passwd and
// group files, without anything else: no shell, no /dev.
func inRoot(t *testing.T, files map[string]string) *guesttest.Guest {
	t.Helper()
	guesttest.Require(t, "root", os.Getuid() == 0, "chroot")
	root := openDir(t)
	binary, err := os.ReadFile(guesttest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etc", "proc", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "init"), binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return guesttest.StartCommand(t, false, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--root="+root, "/init", "--init")
}

func TestLookup(t *testing.T) {
	g := inRoot(t, map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\n# comment:x:9:9::/:/x\nbroken\nann:x:1000:1000:Ann:/home/ann:\n123:x:5:5::/home/num:/bin/x\n",
		"group":  "root:x:0:\nwheel:x:10:ann,bob\nann:x:1000:ann\nvideo:x:44:ann\n",
	})
	tests := []struct {
		user string
		want guest.User
		code string
	}{
		{"", guest.User{Name: "root", Home: "/root", Shell: "/bin/bash"}, ""},
		{"root", guest.User{Name: "root", Home: "/root", Shell: "/bin/bash"}, ""},
		{"ann", guest.User{Name: "ann", UID: 1000, GID: 1000, Groups: []uint32{10, 44}, Home: "/home/ann", Shell: "/bin/sh"}, ""},
		{"1000", guest.User{Name: "ann", UID: 1000, GID: 1000, Groups: []uint32{10, 44}, Home: "/home/ann", Shell: "/bin/sh"}, ""},
		{"ann:wheel", guest.User{Name: "ann", UID: 1000, GID: 10, Home: "/home/ann", Shell: "/bin/sh"}, ""},
		{"1000:77", guest.User{Name: "ann", UID: 1000, GID: 77, Home: "/home/ann", Shell: "/bin/sh"}, ""},
		{"123", guest.User{Name: "123", UID: 5, GID: 5, Home: "/home/num", Shell: "/bin/x"}, ""},
		{"4242:4243", guest.User{UID: 4242, GID: 4243, Home: "/tmp/.home-4242", Shell: "/bin/sh"}, ""},
		{"nobody", guest.User{}, guest.CodeNoUser},
		{"ann:nogroup", guest.User{}, guest.CodeNoUser},
		{"-1", guest.User{}, guest.CodeNoUser},
		{"4294967296", guest.User{}, guest.CodeNoUser},
	}
	for _, tt := range tests {
		got, err := g.Lookup(t.Context(), tt.user)
		if fault.CodeOf(err) != tt.code || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%q: %+v, %v", tt.user, got, err)
		}
	}
	st, err := g.Stat(t.Context(), "/tmp/.home-4242")
	if err != nil || st.UID != 4242 || st.GID != 4243 || st.Mode != 0o700 {
		t.Errorf("home: %+v, %v", st, err)
	}
}

func TestEmptyRoot(t *testing.T) {
	g := inRoot(t, nil)
	if u, err := g.Lookup(t.Context(), ""); err != nil || u.UID != 0 || u.Home != "/" {
		t.Errorf("got %+v, %v", u, err)
	}
	// No shell, no /dev/null: the guest's own file is the one program there is.
	var errs bytes.Buffer
	x, err := g.Exec(t.Context(), guest.ExecRequest{Argv: []string{"/init"}, Stderr: &errs})
	if err != nil || x.Code != 2 || !strings.HasPrefix(errs.String(), "usage") {
		t.Errorf("got %+v, %v, %q", x, err, errs.String())
	}
	if x, err := g.Exec(t.Context(), guest.ExecRequest{Argv: []string{"sh"}}); err != nil || x.Code != 127 {
		t.Errorf("got %+v, %v", x, err)
	}
}

func TestLookupHomeIsNotALink(t *testing.T) {
	g := inRoot(t, nil)
	dir := archive(t, entry{name: ".home-7", kind: '2', link: "/etc"})
	if _, err := g.Put(t.Context(), "/tmp", bytes.NewReader(dir), guest.PutOptions{UID: 7, GID: 7}); err != nil {
		t.Fatal(err)
	}
	if u, err := g.Lookup(t.Context(), "7"); err != nil || u.Home != "/tmp/.home-7-1" {
		t.Errorf("got %+v, %v", u, err)
	}
	if st, err := g.Stat(t.Context(), "/etc"); err != nil || st.UID != 0 {
		t.Errorf("/etc: %+v, %v", st, err)
	}
}

func TestProcesses(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		if ps, err := g.Processes(t.Context()); err != nil || len(ps) > 0 {
			t.Fatalf("got %+v, %v", ps, err)
		}
		kept, err := strconv.Atoi(strings.TrimSpace(sh(t, g, "sleep 1111 >/dev/null 2>&1 & echo $!").out))
		if err != nil {
			t.Fatal(err)
		}
		sh(t, g, "setsid sleep 2222 >/dev/null 2>&1 & (sleep 3333 >/dev/null 2>&1 &); exec 2>&1; while ! grep -q 3333 /proc/[0-9]*/cmdline; do :; done; while ! grep -q 2222 /proc/[0-9]*/cmdline; do :; done; true")
		find := func(what string) []guest.Process {
			ps, err := g.Processes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(ps, func(p guest.Process) bool { return !strings.Contains(p.Command, what) })
		}
		if ps := find("sleep"); len(ps) != 3 {
			t.Fatalf("got %+v", ps)
		}
		for range 100 { // until the supervisor has left and the guest has adopted it
			if ps := find("sleep 1111"); len(ps) == 1 && ps[0].PPID == g.Info().PID {
				break
			}
		}
		if ps := find("sleep 1111"); len(ps) != 1 || ps[0].PID != kept || ps[0].UID != uint32(os.Getuid()) || ps[0].Start == 0 || ps[0].PPID != g.Info().PID {
			t.Errorf("got %+v", ps)
		}
		if n, err := g.EndProcesses(t.Context(), kept); err != nil || n < 2 {
			t.Errorf("ended %d, %v", n, err)
		}
		if ps := find(""); len(ps) != 1 || ps[0].PID != kept {
			t.Errorf("left %+v", ps)
		}
		// A sweep ends running commands like anything else.
		started := make(chan struct{})
		done := make(chan guest.Exit, 1)
		go func() {
			r, err := trySh(context.Background(), g, "echo x; exec sleep 1000", func(r *guest.ExecRequest) { r.Stdout = &after{want: "x", f: func() { close(started) }} })
			if err != nil {
				t.Error(err)
			}
			done <- r.Exit
		}()
		<-started
		if _, err := g.EndProcesses(t.Context()); err != nil {
			t.Error(err)
		}
		if x := <-done; x.Signal != "SIGKILL" || x.Code != 137 {
			t.Errorf("got %+v", x)
		}
	})
}

func TestPorts(t *testing.T) {
	g := guesttest.Start(t, false)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := guest.Port{Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, UID: uint32(os.Getuid())}
	if got, err := g.Ports(t.Context()); err != nil || !slices.Contains(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDigest(t *testing.T) {
	g := guesttest.Start(t, false)
	dir := openDir(t)
	name := filepath.Join(dir, "f")
	if err := errors.Join(os.WriteFile(name, []byte("body"), 0o644), os.Symlink("f", filepath.Join(dir, "l")), syscall.Mkfifo(filepath.Join(dir, "p"), 0o644)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("body"))
	want := hex.EncodeToString(sum[:])
	got, err := g.Digest(t.Context(), name, filepath.Join(dir, "l"), filepath.Join(dir, "no"), filepath.Join(dir, "p"))
	if err != nil || len(got) != 4 {
		t.Fatal(got, err)
	}
	if got[0].SHA256 != want || got[1].SHA256 != want || !errors.Is(got[2].Err, fs.ErrNotExist) || got[3].Err == nil || got[0].Err != nil {
		t.Errorf("got %+v", got)
	}
}

func TestLedger(t *testing.T) {
	g := guesttest.Start(t, false)
	var b bytes.Buffer
	// A request that the engine does not know is answered, not dropped: the
	// bytes went there and back.
	if err := g.Ledger(t.Context(), []byte(`{"op":"no-such-op"}`), &b); err != nil || !json.Valid(bytes.TrimSpace(b.Bytes())) || b.Len() == 0 {
		t.Errorf("got %q, %v", b.String(), err)
	}
	cmd := exec.Command(guesttest.Build(t), "ledger")
	cmd.Stdin = strings.NewReader(`{"op":"no-such-op"}`)
	if out, err := cmd.Output(); err != nil || !bytes.Equal(out, b.Bytes()) {
		t.Errorf("got %q, %v, want %q", out, err, b.String())
	}
}

func TestShutdownAndEnd(t *testing.T) {
	for _, how := range []string{"shutdown", "close", "kill the runner's end"} {
		both(t, func(t *testing.T, g *guesttest.Guest) {
			mark := fmt.Sprint("MARK=", t.Name(), how, os.Getpid())
			sh(t, g, "setsid sleep 1000 & until [ \"$(tr '\\0' ' ' < /proc/$!/cmdline)\" = 'sleep 1000 ' ]; do :; done; sleep 1000 & true", env(mark))
			if len(marked(t, mark)) == 0 {
				t.Fatal("nothing runs")
			}
			if how == "shutdown" {
				if err := g.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			}
			g.Close()
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			if left := marked(t, mark); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if _, err := trySh(t.Context(), g, "true"); !errors.Is(err, guest.ErrGone) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "process namespaces need root")
	g := guesttest.Start(t, true)
	mark := fmt.Sprint("MARK=", t.Name(), os.Getpid())
	sh(t, g, "setsid sleep 1000 & until [ \"$(tr '\\0' ' ' < /proc/$!/cmdline)\" = 'sleep 1000 ' ]; do :; done", env(mark))
	if err := g.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.Close()
	// The guest has read the end of its input when its own end is closed, and
	// lives on; killing unshare ends the namespace.
	if len(marked(t, mark)) != 1 {
		t.Error("nothing was kept")
	}
	if err := syscall.Kill(g.PID, 0); err != nil {
		t.Errorf("the guest has ended: %v", err)
	}
	if err := syscall.Kill(g.PID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestSignalsDoNotEndTheGuest(t *testing.T) {
	both(t, func(t *testing.T, g *guesttest.Guest) {
		sh(t, g, fmt.Sprintf("for s in HUP INT QUIT TERM USR1 USR2 PIPE ALRM SEGV ABRT; do kill -$s %d $PPID; done; true", g.Info().PID))
		if err := g.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestGuestProtectsItself(t *testing.T) {
	guesttest.Require(t, "root", os.Getuid() == 0, "switching users")
	g := guesttest.StartCommand(t, false, "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", guesttest.Build(t), "--init")
	// The same user may not look into the guest or its supervisors.
	r := sh(t, g, fmt.Sprintf("for p in %d $PPID; do cat /proc/$p/environ >/dev/null 2>&1 && echo readable; ls /proc/$p/fd >/dev/null 2>&1 && echo open; done; true", g.Info().PID), func(r *guest.ExecRequest) { r.UID, r.GID = 12345, 12345 })
	if r.out != "" {
		t.Errorf("out = %q", r.out)
	}
}
