// Package native is the provider that needs nothing but Linux: every sandbox is
// a set of fresh namespaces around a private root, made in milliseconds by this
// process itself. There is no daemon, and root is not needed.
//
// The root is either the host's own tools (its /usr and /etc, with what is not
// readable by everybody left out, under an overlay) or an OCI image that was
// unpacked once. All that a sandbox writes is in one file system in memory whose
// size is limited, and which the kernel drops with the last process of the
// sandbox: a runner that dies, even by SIGKILL, leaves no process, no mount and
// no file behind.
//
// The first process inside is a small exec server. It has no way out but one
// stream to this process; when that ends, it ends everything. It and all below
// it run without privileges in the host, with no_new_privs, a system call filter
// and no capability beyond owning files and switching users inside.
//
// What this protects from: reading and changing the host's files, environment,
// processes, sockets and network by any program that uses the kernel as it is
// meant. What it does not protect from: a hole in the kernel, which all sandboxes
// of this kind share with the host.
package native

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"assay/fault"
	"assay/sandbox"
)

// Kind is the name of the provider in YAML.
const Kind = "native"

// Spec is the start point of a sandbox, as YAML and JSON spell it. The zero
// value is the host's own tools.
type Spec struct {
	// Image is an OCI image: a name in a registry, `docker:<name>` in the local
	// engine, `docker-archive:<file>` or `oci:<folder>`. Empty means the host's
	// own tools.
	Image string `yaml:"image,omitempty" json:"image,omitempty"`
	// Mounts are host paths that appear inside.
	Mounts []Mount `yaml:"mounts,omitempty" json:"mounts,omitempty"`
}

// Mount makes a host path appear inside a sandbox.
type Mount struct {
	// Host is a path on this machine; relative ones start at the folder of the
	// file that names them.
	Host string `yaml:"host" json:"host"`
	// Path is the absolute path inside; empty means the same as Host.
	Path string `yaml:"path,omitempty" json:"path,omitempty"`
	// Mode is "ro" (or empty) or "rw". What is written to a rw mount is written
	// to the host.
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
}

// Tools returns a layer that starts from the host's own tools.
func Tools(mounts ...Mount) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(), Spec: Spec{Mounts: mounts}})
}

// Image returns a layer that starts from an OCI image; see Spec.Image.
func Image(image string, mounts ...Mount) sandbox.Layer {
	return sandbox.From(sandbox.Template{Provider: shared(), Spec: Spec{Image: image, Mounts: mounts}})
}

// remedy is what doctor says.
const remedy = "Use Linux 5.12 or newer with user namespaces; `assay doctor` says what is missing."

// Definition lets YAML say `native: {}` and `native: {image: …}`.
func Definition() sandbox.Definition {
	return sandbox.Definition{
		Kind: Kind, Remedy: remedy, Provider: func() sandbox.Provider { return shared() },
		Spec: func() any { return &Spec{} },
		Template: func(spec any, dir string) (sandbox.Template, error) {
			s, ok := spec.(*Spec)
			if !ok {
				return sandbox.Template{}, fmt.Errorf("native: a template needs a *Spec, got %T", spec)
			}
			t := sandbox.Template{Provider: shared(), Spec: *s, Dir: dir}
			_, err := specOf(t)
			return t, err
		},
	}
}

// Options are the settings of a Provider. The zero value is what layers use.
type Options struct {
	// Guest is the program that becomes the first process of a sandbox; empty
	// finds one.
	Guest string
	// Cache is the folder in which images are kept; empty is the user's own
	// cache folder.
	Cache string
	// Boxes is the folder for sandboxes that may be kept; empty is a private
	// one in /var/tmp.
	Boxes string
}

// Provider makes sandboxes on this machine. It is safe for concurrent use.
type Provider struct {
	o Options
	machine
}

// New returns a provider of its own.
func New(o Options) *Provider { return &Provider{o: o} }

// shared is the provider of layers and YAML, so that equal images are prepared
// once.
var shared = sync.OnceValue(func() *Provider { return New(Options{}) })

// Available says, by making a sandbox, whether this machine can: nil, or an
// error whose fix names the command that allows it.
func Available(ctx context.Context) error { return shared().Check(ctx) }

