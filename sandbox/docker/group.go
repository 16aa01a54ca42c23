package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// This file is what a provider of several containers per sandbox needs of the
// engine: the sandbox's own container with another shape, and plain calls for
// what stands beside it.

// PartLabel finds one container of a group: its value is unique.
const PartLabel = sandbox.LabelPrefix + "part"

// Shape is how the container of a sandbox differs where it belongs to a group.
type Shape struct {
	// Name is the container's name.
	Name string
	// Part is the value of its PartLabel.
	Part string
	// User and Workdir replace what the image declares, unless they are empty.
	User, Workdir string
	// Env is added to the image's environment in every command. It is in no
	// description of the container.
	Env map[string]string
	// Alter changes the container before it is made. Its first process,
	// streams and labels of the owner must stay.
	Alter func(*container.Config, *container.HostConfig)
	// Network is joined at birth; Others before the start.
	Network *network.NetworkingConfig
	Others  map[string]*network.EndpointSettings
	// Files is a tar that is unpacked at / before the start, or nil.
	Files []byte
}

// shaped returns a copy of an image whose containers have a shape.
func (i *image) shaped(s *Shape) *image {
	if s == nil {
		return i
	}
	out := *i
	out.shape = s
	out.User, out.Workdir = firstOf(s.User, i.User), firstOf(s.Workdir, i.Workdir)
	out.Env = maps.Clone(i.Env)
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	maps.Copy(out.Env, s.Env)
	return &out
}

func (s *Shape) alter(c *container.Config, h *container.HostConfig) {
	if s == nil {
		return
	}
	c.Labels[PartLabel] = s.Part
	if s.Alter != nil {
		s.Alter(c, h)
	}
}

func (s *Shape) birth(token string) birth {
	if s == nil {
		return bornWith(token)
	}
	return birth{name: s.Name, label: PartLabel, value: s.Part, networks: s.Network}
}

// settle does what is left between the birth and the start.
func (s *Shape) settle(ctx context.Context, e *engine, id string) error {
	if s == nil {
		return nil
	}
	return e.furnish(ctx, id, s.Others, s.Files)
}

func (e *engine) furnish(ctx context.Context, id string, others map[string]*network.EndpointSettings, files []byte) error {
	for _, n := range slices.Sorted(maps.Keys(others)) {
		if err := e.do(ctx, "network connect", makeLimit, func(ctx context.Context) error {
			_, err := e.cli.NetworkConnect(ctx, n, client.NetworkConnectOptions{Container: id, EndpointConfig: others[n]})
			return err
		}); err != nil {
			return err
		}
	}
	if files == nil {
		return nil
	}
	return e.upload(ctx, id, "/", bytes.NewReader(files))
}

// CreateShaped is Create for a container of a group.
func (p *Provider) CreateShaped(ctx context.Context, r sandbox.CreateRequest, s Shape) (sandbox.Driver, error) {
	return p.create(ctx, r, &s)
}

// Engine is one container engine, for what stands beside a sandbox. All methods
// are safe for concurrent use and bounded; they share the engine's gate.
type Engine struct{ e *engine }

// Engine connects to the provider's engine.
func (p *Provider) Engine(ctx context.Context) (*Engine, error) {
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &Engine{e}, nil
}

// Host is the engine's address.
func (g *Engine) Host() string { return g.e.at.host }

// StatusOf is the HTTP status with which the engine refused a call, or 0.
func StatusOf(err error) int { return statusOf(err) }

// Companion is a container beside a sandbox.
type Companion struct {
	// Name is the container's name; Part the value of its PartLabel.
	Name, Part string
	Config     *container.Config
	Host       *container.HostConfig
	Network    *network.NetworkingConfig
	Others     map[string]*network.EndpointSettings
	Files      []byte
}

