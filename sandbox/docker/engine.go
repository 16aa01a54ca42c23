package docker

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// Every engine call has one of these limits: an engine that hangs must not hang
// the run. They are far above what a busy engine needs.
const (
	lookLimit   = 15 * time.Second // inspect, list, info, exec inspect
	makeLimit   = 60 * time.Second // create, start, attach, exec
	removeLimit = 60 * time.Second
	moveLimit   = 30 * time.Minute // archives, whose size only the caller knows
)

// minAPI is the oldest Engine API that this package speaks: Docker 20.10.
const minAPI = "1.41"

// engine speaks to one container engine. It is the only type that knows the
// client library. All methods are safe for concurrent use; each answers within
// its limit, and each error is a *callError underneath.
type engine struct {
	at    address
	cli   *client.Client
	calls *atomic.Int64
	gate  *gate

	factsOnce sync.Mutex
	facts     *engineFacts
}

// engineFacts are what an engine says of itself.
type engineFacts struct {
	Version, API, Driver, Backing, Root string
	Rootless                            bool
	CPUs                                int
	PIDLimit                            bool
}

// open makes a client for an address and negotiates the API version. The ping is
// its first call, so an engine that does not answer is known within ctx.
func open(ctx context.Context, a address, calls *atomic.Int64) (*engine, error) {
	// The empty TLSNextProto keeps HTTP/2 away, whose set-up would make the
	// client take a plain socket for one that speaks TLS.
	tr := &http.Transport{TLSClientConfig: a.tls, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxIdleConns: 16, IdleConnTimeout: 30 * time.Second}
	if !a.remote() {
		// A local socket costs nothing to dial, and no idle connection means no
		// goroutine left and no stale connection after the engine restarted.
		tr.DisableKeepAlives = true
	}
	cli, err := client.New(
		client.WithHTTPClient(&http.Client{Transport: tr, CheckRedirect: client.CheckRedirect}),
		client.WithHost(a.host),
		client.WithAPIVersionFromEnv(),
		client.WithUserAgent("assay"),
		client.WithHTTPRequestHook(func(*http.Request) error { calls.Add(1); return nil }),
		client.WithHTTPResponseHook(noteStatus),
	)
	if err != nil {
		return nil, err
	}
	e := &engine{at: a, cli: cli, calls: calls, gate: gateOf(a.host)}
	ping, err := cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err != nil {
		e.close()
		return nil, err
	}
	if v := cli.ClientVersion(); older(v, minAPI) {
		e.close()
		return nil, fault.Configf("sandbox.engine-too-old", "Update the engine to Docker 20.10 or newer, or unset DOCKER_API_VERSION.",
			"the engine at %s speaks API %s, this program needs %s or newer (it knows up to %s)", a.host, ping.APIVersion, minAPI, client.MaxAPIVersion)
	}
	return e, nil
}

func (e *engine) close() { _ = e.cli.Close() }

// older compares API versions "1.41".
func older(v, than string) bool {
	num := func(s string) (major, minor int) {
		_, _ = fmt.Sscanf(s, "%d.%d", &major, &minor)
		return major, minor
	}
	a, b := num(v)
	c, d := num(than)
	return a < c || a == c && b < d
}

// gate bounds the engine operations that are under way at once. Engines gain
// nothing from more than about two per core, and many starts at once on one
// bridge network can collapse their throughput.
type gate struct{ slots chan struct{} }

var gates = struct {
	sync.Mutex
	of map[string]*gate
}{of: map[string]*gate{}}

// gateOf returns the gate of an engine; all providers of this process that use
// the engine share it.
func gateOf(host string) *gate {
	gates.Lock()
	defer gates.Unlock()
	g := gates.of[host]
	if g == nil {
		g = newGate(max(4, 2*runtime.NumCPU()))
		gates.of[host] = g
	}
	return g
}

func newGate(width int) *gate { return &gate{slots: make(chan struct{}, width)} }

