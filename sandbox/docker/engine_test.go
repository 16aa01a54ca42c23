package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// notes remembers what a provider said.
type notes struct {
	sandbox.Quiet
	mu          sync.Mutex
	diagnostics []sandbox.Diagnostic
}

func (n *notes) Diagnostic(d sandbox.Diagnostic) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diagnostics = append(n.diagnostics, d)
	return nil
}

// run runs a script in a sandbox and returns what it printed.
func run(tb testing.TB, d sandbox.Driver, user, script string, env map[string]string) string {
	tb.Helper()
	var out, errs bytes.Buffer
	x, err := d.Exec(limited(tb), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, Dir: d.Workdir(), User: user, Env: env, Stdout: &out, Stderr: &errs})
	if err != nil || x.Code != 0 {
		tb.Fatalf("%s: %+v, %v, %q", script, x, err, errs.String())
	}
	return strings.TrimSpace(out.String())
}

func both(t *testing.T, f func(t *testing.T, guest string)) {
	for _, g := range []string{"auto", "off"} {
		t.Run("guest-"+g, func(t *testing.T) { f(t, g) })
	}
}

func TestCheckOfAbsentEngine(t *testing.T) {
	p := New(Options{Host: "unix://" + filepath.Join(t.TempDir(), "none.sock")})
	err := p.Check(t.Context())
	if fault.CodeOf(err) != "sandbox.engine-unreachable" || fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "" || !strings.Contains(err.Error(), "none.sock") {
		t.Errorf("an absent engine: %v (fix %q)", err, fault.FixOf(err))
	}
}

// A socket that accepts and never answers must not hold anybody up: ten seconds
// are the caller's limit here, and the provider's own must come first.
func TestCheckOfStallingEngine(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "stall.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	p := New(Options{Host: "unix://" + l.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = p.Check(ctx)
	if ctx.Err() != nil {
		t.Error("the stalling engine was not noticed within ten seconds")
	}
	if fault.CodeOf(err) != "sandbox.engine-unreachable" || fault.ClassOf(err) != fault.Config || !strings.Contains(err.Error(), "stall.sock") {
		t.Errorf("a stalling engine: %v", err)
	}
}

func TestFourEngineCallsPerSandbox(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	p := provider(t, px.host())
	r := request(t, p, Spec{Image: testimage.SliceUser(t)})
	px.requests()
	before := p.Calls()
	d := create(t, p, r)
	run(t, d, "", "echo hi > file; id; git --version", nil)
	if err := d.Put(t.Context(), d.Workdir(), tarOf(t, "up", "x")); err != nil {
		t.Fatal(err)
	}
	if err := d.Get(t.Context(), d.Workdir(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := px.requests()
	id := d.ID()
	want := []string{"POST /containers/create", "POST /containers/" + id + "/attach", "POST /containers/" + id + "/start", "DELETE /containers/" + id}
	if !slices.Equal(got, want) {
		t.Errorf("the engine was asked %q, want %q", got, want)
	}
	if n := p.Calls() - before; n != int64(len(want)) {
		t.Errorf("Calls counted %d, want %d", n, len(want))
	}
}

func tarOf(tb testing.TB, name, body string) io.Reader {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))})
	if err == nil {
		_, err = io.WriteString(w, body)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	return &b
}

