package sandbox

import (
	"context"
	"time"

	"assay/fault"
)

// FuncOptions are what the engine tells a one-off provider.
type FuncOptions struct {
	// Timeout is the attempt's limit, 0 for none.
	Timeout time.Duration
	// Runtime is the author's hint, as given to Func.
	Runtime string
	// Feedback is bound to phase sandbox.create.
	Feedback Notes
	Owner    Owner
}

// Func is a provider made of one function, for environments that nobody else
// needs. Its Create is never repeated: what is safe to repeat, only the author
// knows. Sandboxes of a Func can be neither kept nor reused.
type Func struct {
	// Name is the kind shown in plans and records.
	Name string
	// RecommendedConcurrency is the number of sandboxes at once; 0 means 5.
	RecommendedConcurrency int
	// Exclusive runs one attempt at a time.
	Exclusive bool
	// Runtime is a hint passed to Make, such as "node24".
	Runtime string
	// Revision names the behaviour of Make: change it when results of before
	// no longer hold.
	Revision string
	// Make creates one environment. On error it leaves nothing behind.
	Make func(ctx context.Context, o FuncOptions) (Driver, error)
	// Judge classifies the errors of Make and of its drivers; nil judges none.
	Judge func(err error) fault.Class
}

// Layer returns a template-bearing layer of this provider.
func (f *Func) Layer() Layer {
	return From(Template{Provider: f, Spec: map[string]string{"func": f.Name, "runtime": f.Runtime, "revision": f.Revision}})
}

// Info describes the provider.
func (f *Func) Info() Info {
	n := f.RecommendedConcurrency
	if n == 0 {
		n = 5
	}
	return Info{Kind: f.Name, Concurrency: n, Exclusive: f.Exclusive, Users: UsersAny, Reset: true}
}

// Check finds a Func without a name or Make.
func (f *Func) Check(context.Context) error {
	if f.Name == "" || f.Make == nil {
		return fault.Configf("sandbox.func-incomplete", "Set Name and Make of the sandbox.Func.", "a custom provider has no name or no function")
	}
	return nil
}

// Key is the name, hint and revision.
func (f *Func) Key(context.Context, Template, Harness) (Key, error) {
	return Key(f.Name + "/" + f.Runtime + "/" + f.Revision), nil
}

// Prepare has nothing to do.
func (f *Func) Prepare(context.Context, Template, Harness, Steps) (Prepared, error) {
	return Prepared{Ref: f.Name}, nil
}

// Create calls Make once.
func (f *Func) Create(ctx context.Context, r CreateRequest) (Driver, error) {
	return f.Make(ctx, FuncOptions{Timeout: r.Timeout, Runtime: f.Runtime, Feedback: r.Notes, Owner: r.Owner})
}

// Classify asks Judge.
func (f *Func) Classify(err error) fault.Class {
	if f.Judge == nil {
		return fault.Unknown
	}
	return f.Judge(err)
}

var _ Provider = (*Func)(nil)
