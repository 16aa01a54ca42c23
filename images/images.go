// Package images holds the recipes of the prebuilt environments, one per coding
// agent: its own CLI and what that needs. `assay image build <agent>` builds one
// on this machine.
//
// A tag is "<agent version>-r<recipe>": it moves with the CLI that is inside or
// with the recipe, never with this program.
package images

import _ "embed" // the recipes

// Repo is the first part of every name.
const Repo = "assay/"

// The names of the prebuilt environments.
const (
	ClaudeCode = Repo + "claude-code:2.1.207-r1"
	Codex      = Repo + "codex:0.144.1-r1"
	Bub        = Repo + "bub:0.4.0-r1"
)

// Recipe is how an environment is built.
type Recipe struct {
	// Agent is the agent's name, Version that of its CLI, and Revision counts the
	// recipe's changes from 1.
	Agent, Version string
	Revision       int
	// Dockerfile is its text; it needs no build context.
	Dockerfile string

	image string
}

//go:embed claude-code/Dockerfile
var claudeCode string

//go:embed codex/Dockerfile
var codex string

//go:embed bub/Dockerfile
var bub string

// All returns every recipe.
func All() []Recipe {
	return []Recipe{
		{"claude-code", "2.1.207", 1, claudeCode, ClaudeCode},
		{"codex", "0.144.1", 1, codex, Codex},
		{"bub", "0.4.0", 1, bub, Bub},
	}
}

// Lookup returns the recipe of an agent.
func Lookup(agent string) (Recipe, bool) {
	for _, r := range All() {
		if r.Agent == agent {
			return r, true
		}
	}
	return Recipe{}, false
}

// Image is the environment's name with its tag.
func (r Recipe) Image() string { return r.image }

// Tools names what is installed, as "agent@version".
func (r Recipe) Tools() string { return r.Agent + "@" + r.Version }
