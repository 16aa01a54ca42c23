// Package sandbox is the contract between the engine and the places where
// commands run: a stable concrete face, Sandbox, over a six-method Driver that
// providers implement.
//
// A custom provider imports only this package and fault. The whole of what it
// must promise is written on Provider and Driver, and package sandboxtest holds
// an implementation to every sentence. For a one-off, see Func.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"assay/fault"
	"assay/ref"
)

// Provider makes sandboxes of one kind. All methods are safe for concurrent use.
//
// Order of calls in a run: Info and Key at planning time, Check once, Prepare
// once per distinct key, Create once per sandbox. Classify may be called at any
// time.
type Provider interface {
	// Info returns plain facts about the provider. It is pure.
	Info() Info
	// Check answers, once per run, whether the provider can work at all:
	// credentials, connectivity, engine. Its error names the remedy.
	Check(ctx context.Context) error
	// Key names everything that the content of a prepared sandbox depends on.
	// Equal inputs give an equal key; every input that changes the content
	// changes it. It may read local files and uses no network.
	Key(ctx context.Context, t Template, h Harness) (Key, error)
	// Prepare makes the start point of a key: builds, pulls or finds it. It is
	// idempotent, and runs every slow step inside s.Do.
	Prepare(ctx context.Context, t Template, h Harness, s Steps) (Prepared, error)
	// Create starts one instance. Every instance carries the owner's labels
	// from birth. On error, cancellation included, no instance is left behind.
	Create(ctx context.Context, r CreateRequest) (Driver, error)
	// Classify judges an error of this provider's own making, and answers
	// fault.Unknown for every other. It is pure.
	Classify(err error) fault.Class
}

// Driver is one live environment as its provider sees it. All methods are safe
// for concurrent use, and no goroutine is left after Stop.
//
// Optional powers are separate small interfaces (Environer, Stater, Tracker,
// ProcessEnder, Digester, Remover, Lifetimer, Reporter, Suspender, Leaver,
// Enterer), found with As; a driver that lacks one simply does not implement it.
type Driver interface {
	// ID is the provider's own identifier of the instance, for registries and
	// messages.
	ID() string
	// Workdir is the absolute directory in which the agent works. It is known
	// from the start and never probed.
	Workdir() string
	// Exec runs one command and waits for it. A non-zero exit is a result, not
	// an error. A timeout, a cancellation and a transport failure are errors.
	//
	// The end of ctx ends the whole process tree of the command, setsid
	// children included. Where the driver cannot prove that, the error matches
	// ErrUnusable, and nobody may use the sandbox again. When the exit status
	// is known at the moment ctx ends, the status wins.
	//
	// A background process that the command leaves behind neither delays the
	// return nor is ended by it. Output of one stream keeps its order; Stdout
	// and Stderr are each written by one goroutine at a time, and never after
	// Exec has returned.
	Exec(ctx context.Context, c Cmd) (Exit, error)
	// Put unpacks a plain tar stream below the directory dir, which it makes
	// when missing. Everything it makes belongs to the sandbox's default user;
	// executable bits are kept, setuid bits are not. A failed Put leaves no
	// partial file under a final name. No entry lands outside dir.
	Put(ctx context.Context, dir string, tar io.Reader) error
	// Get writes a plain tar stream of path: one entry named by its base name
	// for a file, entries named relative to path for a directory. Symlinks are
	// entries, never followed. A missing path gives an error that matches
	// fs.ErrNotExist; no other failure does.
	Get(ctx context.Context, path string, tar io.Writer) error
	// Stop destroys the instance with everything it owns. It is idempotent,
	// bounded by ctx, and safe beside a running Exec, which it ends.
	Stop(ctx context.Context) error
}

// ErrUnusable is matched by the error of any operation after which the sandbox
// must not be used or lent again: it is gone, or a process in it could not be
// proven dead.
var ErrUnusable = errors.New("the sandbox is unusable")

