package e2b_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/e2b"
	"assay/sandbox/e2b/e2btest"
)

// TestDocs runs the steps of docs/e2b.md against the double, and holds the
// page's code to what is run here.
func TestDocs(t *testing.T) {
	s := e2btest.New(t)
	s.AddTemplate(e2b.ClaudeCodeTemplate)
	t.Setenv("E2B_API_KEY", e2btest.Key)
	t.Setenv("E2B_API_URL", s.URL)
	t.Setenv("E2B_SANDBOX_URL", s.URL)
	t.Setenv("ASSAY_GUEST", guesttest.Build(t))
	ctx := t.Context()

	p := e2b.New(e2b.Options{})
	b := e2b.Template("testdata/context").
		FromTemplate(e2b.ClaudeCodeTemplate).
		RunCmdAs("root", "mkdir -p /opt/acme").
		Copy("fixtures", "/opt/acme/fixtures", e2b.CopyOptions{User: "root"}).
		SetEnvs(map[string]string{"ACME_HOME": "/opt/acme"})
	built, err := p.BuildTemplate(ctx, b, "acme-claude:1", e2b.BuildOptions{Tags: []string{"stable"}})
	if err != nil || built.Name != "acme-claude:1" {
		t.Fatalf("%+v, %v", built, err)
	}
	t.Cleanup(func() { _ = p.Close() })

	layer := e2b.From("acme-claude:1").Lifetime(30 * time.Minute)
	tmpl, ok := layer.Template()
	if !ok {
		t.Fatal("the layer bears no template")
	}
	look := func(tmpl sandbox.Template) sandbox.Driver {
		t.Helper()
		driver, err := p.Create(ctx, sandbox.CreateRequest{Template: tmpl, Lifetime: layer.Settings().Lifetime, Owner: sandbox.Owner{Token: ref.New()}, Notes: sandbox.Quiet{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = driver.Stop(context.Background()) })
		var out bytes.Buffer
		x, err := driver.Exec(ctx, sandbox.Cmd{Argv: []string{"/bin/sh", "-c", `cat "$ACME_HOME/fixtures/one.txt"`}, Dir: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}, Stdout: &out})
		if err != nil || x.Code != 0 || out.String() != "one fixture\n" {
			t.Errorf("in the template: %+v, %q, %v", x, out.String(), err)
		}
		return driver
	}
	driver := look(tmpl)
	name, err := driver.(interface {
		Snapshot(ctx context.Context, name string) (string, error)
	}).Snapshot(ctx, "acme-warm")
	if err != nil {
		t.Fatal(err)
	}
	look(template(p, name))
	look(fromYAML(t, "../../docs/e2b.md"))
	sameCode(t, "../../docs/e2b.md", "docs_test.go")
}

// fromYAML is the start point that a page's YAML names.
func fromYAML(t *testing.T, page string) sandbox.Template {
	t.Helper()
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)` + "```yaml\nsandbox:\n  e2b: {template: (\\S+)}\n```").FindSubmatch(body)
	if m == nil {
		t.Fatalf("%s has no YAML of the expected form", page)
	}
	spec := e2b.Definition().Spec().(*e2b.Spec)
	spec.Template = string(m[1])
	tmpl, err := e2b.Definition().Template(spec, "")
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// sameCode holds every line of a page's Go code to stand, in order, in a test.
func sameCode(t *testing.T, page, test string) {
	t.Helper()
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(test)
	if err != nil {
		t.Fatal(err)
	}
	trim := func(s string) string {
		var out []string
		for line := range strings.SplitSeq(s, "\n") {
			out = append(out, strings.TrimSpace(line))
		}
		return strings.Join(out, "\n")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllSubmatch(body, -1)
	if len(blocks) == 0 {
		t.Errorf("%s has no code", page)
	}
	for _, b := range blocks {
		if !strings.Contains(trim(string(code)), trim(string(b[1]))) {
			t.Errorf("%s shows code that no test runs:\n%s", page, b[1])
		}
	}
}
