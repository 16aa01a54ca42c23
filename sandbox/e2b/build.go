package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"assay/fault"
	"assay/sandbox"
	"assay/sandbox/e2b/e2bapi"
)

// BuildOptions are the settings of a build.
type BuildOptions struct {
	// Tags are given to the build besides the tag of its name.
	Tags []string
	// CPUs and MemoryMB are facts of the template; 0 is the service's default.
	CPUs, MemoryMB int
	// SkipCache builds every step anew.
	SkipCache bool
	// Log gets the build's own lines as they come.
	Log func(e2bapi.LogEntry)
}

// Built is a finished build.
type Built struct {
	// Name is what `e2b: {template: …}` takes.
	Name       string
	TemplateID string
	BuildID    string
	Tags       []string
}

// BuildTemplate uploads what a builder copies, builds it under "name" or
// "name:tag", and waits for the end.
func (p *Provider) BuildTemplate(ctx context.Context, b *Builder, name string, o BuildOptions) (*Built, error) {
	if err := (Spec{Template: name}).check(); err != nil {
		return nil, err
	}
	recipe, err := b.Recipe()
	if err != nil {
		return nil, err
	}
	recipe.Force = recipe.Force || o.SkipCache
	api := p.API()
	reg, err := api.RegisterTemplate(ctx, e2bapi.NewTemplate{Name: name, Tags: o.Tags, CPUCount: o.CPUs, MemoryMB: o.MemoryMB})
	if err != nil {
		return nil, explain("register template "+name, err)
	}
	for i, s := range b.steps {
		if s.Type != "COPY" {
			continue
		}
		if err := b.send(ctx, api, reg, s, recipe.Steps[i].FilesHash); err != nil {
			return nil, explain("upload the files of COPY "+s.Args[0], err)
		}
	}
	if err := api.StartBuild(ctx, reg, recipe); err != nil {
		return nil, explain("start the build of "+name, err)
	}
	if err := api.WaitBuild(ctx, reg, o.Log); err != nil {
		var failed *e2bapi.BuildError
		if errors.As(err, &failed) {
			return nil, &fault.Error{Class: fault.Config, Code: "template-build-failed", What: fmt.Sprintf("build template %s%s", name, stepText(b, failed.Step)), Fix: "Correct the step; its output is above.", Err: err}
		}
		return nil, explain("build template "+name, err)
	}
	return &Built{Name: name, TemplateID: reg.TemplateID, BuildID: reg.BuildID, Tags: reg.Tags}, nil
}

// stepText shows the step that failed, which the service names by its number.
func stepText(b *Builder, number string) string {
	n := 0
	if _, err := fmt.Sscan(number, &n); err != nil || n < 1 || n > len(b.steps) {
		return ""
	}
	s := b.steps[n-1]
	return fmt.Sprintf(", step %d (%s %s)", n, s.Type, sandbox.Tail(strings.Join(s.Args, " "), 80))
}

// send uploads the files of one COPY unless the service has them.
func (b *Builder) send(ctx context.Context, api *e2bapi.Client, reg *e2bapi.Registered, s step, hash string) error {
	link, err := api.FileLink(ctx, reg.TemplateID, hash)
	if err != nil {
		return err
	}
	if link.URL == "" || link.Present && !s.upload {
		return nil
	}
	files, err := b.files(s)
	if err != nil {
		return err
	}
	f, err := packFiles(files, s.follow)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }() // a temporary file
	st, err := f.Stat()
	if err != nil {
		return err
	}
	upload, cancel := fault.WithTimeout(ctx, "upload-limit", time.Hour, "built-in")
	defer cancel()
	return api.PutFile(upload, link, f, st.Size())
}

// The coding agents that CodingAgentTemplate knows.
const (
	ClaudeCode = "claude-code"
	Codex      = "codex"
	Bub        = "bub"
)

// AgentOptions are the settings of a CodingAgentTemplate.
type AgentOptions struct {
	// Version replaces the pinned one.
	Version string
	// BubPythonPackages are installed beside Bub. They must be those that the
	// agent's pythonPlugins name, so that its fingerprint matches.
	BubPythonPackages []string
}

// CodingAgentTemplate returns a builder with a coding agent installed at its
// pinned version, and nothing else; go on with the builder's own methods.
func CodingAgentTemplate(agent string, o ...AgentOptions) *Builder {
	var opt AgentOptions
	if len(o) > 0 {
		opt = o[0]
	}
	b := Template("")
	if len(opt.BubPythonPackages) > 0 && agent != Bub {
		return b.fail("BubPythonPackages are for %s, not for %s", Bub, agent)
	}
	node := func(pkg, version string) *Builder {
		return b.FromNodeImage("24-slim").AptInstallLean("ca-certificates", "git", "procps").NpmInstallGlobal(pkg + "@" + cmp.Or(opt.Version, version))
	}
	switch agent {
	case ClaudeCode:
		return node("@anthropic-ai/claude-code", ClaudeCodeVersion)
	case Codex:
		return node("@openai/codex", CodexVersion)
	case Bub:
		packages := slices.Sorted(slices.Values(opt.BubPythonPackages))
		cmd := "UV_TOOL_DIR=/opt/uv UV_TOOL_BIN_DIR=/usr/local/bin uv tool install bub==" + cmp.Or(opt.Version, BubVersion)
		for _, p := range packages {
			cmd += " --with " + quote(p)
		}
		return b.FromPythonImage("3.12-slim").AptInstallLean("ca-certificates", "git", "procps").PipInstall("uv").RunCmdAs("root", cmd)
	}
	return b.fail("there is no template for agent %q; known are %s, %s and %s", agent, ClaudeCode, Codex, Bub)
}
