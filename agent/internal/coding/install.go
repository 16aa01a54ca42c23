package coding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"assay/agent"
	"assay/fault"
	"assay/internal/archive"
	"assay/sandbox"
)

// CLI is a coding CLI that npm distributes.
type CLI struct {
	// Name is the agent's name, Command its executable.
	Name, Command string
	// Version is the pinned version.
	Version string
	// Package is the npm package that installs the command.
	Package string
	// Native returns the npm package of a machine that holds a program which
	// needs nothing else, and the program's path in it.
	Native func(Machine) (spec, program string, ok bool)
}

// Machine is what a program must be made for.
type Machine struct {
	Arch string // "x64" or "arm64"
	Musl bool
}

// The ways to put a CLI into a sandbox.
const (
	InstallAuto    = ""        // staged, else npm
	InstallStaged  = "staged"  // fetched once by this host's npm, then uploaded
	InstallSandbox = "sandbox" // by npm in the sandbox, over its network
	InstallNever   = "never"   // it must be there
)

// Found is the CLI that an attempt uses.
type Found struct {
	// Path is the executable.
	Path string
	// Root is true when the sandbox's user is root.
	Root    bool
	Version string
	// Source is "found", "staged" or "sandbox".
	Source string
	Digest string
	why    string // it cannot run
}

// probe prints the user, the machine and every candidate with its version, or
// with why it cannot say one.
const probe = `id -u
uname -m
if ls /lib/ld-musl-* >/dev/null 2>&1; then echo musl; else echo glibc; fi
for c in "$(command -v "$1")" "$2/$3" "$2/$4" "$2/node_modules/.bin/$1"; do
  [ -n "$c" ] && [ -x "$c" ] || continue
  v=$(CI=1 "$c" --version </dev/null 2>/dev/null | head -n 1)
  [ -n "$v" ] || v="! $(CI=1 "$c" --version </dev/null 2>&1 | tail -n 1 | tr '\t' ' ')"
  p=$(readlink -f "$c" 2>/dev/null) || p=$c
  printf '%s\t%s\n' "$v" "$p"
done
exit 0`

// installLimit bounds probing and installing.
const (
	probeLimit   = 2 * time.Minute
	installLimit = 10 * time.Minute
)

var versionText = regexp.MustCompile(`\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?`)

// dir is where a version is installed: outside of the workdir, of any home
// folder, and of what other users of the sandbox write.
func (c CLI) dir(uid string) string {
	return "/tmp/.agents-" + uid + "/" + c.Name + "-" + c.Version
}

type probed struct {
	uid     string
	machine Machine
	found   []Found
}

func (c CLI) probe(ctx context.Context, s *agent.Session) (probed, error) {
	who, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"id", "-u"}, sandbox.CommandOptions{Timeout: probeLimit, Label: "who runs the agent"})
	if err != nil {
		return probed{}, err
	}
	p := probed{uid: strings.TrimSpace(who.Stdout)}
	programs := []string{"absent", "absent"} // where a staged one would be
	for i, arch := range []string{"x64", "arm64"} {
		if c.Native != nil {
			if _, at, ok := c.Native(Machine{Arch: arch}); ok {
				programs[i] = at
			}
		}
	}
	shell, err := s.Sandbox.Shell(ctx)
	if err != nil {
		return probed{}, err
	}
	argv := append(shell, "-c", probe, "sh", c.Command, c.dir(p.uid), programs[0], programs[1])
	res, err := s.Sandbox.RunCommandOrThrow(ctx, argv, sandbox.CommandOptions{Timeout: probeLimit, Label: "probe for " + c.Command})
	if err != nil {
		return probed{}, err
	}
	rows := strings.Split(strings.TrimSpace(res.Stdout), "\n")
	if len(rows) < 3 {
		return probed{}, &fault.Error{Code: "agent-probe", What: "the probe for " + c.Command + " printed " + sandbox.Tail(res.Stdout, 120)}
	}
	p.machine = Machine{Arch: "x64", Musl: rows[2] == "musl"}
	if m := rows[1]; m == "aarch64" || m == "arm64" {
		p.machine.Arch = "arm64"
	}
	for _, row := range rows[3:] {
		if v, at, ok := strings.Cut(row, "\t"); ok {
			f := Found{Path: at, Root: p.uid == "0", Source: "found"}
			if why, broken := strings.CutPrefix(v, "! "); broken {
				f.why = sandbox.Tail(why, 200)
			} else {
				f.Version = versionText.FindString(v)
			}
			p.found = append(p.found, f)
		}
	}
	return p, nil
}

