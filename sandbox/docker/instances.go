package docker

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/sandbox"
)

// The prefixes of the ids of what is no container.
const (
	networkPrefix = "network/"
	volumePrefix  = "volume/"
)

// ownerLabel is on everything that has an owner.
const ownerLabel = sandbox.LabelPrefix + "token"

// Inventory lists the containers, networks and volumes that carry owner labels:
// containers first, because they hold the others.
func (p *Provider) Inventory(ctx context.Context) ([]sandbox.Instance, error) {
	e, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.ownedContainers(ctx)
	if err != nil {
		return nil, err
	}
	err = e.do(ctx, "list networks", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.Add("label", ownerLabel)})
		for _, n := range r.Items {
			out = append(out, sandbox.Instance{ID: networkPrefix + n.ID, Kind: "network", Name: n.Name, Labels: n.Labels})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = e.do(ctx, "list volumes", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.VolumeList(ctx, client.VolumeListOptions{Filters: client.Filters{}.Add("label", ownerLabel)})
		for _, v := range r.Items {
			i := sandbox.Instance{ID: volumePrefix + v.Name, Kind: "volume", Name: v.Name, Labels: v.Labels}
			i.Created, _ = time.Parse(time.RFC3339, v.CreatedAt) // zero where it is missing
			out = append(out, i)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (e *engine) ownedContainers(ctx context.Context) ([]sandbox.Instance, error) {
	var out []sandbox.Instance
	err := e.do(ctx, "list", lookLimit, func(ctx context.Context) error {
		r, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", ownerLabel)})
		for _, c := range r.Items {
			i := sandbox.Instance{ID: c.ID, Kind: "container", State: "stopped", Labels: c.Labels, Created: time.Unix(c.Created, 0)}
			if c.State == container.StateRunning {
				i.State = "running"
			}
			if len(c.Names) > 0 {
				i.Name = strings.TrimPrefix(c.Names[0], "/")
			}
			out = append(out, i)
		}
		return err
	})
	return out, err
}

// Destroy removes a container, network or volume of the inventory, and nothing
// that carries no owner labels: the id may come from a file that somebody else
// wrote.
func (p *Provider) Destroy(ctx context.Context, id string) error {
	e, err := p.connect(ctx)
	if err != nil {
		return err
	}
	if err := e.owned(ctx, id); err != nil {
		if statusOf(err) == http.StatusNotFound {
			return nil
		}
		return err
	}
	kind := "container"
	if name, ok := strings.CutPrefix(id, networkPrefix); ok {
		kind, err = "network", e.removeNetwork(ctx, name)
	} else if name, ok := strings.CutPrefix(id, volumePrefix); ok {
		kind = "volume"
		err = e.do(ctx, "remove volume", removeLimit, func(ctx context.Context) error {
			_, err := e.cli.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
			return err
		})
	} else {
		err = e.remove(ctx, id)
	}
	if err == nil || statusOf(err) == http.StatusNotFound {
		return nil
	}
	return &fault.Error{Class: classify(err), Code: "sandbox-stop-failed", What: "remove " + kind + " " + id, Fix: "See what still uses it, and run the command again.", Err: err}
}

// owned returns an error when what an id names carries no owner labels.
func (e *engine) owned(ctx context.Context, id string) error {
	var labels map[string]string
	err := e.do(ctx, "inspect", lookLimit, func(ctx context.Context) error {
		if name, ok := strings.CutPrefix(id, networkPrefix); ok {
			n, err := e.cli.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
			labels = n.Network.Labels
			return err
		}
		if name, ok := strings.CutPrefix(id, volumePrefix); ok {
			v, err := e.cli.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
			labels = v.Volume.Labels
			return err
		}
		c, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if c.Container.Config != nil {
			labels = c.Container.Config.Labels
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, ours := labels[ownerLabel]; !ours {
		return &fault.Error{Class: fault.Config, Code: "sandbox-not-ours", What: id + " was not made by this tool and is left alone", Fix: "Remove the entry that names it, and see who wrote it."}
	}
	return nil
}

// removeNetwork removes a network. A container that was just removed may still be
// on it for a moment.
func (e *engine) removeNetwork(ctx context.Context, id string) error {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		err := e.do(ctx, "remove network", removeLimit, func(ctx context.Context) error {
			_, err := e.cli.NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
			return err
		})
		if s := statusOf(err); s != http.StatusForbidden && s != http.StatusConflict || pause > 2*time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// isGuest reports whether a container's first process is the exec server.
func isGuest(c container.InspectResponse) bool {
	return c.Config != nil && slices.Contains(c.Config.Entrypoint, guestPath)
}

var _ sandbox.Inventory = (*Provider)(nil)
