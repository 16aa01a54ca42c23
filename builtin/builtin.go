// Package builtin is the list of what ships: the only package that names
// providers and agents.
package builtin

import (
	"assay/agent"
	"assay/agent/bub"
	"assay/agent/claudecode"
	"assay/agent/codex"
	"assay/agent/command"
	"assay/agent/opencode"
	"assay/agent/script"
	"assay/sandbox"
	"assay/sandbox/compose"
	"assay/sandbox/docker"
	"assay/sandbox/e2b"
	"assay/sandbox/fake"
	"assay/sandbox/local"
	"assay/sandbox/native"
	"assay/sandbox/vercel"
)

// Sandboxes are the providers that files may name.
func Sandboxes() *sandbox.Registry {
	return sandbox.NewRegistry(docker.Definition(), docker.PodmanDefinition(), compose.Definition(), local.Definition(), native.Definition(), e2b.Definition(), vercel.Definition(), fake.Definition())
}

// Agents are the agents that files may name.
func Agents() *agent.Registry {
	return agent.NewRegistry(
		claudecode.Definition(), codex.Definition(), opencode.Definition(), bub.Definition(),
		command.Definition(), script.Definition(), script.OracleDefinition(), script.NopDefinition(),
	)
}

// Shapes are the further files that providers read.
func Shapes() map[string]any {
	return map[string]any{"fake": fake.Script{}, "template": e2b.Recipe{}, "snapshot": vercel.Recipe{}}
}