// enter waits for a place. waiting is called once when there is none at first.
func (g *gate) enter(ctx context.Context, waiting func()) error {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	if waiting != nil {
		waiting()
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) leave() { <-g.slots }

// statusKey finds the place in a call's context where the reply's HTTP status
// is put.
type statusKey struct{}

func noteStatus(r *http.Response) {
	if r.Request == nil {
		return
	}
	if s, ok := r.Request.Context().Value(statusKey{}).(*atomic.Int64); ok {
		s.Store(int64(r.StatusCode))
	}
}

// waitKey carries the Notes that hear of waiting for a place at the engine.
type waitKey struct{}

func withNotes(ctx context.Context, n sandbox.Notes) context.Context {
	return context.WithValue(ctx, waitKey{}, n)
}

// do makes one call: it waits for a place, bounds the call, and gives its
// failure the shape that classify understands.
func (e *engine) do(ctx context.Context, op string, limit time.Duration, f func(context.Context) error) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.gate.leave()
	return e.ungated(ctx, op, limit, f)
}

// enter waits for a place at the gate, and says so where a wait is needed.
func (e *engine) enter(ctx context.Context) error {
	return e.gate.enter(ctx, func() {
		if n, ok := ctx.Value(waitKey{}).(sandbox.Notes); ok && n != nil {
			n.Progress(sandbox.Progress{Message: "waiting for the container engine"})
		}
	})
}

func (e *engine) ungated(ctx context.Context, op string, limit time.Duration, f func(context.Context) error) error {
	bounded, cancel := fault.WithTimeout(ctx, "engine-call", limit, "built-in")
	defer cancel()
	status := &atomic.Int64{}
	err := f(context.WithValue(bounded, statusKey{}, status))
	if err == nil {
		return nil
	}
	ce := &callError{op: op, status: int(status.Load()), err: err}
	if ctx.Err() == nil && bounded.Err() != nil {
		ce.late, ce.err = true, fmt.Errorf("no answer within %s", limit)
	}
	return ce
}

func (e *engine) about(ctx context.Context) (engineFacts, error) {
	e.factsOnce.Lock()
	defer e.factsOnce.Unlock()
	if e.facts != nil {
		return *e.facts, nil
	}
	var f engineFacts
	err := e.do(ctx, "info", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.Info(ctx, client.InfoOptions{})
		if err != nil {
			return err
		}
		f = engineFacts{
			Version: r.Info.ServerVersion, API: e.cli.ClientVersion(), Driver: r.Info.Driver, Root: r.Info.DockerRootDir,
			CPUs: r.Info.NCPU, PIDLimit: r.Info.PidsLimit,
		}
		for _, kv := range r.Info.DriverStatus {
			if kv[0] == "Backing Filesystem" {
				f.Backing = kv[1]
			}
		}
		for _, o := range r.Info.SecurityOptions {
			f.Rootless = f.Rootless || strings.Contains(o, "rootless")
		}
		return nil
	})
	if err == nil {
		e.facts = &f
	}
	return f, err
}

// create makes a container, without starting it, and returns its id. The caller
// holds a place at the gate.
func (e *engine) create(ctx context.Context, name string, c *container.Config, h *container.HostConfig, n *network.NetworkingConfig) (string, error) {
	var id string
	err := e.ungated(ctx, "create", makeLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: c, HostConfig: h, NetworkingConfig: n})
		id = r.ID
		if err == nil && id == "" {
			err = errors.New("the engine gave the container no id")
		}
		return err
	})
	return id, err
}

func (e *engine) start(ctx context.Context, id string) error {
	return e.do(ctx, "start", makeLimit, func(ctx context.Context) error {
		_, err := e.cli.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return err
	})
}

// attach connects to the standard streams of a container.
func (e *engine) attach(ctx context.Context, id string) (*client.HijackedResponse, error) {
	var h client.HijackedResponse
	err := e.do(ctx, "attach", makeLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
		h = r.HijackedResponse
		return err
	})
	if err != nil {
		return nil, err
	}
	return &h, nil
}

