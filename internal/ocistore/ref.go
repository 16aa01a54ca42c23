// Package ocistore unpacks container images into a store under the user's cache
// folder: each layer once, as a directory that an overlay can use as one of its
// lower layers, shared by all images and sandboxes.
//
// Formats: the OCI image specification 1.1 (layers, whiteouts, layout), the
// archive of `docker save`, and the marks of the kernel's overlayfs in the
// user.overlay namespace of attributes.
//
// Ownership: root unpacks files with their owners. Anybody else cannot; all
// files of his store belong to him, and the sandbox must have one identity only.
// Setuid bits and devices are left out: nothing in a sandbox may use them.
package ocistore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"assay/fault"
)

// The places where images are.
const (
	Registry = "registry"
	Engine   = "docker"
	Archive  = "docker-archive"
	Layout   = "oci"
)

// Ref names an image at one of the places.
type Ref struct {
	// Place is one of the constants.
	Place string
	// Name is the full name, or the absolute path of an archive or layout.
	Name string
}

// String returns the ref as it can be parsed again.
func (r Ref) String() string {
	if r.Place == Registry {
		return r.Name
	}
	return r.Place + ":" + r.Name
}

// Parse reads `name`, `docker:name`, `docker-archive:path` and `oci:path`;
// relative paths start at dir.
func Parse(s, dir string) (Ref, error) {
	for _, place := range []string{Archive, Layout} {
		p, ok := strings.CutPrefix(s, place+":")
		if !ok {
			continue
		}
		if p == "" {
			return Ref{}, invalid(s, fmt.Errorf("it names no path"))
		}
		if !filepath.IsAbs(p) {
			if dir == "" {
				return Ref{}, fault.Configf("sandbox.image-invalid", "Give an absolute path.", "the image path %q is relative and there is no folder to start from", p)
			}
			p = filepath.Join(dir, p)
		}
		return Ref{place, filepath.Clean(p)}, nil
	}
	place, rest := Registry, s
	// A registry's name has a dot or a port; `docker:24` alone is an image of
	// that name, and `docker:name` with something that can be a name is one of
	// the engine.
	if n, ok := strings.CutPrefix(s, Engine+":"); ok && n != "" && (strings.ContainsAny(n, ":/@") || !strings.ContainsAny(n[:1], "0123456789")) {
		place, rest = Engine, n
	}
	if place == Engine {
		if strings.HasPrefix(rest, "sha256:") {
			return Ref{place, rest}, nil
		}
		n, err := name.ParseReference(rest)
		if err != nil {
			return Ref{}, invalid(s, err)
		}
		return Ref{place, n.Name()}, nil
	}
	n, err := name.ParseReference(rest)
	if err != nil {
		return Ref{}, invalid(s, err)
	}
	return Ref{place, n.Name()}, nil
}

func invalid(s string, err error) error {
	return fault.Configf("sandbox.image-invalid", "Write the image as name:tag, name@sha256:digest, docker:name:tag, docker-archive:file or oci:folder.", "%q names no image: %v", s, err)
}

// Key identifies the content of a ref as far as this machine knows without a
// network: the name, or the content of the file or layout.
func (r Ref) Key() (string, error) {
	file := r.Name
	switch r.Place {
	case Archive:
	case Layout:
		file = filepath.Join(r.Name, "index.json")
	default:
		return r.String(), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", &fault.Error{Class: fault.Config, Code: "sandbox.image-missing", What: "open image " + r.String(), Fix: "Correct the path; it is relative to the file that names it.", Err: err}
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", &fault.Error{Class: fault.Config, Code: "sandbox.image-missing", What: "read image " + r.String(), Fix: "Correct the path; it is relative to the file that names it.", Err: err}
	}
	return r.Place + ":" + hex.EncodeToString(sum.Sum(nil)), nil
}