// specOf reads a template's spec, made absolute, or says what is wrong with it.
func specOf(t sandbox.Template) (Spec, error) {
	var s Spec
	switch v := t.Spec.(type) {
	case Spec:
		s = v
	case *Spec:
		if v != nil {
			s = *v
		}
	case nil:
	default:
		return s, fmt.Errorf("native: a template needs a Spec, got %T", t.Spec)
	}
	s.Mounts = slices.Clone(s.Mounts)
	for i := range s.Mounts {
		m := &s.Mounts[i]
		if m.Host == "" {
			return s, fault.Configf("sandbox.native-mount", "Name a host path with `host:`.", "mount %d names no host path", i+1)
		}
		if !filepath.IsAbs(m.Host) {
			if t.Dir == "" {
				return s, fault.Configf("sandbox.native-mount", "Give an absolute path.", "the mount's host path %q is relative and there is no folder to start from", m.Host)
			}
			m.Host = filepath.Join(t.Dir, m.Host)
		}
		m.Host = filepath.Clean(m.Host)
		if m.Path == "" {
			m.Path = filepath.ToSlash(m.Host)
		}
		m.Path = path.Clean(m.Path)
		switch {
		case !path.IsAbs(m.Path), m.Path == "/":
			return s, fault.Configf("sandbox.native-mount", "Give an absolute path below /.", "%q is no place for a mount", m.Path)
		case within("/proc", m.Path), within("/sys", m.Path), within("/dev", m.Path):
			return s, fault.Configf("sandbox.native-mount", "Choose a place that is not /proc, /sys or /dev.", "%q belongs to the sandbox itself", m.Path)
		}
		switch m.Mode {
		case "":
			m.Mode = "ro"
		case "ro", "rw":
		default:
			return s, fault.Configf("sandbox.native-mount", "Write `mode: ro` or `mode: rw`.", "mode %q of a mount is not known", m.Mode)
		}
	}
	if strings.ContainsAny(s.Image, " \t\r\n") {
		return s, fault.Configf("sandbox.image-invalid", "Write the image as name:tag, docker:name:tag, docker-archive:file or oci:folder.", "%q is no image name", s.Image)
	}
	return s, nil
}

// within says whether p is dir or below it.
func within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// Key names the image as it is written, or the host, and the mounts.
func (p *Provider) Key(_ context.Context, t sandbox.Template, _ sandbox.Harness) (sandbox.Key, error) {
	s, err := specOf(t)
	if err != nil {
		return "", err
	}
	from := "tools"
	if s.Image != "" {
		ref, err := parseImage(s.Image, t.Dir)
		if err != nil {
			return "", err
		}
		if from, err = ref.key(); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(struct {
		From   string
		Mounts []Mount
	}{from, s.Mounts})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return sandbox.Key(Kind + "-" + hex.EncodeToString(sum[:16])), nil
}

// Classify judges the errors of starting a sandbox and of images.
func (p *Provider) Classify(err error) fault.Class {
	var se *startError
	if !errors.As(err, &se) {
		return classifyImage(err)
	}
	switch {
	case errors.Is(se.err, syscall.ENOSPC), errors.Is(se.err, syscall.ENOMEM), errors.Is(se.err, syscall.EAGAIN),
		errors.Is(se.err, syscall.EMFILE), errors.Is(se.err, syscall.ENFILE):
		return fault.Resource
	case errors.Is(se.err, syscall.EPERM), errors.Is(se.err, syscall.EACCES), errors.Is(se.err, syscall.ENOSYS),
		errors.Is(se.err, syscall.EINVAL), errors.Is(se.err, syscall.ENOENT), errors.Is(se.err, syscall.ENOTDIR):
		return fault.Config
	default:
		return fault.Unknown
	}
}

// startError is a step of making a sandbox that failed.
type startError struct {
	step, path string
	err        error
}

func (e *startError) Error() string {
	if e.path != "" {
		return fmt.Sprintf("%s %s: %v", e.step, e.path, e.err)
	}
	return fmt.Sprintf("%s: %v", e.step, e.err)
}

func (e *startError) Unwrap() error { return e.err }

var _ sandbox.Provider = (*Provider)(nil)
