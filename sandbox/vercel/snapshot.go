package vercel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"assay/fault"
	"assay/internal/cloudbox"
	"assay/ref"
	"assay/sandbox"
	"assay/sandbox/vercel/vercelapi"
)

// driver is a live sandbox.
type driver struct{ *cloudbox.Driver }

// keepFor is how long Suspend keeps files.
const keepFor = 30 * 24 * time.Hour

// Suspend keeps the sandbox's files as a snapshot, from which a layer can start
// too, and deletes the sandbox; its memory is lost.
func (d *driver) Suspend(ctx context.Context) (sandbox.Dormant, error) {
	m := d.Machine().(*machine)
	s, err := m.api.CreateSnapshot(ctx, m.sid, keepFor)
	if err != nil {
		return sandbox.Dormant{}, explain("take a snapshot of sandbox "+m.name, err)
	}
	out := sandbox.Dormant{ID: s.ID}
	if s.ExpiresAt > 0 {
		out.Expires = time.UnixMilli(s.ExpiresAt)
	}
	// The session has ended with the snapshot; what is left is a name.
	return out, d.Stop(ctx)
}

// snapshotPrefix starts the ids of snapshots.
const snapshotPrefix = "snap_"

// Wake makes a sandbox from the snapshot that Suspend took.
func (p *Provider) Wake(ctx context.Context, id string, r sandbox.WakeRequest) (sandbox.Driver, error) {
	if r.Owner.Token == "" {
		r.Owner.Token = ref.New()
	}
	return p.Create(ctx, sandbox.CreateRequest{
		Template: sandbox.Template{Provider: p, Spec: Spec{SnapshotID: id}}, Owner: r.Owner, User: r.User, Workdir: r.Workdir, Lifetime: r.Lifetime, Notes: sandbox.Quiet{},
	})
}

// Inventory lists the sandboxes that were made here. Snapshots carry no labels
// and are not among them.
func (p *Provider) Inventory(ctx context.Context) ([]sandbox.Instance, error) {
	all, err := p.Instances(ctx, nil)
	out := make([]sandbox.Instance, 0, len(all))
	for _, i := range all {
		out = append(out, sandbox.Instance{ID: i.ID, Kind: "sandbox", State: i.State, Labels: i.Labels, Created: i.Started})
	}
	return out, err
}

// NewSnapshot says how to build a snapshot.
type NewSnapshot struct {
	// From is where to start; the zero value is DefaultRuntime.
	From Spec
	// Commands are shell scripts, run in order; each must exit 0.
	Commands []SnapshotCommand
	// Files are written before the commands.
	Files []vercelapi.File
	// Expiration is how long the snapshot is kept; 0 is for ever.
	Expiration time.Duration
	// Lifetime bounds the build; 0 is half an hour.
	Lifetime time.Duration
	// Owner is who builds; its token names the sandbox.
	Owner sandbox.Owner
	// Output gets what the commands write; nil discards it.
	Output io.Writer
	// Started hears of each command before it runs. It may be nil.
	Started func(SnapshotCommand)
}

// SnapshotCommand is one command of a build.
type SnapshotCommand struct {
	Run string
	// Sudo runs it as root, as global installs need.
	Sudo bool
}

// CreateSnapshot runs commands in a fresh sandbox, keeps its files and deletes
// it. The returned id is what Snapshot and `vercel: {snapshotId: …}` take.
func (p *Provider) CreateSnapshot(ctx context.Context, n NewSnapshot) (id string, err error) {
	if n.From == (Spec{}) {
		n.From.Runtime = DefaultRuntime
	}
	if n.Output == nil {
		n.Output = io.Discard
	}
	if n.Lifetime == 0 {
		n.Lifetime = 30 * time.Minute
	}
	req, err := p.request(sandbox.CreateRequest{Template: sandbox.Template{Spec: n.From}, Owner: n.Owner, Lifetime: n.Lifetime})
	if err != nil {
		return "", err
	}
	if n.Owner.Token == "" {
		return "", errors.New("vercel: a snapshot needs an owner with a token")
	}
	if err := p.pacer.Wait(ctx); err != nil {
		return "", err
	}
	api := p.API()
	made, err := api.Create(ctx, req)
	if err != nil {
		return "", p.unmade(ctx, n.Owner, err)
	}
	defer func() {
		clean, cancel := fault.WithTimeout(context.WithoutCancel(ctx), "cleanup-limit", cleanupLimit, "built-in")
		defer cancel()
		if _, derr := api.Delete(clean, made.Sandbox.Name); derr != nil && err == nil {
			err = explain("delete the sandbox that the snapshot was taken from", derr)
		}
	}()
	if len(n.Files) > 0 {
		if err := api.WriteFiles(ctx, made.Session.ID, n.Files...); err != nil {
			return "", explain("write the snapshot's files", err)
		}
	}
	for i, c := range n.Commands {
		if n.Started != nil {
			n.Started(c)
		}
		if err := p.build(ctx, api, made.Session.ID, c, n.Output); err != nil {
			return "", fmt.Errorf("snapshot command %d: %w", i+1, err)
		}
	}
	s, err := api.CreateSnapshot(ctx, made.Session.ID, n.Expiration)
	if err != nil {
		return "", explain("take the snapshot", err)
	}
	return s.ID, nil
}

func (p *Provider) build(ctx context.Context, api *vercelapi.Client, sid string, c SnapshotCommand, out io.Writer) error {
	cmd, err := api.Start(ctx, sid, vercelapi.NewCommand{Command: "bash", Args: []string{"-c", c.Run}, Sudo: c.Sudo})
	if err != nil {
		return explain("start "+sandbox.Tail(c.Run, 60), err)
	}
	code, err := api.Follow(ctx, sid, cmd.ID, out, out)
	if err != nil {
		return explain("run "+sandbox.Tail(c.Run, 60), err)
	}
	if code != 0 {
		return fault.Configf("sandbox.snapshot-command", "Correct the command; what it wrote is above.", "%s: exit %d", sandbox.Tail(c.Run, 60), code)
	}
	return nil
}

var (
	_ sandbox.Inventory = (*Provider)(nil)
	_ sandbox.Waker     = (*Provider)(nil)
	_ sandbox.Suspender = (*driver)(nil)
)

// Exists reports whether a sandbox, or the snapshot of a suspended one, is there.
func (p *Provider) Exists(ctx context.Context, id string) (bool, error) {
	if strings.HasPrefix(id, snapshotPrefix) {
		return p.hasSnapshot(ctx, id)
	}
	_, err := p.API().Get(ctx, id, false)
	if s := vercelapi.StatusOf(err); s == http.StatusNotFound || s == http.StatusGone {
		return false, nil
	}
	return err == nil, err
}