// remove destroys a container with its anonymous volumes, without a grace.
// Known absence is success. A removal that is already under way is waited for.
func (e *engine) remove(ctx context.Context, id string) error {
	ctx, cancel := fault.WithTimeout(ctx, "stop-limit", removeLimit, "built-in")
	defer cancel()
	pause := 20 * time.Millisecond
	for {
		err := e.do(ctx, "remove", removeLimit, func(ctx context.Context) error {
			_, err := e.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
		switch statusOf(err) {
		case http.StatusNotFound:
			return nil
		case http.StatusConflict: // somebody else's removal is not finished
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

func (e *engine) kill(ctx context.Context, id string) error {
	return e.do(ctx, "kill", makeLimit, func(ctx context.Context) error {
		_, err := e.cli.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "SIGKILL"})
		return err
	})
}

func (e *engine) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	var out container.InspectResponse
	err := e.do(ctx, "inspect", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		out = r.Container
		return err
	})
	return out, err
}

// labelled lists the ids of the containers, in any state, that carry a label.
func (e *engine) labelled(ctx context.Context, label, value string) ([]string, error) {
	var ids []string
	err := e.do(ctx, "list", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label+"="+value)})
		for _, c := range r.Items {
			ids = append(ids, c.ID)
		}
		return err
	})
	return ids, err
}

// upload unpacks a tar below a directory that exists.
func (e *engine) upload(ctx context.Context, id, dir string, tar io.Reader) error {
	return e.do(ctx, "archive put", moveLimit, func(ctx context.Context) error {
		_, err := e.cli.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: dir, Content: tar})
		return err
	})
}

// download streams a tar of a path to use. It holds no place at the gate: how
// long it takes is up to the reader.
func (e *engine) download(ctx context.Context, id, path string, use func(container.PathStat, io.Reader) error) error {
	return e.ungated(ctx, "archive get", moveLimit, func(ctx context.Context) error {
		r, err := e.cli.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: path})
		if err != nil {
			return err
		}
		defer func() { _ = r.Content.Close() }()
		if err := use(r.Stat, r.Content); err != nil {
			return callerError{err}
		}
		return nil
	})
}

// look describes a path without following it.
func (e *engine) look(ctx context.Context, id, path string) (container.PathStat, error) {
	var st container.PathStat
	err := e.do(ctx, "archive stat", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: path})
		st = r.Stat
		return err
	})
	return st, err
}

// exec starts a command through the engine and returns its id and streams. Once
// the start was asked for, its reply is waited for beyond the end of ctx: a
// command that may or may not start later could not be ended.
func (e *engine) exec(ctx context.Context, container string, o client.ExecCreateOptions) (string, *client.HijackedResponse, error) {
	var id string
	err := e.do(ctx, "exec create", makeLimit, func(ctx context.Context) error {
		r, err := e.cli.ExecCreate(ctx, container, o)
		id = r.ID
		return err
	})
	if err != nil {
		return "", nil, err
	}
	var h client.HijackedResponse
	err = e.do(context.WithoutCancel(ctx), "exec start", makeLimit, func(ctx context.Context) error {
		r, err := e.cli.ExecAttach(ctx, id, client.ExecAttachOptions{})
		h = r.HijackedResponse
		return err
	})
	return id, &h, err
}

// execState is how an exec is doing.
type execState struct {
	running bool
	started bool // there is or was a process, or starting it failed
	never   bool // starting it failed: there is no process and will be none
	code    int
}

func (e *engine) execInspect(ctx context.Context, id string) (execState, error) {
	var st execState
	err := e.do(ctx, "exec inspect", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ExecInspect(ctx, id, client.ExecInspectOptions{})
		// The client turns "no exit code yet" into 0; an exec that never had a
		// process and did not fail has not been started.
		st = execState{running: r.Running, started: r.Running || r.PID != 0 || r.ExitCode != 0, never: !r.Running && r.PID == 0 && r.ExitCode != 0, code: r.ExitCode}
		return err
	})
	return st, err
}

// processes counts the processes of a container that are no zombies, by the
// engine's own list.
func (e *engine) processes(ctx context.Context, id string) (int, error) {
	n := 0
	err := e.do(ctx, "top", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerTop(ctx, id, client.ContainerTopOptions{Arguments: []string{"-eo", "pid,stat"}})
		for _, p := range r.Processes {
			if len(p) < 2 || !strings.HasPrefix(p[1], "Z") {
				n++
			}
		}
		return err
	})
	return n, err
}

// newToken returns a fresh unguessable name.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
