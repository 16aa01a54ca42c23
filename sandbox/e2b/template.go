package e2b

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"assay/fault"
	"assay/sandbox/e2b/e2bapi"
)

// DefaultImage is what a Builder starts from unless it is told.
const DefaultImage = "e2bdev/base"

// Builder describes a template step by step, as E2B's own SDKs do: the steps,
// commands and file hashes are the same, so that caches are shared with them.
// Methods change the builder and return it; the first mistake is reported by
// Recipe and Build.
type Builder struct {
	dir       string
	ignore    []string
	image     string
	template  string
	registry  *e2bapi.Registry
	start     string
	ready     string
	force     bool
	forceNext bool
	steps     []step
	err       error
}

// step is a step before its files are hashed.
type step struct {
	e2bapi.Step
	upload bool // also when the service has the files
	follow bool // symlinks
}

// Template returns a builder whose Copy reads below the folder dir; "" is the
// current folder. Ignore patterns are globs relative to it, besides the lines
// of its .dockerignore.
func Template(dir string, ignore ...string) *Builder {
	if dir == "" {
		dir = "."
	}
	return &Builder{dir: dir, ignore: ignore, image: DefaultImage}
}

func (b *Builder) fail(format string, args ...any) *Builder {
	if b.err == nil {
		b.err = fault.Configf("template-invalid", "Correct the template.", format, args...)
	}
	return b
}

func (b *Builder) add(kind string, args ...string) *Builder {
	b.steps = append(b.steps, step{Step: e2bapi.Step{Type: kind, Args: args, Force: b.forceNext}})
	return b
}

// FromImage starts from a container image. Credentials are for private ones.
func (b *Builder) FromImage(image string, credentials ...e2bapi.Registry) *Builder {
	b.image, b.template = image, ""
	if len(credentials) > 1 {
		return b.fail("an image has one registry")
	}
	for _, c := range credentials {
		if c.Type == "" {
			c.Type = "registry"
		}
		if c.Type == "registry" && (c.Username == "" || c.Password == "") {
			return b.fail("registry credentials need a user name and a password")
		}
		b.registry = &c
	}
	b.force = b.force || b.forceNext
	return b
}

// FromTemplate starts from another template.
func (b *Builder) FromTemplate(name string) *Builder {
	b.image, b.template = "", name
	b.force = b.force || b.forceNext
	return b
}

// FromDebianImage starts from a Debian; "" is stable.
func (b *Builder) FromDebianImage(variant string) *Builder {
	return b.FromImage("debian:" + cmp.Or(variant, "stable"))
}

// FromUbuntuImage starts from an Ubuntu; "" is latest.
func (b *Builder) FromUbuntuImage(variant string) *Builder {
	return b.FromImage("ubuntu:" + cmp.Or(variant, "latest"))
}

// FromPythonImage starts from a Python; "" is 3.
func (b *Builder) FromPythonImage(version string) *Builder {
	return b.FromImage("python:" + cmp.Or(version, "3"))
}

// FromNodeImage starts from a Node.js; "" is lts.
func (b *Builder) FromNodeImage(variant string) *Builder {
	return b.FromImage("node:" + cmp.Or(variant, "lts"))
}

// FromBunImage starts from a Bun; "" is latest.
func (b *Builder) FromBunImage(variant string) *Builder {
	return b.FromImage("oven/bun:" + cmp.Or(variant, "latest"))
}

// RunCmd runs commands, each after the success of the one before, as the user
// that is set.
func (b *Builder) RunCmd(commands ...string) *Builder {
	return b.add("RUN", strings.Join(commands, " && "))
}

// RunCmdAs is RunCmd as a user.
func (b *Builder) RunCmdAs(user string, commands ...string) *Builder {
	return b.add("RUN", strings.Join(commands, " && "), user)
}

// CopyOptions are the settings of a Copy.
type CopyOptions struct {
	User string
	Mode uint32 // permission bits, 0 keeps the file's
	// ForceUpload uploads although the service has the files.
	ForceUpload bool
	// ResolveSymlinks copies what links lead to.
	ResolveSymlinks bool
}

// Copy copies a file, folder or glob below the builder's folder.
func (b *Builder) Copy(src, dest string, o ...CopyOptions) *Builder {
	var opt CopyOptions
	if len(o) > 0 {
		opt = o[0]
	}
	if path.IsAbs(src) {
		return b.fail("COPY source %q is absolute; name it relative to the template's folder", src)
	}
	if c := path.Clean(src); c == ".." || strings.HasPrefix(c, "../") {
		return b.fail("COPY source %q leaves the template's folder", src)
	}
	mode := ""
	if opt.Mode != 0 {
		mode = fmt.Sprintf("%04o", opt.Mode)
	}
	b.add("COPY", src, dest, opt.User, mode)
	s := &b.steps[len(b.steps)-1]
	s.Force = s.Force || opt.ForceUpload
	s.upload, s.follow = opt.ForceUpload, opt.ResolveSymlinks
	return b
}

// SetEnvs sets variables, in the order of their names.
func (b *Builder) SetEnvs(env map[string]string) *Builder {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		pairs = append(pairs, k, env[k])
	}
	return b.Env(pairs...)
}

// Env sets variables, names and values in turn, in their order.
func (b *Builder) Env(pairs ...string) *Builder {
	if len(pairs)%2 != 0 {
		return b.fail("a variable has no value")
	}
	if len(pairs) == 0 {
		return b
	}
	return b.add("ENV", pairs...)
}

