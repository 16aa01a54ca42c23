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

// The exec server is the only way into a container of Podman, and needs nothing
// of the image.
func TestPodmanNeedsTheExecServer(t *testing.T) {
	_, host := testreq.Podman(t)
	p := providerOf(t, Podman, host)
	off := sandbox.Template{Provider: p, Spec: Spec{Image: testimage.Podman(t, "busybox"), Guest: "off"}}
	if _, err := p.Key(t.Context(), off, sandbox.Harness{}); fault.CodeOf(err) != "sandbox.docker-guest" {
		t.Errorf("guest off: %v", err)
	}
	r := request(t, p, Spec{Image: testimage.Podman(t, "scratch")})
	r.Network.Mode = "none"
	d := create(t, p, r)
	if err := d.(sandbox.Reporter).Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}
	// Where it cannot start, Podman's own words are the error.
	bad := providerOf(t, Podman, host)
	bad.find = func(string) (guestBinary, error) { return guestBinary{Path: "/etc/hostname"}, nil }
	d, err := bad.Create(limited(t), r)
	if err == nil {
		_ = d.Stop(limited(t))
	}
	if fault.CodeOf(err) != "sandbox.image-unusable" || fault.ClassOf(err) != fault.Config || !strings.Contains(err.Error(), "exec") {
		t.Errorf("an exec server that cannot start: %v", err)
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

// Podman writes a container's name into its /etc/hosts, where an agent sees it.
func TestPodmanNamesNothingInside(t *testing.T) {
	_, host := testreq.Podman(t)
	p := providerOf(t, Podman, host)
	d := create(t, p, request(t, p, Spec{Image: testimage.Podman(t, "slice")}))
	if view := run(t, d, "", "cat /etc/hosts /etc/hostname /etc/resolv.conf /proc/self/mountinfo; env", nil); strings.Contains(strings.ToLower(view), "assay") {
		t.Errorf("the sandbox names this program:\n%s", view)
	}
}