func TestIdentityWorkdirAndEnvironment(t *testing.T) {
	_, host := testreq.Engine(t)
	both(t, func(t *testing.T, guest string) {
		p := provider(t, host)
		who := `echo "$(id -u):$(id -g) $HOME $USER $PWD"; : > "$HOME/.probe"; : > ./probe`
		for _, tc := range []struct{ image, user, workdir, want string }{
			{image: testimage.Slice(t), want: "0:0 /root root " + defaultWorkdir},
			{image: testimage.SliceUser(t), want: "1000:1000 /home/node node " + defaultWorkdir},
			{image: testimage.Slice(t), user: "node", workdir: "/srv/app", want: "1000:1000 /home/node node /srv/app"},
			{image: testimage.SliceUser(t), user: "0", want: "0:0 /root root " + defaultWorkdir},
			{image: testimage.Slice(t), user: "node", workdir: "/opt", want: "1000:1000 /home/node node /opt"},
		} {
			r := request(t, p, Spec{Image: tc.image, Guest: guest})
			r.User, r.Workdir, r.Network.Mode = tc.user, tc.workdir, "none"
			d := create(t, p, r)
			env, err := d.(sandbox.Environer).Environ(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if got := run(t, d, "", who, env); got != tc.want {
				t.Errorf("user %q in %q: %q, want %q", tc.user, tc.workdir, got, tc.want)
			}
			if got := run(t, d, "4242:7", who[:strings.Index(who, ";")], nil); !strings.HasPrefix(got, "4242:7 /") {
				t.Errorf("a numeric user without an entry: %q", got)
			}
			if got := run(t, d, "4242:7", `: > "$HOME/.probe"; echo ok`, nil); got != "ok" {
				t.Errorf("the home of a user without an entry: %q", got)
			}
		}
		r := request(t, p, Spec{Image: testimage.Slice(t), Guest: guest})
		r.User, r.Network.Mode = "nobody-here", "none"
		if d, err := p.Create(t.Context(), r); fault.ClassOf(err) != fault.Config || fault.CodeOf(err) != "no-such-user" {
			t.Errorf("an unknown user: %v, %v", d, err)
		}
	})
}

func TestLimitsLabelsAndSecretsAreAsAsked(t *testing.T) {
	cli, host := testreq.Engine(t)
	both(t, func(t *testing.T, guest string) {
		p := provider(t, host)
		r := request(t, p, Spec{Image: testimage.Slice(t), Guest: guest})
		r.Resources = sandbox.Resources{CPUs: 0.5, Memory: 256 << 20, PIDs: 200}
		r.Network.Mode = "none"
		d := create(t, p, r)
		run(t, d, "", "echo $TOKEN_VALUE", map[string]string{"TOKEN_VALUE": "s3cr3t-value"})
		in, err := cli.ContainerInspect(t.Context(), d.ID(), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(in.Raw, []byte("s3cr3t-value")) {
			t.Error("a command's variable shows in the container's configuration")
		}
		h, c := in.Container.HostConfig, in.Container.Config
		if h.NanoCPUs != 5e8 || h.Memory != 256<<20 || h.MemorySwap != h.Memory || h.PidsLimit == nil || *h.PidsLimit != 200 {
			t.Errorf("limits are %d, %d, %d, %v", h.NanoCPUs, h.Memory, h.MemorySwap, h.PidsLimit)
		}
		if h.Privileged || h.AutoRemove || h.LogConfig.Type != "none" || h.NetworkMode != "none" || c.StopSignal != "SIGKILL" || c.Tty {
			t.Errorf("the container is %+v, %+v", h, c)
		}
		for k, v := range r.Owner.Labels() {
			if c.Labels[k] != v {
				t.Errorf("label %s is %q, want %q", k, c.Labels[k], v)
			}
		}
		if got := run(t, d, "", "ls /sys/class/net", nil); got != "lo" {
			t.Errorf("without a network there is %q", got)
		}
	})
}

func TestDefaultProcessLimit(t *testing.T) {
	p := New(Options{})
	_, h := p.blueprint(&image{}, sandbox.CreateRequest{}, nil)
	if *h.PidsLimit != DefaultPIDs || h.Memory != 0 {
		t.Errorf("a sandbox without limits gets %d processes and %d bytes", *h.PidsLimit, h.Memory)
	}
}

func TestWhatCannotBeEnforcedIsRefused(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Busybox(t)})
	net, disk := r, r
	net.Network = sandbox.Network{Mode: "allow", Allow: []string{"example.com"}}
	if _, err := p.Create(t.Context(), net); fault.CodeOf(err) != "sandbox.network-unsupported" || fault.FixOf(err) == "" {
		t.Errorf("an allow list: %v", err)
	}
	disk.Resources.Disk = 1 << 30
	f, err := p.eng.about(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d, err := p.Create(t.Context(), disk); err == nil {
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	} else if fault.CodeOf(err) != "sandbox.disk-limit-unsupported" && f.Backing != "xfs" {
		t.Errorf("a disk limit on %s over %s: %v", f.Driver, f.Backing, err)
	}
	if ids, err := instances(cli)(t.Context(), r.Owner.Token); err != nil || len(ids) > 0 {
		t.Errorf("a refused request made %q, %v", ids, err)
	}
}

func TestOutOfMemoryIsNamed(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Slice(t)})
	r.Resources.Memory, r.Network.Mode = 64<<20, "none"
	d := create(t, p, r)
	x, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"tail", "/dev/zero"}, Dir: "/"})
	if err != nil || !x.OOM || x.Signal != "SIGKILL" {
		t.Errorf("a command that eats all memory: %+v, %v", x, err)
	}
	if got := run(t, d, "", "echo alive", nil); got != "alive" {
		t.Errorf("the sandbox afterwards: %q", got)
	}
}

