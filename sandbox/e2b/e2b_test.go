package e2b_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/archive"
	"assay/internal/ledger"
	"assay/internal/snapshot"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2bapi"
	"assay/sandbox/e2b/e2btest"
)

// patience ends what hangs; no test depends on how long anything takes.
const patience = 2 * time.Minute

func request(p sandbox.Provider, name string) sandbox.CreateRequest {
	return sandbox.CreateRequest{
		Template: template(p, name), Timeout: 10 * time.Minute, Notes: sandbox.Quiet{},
		Owner: sandbox.Owner{Token: ref.New(), Host: "a host & more=1", PID: 7},
	}
}

func create(t *testing.T, p sandbox.Provider, r sandbox.CreateRequest) sandbox.Driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := p.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(context.Background()) })
	return d
}

// TestCreateFaults makes creation fail in every way: nothing is left behind, and
// the class says whether another try may help.
func TestCreateFaults(t *testing.T) {
	v2 := func(f e2btest.Fault) e2btest.Fault {
		f.Method, f.Match = "POST", func(r *http.Request) bool { return r.URL.Path == "/v2/sandboxes" }
		return f
	}
	for _, c := range []struct {
		name  string
		fault e2btest.Fault
		class fault.Class
		code  string
	}{
		{"refused key", v2(e2btest.Fault{Status: 401, Body: `{"code":401,"message":"Invalid API key"}`}), fault.Config, "sandbox.e2b-credentials"},
		{"forbidden", v2(e2btest.Fault{Status: 403, Body: `{"code":403,"message":"no access to the template"}`}), fault.Config, "sandbox.e2b-forbidden"},
		{"permission wrapped in 500", v2(e2btest.Fault{Status: 500, Body: `{"code":500,"message":"rate limit: permission denied for team"}`}), fault.Config, "sandbox.e2b-forbidden"},
		{"payment", v2(e2btest.Fault{Status: 402, Body: `{"code":402,"message":"pay"}`}), fault.Config, "sandbox.e2b-billing"},
		{"bad request", v2(e2btest.Fault{Status: 400, Body: `{"code":400,"message":"validation error"}`}), fault.Config, "sandbox.e2b-refused"},
		{"quota", v2(e2btest.Fault{Status: 429, Body: `{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}`}), fault.Transient, "sandbox.e2b-quota"},
		{"500 before", v2(e2btest.Fault{Status: 500, Body: `{"code":500,"message":"x","error_code":"sandbox_create_failed"}`}), fault.Transient, "sandbox.e2b-unavailable"},
		{"500 after it was made", v2(e2btest.Fault{After: true, Status: 500}), fault.Transient, "sandbox.e2b-unavailable"},
		{"503", v2(e2btest.Fault{Status: 503, Body: `{"code":503,"message":"x","error_code":"sandbox_capacity_unavailable"}`}), fault.Transient, "sandbox.e2b-unavailable"},
		{"gateway page", v2(e2btest.Fault{After: true, Status: 504, Body: "<html>"}), fault.Transient, "sandbox.e2b-unavailable"},
		{"reset before", v2(e2btest.Fault{Drop: true}), fault.Transient, "sandbox.provider-unreachable"},
		{"reset after it was made", v2(e2btest.Fault{After: true, Drop: true}), fault.Transient, "sandbox.provider-unreachable"},
		{"answer cut", v2(e2btest.Fault{CutAfter: 10}), fault.Transient, "sandbox.provider-unreachable"},
		{"upload limited", e2btest.Fault{Path: "/files", Status: 429, Body: `{"code":429,"message":"Rate limit exceeded"}`}, fault.Transient, "sandbox.e2b-rate-limit"},
		{"disk full", e2btest.Fault{Path: "/files", Status: 507, Body: `{"code":507,"message":"no space"}`}, fault.Resource, "enospc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := e2btest.New(t)
			p := provider(t, s)
			s.Inject(c.fault)
			r := request(p, "base")
			_, err := p.Create(t.Context(), r)
			if err == nil {
				t.Fatal("Create succeeded")
			}
			j := sandbox.Judge(t.Context(), p, err)
			if j.Class != c.class || fault.CodeOf(err) != c.code {
				t.Errorf("class %v, code %q: %v", j.Class, fault.CodeOf(err), err)
			}
			if left := s.Sandboxes("", ""); len(left) != 0 {
				t.Errorf("%q are left behind", left)
			}
			if strings.Contains(err.Error(), e2btest.Key) {
				t.Errorf("the error tells the key: %v", err)
			}
		})
	}
}