func (c CLI) pick(p probed) (Found, bool) {
	for _, f := range p.found {
		if f.Version == c.Version {
			return f, true
		}
	}
	return Found{}, false
}

// Ensure finds the pinned version, installs it when it is not there, and looks
// again.
func (c CLI) Ensure(ctx context.Context, s *agent.Session, how string) (Found, error) {
	p, err := c.probe(ctx, s)
	if err != nil {
		return Found{}, err
	}
	if f, ok := c.pick(p); ok {
		return c.digest(ctx, s, f), nil
	}
	var why []error
	ways := map[string][]string{InstallAuto: {InstallStaged, InstallSandbox}, InstallStaged: {InstallStaged}, InstallSandbox: {InstallSandbox}}[how]
	for _, way := range ways {
		progress(s, fmt.Sprintf("installing %s %s (%s)", c.Name, c.Version, way))
		if way == InstallStaged {
			err = c.stage(ctx, s, p)
		} else {
			err = c.npm(ctx, s, p)
		}
		if err == nil {
			if p, err = c.probe(ctx, s); err != nil {
				return Found{}, err
			}
			if f, ok := c.pick(p); ok {
				f.Source = way
				return c.digest(ctx, s, f), nil
			}
			err = errors.New("it cannot run there")
			for _, f := range p.found {
				if f.why != "" {
					err = fmt.Errorf("it cannot run there: %s", f.why)
				}
			}
		}
		if ctx.Err() != nil {
			return Found{}, err
		}
		why = append(why, fmt.Errorf("%s: %w", way, err))
	}
	return Found{}, c.absent(p, why)
}

func (c CLI) absent(p probed, why []error) error {
	have := "is not installed"
	code := "agent-ensure-failed"
	if len(p.found) > 0 && p.found[0].Version != "" {
		have = fmt.Sprintf("has version %s at %s", p.found[0].Version, p.found[0].Path)
		code = "agent-version-mismatch"
	}
	return &fault.Error{
		Class: fault.ClassOf(errors.Join(why...)), Code: code,
		What: fmt.Sprintf("%s %s is expected and the sandbox %s", c.Name, c.Version, have),
		Fix:  fmt.Sprintf("Put %s@%s into the image, or set the agent's `version:` to what is there.", c.Package, c.Version), Err: errors.Join(why...),
	}
}

// digest adds the SHA-256 of the program where the sandbox can tell it.
func (c CLI) digest(ctx context.Context, s *agent.Session, f Found) Found {
	if d, ok := sandbox.As[sandbox.Digester](s.Sandbox); ok {
		if sums, err := d.Digest(ctx, []string{f.Path}); err == nil && len(sums) == 1 {
			f.Digest = sums[0]
		}
	}
	return f
}

// npm installs with the sandbox's own npm.
func (c CLI) npm(ctx context.Context, s *agent.Session, p probed) error {
	dir := c.dir(p.uid)
	script := `command -v npm >/dev/null || { echo "there is no npm in the sandbox" >&2; exit 1; }
umask 077; mkdir -p "$1" && cd "$1" && npm install --prefix "$1" --no-audit --no-fund --loglevel=error "$2" </dev/null`
	shell, err := s.Sandbox.Shell(ctx)
	if err != nil {
		return err
	}
	_, err = s.Sandbox.RunCommandOrThrow(ctx, append(shell, "-c", script, "sh", dir, c.Package+"@"+c.Version), sandbox.CommandOptions{
		Timeout: installLimit, Env: map[string]string{"CI": "1"}, Label: "npm install " + c.Package + "@" + c.Version,
	})
	return err
}