func TestSmallImages(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Busybox(t)})
	d := create(t, p, r)
	if got := run(t, d, "", "echo $((6*7))", nil); got != "42" {
		t.Errorf("busybox: %q", got)
	}
	d = create(t, p, request(t, p, Spec{Image: testimage.Scratch(t)}))
	x, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"sh"}, Dir: "/"})
	if err != nil || x.Code != 127 {
		t.Errorf("a missing program in an empty image: %+v, %v", x, err)
	}
	if err := d.Put(t.Context(), d.Workdir(), tarOf(t, "f", "body")); err != nil {
		t.Errorf("Put into an empty image: %v", err)
	}
	var b bytes.Buffer
	if err := d.Get(t.Context(), d.Workdir()+"/f", &b); err != nil {
		t.Errorf("Get from an empty image: %v", err)
	}
	if h, err := tar.NewReader(&b).Next(); err != nil || h.Size != 4 {
		t.Errorf("what came back: %+v, %v", h, err)
	}
}

func TestUploadedExecServer(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	p.bindless.Store(true)
	d := create(t, p, request(t, p, Spec{Image: testimage.SliceUser(t)}))
	if got := run(t, d, "", "id -un", nil); got != "node" {
		t.Errorf("through an uploaded exec server: %q", got)
	}
}

// An engine that does not see this host's file system refuses the mount; the
// exec server is then uploaded, now and later.
func TestEngineThatDoesNotSeeTheExecServer(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	px.add(`POST /containers/create`, faulty{times: 1, before: true, answer: status(400, `invalid mount config for type \"bind\": bind source path does not exist`)})
	p := provider(t, px.host())
	d := create(t, p, request(t, p, Spec{Image: testimage.Busybox(t)}))
	if _, ok := d.(*driver); !ok || !p.bindless.Load() {
		t.Errorf("the driver is a %T, bindless %v", d, p.bindless.Load())
	}
}

func TestExecServerThatCannotRunIsReplacedAndReported(t *testing.T) {
	_, host := testreq.Engine(t)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("\x7fELF not really"), 0o755); err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(dir, "locked")
	if err := os.WriteFile(locked, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, find := range map[string]func(string) (guestBinary, error){
		"not a program":  func(string) (guestBinary, error) { return guestBinary{Path: bad}, nil },
		"not executable": func(string) (guestBinary, error) { return guestBinary{Path: locked}, nil },
		"none":           func(string) (guestBinary, error) { return guestBinary{}, errors.New("no exec server here") },
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{Host: host})
			p.find = find
			n := &notes{}
			r := request(t, p, Spec{Image: testimage.Busybox(t)})
			r.Notes, r.Network.Mode = n, "none"
			d := create(t, p, r)
			if _, ok := d.(*plain); !ok {
				t.Fatalf("the driver is a %T", d)
			}
			if got := run(t, d, "", "echo up", nil); got != "up" {
				t.Errorf("through the engine's exec: %q", got)
			}
			if len(n.diagnostics) != 1 || n.diagnostics[0].Code != "docker-guest-unavailable" || n.diagnostics[0].DedupeKey == "" {
				t.Errorf("it said %+v", n.diagnostics)
			}
		})
	}
}

func TestHealthNamesTheEnd(t *testing.T) {
	cli, host := testreq.Engine(t)
	both(t, func(t *testing.T, guest string) {
		p := provider(t, host)
		for code, end := range map[string]func(id string) error{
			"sandbox-exited": func(id string) error {
				_, err := cli.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "SIGKILL"})
				if err == nil {
					w := cli.ContainerWait(t.Context(), id, client.ContainerWaitOptions{})
					select {
					case <-w.Result:
					case err = <-w.Error:
					}
				}
				return err
			},
			"sandbox-removed": func(id string) error {
				_, err := cli.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true})
				return err
			},
		} {
			r := request(t, p, Spec{Image: testimage.Slice(t), Guest: guest})
			r.Network.Mode = "none"
			d := create(t, p, r)
			if err := d.(sandbox.Reporter).Health(t.Context()); err != nil {
				t.Errorf("a running sandbox: %v", err)
			}
			if err := end(d.ID()); err != nil {
				t.Fatal(err)
			}
			if err := d.(sandbox.Reporter).Health(t.Context()); fault.CodeOf(err) != code {
				t.Errorf("Health: %v, want code %s", err, code)
			}
			_, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"true"}, Dir: "/"})
			if !errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != code {
				t.Errorf("Exec: %v, want ErrUnusable and code %s", err, code)
			}
			if err := d.Put(t.Context(), d.Workdir(), tarOf(t, "f", "x")); !errors.Is(err, sandbox.ErrUnusable) {
				t.Errorf("Put: %v", err)
			}
		}
	})
}

