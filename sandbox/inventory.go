package sandbox

import (
	"context"
	"strconv"
	"time"

	"assay/ref"
)

// Instance is one thing that a provider made and that can outlive the process
// that made it: a sandbox, or a network or volume that belongs to one.
type Instance struct {
	// ID is what Inventory.Destroy takes.
	ID string `json:"id"`
	// Kind is "container", "network", "volume", "sandbox", "snapshot" or what
	// else the provider has.
	Kind string `json:"kind"`
	// Name is for people; it may be empty.
	Name string `json:"name,omitempty"`
	// State is "running", "stopped" or what the provider calls it; "" where a
	// thing has none.
	State string `json:"state,omitempty"`
	// Labels are those that its owner gave it at birth.
	Labels map[string]string `json:"labels,omitempty"`
	// Created and Expires are zero where nobody knows.
	Created time.Time `json:"created,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// Inventory is a power of providers whose instances outlive a process that dies.
type Inventory interface {
	// Inventory lists everything with an owner that can outlive it, whoever made
	// it and in whatever state, in the order in which it can be destroyed: what
	// depends on another comes before it.
	Inventory(ctx context.Context) ([]Instance, error)
	// Destroy removes an instance with everything it owns, whatever its state.
	// One that is gone is no error; nil says that it is gone.
	Destroy(ctx context.Context, id string) error
}

// Dormant is a suspended sandbox.
type Dormant struct {
	// ID finds it again; it may differ from the driver's ID.
	ID string
	// Expires is when its provider forgets it, zero for never.
	Expires time.Time
}

// Suspender lets a sandbox outlive its driver, at rest: no process of it runs,
// or costs anything, and its files are kept. The driver lets go of it: Stop
// afterwards destroys nothing. On error the sandbox is the driver's as before.
//
// A provider may need CreateRequest.Keep for it.
type Suspender interface {
	Suspend(ctx context.Context) (Dormant, error)
}

// WakeRequest says how a dormant sandbox is to live again.
type WakeRequest struct {
	// User and Workdir are those it was created with.
	User, Workdir string
	// Lifetime bounds its life where the provider bounds lives; 0 leaves it to
	// the provider.
	Lifetime time.Duration
	// Owner labels what the provider has to make anew for it.
	Owner Owner
}

// Waker is a power of providers: it brings a suspended sandbox back, with its
// files as they were. On error it is dormant as before.
type Waker interface {
	Wake(ctx context.Context, id string, r WakeRequest) (Driver, error)
}

// Leaver lets a sandbox outlive its driver with its processes running.
type Leaver interface {
	Leave(ctx context.Context) error
}

// Terminal is the terminal that somebody sits at.
type Terminal struct {
	// Kind is the value of TERM.
	Kind string
	// Width and Height are its size when the command starts.
	Width, Height uint
	// Resized delivers new sizes, width first; nil never does.
	Resized <-chan [2]uint
}

// Enterer runs a command on a terminal of its own, whose input is c.Stdin and
// whose output is c.Stdout. A driver without it runs commands without a
// terminal.
type Enterer interface {
	Enter(ctx context.Context, c Cmd, t Terminal) (Exit, error)
}

// OwnerOf reads an owner from an instance's labels. Parts that are missing are
// empty.
func OwnerOf(labels map[string]string) Owner {
	get := func(name string) string { return labels[LabelPrefix+name] }
	o := Owner{
		Invocation: ref.InvocationID(get("invocation")), Run: ref.RunID(get("run")), Attempt: ref.AttemptID(get("attempt")),
		Experiment: ref.ExperimentID(get("experiment")), Eval: ref.EvalID(get("eval")), Host: get("host"), Boot: get("boot"),
		PIDNamespace: get("pidns"), StartTime: get("start"), Token: get("token"), Registry: get("registry"),
	}
	o.PID, _ = strconv.Atoi(get("pid")) // 0 is no process
	return o
}