// Cmd is one command as a Driver gets it: complete, with nothing left to
// resolve.
type Cmd struct {
	// Argv is the executable and its arguments. Nothing interprets them. An
	// executable without a slash is looked up in the PATH of Env; a missing one
	// is exit 127, one that may not be executed exit 126.
	Argv []string
	// Dir is an absolute directory inside the sandbox.
	Dir string
	// Env is added to the environment that Environer reports (or the driver's
	// own base where it has no such power); a key given here wins.
	Env map[string]string
	// User is the identity to run as; "" is the sandbox's default. A driver
	// that cannot switch returns an error with code "sandbox.user-unsupported".
	User string
	// Stdin is read to its end; nil gives the command an empty input.
	Stdin io.Reader
	// Stdout and Stderr get the output; nil discards it.
	Stdout, Stderr io.Writer
}

// Exit tells how a command ended.
type Exit struct {
	// Code is the exit code; 128 plus the signal's number where a signal
	// ended the command.
	Code int
	// Signal is the name of that signal, such as "SIGKILL", or "".
	Signal string
	// OOM is true only on the kernel's own evidence that memory ran out.
	OOM bool
}

// Info is what a provider is, as plain data. It may grow.
type Info struct {
	// Kind is the name used in YAML, such as "docker".
	Kind string
	// Engine names a variant, such as "podman", or is empty.
	Engine string
	// Concurrency is the recommended number of sandboxes at once.
	Concurrency int
	// Exclusive providers run one attempt at a time whatever flags say.
	Exclusive bool
	// RetryCreate allows the engine to repeat a Create that failed transiently.
	RetryCreate bool
	// Users says which identities a sandbox can be given.
	Users UserSupport
	// Keep, Reuse, Network and Limits say which of those can be asked of it;
	// AllowList that network access can be limited to named hosts.
	Keep, Reuse, Network, AllowList, Limits bool
	// Reset is false where the workdir must never be changed by the engine.
	Reset bool
	// Warning is printed once per run where the provider is used, or empty.
	Warning string
}

// UserSupport says which identities a provider can switch to.
type UserSupport uint8

// The kinds of user support.
const (
	UsersNone UserSupport = iota // only the default identity
	UsersRoot                    // the default and root
	UsersAny                     // any user of the environment
)

// Key names the content of a prepared sandbox. Attempts with equal keys of one
// provider share one preparation.
type Key string

// Prepared is a start point made by Provider.Prepare. It is opaque to the
// engine; Ref is its printable name, such as an image id.
type Prepared struct {
	Ref string
	// Details are further printable facts, such as the digest a tag stood for.
	Details map[string]string
	// Data belongs to the provider.
	Data any
}

// Harness is the set of tools that an agent needs inside the sandbox. The zero
// value needs none.
type Harness struct {
	Name, Version string
	// Install are shell commands, run as root, that a provider may bake.
	Install []string
}

// Steps is how Prepare does slow work: timed, reported, repeated while the
// error is transient, and named when it fails.
type Steps interface {
	Do(ctx context.Context, stage string, step func(context.Context) error) error
}

// Progresser is what Steps implement that can show how far the current step is.
// The engine's do.
type Progresser interface{ Progress(p Progress) }

// Template says where a sandbox starts from. It carries its provider, so that a
// program links only the providers it names.
type Template struct {
	Provider Provider
	// Spec is declared data that encodes to JSON: the identity of the start
	// point. It holds no secret and no run-time fact.
	Spec any
	// Dir is the host folder that relative paths in Spec refer to.
	Dir string
}

// CreateRequest is everything Create needs.
type CreateRequest struct {
	From     Prepared
	Template Template
	Owner    Owner
	// User is the identity of every command; "" is what the start point
	// declares.
	User string
	// Workdir asks for a working directory; "" leaves it to the provider.
	Workdir   string
	Resources Resources
	Network   Network
	// Lifetime bounds the sandbox's life and Timeout one attempt; 0 is no
	// limit. They are independent.
	Lifetime, Timeout time.Duration
	// Keep asks for a sandbox that can be suspended; see Suspender.
	Keep bool
	// Notes is bound to phase sandbox.create; never nil.
	Notes Notes
}

