package sandboxtest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"reflect"
	"testing"

	"assay/fault"
	"assay/sandbox"
)

func providerPromises() []Promise {
	return []Promise{
		{"info-is-pure", infoIsPure},
		{"key-is-deterministic", keyIsDeterministic},
		{"key-follows-content", keyFollowsContent},
		{"check-passes", checkPasses},
		{"check-names-the-remedy", checkNamesTheRemedy},
		{"prepare-is-idempotent", prepareIsIdempotent},
		{"prepare-classes", prepareClasses},
		{"prepare-obeys-cancel", prepareObeysCancel},
		{"create-failure-leaves-nothing", createFailureLeavesNothing},
		{"create-cancel-leaves-nothing", createCancelLeavesNothing},
		{"owner-labels-from-birth", ownerLabels},
		{"classify-judges-only-its-own", classifyForeign},
	}
}

func infoIsPure(t testing.TB, h Harness) {
	a, b := h.Provider.Info(), h.Provider.Info()
	if !reflect.DeepEqual(a, b) {
		t.Errorf("Info changed between two calls: %+v and %+v", a, b)
	}
	if a.Kind == "" || a.Concurrency < 1 {
		t.Errorf("Info has no kind or no recommended concurrency: %+v", a)
	}
	if a.Exclusive && a.Concurrency != 1 {
		t.Errorf("an exclusive provider recommends a concurrency of %d", a.Concurrency)
	}
}

func key(t testing.TB, p sandbox.Provider, tmpl sandbox.Template, h sandbox.Harness) sandbox.Key {
	t.Helper()
	k, err := p.Key(guard(t), tmpl, h)
	if err != nil {
		t.Fatalf("Key: %v", err)
	}
	if k == "" {
		t.Fatal("Key is empty")
	}
	return k
}

func keyIsDeterministic(t testing.TB, h Harness) {
	first := key(t, h.Provider, h.Template, sandbox.Harness{})
	for range 5 {
		if k := key(t, h.Provider, h.Template, sandbox.Harness{}); k != first {
			t.Fatalf("equal inputs gave the keys %q and %q", first, k)
		}
	}
}

func keyFollowsContent(t testing.TB, h Harness) {
	if len(h.Others) == 0 && !h.BakesHarness {
		t.Skip("the harness names no template with other content")
	}
	seen := map[sandbox.Key]int{key(t, h.Provider, h.Template, sandbox.Harness{}): -1}
	for i, o := range h.Others {
		k := key(t, h.Provider, o, sandbox.Harness{})
		if j, dup := seen[k]; dup {
			t.Errorf("templates %d and %d differ in content and share the key %q", i, j, k)
		}
		seen[k] = i
	}
	if h.BakesHarness {
		a := key(t, h.Provider, h.Template, sandbox.Harness{Name: "a", Version: "1", Install: []string{"true"}})
		b := key(t, h.Provider, h.Template, sandbox.Harness{Name: "a", Version: "2", Install: []string{"true"}})
		c := key(t, h.Provider, h.Template, sandbox.Harness{Name: "a", Version: "1", Install: []string{"false"}})
		if a == b || a == c || b == c {
			t.Errorf("the agent's tools are baked, but do not change the key: %q, %q, %q", a, b, c)
		}
	}
}

func checkPasses(t testing.TB, h Harness) {
	if err := h.Provider.Check(guard(t)); err != nil {
		t.Errorf("Check of a working provider: %v", err)
	}
}

func checkNamesTheRemedy(t testing.TB, h Harness) {
	br := faultOf(t, h, CheckFails)
	ctx := guard(t)
	err := br.Provider.Check(ctx)
	if err == nil {
		t.Fatal("Check passed although the provider cannot work")
	}
	j := sandbox.Judge(ctx, br.Provider, err)
	if j.Class != fault.Config {
		t.Errorf("a provider that cannot work is judged %v, want config: %v", j.Class, err)
	}
	if fault.FixOf(j) == "" {
		t.Errorf("the error names no remedy: %v", err)
	}
}