func TestRunningCommandLearnsWhyItsContainerEnded(t *testing.T) {
	cli, host := testreq.Engine(t)
	both(t, func(t *testing.T, guest string) {
		p := provider(t, host)
		r := request(t, p, Spec{Image: testimage.Slice(t), Guest: guest})
		r.Network.Mode = "none"
		d := create(t, p, r)
		ready := &signal{c: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"sh", "-c", "echo up; sleep 300"}, Dir: "/", Stdout: ready})
			done <- err
		}()
		select {
		case <-ready.c:
		case err := <-done:
			t.Fatalf("the command ended early: %v", err)
		}
		if _, err := cli.ContainerKill(t.Context(), d.ID(), client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != "sandbox-exited" {
			t.Errorf("the command's error is %v", err)
		}
	})
}

// signal closes c at the first write.
type signal struct {
	once sync.Once
	c    chan struct{}
}

func (s *signal) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.c) })
	return len(p), nil
}

func TestCreateThatLosesItsReplyLeavesNothing(t *testing.T) {
	cli, host := testreq.Engine(t)
	image := testimage.Busybox(t)
	for _, tc := range []struct {
		name, match string
		fault       faulty
	}{
		{"create reply lost", `POST /containers/create`, faulty{}},
		{"create refused", `POST /containers/create`, faulty{before: true, answer: status(500, "no")}},
		{"attach cut", `POST /containers/.*/attach`, faulty{before: true}},
		{"start reply lost", `POST /containers/.*/start`, faulty{}},
		{"start refused", `POST /containers/.*/start`, faulty{before: true, answer: status(500, "driver failed programming external connectivity")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			px := newProxy(t, host)
			p := provider(t, px.host())
			r := request(t, p, Spec{Image: image})
			px.add(tc.match, tc.fault)
			d, err := p.Create(limited(t), r)
			if err == nil {
				t.Fatalf("Create succeeded: %v", d)
			}
			if d != nil {
				t.Error("a driver came with the error")
			}
			if c := sandbox.Judge(t.Context(), p, err).Class; c != fault.Transient {
				t.Errorf("judged %v: %v", c, err)
			}
			if ids, err := instances(cli)(t.Context(), r.Owner.Token); err != nil || len(ids) > 0 {
				t.Errorf("left behind: %q, %v", ids, err)
			}
		})
	}
}

func TestCreateCancelledWhileTheEngineIsBusyLeavesNothing(t *testing.T) {
	cli, host := testreq.Engine(t)
	image := testimage.Busybox(t)
	for _, match := range []string{`POST /containers/create`, `POST /containers/.*/attach`, `POST /containers/.*/start`} {
		t.Run(match, func(t *testing.T) {
			px := newProxy(t, host)
			p := provider(t, px.host())
			r := request(t, p, Spec{Image: image})
			ru := px.add(match, faulty{hold: make(chan struct{})})
			why := errors.New("we want no more")
			ctx, cancel := context.WithCancelCause(limited(t))
			done := make(chan error, 1)
			go func() {
				_, err := p.Create(ctx, r)
				done <- err
			}()
			select {
			case <-ru.reached:
			case err := <-done:
				t.Fatalf("Create ended early: %v", err)
			}
			cancel(why)
			if err := <-done; err == nil || sandbox.Judge(ctx, p, err).Class != fault.Canceled {
				t.Errorf("a cancelled Create: %v", err)
			}
			if ids, err := instances(cli)(t.Context(), r.Owner.Token); err != nil || len(ids) > 0 {
				t.Errorf("left behind: %q, %v", ids, err)
			}
		})
	}
}

func TestReconcileRemovesByToken(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Busybox(t)})
	c, h := p.blueprint(r.From.Data.(*image), r, []string{"sleep", "60"})
	if _, err := p.eng.bear(limited(t), r.Owner.Token, c, h); err != nil {
		t.Fatal(err)
	}
	if err := p.Reconcile(t.Context(), r.Owner); err != nil {
		t.Error(err)
	}
	if ids, err := instances(cli)(t.Context(), r.Owner.Token); err != nil || len(ids) > 0 {
		t.Errorf("left behind: %q, %v", ids, err)
	}
	if err := p.Reconcile(t.Context(), sandbox.Owner{}); err == nil {
		t.Error("an owner without a token was reconciled")
	}
}