// TestAmbiguousThenWell creates again after an answer was lost, as the engine
// does: there is one sandbox in the end.
func TestAmbiguousThenWell(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	s.Inject(e2btest.Fault{Method: "POST", Path: "/v2/sandboxes", After: true, Drop: true, Times: 1})
	r := request(p, "base")
	if _, err := p.Create(t.Context(), r); fault.ClassOf(err) != fault.Transient {
		t.Fatalf("a lost answer gave %v", err)
	}
	if err := p.Reconcile(t.Context(), r.Owner); err != nil {
		t.Fatal(err)
	}
	d := create(t, p, r)
	if left := s.Sandboxes("", ""); len(left) != 1 || left[0] != d.ID() {
		t.Errorf("the sandboxes are %q", left)
	}
	if got := s.Metadata(d.ID()); got["assay.host"] != "a host & more=1" {
		t.Errorf("metadata %v", got)
	}
	// The same is found by its labels, over pages.
	s.PageSize = 1
	create(t, p, request(p, "base"))
	found, err := p.Instances(t.Context(), map[string]string{"assay.host": "a host & more=1"})
	if err != nil || len(found) != 2 {
		t.Errorf("found %+v, %v", found, err)
	}
}

// TestRateLimit waits as long as it is told to, and no request is lost.
func TestRateLimit(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	s.Inject(e2btest.Fault{Method: "POST", Path: "/v2/sandboxes", Status: 429, Header: map[string]string{"Retry-After": "1"}, Body: `{"code":429,"message":"Rate limit exceeded"}`, Times: 2})
	before := time.Now()
	d := create(t, p, request(p, "base"))
	if left := s.Sandboxes("", ""); len(left) != 1 || left[0] != d.ID() {
		t.Errorf("the sandboxes are %q", left)
	}
	if since := time.Since(before); since < 2*time.Second {
		t.Errorf("two answers asked for a second each, and it took %s", since)
	}
}

func TestUnreachable(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	p := roomy{e2b.New(e2b.Options{Client: &e2bapi.Client{Key: "k", APIURL: gone.URL}, Guest: "/proc/self/exe"})}
	if _, err := p.Create(t.Context(), request(p, "base")); fault.ClassOf(err) != fault.Transient || fault.CodeOf(err) != "sandbox.provider-unreachable" {
		t.Errorf("a refused connection gave %v", err)
	}
	if n := p.Requests(); n != 1 {
		t.Errorf("%d requests were sent: what reached nobody needs no search", n)
	}
}

// TestLife asks for a life explicitly and never for one that is too short.
func TestLife(t *testing.T) {
	s := e2btest.New(t)
	s.MaxLife = time.Hour
	p := e2b.New(e2b.Options{Client: &e2bapi.Client{Key: e2btest.Key, APIURL: s.URL, SandboxURL: s.URL}, Guest: provider(t, s).guest()})
	t.Cleanup(func() { _ = p.Close() })
	r := request(p, "base")
	d := create(t, p, r)
	if left := time.Until(s.EndAt(d.ID())); left < 10*time.Minute || left > 11*time.Minute {
		t.Errorf("an attempt of ten minutes got a life of %s", left)
	}
	l, ok := sandbox.AsDriver[sandbox.Lifetimer](d)
	if !ok {
		t.Fatal("no Lifetimer")
	}
	if at, err := l.EnsureLifetime(t.Context(), 30*time.Minute); err != nil || time.Until(at) < 29*time.Minute || !at.Equal(s.EndAt(d.ID())) {
		t.Errorf("half an hour gave %v, %v", at, err)
	}
	if _, err := l.EnsureLifetime(t.Context(), 5*time.Hour); fault.CodeOf(err) != "sandbox.lifetime-too-long" {
		t.Errorf("five hours of a plan with one gave %v", err)
	}
	for _, c := range []struct {
		lifetime, timeout time.Duration
		code              string
	}{{5 * time.Minute, 5 * time.Minute, "sandbox.lifetime-too-short"}, {2 * time.Hour, time.Minute, "sandbox.lifetime-too-long"}} {
		r := request(p, "base")
		r.Lifetime, r.Timeout = c.lifetime, c.timeout
		_, err := p.Create(t.Context(), r)
		if fault.CodeOf(err) != c.code || fault.ClassOf(err) != fault.Config {
			t.Errorf("lifetime %s of a limit of %s gave %v", c.lifetime, c.timeout, err)
		}
		if c.code == "sandbox.lifetime-too-long" && !strings.Contains(err.Error(), "Timeout cannot be greater than 1 hours") {
			t.Errorf("the service's own words are missing: %v", err)
		}
	}
}

