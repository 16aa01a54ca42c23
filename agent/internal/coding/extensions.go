package coding

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// MCPServer is an MCP server for the agent: a program (Command) or an address
// (URL).
type MCPServer struct {
	Name    string            `yaml:"name" json:"name" required:"true" doc:"Its tools are called mcp__NAME__TOOL in events."`
	Command string            `yaml:"command" json:"command,omitempty" doc:"A program in the sandbox that speaks MCP on its streams."`
	Args    []string          `yaml:"args" json:"args,omitempty"`
	Env     map[string]string `yaml:"env" json:"env,omitempty" doc:"Plain values; they are recorded and are no place for a secret."`
	URL     string            `yaml:"url" json:"url,omitempty" format:"url" doc:"A streamable HTTP server instead of a program."`
	Headers map[string]string `yaml:"headers" json:"headers,omitempty"`
}

// Source is a folder of the host, or of a git repository at a ref.
type Source struct {
	Path   string   `yaml:"path" json:"path,omitempty" doc:"A folder, relative to this file; with git, a folder of the repository."`
	Git    string   `yaml:"git" json:"git,omitempty" doc:"The address of a git repository."`
	Ref    string   `yaml:"ref" json:"ref,omitempty" doc:"A branch, tag or commit; required with git."`
	Sparse []string `yaml:"sparse" json:"sparse,omitempty" doc:"Only these folders of the repository are fetched."`
}

// Skill is a folder with a SKILL.md.
type Skill struct {
	Name   string   `yaml:"name" json:"name,omitempty" doc:"The skill's name; default the folder's."`
	Path   string   `yaml:"path" json:"path,omitempty" doc:"A folder, relative to this file; with git, a folder of the repository."`
	Git    string   `yaml:"git" json:"git,omitempty" doc:"The address of a git repository."`
	Ref    string   `yaml:"ref" json:"ref,omitempty" doc:"A branch, tag or commit; required with git."`
	Sparse []string `yaml:"sparse" json:"sparse,omitempty" doc:"Only these folders of the repository are fetched."`
}

// Plugin is a plugin of the agent's own kind, from a marketplace.
type Plugin struct {
	Name        string `yaml:"name" json:"name" required:"true" doc:"The plugin's name in its marketplace."`
	Marketplace Source `yaml:"marketplace" json:"marketplace" doc:"Where the marketplace is."`
}

