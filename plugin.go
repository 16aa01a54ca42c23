package assay

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"assay/fault"
	"assay/sandbox"
)

// Plugin is a reusable condition that an experiment, a group or an eval is run
// under, such as a warm cache or a mock service. It is no plugin of the agent's
// own; those belong to the agent.
//
// Setup runs once per sandbox, after the setup of the layer of its owner, and
// Teardown last first before the teardown of that layer. Owner, name, key,
// revision, With, the commands and the shape of the hooks are inputs of carry:
// a change of any makes results stale.
type Plugin struct {
	// Name is what the plugin is, such as "warm-cache".
	Name string
	// Key tells instances of one plugin on one owner apart; "" is the only one.
	Key string
	// Revision names the behaviour of what nobody can see: the bodies of the
	// hooks, and what the commands call. Change it when results of before no
	// longer hold.
	Revision string
	// With is the declared configuration. The commands find each entry in the
	// environment variable PLUGIN_<NAME>: a text as it is, anything else as JSON.
	With map[string]any
	// Setup and Teardown are commands; SetupHook and TeardownHook run after the
	// one and before the other.
	Setup, Teardown         []sandbox.Command
	SetupHook, TeardownHook sandbox.Hook
}

// Label is the name with the key.
func (p Plugin) Label() string {
	if p.Key == "" {
		return p.Name
	}
	return p.Name + "/" + p.Key
}

// CheckPlugins finds what is wrong with the plugins of one owner.
func CheckPlugins(owner string, plugins []Plugin) error {
	seen := map[string]bool{}
	for _, p := range plugins {
		switch {
		case p.Name == "":
			return fault.Configf("plugin-name-missing", "Give every plugin a name.", "a plugin of %s has no name", owner)
		case seen[p.Name+"\x00"+p.Key]:
			return fault.Configf("plugin-duplicate", "Remove one of them, or give each a `key` of its own.", "%s has the plugin %s twice", owner, p.Label())
		}
		seen[p.Name+"\x00"+p.Key] = true
	}
	return nil
}

// Attach returns the layer with the plugins' parts at the end of its chains.
func Attach(l sandbox.Layer, plugins []Plugin) sandbox.Layer {
	for _, p := range plugins {
		env := p.env()
		l = l.SetupCommands(p.with(p.Setup, "setup", env)...)
		if p.SetupHook != nil {
			l = l.Setup(p.SetupHook)
		}
		// Teardown chains run last first, and a plugin's hook comes before its
		// commands.
		l = l.TeardownCommands(p.with(p.Teardown, "teardown", env)...)
		if p.TeardownHook != nil {
			l = l.Teardown(p.TeardownHook)
		}
	}
	return l
}

func (p Plugin) with(commands []sandbox.Command, part string, env map[string]string) []sandbox.Command {
	out := slices.Clone(commands)
	for i := range out {
		own := out[i].Env
		out[i].Env = maps.Clone(env)
		maps.Copy(out[i].Env, own)
		if out[i].Name == "" {
			out[i].Name = fmt.Sprintf("plugin %s %s: %s", p.Label(), part, out[i].Label())
		}
	}
	return out
}

func (p Plugin) env() map[string]string {
	env := map[string]string{}
	for k, v := range p.With {
		name := "PLUGIN_" + strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r - 'a' + 'A'
			}
			if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
				return r
			}
			return '_'
		}, k)
		if s, ok := v.(string); ok {
			env[name] = s
			continue
		}
		env[name] = plainJSON(v)
	}
	return env
}

func plainJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
