package docker

import (
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
	"assay/sandbox/sandboxtest"
)

// Podman is the same provider with another engine value, and is held to the
// same promises.
func podmanSuite(t *testing.T, spec Spec) sandboxtest.Harness {
	cli, host := testreq.Podman(t)
	return suiteOn(t, Podman, cli, host, spec, testimage.Podman(t, "slice"), testimage.Podman(t, "busybox"), testimage.Podman(t, "slice-user"))
}

func TestSuitePodman(t *testing.T) {
	h := podmanSuite(t, Spec{})
	h.Powers = []string{"Environer", "Stater", "Tracker", "ProcessEnder", "Digester", "Remover", "Lifetimer", "Reporter", "Reconciler", "Suspender", "Leaver", "Enterer", "Inventory", "Waker"}
	sandboxtest.Run(t, h)
}

// What cannot be the first process of an image is told apart from an engine that
// fails.
func TestPodmanWithoutAProgramToStart(t *testing.T) {
	_, host := testreq.Podman(t)
	p := providerOf(t, Podman, host)
	r := request(t, p, Spec{Image: testimage.Podman(t, "scratch"), Guest: "off"})
	r.Network.Mode = "none"
	if d, err := p.Create(limited(t), r); fault.CodeOf(err) != "sandbox.image-unusable" {
		t.Errorf("an image without programs: %v, %v", d, err)
	}
	// The exec server needs nothing of the image.
	r = request(t, p, Spec{Image: testimage.Podman(t, "scratch")})
	r.Network.Mode = "none"
	d := create(t, p, r)
	if err := d.(sandbox.Reporter).Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}
}

func TestPodmanIsNamed(t *testing.T) {
	p := New(Options{Engine: Podman, Host: "unix://" + t.TempDir() + "/none.sock"})
	if err := p.Check(t.Context()); fault.CodeOf(err) != "sandbox.engine-unreachable" || !strings.Contains(err.Error(), "podman") || !strings.Contains(fault.FixOf(err), "podman.socket") {
		t.Errorf("an absent Podman: %v, fix %q", err, fault.FixOf(err))
	}
	if info := p.Info(); info.Kind != Podman || info.Engine != Podman {
		t.Errorf("Info is %+v", info)
	}
}

func TestSuitePodmanPlain(t *testing.T) {
	h := podmanSuite(t, Spec{Guest: "off"})
	h.Powers = []string{"Environer", "ProcessEnder", "Digester", "Reporter", "Reconciler", "Suspender", "Enterer", "Inventory", "Waker"}
	h.MayRetire = true
	for _, p := range sandboxtest.Promises() {
		t.Run(p.Name, func(t *testing.T) {
			if why := beyond[p.Name]; why != "" {
				t.Skip(why)
			}
			p.Test(t, h)
		})
	}
}
