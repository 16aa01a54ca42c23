package docker

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// A command that is entered has a terminal of the asked size, reads what is typed
// and ends with its code, with the exec server and without.
func TestEnter(t *testing.T) {
	_, host := testreq.Engine(t)
	for _, mode := range []string{"auto", "off"} {
		t.Run(mode, func(t *testing.T) {
			p := provider(t, host)
			r := request(t, p, Spec{Image: testimage.Slice(t), Guest: mode})
			r.Network.Mode = "none"
			d := create(t, p, r)
			var out bytes.Buffer
			x, err := d.(sandbox.Enterer).Enter(limited(t), sandbox.Cmd{
				Argv: []string{"sh", "-c", `test -t 0 && test -t 1 && while [ "$(stty size)" = "0 0" ]; do sleep 0.05; done; stty size; read line; echo "got $line in $PWD as $TERM $EXTRA"; exit 3`},
				Dir:  d.Workdir(), Env: map[string]string{"EXTRA": "more"}, Stdin: strings.NewReader("hello\n"), Stdout: &out,
			}, sandbox.Terminal{Kind: "vt100", Width: 101, Height: 37})
			if err != nil || x.Code != 3 {
				t.Errorf("%+v, %v", x, err)
			}
			for _, want := range []string{"37 101", "got hello in " + d.Workdir() + " as vt100 more"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the terminal shows %q, not %q", out.String(), want)
				}
			}
		})
	}
}

// A sandbox that is left runs on without its driver, and can be woken and removed.
func TestLeave(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Slice(t)})
	r.Network.Mode = "none"
	d := create(t, p, r)
	if err := d.(sandbox.Leaver).Leave(limited(t)); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(limited(t)); err != nil { // it is not the driver's any more
		t.Error(err)
	}
	c, err := cli.ContainerInspect(limited(t), d.ID(), client.ContainerInspectOptions{})
	if err != nil || !c.Container.State.Running {
		t.Fatalf("the container that was left does not run: %+v, %v", c.Container.State, err)
	}
	again, err := p.Wake(limited(t), d.ID(), sandbox.WakeRequest{Workdir: d.Workdir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := p.Wake(limited(t), d.ID(), sandbox.WakeRequest{}); fault.CodeOf(err) != "sandbox-removed" {
		t.Errorf("waking a container that is gone gives %v", err)
	}
}

// Networks and volumes of an owner are found and removed like containers; what
// has no owner label is not seen.
func TestInventoryOfEveryKind(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	o := owner()
	ctx := limited(t)
	net, err := cli.NetworkCreate(ctx, "inventory-"+o.Token, client.NetworkCreateOptions{Labels: o.Labels()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cli.NetworkRemove(context.Background(), net.ID, client.NetworkRemoveOptions{}) })
	vol := "inventory-" + o.Token
	if _, err := cli.VolumeCreate(ctx, client.VolumeCreateOptions{Name: vol, Labels: o.Labels()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cli.VolumeRemove(context.Background(), vol, client.VolumeRemoveOptions{}) })
	other := "foreign-" + o.Token
	if _, err := cli.VolumeCreate(ctx, client.VolumeCreateOptions{Name: other}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cli.VolumeRemove(context.Background(), other, client.VolumeRemoveOptions{}) })
	mine := func() (kinds []string) {
		all, err := p.Inventory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			if i.Name == other {
				t.Errorf("a volume without an owner is listed: %+v", i)
			}
			if sandbox.OwnerOf(i.Labels) == o {
				kinds = append(kinds, i.Kind)
				if err := p.Destroy(ctx, i.ID); err != nil {
					t.Error(err)
				}
			}
		}
		return kinds
	}
	if got := mine(); !slices.Equal(got, []string{"network", "volume"}) {
		t.Errorf("the owner has %v", got)
	}
	if got := mine(); len(got) != 0 {
		t.Errorf("after Destroy the owner has %v", got)
	}
}

// What somebody else made is neither destroyed nor woken, whatever file names it.
func TestForeignThingsAreLeftAlone(t *testing.T) {
	cli, host := testreq.Engine(t)
	p := provider(t, host)
	name := "foreign-" + newToken()[:8]
	made, err := cli.ContainerCreate(limited(t), client.ContainerCreateOptions{Name: name, Config: &container.Config{Image: testimage.Slice(t), Cmd: []string{"sleep", "600"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cli.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		_, _ = cli.VolumeRemove(context.Background(), name, client.VolumeRemoveOptions{})
	})
	if _, err := cli.VolumeCreate(limited(t), client.VolumeCreateOptions{Name: name}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{made.ID, volumePrefix + name, networkPrefix + "bridge"} {
		if err := p.Destroy(limited(t), id); fault.CodeOf(err) != "sandbox-not-ours" || fault.FixOf(err) == "" {
			t.Errorf("destroy %s: %v", id, err)
		}
	}
	if _, err := p.Wake(limited(t), made.ID, sandbox.WakeRequest{}); fault.CodeOf(err) != "sandbox-not-ours" {
		t.Errorf("wake: %v", err)
	}
	if _, err := cli.ContainerInspect(limited(t), made.ID, client.ContainerInspectOptions{}); err != nil {
		t.Errorf("the container: %v", err)
	}
	if _, err := cli.VolumeInspect(limited(t), name, client.VolumeInspectOptions{}); err != nil {
		t.Errorf("the volume: %v", err)
	}
}
