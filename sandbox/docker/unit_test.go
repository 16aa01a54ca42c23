package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/guestbox"
	"assay/sandbox"
)

func frame(kind byte, body string) string {
	h := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(h[4:], uint32(len(body)))
	return string(h) + body
}

type noConn struct{ net.Conn }

func (noConn) Close() error { return nil }

func TestStreamTakesTheOutputsApart(t *testing.T) {
	raw := frame(1, "one ") + frame(2, "err") + frame(1, "") + frame(1, "two")
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(raw), "byte by byte": iotest.OneByteReader(strings.NewReader(raw)), "data with EOF": iotest.DataErrReader(strings.NewReader(raw)),
	} {
		s := newStream(&client.HijackedResponse{Conn: noConn{}, Reader: bufio.NewReader(r)})
		got, err := io.ReadAll(s)
		if err != nil || string(got) != "one two" || s.words() != "err" {
			t.Errorf("%s: %q, %q, %v", name, got, s.words(), err)
		}
	}
	for name, raw := range map[string]string{"cut header": "\x01\x00\x00", "cut body": frame(1, "abc")[:10], "unknown stream": frame(9, "x"), "engine error": frame(3, "it broke")} {
		s := newStream(&client.HijackedResponse{Conn: noConn{}, Reader: bufio.NewReader(strings.NewReader(raw))})
		if _, err := io.ReadAll(s); err == nil && name != "cut body" {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestGateSaysThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		waits := 0
		if err := g.enter(t.Context(), func() { waits++ }); err != nil || waits != 0 {
			t.Fatalf("a free gate: %v, %d waits", err, waits)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 2)
		go func() { done <- g.enter(ctx, func() { waits++ }) }()
		synctest.Wait()
		if waits != 1 {
			t.Errorf("a wait was told %d times", waits)
		}
		why := errors.New("why")
		cancel(why)
		if err := <-done; !errors.Is(err, why) {
			t.Errorf("a cancelled wait: %v", err)
		}
		go func() { done <- g.enter(t.Context(), nil) }()
		synctest.Wait()
		g.leave()
		if err := <-done; err != nil {
			t.Errorf("the next in line: %v", err)
		}
		g.leave()
	})
}

func TestGateIsPerEngine(t *testing.T) {
	a, again, other := gateOf("unix:///a"), gateOf("unix:///a"), gateOf("unix:///b")
	if a != again || a == other {
		t.Error("providers of one engine must share its gate, and no others")
	}
}

func TestAccounts(t *testing.T) {
	a := parseAccounts([]byte("root:x:0:0:root:/root:/bin/sh\n# c\nbad\nnode:x:1000:1001::/home/node:/bin/bash\n"), []byte("root:x:0:\nstaff:x:50:node\n"))
	for _, tc := range []struct {
		user, name, home string
		uid, gid         uint32
		code             string
	}{
		{user: "", name: "root", home: "/root"},
		{user: "node", name: "node", home: "/home/node", uid: 1000, gid: 1001},
		{user: "1000", name: "node", home: "/home/node", uid: 1000, gid: 1001},
		{user: "node:staff", name: "node", home: "/home/node", uid: 1000, gid: 50},
		{user: "4242:7", uid: 4242, gid: 7},
		{user: "nobody-here", code: "no-such-user"},
		{user: "node:nogroup-here", code: "no-such-user"},
	} {
		u, err := a.find(tc.user)
		if fault.CodeOf(err) != tc.code {
			t.Errorf("%q: %v, want code %q", tc.user, err, tc.code)
			continue
		}
		if err == nil && (u.name != tc.name || u.home != tc.home || u.uid != tc.uid || u.gid != tc.gid) {
			t.Errorf("%q is %+v", tc.user, u)
		}
	}
	if u, err := parseAccounts(nil, nil).find(""); err != nil || u.home != "/root" {
		t.Errorf("root without a passwd file is %+v, %v", u, err)
	}
}

func TestEnviron(t *testing.T) {
	img := &image{Env: map[string]string{"PATH": "/opt/bin", "A": "1"}}
	env := environ(img, account{name: "node", uid: 1000, home: "/home/node"})
	for k, want := range map[string]string{"PATH": "/opt/bin:/home/node/.npm-global/bin", "A": "1", "HOME": "/home/node", "USER": "node", "LOGNAME": "node", "NPM_CONFIG_PREFIX": "/home/node/.npm-global"} {
		if env[k] != want {
			t.Errorf("%s is %q, want %q", k, env[k], want)
		}
	}
	if env := environ(&image{}, account{uid: 0, home: "/root"}); !strings.HasPrefix(env["PATH"], guestbox.SystemPath) || env["USER"] != "0" || env["NPM_CONFIG_PREFIX"] != "" {
		t.Errorf("the environment of a bare image is %v", env)
	}
	if img.Env["HOME"] != "" {
		t.Error("the image's own environment was changed")
	}
}

