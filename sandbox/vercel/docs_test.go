package vercel_test

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
	"assay/sandbox/vercel"
	"assay/sandbox/vercel/verceltest"
)

// TestDocs runs the steps of docs/vercel.md against the double, and holds the
// page's code to what is run here.
func TestDocs(t *testing.T) {
	const page = "../../docs/vercel.md"
	s := verceltest.New(t)
	ctx := t.Context()
	var p *vercel.Provider
	{
		p := vercel.New(vercel.Options{})
		_ = p.Info() // the page's provider is of the environment; the test's has the double
	}
	p = vercel.New(vercel.Options{Client: client(s), Guest: guesttest.Build(t)})
	t.Cleanup(func() { _ = p.Close() })
	id, err := p.CreateSnapshot(ctx, vercel.NewSnapshot{
		From: vercel.Spec{Runtime: vercel.DefaultRuntime},
		Commands: []vercel.SnapshotCommand{
			{Run: "printf '#!/bin/sh\\necho acme\\n' >/usr/local/bin/acme && chmod 755 /usr/local/bin/acme", Sudo: true},
			{Run: "acme"},
		},
		Owner:  sandbox.Owner{Token: ref.New()},
		Output: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	layer := vercel.Snapshot(id).Lifetime(30 * time.Minute)
	look := func(tmpl sandbox.Template) {
		t.Helper()
		d, err := p.Create(ctx, sandbox.CreateRequest{Template: tmpl, Lifetime: layer.Settings().Lifetime, Owner: sandbox.Owner{Token: ref.New()}, Notes: sandbox.Quiet{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Stop(context.Background()) })
		var out bytes.Buffer
		x, err := d.Exec(ctx, sandbox.Cmd{Argv: []string{"acme"}, Dir: "/", Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Stdout: &out})
		if err != nil || x.Code != 0 || out.String() != "acme\n" {
			t.Errorf("from the snapshot: %+v, %q, %v", x, out.String(), err)
		}
	}
	tmpl, ok := layer.Template()
	if !ok {
		t.Fatal("the layer bears no template")
	}
	look(tmpl)
	if all, err := p.API().ListSnapshots(ctx); err != nil || len(all) != 1 || all[0].ID != id {
		t.Errorf("the snapshots are %+v, %v", all, err)
	}

	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	yaml := regexp.MustCompile("(?s)```yaml\nsandbox:\n  vercel: {snapshotId: (\\S+)}\n```")
	if !yaml.Match(body) {
		t.Fatalf("%s has no YAML of the expected form", page)
	}
	spec := vercel.Definition().Spec().(*vercel.Spec)
	spec.SnapshotID = id
	if tmpl, err = vercel.Definition().Template(spec, ""); err != nil {
		t.Fatal(err)
	}
	look(tmpl)
	sameCode(t, body)
}

// sameCode holds every line of a page's Go code to stand in this file, in order.
func sameCode(t *testing.T, page []byte) {
	t.Helper()
	code, err := os.ReadFile("docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := func(s string) []string {
		var out []string
		for line := range strings.SplitSeq(s, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, line)
			}
		}
		return out
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Error("the page has no code")
	}
	have := lines(string(code))
	for _, b := range blocks {
		at := 0
		for _, want := range lines(string(b[1])) {
			for at < len(have) && have[at] != want {
				at++
			}
			if at == len(have) {
				t.Errorf("the page shows %q, which no test runs", want)
				break
			}
		}
	}
}
