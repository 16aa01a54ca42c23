// Package guestbin finds a guest binary on the host: embedded in this program,
// named by ASSAY_GUEST, beside this program, this program itself, or built with
// the go tool.
package guestbin

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"assay/fault"
	"assay/internal/guest/server"
)

// EnvVar names a guest binary and wins over everything but an embedded one.
const EnvVar = "ASSAY_GUEST"

// Guest is a binary that can serve as a guest.
type Guest struct {
	// Path of the file on this host. It needs no library of the sandbox.
	Path string
	// Args are the arguments that make it a server.
	Args []string
}

var serveArgs = []string{server.ServeArg}

// Find returns a guest for the given system and architecture, in Go's names. The
// first of these that there is: embedded in this program (unpacked once into the
// user's cache), the file that ASSAY_GUEST names, assay-guest-<os>-<arch> beside
// this program, on Linux this program itself when it is statically linked and of
// that architecture, and one built with the go tool, when this program is run
// inside of a module. Otherwise the error has code guest-missing.
func Find(goos, goarch string) (Guest, error) {
	find := finder{embedded: embedded, cache: os.UserCacheDir, env: os.Getenv(EnvVar), self: os.Executable, serves: selfServes.Load()}
	g, err := find.find(goos, goarch)
	if fault.CodeOf(err) == "guest-missing" && find.env == "" && find.serves {
		if built, berr := build(goos, goarch); berr == nil {
			return built, nil
		}
	}
	return g, err
}

// builds remembers what build made, by system and architecture.
var builds sync.Map

// buildLimit bounds one run of the go tool.
const buildLimit = 3 * time.Minute

// build makes a guest with the go tool: `go run` and `go build` of a program
// link it dynamically where there is a C compiler, and then it cannot be the
// first process of an image. It works in a module that has this one in its
// build list, which is where such programs are run.
func build(goos, goarch string) (Guest, error) {
	type result struct {
		g   Guest
		err error
	}
	once, _ := builds.LoadOrStore(goos+"/"+goarch, sync.OnceValue(func() result {
		tool, err := exec.LookPath("go")
		if err != nil {
			return result{err: err}
		}
		dir, err := os.UserCacheDir()
		if err != nil {
			return result{err: err}
		}
		dir = filepath.Join(dir, "assay", "guest")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return result{err: err}
		}
		ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
		defer cancel()
		tmp := filepath.Join(dir, fmt.Sprintf(".built-%d-%s-%s", os.Getpid(), goos, goarch))
		defer os.Remove(tmp)
		cmd := exec.CommandContext(ctx, tool, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", tmp, "assay/cmd/assay-guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return result{err: fmt.Errorf("build a guest: %w: %s", err, out)}
		}
		// The file is named by its content: a program that still uses an older
		// one keeps it.
		body, err := os.ReadFile(tmp)
		if err != nil {
			return result{err: err}
		}
		path := filepath.Join(dir, fmt.Sprintf("built-%x", sha256.Sum256(body)))
		if err := os.Rename(tmp, path); err != nil {
			return result{err: err}
		}
		return result{g: Guest{path, serveArgs}}
	}))
	r := once.(func() result)()
	return r.g, r.err
}

// FindForHost is Find for processes on this very host: here this program may
// also be a dynamically linked one.
func FindForHost() (Guest, error) {
	g, err := Find(runtime.GOOS, runtime.GOARCH)
	if err == nil || runtime.GOOS != "linux" || !selfServes.Load() {
		return g, err
	}
	self, serr := os.Executable()
	if serr != nil {
		return Guest{}, err
	}
	return Guest{self, serveArgs}, nil
}

// selfServes is set by a program that can be a guest itself.
var selfServes atomic.Bool

// SelfServes declares that this program serves as a guest when it is started
// with the arguments of a Guest. A program that does not say so, such as a test,
// is never started as one.
func SelfServes() { selfServes.Store(true) }

// finder is Find with its surroundings as data.
type finder struct {
	embedded fs.FS // files named assay-guest-<os>-<arch>, with .gz if compressed; nil: none
	cache    func() (string, error)
	env      string
	self     func() (string, error)
	serves   bool // self can be a guest
}

func (f finder) find(goos, goarch string) (Guest, error) {
	name := "assay-guest-" + goos + "-" + goarch
	if f.embedded != nil {
		switch path, err := f.unpack(name); {
		case err == nil:
			return Guest{path, serveArgs}, nil
		case !errors.Is(err, fs.ErrNotExist):
			return Guest{}, fault.Wrap(err, fault.Resource, "guest-unpack", "unpack the guest binary")
		}
	}
	if f.env != "" {
		if err := check(f.env, goarch); err != nil {
			return Guest{}, &fault.Error{Class: fault.Config, Scope: fault.ScopeRun, Code: "guest-missing", What: EnvVar + "=" + f.env, Err: err, Fix: "let " + EnvVar + " name a static Linux guest binary for " + goarch + ", or unset it"}
		}
		return Guest{f.env, serveArgs}, nil
	}
	self, err := f.self()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if check(beside, goarch) == nil {
			return Guest{beside, serveArgs}, nil
		}
		if f.serves && runtime.GOOS == "linux" && goos == "linux" && goarch == runtime.GOARCH && check(self, goarch) == nil {
			return Guest{self, serveArgs}, nil
		}
	}
	return Guest{}, &fault.Error{
		Class: fault.Config, Scope: fault.ScopeRun, Code: "guest-missing",
		What: "no guest binary for " + goos + "/" + goarch,
		Fix:  "Build this program with CGO_ENABLED=0, so that it can serve itself; or put " + name + " beside it, or name that file in " + EnvVar + ". `./dev build` of the sources makes both.",
		Err:  err,
	}
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// check says why a file cannot be a guest: it must be an ELF program of the
// architecture that needs no interpreter.
func check(path, goarch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if want, ok := machines[goarch]; !ok || f.Machine != want {
		return fmt.Errorf("%s is for %s, not %s", path, f.Machine, goarch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is dynamically linked", path)
		}
	}
	return nil
}

// unpacking keeps goroutines of this process from unpacking side by side; other
// processes are harmless, because each renames a whole file into place.
var unpacking sync.Mutex

// unpack writes the embedded binary into the cache, under its hash, unless it is
// there already with the right content.
func (f finder) unpack(name string) (string, error) {
	content, err := f.content(name)
	if err != nil {
		return "", err
	}
	cache, err := f.cache()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", ignoreAbsence(err))
	}
	unpacking.Lock()
	defer unpacking.Unlock()
	dir := filepath.Join(cache, "assay", "guest", fmt.Sprintf("%x", sha256.Sum256(content))[:32])
	path := filepath.Join(dir, "init")
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return path, nil
	}
	return path, ignoreAbsence(replace(dir, path, content))
}

func replace(dir, path string, content []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the first error counts
	}
	return err
}

// ignoreAbsence hides that an error is one of absence: a missing cache is not a
// missing guest.
func ignoreAbsence(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New(err.Error())
	}
	return err
}

func (f finder) content(name string) ([]byte, error) {
	b, err := fs.ReadFile(f.embedded, name)
	if err == nil {
		return b, nil
	}
	packed, gzErr := fs.ReadFile(f.embedded, name+".gz")
	if gzErr != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