// Create makes a companion without starting it. On error nothing is left of it.
func (g *Engine) Create(ctx context.Context, c Companion) (string, error) {
	c.Config.Labels[PartLabel] = c.Part
	id, err := g.e.bearAs(ctx, birth{name: c.Name, label: PartLabel, value: c.Part, networks: c.Network}, c.Config, c.Host)
	if err != nil {
		return "", err
	}
	if err := g.e.furnish(ctx, id, c.Others, c.Files); err != nil {
		return "", g.e.discard(ctx, id, nil, err)
	}
	return id, nil
}

// Start starts a container.
func (g *Engine) Start(ctx context.Context, id string) error { return g.e.start(ctx, id) }

// Inspect describes a container.
func (g *Engine) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	return g.e.inspect(ctx, id)
}

// Logs returns the last lines, and at most limit bytes, of what a container
// wrote.
func (g *Engine) Logs(ctx context.Context, id string, lines, limit int) (string, error) {
	out := sandbox.NewOutput(limit)
	err := g.e.do(ctx, "logs", lookLimit, func(ctx context.Context) error {
		in, err := g.e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return err
		}
		r, err := g.e.cli.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: fmt.Sprint(lines)})
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if c := in.Container.Config; c != nil && c.Tty {
			_, err = io.Copy(out, r)
		} else {
			_, err = stdcopy.StdCopy(out, out, r)
		}
		return err
	})
	return strings.ToValidUTF8(out.String(), "\ufffd"), err
}

// CreateNetwork makes a network and returns its id. The request is not cut when
// ctx ends: what came of it is known on return.
func (g *Engine) CreateNetwork(ctx context.Context, name string, o client.NetworkCreateOptions) (string, error) {
	var id string
	err := g.unhurried(ctx, "network create", func(ctx context.Context) error {
		r, err := g.e.cli.NetworkCreate(ctx, name, o)
		id = r.ID
		return err
	})
	return id, err
}

// CreateVolume makes a volume. As with CreateNetwork, what came of it is known.
func (g *Engine) CreateVolume(ctx context.Context, o client.VolumeCreateOptions) error {
	return g.unhurried(ctx, "volume create", func(ctx context.Context) error {
		_, err := g.e.cli.VolumeCreate(ctx, o)
		return err
	})
}

// unhurried makes a call that changes the engine and is not cut by the end of
// ctx, which only keeps it from beginning.
func (g *Engine) unhurried(ctx context.Context, op string, f func(context.Context) error) error {
	if err := g.e.enter(ctx); err != nil {
		return err
	}
	defer g.e.gate.leave()
	if cause := fault.Cause(ctx); cause != nil {
		return cause
	}
	return g.e.ungated(context.WithoutCancel(ctx), op, unhurriedLimit, f)
}

// unhurriedLimit is less than what a caller waits for a create that was given
// up.
const unhurriedLimit = 10 * time.Second

// NetworkByName finds a network that somebody else made.
func (g *Engine) NetworkByName(ctx context.Context, name string) (string, error) {
	var id string
	err := g.e.do(ctx, "network inspect", lookLimit, func(ctx context.Context) error {
		r, err := g.e.cli.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
		id = r.Network.ID
		return err
	})
	return id, err
}