func TestStopWaitsForARemovalUnderWay(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	p := provider(t, px.host())
	d := create(t, p, request(t, p, Spec{Image: testimage.Busybox(t)}))
	px.add(`DELETE /containers/`, faulty{times: 2, before: true, answer: status(409, "removal of container is already in progress")})
	px.requests()
	if err := d.Stop(limited(t)); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if n := len(px.requests()); n != 3 {
		t.Errorf("the engine was asked %d times, want 3", n)
	}
}

func TestMovedTagChangesNothing(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	tag := fmt.Sprintf("assay-test/moving:%d", os.Getpid())
	point := func(to string) {
		t.Helper()
		if _, err := cli.ImageTag(t.Context(), client.ImageTagOptions{Source: to, Target: tag}); err != nil {
			t.Fatal(err)
		}
	}
	point(testimage.Slice(t))
	t.Cleanup(func() {
		_, _ = cli.ImageRemove(context.Background(), tag, client.ImageRemoveOptions{})
	})
	r := request(t, p, Spec{Image: tag})
	point(testimage.Busybox(t))
	d := create(t, p, r)
	if got := run(t, d, "", "command -v bash", nil); !strings.HasSuffix(got, "/bash") {
		t.Errorf("a tag that moved changed the image: %q", got)
	}
	if r.From.Ref == "" || r.From.Details["image"] != tag {
		t.Errorf("prepared as %+v", r.From)
	}
}

func TestNothingInsideNamesTheProgram(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	dir := filepath.Join(t.TempDir(), "assay-cache")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := p.find("amd64")
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(bin.Path)
	if err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(dir, "guest")
	if err := os.WriteFile(named, body, 0o755); err != nil {
		t.Fatal(err)
	}
	p.find = func(string) (guestBinary, error) { return guestBinary{Path: named, Args: bin.Args}, nil }
	d := create(t, p, request(t, p, Spec{Image: testimage.Slice(t)}))
	view := run(t, d, "0", `cat /proc/self/mountinfo; env; hostname; ls -a / /tmp; cat /proc/[0-9]*/cmdline | tr '\0' ' '; tr '\0' '\n' < /proc/1/environ; true`, nil)
	if i := strings.Index(strings.ToLower(view), "assay"); i >= 0 {
		t.Errorf("the view from inside names the program: %q", view[max(0, i-60):min(len(view), i+60)])
	}
}

// registry is a registry that answers every question about an image with one
// status. The engine speaks plain http to loopback addresses.
func registry(t *testing.T, code int, body string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		if r.URL.Path == "/v2/" && code != http.StatusUnauthorized {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestPullFailures(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	words := func(code string) string {
		b, _ := json.Marshal(map[string]any{"errors": []map[string]string{{"code": code, "message": code}}})
		return string(b)
	}
	for _, tc := range []struct {
		name, image, code string
		class             fault.Class
	}{
		{"missing tag", registry(t, 404, words("MANIFEST_UNKNOWN")) + "/x:1", "sandbox.image-missing", fault.Config},
		{"busy registry", registry(t, 503, "") + "/x:1", "sandbox.registry-unreachable", fault.Transient},
		{"rate limit", registry(t, 429, words("TOOMANYREQUESTS")) + "/x:1", "sandbox.registry-rate-limit", fault.Transient},
		{"refused", "127.0.0.1:1/x:1", "sandbox.registry-unreachable", fault.Transient},
		{"no such registry", "registry.invalid/x:1", "sandbox.image-missing", fault.Config},
		{"no such id", "sha256:" + strings.Repeat("0", 64), "sandbox.image-missing", fault.Config},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &steps{}
			_, err := p.Prepare(limited(t), sandbox.Template{Spec: Spec{Image: tc.image}}, sandbox.Harness{}, s)
			if fault.CodeOf(err) != tc.code || sandbox.Judge(t.Context(), p, err).Class != tc.class || fault.StageOf(err) != "image" || fault.FixOf(err) == "" {
				t.Errorf("%v: code %q, class %v, stage %q; want %s, %v", err, fault.CodeOf(err), fault.ClassOf(err), fault.StageOf(err), tc.code, tc.class)
			}
			if !slices.Contains(s.stages, "image") {
				t.Errorf("stages %q", s.stages)
			}
		})
	}
}
