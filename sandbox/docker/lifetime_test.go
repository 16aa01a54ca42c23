package docker

import (
	"errors"
	"testing"
	"time"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

func TestLifetimeIsKeptByTheContainerItself(t *testing.T) {
	_, host := testreq.Engine(t)
	p := provider(t, host)
	r := request(t, p, Spec{Image: testimage.Slice(t)})
	r.Network.Mode, r.Lifetime = "none", time.Hour
	d := create(t, p, r).(*driver)
	if at, err := d.EnsureLifetime(limited(t), time.Minute); err != nil || time.Until(at) > time.Hour || time.Until(at) < 30*time.Minute {
		t.Errorf("an hour was asked for; it ends at %s, %v", at, err)
	}
	if err := d.Limit(limited(t), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-d.Client.Done()
	if _, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"true"}, Dir: "/"}); fault.CodeOf(err) != "sandbox-expired" || !errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("a command afterwards: %v", err)
	}
	if _, err := d.EnsureLifetime(limited(t), time.Minute); err == nil {
		t.Error("a container that ended is said to live")
	}
}