// Resources are limits of one sandbox. A zero field leaves the limit to the
// provider, which may have one that protects the machine.
type Resources struct {
	CPUs   float64 `json:"cpus,omitempty"`
	Memory int64   `json:"memory,omitempty"` // bytes; swap is not added
	PIDs   int64   `json:"pids,omitempty"`
	Disk   int64   `json:"disk,omitempty"` // bytes
}

// Network is what a sandbox may reach.
type Network struct {
	// Mode is "default", "none" or "allow"; "" means "default".
	Mode string `json:"mode,omitempty"`
	// Allow lists host names, with "*." prefixes, for mode "allow".
	Allow []string `json:"allow,omitempty"`
}

// Owner identifies who created an instance, precisely enough that another
// process can tell later whether the owner is dead.
type Owner struct {
	Invocation ref.InvocationID
	Run        ref.RunID
	Attempt    ref.AttemptID
	Experiment ref.ExperimentID
	Eval       ref.EvalID
	// Host, Boot and PIDNamespace name the machine, its boot and the process
	// namespace; StartTime is the process's start in clock ticks since boot.
	Host, Boot, PIDNamespace string
	PID                      int
	StartTime                string
	// Token is unique per Create: it finds what an ambiguous call may have
	// made.
	Token string
	// Registry is the host folder in which the owner lists what it keeps, or ""
	// when it keeps nothing: what is listed there is no orphan.
	Registry string
}

// LabelPrefix starts every label and metadata key that assay puts on instances.
const LabelPrefix = "assay."

// Labels returns the owner as instance labels. Values hold no secrets.
func (o Owner) Labels() map[string]string {
	m := map[string]string{
		"invocation": string(o.Invocation), "run": string(o.Run), "attempt": string(o.Attempt),
		"experiment": string(o.Experiment), "eval": string(o.Eval), "host": o.Host, "boot": o.Boot,
		"pidns": o.PIDNamespace, "pid": fmt.Sprint(o.PID), "start": o.StartTime, "token": o.Token,
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[LabelPrefix+k] = v
	}
	if o.Registry != "" {
		out[LabelPrefix+"registry"] = o.Registry
	}
	return out
}

// Environer reports the environment that commands of a user start with: HOME,
// USER, PATH and what the start point declares. user "" is the default.
type Environer interface {
	Environ(ctx context.Context, user string) (map[string]string, error)
}

// FileStat describes one file inside a sandbox.
type FileStat struct {
	Dir, Regular, Symlink bool
	Mode                  uint32 // permission bits
	Size                  int64
	UID, GID              int
}

// Stater looks at one path without moving its content. It follows a final
// symlink. A missing path gives an error that matches fs.ErrNotExist.
type Stater interface {
	Stat(ctx context.Context, path string) (FileStat, error)
}

// Tracker serves the change ledger beside the files: one request of package
// internal/snapshot in, its response stream out, in one round trip.
type Tracker interface {
	Track(ctx context.Context, request []byte, response io.Writer) error
}

// Process is one live process inside a sandbox.
type Process struct {
	PID     int    `json:"pid"`
	UID     int    `json:"uid"`
	Command string `json:"command"` // bounded
}

// ProcessEnder lists and ends what commands left running.
type ProcessEnder interface {
	Processes(ctx context.Context) ([]Process, error)
	// EndProcesses kills every process but the sandbox's own and returns when
	// none is left.
	EndProcesses(ctx context.Context) ([]Process, error)
}

// Remover removes a path and what is below it without running a program. A
// missing path is no error.
type Remover interface {
	Remove(ctx context.Context, path string) error
}

