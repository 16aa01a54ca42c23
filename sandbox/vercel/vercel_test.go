package vercel_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/archive"
	"assay/internal/ledger"
	"assay/internal/snapshot"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/vercelapi"
	"assay/sandbox/vercel/verceltest"
)

func request(p sandbox.Provider) sandbox.CreateRequest {
	return sandbox.CreateRequest{
		Template: template(p, "node24"), Timeout: 10 * time.Minute, Notes: sandbox.Quiet{},
		Owner: sandbox.Owner{Token: ref.New(), Host: "host", PID: 7, Experiment: "a/b", Eval: "c|d"},
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

var plain = map[string]string{"PATH": "/usr/bin:/bin"}

// TestCreateFaults makes creation fail in every way: nothing is left behind, and
// the class says whether another try may help.
func TestCreateFaults(t *testing.T) {
	at := func(f verceltest.Fault) verceltest.Fault {
		f.Method, f.Match = "POST", func(r *http.Request) bool { return r.URL.Path == "/v2/sandboxes" }
		return f
	}
	body := func(code, message string) string {
		return fmt.Sprintf(`{"error":{"code":%q,"message":%q}}`, code, message)
	}
	for _, c := range []struct {
		name  string
		fault verceltest.Fault
		class fault.Class
		code  string
	}{
		{"forbidden", at(verceltest.Fault{Status: 403, Body: body("forbidden", "Not authorized")}), fault.Config, "sandbox.vercel-forbidden"},
		{"payment", at(verceltest.Fault{Status: 402, Body: body("payment", "pay")}), fault.Config, "sandbox.vercel-billing"},
		{"bad request", at(verceltest.Fault{Status: 400, Body: body("bad_request", "no")}), fault.Config, "sandbox.vercel-refused"},
		{"too long", at(verceltest.Fault{Status: 400, Body: body("sandbox_timeout_invalid", "at most 45 minutes")}), fault.Config, "sandbox.lifetime-too-long"},
		{"no snapshot", at(verceltest.Fault{Status: 410, Body: body("snapshot_not_found", "gone")}), fault.Config, "sandbox.template-missing"},
		{"limited for long", at(verceltest.Fault{Status: 429, Header: map[string]string{"Retry-After": "25"}, Body: body("rate", "slow down")}), fault.Transient, "sandbox.vercel-rate-limit"},
		{"limited", at(verceltest.Fault{Status: 429, Body: body("too_many_requests", "Concurrent sandbox limit reached")}), fault.Transient, "sandbox.vercel-quota"},
		{"500 before", at(verceltest.Fault{Status: 500, Body: `{"error":"gone"}`}), fault.Transient, "sandbox.vercel-unavailable"},
		{"500 after it was made", at(verceltest.Fault{After: true, Status: 502, Body: "<html>"}), fault.Transient, "sandbox.vercel-unavailable"},
		{"permission wrapped in 500", at(verceltest.Fault{Status: 500, Body: body("internal", "not authorized for project")}), fault.Config, "sandbox.vercel-forbidden"},
		{"reset after it was made", at(verceltest.Fault{After: true, Drop: true}), fault.Transient, "sandbox.provider-unreachable"},
		{"upload fails", verceltest.Fault{Path: "/fs/write", Status: 503, Body: body("x", "x")}, fault.Transient, "sandbox.vercel-unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := verceltest.New(t)
			p := provider(t, s)
			s.Inject(c.fault)
			_, err := p.Create(t.Context(), request(p))
			if err == nil {
				t.Fatal("Create succeeded")
			}
			if j := sandbox.Judge(t.Context(), p, err); j.Class != c.class || fault.CodeOf(err) != c.code {
				t.Errorf("class %v, code %q: %v", j.Class, fault.CodeOf(err), err)
			}
			if left := s.Sandboxes("", ""); len(left) != 0 {
				t.Errorf("%q are left behind", left)
			}
			if strings.Contains(err.Error(), verceltest.Token) {
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
}

// TestAmbiguousThenWell creates again after an answer was lost, as the engine
// does, also without a look in between: there is one sandbox in the end.
func TestAmbiguousThenWell(t *testing.T) {
	s := verceltest.New(t)
	p := provider(t, s)
	s.Inject(verceltest.Fault{Method: "POST", Path: "/v2/sandboxes", After: true, Drop: true, Times: 1})
	r := request(p)
	if _, err := p.Create(t.Context(), r); fault.ClassOf(err) != fault.Transient {
		t.Fatalf("a lost answer gave %v", err)
	}
	d := create(t, p, r)
	if left := s.Sandboxes("", ""); len(left) != 1 || left[0] != d.ID() {
		t.Errorf("the sandboxes are %q", left)
	}
	// A name that is taken is one that an earlier try had made.
	if _, err := p.Create(t.Context(), r); fault.ClassOf(err) != fault.Transient {
		t.Errorf("a clash of names gave %v", err)
	}
	if left := s.Sandboxes("", ""); len(left) != 0 {
		t.Errorf("the sandboxes are %q", left)
	}
	s.PageSize = 1
	r2, r3 := request(p), request(p)
	create(t, p, r2)
	create(t, p, r3)
	found, err := p.Instances(t.Context(), map[string]string{"assay.host": "host", "assay.eval": "c|d"})
	if err != nil || len(found) != 2 || found[0].Labels["assay.pid"] != "7" || found[0].Labels["assay.experiment"] != "a/b" {
		t.Errorf("found %+v, %v", found, err)
	}
	if n := len(found); n > 0 {
		if err := p.Destroy(t.Context(), found[0].ID); err != nil {
			t.Error(err)
		}
	}
}

// TestCuts lets the service cut every stream after a short while, as it does
// after five minutes, in the middle of a command: nothing is lost or repeated.
func TestCuts(t *testing.T) {
	s := verceltest.New(t)
	s.StreamLimit = 700 * time.Millisecond
	p := provider(t, s)
	d := create(t, p, request(p))
	var out bytes.Buffer
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	x, err := d.Exec(t.Context(), sandbox.Cmd{
		Argv: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.03; done; cat"}, Dir: "/",
		Env: plain, Stdin: bytes.NewReader(in), Stdout: &out,
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
}

// TestFollow reads a detached command's log over cuts.
func TestFollow(t *testing.T) {
	s := verceltest.New(t)
	s.StreamLimit = 400 * time.Millisecond
	api := client(s)
	made, err := api.Create(t.Context(), vercelapi.NewSandbox{Name: "x", Runtime: "node24", Timeout: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := api.Start(t.Context(), made.Session.ID, vercelapi.NewCommand{Command: "sh", Args: []string{"-c", "for i in 1 2 3 4 5 6; do echo o$i; echo e$i >&2; sleep 0.3; done; exit 5"}})
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	code, err := api.Follow(t.Context(), made.Session.ID, cmd.ID, &out, &errs)
	if err != nil || code != 5 || out.String() != "o1\no2\no3\no4\no5\no6\n" || errs.String() != "e1\ne2\ne3\ne4\ne5\ne6\n" {
		t.Errorf("exit %d, %v: %q, %q", code, err, out.String(), errs.String())
	}
}

// TestExpiry ends a session in the middle of a command.
func TestExpiry(t *testing.T) {
	s := verceltest.New(t)
	p := provider(t, s)
	d := create(t, p, request(p))
	_, err := d.Exec(t.Context(), sandbox.Cmd{
		Argv: []string{"/bin/sh", "-c", "echo up; sleep 600"}, Dir: "/", Env: plain,
		Stdout: onWrite(func() { go s.Kill(d.ID()) }),
	})
	if !errors.Is(err, sandbox.ErrUnusable) || fault.CodeOf(err) != "sandbox-removed" {
		t.Errorf("a session that ended gave %v", err)
	}
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

func TestLife(t *testing.T) {
	s := verceltest.New(t)
	s.MaxLife = time.Hour
	p := provider(t, s)
	d := create(t, p, request(p))
	l, ok := sandbox.AsDriver[sandbox.Lifetimer](d)
	if !ok {
		t.Fatal("no Lifetimer")
	}
	if at, err := l.EnsureLifetime(t.Context(), 30*time.Minute); err != nil || time.Until(at) < 29*time.Minute {
		t.Errorf("half an hour gave %v, %v", at, err)
	}
	if _, err := l.EnsureLifetime(t.Context(), 5*time.Hour); fault.CodeOf(err) != "sandbox.lifetime-too-long" || !strings.Contains(err.Error(), "for your plan") {
		t.Errorf("five hours of a plan with one gave %v", err)
	}
	r := request(p)
	r.User = "node"
	if _, err := p.Create(t.Context(), r); fault.CodeOf(err) != "sandbox.user-unsupported" {
		t.Errorf("a user of the whole sandbox gave %v", err)
	}
}

// TestSnapshot builds a snapshot by commands and starts from it.
func TestSnapshot(t *testing.T) {
	s := verceltest.New(t)
	s.StreamLimit = 300 * time.Millisecond
	p := provider(t, s)
	var words bytes.Buffer
	id, err := p.CreateSnapshot(t.Context(), vercel.NewSnapshot{
		Files:    []vercelapi.File{{Path: "/tmp/tool", Mode: 0o755, Body: []byte("#!/bin/sh\necho tool\n")}},
		Commands: []vercel.SnapshotCommand{{Run: "cp /tmp/tool /usr/local/bin/tool", Sudo: true}, {Run: "sleep 0.5; echo installed; id -un"}},
		Owner:    sandbox.Owner{Token: ref.New()}, Output: &words,
	})
	if err != nil || words.String() != "installed\nvercel-sandbox\n" {
		t.Fatalf("%v, %q", err, words.String())
	}
	if left := s.Sandboxes("", ""); len(left) != 0 {
		t.Errorf("the build left %q", left)
	}
	s.StreamLimit = 0
	r := request(p)
	r.Template = sandbox.Template{Provider: p, Spec: vercel.Spec{SnapshotID: id}}
	d := create(t, p, r)
	var out bytes.Buffer
	if x, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"tool"}, Dir: "/", Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Stdout: &out}); err != nil || x.Code != 0 || out.String() != "tool\n" {
		t.Errorf("%+v, %q, %v", x, out.String(), err)
	}
	if _, err := p.CreateSnapshot(t.Context(), vercel.NewSnapshot{Commands: []vercel.SnapshotCommand{{Run: "exit 9"}}, Owner: sandbox.Owner{Token: ref.New()}}); fault.CodeOf(err) != "sandbox.snapshot-command" {
		t.Errorf("a failing command gave %v", err)
	}
	if left := s.Sandboxes("", ""); len(left) != 1 {
		t.Errorf("a failed build left %q", left)
	}
	run := func(d sandbox.Driver, script string) string {
		t.Helper()
		var out bytes.Buffer
		if x, err := d.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, Dir: d.Workdir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Stdout: &out}); err != nil || x.Code != 0 {
			t.Fatalf("%s: %+v, %v", script, x, err)
		}
		return out.String()
	}
	run(d, "echo kept >f")
	kept, err := d.(sandbox.Suspender).Suspend(t.Context())
	if err != nil || kept.ID == "" || kept.Expires.IsZero() {
		t.Fatalf("Suspend gave %+v, %v", kept, err)
	}
	if all, err := p.API().ListSnapshots(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("the snapshots are %+v, %v", all, err)
	}
	if left, err := p.Inventory(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("a suspended sandbox left %+v, %v", left, err)
	}
	again, err := p.Wake(t.Context(), kept.ID, sandbox.WakeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(again, "cat f"); got != "kept\n" {
		t.Errorf("the woken sandbox says %q", got)
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 { // the second time it is gone
		if err := p.Destroy(t.Context(), kept.ID); err != nil {
			t.Error(err)
		}
	}
	if err := p.API().DeleteSnapshot(t.Context(), id); err != nil {
		t.Error(err)
	}
	r = request(p)
	r.Template = sandbox.Template{Provider: p, Spec: vercel.Spec{SnapshotID: id}}
	if _, err := p.Create(t.Context(), r); fault.CodeOf(err) != "sandbox.template-missing" {
		t.Errorf("a deleted snapshot gave %v", err)
	}
}

// TestRequests counts the requests of an attempt beyond the agent's command. A
// busy machine may split one, so that the best of three counts.
func TestRequests(t *testing.T) {
	best := 1000
	for range 3 {
		best = min(best, requests(t))
	}
	if best > 10 {
		t.Errorf("%d requests", best)
	}
}

func requests(t *testing.T) int {
	t.Helper()
	s := verceltest.New(t)
	p := provider(t, s)
	d := create(t, p, request(p))
	sb := sandbox.New(d, sandbox.Options{Provider: p})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(sb.WriteFiles(t.Context(), "", archive.File{Name: "a.txt", Body: []byte("1")}, archive.File{Name: "d/b.txt", Body: []byte("2")}))
	_, err := sb.RunShellOrThrow(t.Context(), "echo set up")
	must(err)
	l := ledger.Open(sb, "/tmp/.x", snapshot.Rules{})
	_, err = l.Mark(t.Context())
	must(err)
	must(l.BeforeSend(t.Context()))
	before := len(s.Requests())
	_, err = sb.RunCommand(t.Context(), []string{"sh", "-c", "echo 3 >a.txt"})
	must(err)
	agent := len(s.Requests()) - before
	must(l.AfterSend(t.Context(), 1, 1))
	diff, err := l.Export(t.Context(), 0, 1)
	must(err)
	if rows := ledger.Union(diff); len(rows) != 1 {
		t.Errorf("the diff has %d rows: %+v", len(rows), rows)
	}
	must(sb.Stop(t.Context()))
	t.Logf("%d requests, %d of them the agent's: %q", len(s.Requests()), agent, s.Requests())
	return len(s.Requests()) - agent
}

// TestCredentials reads the environment as Vercel's SDK does.
func TestCredentials(t *testing.T) {
	jwt := "x." + base64.RawURLEncoding.EncodeToString([]byte(`{"owner_id":"team_a","project_id":"prj_b"}`)) + ".y"
	for _, c := range []struct {
		token, team, project, oidc string
		want                       vercelapi.Credentials
		fails                      bool
	}{
		{"t", "a", "b", "", vercelapi.Credentials{Token: "t", TeamID: "a", ProjectID: "b"}, false},
		{"", "", "", jwt, vercelapi.Credentials{Token: jwt, TeamID: "team_a", ProjectID: "prj_b"}, false},
		{"t", "", "b", "", vercelapi.Credentials{}, true},
		{"", "", "", "", vercelapi.Credentials{}, true},
		{"", "", "", "no.jwt", vercelapi.Credentials{}, true},
	} {
		t.Setenv("VERCEL_TOKEN", c.token)
		t.Setenv("VERCEL_TEAM_ID", c.team)
		t.Setenv("VERCEL_PROJECT_ID", c.project)
		t.Setenv("VERCEL_OIDC_TOKEN", c.oidc)
		got, err := vercelapi.FromEnvironment()
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%+v gave %+v, %v", c, got, err)
		}
		if c.fails && !errors.Is(err, vercelapi.ErrNoCredentials) {
			t.Errorf("%+v gave %v", c, err)
		}
	}
}

// TestFreshToken sends a refused request once more when the token has changed
// meanwhile, and not otherwise.
func TestFreshToken(t *testing.T) {
	s := verceltest.New(t)
	api := client(s)
	asked := 0
	good := api.Credentials
	api.Credentials = func() (vercelapi.Credentials, error) {
		who, err := good()
		if asked++; asked == 1 {
			who.Token = "expired"
		}
		return who, err
	}
	if _, err := api.List(t.Context(), vercelapi.Filter{}); err != nil {
		t.Error(err)
	}
	api.Credentials = func() (vercelapi.Credentials, error) {
		who, err := good()
		who.Token = "wrong"
		return who, err
	}
	before := len(s.Requests())
	if _, err := api.List(t.Context(), vercelapi.Filter{}); vercelapi.StatusOf(err) != http.StatusForbidden {
		t.Errorf("a wrong token gave %v", err)
	}
	if n := len(s.Requests()) - before; n != 1 {
		t.Errorf("a wrong token was sent %d times", n)
	}
}