// HasVolume reports whether a volume exists.
func (g *Engine) HasVolume(ctx context.Context, name string) (bool, error) {
	err := g.e.do(ctx, "volume inspect", lookLimit, func(ctx context.Context) error {
		_, err := g.e.cli.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		return err
	})
	if statusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// Pools tells how many networks the engine's address pools can give (0: it does
// not say) and how many there are.
func (g *Engine) Pools(ctx context.Context) (total, used int, err error) {
	err = g.e.do(ctx, "network list", lookLimit, func(ctx context.Context) error {
		r, err := g.e.cli.Info(ctx, client.InfoOptions{})
		if err != nil {
			return err
		}
		for _, p := range r.Info.DefaultAddressPools {
			if p.Base.IsValid() && p.Size >= p.Base.Bits() && p.Size-p.Base.Bits() < 20 {
				total += 1 << (p.Size - p.Base.Bits())
			}
		}
		n, err := g.e.cli.NetworkList(ctx, client.NetworkListOptions{})
		for _, one := range n.Items {
			if len(one.IPAM.Config) > 0 {
				used++
			}
		}
		return err
	})
	return total, used, err
}

// Group is everything that one sandbox has in the engine.
type Group struct{ Containers, Networks, Volumes []string }

// Empty reports whether nothing is left.
func (g Group) Empty() bool { return len(g.Containers)+len(g.Networks)+len(g.Volumes) == 0 }

// Find lists what carries a label, in any state.
func (g *Engine) Find(ctx context.Context, label, value string) (Group, error) {
	var out Group
	var err error
	if out.Containers, err = g.e.labelled(ctx, label, value); err != nil {
		return out, err
	}
	filter := client.Filters{}.Add("label", label+"="+value)
	err = g.e.do(ctx, "network list", lookLimit, func(ctx context.Context) error {
		n, err := g.e.cli.NetworkList(ctx, client.NetworkListOptions{Filters: filter})
		for _, one := range n.Items {
			out.Networks = append(out.Networks, one.ID)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	err = g.e.do(ctx, "volume list", lookLimit, func(ctx context.Context) error {
		v, err := g.e.cli.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
		for _, one := range v.Items {
			out.Volumes = append(out.Volumes, one.Name)
		}
		return err
	})
	return out, err
}

// Destroy removes a group without a grace: containers at once, then networks and
// volumes. Known absence is success.
func (g *Engine) Destroy(ctx context.Context, all Group) error {
	if err := each(all.Containers, func(id string) error { return g.e.remove(ctx, id) }); err != nil {
		return err
	}
	var nets, vols error
	var wg sync.WaitGroup
	wg.Go(func() { nets = each(all.Networks, func(id string) error { return g.removeNetwork(ctx, id) }) })
	wg.Go(func() { vols = each(all.Volumes, func(name string) error { return g.removeVolume(ctx, name) }) })
	wg.Wait()
	return errors.Join(nets, vols)
}

// each runs f for all of a list at once.
func each(list []string, f func(string) error) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, one := range list {
		wg.Go(func() { errs[i] = f(one) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// settleTries is how often a removal that is in the way of itself is repeated:
// an engine may let go of a container's endpoint and mounts a little later than
// it says.
const settleTries = 8

func (g *Engine) removeNetwork(ctx context.Context, id string) error {
	err := g.settled(ctx, "network remove", func(ctx context.Context) error {
		_, err := g.e.cli.NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
		return err
	})
	if err == nil {
		return nil
	}
	var names []string
	_ = g.e.do(ctx, "network inspect", lookLimit, func(ctx context.Context) error {
		r, err := g.e.cli.NetworkInspect(ctx, id, client.NetworkInspectOptions{})
		for _, c := range r.Network.Containers {
			names = append(names, c.Name)
		}
		return err
	})
	if len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("network %.12s is still used by %s: %w", id, strings.Join(names, ", "), err)
	}
	return fmt.Errorf("network %.12s: %w", id, err)
}

func (g *Engine) removeVolume(ctx context.Context, name string) error {
	err := g.settled(ctx, "volume remove", func(ctx context.Context) error {
		_, err := g.e.cli.VolumeRemove(ctx, name, client.VolumeRemoveOptions{Force: true})
		return err
	})
	if err != nil {
		return fmt.Errorf("volume %s: %w", name, err)
	}
	return nil
}

func (g *Engine) settled(ctx context.Context, op string, f func(context.Context) error) error {
	pause := 20 * time.Millisecond
	for try := 1; ; try++ {
		err := g.e.do(ctx, op, removeLimit, f)
		switch statusOf(err) {
		case http.StatusNotFound:
			return nil
		case http.StatusForbidden, http.StatusConflict, http.StatusInternalServerError:
		default:
			return err
		}
		if try == settleTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause = min(2*pause, 500*time.Millisecond)
		}
	}
}