// TestCuts breaks every stream again and again while a command writes and
// reads: nothing is lost or repeated.
func TestCuts(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault e2btest.Fault
	}{
		{"streams", e2btest.Fault{}},
		{"no stream up", e2btest.Fault{Path: "/process.Process/StreamInput", Status: 404, Body: `{"code":"unimplemented","message":"no"}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := e2btest.New(t)
			p := provider(t, s)
			if c.fault.Path != "" {
				s.Inject(c.fault)
			}
			d := create(t, p, request(p, "base"))
			var out bytes.Buffer
			// Every stream is cut whenever something has come through.
			writes := 0
			sink := &onBytes{&out, func() {
				if writes++; writes%8 == 0 {
					s.Cut("/process.Process/")
				}
			}}
			in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			x, err := d.Exec(t.Context(), sandbox.Cmd{
				Argv: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; cat"}, Dir: "/",
				Env: map[string]string{"PATH": "/usr/bin:/bin"}, Stdin: bytes.NewReader(in), Stdout: sink,
			})
			var want bytes.Buffer
			for i := range 100 {
				fmt.Fprintf(&want, "line %d\n", i)
			}
			want.Write(in)
			if err != nil || x.Code != 0 || !bytes.Equal(out.Bytes(), want.Bytes()) {
				t.Errorf("exit %+v, %v; %d bytes of %d came", x, err, out.Len(), want.Len())
			}
			if n := d.(interface{ Cuts() int }).Cuts(); n < 2 {
				t.Errorf("only %d cuts happened", n)
			}
		})
	}
}

// TestExpiry ends a sandbox's life in the middle of a command.
func TestExpiry(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	d := create(t, p, request(p, "base"))
	started := make(chan struct{})
	go func() {
		<-started
		_ = p.API().SetTimeout(context.Background(), d.ID(), 0) // ends now
	}()
	_, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "echo up; sleep 600"}, Dir: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}, Stdout: onWrite(func() { close(started) })})
	if !errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != "sandbox-removed" {
		t.Errorf("an expired sandbox gave %v", err)
	}
}

type onBytes struct {
	*bytes.Buffer
	then func()
}

func (o *onBytes) Write(p []byte) (int, error) {
	n, err := o.Buffer.Write(p)
	o.then()
	return n, err
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// TestOldServer works with servers that know only the first version of create.
func TestOldServer(t *testing.T) {
	s := e2btest.New(t)
	s.OnlyV1 = true
	p := provider(t, s)
	d := create(t, p, request(p, "base"))
	if x, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}, Dir: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}}); err != nil || x.Code != 0 {
		t.Errorf("%+v, %v", x, err)
	}
	if _, err := p.Create(t.Context(), request(p, "no-such-template")); fault.CodeOf(err) != "sandbox.template-missing" || fault.ClassOf(err) != fault.Config {
		t.Errorf("a missing template gave %v", err)
	}
}

// TestKeep pauses a sandbox with a running service and wakes it.
func TestKeep(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	d := create(t, p, request(p, "base"))
	env := map[string]string{"PATH": "/usr/bin:/bin"}
	if x, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "echo kept >f; while :; do date >>/tmp/beat; sleep 0.05; done & "}, Dir: d.Workdir(), Env: env}); err != nil || x.Code != 0 {
		t.Fatal(x, err)
	}
	name, err := d.(interface {
		Snapshot(context.Context, string) (string, error)
	}).Snapshot(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.(sandbox.Suspender).Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := p.Instances(t.Context(), nil)
	if err != nil || len(found) != 1 || found[0].State != "paused" {
		t.Fatalf("after a pause: %+v, %v", found, err)
	}
	again, err := p.Wake(t.Context(), d.ID(), sandbox.WakeRequest{Lifetime: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	x, err := again.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "cat f; : >/tmp/beat; until [ -s /tmp/beat ]; do sleep 0.02; done"}, Dir: again.Workdir(), Env: env, Stdout: &out})
	if err != nil || x.Code != 0 || out.String() != "kept\n" {
		t.Errorf("after waking: %+v, %q, %v", x, out.String(), err)
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r := request(p, name)
	from := create(t, p, r)
	out.Reset()
	if x, err := from.Exec(t.Context(), sandbox.Cmd{Argv: []string{"cat", "f"}, Dir: from.Workdir(), Env: env, Stdout: &out}); err != nil || x.Code != 0 || out.String() != "kept\n" {
		t.Errorf("from the snapshot: %+v, %q, %v", x, out.String(), err)
	}
}

// attempt does what an attempt does: setup, files, baseline, the agent's
// command, diff, end.
func attempt(t *testing.T, p sandbox.Provider, r sandbox.CreateRequest) {
	t.Helper()
	d := create(t, p, r)
	sb := sandbox.New(d, sandbox.Options{Provider: p})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(sb.WriteFiles(t.Context(), "", archive.File{Name: "a.txt", Body: []byte("1")}, archive.File{Name: "d/b.txt", Body: []byte("2")}))
	if _, err := sb.RunShellOrThrow(t.Context(), "echo set up"); err != nil {
		t.Fatal(err)
	}
	must(sb.MarkShell(t.Context()))
	l := ledger.Open(sb, "/tmp/.x", snapshot.Rules{})
	_, err := l.Mark(t.Context())
	must(err)
	must(l.BeforeSend(t.Context()))
	if _, err := sb.RunShellOrThrow(t.Context(), "echo 3 >a.txt"); err != nil {
		t.Fatal(err)
	}
	must(l.AfterSend(t.Context(), 1, 1))
	diff, err := l.Export(t.Context(), 0, 1)
	must(err)
	if rows := ledger.Union(diff); len(rows) != 1 {
		t.Errorf("the diff has %d rows: %+v", len(rows), rows)
	}
	must(sb.Stop(t.Context()))
}

// TestRequests counts the requests of an attempt.
func TestRequests(t *testing.T) {
	s := e2btest.New(t)
	p := provider(t, s)
	attempt(t, p, request(p, "base"))
	if got := s.Requests(); len(got) > 8 {
		t.Errorf("%d requests: %q", len(got), got)
	} else {
		t.Logf("%d requests: %q", len(got), got)
	}
}

// TestHundred holds a hundred sandboxes at once.
func TestHundred(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred machines take a while")
	}
	s := e2btest.New(t)
	p := provider(t, s)
	const n = 100
	all := make([]sandbox.Driver, n)
	limit := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			d, err := p.Create(t.Context(), request(p, "base"))
			if err == nil {
				_, err = d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "echo $0"}, Dir: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}})
			}
			if err != nil {
				t.Error(err)
			}
			all[i] = d
		})
	}
	wg.Wait()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.Sys-m.HeapReleased > 150<<20 {
		t.Errorf("a hundred sandboxes and their double take %d MB", (m.Sys-m.HeapReleased)>>20)
	}
	t.Logf("%d MB with the double, %d goroutines", (m.Sys-m.HeapReleased)>>20, runtime.NumGoroutine())
	for _, d := range all {
		if d != nil {
			wg.Go(func() { _ = d.Stop(context.Background()) })
		}
	}
	wg.Wait()
}

// TestDockerfileRefusals names what cannot be built.
func TestDockerfileRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"FROM a\nFROM b\n":               "multi-stage",
		"RUN x\n":                        "does not begin with FROM",
		"FROM a\nCOPY --from=b /x /y\n":  "second stage",
		"FROM a\nONBUILD RUN x\n":        "ONBUILD",
		"FROM a\nCOPY /etc/passwd /x\n":  "absolute",
		"FROM a\nCOPY ../secret /x\n":    "leaves the template's folder",
		"FROM a\nCOPY ./x/../../y /x\n":  "leaves the template's folder",
		"FROM a\nCOPY no-such-file /x\n": "no files found",
	} {
		if _, err := e2b.Template(t.TempDir()).FromDockerfile(text).Recipe(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gave %v", text, err)
		}
	}
	r, err := e2b.Template("").FromDockerfile("FROM a\nENV A=\"two words\" B=x\nENV C d e\nARG F\n").Recipe()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Steps[2].Args, r.Steps[3].Args, r.Steps[4].Args); got != "[A two words B x] [C d e] [F ]" {
		t.Errorf("variables are %s", got)
	}
}

func TestCodingAgentTemplates(t *testing.T) {
	for agent, want := range map[string]string{
		e2b.ClaudeCode: "npm install -g @anthropic-ai/claude-code@2.1.207", e2b.Codex: "npm install -g @openai/codex@0.144.1",
		e2b.Bub: "uv tool install bub==0.4.0 --with a==1 --with b==2",
	} {
		var o e2b.AgentOptions
		if agent == e2b.Bub {
			o.BubPythonPackages = []string{"b==2", "a==1"}
		}
		r, err := e2b.CodingAgentTemplate(agent, o).RunCmd("true").Recipe()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Steps); !strings.Contains(got, want) {
			t.Errorf("%s has the steps %s", agent, got)
		}
	}
	if _, err := e2b.CodingAgentTemplate("hal").Recipe(); fault.CodeOf(err) != "template-invalid" {
		t.Errorf("an unknown agent gave %v", err)
	}
}
