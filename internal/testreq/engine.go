package testreq

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// engine is what this process found out, once, about a container engine.
type engine struct {
	cli     *client.Client
	host    string
	missing string // why there is none, or empty
}

// sharedEngine dials the engine once for the whole test binary: a stalled
// engine would else cost its time limit in every test.
var sharedEngine = sync.OnceValue(func() engine {
	engineAsked.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cli, host, err := DialEngine(ctx)
	if err != nil {
		return engine{missing: err.Error()}
	}
	return engine{cli: cli, host: host}
})

// Engine is Docker, and returns the client and the address that answered. The
// client belongs to this package and is closed by Main.
func Engine(tb testing.TB) (*client.Client, string) {
	tb.Helper()
	Docker(tb)
	e := sharedEngine()
	return e.cli, e.host
}

// DialEngine returns a client of the first engine that answers, and its
// address. DOCKER_HOST, when set, is the only candidate. The caller closes the
// client.
func DialEngine(ctx context.Context) (*client.Client, string, error) {
	var tried []string
	for _, host := range candidates(os.Getenv, socketExists) {
		cli, err := client.New(client.FromEnv, client.WithHost(host))
		if err == nil {
			if _, err = cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err == nil {
				return cli, host, nil
			}
			_ = cli.Close()
		}
		tried = append(tried, fmt.Sprintf("%s: %v", host, err))
	}
	if tried == nil {
		return nil, "", fmt.Errorf("no container engine: DOCKER_HOST is not set and no engine socket exists")
	}
	return nil, "", fmt.Errorf("no container engine answers: %s", strings.Join(tried, "; "))
}

// candidates lists the addresses to try, in order. Only sockets that exist are
// listed; DOCKER_HOST is taken at its word.
func candidates(getenv func(string) string, exists func(string) bool) []string {
	if h := getenv("DOCKER_HOST"); h != "" {
		return []string{h}
	}
	paths := []string{"/var/run/docker.sock"}
	if d := getenv("XDG_RUNTIME_DIR"); d != "" {
		paths = append(paths, filepath.Join(d, "docker.sock"))
	}
	if h := getenv("HOME"); h != "" {
		paths = append(paths,
			filepath.Join(h, ".docker", "run", "docker.sock"),
			filepath.Join(h, ".colima", "default", "docker.sock"),
			filepath.Join(h, ".orbstack", "run", "docker.sock"),
		)
	}
	var hosts []string
	for _, p := range paths {
		if exists(p) {
			hosts = append(hosts, "unix://"+p)
		}
	}
	return hosts
}

func socketExists(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode()&os.ModeSocket != 0
}
