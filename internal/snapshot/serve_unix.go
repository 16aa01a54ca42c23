//go:build unix

package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"assay/fault"
)

// Serve answers one request (Request, as JSON) over directories of this
// machine, as lines of JSON for DecodeResponse. The error it returns is one of
// w: failures of the request are part of the answer. Calls may run at the same
// time, in several processes; those on one store take turns.
func Serve(ctx context.Context, req []byte, w io.Writer) error {
	return ServeWith(ctx, req, w, openPlace)
}

// placeFile is the name in the store of what it belongs to.
const placeFile = "place"

// place ties a store to one working tree.
type place struct {
	// Root is the path as requested; Real is it without links, as found by the
	// first commit. Later a link on the way is the agent's.
	Root Raw `json:"root"`
	Real Raw `json:"real"`
}

func openPlace(_ context.Context, r Request) (Place, error) {
	if !filepath.IsAbs(r.Root) || !filepath.IsAbs(r.Store) {
		return Place{}, badRequest(fmt.Sprintf("the root %q and the store %q must be absolute paths", r.Root, r.Store), nil)
	}
	root := filepath.Clean(r.Root)
	store, err := OpenStore(r.Store)
	if err != nil {
		return Place{}, err
	}
	data, err := store.ReadFile(placeFile)
	if err != nil {
		return Place{}, err
	}
	var at place
	first := data == nil
	if first {
		real, err := filepath.EvalSymlinks(root)
		if err != nil {
			return Place{}, rootErr(root, err)
		}
		at = place{Raw(root), Raw(real)}
	} else if err := json.Unmarshal(data, &at); err != nil {
		return Place{}, corrupt("its place is damaged", err)
	}
	if string(at.Root) != root {
		return Place{}, badRequest(fmt.Sprintf("the store belongs to %q and not to %q", at.Root, root), nil)
	}
	p := Place{Store: store, Drift: drift, Always: placeExclusions(string(at.Real), r.Store)}
	tree, err := OpenTree(string(at.Real))
	switch {
	case err == nil:
		p.Tree, p.Close = tree, tree.Close
	case first:
		return Place{}, rootErr(root, err)
	case r.Op == OpReset:
		tree, err := remakeRoot(string(at.Real))
		if err != nil {
			return Place{}, rootErr(root, err)
		}
		p.Tree, p.Close = tree, tree.Close
	case errors.Is(err, fs.ErrNotExist):
		// The whole tree was deleted: that is a change like any other.
		p.Tree = noTree{}
	case r.Op != OpDiff:
		return Place{}, rootErr(root, err)
	}
	if !first {
		return p, nil
	}
	if data, err = json.Marshal(at); err == nil {
		err = store.WriteFile(placeFile, data)
	}
	if err != nil && p.Close != nil {
		err = errors.Join(err, p.Close())
	}
	return p, err
}

func rootErr(root string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return &fault.Error{
			Code: "ledger-root-replaced", Err: err,
			What: fmt.Sprintf("the working tree %s, or a directory above it, is not a directory any more", root),
		}
	}
	return &fault.Error{
		Code: "ledger-root-missing", Class: fault.Config, Err: err,
		What: fmt.Sprintf("the working tree %s cannot be opened", root), Fix: "create the working directory before the baseline",
	}
}

// remakeRoot puts an empty directory where the root was. Directories above it
// are not the ledger's to make.
func remakeRoot(root string) (*OSTree, error) {
	above, err := OpenTree(filepath.Dir(root))
	if err != nil {
		return nil, err
	}
	defer above.Close()
	name := filepath.Base(root)
	if f, err := above.Lstat(name); err == nil && !f.IsDir() {
		if err := above.Remove(name); err != nil {
			return nil, err
		}
	}
	if err := above.Mkdir(name, 0o755); err != nil {
		return nil, err
	}
	return OpenTree(root)
}

// placeExclusions are the store, if it lies in the tree, and the kernel's own
// file systems.
func placeExclusions(root, store string) []string {
	var always []string
	if real, err := filepath.EvalSymlinks(store); err == nil {
		store = real
	}
	if rel, err := filepath.Rel(root, store); err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../") {
		quoted := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(rel)
		always = append(always, "/"+quoted)
	}
	if root == "/" {
		always = append(always, "/proc", "/sys", "/dev")
	}
	return always
}

// noTree is the tree of a root that is gone.
type noTree struct{}

func (noTree) Lstat(p string) (Facts, error) {
	if p == "" {
		return Facts{Mode: TypeDir | 0o755}, nil
	}
	return Facts{}, fs.ErrNotExist
}

func (noTree) ReadDir(string) ([]Facts, error) { return nil, nil }
func (noTree) Open(string) (File, error)       { return nil, os.ErrNotExist }
func (noTree) Readlink(string) (string, error) { return "", os.ErrNotExist }
