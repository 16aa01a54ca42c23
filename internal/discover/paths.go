package discover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"assay"
	"assay/internal/projectfile"
	"assay/sandbox"
)

// resolve finds a host path that the file names. It is false when the path is
// absolute, missing, of the wrong kind, or leads out of the project.
func (f *file) resolve(p string, dir bool, at field) (string, bool) {
	if filepath.IsAbs(p) || strings.HasPrefix(p, "/") {
		f.report(at, "path-absolute", fmt.Sprintf("%s is an absolute path", p), "Write a path relative to this file.")
		return "", false
	}
	full := filepath.Join(f.dir(), filepath.FromSlash(p))
	rel, err := filepath.Rel(f.l.root, full)
	if err != nil || rel != "." && !filepath.IsLocal(rel) {
		f.report(at, "path-escapes", fmt.Sprintf("%s leads out of the project", p), "Copy the files into the project.")
		return "", false
	}
	info, err := os.Stat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fix := "Create it or correct the path."
		if l, lerr := os.Lstat(full); lerr == nil && l.Mode()&fs.ModeSymlink != 0 {
			fix = "It is a symlink that leads nowhere."
		}
		f.report(at, "path-missing", fmt.Sprintf("there is no %s", filepath.ToSlash(rel)), fix)
		return "", false
	case err != nil:
		f.report(at, "path-unreadable", fmt.Sprintf("%s cannot be read: %s", p, cause(err)), "Check the path and its permissions.")
		return "", false
	case !f.l.inside(full):
		f.report(at, "path-escapes", fmt.Sprintf("%s is a symlink that leads out of the project", p), "Copy the files into the project.")
		return "", false
	case dir != info.IsDir() || !dir && !info.Mode().IsRegular():
		want := "a file"
		if dir {
			want = "a folder"
		}
		f.report(at, "path-kind", fmt.Sprintf("%s is not %s", p, want), "Name "+want+".")
		return "", false
	}
	return full, true
}

// folder resolves an eval's own folder and hides what is in it from discovery.
func (f *file) folder(p string, at field) string {
	full, ok := f.resolve(p, true, at)
	if !ok {
		return ""
	}
	if rel, err := filepath.Rel(f.l.root, full); err == nil {
		rel = filepath.ToSlash(rel)
		if strings.HasPrefix(f.path, rel+"/") || rel == "." {
			// Hidden files and the checks themselves would be uploaded.
			f.report(at, "path-kind", fmt.Sprintf("the folder %s holds this eval itself", p), "Put the files into a folder of their own.")
			return ""
		}
		f.s.opaque = append(f.s.opaque, rel)
	}
	if empty(full) {
		f.report(at, "path-empty", fmt.Sprintf("the folder %s is empty", p), "Put files into it or remove the field.")
		return ""
	}
	return full
}

func empty(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// defaultWorkspace is ./workspace when it is a folder with files.
func (f *file) defaultWorkspace() string {
	full := filepath.Join(f.dir(), "workspace")
	info, err := os.Lstat(full)
	if err != nil || empty(full) {
		return ""
	}
	at := field(nil)
	if info.Mode()&fs.ModeSymlink != 0 && !f.l.inside(full) {
		f.report(at, "path-escapes", "workspace is a symlink that leads out of the project", "Copy the files into the project.")
		return ""
	}
	if info, err = os.Stat(full); err != nil || !info.IsDir() {
		return ""
	}
	return full
}

func (f *file) prompt(in *projectfile.Prompt, at field) string {
	if in.File == nil {
		return in.Text
	}
	if in.File.File == "" {
		return ""
	}
	at = at.Key("file")
	full, ok := f.resolve(in.File.File, false, at)
	if !ok {
		return ""
	}
	data, err := readRegular(full)
	switch {
	case err != nil:
		f.report(at, "path-unreadable", fmt.Sprintf("%s cannot be read: %s", in.File.File, cause(err)), "Check the path and its permissions.")
	case len(data) > projectfile.MaxFile:
		f.report(at, "file-too-large", fmt.Sprintf("the prompt has more than %d bytes", projectfile.MaxFile), "Shorten it, or upload it as a file of the workspace.")
	case !utf8.Valid(data):
		f.report(at, "file-encoding", "the prompt is not UTF-8", "Save it as UTF-8.")
	case strings.TrimSpace(string(data)) == "":
		f.report(at, "bad-value", "the prompt is blank", "Write something into the file.")
	default:
		return string(bytes.TrimPrefix(data, []byte("\uFEFF")))
	}
	return ""
}

// errNotRegular is the answer of readRegular for folders, pipes and devices.
var errNotRegular = errors.New("not a regular file")

// solution sets what the oracle runs. A script file is run from the uploaded
// folder that holds it, by the interpreter of its first line, whether or not
// its mode says that it is executable.
func (f *file) solution(e *assay.Eval, in *projectfile.Solution, at field) {
	switch {
	case in == nil:
	case in.Command != nil:
		c := f.command(projectfile.Command{Fields: in.Command}, at)
		e.Solution = &c
	case in.File != "":
		full, ok := f.resolve(in.File, false, at)
		if !ok {
			return
		}
		script := "sh"
		if data, err := readRegular(full); err == nil {
			first, _, _ := strings.Cut(string(data), "\n")
			if line, ok := strings.CutPrefix(first, "#!"); ok && strings.TrimSpace(line) != "" {
				script = strings.TrimSpace(line)
			}
		}
		e.Solution = &sandbox.Command{Shell: script + ` "$SOLUTION_DIR"/` + sandbox.Quote([]string{path.Base(filepath.ToSlash(full))}), Name: "solution"}
		e.SolutionDir = filepath.Dir(full)
	}
}
