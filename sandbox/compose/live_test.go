package compose

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// A project that does not come up says which service is the reason and what that
// service said, and leaves nothing.
func TestServiceThatDoesNotComeUp(t *testing.T) {
	p, _ := provider(t)
	bb := testimage.Busybox(t)
	for _, tc := range []struct {
		name, service, code string
		timeout             bool
		want                []string
	}{
		{"unhealthy", `
    command: [sh, -c, "echo db log line; exec sleep 1000"]
    healthcheck: {test: [CMD-SHELL, "echo not yet; exit 3"], interval: 100ms, retries: 2}`, "sandbox.service-unhealthy", false, []string{"compose.yaml:6: service db", "code 3: not yet", "db log line"}},
		{"exits", `
    command: [sh, -c, "echo no such table; exit 4"]
    healthcheck: {test: [CMD, "true"], interval: 50s, start_period: 100s}`, "sandbox.service-exited", false, []string{"service db", "code 4", "no such table"}},
		{"out of memory", `
    command: [sh, -c, "tail /dev/zero"]
    mem_limit: 8m
    healthcheck: {test: [CMD, "true"], interval: 50s, start_period: 100s}`, "oom", false, []string{"service db", "memory"}},
		{"never ready", `
    command: [sleep, "1000"]
    healthcheck: {test: [CMD, "false"], interval: 100ms, retries: 1000000}`, "sandbox.service-timeout", true, []string{"service db", "still starting", "ended with code 1"}},
		{"cannot start", `
    command: [no-such-program]`, "", false, []string{"service db", "no-such-program"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tmpl := tmplOf(t, p, fmt.Sprintf("services:\n  box:\n    image: %s\n    depends_on: {db: {condition: service_healthy}}\n\n  db:\n    image: %s%s\n", bb, bb, tc.service))
			spec := tmpl.Spec.(Spec)
			if tc.timeout {
				spec.ReadyTimeout = 12 * time.Second
			}
			tmpl.Spec = spec
			r := request(t, p, tmpl)
			d, err := p.Create(limited(t), r)
			if err == nil {
				_ = d.Stop(limited(t))
				t.Fatal("Create succeeded")
			}
			if fault.CodeOf(err) != tc.code || fault.ClassOf(err) == fault.Transient {
				t.Errorf("code %q, class %v, want code %q: %v", fault.CodeOf(err), fault.ClassOf(err), tc.code, err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not contain %q", err, part)
				}
			}
			if g := left(t, p, r.Owner.Token); !g.Empty() {
				t.Errorf("left: %+v", g)
			}
			n := r.Notes.(*notes)
			if tc.code != "" && !slices.ContainsFunc(n.diagnostics, func(d sandbox.Diagnostic) bool { return d.Code == "companion-log" }) {
				t.Errorf("no diagnostic has the service's log: %+v", n.diagnostics)
			}
		})
	}
}

