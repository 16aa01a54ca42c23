// Package imagebuild makes container images through an engine's API: it reads a
// Dockerfile and its context, says what they depend on, pulls what is missing,
// and builds, with BuildKit where the engine has it and with the engine's
// classic builder elsewhere. No docker command takes part.
//
// Formats: the Dockerfile reference and .dockerignore as BuildKit reads them,
// the Engine API from 1.41 (POST /build, /images/create), and of BuildKit's own
// protocol the session's credentials service and the status messages of
// moby.buildkit.v1.
package imagebuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"assay/fault"
)

// Source says what is built. Exactly one of Dockerfile and Inline is set.
type Source struct {
	// Context is the absolute host folder of COPY and ADD; "" is an empty one.
	Context string
	// Dockerfile is the absolute path of the file.
	Dockerfile string
	// Inline is the text of a Dockerfile that stands in no file.
	Inline string
	// Target names the stage to build; "" is the last.
	Target string
	// Args are build arguments.
	Args map[string]string
}

// Input is a Source as it was read: what an image of it depends on, but for the
// images that it starts from.
type Input struct {
	src    Source
	text   []byte // of the Dockerfile
	name   string // of the Dockerfile in the context that is sent
	extra  bool   // it is not in the context and is added
	tree   *listing
	digest string
}

// Read reads a source from the disk. The permissions and times of files and the
// owners do not count, as they do not in git. Its errors, of class Config, say
// what is missing.
func Read(ctx context.Context, s Source) (*Input, error) {
	in := &Input{src: s, text: []byte(s.Inline), tree: &listing{}}
	if s.Dockerfile != "" {
		b, err := os.ReadFile(s.Dockerfile)
		if err != nil {
			return nil, &fault.Error{Class: fault.Config, Code: "sandbox.dockerfile-missing", What: "read the Dockerfile", Fix: "Correct `dockerfile:`; it is relative to the file that names it.", Err: err}
		}
		in.text = b
	}
	if s.Context != "" {
		patterns, err := ignored(s)
		if err == nil {
			in.tree, err = list(ctx, s.Context, patterns)
		}
		if err != nil {
			return nil, err
		}
	}
	in.placeDockerfile()
	in.digest = in.sum()
	return in, nil
}

// placeDockerfile decides under which name the builder finds the Dockerfile: its
// own, where the context has it, else one that nothing in the context has.
func (in *Input) placeDockerfile() {
	if in.src.Dockerfile != "" && in.src.Context != "" {
		rel, err := filepath.Rel(in.src.Context, in.src.Dockerfile)
		if err == nil && filepath.IsLocal(rel) {
			rel = filepath.ToSlash(rel)
			if i, ok := in.tree.at[rel]; ok && in.tree.files[i].kind == fileEntry {
				in.name = rel
				return
			}
		}
	}
	sum := sha256.Sum256(in.text)
	in.extra, in.name = true, ".dockerfile."+hex.EncodeToString(sum[:6])
}

// sum is the digest of all that was read.
func (in *Input) sum() string {
	h := sha256.New()
	part := func(words ...string) {
		for _, w := range words {
			fmt.Fprintf(h, "%d:%s", len(w), w)
		}
	}
	args, _ := json.Marshal(in.src.Args) // strings always encode, in the order of the names
	part("dockerfile", string(in.text), "target", in.src.Target, "args", string(args), "context", in.tree.digest)
	return hex.EncodeToString(h.Sum(nil))
}

// Digest identifies the content: hex SHA-256.
func (in *Input) Digest() string { return in.digest }

// Size is the number of bytes of the context's files.
func (in *Input) Size() int64 {
	var n int64
	for _, f := range in.tree.files {
		n += f.size
	}
	return n
}

// errChanged says that a file was not what it was when it was read.
var errChanged = errors.New("the build context changed while it was sent")

// write writes the context as the builder gets it, the Dockerfile included.
func (in *Input) write(w io.Writer) error {
	add := map[string][]byte{}
	if in.extra {
		add[in.name] = in.text
	}
	return writeTar(w, in.src.Context, in.tree.files, add)
}

// Named returns a short name of what is built, for messages.
func (s Source) Named() string {
	if s.Dockerfile == "" {
		return "image"
	}
	return strings.TrimSuffix(filepath.Base(s.Dockerfile), ".")
}
