// Package builtin is the list of what ships: the only package that names
// providers and agents.
package builtin

import (
	"assay/agent"
	"assay/agent/command"
	"assay/agent/script"
	"assay/sandbox"
	"assay/sandbox/docker"
	"assay/sandbox/fake"
	"assay/sandbox/local"
)

// Sandboxes are the providers that files may name.
func Sandboxes() *sandbox.Registry {
	return sandbox.NewRegistry(docker.Definition(), docker.PodmanDefinition(), local.Definition(), fake.Definition())
}

// Agents are the agents that files may name.
func Agents() *agent.Registry {
	return agent.NewRegistry(command.Definition(), script.Definition(), script.OracleDefinition(), script.NopDefinition())
}

// Shapes are the further files that providers read.
func Shapes() map[string]any { return map[string]any{"fake": fake.Script{}} }