// stage uploads the package that this host fetched.
func (c CLI) stage(ctx context.Context, s *agent.Session, p probed) error {
	if c.Native == nil {
		return errors.New("it has no package that runs by itself")
	}
	spec, _, ok := c.Native(p.machine)
	if !ok {
		return fmt.Errorf("it has no package for %s", p.machine.Arch)
	}
	file, err := fetch(ctx, spec)
	if err != nil {
		return err
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dir := c.dir(p.uid)
	if err := s.Sandbox.WriteFiles(ctx, dir, archive.File{Name: "package.tgz", Mode: 0o600, Body: body}); err != nil {
		return err
	}
	_, err = s.Sandbox.RunShellOrThrow(ctx, `umask 077; tar -xzf package.tgz --strip-components=1 && rm -f package.tgz`, sandbox.CommandOptions{
		Cwd: dir, Timeout: installLimit, Label: "unpack " + c.Name,
	})
	return err
}

// fetches are the packages that this process fetched: once per process,
// however many attempts need them.
var fetches fetched

type fetched struct {
	sync.Mutex
	files map[string]string
}

func (f *fetched) add(spec, name string) {
	if f.files == nil {
		f.files = map[string]string{}
	}
	f.files[spec] = name
}

// fetch returns a package as npm packed it, from this user's cache or from the
// registry that npm is set up for. npm checks its integrity.
func fetch(ctx context.Context, spec string) (string, error) {
	fetches.Lock()
	defer fetches.Unlock()
	if f, ok := fetches.files[spec]; ok {
		return f, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "assay", "agents")
	name := filepath.Join(dir, strings.NewReplacer("/", "-", "@", "_").Replace(spec)+".tgz")
	if _, err := os.Stat(name); err == nil {
		fetches.add(spec, name)
		return name, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("this host has no npm to fetch it with")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, ".fetch-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := fault.WithTimeout(ctx, "agent-fetch", installLimit, "built-in")
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "pack", "--json", "--pack-destination", tmp, spec)
	cmd.Dir = tmp
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", &fault.Error{Class: fault.Transient, Code: "agent-fetch", What: "npm pack " + spec + ": " + sandbox.Tail(errs.String(), 240), Err: err}
	}
	packed, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return "", fmt.Errorf("npm pack %s left %d archives", spec, len(packed))
	}
	if err := os.Rename(packed[0], name); err != nil {
		return "", err
	}
	fetches.add(spec, name)
	return name, nil
}

// Harness is what a provider may bake: the pinned CLI by npm, and nothing where
// npm is missing, since every attempt looks and installs anyway.
func (c CLI) Harness() sandbox.Harness {
	return sandbox.Harness{Name: c.Name, Version: c.Version, Install: []string{
		fmt.Sprintf("if command -v npm >/dev/null && ! %s --version 2>/dev/null | grep -qF '%s'; then npm install -g --no-audit --no-fund %s@%s </dev/null; fi || true", c.Command, c.Version, c.Package, c.Version),
	}}
}

// Link puts the program where every session of the attempt finds it, and
// returns that path.
func Link(ctx context.Context, s *agent.Session, f Found, name string) error {
	at := Bin(s, name)
	_, err := s.Sandbox.RunCommandOrThrow(ctx, []string{"sh", "-c", `mkdir -p "$1" && ln -sfn "$2" "$3"`, "sh", path.Dir(at), f.Path, at}, sandbox.CommandOptions{Label: "link " + name})
	return err
}

// Bin is where Link puts a program.
func Bin(s *agent.Session, name string) string { return path.Join(s.Scratch, "bin", name) }

// Installed is the record of what was found.
func (f Found) Installed(more map[string]any) agent.Installed {
	d := map[string]any{"path": f.Path, "source": f.Source}
	if f.Digest != "" {
		d["sha256"] = f.Digest
	}
	for k, v := range more {
		d[k] = v
	}
	return agent.Installed{Version: f.Version, Details: d}
}

func progress(s *agent.Session, message string) {
	if s.Notes != nil {
		s.Notes.Progress(sandbox.Progress{Message: message})
	}
}
