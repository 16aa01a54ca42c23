package testreq

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

func TestMain(m *testing.M) { Main(m) }

// recorder is a testing.TB that notes how the test ended instead of ending it.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Skipf(f string, a ...any)  { r.skipped = f; runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.failed = f; runtime.Goexit() }
func record(fn func(tb testing.TB)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	go func() { defer close(done); fn(r) }()
	<-done
	return r
}

func TestMissingToolSkipsUnlessRequired(t *testing.T) {
	const tool = "no-such-tool-anywhere"
	for _, tc := range []struct {
		require string
		fails   bool
	}{
		{"", false},
		{"git", false},
		{tool, true},
		{"git, " + tool, true},
		{tool + "-2", false},
	} {
		t.Setenv(RequireEnv, tc.require)
		r := record(func(tb testing.TB) { Need(tb, tool) })
		if got := r.failed != ""; got != tc.fails {
			t.Errorf("%s=%q: failed = %v, want %v", RequireEnv, tc.require, got, tc.fails)
		}
		if got := r.skipped != ""; got == tc.fails {
			t.Errorf("%s=%q: skipped = %v, want %v", RequireEnv, tc.require, got, !tc.fails)
		}
	}
}

func TestNeedThatIsMetDoesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "some-tool"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if r := record(func(tb testing.TB) { Need(tb, "some-tool") }); r.failed+r.skipped != "" {
		t.Errorf("Need of a tool that is there: failed %q, skipped %q", r.failed, r.skipped)
	}
	if Have("git") {
		t.Error("Have(git) with an empty PATH is true")
	}
}

func TestCandidates(t *testing.T) {
	all := func(string) bool { return true }
	env := func(kv map[string]string) func(string) string { return func(k string) string { return kv[k] } }
	for _, tc := range []struct {
		name   string
		env    map[string]string
		exists func(string) bool
		want   []string
	}{
		{"DOCKER_HOST wins alone", map[string]string{"DOCKER_HOST": "tcp://h:1", "HOME": "/h"}, all, []string{"tcp://h:1"}},
		{"system socket first", map[string]string{"XDG_RUNTIME_DIR": "/x"}, all, []string{"unix:///var/run/docker.sock", "unix:///x/docker.sock"}},
		{"only those that exist", map[string]string{"HOME": "/h"}, func(p string) bool { return strings.HasPrefix(p, "/h/.docker") }, []string{"unix:///h/.docker/run/docker.sock"}},
		{"none", nil, func(string) bool { return false }, nil},
	} {
		if got := candidates(env(tc.env), tc.exists); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestDialEngineNamesWhatItTried(t *testing.T) {
	host := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	t.Setenv("DOCKER_HOST", host)
	_, _, err := DialEngine(t.Context())
	if err == nil || !strings.Contains(err.Error(), host) {
		t.Fatalf("error %v, want one that names %s", err, host)
	}
}

func TestOwnedBy(t *testing.T) {
	pids := map[int]bool{42: true}
	for _, tc := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"assay.pid": "42"}, true},
		{map[string]string{"assay.owner.pid": "42"}, true},
		{map[string]string{"assay.pid": "43"}, false},
		{map[string]string{"other.pid": "42"}, false},
		{map[string]string{"assay.attempt": "42"}, false},
		{nil, false},
	} {
		if got := ownedBy(tc.labels, pids); got != tc.want {
			t.Errorf("ownedBy(%v) = %v, want %v", tc.labels, got, tc.want)
		}
	}
}

// A planted network and volume must be found, and only for their own pid.
func TestListOwnedFindsWhatIsLeft(t *testing.T) {
	cli, _ := Engine(t)
	ctx := t.Context()
	// No live process has this pid: the kernel's limit is 2^22.
	const pid = 1<<22 + 7
	labels := map[string]string{LabelPrefix + "pid": strconv.Itoa(pid)}
	name := "leak-probe-" + strconv.Itoa(os.Getpid())
	n, err := cli.NetworkCreate(ctx, name, client.NetworkCreateOptions{Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cleanup(t, func(ctx context.Context) error {
			_, err := cli.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
			return err
		})
	})
	if _, err := cli.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: labels}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cleanup(t, func(ctx context.Context) error {
			_, err := cli.VolumeRemove(ctx, name, client.VolumeRemoveOptions{Force: true})
			return err
		})
	})

	left, err := listOwned(ctx, cli, map[int]bool{pid: true})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(left, "\n")
	if len(left) != 2 || !strings.Contains(text, "volume "+name) || !strings.Contains(text, name) {
		t.Errorf("found %q, want the network and the volume %s", left, name)
	}
	if left, err = listOwned(ctx, cli, map[int]bool{pid + 1: true}); err != nil || len(left) != 0 {
		t.Errorf("for another pid: %q, %v; want nothing", left, err)
	}
}

func cleanup(t *testing.T, fn func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := fn(ctx); err != nil {
		t.Error(err)
	}
}
