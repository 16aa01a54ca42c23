package bench

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox/docker"
)

// BenchmarkAttemptDocker compares a whole attempt (one upload, baseline, one
// agent command, diff, one check) with a bare client that creates a container,
// starts it, runs the same commands over one attached stream and removes it by
// force. Targets: at most 1.3 times the floor one at a time, at least 0.85 of its
// throughput at width 8, and at most six engine calls an attempt.
func BenchmarkAttemptDocker(b *testing.B) {
	testreq.Docker(b)
	b.Setenv("ASSAY_GUEST", guesttest.Build(b))
	cli, _ := testreq.Engine(b)
	image := testimage.Slice(b)
	for _, width := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("width-%d", width), func(b *testing.B) {
			n := 2 * width
			layer := docker.Image(image)
			attemptsOf(b, layer, 1, 1) // the check and the preparation are paid
			t, _ := layer.Template()
			provider := t.Provider.(*docker.Provider)
			before, done := provider.Calls(), 0
			rounds(b, n, func() time.Duration { return floor(b, cli, image, n, width) }, func() time.Duration {
				done += n
				return attemptsOf(b, layer, n, width)
			})
			b.ReportMetric(float64(provider.Calls()-before)/float64(done), "engine-calls/attempt")
		})
	}
}

// floor runs n bare containers, width at a time.
func floor(b *testing.B, cli *client.Client, image string, n, width int) time.Duration {
	b.Helper()
	start := time.Now()
	var wg sync.WaitGroup
	work := make(chan struct{})
	for range width {
		wg.Go(func() {
			for range work {
				if err := bare(cli, image); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	return time.Since(start)
}

// bare is one attempt without assay: the same commands, through a shell on the
// container's attached stream, with the git program for baseline and diff.
func bare(cli *client.Client, image string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := cli.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Cmd: []string{"bash"}, OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		},
		HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: "none"}},
	})
	if err != nil {
		return err
	}
	defer func() {
		_, rerr := cli.ContainerRemove(context.WithoutCancel(ctx), c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil {
			err = rerr
		}
	}()
	at, err := cli.ContainerAttach(ctx, c.ID, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return err
	}
	defer at.Close()
	defer context.AfterFunc(ctx, at.Close)()
	if _, err := cli.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	go func() {
		_, err := stdcopy.StdCopy(pw, io.Discard, at.Reader)
		pw.CloseWithError(err)
	}()
	defer pr.Close()
	out := bufio.NewReader(pr)
	var upload bytes.Buffer
	tw := tar.NewWriter(&upload)
	body := "a\n"
	if err := tw.WriteHeader(&tar.Header{Name: "seed.txt", Mode: 0o644, Size: int64(len(body))}); err != nil {
		return err
	}
	if _, err := io.WriteString(tw, body); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	const git = "git --git-dir=/tmp/l --work-tree=. -c user.name=x -c user.email=x -c core.fsync=none"
	for _, step := range []struct {
		command string
		input   []byte
	}{
		{fmt.Sprintf("mkdir -p /w && cd /w && head -c %d | tar x", upload.Len()), upload.Bytes()},
		{git + " init -q && " + git + " add -A && " + git + " commit -qm base", nil},
		{"echo hi > out.txt", nil},
		{git + " add -A && " + git + " commit -qm turn && " + git + " diff HEAD~1 --stat", nil},
		{"test -f out.txt", nil},
	} {
		if _, err := fmt.Fprintf(at.Conn, "%s; echo \"end $?\"\n", step.command); err != nil {
			return err
		}
		if len(step.input) > 0 {
			if _, err := at.Conn.Write(step.input); err != nil {
				return err
			}
		}
		for {
			l, err := out.ReadString('\n')
			if err != nil {
				return fmt.Errorf("%s: %w", step.command, err)
			}
			if l == "end 0\n" {
				break
			}
			if strings.HasPrefix(l, "end ") {
				return fmt.Errorf("%s: %s", step.command, l)
			}
		}
	}
	return nil
}
