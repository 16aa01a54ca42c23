package testreq

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// podmanAsked is set once a test of this binary asked for Podman.
var podmanAsked atomic.Bool

// sharedPodman dials Podman's API once for the whole test binary.
var sharedPodman = sync.OnceValue(func() engine {
	podmanAsked.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var tried []error
	for _, host := range podmanHosts(os.Getenv, socketExists) {
		cli, err := client.New(client.WithHost(host))
		if err == nil {
			if _, err = cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err == nil {
				return engine{cli: cli, host: host}
			}
			_ = cli.Close()
		}
		tried = append(tried, fmt.Errorf("%s: %w", host, err))
	}
	if tried == nil {
		return engine{missing: "CONTAINER_HOST is not set and no socket of Podman exists"}
	}
	return engine{missing: fmt.Sprintf("Podman does not answer: %v", tried)}
})

// podmanHosts lists where Podman's API may be: CONTAINER_HOST, when set, is the
// only candidate.
func podmanHosts(getenv func(string) string, exists func(string) bool) []string {
	if h := getenv("CONTAINER_HOST"); h != "" {
		return []string{h}
	}
	paths := []string{"/run/podman/podman.sock"}
	if d := getenv("XDG_RUNTIME_DIR"); d != "" {
		paths = append([]string{filepath.Join(d, "podman", "podman.sock")}, paths...)
	}
	var hosts []string
	for _, p := range paths {
		if exists(p) {
			hosts = append(hosts, "unix://"+p)
		}
	}
	return hosts
}

// Podman needs Podman's API, and returns a client and the address that answered.
// The client belongs to this package and is closed by Main.
func Podman(tb testing.TB) (*client.Client, string) {
	tb.Helper()
	Need(tb, "podman")
	e := sharedPodman()
	return e.cli, e.host
}
