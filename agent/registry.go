package agent

import (
	"maps"
	"slices"
)

// Definition lets YAML name an agent.
type Definition struct {
	// Name is the name below `agent:`.
	Name string
	// Summary is one line for help and schema.
	Summary string
	// Options returns a pointer to a fresh struct whose yaml tags are the
	// options that the agent accepts. A field of type []string takes a list of
	// shell commands.
	Options func() any
	// Agent makes the agent of decoded options; dir is the folder of the file
	// that named it, from which relative host paths start.
	Agent func(options any, dir string) (Agent, error)
	// Remedy is the one line for `doctor` on what the agent needs.
	Remedy string
}

// Registry is the set of agents that YAML may name. It is a value that is
// passed; the zero value is empty.
type Registry struct{ defs map[string]Definition }

// NewRegistry returns a registry of the given definitions.
func NewRegistry(defs ...Definition) *Registry {
	r := &Registry{defs: map[string]Definition{}}
	for _, d := range defs {
		r.defs[d.Name] = d
	}
	return r
}

// Lookup finds an agent.
func (r *Registry) Lookup(name string) (Definition, bool) {
	d, ok := r.defs[name]
	return d, ok
}

// Names lists the agents in order.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.defs)) }