var (
	plainName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	serverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// CheckMCP finds servers that cannot be declared to an agent.
func CheckMCP(servers []MCPServer) error {
	seen := map[string]bool{}
	for _, m := range servers {
		switch {
		case !serverName.MatchString(m.Name):
			return fault.Configf("agent-mcp-name", "Use letters, digits, '_' and '-'.", "the MCP server has the name %q", m.Name)
		case seen[m.Name]:
			return fault.Configf("agent-mcp-name", "Give each server a name of its own.", "two MCP servers have the name %q", m.Name)
		case (m.Command == "") == (m.URL == ""):
			return fault.Configf("agent-mcp-kind", "Give it `command:` or `url:`.", "the MCP server %q needs exactly one of command and url", m.Name)
		}
		seen[m.Name] = true
	}
	return nil
}

// CheckEnv refuses variables that are not the author's to set.
func CheckEnv(env map[string]string) error {
	if _, ok := env["PATH"]; ok {
		return fault.Configf("command-path-managed", "Use `path:` of the sandbox.", "PATH is managed by the sandbox and cannot be set for the agent")
	}
	return nil
}

// BaseURL is the address that a host variable holds where it is set, else url.
// The address is a part of an agent's identity either way.
func BaseURL(url, env string) string {
	if env != "" {
		if v := os.Getenv(env); v != "" {
			return v
		}
	}
	return url
}

// CheckSkills finds skills without a usable name or source.
func CheckSkills(skills []Skill) error {
	for _, k := range skills {
		if err := k.source().check(); err != nil {
			return err
		}
		if n := k.name(); !plainName.MatchString(n) {
			return fault.Configf("agent-skill-name", "Give it a `name:` of letters, digits, '.', '_' and '-'.", "the skill has the name %q", n)
		}
	}
	return nil
}

// CheckPlugins finds plugins without a usable name or source.
func CheckPlugins(plugins []Plugin) error {
	for _, p := range plugins {
		if !plainName.MatchString(p.Name) {
			return fault.Configf("agent-plugin-name", "Use the plugin's name in its marketplace.", "the plugin has the name %q", p.Name)
		}
		if err := p.Marketplace.check(); err != nil {
			return err
		}
	}
	return nil
}

func (k Skill) source() Source { return Source{k.Path, k.Git, k.Ref, k.Sparse} }

func (k Skill) name() string {
	if k.Name != "" {
		return k.Name
	}
	if k.Path != "" && k.Path != "." {
		return path.Base(filepath.ToSlash(k.Path))
	}
	return strings.TrimSuffix(path.Base(k.Git), ".git")
}

func (s Source) check() error {
	switch {
	case s.Git == "" && s.Path == "":
		return fault.Configf("agent-source", "Give `path:`, or `git:` with `ref:`.", "a source names neither a folder nor a repository")
	case s.Git != "" && s.Ref == "":
		return fault.Configf("agent-source-ref", "Pin it with `ref:`, best a commit.", "the repository %s has no ref", s.Git)
	case s.Git != "" && (strings.HasPrefix(s.Git, "-") || strings.HasPrefix(s.Ref, "-")):
		return fault.Configf("agent-source", "Write an address and a ref.", "%q at %q is no repository", s.Git, s.Ref)
	case s.Git != "" && s.Path != "" && !filepath.IsLocal(s.Path):
		return fault.Configf("agent-source", "Name a folder of the repository.", "the path %q leaves the repository", s.Path)
	case s.Git == "" && s.Ref != "":
		return fault.Configf("agent-source-ref", "Remove `ref:`, or name a repository with `git:`.", "a folder of the host has no ref")
	}
	return nil
}

// Item is one line of the install manifest.
type Item struct {
	Kind    string `json:"kind"` // "skill", "plugin", "marketplace", "mcp", "config"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Digest is the SHA-256 over names and contents; Commit what a ref stood
	// for.
	Digest string `json:"sha256,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// PutSkill puts a skill below dir of the sandbox.
func PutSkill(ctx context.Context, s *agent.Session, host string, k Skill, dir string) (Item, error) {
	files, commit, err := k.source().files(ctx, host)
	if err != nil {
		return Item{}, err
	}
	if !slices.ContainsFunc(files, func(f archive.File) bool { return f.Name == "SKILL.md" }) {
		return Item{}, fault.Configf("agent-skill", "A skill is a folder with a SKILL.md.", "the skill %s has no SKILL.md", k.name())
	}
	if err := s.Sandbox.WriteFiles(ctx, path.Join(dir, k.name()), files...); err != nil {
		return Item{}, err
	}
	return Item{Kind: "skill", Name: k.name(), Digest: digest(files), Commit: commit}, nil
}

// PutTree puts a source below dir of the sandbox.
func PutTree(ctx context.Context, s *agent.Session, host string, src Source, dir string) (Item, error) {
	files, commit, err := src.files(ctx, host)
	if err != nil {
		return Item{}, err
	}
	return Item{Digest: digest(files), Commit: commit}, s.Sandbox.WriteFiles(ctx, dir, files...)
}

// maxSource bounds what a skill or a marketplace may be.
const maxSource = 256 << 20

// files reads a source; host is the folder that relative paths start from.
func (s Source) files(ctx context.Context, host string) ([]archive.File, string, error) {
	dir, commit := s.Path, ""
	if s.Git != "" {
		tree, sha, err := checkout(ctx, s)
		if err != nil {
			return nil, "", err
		}
		dir, commit = filepath.Join(tree, filepath.FromSlash(s.Path)), sha
	} else if !filepath.IsAbs(dir) {
		dir = filepath.Join(host, dir)
	}
	var files []archive.File
	var size int64
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return fault.Configf("agent-source-link", "Replace it by a file.", "%s is no regular file", p)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if size += info.Size(); size > maxSource {
			return fault.Configf("agent-source-size", "Name a smaller folder, or use sparse.", "the folder %s has more than %d bytes", dir, int64(maxSource))
		}
		body, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		files = append(files, archive.File{Name: filepath.ToSlash(rel), Mode: info.Mode().Perm(), Body: body})
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", &fault.Error{Class: fault.Config, Code: "agent-source", What: "read " + dir, Fix: "Name a folder that exists.", Err: err}
	}
	return files, commit, err
}

func digest(files []archive.File) string {
	h := sha256.New()
	for _, f := range files { // WalkDir is in order of names
		fmt.Fprintf(h, "%s\x00%d\x00", f.Name, len(f.Body))
		h.Write(f.Body)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// checkouts are the repositories that this process has, by address, ref and
// folders: fetched once however many attempts need them.
var checkouts struct {
	sync.Mutex
	at map[string][2]string
}

// checkout returns a folder with the repository at the ref, and its commit.
func checkout(ctx context.Context, s Source) (string, string, error) {
	key := s.Git + "\x00" + s.Ref + "\x00" + strings.Join(s.Sparse, "\x00")
	checkouts.Lock()
	defer checkouts.Unlock()
	if c, ok := checkouts.at[key]; ok {
		if _, err := os.Stat(c[0]); err == nil {
			return c[0], c[1], nil
		}
	}
	dir, err := os.MkdirTemp("", "assay-source-*")
	if err != nil {
		return "", "", err
	}
	ctx, cancel := fault.WithTimeout(ctx, "agent-source", 5*time.Minute, "built-in")
	defer cancel()
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return "", &fault.Error{Class: fault.Config, Code: "agent-source-git", What: fmt.Sprintf("fetch %s at %s: %s", s.Git, s.Ref, sandbox.Tail(errs.String(), 240)), Fix: "See whether the address and the ref exist and can be reached from this host.", Err: err}
		}
		return strings.TrimSpace(out.String()), nil
	}
	steps := [][]string{{"init", "-q"}, {"remote", "add", "origin", s.Git}}
	if len(s.Sparse) > 0 {
		steps = append(steps, append([]string{"sparse-checkout", "set", "--"}, s.Sparse...))
	}
	steps = append(steps, []string{"fetch", "-q", "--depth", "1", "origin", s.Ref}, []string{"checkout", "-q", "--detach", "FETCH_HEAD"})
	for _, st := range steps {
		if _, err := git(st...); err != nil {
			return "", "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	sha, err := git("rev-parse", "HEAD")
	if err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	if checkouts.at == nil {
		checkouts.at = map[string][2]string{}
	}
	checkouts.at[key] = [2]string{dir, sha}
	return dir, sha, nil
}

// ConfigFile reads a config file of the project, byte for byte.
func ConfigFile(host, name string) ([]byte, Item, error) {
	if !filepath.IsLocal(name) {
		return nil, Item{}, fault.Configf("agent-config-file", "Name a file below the folder of this definition.", "the file %q leaves the project", name)
	}
	if host == "" {
		host = "."
	}
	root, err := os.OpenRoot(host)
	if err != nil {
		return nil, Item{}, err
	}
	defer root.Close()
	body, err := root.ReadFile(name)
	if err != nil {
		return nil, Item{}, &fault.Error{Class: fault.Config, Code: "agent-config-file", What: "read " + name, Fix: "Name a file below the folder of this definition.", Err: err}
	}
	sum := sha256.Sum256(body)
	return body, Item{Kind: "config", Name: filepath.ToSlash(name), Digest: hex.EncodeToString(sum[:])}, nil
}

// Hooks runs the author's commands after everything is installed, or before it
// is taken away.
func Hooks(ctx context.Context, s *agent.Session, commands []string, env map[string]string) error {
	for _, c := range commands {
		if _, err := s.Sandbox.RunShellOrThrow(ctx, c, sandbox.CommandOptions{Env: env}); err != nil {
			return fault.Wrap(err, fault.ClassOf(err), "agent-hook-failed", "run "+sandbox.Tail(c, 120))
		}
	}
	return nil
}

// Manifest records what was installed.
func Manifest(s *agent.Session, items []Item) error {
	if len(items) == 0 || s.Notes == nil {
		return nil
	}
	return s.Notes.Fact("agent.manifest", items)
}
