// Package sandboxtest holds every provider to the promises that package sandbox
// writes on Provider and Driver: one subtest for each promise. A provider's own
// test file only builds a Harness.
//
// A promise that a harness cannot put to the test is skipped with the reason.
// Every promise is itself tested: the package's own tests run it against a
// provider that breaks just that promise and require it to fail.
package sandboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/ref"
	"assay/sandbox"
)

// Fault is a failure that a harness may be able to make happen.
type Fault string

// The faults.
const (
	// CheckFails: credentials are wrong or the engine is down.
	CheckFails Fault = "check-fails"
	// PrepareConfig, PrepareTransient and PrepareResource: a build step fails,
	// a connection is refused, memory or disk runs out during Prepare.
	PrepareConfig    Fault = "prepare-config"
	PrepareTransient Fault = "prepare-transient"
	PrepareResource  Fault = "prepare-resource"
	// CreateFails: Create fails after it made something.
	CreateFails Fault = "create-fails"
	// CreateStalls: Create stands still after it made something, until its
	// context ends. Broken.Reached is closed there.
	CreateStalls Fault = "create-stalls"
	// ExecFails, PutFails and GetFails: the transport breaks during the
	// operation.
	ExecFails Fault = "exec-fails"
	PutFails  Fault = "put-fails"
	GetFails  Fault = "get-fails"
	// StopStalls: the far end does not answer Stop.
	StopStalls Fault = "stop-stalls"
	// Vanishes: the instance is gone behind the driver's back.
	Vanishes Fault = "vanishes"
)

// Broken is a provider with one fault.
type Broken struct {
	Provider sandbox.Provider
	Template sandbox.Template
	// Trigger, when set, makes the fault happen to a live driver; otherwise it
	// happens by itself.
	Trigger func(ctx context.Context, d sandbox.Driver) error
	// Reached is closed when the operation stands still; see CreateStalls.
	Reached <-chan struct{}
	// Instances lists live instances by owner token; nil uses the harness's.
	Instances func(ctx context.Context, token string) ([]string, error)
}

// Harness is what the suite needs to know of a provider. Provider, Template and
// Instances are required.
type Harness struct {
	Provider sandbox.Provider
	// Template starts a sandbox with a POSIX shell and the usual small tools:
	// cat, dd, env, grep, head, id, ls, mv, printf, sha256sum, sleep, setsid,
	// tr. See NoShell.
	Template sandbox.Template
	// Others are templates whose content differs from Template's and from one
	// another's: each must have its own key.
	Others []sandbox.Template
	// BakesHarness says that the agent's tools are part of the content.
	BakesHarness bool
	// Instances lists the live instances, in any state, of an owner token.
	Instances func(ctx context.Context, token string) ([]string, error)
	// Labels reads an instance's labels from the provider; nil where instances
	// have none.
	Labels func(ctx context.Context, id string) (map[string]string, error)
	// Break makes each fault that the provider can be made to have.
	Break map[Fault]func(t testing.TB) Broken
	// Marked counts the live processes that have ST_MARK=mark in their
	// environment; nil looks into /proc with the sandbox's own shell.
	Marked func(ctx context.Context, d sandbox.Driver, mark string) (int, error)
	// Powers are the names of the optional powers the driver claims, such as
	// "Environer"; every other must be absent.
	Powers []string
	// NoShell marks a start point without shell and tools; what needs them is
	// skipped.
	NoShell bool
	// User is an existing identity besides the default one, or "".
	User string
	// ShortNames marks file systems that refuse names that are no UTF-8.
	ShortNames bool
	// HostView marks providers whose commands see the host's own environment.
	HostView bool
	// MayRetire accepts ErrUnusable instead of a proven end of a process tree.
	MayRetire bool
	// LargeOutput is the number of bytes on each stream of the large output
	// test; 0 means 50 MiB.
	LargeOutput int
	// IgnoreGoroutines are goroutines that outlive a sandbox for a reason.
	IgnoreGoroutines []goleak.Option
}