// Conditions of depends_on hold before the sandbox is there; a service that ends
// well is ready.
func TestOneShotServiceAndOrder(t *testing.T) {
	p, _ := provider(t)
	bb := testimage.Busybox(t)
	d := create(t, p, request(t, p, tmplOf(t, p, fmt.Sprintf(`
services:
  box: {image: %[1]s, volumes: ["shared:/shared"], depends_on: {migrate: {condition: service_completed_successfully}}}
  migrate:
    image: %[1]s
    command: [sh, -c, "cat /shared/schema > /shared/migrated"]
    volumes: ["shared:/shared"]
    depends_on: {seed: {condition: service_completed_successfully}}
  seed: {image: %[1]s, command: [sh, -c, "sleep 1; echo v1 > /shared/schema"], volumes: ["shared:/shared"]}
volumes: {shared: {}}
`, bb))))
	if got := run(t, d, "cat /shared/migrated"); got != "v1" {
		t.Errorf("the sandbox sees %q", got)
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	p := at(t, px.host)
	r := request(t, p, tmplOf(t, p, strings.Replace(pair(t), "interval: 200ms", "interval: 100s", 1)))
	ctx, cancel := context.WithCancelCause(limited(t))
	defer cancel(nil)
	stop := errors.New("enough")
	// The companion is up and not healthy, and the sandbox waits for it.
	reached := px.add(`GET /containers/.*/json`, rule{pass: true})
	go func() {
		select {
		case <-reached:
		case <-ctx.Done():
		}
		cancel(stop)
	}()
	if d, err := p.Create(ctx, r); !errors.Is(err, stop) {
		t.Errorf("Create: %v, %v", d, err)
	}
	if g := left(t, p, r.Owner.Token); !g.Empty() {
		t.Errorf("left: %+v", g)
	}
}

// Secrets reach the services and stand in no description of the sandbox's own
// container; logs that are kept mask them.
func TestCredentials(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := at(t, host)
	p.getenv = func(name string) (string, bool) { return "s3cr3t-value", name == "HOST_PW" }
	bb := testimage.Busybox(t)
	tmpl := tmplOf(t, p, fmt.Sprintf(`
services:
  box: {image: %[1]s, environment: {URL: "db://u:${PW}@db"}, secrets: [pw], configs: [{source: conf, target: /etc/app.conf}]}
  db: {image: %[1]s, environment: {DB_PW: "${PW}"}, command: [sh, -c, "echo password $$DB_PW; exec sleep 1000"]}
secrets: {pw: {environment: PW}}
configs: {conf: {content: "plain=${PLAIN}"}}
`, bb))
	tmpl.Spec = Spec{File: "compose.yaml", WorkspaceService: "box", Env: map[string]string{"PLAIN": "yes"}, CredentialEnv: map[string]Credential{"PW": {From: "HOST_PW"}}}
	d := create(t, p, request(t, p, tmpl))
	env, err := d.(sandbox.Environer).Environ(t.Context(), "")
	if err != nil || env["URL"] != "db://u:s3cr3t-value@db" {
		t.Errorf("the environment has URL %q, %v", env["URL"], err)
	}
	if got := run(t, d, "cat /run/secrets/pw /etc/app.conf"); got != "s3cr3t-valueplain=yes" {
		t.Errorf("the files hold %q", got)
	}
	in, err := cli.ContainerInspect(t.Context(), d.ID(), client.ContainerInspectOptions{})
	if err != nil || strings.Contains(string(in.Raw), "s3cr3t-value") {
		t.Errorf("the sandbox's description has the secret, or cannot be read: %v", err)
	}
	cs, err := d.(sandbox.Companioner).Companions(t.Context())
	if err != nil || len(cs) != 1 || !strings.Contains(cs[0].Log, "password <redacted>") {
		t.Errorf("Companions: %+v, %v", cs, err)
	}
}

// Files of the project are copied into each sandbox; what is external stays.
func TestFilesVolumesAndExternals(t *testing.T) {
	p, cli := provider(t)
	bb := testimage.Busybox(t)
	ext := "ext-" + strings.ToLower(ref.New()[:12])
	if _, err := cli.NetworkCreate(t.Context(), ext, client.NetworkCreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := cli.NetworkRemove(context.Background(), ext, client.NetworkRemoveOptions{}); err != nil {
			t.Errorf("the external network: %v", err)
		}
	}()
	if _, err := cli.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: ext}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := cli.VolumeRemove(context.Background(), ext, client.VolumeRemoveOptions{}); err != nil {
			t.Errorf("the external volume: %v", err)
		}
	}()
	yaml := fmt.Sprintf(`
services:
  box:
    image: %[1]s
    volumes: ["./data:/data", "./one.txt:/etc/one.txt:ro", "kept:/kept", "outside:/ext", "/anonymous"]
    networks: [default, out]
    working_dir: /srv/app
    tmpfs: [/fast]
  side: {image: %[1]s, volumes: ["kept:/kept", "./data:/data:ro"], command: [sleep, "1000"]}
volumes: {kept: {}, outside: {external: true, name: %[2]s}}
networks: {out: {external: true, name: %[2]s}}
`, bb, ext)
	dir := write(t, map[string]string{"compose.yaml": yaml, "data/sub/x": "from the project\n", "one.txt": "one\n"})
	tmpl := sandbox.Template{Provider: p, Spec: Spec{File: "compose.yaml", WorkspaceService: "box"}, Dir: dir}
	for i := range 2 {
		d := create(t, p, request(t, p, tmpl))
		if d.Workdir() != "/srv/app" {
			t.Errorf("the workdir is %s", d.Workdir())
		}
		if got := run(t, d, "cat /data/sub/x /etc/one.txt; ls /kept /anonymous; echo changed > /data/sub/x; echo k > /kept/k; echo round >> /ext/log; grep -c . /ext/log"); got != fmt.Sprintf("from the project\none\n/anonymous:\n\n/kept:\n%d", i+1) {
			t.Errorf("round %d: the sandbox saw %q", i, got)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	bad := sandbox.Template{Provider: p, Spec: tmpl.Spec, Dir: write(t, map[string]string{"compose.yaml": strings.ReplaceAll(yaml, ext, ext+"-not"), "data/x": "", "one.txt": ""})}
	r := request(t, p, bad)
	if d, err := p.Create(limited(t), r); fault.CodeOf(err) != "sandbox.compose-external" || !strings.Contains(err.Error(), "compose.yaml:11") {
		t.Errorf("an external network that is not there: %v, %v", d, err)
	}
	if g := left(t, p, r.Owner.Token); !g.Empty() {
		t.Errorf("left: %+v", g)
	}
}

// With network none the services find each other and nothing else.
func TestNetworkNone(t *testing.T) {
	p, cli := provider(t)
	r := request(t, p, tmplOf(t, p, pair(t)))
	r.Network.Mode = "none"
	d := create(t, p, r)
	if got := run(t, d, "wget -q -O- http://web/"); got != "hello from web" {
		t.Errorf("the companion said %q", got)
	}
	// Names of the world are not asked for on the way of the engine either.
	if got := run(t, d, "nslookup -type=a example.org 2>&1 | grep -c '^Address.*[0-9]$'; true"); got != "0" {
		t.Errorf("names of the world are known: %q", got)
	}
	for _, id := range left(t, p, r.Owner.Token).Networks {
		n, err := cli.NetworkInspect(t.Context(), id, client.NetworkInspectOptions{})
		if err != nil || !n.Network.Internal {
			t.Errorf("network %s is not internal: %v", n.Network.Name, err)
		}
	}
	r = request(t, p, tmplOf(t, p, pair(t)))
	r.Network.Mode = "allow"
	if d, err := p.Create(limited(t), r); fault.CodeOf(err) != "sandbox.network-unsupported" {
		t.Errorf("an allow-list: %v, %v", d, err)
	}
}

// A project goes with forced removals only: nobody waits for a grace.
func TestStopAsksForNoGrace(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	p := at(t, px.host)
	d := create(t, p, request(t, p, tmplOf(t, p, strings.Replace(pair(t), "image: ", "stop_grace_period: 1h\n    image: ", 2))))
	px.asked("")
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, got := range px.asked("") {
		if !strings.HasPrefix(got, "DELETE ") {
			t.Errorf("Stop asked %q", got)
		}
	}
	if err := d.Stop(t.Context()); err != nil || len(px.asked("")) != 0 {
		t.Errorf("a second Stop asked again, or failed: %v", err)
	}
}

// An engine that has no addresses left although the count said so makes its
// caller wait, and what it had made goes back first.
func TestEngineOutOfAddresses(t *testing.T) {
	_, host := testreq.Engine(t)
	px := newProxy(t, host)
	p := at(t, px.host)
	px.add(`POST /networks/create`, rule{times: 1, answer: http.StatusInternalServerError, message: "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network"})
	r := request(t, p, tmplOf(t, p, pair(t)))
	d := create(t, p, r)
	if got := run(t, d, "echo ok"); got != "ok" {
		t.Error(got)
	}
	if n := r.Notes.(*notes); !slices.ContainsFunc(n.progress, func(s string) bool { return strings.Contains(s, "waiting for a free network") }) {
		t.Errorf("the wait was not shown: %q", n.progress)
	}
}

// More sandboxes than the engine has addresses for all get their turn.
func TestFortyAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	p, _ := provider(t)
	bb := testimage.Busybox(t)
	tmpl := tmplOf(t, p, fmt.Sprintf("services:\n  box: {image: %s, networks: [a, b]}\nnetworks: {a: {}, b: {}}\n", bb))
	first := request(t, p, tmpl)
	var wg sync.WaitGroup
	var mu sync.Mutex
	waited, done := 0, 0
	for range 40 {
		wg.Go(func() {
			n := &notes{}
			r := sandbox.CreateRequest{From: first.From, Template: tmpl, Notes: n, Owner: sandbox.Owner{PID: first.Owner.PID, Token: ref.New()}}
			d, err := p.Create(t.Context(), r)
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			if _, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "/"}); err != nil {
				t.Errorf("Exec: %v", err)
			}
			if err := d.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("Stop: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			if slices.ContainsFunc(n.progress, func(s string) bool { return strings.Contains(s, "waiting for a free network") }) {
				waited++
			}
		})
	}
	// A single container makes no network and waits for none.
	single := p.engines[docker.Docker]
	st := sandbox.Template{Provider: single, Spec: docker.Spec{Image: bb}}
	from, err := single.Prepare(t.Context(), st, sandbox.Harness{}, steps{})
	if err != nil {
		t.Fatal(err)
	}
	n := &notes{}
	if d, err := single.Create(t.Context(), sandbox.CreateRequest{From: from, Template: st, Notes: n, Owner: sandbox.Owner{PID: first.Owner.PID, Token: ref.New()}}); err != nil {
		t.Errorf("a single container: %v", err)
	} else if err := d.Stop(t.Context()); err != nil {
		t.Errorf("a single container: %v", err)
	}
	if slices.ContainsFunc(n.progress, func(s string) bool { return strings.Contains(s, "network") }) {
		t.Errorf("a single container waited: %q", n.progress)
	}
	wg.Wait()
	if done != 40 {
		t.Errorf("%d of 40 sandboxes came and went", done)
	}
	if waited == 0 {
		t.Error("forty sandboxes with two networks each never waited")
	}
	_, host := testreq.Engine(t)
	if b := budgetOf(host); b.held != 0 {
		t.Errorf("%d networks are still counted", b.held)
	}
}
