package imagebuild

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/fault"
)

func TestPullErrorsByTheirWords(t *testing.T) {
	f, err := os.Open("testdata/pull.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	classes := map[string]fault.Class{
		"sandbox.image-missing": fault.Config, "sandbox.registry-denied": fault.Config, "sandbox.image-platform": fault.Config,
		"sandbox.registry-rate-limit": fault.Transient, "sandbox.registry-unreachable": fault.Transient, "enospc": fault.Resource,
	}
	n := 0
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		n++
		parts := strings.SplitN(sc.Text(), " ", 3)
		e := pullError("x", errors.New(parts[2]))
		if e.Code != parts[1] || e.Class != classes[parts[1]] {
			t.Errorf("%s: %s, %v; want %s", parts[2], e.Code, e.Class, parts[1])
		}
		if e.Fix == "" {
			t.Errorf("%s: no fix", parts[2])
		}
	}
	if n == 0 {
		t.Fatal("no samples")
	}
}

func TestOutOfMemoryNeedsEvidence(t *testing.T) {
	w := newWatch(nil, func(string) {}, nil)
	killed := &buildError{text: "process \"/bin/sh -c make\" did not complete successfully: exit code: 137"}
	for _, c := range []struct {
		err     error
		starved bool
		class   fault.Class
		code    string
	}{
		{killed, true, fault.Resource, "oom"},
		{killed, false, fault.Config, "sandbox.build-failed"},
		{&buildError{text: "exit code: 1"}, true, fault.Config, "sandbox.build-failed"},
		{&buildError{text: "ResourceExhausted: cannot allocate memory"}, false, fault.Resource, "oom"},
		{errCut, false, fault.Transient, "sandbox.engine-lost"},
		{&buildError{text: `failed to do request: Head "https://r/v2/": dial tcp: connection refused`}, false, fault.Transient, "sandbox.registry-unreachable"},
		{&buildError{text: "Dockerfile parse error on line 3: unknown instruction: RUNN"}, false, fault.Config, "sandbox.build-failed"},
	} {
		err := judge("x", c.err, w, c.starved)
		if fault.ClassOf(err) != c.class || fault.CodeOf(err) != c.code {
			t.Errorf("%v, starved %t: %s %q; want %s %q", c.err, c.starved, fault.ClassOf(err), fault.CodeOf(err), c.class, c.code)
		}
	}
}

// digest reads dir with its Dockerfile.
func digest(t *testing.T, dir string, change func(*Source)) string {
	t.Helper()
	s := Source{Context: dir, Dockerfile: filepath.Join(dir, "Dockerfile")}
	if change != nil {
		change(&s)
	}
	in, err := Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return in.Digest()
}

func TestDigestIsOfTheContent(t *testing.T) {
	fresh := func() string {
		dir := t.TempDir()
		write(t, dir, map[string]string{"Dockerfile": "FROM a\n", "a.txt": "a", "skip/b.log": "b", ".dockerignore": "**/*.log\n"})
		return dir
	}
	dir := fresh()
	first := digest(t, dir, nil)
	if again := digest(t, fresh(), nil); again != first {
		t.Error("equal content in another folder has another digest")
	}
	same := map[string]func(){
		"times":       func() { os.Chtimes(filepath.Join(dir, "a.txt"), time.Unix(1, 0), time.Unix(1, 0)) },
		"ignored":     func() { write(t, dir, map[string]string{"skip/b.log": "other", "skip/new.log": "x"}) },
		"own state":   func() { write(t, dir, map[string]string{".assay/record/x": "y"}) },
		"permissions": func() { os.Chmod(filepath.Join(dir, "a.txt"), 0o600) },
	}
	for name, change := range same {
		if change(); digest(t, dir, nil) != first {
			t.Errorf("%s changed the digest", name)
		}
	}
	other := map[string]func(){
		"content":    func() { write(t, dir, map[string]string{"a.txt": "b"}) },
		"same size":  func() { write(t, dir, map[string]string{"a.txt": "c"}) },
		"executable": func() { os.Chmod(filepath.Join(dir, "a.txt"), 0o755) },
		"a new file": func() { write(t, dir, map[string]string{"new": ""}) },
		"a link":     func() { os.Symlink("a.txt", filepath.Join(dir, "link")) },
		"dockerfile": func() { write(t, dir, map[string]string{"Dockerfile": "FROM b\n"}) },
		"exception":  func() { write(t, dir, map[string]string{".dockerignore": "**/*.log\n!skip/b.log\n"}) },
		"own ignore": func() { write(t, dir, map[string]string{"Dockerfile.dockerignore": "skip\n"}) },
	}
	seen := map[string]bool{first: true}
	for name, change := range other {
		change()
		if d := digest(t, dir, nil); seen[d] {
			t.Errorf("%s left the digest as it was", name)
		} else {
			seen[d] = true
		}
	}
	for name, change := range map[string]func(*Source){
		"target": func(s *Source) { s.Target = "x" }, "args": func(s *Source) { s.Args = map[string]string{"A": "b"} }, "no context": func(s *Source) { s.Context = "" },
	} {
		if d := digest(t, dir, change); seen[d] {
			t.Errorf("%s left the digest as it was", name)
		}
	}
}

