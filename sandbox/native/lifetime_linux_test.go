package native

import (
	"errors"
	"testing"
	"time"

	"assay/fault"
	"assay/sandbox"
)

func TestLifetimeIsKeptByTheSandboxItself(t *testing.T) {
	p := provider(t)
	r := request(t, p, Spec{})
	r.Lifetime = time.Hour
	d := create(t, p, r)
	soon := time.Now().Add(2 * time.Hour)
	if at, err := d.EnsureLifetime(limited(t), 2*time.Hour); err != nil || at.Before(soon) {
		t.Errorf("two hours were asked for; it ends at %s, %v", at, err)
	}
	// The hour is over at once.
	if err := d.Limit(limited(t), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-d.Client.Done()
	until(t, "the end of the sandbox", func() bool { return d.Health(limited(t)) != nil })
	if err := d.Health(limited(t)); fault.CodeOf(err) != "sandbox-expired" || !errors.Is(err, sandbox.ErrUnusable) {
		t.Errorf("Health afterwards: %v", err)
	}
	for range 2 { // the second time the first process is reaped
		if _, err := d.Exec(limited(t), sandbox.Cmd{Argv: []string{"true"}, Dir: "/"}); fault.CodeOf(err) != "sandbox-expired" || !errors.Is(err, sandbox.ErrUnusable) {
			t.Errorf("a command afterwards: %v", err)
		}
	}
	if _, err := d.EnsureLifetime(limited(t), time.Minute); err == nil {
		t.Error("a sandbox that ended is said to live")
	}
}
