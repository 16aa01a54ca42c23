package docker

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/fault"
	"assay/images"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

func TestImagesAreListedAndRemoved(t *testing.T) {
	cli, host := testreq.Engine(t)
	p, word := provider(t, host), newToken()
	builtImages(t, cli, word)
	base := testimage.Slice(t)
	dir := folder(t, map[string]string{word + "-used": "FROM " + base + "\nRUN echo 1 " + word + "\n", word + "-free": "FROM " + base + "\nRUN echo 2 " + word + "\n"})
	used, err := prepare(t, p, dir, Spec{Dockerfile: word + "-used", Context: "."}, sandbox.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	free, err := prepare(t, p, dir, Spec{Dockerfile: word + "-free", Context: "."}, sandbox.Harness{Name: "tool", Version: "1", Install: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Create(limited(t), sandbox.CreateRequest{From: used, Template: sandbox.Template{Provider: p, Spec: Spec{Image: "x"}}, Owner: owner(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	mine := func(i sandbox.StoredImage) bool { return strings.Contains(i.Of, word) }
	all, err := p.Images(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(i sandbox.StoredImage) bool { return !mine(i) })
	if len(all) != 3 { // the one with the tool stands on another
		t.Fatalf("images %+v", all)
	}
	for _, i := range all {
		if i.Size == 0 || i.Created.IsZero() || i.Used.Before(i.Created) || i.InUse != (i.ID == used.Ref) || (i.ID == free.Ref) != strings.HasSuffix(i.Of, " with tool@1") {
			t.Errorf("image %+v", i)
		}
	}
	gone, err := p.RemoveImages(limited(t), mine)
	if err != nil || len(gone) != 2 {
		t.Errorf("removed %+v, %v", gone, err)
	}
	if _, err := cli.ImageInspect(t.Context(), free.Ref); err == nil {
		t.Error("a removed image is there")
	}
	if _, err := cli.ImageInspect(t.Context(), base); err != nil {
		t.Errorf("what it was built on is gone: %v", err)
	}
	if err := d.Stop(limited(t)); err != nil {
		t.Fatal(err)
	}
	if gone, err = p.RemoveImages(limited(t), mine); err != nil || len(gone) != 1 || gone[0].ID != used.Ref {
		t.Errorf("after the sandbox: %+v, %v", gone, err)
	}
}

func TestAPrebuiltEnvironment(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	word := newToken()
	name := images.Repo + "test-" + word + ":1-r1"
	builtImages(t, cli, name)
	r := sandbox.ImageRecipe{Name: name, Tools: "tool@1", Dockerfile: "ARG BASE\nFROM $BASE\nRUN echo " + word + " > /made\n", Args: map[string]string{"BASE": testimage.Slice(t)}}
	first, err := p.BuildImage(limited(t), r, &steps{})
	if err != nil || first.Name != name || first.Size == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	px := newProxy(t, host)
	again, err := provider(t, px.host()).BuildImage(limited(t), r, &steps{})
	if err != nil || again.ID != first.ID || slices.Contains(px.requests(), "POST /build") {
		t.Errorf("again: %+v, %v", again, err)
	}
	// Its tools are not installed again.
	made, err := prepare(t, p, "", Spec{Image: name}, sandbox.Harness{Name: "tool", Version: "1", Install: []string{"exit 1"}})
	if err != nil || made.Ref != first.ID || made.Details["origin"] != originFound {
		t.Errorf("%+v, %v", made, err)
	}
	if _, err := prepare(t, p, "", Spec{Image: name}, sandbox.Harness{Name: "tool", Version: "2", Install: []string{"exit 1"}}); fault.StageOf(err) != "harness" {
		t.Errorf("another version: %v", err)
	}
	if gone, err := p.RemoveImages(limited(t), func(i sandbox.StoredImage) bool { return i.Name == name }); err != nil || len(gone) != 1 {
		t.Errorf("removed %+v, %v", gone, err)
	}
}

func TestNamesOfPrebuiltEnvironments(t *testing.T) {
	p := New(Options{})
	for _, r := range images.All() {
		short, err := p.Key(t.Context(), sandbox.Template{Spec: Spec{Image: images.Repo + r.Agent}}, sandbox.Harness{})
		full, err2 := p.Key(t.Context(), sandbox.Template{Spec: Spec{Image: r.Image()}}, sandbox.Harness{})
		if err != nil || err2 != nil || short != full {
			t.Errorf("%s: %s and %s, %v, %v", r.Agent, short, full, err, err2)
		}
	}
	if prebuilt("other/codex") != "other/codex" || prebuilt("assay/codex:1") != "assay/codex:1" {
		t.Error("another image's name was changed")
	}
	_, host := testreq.Engine(t)
	// The engine here may reach no registry, or one that has no such image.
	if _, err := prepare(t, provider(t, host), "", Spec{Image: images.Bub}, sandbox.Harness{}); err != nil && (fault.ClassOf(err) != fault.Config || fault.FixOf(err) != "Build it with `assay image build bub`.") {
		t.Errorf("a prebuilt environment that is not there: %v, fix %q", err, fault.FixOf(err))
	}
}

// The recipes of the agents that npm distributes, on a base that is at hand.
func TestRecipes(t *testing.T) {
	cli, host := testreq.Engine(t)
	if !testreq.Required("agents") {
		testreq.Missing(t, "agents", "the real agent CLIs are installed only with ASSAY_REQUIRE=agents")
	}
	registry := npmRegistry(t)
	p := provider(t, host)
	dir := folder(t, map[string]string{
		"with-ca": "FROM " + testimage.SliceNode(t) + "\nCOPY lib/ /usr/lib/\nCOPY ca.crt /etc/ssl/certs/ca-certificates.crt\nENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt\n",
		"ca.crt":  authorities(t),
	})
	// What a CLI loads by name is not among what ldd names for the base's tools.
	for _, name := range []string{"librt.so.1", "libdl.so.2", "libpthread.so.0", "libm.so.6"} {
		found, _ := filepath.Glob("/lib/*-linux-gnu/" + name)
		for _, lib := range found {
			b, err := os.ReadFile(lib)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, "lib"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "lib", name), b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	builtImages(t, cli, "with-ca")
	ready, err := prepare(t, p, dir, Spec{Dockerfile: "with-ca", Context: "."}, sandbox.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	base := "assay-test/with-ca:" + newToken()[:8]
	if _, err := cli.ImageTag(t.Context(), client.ImageTagOptions{Source: ready.Ref, Target: base}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cli.ImageRemove(context.Background(), base, client.ImageRemoveOptions{}) // the image itself goes with the built ones
	})
	for agent, c := range map[string]struct{ command, other, user string }{"codex": {"codex", "claude", "root"}, "claude-code": {"claude", "codex", "node"}} {
		t.Run(agent, func(t *testing.T) {
			r, _ := images.Lookup(agent)
			builtImages(t, cli, r.Image())
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			made, err := p.BuildImage(ctx, sandbox.ImageRecipe{Name: r.Image(), Dockerfile: r.Dockerfile, Tools: r.Tools(), Args: map[string]string{"BASE": base, "NPM_REGISTRY": registry}}, &steps{})
			if err != nil {
				var l sandbox.Logged
				if asLogged(err, &l) {
					t.Log(l.Log())
				}
				t.Fatal(err)
			}
			from := sandbox.Template{Provider: p, Spec: Spec{Image: images.Repo + agent}}
			ok, err := p.Prepare(ctx, from, sandbox.Harness{Name: agent, Version: r.Version, Install: []string{"exit 1"}}, &steps{})
			if err != nil || ok.Ref != made.ID {
				t.Fatalf("%+v, %v", ok, err)
			}
			d, err := p.Create(ctx, sandbox.CreateRequest{From: ok, Template: from, Owner: owner(), Notes: sandbox.Quiet{}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.Stop(limited(t)) }()
			// The run's user can write at home and install further tools.
			out := run(t, d, "", c.command+" --version && git --version && id -un && touch ~/x && ! command -v "+c.other+
				" && npm install -g --registry="+registry+" --silent is-number@7.0.0 && npm ls -g --depth=0 && env", nil)
			if !strings.Contains(out, r.Version) || !strings.Contains(out, "\n"+c.user+"\n") || !strings.Contains(out, "is-number@7.0.0") || strings.Contains(strings.ToLower(out), "assay") {
				t.Errorf("inside: %s", out)
			}
		})
	}
}
