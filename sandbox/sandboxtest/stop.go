package sandboxtest

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/sandbox"
)

func stopPromises() []Promise {
	return []Promise{
		{"stop-removes-the-instance", stopRemoves},
		{"stop-is-idempotent", stopIdempotent},
		{"stop-ends-a-running-command", stopBesideExec},
		{"stop-is-bounded", stopBounded},
		{"stop-leaves-no-goroutine", stopGoroutines},
		{"stopped-sandbox-is-unusable", stoppedUnusable},
		{"sandboxes-are-apart", apart},
	}
}

func stopRemoves(t testing.TB, h Harness) {
	b := start(t, h)
	if ids := leftovers(t, h.Instances, b.owner.Token); len(ids) != 1 {
		t.Fatalf("a live sandbox is listed as %q", ids)
	}
	if err := b.d.Stop(b.ctx); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if ids := leftovers(t, h.Instances, b.owner.Token); len(ids) != 0 {
		t.Errorf("Stop left %q", ids)
	}
}

func stopIdempotent(t testing.TB, h Harness) {
	b := start(t, h)
	for i := range 3 {
		if err := b.d.Stop(b.ctx); err != nil {
			t.Errorf("Stop number %d: %v", i+1, err)
		}
	}
	b = start(t, h)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() { errs <- b.d.Stop(b.ctx) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("Stop beside Stop: %v", err)
		}
	}
}

func stopBesideExec(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	ready := make(chan struct{}, 8)
	done := make(chan error, 1)
	go func() {
		_, err := b.exec(b.ctx, sandbox.Cmd{Argv: script("trap '' TERM; echo ready; while :; do sleep 1; done"), Stdout: &sink{on: func(int64) { ready <- struct{}{} }}})
		done <- err
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the command ended early: %v", err)
	}
	if err := b.d.Stop(b.ctx); err != nil {
		t.Errorf("Stop beside a running command: %v", err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("a command that Stop ended is no error")
		}
	case <-b.ctx.Done():
		t.Error("a running command outlives Stop")
	}
}

func stopBounded(t testing.TB, h Harness) {
	br := faultOf(t, h, StopStalls)
	ctx := guard(t)
	from, err := br.Provider.Prepare(ctx, br.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := br.Provider.Create(ctx, request(from, br.Template, owner()))
	if err != nil {
		t.Fatal(err)
	}
	if br.Trigger != nil {
		if err := br.Trigger(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Stop(short) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Stop says that an instance is gone although the far end never answered")
		}
	case <-time.After(patience / 4):
		t.Error("Stop does not end with its context")
	}
}

func stopGoroutines(t testing.TB, h Harness) {
	ctx := guard(t)
	before := goleak.IgnoreCurrent()
	func() {
		from, err := h.Provider.Prepare(ctx, h.Template, sandbox.Harness{}, &steps{})
		if err != nil {
			t.Fatalf("Prepare: %v", err)
		}
		d, err := h.Provider.Create(ctx, request(from, h.Template, owner()))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		b := &box{t: t, h: h, d: d, ctx: ctx, dir: d.Workdir() + "/st-leak"}
		b.put(b.dir, file("f", "1"))
		b.mustRead(b.dir)
		_ = d.Put(ctx, b.dir, &failingReader{strings.NewReader("x"), io.ErrUnexpectedEOF})
		if !h.NoShell {
			b.argv(script("sleep 600 & echo up")...)
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = b.exec(short, sandbox.Cmd{Argv: script("sleep 600")})
			cancel()
		}
		if err := d.Stop(ctx); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}()
	if err := goleak.Find(append([]goleak.Option{before}, h.IgnoreGoroutines...)...); err != nil {
		t.Errorf("goroutines are left after Stop: %v", err)
	}
}

func stoppedUnusable(t testing.TB, h Harness) {
	b := start(t, h)
	c := b.cmd(sandbox.Cmd{Argv: []string{"true"}})
	if err := b.d.Stop(b.ctx); err != nil {
		t.Fatal(err)
	}
	if o, err := b.d.Exec(b.ctx, c); err == nil {
		t.Errorf("a command in a stopped sandbox gave %+v and no error", o)
	}
	if err := b.d.Put(b.ctx, b.dir, tarOf(t, file("f", "1"))); err == nil {
		t.Error("Put into a stopped sandbox is no error")
	}
	if err := b.d.Get(b.ctx, b.dir, io.Discard); err == nil || isMissing(err) {
		t.Errorf("Get from a stopped sandbox: %v, want an error that is not \"does not exist\"", err)
	}
}

func apart(t testing.TB, h Harness) {
	if h.Provider.Info().Exclusive {
		t.Skip("an exclusive provider has one sandbox at a time")
	}
	a, b := start(t, h), start(t, h)
	if a.d.ID() == b.d.ID() {
		t.Fatalf("two sandboxes share the id %q", a.d.ID())
	}
	a.put(a.dir, file("f", "1"))
	if !b.missing(a.dir + "/f") {
		t.Error("a file of one sandbox is visible in another")
	}
	if err := a.d.Stop(a.ctx); err != nil {
		t.Fatal(err)
	}
	b.put(b.dir, file("f", "1"))
	if b.missing(b.dir + "/f") {
		t.Error("the stop of one sandbox breaks another")
	}
}
