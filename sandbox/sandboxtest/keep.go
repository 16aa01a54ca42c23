package sandboxtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"assay/sandbox"
)

// inventory returns the instances of an owner.
func inventory(t testing.TB, v sandbox.Inventory, token string) []sandbox.Instance {
	t.Helper()
	all, err := v.Inventory(guard(t))
	if err != nil {
		t.Fatalf("Inventory: %v", err)
	}
	return slices.DeleteFunc(all, func(i sandbox.Instance) bool { return i.Labels[sandbox.LabelPrefix+"token"] != token })
}

// powerInventory: whatever an owner made is listed with its labels and can be
// destroyed by what the list says alone, and nothing of anybody else goes with
// it.
func powerInventory(t testing.TB, h Harness) {
	v, ok := h.Provider.(sandbox.Inventory)
	if !ok {
		t.Skip("the provider does not claim this power")
	}
	mine, other := startKept(t, h), startKept(t, h)
	found := inventory(t, v, mine.owner.Token)
	if len(found) == 0 {
		t.Fatal("a live sandbox is not listed")
	}
	for _, i := range found {
		if got := sandbox.OwnerOf(i.Labels); got != mine.owner {
			t.Errorf("the owner of %s %s is %+v, want %+v", i.Kind, i.ID, got, mine.owner)
		}
		if i.Kind == "" || i.ID == "" {
			t.Errorf("an instance has no kind or no id: %+v", i)
		}
	}
	for range 2 { // the second time they are gone
		for _, i := range found {
			if err := v.Destroy(mine.ctx, i.ID); err != nil {
				t.Errorf("Destroy of %s %s: %v", i.Kind, i.ID, err)
			}
		}
	}
	if left := inventory(t, v, mine.owner.Token); len(left) != 0 {
		t.Errorf("after Destroy there is still %+v", left)
	}
	if n := len(inventory(t, v, other.owner.Token)); n == 0 {
		t.Error("a sandbox of another owner was destroyed too")
	}
	if !h.NoShell {
		if o := other.argv("true"); o.Code != 0 {
			t.Errorf("a sandbox of another owner does not work any more: %+v", o)
		}
	}
}

// startKept is start of a sandbox that can be suspended, where that is possible.
func startKept(t testing.TB, h Harness) *box {
	t.Helper()
	ctx := guard(t)
	from, err := h.Provider.Prepare(ctx, h.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	o := owner()
	r := request(from, h.Template, o)
	r.Keep = h.Provider.Info().Keep
	d, err := h.Provider.Create(ctx, r)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = d.Stop(ctx) // it may be gone by design
	})
	return &box{t: t, h: h, d: d, ctx: ctx, owner: o, dir: d.Workdir()}
}

// powerSuspend: a suspended sandbox outlives the end of its driver and comes back
// with its files, and after that it can be stopped for good.
func powerSuspend(t testing.TB, h Harness) {
	b := startKept(t, h)
	s := power[sandbox.Suspender](b)
	w, ok := h.Provider.(sandbox.Waker)
	if !ok {
		t.Fatal("a driver can be suspended and its provider wakes none")
	}
	v, ok := h.Provider.(sandbox.Inventory)
	if !ok {
		t.Fatal("a driver can be suspended and its provider has no inventory")
	}
	b.put(b.dir, file("kept/f", "body"), executable("x", "#!/bin/sh\necho ran\n"))
	before := b.mustRead(b.dir)
	asleep, err := s.Suspend(b.ctx)
	if err != nil || asleep.ID == "" {
		t.Fatalf("Suspend: %+v, %v", asleep, err)
	}
	t.Cleanup(func() { // by the id alone, whatever became of it
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := v.Destroy(ctx, asleep.ID); err != nil {
			t.Errorf("Destroy of a suspended sandbox: %v", err)
		}
	})
	if err := b.d.Stop(b.ctx); err != nil {
		t.Errorf("Stop of a driver that was suspended: %v", err)
	}
	for _, i := range inventory(t, v, b.owner.Token) {
		if i.State == "running" {
			t.Errorf("the suspended sandbox runs: %+v", i)
		}
	}
	d, err := w.Wake(b.ctx, asleep.ID, sandbox.WakeRequest{Workdir: b.d.Workdir(), Lifetime: time.Hour, Owner: b.owner})
	if err != nil {
		t.Fatalf("Wake: %v", err)
	}
	awake := &box{t: t, h: h, d: d, ctx: b.ctx, owner: b.owner, dir: b.dir}
	if diff := before.diff(awake.mustRead(b.dir)); diff != "" {
		t.Errorf("the woken sandbox has other files:%s", diff)
	}
	if !h.NoShell {
		if o := awake.argv(b.dir + "/x"); o.Code != 0 || o.out != "ran\n" {
			t.Errorf("a program of the suspended sandbox gives %+v %q", o.Exit, o.out)
		}
	}
	if err := d.Stop(b.ctx); err != nil {
		t.Errorf("Stop of a sandbox that was woken: %v", err)
	}
	if left := leftovers(t, h.Instances, b.owner.Token); len(left) != 0 {
		t.Errorf("after Stop there is still %q", left)
	}
}
