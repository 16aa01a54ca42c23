package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/compose"
	"assay/sandbox/docker"
)

// BenchmarkComposeDown compares the end of a project (three services, two
// networks, a volume; nothing in it needs a grace) with `docker compose down
// --volumes --timeout 0` on the same file, where that command is installed.
// Target: less than a second, and not slower than the command.
func BenchmarkComposeDown(b *testing.B) {
	_, host := testreq.Engine(b)
	b.Setenv("ASSAY_GUEST", guesttest.Build(b))
	bb := testimage.Busybox(b)
	dir := b.TempDir()
	file := filepath.Join(dir, "compose.yaml")
	yaml := fmt.Sprintf(`
services:
  box: {image: %[1]s, command: [sleep, "1000"], networks: [front], init: true}
  app: {image: %[1]s, command: [sleep, "1000"], networks: [front, back], init: true}
  db: {image: %[1]s, command: [sleep, "1000"], networks: [back], volumes: ["data:/data"], init: true}
networks: {front: {}, back: {}}
volumes: {data: {}}
`, bb)
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		b.Fatal(err)
	}
	b.Run("assay", func(b *testing.B) {
		p := compose.New(compose.Options{Docker: docker.New(docker.Options{Host: host})})
		defer func() { _ = p.Close() }()
		t := sandbox.Template{Provider: p, Spec: compose.Spec{File: file, WorkspaceService: "box"}, Dir: dir}
		from, err := p.Prepare(b.Context(), t, sandbox.Harness{}, once{})
		if err != nil {
			b.Fatal(err)
		}
		var down time.Duration
		for b.Loop() {
			d, err := p.Create(b.Context(), sandbox.CreateRequest{From: from, Template: t, Notes: sandbox.Quiet{}, Owner: sandbox.Owner{PID: os.Getpid(), Token: ref.New()}})
			if err != nil {
				b.Fatal(err)
			}
			begun := time.Now()
			if err := d.Stop(b.Context()); err != nil {
				b.Fatal(err)
			}
			down += time.Since(begun)
		}
		b.ReportMetric(float64(down.Milliseconds())/float64(b.N), "ms-down")
	})
	b.Run("docker-compose", func(b *testing.B) {
		cli := composeCommand(b)
		run := func(args ...string) {
			cmd := exec.CommandContext(b.Context(), cli[0], append(append(cli[1:len(cli):len(cli)], "-p", "bench-down", "-f", file), args...)...)
			cmd.Env = append(os.Environ(), "DOCKER_HOST="+host)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
		}
		var down time.Duration
		for b.Loop() {
			run("up", "--detach")
			begun := time.Now()
			run("down", "--volumes", "--timeout", "0")
			down += time.Since(begun)
		}
		b.ReportMetric(float64(down.Milliseconds())/float64(b.N), "ms-down")
	})
}

// once runs each step of a preparation once.
type once struct{}

func (once) Do(ctx context.Context, _ string, step func(context.Context) error) error {
	return step(ctx)
}

// composeCommand finds the Compose command line, as a plugin of docker or by
// itself.
func composeCommand(b *testing.B) []string {
	if out, err := exec.Command("docker", "compose", "version").CombinedOutput(); err == nil && strings.Contains(string(out), "Compose") {
		return []string{"docker", "compose"}
	}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		return []string{path}
	}
	testreq.Missing(b, "compose", "neither `docker compose` nor docker-compose is installed; on Debian: apt-get install docker-compose")
	return nil
}
