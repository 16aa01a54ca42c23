// Package app runs the engine over an author's suite.
//
//	func main() { app.Main(assay.Suite{…}) }
//
// A program links only the providers and agents that its suite imports; the
// command assay links all that ship, through MainWith.
package app

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"assay"
	"assay/agent"
	"assay/internal/cli"
	"assay/internal/guest/guestbin"
	"assay/internal/guest/server"
	"assay/internal/snapshot"
	"assay/sandbox"
)

// Main is a whole program: it runs the command line over suite, joined with the
// files of the project folder, and exits. Files can name only what the program
// passes with MainWith.
func Main(suite assay.Suite) { MainWith(suite, Registries{}) }

// Registries are what project files may name.
type Registries struct {
	Sandboxes *sandbox.Registry
	Agents    *agent.Registry
	// Shapes are structs of further files that providers read, for
	// `assay schema`, by the name of the schema.
	Shapes map[string]any
}

// MainWith is Main with the providers and agents that project files may name.
func MainWith(suite assay.Suite, r Registries) {
	// On Linux this program can be the first process of a sandbox itself, when
	// no smaller one is at hand.
	if ran, code := server.Maybe(os.Args, server.Options{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Ledger: snapshot.Serve}); ran {
		os.Exit(code)
	}
	guestbin.SelfServes()
	if r.Sandboxes == nil {
		r.Sandboxes = sandbox.NewRegistry()
	}
	if r.Agents == nil {
		r.Agents = agent.NewRegistry()
	}
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	os.Exit(cli.Main(cli.Process{
		Args: os.Args[1:], Env: os.LookupEnv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Exit: os.Exit,
	}, cli.World{Name: name, Version: Version(), Suite: suite, Sandboxes: r.Sandboxes, Agents: r.Agents, Shapes: r.Shapes}))
}

// version is set by release builds.
var version string

// Version is the version of this build: the release, else the module version or
// the commit that it was built from.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	out := "devel"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			out += "+" + s.Value[:12]
		}
	}
	return out
}
