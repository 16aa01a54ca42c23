package compose

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/fault"
	"assay/sandbox"
)

// web is the head of most files here.
const web = "services:\n  box:\n    image: a\n"

func TestRefusalsNameFileAndLine(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(outside, []byte(web), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, yaml string
		more       map[string]string
		want       []string // parts of the one error
	}{
		{"container_name", web + "    container_name: one\n", nil, []string{"compose.yaml:4: service box", "container_name", "collide"}},
		{"host port", web + "    ports:\n      - \"8080:80\"\n", nil, []string{"compose.yaml:4: service box", "8080"}},
		{"host port, long", web + "    ports:\n      - {target: 80, published: \"9000\"}\n", nil, []string{"compose.yaml:4", "9000"}},
		{"docker socket", web + "    volumes:\n      - /var/run/docker.sock:/var/run/docker.sock\n", nil, []string{"compose.yaml:4", "docker.sock", "the engine"}},
		{"host folder", web + "    volumes: [\"/etc:/host\"]\n", nil, []string{"compose.yaml:4", "/etc", "outside"}},
		{"missing file", web + "    volumes: [\"./none:/x\"]\n", nil, []string{"compose.yaml:4", "none", "does not exist"}},
		{"privileged", web + "    privileged: true\n", nil, []string{"compose.yaml:4", "privileged"}},
		{"host network", web + "    network_mode: host\n", nil, []string{"compose.yaml:4", "network_mode host"}},
		{"host pids", web + "    pid: host\n", nil, []string{"compose.yaml:4", "pid host"}},
		{"engine of the host", web + "    use_api_socket: true\n", nil, []string{"compose.yaml:4", "use_api_socket"}},
		{"network name", web + "    networks: [n]\nnetworks:\n  n:\n    name: shared\n", nil, []string{"compose.yaml:7: network n", "shared"}},
		{"volume name", web + "    volumes: [\"vol:/v\"]\nvolumes:\n  vol:\n    name: shared\n", nil, []string{"compose.yaml:7: volume vol", "shared"}},
		{"volume of the host", web + "    volumes: [\"vol:/v\"]\nvolumes:\n  vol:\n    driver_opts: {type: none, o: bind, device: /etc}\n", nil, []string{"compose.yaml:7: volume vol", "driver_opts"}},
		{"subnet", web + "    networks: [n]\nnetworks:\n  n:\n    ipam: {config: [{subnet: 10.9.0.0/24}]}\n", nil, []string{"compose.yaml:7: network n", "subnet"}},
		{"fixed address", web + "    networks:\n      default: {ipv4_address: 10.9.0.3}\n", nil, []string{"compose.yaml:4", "fixed address"}},
		{"field that is not read", web + "    gpus: all\n", nil, []string{"compose.yaml:4", "gpus is not supported"}},
		{"scale", web + "    scale: 3\n", nil, []string{"compose.yaml:4", "3 containers"}},
		{"unset variable", web + "    environment: {A: \"$NOPE\"}\n", nil, []string{"compose.yaml:4", "NOPE"}},
		{"required variable", web + "    environment: {A: \"${NOPE:?say which}\"}\n", nil, []string{"say which"}},
		{"unknown field", web + "    imagge: b\n", nil, []string{"compose.yaml", "imagge"}},
		{"no such file", web + "    env_file: none.env\n", nil, []string{"none.env"}},
		{"bad yaml", "services: [\n", nil, []string{"compose.yaml", "line 1"}},
		{"include elsewhere", "include: [" + outside + "]\n" + web, nil, []string{"compose.yaml:1", "outside"}},
		{"include of a registry", "include: [\"oci://registry/x\"]\n" + web, nil, []string{"compose.yaml:1", "local"}},
		{"in an included file", "include: [sub/more.yaml]\n" + web, map[string]string{"sub/more.yaml": "services:\n  db:\n    image: b\n    container_name: db\n"}, []string{"sub/more.yaml:4: service db"}},
		{"in an extended file", web + "  db:\n    extends: {file: base.yaml, service: base}\n", map[string]string{"base.yaml": "services:\n  base:\n    image: b\n    privileged: true\n"}, []string{"service db", "privileged"}},
		{"circle", web + "    depends_on: [db]\n  db:\n    image: b\n    depends_on: [box]\n", nil, []string{"compose.yaml:2", "box -> db -> box"}},
		{"no image", "services:\n  box: {}\n", nil, []string{"box"}},
		{"pull policy", web + "    pull_policy: always\n", nil, []string{"compose.yaml:4", "pull_policy"}},
		{"all at once", web + "    container_name: one\n    privileged: true\n", nil, []string{"compose.yaml:4", "compose.yaml:5"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := map[string]string{"compose.yaml": tc.yaml}
			for k, v := range tc.more {
				files[k] = v
			}
			_, err := load(t.Context(), Spec{File: "compose.yaml", WorkspaceService: "box"}, write(t, files))
			if fault.ClassOf(err) != fault.Config || fault.CodeOf(err) == "" || fault.FixOf(err) == "" {
				t.Fatalf("error %v (class %v, code %q, fix %q)", err, fault.ClassOf(err), fault.CodeOf(err), fault.FixOf(err))
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not contain %q", err, part)
				}
			}
		})
	}
}