func TestSweepOutput(t *testing.T) {
	n, strangers, err := parseSweep("killed 3\nstranger 7\nstranger 9\n")
	if n != 3 || strings.Join(strangers, ",") != "7,9" || err != nil {
		t.Errorf("%d, %q, %v", n, strangers, err)
	}
	for _, bad := range []string{"", "nothing\n", "killed x\n"} {
		if _, _, err := parseSweep(bad); err == nil {
			t.Errorf("%q was believed", bad)
		}
	}
}

func TestSpecCheck(t *testing.T) {
	for _, tc := range []struct {
		spec Spec
		code string
	}{
		{Spec{Image: "node:24-slim"}, ""},
		{Spec{Image: "sha256:" + strings.Repeat("a", 64)}, ""},
		{Spec{Image: "a@sha256:" + strings.Repeat("a", 64), Guest: "off"}, ""},
		{Spec{}, "sandbox.docker-image-missing"},
		{Spec{Guest: "off"}, "sandbox.docker-image-missing"},
		{Spec{Image: "Has Blank"}, "sandbox.docker-image-invalid"},
		{Spec{Image: "x", Guest: "maybe"}, "sandbox.docker-guest"},
	} {
		err := tc.spec.check(Docker)
		if fault.CodeOf(err) != tc.code || err != nil && (fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "") {
			t.Errorf("%+v: %v, want code %q", tc.spec, err, tc.code)
		}
	}
}

func TestKeyIsOneForOneImage(t *testing.T) {
	p := New(Options{})
	key := func(spec any) sandbox.Key {
		k, err := p.Key(t.Context(), sandbox.Template{Spec: spec}, sandbox.Harness{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if a, b := key(Spec{Image: "node"}), key(&Spec{Image: "docker.io/library/node:latest"}); a != b {
		t.Errorf("%q and %q are one image", a, b)
	}
	if a, b := key(Spec{Image: "node:24"}), key(Spec{Image: "node:22"}); a == b {
		t.Errorf("two images share %q", a)
	}
	if _, err := p.Key(t.Context(), sandbox.Template{Spec: 7}, sandbox.Harness{}); err == nil {
		t.Error("a foreign spec has a key")
	}
}

func TestDefinition(t *testing.T) {
	for _, d := range []sandbox.Definition{Definition(), PodmanDefinition()} {
		spec := d.Spec().(*Spec)
		if _, err := d.Template(spec, "/x"); fault.CodeOf(err) != "sandbox.docker-image-missing" {
			t.Errorf("%s without an image: %v", d.Kind, err)
		}
		spec.Image = "a:1"
		tm, err := d.Template(spec, "/x")
		if err != nil || tm.Provider.Info().Kind != d.Kind || tm.Dir != "/x" {
			t.Errorf("%s: %+v, %v", d.Kind, tm, err)
		}
		again, err := d.Template(spec, "/y")
		if err != nil || again.Provider != tm.Provider {
			t.Errorf("%s: two templates do not share their provider", d.Kind)
		}
	}
	if tm, ok := Image("a:1").Template(); !ok || tm.Provider != shared(Docker) {
		t.Error("Image and YAML do not share a provider")
	}
}

func TestRenameEntry(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind byte
		dir  bool
		want string
		keep bool
	}{
		{"base/", tar.TypeDir, true, "./", true},
		{"base/a/b", tar.TypeReg, true, "./a/b", true},
		{"base", tar.TypeReg, false, "base", true},
		{"base/pipe", tar.TypeFifo, true, "", false},
	} {
		h := &tar.Header{Name: tc.name, Typeflag: tc.kind, Mode: 0o104755}
		if ok := renameEntry(h, tc.dir); ok != tc.keep || ok && (h.Name != tc.want || h.Mode != 0o755) {
			t.Errorf("%s became %q %o, kept %v", tc.name, h.Name, h.Mode, ok)
		}
	}
}

func TestRepackGivesEverythingToTheUser(t *testing.T) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 7},
		{Name: "d/x", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 2, Uid: 7},
		{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/x"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write([]byte("hi"))
		}
	}
	_ = w.Close()
	whole := in.Bytes()
	tw := tar.NewWriter(&out)
	dirs, err := repack(tw, bytes.NewReader(whole), "new/dir", plainUser{account: account{uid: 5}, gid: 6})
	if err != nil || strings.Join(dirs, ",") != "d" {
		t.Fatalf("repack: %q, %v", dirs, err)
	}
	_ = tw.Close()
	var got []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		if h.Uid != 5 || h.Gid != 6 || h.Mode&^0o777 != 0 {
			t.Errorf("%s belongs to %d:%d, mode %o", h.Name, h.Uid, h.Gid, h.Mode)
		}
		got = append(got, h.Name+h.Linkname)
	}
	if want := "new/dir/d/ new/dir/d/x new/dir/hnew/dir/d/x"; strings.Join(got, " ") != want {
		t.Errorf("entries %q, want %q", got, want)
	}
	if _, err := repack(tar.NewWriter(io.Discard), bytes.NewReader(whole[:len(whole)-1024]), "", plainUser{}); err == nil {
		t.Error("an archive without its end was accepted")
	}
}