func TestWhatIsSent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"Dockerfile": "FROM a\n", "d/deep/kept": "k", "d/out": "o", ".dockerignore": "d\n!d/deep/kept\nDockerfile\n"})
	in := source(t, dir)
	var b bytes.Buffer
	if err := in.write(&b); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	// The ignored Dockerfile goes under a name of its own.
	if want := []string{".dockerignore", "d/", "d/deep/", "d/deep/kept", in.name}; !slices.Equal(names, want) || !in.extra {
		t.Errorf("sent %q, want %q", names, want)
	}
	write(t, dir, map[string]string{"d/deep/kept": "x"})
	if err := in.write(io.Discard); !errors.Is(err, errChanged) {
		t.Errorf("a file that changed meanwhile: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"Dockerfile": "FROM a\n", "file": ""})
	for name, s := range map[string]Source{
		"no Dockerfile": {Dockerfile: filepath.Join(dir, "nowhere"), Context: dir},
		"no context":    {Dockerfile: filepath.Join(dir, "Dockerfile"), Context: filepath.Join(dir, "nowhere")},
		"a file":        {Dockerfile: filepath.Join(dir, "Dockerfile"), Context: filepath.Join(dir, "file")},
	} {
		if _, err := Read(t.Context(), s); fault.ClassOf(err) != fault.Config || fault.CodeOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, Source{Context: dir, Inline: "FROM a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		target string
		args   map[string]string
		bases  []string
		modern bool
		code   string
	}{
		"one":       {"FROM a:1\n", "", nil, []string{"a:1"}, false, ""},
		"scratch":   {"FROM scratch\nCOPY . /\n", "", nil, nil, false, ""},
		"args":      {"ARG V=1\nARG N=node\nFROM $N:${V}-slim\n", "", map[string]string{"V": "2"}, []string{"node:2-slim"}, false, ""},
		"default":   {"ARG V\nFROM a:${V:-9}\n", "", nil, []string{"a:9"}, false, ""},
		"stages":    {"FROM a AS one\nFROM b AS two\nCOPY --from=one /x /x\nFROM c\nCOPY --from=two /x /x\nCOPY --from=d /y /y\n", "", nil, []string{"c", "b", "a", "d"}, false, ""},
		"unneeded":  {"FROM a AS one\nFROM b AS two\nFROM one\n", "", nil, []string{"a"}, false, ""},
		"target":    {"FROM a AS one\nFROM b AS two\n", "ONE", nil, []string{"a"}, false, ""},
		"number":    {"FROM a\nFROM b\nCOPY --from=0 /x /x\n", "", nil, []string{"b", "a"}, false, ""},
		"mount":     {"FROM a\nRUN --mount=type=bind,from=tools,target=/t true\n", "", nil, []string{"a", "tools"}, true, ""},
		"heredoc":   {"FROM a\nRUN <<EOF\nFROM b\nEOF\n", "", nil, []string{"a"}, true, ""},
		"foreign":   {"FROM --platform=linux/s390x a AS x\nFROM b\nCOPY --from=x / /\n", "", nil, []string{"b"}, false, ""},
		"continued": {"# escape=`\nFROM `\n  a\n", "", nil, []string{"a"}, false, ""},
		"misspelt":  {"FROM a\nRUNN x\n", "", nil, nil, false, "sandbox.dockerfile-invalid"},
		"no target": {"FROM a\n", "x", nil, nil, false, "sandbox.dockerfile-invalid"},
		"empty":     {"", "", nil, nil, false, "sandbox.dockerfile-invalid"},
	} {
		in, err := Read(t.Context(), Source{Inline: c.text, Target: c.target, Args: c.args})
		if err != nil {
			t.Fatal(err)
		}
		p, err := in.Plan()
		if fault.CodeOf(err) != c.code || !slices.Equal(p.Bases, c.bases) || p.BuildKit != c.modern {
			t.Errorf("%s: %+v, %v; want %q, %t, %q", name, p, err, c.bases, c.modern, c.code)
		}
	}
}

func TestProxiesOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"config.json": `{"proxies":{"default":{"httpProxy":"http://p:1"},"tcp://other:2375":{"httpProxy":"http://q:2"}}}`})
	for engine, want := range map[string]string{"unix:///var/run/docker.sock": "http://p:1", "tcp://other:2375": "http://q:2"} {
		got := DockerProxies(dir, engine)
		for _, name := range []string{"HTTP_PROXY", "http_proxy"} {
			if v := got[name]; v == nil || *v != want {
				t.Errorf("%s on %s: %v", name, engine, v)
			}
		}
	}
	if got := DockerProxies(t.TempDir(), "x"); len(got) > 0 {
		t.Errorf("without a configuration: %v", got)
	}
}
