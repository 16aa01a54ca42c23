// Package scaffold writes the files of a new project: a configuration, one
// experiment and one eval that is green at once.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"assay/fault"
)

//go:embed files
var files embed.FS

// Options are the choices of a new project. The zero value is a project named
// after its folder, with the simulated sandbox.
type Options struct {
	// Name of the project; "" is the name of the folder.
	Name string
	// Sandbox is the provider of the first experiment: one of Sandboxes; "" is
	// "fake".
	Sandbox string
}

// Result says what was done. Paths are relative to the project, with slashes.
type Result struct {
	// Created are new files, in order; Changed had a line added.
	Created, Changed []string
	// Kept were there before and were left alone.
	Kept []string
}

// choice is a provider and how it is written in an experiment.
type choice struct{ line, what string }

var choices = map[string]choice{
	"fake":   {"fake: {}", "in memory, simulated commands, needs nothing"},
	"docker": {"docker: {image: debian:bookworm-slim}", "a container; any image with a shell"},
	"native": {"native: {}", "Linux namespaces, the host's own tools"},
}

// Sandboxes lists the providers that a new project can start with.
func Sandboxes() []string { return slices.Sorted(maps.Keys(choices)) }

// Init writes a new project into dir, which is made when it is missing. It never
// changes what a file says: files that exist are kept, and .gitignore gets one
// line. When it fails it removes what it has created.
func Init(dir string, o Options) (res Result, err error) {
	if o.Sandbox == "" {
		o.Sandbox = "fake"
	}
	if _, ok := choices[o.Sandbox]; !ok {
		return Result{}, fault.Configf("init-sandbox-unknown", "Name one of "+strings.Join(Sandboxes(), ", ")+".", "a new project cannot start with the sandbox %q", o.Sandbox)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return Result{}, err
	}
	if o.Name == "" {
		o.Name = filepath.Base(dir)
	}
	w := writer{dir: dir}
	defer func() {
		if err != nil {
			w.undo()
			res = Result{}
			err = fault.Wrap(err, fault.Config, "init-failed", "write the new project")
		}
	}()
	if err := w.folder(dir); err != nil {
		return Result{}, err
	}
	err = fs.WalkDir(files, "files", func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		body, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		return w.create(strings.TrimPrefix(p, "files/"), fill(body, o))
	})
	if err != nil {
		return Result{}, err
	}
	if err := w.ignore(".assay/"); err != nil {
		return Result{}, err
	}
	return w.res, nil
}

// fill replaces the placeholders of a template.
func fill(body []byte, o Options) []byte {
	body = bytes.ReplaceAll(body, []byte("{{name}}"), []byte(strconv.Quote(strings.ToValidUTF8(o.Name, "_"))))
	lines := "  " + choices[o.Sandbox].line + " # " + choices[o.Sandbox].what
	for _, k := range Sandboxes() {
		if k != o.Sandbox {
			lines += "\n  # " + choices[k].line + " # " + choices[k].what
		}
	}
	return bytes.ReplaceAll(body, []byte("{{sandbox}}"), []byte(lines))
}

// writer creates files and remembers what to take back.
type writer struct {
	dir  string
	res  Result
	made []string // absolute paths of what was created, in order
}

func (w *writer) undo() {
	for _, p := range slices.Backward(w.made) {
		os.Remove(p) //nolint:errcheck // the first error is the one to report
	}
}

// folder makes a folder and its parents, each remembered.
func (w *writer) folder(dir string) error {
	err := os.Mkdir(dir, 0o755)
	switch {
	case err == nil:
		w.made = append(w.made, dir)
		return nil
	case errors.Is(err, fs.ErrExist):
		if info, serr := os.Stat(dir); serr != nil || !info.IsDir() {
			return fmt.Errorf("%s is no folder", dir)
		}
		return nil
	case errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir:
		if err := w.folder(filepath.Dir(dir)); err != nil {
			return err
		}
		return w.folder(dir)
	}
	return err
}

// create writes a file that appears complete or not at all, unless there is
// something of that name.
func (w *writer) create(rel string, body []byte) error {
	full := filepath.Join(w.dir, filepath.FromSlash(rel))
	if _, err := os.Lstat(full); err == nil {
		w.res.Kept = append(w.res.Kept, rel)
		return nil
	}
	if err := w.folder(filepath.Dir(full)); err != nil {
		return err
	}
	tmp, err := temp(full, body, 0o644)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	// A link never replaces, so that a file made meanwhile is kept as well.
	err = os.Link(tmp, full)
	if errors.Is(err, fs.ErrExist) {
		w.res.Kept = append(w.res.Kept, rel)
		return nil
	}
	if err != nil {
		return err
	}
	w.made = append(w.made, full)
	w.res.Created = append(w.res.Created, rel)
	return nil
}

// temp writes a complete file beside full and returns its name.
func temp(full string, body []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(full), ".new-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(body)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// ignore adds a line to .gitignore unless it is there.
func (w *writer) ignore(line string) error {
	const rel = ".gitignore"
	full := filepath.Join(w.dir, rel)
	old, err := os.ReadFile(full)
	if errors.Is(err, fs.ErrNotExist) {
		return w.create(rel, []byte(line+"\n"))
	}
	if err != nil {
		return err
	}
	for l := range strings.SplitSeq(string(old), "\n") {
		if l = strings.TrimSpace(l); l == line || l == strings.TrimSuffix(line, "/") || l == "/"+line {
			w.res.Kept = append(w.res.Kept, rel)
			return nil
		}
	}
	info, err := os.Stat(full)
	if err != nil {
		return err
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	// A symlink is written through, so that it stays one.
	target, err := filepath.EvalSymlinks(full)
	if err != nil {
		return err
	}
	tmp, err := temp(target, append(old, line+"\n"...), info.Mode().Perm())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, target); err != nil {
		os.Remove(tmp)
		return err
	}
	w.res.Changed = append(w.res.Changed, rel)
	return nil
}
