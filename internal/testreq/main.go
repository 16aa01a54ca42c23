package testreq

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"
)

// LabelPrefix begins every label that the product puts on what it creates in
// an engine.
const LabelPrefix = "assay."

// engineAsked is set once a test of this binary asked for the engine; without
// that, Main leaves the engine alone.
var engineAsked atomic.Bool

// owned holds the pids whose leftovers in the engine are this binary's fault.
var owned = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{os.Getpid(): true}}

// Owns makes Main also look for leftovers of the child process pid, for tests
// that run the program as a real child.
func Owns(pid int) {
	owned.Lock()
	defer owned.Unlock()
	owned.pids[pid] = true
}

// Main runs the tests of a package, then fails the test binary when a
// goroutine is left, or when a container, network or volume is left in the
// engine that carries an owner label with the pid of this process (or of a
// process named to Owns). It exits the process; call it as the only statement
// of TestMain.
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	if err := leftovers(); err != nil {
		fmt.Fprintf(os.Stderr, "testreq: %v\n", err)
		code = max(code, 1)
	}
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	// A failed test often leaves goroutines on its way out; they would only
	// hide the first failure.
	if code == 0 {
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintf(os.Stderr, "testreq: goroutines left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers returns an error that names what this process left in the engines
// that it asked for, and closes the shared clients.
func leftovers() error {
	var errs []error
	for _, one := range []struct {
		asked *atomic.Bool
		find  func() engine
	}{{&engineAsked, sharedEngine}, {&podmanAsked, sharedPodman}} {
		if one.asked.Load() && one.find().missing == "" {
			errs = append(errs, leftIn(one.find().cli))
		}
	}
	return errors.Join(errs...)
}

func leftIn(cli *client.Client) error {
	defer func() { _ = cli.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	left, err := listOwned(ctx, cli, ownedPids())
	if err != nil {
		return fmt.Errorf("leak check of the engine: %w", err)
	}
	if len(left) == 0 {
		return nil
	}
	return errors.New("left in the engine after the tests:\n  " + strings.Join(left, "\n  "))
}

func ownedPids() map[int]bool {
	owned.Lock()
	defer owned.Unlock()
	pids := make(map[int]bool, len(owned.pids))
	for p := range owned.pids {
		pids[p] = true
	}
	return pids
}

// listOwned lists the containers, networks and volumes whose owner label names
// one of pids. A container whose removal has begun is waited for.
func listOwned(ctx context.Context, cli *client.Client, pids map[int]bool) ([]string, error) {
	var left []string
	cs, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, err
	}
	for _, c := range cs.Items {
		if !ownedBy(c.Labels, pids) || removed(ctx, cli, c) {
			continue
		}
		left = append(left, fmt.Sprintf("container %.12s %s (%s, image %s)", c.ID, strings.Join(c.Names, " "), c.State, c.Image))
	}
	ns, err := cli.NetworkList(ctx, client.NetworkListOptions{})
	if err != nil {
		return nil, err
	}
	for _, n := range ns.Items {
		if ownedBy(n.Labels, pids) {
			left = append(left, fmt.Sprintf("network %.12s %s", n.ID, n.Name))
		}
	}
	vs, err := cli.VolumeList(ctx, client.VolumeListOptions{})
	if err != nil {
		return nil, err
	}
	for _, v := range vs.Items {
		if ownedBy(v.Labels, pids) {
			left = append(left, "volume "+v.Name)
		}
	}
	slices.Sort(left)
	return left, nil
}

// removed reports whether the container, which the engine had already begun to
// remove, is gone now.
func removed(ctx context.Context, cli *client.Client, c container.Summary) bool {
	if c.State != container.StateRemoving {
		return false
	}
	w := cli.ContainerWait(ctx, c.ID, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select {
	case <-w.Result:
	case <-w.Error: // not found: it went away before the wait began
	}
	_, err := cli.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	return err != nil && ctx.Err() == nil
}

// ownedBy reports whether labels carry one of the product's pid labels with a
// pid out of pids.
func ownedBy(labels map[string]string, pids map[int]bool) bool {
	for k, v := range labels {
		if !strings.HasPrefix(k, LabelPrefix) || !strings.HasSuffix(k, "pid") {
			continue
		}
		if pid, err := strconv.Atoi(v); err == nil && pids[pid] {
			return true
		}
	}
	return false
}
