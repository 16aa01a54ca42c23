package compose

import (
	"fmt"
	"testing"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/docker"
)

// A project runs on Podman as on Docker: names, files, volumes, and nothing left.
func TestProjectOnPodman(t *testing.T) {
	_, host := testreq.Podman(t)
	t.Setenv("ASSAY_GUEST", guesttest.Build(t))
	p := New(Options{Podman: docker.New(docker.Options{Engine: docker.Podman, Host: host})})
	t.Cleanup(func() { _ = p.Close() })
	tmpl := sandbox.Template{Provider: p, Spec: Spec{File: "compose.yaml", WorkspaceService: "box", Engine: docker.Podman}, Dir: write(t, map[string]string{
		"compose.yaml": fmt.Sprintf(`
services:
  box:
    image: %[1]s
    networks: [front, back]
    volumes: ["shared:/shared", "./one.txt:/etc/one.txt"]
    depends_on: {seed: {condition: service_completed_successfully}}
  web:
    image: %[1]s
    networks: [back]
    command: [sh, -c, "mkdir /www && echo hello > /www/index.html && exec httpd -f -p 80 -h /www"]
  seed: {image: %[1]s, command: [sh, -c, "echo seeded > /shared/s"], volumes: ["shared:/shared"], network_mode: none}
networks: {front: {}, back: {}}
volumes: {shared: {}}
`, testimage.Podman(t, "busybox")),
		"one.txt": "one\n",
	})}
	r := request(t, p, tmpl)
	d := create(t, p, r)
	if got := run(t, d, "cat /shared/s /etc/one.txt; n=0; until wget -q -O- http://web/; do n=$((n+1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done"); got != "seeded\none\nhello" {
		t.Errorf("the sandbox saw %q", got)
	}
	cs, err := d.(sandbox.Companioner).Companions(t.Context())
	if err != nil || len(cs) != 2 || cs[0].Name != "seed" || cs[0].State != "exited" || cs[0].ExitCode == nil || *cs[0].ExitCode != 0 {
		t.Errorf("Companions: %+v, %v", cs, err)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := p.engines[docker.Podman].Engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g, err := e.Find(t.Context(), sandbox.LabelPrefix+"token", r.Owner.Token); err != nil || !g.Empty() {
		t.Errorf("left after Stop: %+v, %v", g, err)
	}
}