// SetWorkdir sets the working directory, which is made.
func (b *Builder) SetWorkdir(dir string) *Builder { return b.add("WORKDIR", dir) }

// SetUser sets the user, who is made when missing.
func (b *Builder) SetUser(user string) *Builder { return b.add("USER", user) }

// AptInstall installs Debian packages as root.
func (b *Builder) AptInstall(packages ...string) *Builder { return b.apt("", packages) }

// AptInstallLean is AptInstall without recommended packages.
func (b *Builder) AptInstallLean(packages ...string) *Builder {
	return b.apt("--no-install-recommends ", packages)
}

func (b *Builder) apt(flags string, packages []string) *Builder {
	return b.RunCmdAs("root", "apt-get update", "DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get install -y "+flags+strings.Join(packages, " "))
}

// PipInstall installs Python packages for everybody; none is the project in the
// working directory.
func (b *Builder) PipInstall(packages ...string) *Builder {
	if len(packages) == 0 {
		packages = []string{"."}
	}
	return b.RunCmdAs("root", "pip install "+strings.Join(packages, " "))
}

// PipInstallUser is PipInstall for the user that is set.
func (b *Builder) PipInstallUser(packages ...string) *Builder {
	if len(packages) == 0 {
		packages = []string{"."}
	}
	return b.RunCmd("pip install --user " + strings.Join(packages, " "))
}

// NpmInstall installs npm packages into the working directory.
func (b *Builder) NpmInstall(packages ...string) *Builder {
	return b.RunCmd(strings.Join(append([]string{"npm install"}, packages...), " "))
}

// NpmInstallGlobal installs npm packages for everybody.
func (b *Builder) NpmInstallGlobal(packages ...string) *Builder {
	return b.RunCmdAs("root", strings.Join(append([]string{"npm install -g"}, packages...), " "))
}

// MakeDir makes directories with their parents.
func (b *Builder) MakeDir(dirs ...string) *Builder {
	return b.RunCmd("mkdir -p " + quoteAll(dirs))
}

// GitClone clones a repository; branch and dir may be empty and depth 0.
func (b *Builder) GitClone(url, dir, branch string, depth int) *Builder {
	cmd := "git clone " + quote(url)
	if branch != "" {
		cmd += " --branch " + quote(branch) + " --single-branch"
	}
	if depth > 0 {
		cmd += " --depth " + strconv.Itoa(depth)
	}
	if dir != "" {
		cmd += " " + quote(dir)
	}
	return b.RunCmd(cmd)
}

// quote is how E2B's SDKs quote for a shell, so that caches are shared.
func quote(s string) string {
	if s == "" {
		return "''"
	}
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_@%+=:,./-", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'"
}

func quoteAll(list []string) string {
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = quote(s)
	}
	return strings.Join(q, " ")
}

// SkipCache makes every later step run anew; before a From method, the whole
// template.
func (b *Builder) SkipCache() *Builder {
	b.forceNext = true
	return b
}

// SetStartCmd sets what runs in every sandbox from its start, and when it counts
// as ready; see WaitForPort and its kin.
func (b *Builder) SetStartCmd(command, ready string) *Builder {
	b.start, b.ready = command, ready
	return b
}

// SetReadyCmd sets when a sandbox counts as ready.
func (b *Builder) SetReadyCmd(ready string) *Builder {
	b.ready = ready
	return b
}

// WaitForPort is ready when something listens at a port.
func WaitForPort(port int) string { return fmt.Sprintf(`[ -n "$(ss -Htuln sport = :%d)" ]`, port) }

// WaitForURL is ready when an address answers with a status; 0 is 200.
func WaitForURL(url string, status int) string {
	if status == 0 {
		status = 200
	}
	return fmt.Sprintf(`curl -s -o /dev/null -w "%%{http_code}" %s | grep -q "%d"`, url, status)
}

// WaitForProcess is ready when a process of a name runs.
func WaitForProcess(name string) string { return "pgrep " + name + " > /dev/null" }

// WaitForFile is ready when a file is there.
func WaitForFile(name string) string { return "[ -f " + name + " ]" }

// WaitForTimeout is ready after a time, at least a second.
func WaitForTimeout(d time.Duration) string {
	return fmt.Sprintf("sleep %d", max(1, int(d/time.Second)))
}

// Recipe is the build as it is sent. Files are hashed.
func (b *Builder) Recipe() (e2bapi.Recipe, error) {
	if b.err != nil {
		return e2bapi.Recipe{}, b.err
	}
	r := e2bapi.Recipe{FromImage: b.image, FromTemplate: b.template, Registry: b.registry, Force: b.force, StartCmd: b.start, ReadyCmd: b.ready, Steps: []e2bapi.Step{}}
	for _, s := range b.steps {
		if s.Type == "COPY" {
			files, err := b.files(s)
			if err == nil {
				s.FilesHash, err = hashFiles(s.Args[0], s.Args[1], files, s.follow)
			}
			if err != nil {
				return r, fault.Wrap(err, fault.Config, "template-files", "read the files of COPY "+s.Args[0])
			}
		}
		r.Steps = append(r.Steps, s.Step)
	}
	return r, nil
}

// ignored are all ignore patterns of a builder.
func (b *Builder) ignored() ([]string, error) {
	out := slices.Clone(b.ignore)
	body, err := os.ReadFile(path.Join(b.dir, ".dockerignore"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, nil
}
