package guest_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"assay/internal/guest"
	"assay/internal/guest/guesttest"
)

// alone starts a guest whose end the test itself waits for.
func alone(t *testing.T) (*guest.Client, func() error) {
	t.Helper()
	cmd := exec.Command(guesttest.Build(t), "--init")
	rw, err := guesttest.Connect(cmd)
	if err != nil {
		t.Fatal(err)
	}
	c, err := guest.Dial(t.Context(), rw, guest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = cmd.Process.Kill() // it may be gone
	})
	return c, cmd.Wait
}

func TestLifeIsTheGuestsOwn(t *testing.T) {
	c, wait := alone(t)
	if left, limited, err := c.Live(t.Context(), 0, time.Hour); err != nil || limited {
		t.Errorf("a guest without an end has %s left, %v, %v", left, limited, err)
	}
	if left, limited, err := c.Live(t.Context(), time.Hour, 0); err != nil || !limited || left > time.Hour || left < 59*time.Minute {
		t.Errorf("of an hour %s is left, %v, %v", left, limited, err)
	}
	if left, _, err := c.Live(t.Context(), 0, time.Minute); err != nil || left < 59*time.Minute {
		t.Errorf("asking for a minute of an hour left %s, %v", left, err)
	}
	if left, _, err := c.Live(t.Context(), 0, 2*time.Hour); err != nil || left < 119*time.Minute {
		t.Errorf("asking for two hours left %s, %v", left, err)
	}
	// A command that would run for ever ends with the guest.
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), guest.ExecRequest{Argv: []string{"sleep", "600"}, Dir: "/", Env: []string{"PATH=/bin:/usr/bin"}})
		done <- err
	}()
	if _, _, err := c.Live(t.Context(), time.Millisecond, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a command outlived the guest")
	}
	if err := wait(); err == nil || !strings.Contains(err.Error(), "124") {
		t.Errorf("the guest ended with %v", err)
	}
}

// A guest whose connection is gone ends all the same.
func TestLifeEndsAKeptGuest(t *testing.T) {
	c, wait := alone(t)
	if err := c.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Live(t.Context(), 50*time.Millisecond, 0); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := wait(); err == nil || !strings.Contains(err.Error(), "124") {
		t.Errorf("the guest ended with %v", err)
	}
}

func TestRemove(t *testing.T) {
	g := guesttest.Start(t, false)
	for _, p := range []string{"/", "", "relative", "/tmp/.."} {
		if err := g.Remove(t.Context(), p); err == nil {
			t.Errorf("Remove of %q says nothing", p)
		}
	}
}
