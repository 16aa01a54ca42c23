package hostbox_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"assay/internal/guest/guesttest"
	"assay/internal/hostbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o hostbox.Options) *hostbox.Box {
	t.Helper()
	b, err := hostbox.Start(context.Background(), o)
	guesttest.Require(t, "hostbox", err == nil, "no machine could be made")
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func run(t *testing.T, b *hostbox.Box, uid int, script string) (string, hostbox.Exit) {
	t.Helper()
	var out bytes.Buffer
	p, err := b.Run(hostbox.Command{Argv: []string{"/bin/sh", "-c", script}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, UID: uid, GID: uid, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return out.String(), p.Exit()
}

func TestBox(t *testing.T) {
	o := hostbox.Options{Users: []hostbox.User{{Name: "user", UID: 1000, Home: "/home/user"}}, Hostname: "vm"}
	a, b := start(t, o), start(t, o)
	out, x := run(t, a, 1000, `id -un; echo secret >/home/user/f; ls -d /home/*; ps 2>/dev/null | wc -l; exit 3`)
	if x.Code != 3 || !strings.HasPrefix(out, "user\n/home/user\n") {
		t.Errorf("exit %+v, %q", x, out)
	}
	if out, _ := run(t, b, 1000, `cat /home/user/f`); strings.Contains(out, "secret") {
		t.Error("machines share files")
	}
	if out, x := run(t, a, 0, `kill -9 $$`); x.Signal != 9 || x.Code != -1 {
		t.Errorf("a killed command: %+v %q", x, out)
	}
	if _, x := run(t, a, 0, `no-such-program`); x.Code != 127 {
		t.Errorf("a missing program: %+v", x)
	}
	if out, _ := run(t, a, 0, `echo /proc/[0-9]*`); len(strings.Fields(out)) > 4 {
		t.Errorf("the machine sees the processes of others: %q", out)
	}
	// What was written comes back in a machine made from it.
	dir := t.TempDir()
	if _, x := run(t, a, 0, `echo mine >/usr/local/st-mine; rm /usr/bin/yes`); x.Code != 0 {
		t.Fatal(x)
	}
	if err := a.Save(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	o.From = dir
	c := start(t, o)
	if out, x := run(t, c, 1000, `cat /home/user/f /usr/local/st-mine; ls /usr/bin/yes`); out[:min(len(out), 12)] != "secret\nmine\n" || x.Code == 0 {
		t.Errorf("the saved machine: %+v %q", x, out)
	}
}