// Digester returns the SHA-256 of files, "" for a missing one, read by
// something that the agent cannot have replaced.
type Digester interface {
	Digest(ctx context.Context, paths []string) ([]string, error)
}

// Lifetimer confirms with the provider itself that an instance lives for at
// least min longer, and extends its life where it can.
type Lifetimer interface {
	EnsureLifetime(ctx context.Context, min time.Duration) (expires time.Time, err error)
}

// Reporter tells how an instance is doing by the provider's own account: nil
// while it runs, else an error that says why it does not (out of memory,
// exited, removed, engine gone).
type Reporter interface {
	Health(ctx context.Context) error
}

// Reconciler finds and destroys what an ambiguous Create with this owner's token
// may have made. A provider that has it may repeat ambiguous creates.
type Reconciler interface {
	Reconcile(ctx context.Context, o Owner) error
}

// unwrapper is implemented by drivers that wrap another.
type unwrapper interface{ Unwrap() Driver }

// As finds an optional power of a sandbox's driver, through wrappers.
func As[C any](s *Sandbox) (C, bool) { return AsDriver[C](s.d) }

// AsDriver is As for a bare driver.
func AsDriver[C any](d Driver) (C, bool) {
	for d != nil {
		if c, ok := d.(C); ok {
			return c, true
		}
		u, ok := d.(unwrapper)
		if !ok {
			break
		}
		d = u.Unwrap()
	}
	var zero C
	return zero, false
}

// Judge gives an error its class; it is the only place that does. Whether we
// cancelled is read from ctx, never from the error; then a class that is
// already there stands; then the provider is asked.
func Judge(ctx context.Context, p Provider, err error) *fault.Error {
	if err == nil {
		return nil
	}
	if cause := fault.Cause(ctx); cause != nil {
		return &fault.Error{Class: fault.Canceled, Code: cancelCode(cause), Err: err}
	}
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Class != fault.Unknown {
		if same, ok := err.(*fault.Error); ok {
			return same
		}
		return &fault.Error{Class: fe.Class, Code: fault.CodeOf(err), Stage: fault.StageOf(err), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err), Err: err}
	}
	class := fault.Unknown
	if p != nil {
		class = p.Classify(err)
	}
	return &fault.Error{Class: class, Code: fault.CodeOf(err), Stage: fault.StageOf(err), Fix: fault.FixOf(err), Scope: fault.ScopeOf(err), Err: err}
}

// cancelCode is the stable code of why our own context ended.
func cancelCode(cause error) string {
	var t *fault.Timeout
	if errors.As(cause, &t) {
		return t.Limit
	}
	if code := fault.CodeOf(cause); code != "" {
		return code
	}
	return "canceled"
}

// Definition lets YAML name a provider.
type Definition struct {
	// Kind is the key below `sandbox:`.
	Kind string
	// Spec returns a pointer to a fresh struct whose yaml tags are the fields
	// that the kind accepts. Its doc comments live in the JSON schema.
	Spec func() any
	// Template turns a decoded spec into a template. dir is the folder of the
	// file that named it.
	Template func(spec any, dir string) (Template, error)
	// Provider returns the provider that templates of the kind carry, for
	// `doctor` to check.
	Provider func() Provider
	// Remedy is the one line for `doctor` on what the provider needs.
	Remedy string
}

// Registry is the set of providers that YAML may name. It is a value that is
// passed; the zero value is empty.
type Registry struct{ defs map[string]Definition }

// NewRegistry returns a registry of the given definitions.
func NewRegistry(defs ...Definition) *Registry {
	r := &Registry{defs: map[string]Definition{}}
	for _, d := range defs {
		r.defs[d.Kind] = d
	}
	return r
}

// Lookup finds a kind.
func (r *Registry) Lookup(kind string) (Definition, bool) {
	d, ok := r.defs[kind]
	return d, ok
}

// Kinds lists the kinds in order.
func (r *Registry) Kinds() []string { return slices.Sorted(maps.Keys(r.defs)) }