func prepareIsIdempotent(t testing.TB, h Harness) {
	ctx := guard(t)
	a, err := h.Provider.Prepare(ctx, h.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	b, err := h.Provider.Prepare(ctx, h.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("second Prepare: %v", err)
	}
	if a.Ref == "" || a.Ref != b.Ref {
		t.Errorf("one key was prepared as %q and as %q", a.Ref, b.Ref)
	}
}

func prepareClasses(t testing.TB, h Harness) {
	tried := 0
	for f, want := range map[Fault]fault.Class{PrepareConfig: fault.Config, PrepareTransient: fault.Transient, PrepareResource: fault.Resource} {
		if h.Break[f] == nil {
			continue
		}
		tried++
		br := faultOf(t, h, f)
		ctx, s := guard(t), &steps{}
		_, err := br.Provider.Prepare(ctx, br.Template, sandbox.Harness{}, s)
		if err == nil {
			t.Errorf("%s: Prepare succeeded", f)
			continue
		}
		if got := sandbox.Judge(ctx, br.Provider, err).Class; got != want {
			t.Errorf("%s: judged %v, want %v: %v", f, got, want, err)
		}
		if s.failed == "" {
			t.Errorf("%s: the work that failed did not run inside Steps.Do, so its stage is unknown: %v", f, err)
		}
		if code := fault.CodeOf(err); want == fault.Resource && code != "oom" && code != "enospc" {
			t.Errorf("%s: the code %q does not say what ran out, oom or enospc: %v", f, code, err)
		}
		if want == fault.Config && fault.FixOf(err) == "" {
			t.Errorf("%s: the error does not say what the user can do: %v", f, err)
		}
	}
	if tried == 0 {
		t.Skip("the harness cannot make Prepare fail")
	}
}

func prepareObeysCancel(t testing.TB, h Harness) {
	br := faultOf(t, h, PrepareTransient)
	ctx, cancel := context.WithCancel(guard(t))
	cancel()
	_, err := br.Provider.Prepare(ctx, br.Template, sandbox.Harness{}, &steps{})
	if err == nil {
		t.Fatal("Prepare succeeded under a cancelled context")
	}
	if got := sandbox.Judge(ctx, br.Provider, err).Class; got != fault.Canceled {
		t.Errorf("judged %v, want canceled: %v", got, err)
	}
}

func leftovers(t testing.TB, list func(context.Context, string) ([]string, error), token string) []string {
	t.Helper()
	ids, err := list(guard(t), token)
	if err != nil {
		t.Fatalf("list instances: %v", err)
	}
	return ids
}

func createFailureLeavesNothing(t testing.TB, h Harness) {
	br := faultOf(t, h, CreateFails)
	ctx, o := guard(t), owner()
	from, err := br.Provider.Prepare(ctx, br.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	d, err := br.Provider.Create(ctx, request(from, br.Template, o))
	if err == nil {
		t.Cleanup(func() { _ = d.Stop(context.WithoutCancel(ctx)) })
		t.Fatal("Create succeeded although it had to fail")
	}
	if d != nil {
		t.Errorf("Create returned a driver besides the error %v", err)
	}
	if ids := leftovers(t, br.Instances, o.Token); len(ids) > 0 {
		t.Errorf("a Create that failed left %q behind", ids)
	}
}

func createCancelLeavesNothing(t testing.TB, h Harness) {
	br := faultOf(t, h, CreateStalls)
	ctx, cancel := context.WithCancel(guard(t))
	defer cancel()
	o := owner()
	from, err := br.Provider.Prepare(ctx, br.Template, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		d, err := br.Provider.Create(ctx, request(from, br.Template, o))
		if err == nil {
			_ = d.Stop(context.WithoutCancel(ctx))
		}
		done <- err
	}()
	select {
	case <-br.Reached:
	case err := <-done:
		t.Fatalf("Create ended before it was cancelled: %v", err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("Create succeeded although it was cancelled half-way")
	}
	if ids := leftovers(t, br.Instances, o.Token); len(ids) > 0 {
		t.Errorf("a cancelled Create left %q behind", ids)
	}
}

func ownerLabels(t testing.TB, h Harness) {
	b := start(t, h)
	ids := leftovers(t, h.Instances, b.owner.Token)
	if len(ids) != 1 || ids[0] != b.d.ID() {
		t.Fatalf("the owner's token finds %q, want the instance %q", ids, b.d.ID())
	}
	if h.Labels == nil {
		return
	}
	got, err := h.Labels(b.ctx, b.d.ID())
	if err != nil {
		t.Fatalf("labels: %v", err)
	}
	for k, want := range b.owner.Labels() {
		if got[k] != want {
			t.Errorf("label %s is %q, want %q", k, got[k], want)
		}
	}
}

func classifyForeign(t testing.TB, h Harness) {
	for _, err := range []error{
		errors.New("some other error"), io.ErrUnexpectedEOF, fs.ErrPermission, fs.ErrNotExist,
		context.Canceled, context.DeadlineExceeded, errors.Join(errors.New("connection refused"), io.EOF),
	} {
		if c := h.Provider.Classify(err); c != fault.Unknown {
			t.Errorf("Classify(%q) is %v: the provider did not make this error", err, c)
		}
	}
	if c := h.Provider.Classify(nil); c != fault.Unknown {
		t.Errorf("Classify(nil) is %v", c)
	}
}