// Promise is one promise and its test.
type Promise struct {
	// Name is the name of the subtest.
	Name string
	// Test fails t when the provider breaks the promise.
	Test func(t testing.TB, h Harness)
}

// Promises returns every promise of the contract, in a fixed order.
func Promises() []Promise {
	return slices.Concat(providerPromises(), execPromises(), treePromises(), filePromises(), stopPromises(), powerPromises(), facePromises())
}

// Run holds a provider to every promise.
func Run(t *testing.T, h Harness) {
	for _, p := range Promises() {
		t.Run(p.Name, func(t *testing.T) { p.Test(t, h) })
	}
}

// patience ends what hangs; no test depends on how long anything takes.
const patience = 2 * time.Minute

func guard(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var serial atomic.Int64

func owner() sandbox.Owner {
	return sandbox.Owner{
		Invocation: ref.NewInvocation(), Run: ref.NewRun(), Attempt: ref.NewAttempt(),
		Experiment: "suite/exp", Eval: "suite/eval", Host: "host", Boot: "boot", PIDNamespace: "1",
		PID: 1, StartTime: "1", Token: ref.New(),
	}
}

// steps is a Steps that remembers stages and runs each step once.
type steps struct {
	stages []string
	failed string
}

func (s *steps) Do(ctx context.Context, stage string, step func(context.Context) error) error {
	s.stages = append(s.stages, stage)
	err := step(ctx)
	if err != nil {
		s.failed = stage
	}
	return err
}

func request(from sandbox.Prepared, t sandbox.Template, o sandbox.Owner) sandbox.CreateRequest {
	return sandbox.CreateRequest{From: from, Template: t, Owner: o, Lifetime: time.Hour, Timeout: time.Hour, Notes: sandbox.Quiet{ID: "suite/exp"}}
}

// box is one live sandbox of a test.
type box struct {
	t     testing.TB
	h     Harness
	d     sandbox.Driver
	ctx   context.Context
	owner sandbox.Owner
	dir   string // a directory of this box below the workdir, not yet made
}

// start makes a sandbox that ends with the test.
func start(t testing.TB, h Harness) *box {
	t.Helper()
	return startFrom(t, h, h.Provider, h.Template)
}

func startFrom(t testing.TB, h Harness, p sandbox.Provider, tmpl sandbox.Template) *box {
	t.Helper()
	ctx := guard(t)
	from, err := p.Prepare(ctx, tmpl, sandbox.Harness{}, &steps{})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	o := owner()
	d, err := p.Create(ctx, request(from, tmpl, o))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Stop(ctx); err != nil && !t.Failed() {
			t.Errorf("Stop at the end: %v", err)
		}
	})
	return &box{t: t, h: h, d: d, ctx: ctx, owner: o, dir: fmt.Sprintf("%s/st-%d", d.Workdir(), serial.Add(1))}
}

// broken starts a sandbox of a provider with a fault and triggers it.
func broken(t testing.TB, h Harness, f Fault) *box {
	t.Helper()
	br := faultOf(t, h, f)
	b := startFrom(t, h, br.Provider, br.Template)
	if br.Trigger != nil {
		if err := br.Trigger(b.ctx, b.d); err != nil {
			t.Fatalf("the harness could not make the fault %s happen: %v", f, err)
		}
	}
	return b
}

func faultOf(t testing.TB, h Harness, f Fault) Broken {
	t.Helper()
	mk := h.Break[f]
	if mk == nil {
		t.Skipf("the harness cannot make the fault %q happen", f)
	}
	br := mk(t)
	if br.Provider == nil {
		br.Provider = h.Provider
	}
	if br.Template.Provider == nil {
		br.Template = h.Template
	}
	if br.Instances == nil {
		br.Instances = h.Instances
	}
	return br
}

func needShell(t testing.TB, h Harness) {
	t.Helper()
	if h.NoShell {
		t.Skip("the start point has no shell and no tools")
	}
}
