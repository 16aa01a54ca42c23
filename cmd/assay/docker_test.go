package main

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

// A run that is interrupted leaves no container; one that is killed leaves none
// that runs: its processes end with the stream to it.
func TestDockerEndsWithTheRun(t *testing.T) {
	testreq.Docker(t)
	cli, _ := testreq.Engine(t)
	image := testimage.Slice(t)
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		all    bool // stopped containers count too
	}{{"interrupted", syscall.SIGINT, true}, {"killed", syscall.SIGKILL, false}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"experiments/x.yaml":    "agent: {command: {run: 'setsid sleep 3600 & sleep 3600'}}\nsandbox: {docker: {image: \"" + image + "\"}}\nattempts: 3\n",
				"evals/hello.eval.yaml": "prompt: hi\n",
			})
			cmd := command(t, dir, "exp", "--json")
			cmd.Env = append(cmd.Env, "ASSAY_GUEST="+guesttest.Build(t))
			out := lines(t, cmd)
			label := func(all bool) []string { return labelled(t, cli, cmd.Process.Pid, all) }
			t.Cleanup(func() {
				for _, id := range label(true) {
					cli.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
				}
			})
			until(t, "three containers run", func() bool { return len(label(false)) == 3 })
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			for range out {
			}
			cmd.Wait()
			until(t, "no container is left", func() bool { return len(label(tt.all)) == 0 })
		})
	}
}

func labelled(t *testing.T, cli *client.Client, pid int, all bool) []string {
	t.Helper()
	res, err := cli.ContainerList(context.Background(), client.ContainerListOptions{
		All: all, Filters: make(client.Filters).Add("label", fmt.Sprintf("assay.pid=%d", pid)),
	})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, c := range res.Items {
		ids = append(ids, c.ID)
	}
	return ids
}

// until waits for something outside of this process.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within 90 s: %s", what)
		}
	}
}