func TestAcceptedFiles(t *testing.T) {
	dir := write(t, map[string]string{
		"docker-compose.yml": `
x-common: &common {restart: on-failure, environment: {FROM_FILE: "${FROM_FILE}", FROM_SPEC: "${FROM_SPEC}", DEFAULT: "${NOPE:-none}", SECRET: "a-${SECRET}-z"}}
include: [sub/more.yaml]
services:
  box:
    image: a
    ports: ["80"]
    volumes: ["./data:/data", "./one.txt:/etc/one.txt:ro", "kept:/kept", "ext:/ext"]
    networks: [front, out]
    configs: [{source: conf, target: /etc/conf}]
    secrets: [key]
  db:
    <<: *common
    extends: {file: sub/base.yaml, service: base}
    depends_on: {init: {condition: service_completed_successfully}}
  init: {image: c, command: "echo '$$HOME'"}
  debug: {image: d, profiles: [debug]}
networks: {front: {}, out: {external: true, name: outside}}
volumes: {kept: {}, ext: {external: true, name: outside-v}}
configs: {conf: {content: "x=${FROM_SPEC}"}}
secrets: {key: {environment: SECRET}}
`,
		"sub/more.yaml": "services:\n  cache:\n    image: e\n    env_file: cache.env\n",
		"sub/base.yaml": "services: {base: {image: \"b:${TAG:-1}\"}}\n",
		"sub/cache.env": "CACHE=1\n",
		".env":          "FROM_FILE=file\nFROM_SPEC=file\n",
		"data/a/b":      "content", "one.txt": "one",
	})
	spec := Spec{File: "docker-compose.yml", WorkspaceService: "box", Env: map[string]string{"FROM_SPEC": "spec"}, CredentialEnv: map[string]Credential{"SECRET": {}}}
	pr, err := load(t.Context(), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(pr.names(), " "); got != "box cache db init" {
		t.Errorf("the services are %q", got)
	}
	fill := strings.NewReplacer(placeholder("SECRET"), "s3cret")
	env := strings.Join(environment(pr.p.Services["db"], fill), " ")
	if want := "DEFAULT=none FROM_FILE=file FROM_SPEC=spec SECRET=a-s3cret-z"; env != want {
		t.Errorf("the environment of db is %q, want %q", env, want)
	}
	if got := environment(pr.p.Services["cache"], fill); len(got) != 1 || got[0] != "CACHE=1" {
		t.Errorf("the environment of cache is %q", got)
	}
	files, err := pr.files("box")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range files {
		paths = append(paths, f.path)
	}
	if got := strings.Join(paths, " "); got != "/data /data/a /data/a/b /etc/one.txt /etc/conf /run/secrets/key" {
		t.Errorf("the files of box are %q", got)
	}
	spec.Profiles = []string{"debug"}
	if pr, err = load(t.Context(), spec, dir); err != nil || strings.Join(pr.names(), " ") != "box cache db debug init" {
		t.Errorf("with a profile: %v, %v", pr, err)
	}
	spec.Profiles = []string{"debgu"}
	if _, err = load(t.Context(), spec, dir); err == nil || !strings.Contains(err.Error(), "debgu") {
		t.Errorf("an unknown profile: %v", err)
	}
	spec.Profiles, spec.WorkspaceService = nil, "boxx"
	if _, err = load(t.Context(), spec, dir); fault.CodeOf(err) != "sandbox.compose-service" || !strings.Contains(fault.FixOf(err), "box") {
		t.Errorf("an unknown service: %v, fix %q", err, fault.FixOf(err))
	}
	spec.WorkspaceService, spec.Env = "box", map[string]string{"SECRET": "x"}
	if _, err = load(t.Context(), spec, dir); fault.CodeOf(err) != "field-conflict" {
		t.Errorf("a variable in both places: %v", err)
	}
}

// Every input of the content changes the key; nothing else does.
func TestKey(t *testing.T) {
	p := New(Options{Getenv: func(string) (string, bool) { return "", false }})
	base := func() map[string]string {
		return map[string]string{
			"compose.yaml": web + "    volumes: [\"./data:/data\"]\n    environment: {V: \"${V:-0}\", S: \"${S:-}\"}\n  db:\n    build: ./db\n",
			"data/x":       "1", "db/Dockerfile": "FROM scratch\nCOPY f /f\n", "db/f": "1",
		}
	}
	key := func(files map[string]string, s Spec) sandbox.Key {
		t.Helper()
		s.File, s.WorkspaceService = "compose.yaml", "box"
		k, err := p.Key(t.Context(), sandbox.Template{Provider: p, Spec: s, Dir: write(t, files)}, sandbox.Harness{})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	with := func(name, body string) map[string]string {
		f := base()
		f[name] = body
		return f
	}
	first := key(base(), Spec{})
	time.Sleep(1100 * time.Millisecond) // files get other times
	if again := key(base(), Spec{}); again != first {
		t.Errorf("the same files in another folder have another key: %s, %s", first, again)
	}
	seen := map[sandbox.Key]string{first: "base"}
	for name, k := range map[string]sandbox.Key{
		"file that is copied":   key(with("data/x", "2"), Spec{}),
		"new file":              key(with("data/y", "2"), Spec{}),
		"build context":         key(with("db/f", "2"), Spec{}),
		"Dockerfile":            key(with("db/Dockerfile", "FROM scratch\nCOPY f /g\n"), Spec{}),
		"service":               key(with("compose.yaml", base()["compose.yaml"]+"    command: [x]\n"), Spec{}),
		"env":                   key(base(), Spec{Env: map[string]string{"V": "1"}}),
		"credential":            key(base(), Spec{CredentialEnv: map[string]Credential{"S": {}}}),
		"credential's revision": key(base(), Spec{CredentialEnv: map[string]Credential{"S": {Revision: "2"}}}),
	} {
		if other, dup := seen[k]; dup {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[k] = name
	}
}

func TestCredentialsThatAreNotSet(t *testing.T) {
	p := New(Options{Getenv: func(string) (string, bool) { return "", false }})
	dir := write(t, map[string]string{"compose.yaml": web})
	_, err := p.Prepare(t.Context(), sandbox.Template{Provider: p, Dir: dir, Spec: Spec{File: "compose.yaml", WorkspaceService: "box", CredentialEnv: map[string]Credential{"PW": {From: "HOST_PW"}}}}, sandbox.Harness{}, steps{})
	if fault.CodeOf(err) != "secret-env-missing" || !strings.Contains(err.Error(), "HOST_PW") {
		t.Errorf("a credential that is not set: %v", err)
	}
}

func TestExhausted(t *testing.T) {
	if exhausted(errors.New("could not find an available, non-overlapping IPv4 address pool")) {
		t.Error("text that no engine said counts")
	}
}
