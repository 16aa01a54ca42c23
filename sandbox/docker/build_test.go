package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// folder makes a folder of files.
func folder(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// builtImages removes, after the test, the images whose label says that they are
// made of something with the given word.
func builtImages(tb testing.TB, cli *client.Client, word string) {
	tb.Helper()
	tb.Cleanup(func() {
		list, err := cli.ImageList(context.Background(), client.ImageListOptions{Filters: client.Filters{}.Add("label", imageLabel)})
		if err != nil {
			tb.Error(err)
		}
		for _, i := range list.Items {
			if strings.Contains(i.Labels[madeOfLabel], word) {
				if _, err := cli.ImageRemove(context.Background(), i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
					tb.Logf("remove %s: %v", i.ID, err)
				}
			}
		}
	})
}

// prepare prepares and returns what came of it.
func prepare(tb testing.TB, p *Provider, dir string, spec Spec, h sandbox.Harness) (sandbox.Prepared, error) {
	tb.Helper()
	return p.Prepare(limited(tb), sandbox.Template{Provider: p, Spec: spec, Dir: dir}, h, &steps{})
}

func TestDockerfileIsBuiltOnceAndUsed(t *testing.T) {
	cli, host := testreq.Engine(t)
	base := testimage.Slice(t)
	word := newToken()
	builtImages(t, cli, word)
	dir := folder(t, map[string]string{
		word + ".Dockerfile": "ARG BASE\nFROM $BASE AS first\nARG GREETING\nRUN echo $GREETING > /greeting\nFROM first\nCOPY hello.txt /hello.txt\nENV SEEN=yes\nUSER node\n",
		"hello.txt":          "hello " + word + "\n", "big.log": "not sent", ".dockerignore": "*.log\n",
	})
	spec := Spec{Dockerfile: word + ".Dockerfile", Args: map[string]string{"BASE": base, "GREETING": "hi"}}
	p := provider(t, host)
	made, err := prepare(t, p, dir, spec, sandbox.Harness{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Details["origin"] != originBuilt || !strings.Contains(made.Details["bases"], base+"=sha256:") || made.Details["platform"] == "" {
		t.Errorf("details %v", made.Details)
	}
	d, err := p.Create(limited(t), sandbox.CreateRequest{From: made, Template: sandbox.Template{Provider: p, Spec: spec, Dir: dir}, Owner: owner(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, d, "", "cat /greeting /hello.txt; echo $SEEN; id -un; env; ls -a / /home/sandbox; cat /proc/1/cmdline", nil)
	if err := d.Stop(limited(t)); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"hi\nhello " + word + "\nyes\nnode"} {
		if !strings.HasPrefix(out, want) {
			t.Errorf("inside: %q", out)
		}
	}
	if strings.Contains(out, "assay") {
		t.Errorf("the inside names this program: %s", out)
	}

	// Another process, and a touched file: the same image, no build.
	if err := os.Chtimes(filepath.Join(dir, "hello.txt"), made0, made0); err != nil {
		t.Fatal(err)
	}
	px := newProxy(t, host)
	again, err := prepare(t, provider(t, px.host()), dir, spec, sandbox.Harness{})
	if err != nil || again.Ref != made.Ref || again.Details["origin"] != originReused {
		t.Errorf("again: %+v, %v", again, err)
	}
	if calls := px.requests(); slices.ContainsFunc(calls, func(c string) bool {
		return strings.Contains(c, "/build") || strings.Contains(c, "/images/create") || strings.Contains(c, "/session")
	}) {
		t.Errorf("the second run asked the engine for %q", calls)
	}

	// Other content is another image.
	if err := os.WriteFile(filepath.Join(dir, "hello.txt"), []byte("bye\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := prepare(t, p, dir, spec, sandbox.Harness{})
	if err != nil || other.Ref == made.Ref || other.Details["origin"] != originBuilt {
		t.Errorf("other content: %+v, %v", other, err)
	}
}

func TestInstallAndHarnessKeepTheUser(t *testing.T) {
	cli, host := testreq.Engine(t)
	base := testimage.SliceUser(t)
	p, word := provider(t, host), newToken()
	builtImages(t, cli, base)
	h := sandbox.Harness{Name: "tool", Version: word, Install: []string{"echo tool >> /made; id -u >> /made"}}
	spec := Spec{From: base, Install: []string{"echo one > /made", "echo 'two $HOME \"x\"' >> /made # " + word}}
	made, err := prepare(t, p, "", spec, h)
	if err != nil {
		t.Fatal(err)
	}
	if made.Details["origin"] != originBuilt || made.Details["harness"] != "tool@"+word || made.Details["from"] != base {
		t.Errorf("details %v", made.Details)
	}
	d, err := p.Create(limited(t), sandbox.CreateRequest{From: made, Template: sandbox.Template{Provider: p, Spec: spec}, Owner: owner(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Stop(limited(t)) }()
	if out := run(t, d, "", "cat /made; id -un", nil); out != "one\ntwo $HOME \"x\"\ntool\n0\nnode" {
		t.Errorf("inside: %q", out)
	}
	// An image that says that it has the tools is taken as it is.
	img, err := cli.ImageInspect(t.Context(), made.Ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range img.RepoTags {
		again, err := prepare(t, p, "", Spec{Image: tag}, h)
		if err != nil || again.Ref != made.Ref {
			t.Errorf("an image with the tools: %+v, %v", again, err)
		}
	}
	if left, err := cli.ImageList(t.Context(), client.ImageListOptions{Filters: client.Filters{}.Add("reference", baseRepo)}); err != nil || len(left.Items) > 0 {
		t.Errorf("names of a build are left: %+v, %v", left.Items, err)
	}
}

func TestEqualContentIsBuiltOnceAtTheSameTime(t *testing.T) {
	cli, host := testreq.Engine(t)
	word := newToken()
	builtImages(t, cli, word)
	text := "FROM " + testimage.Busybox(t) + "\nRUN echo " + word + "\n"
	px := newProxy(t, host)
	var wg sync.WaitGroup
	refs := make([]string, 4)
	for i := range refs {
		p := provider(t, px.host())
		dir := folder(t, map[string]string{word + ".Dockerfile": text})
		wg.Go(func() {
			made, err := prepare(t, p, dir, Spec{Dockerfile: word + ".Dockerfile"}, sandbox.Harness{})
			if err != nil {
				t.Error(err)
			}
			refs[i] = made.Ref
		})
	}
	wg.Wait()
	builds := 0
	for _, c := range px.requests() {
		if c == "POST /build" {
			builds++
		}
	}
	if slices.Sort(refs); builds != 1 || refs[0] == "" || refs[0] != refs[3] {
		t.Errorf("%d builds for one content: %q", builds, refs)
	}
}

func TestKeysOfBuilds(t *testing.T) {
	p := New(Options{})
	dir := folder(t, map[string]string{"Dockerfile": "FROM a\n", "sub/Dockerfile": "FROM a\n", "sub/file": "x"})
	h := sandbox.Harness{Name: "a", Version: "1", Install: []string{"true"}}
	seen := map[sandbox.Key]string{}
	for name, c := range map[string]struct {
		spec Spec
		h    sandbox.Harness
	}{
		"image":        {Spec{Image: "a"}, sandbox.Harness{}},
		"with tools":   {Spec{Image: "a"}, h},
		"other tools":  {Spec{Image: "a"}, sandbox.Harness{Name: "a", Version: "2", Install: []string{"true"}}},
		"dockerfile":   {Spec{Dockerfile: "sub/Dockerfile"}, sandbox.Harness{}},
		"its folder":   {Spec{Dockerfile: "sub/Dockerfile", Context: "."}, sandbox.Harness{}},
		"target":       {Spec{Dockerfile: "sub/Dockerfile", Target: "t"}, sandbox.Harness{}},
		"args":         {Spec{Dockerfile: "sub/Dockerfile", Args: map[string]string{"A": "1"}}, sandbox.Harness{}},
		"from":         {Spec{From: "a", Install: []string{"x"}}, sandbox.Harness{}},
		"from other":   {Spec{From: "b", Install: []string{"x"}}, sandbox.Harness{}},
		"install":      {Spec{From: "a", Install: []string{"y"}}, sandbox.Harness{}},
		"install both": {Spec{From: "a", Install: []string{"x", "y"}}, sandbox.Harness{}},
	} {
		key, err := p.Key(t.Context(), sandbox.Template{Provider: p, Spec: c.spec, Dir: dir}, c.h)
		if err != nil {
			t.Fatal(err)
		}
		if twin, dup := seen[key]; dup {
			t.Errorf("%s and %s share the key %s", name, twin, key)
		}
		seen[key] = name
		if again, err := p.Key(t.Context(), sandbox.Template{Provider: p, Spec: c.spec, Dir: dir}, c.h); err != nil || again != key {
			t.Errorf("%s: the second key is %s, %v", name, again, err)
		}
	}
	if a, _ := p.Key(t.Context(), sandbox.Template{Spec: Spec{Image: "a"}}, sandbox.Harness{Name: "unbaked"}); a != "docker/docker.io/library/a:latest" {
		t.Errorf("tools that nobody can bake change the key: %s", a)
	}
	if p.Calls() != 0 {
		t.Error("keys asked the engine")
	}
	if _, err := p.Key(t.Context(), sandbox.Template{Spec: Spec{Dockerfile: "nowhere"}, Dir: dir}, h); fault.CodeOf(err) != "sandbox.dockerfile-missing" || fault.ClassOf(err) != fault.Config {
		t.Errorf("a missing Dockerfile: %v", err)
	}
}

func TestSpecsThatCannotWork(t *testing.T) {
	for name, s := range map[string]Spec{
		"nothing": {}, "two": {Image: "a", Dockerfile: "b"}, "target of an image": {Image: "a", Target: "t"}, "from alone": {From: "a"},
		"install alone": {Image: "a", Install: []string{"x"}}, "bad from": {From: "A B", Install: []string{"x"}}, "guest": {Image: "a", Guest: "x"},
	} {
		if err := s.check(Docker); fault.ClassOf(err) != fault.Config || fault.FixOf(err) == "" || fault.CodeOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFailedPreparations(t *testing.T) {
	_, host := testreq.Engine(t)
	base := testimage.Busybox(t)
	p := provider(t, host)
	for name, c := range map[string]struct {
		file    string
		spec    Spec
		h       sandbox.Harness
		class   fault.Class
		code    string
		stage   string
		message string
		log     string
	}{
		"a failing RUN":     {file: "FROM " + base + "\nRUN echo the reason; exit 7\n", class: fault.Config, code: "sandbox.build-failed", stage: "dockerfile", message: "exit code 7", log: "the reason"},
		"a word misspelt":   {file: "FROM " + base + "\nRUNN x\n", class: fault.Config, code: "sandbox.dockerfile-invalid", stage: "dockerfile", message: "line 2"},
		"a missing base":    {file: "FROM registry.invalid/a:1\n", class: fault.Config, code: "sandbox.image-missing", stage: "dockerfile", message: "registry.invalid/a:1"},
		"a full disk":       {file: "FROM " + base + "\nRUN dd if=/dev/zero of=/dev/shm/x bs=1M count=999\n", class: fault.Resource, code: "enospc", stage: "dockerfile", message: "exit code 1", log: "No space left"},
		"a failing install": {spec: Spec{From: base, Install: []string{"echo the reason; exit 5"}}, class: fault.Config, code: "sandbox.build-failed", stage: "install", message: "exit code 5", log: "the reason"},
		"a missing from":    {spec: Spec{From: "registry.invalid/a:1", Install: []string{"true"}}, class: fault.Config, code: "sandbox.image-missing", stage: "from"},
		"a failing harness": {spec: Spec{Image: base}, h: sandbox.Harness{Name: "a", Version: "1", Install: []string{"echo the reason; exit 4"}}, class: fault.Config, code: "sandbox.build-failed", stage: "harness", message: "exit code 4", log: "the reason"},
	} {
		t.Run(name, func(t *testing.T) {
			spec, dir := c.spec, ""
			if c.file != "" {
				dir, spec = folder(t, map[string]string{"Dockerfile": c.file}), Spec{Dockerfile: "Dockerfile"}
			}
			for range 2 { // the second time nothing is taken for a success
				_, err := prepare(t, p, dir, spec, c.h)
				if fault.ClassOf(err) != c.class || fault.CodeOf(err) != c.code || fault.StageOf(err) != c.stage || fault.FixOf(err) == "" || !strings.Contains(fmt.Sprint(err), c.message) {
					t.Errorf("%v: class %s, code %q, stage %q, fix %q", err, fault.ClassOf(err), fault.CodeOf(err), fault.StageOf(err), fault.FixOf(err))
				}
				var l sandbox.Logged
				if c.log != "" && (!asLogged(err, &l) || !strings.Contains(l.Log(), c.log)) {
					t.Errorf("no log with %q: %v", c.log, err)
				}
			}
		})
	}
}

func TestNothingIsBuiltOnAFullDisk(t *testing.T) {
	_, host := testreq.Engine(t)
	base := testimage.Busybox(t)
	real := diskFree
	diskFree = func(string) (int64, bool) { return LowWater - 1, true }
	t.Cleanup(func() { diskFree = real })
	px := newProxy(t, host)
	dir := folder(t, map[string]string{"Dockerfile": "FROM " + base + "\nRUN echo " + newToken() + "\n"})
	_, err := prepare(t, provider(t, px.host()), dir, Spec{Dockerfile: "Dockerfile"}, sandbox.Harness{})
	if fault.CodeOf(err) != "enospc" || fault.ClassOf(err) != fault.Resource || fault.StageOf(err) != "dockerfile" || !strings.Contains(err.Error(), "MiB are free at /") {
		t.Errorf("%v", err)
	}
	for _, c := range px.requests() {
		if strings.Contains(c, "/build") {
			t.Errorf("it was built all the same: %s", c)
		}
	}
}

func TestWhoseNameItIs(t *testing.T) {
	for name, want := range map[string]bool{
		"assay-sandbox:1": true, "localhost/assay-sandbox:1": true, "docker.io/library/assay-sandbox:1": true, "assay-base:1": true,
		"assay/codex:1": true, "docker.io/assay/codex:1": true, "localhost/assay/codex:1": true,
		"node:24": false, "reg.example/assay-sandbox:1": false, "assay-test/slice:1": false, "my/assay-sandbox:1": false,
	} {
		if ours(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
