package compose

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"assay/fault"
)

// file is one file, folder or symlink that is copied into a container.
type file struct {
	path     string // absolute, inside
	mode     fs.FileMode
	uid, gid int
	content  []byte
	link     string
	secret   bool // content may hold placeholders
}

// maxFiles bounds the size of what is copied into one container.
const maxFiles = 64 << 20

// files are what a service mounts of the project's folder, and its configs and
// secrets.
func (pr *project) files(name string) ([]file, error) {
	svc := pr.p.Services[name]
	var out []file
	total := 0
	for _, v := range svc.Volumes {
		if v.Type != types.VolumeTypeBind {
			continue
		}
		more, err := tree(v.Source, v.Target)
		if err != nil {
			return nil, &fault.Error{Class: fault.Config, Code: "sandbox.compose-file", What: fmt.Sprintf("%s: service %s", pr.src.at(name, "volumes"), name), Fix: "Check the files that it mounts.", Err: err}
		}
		out = append(out, more...)
	}
	for _, r := range svc.Configs {
		f, err := object(types.FileReferenceConfig(r), types.FileObjectConfig(pr.p.Configs[r.Source]), "/")
		if err != nil {
			return nil, pr.inService(name, err)
		}
		out = append(out, f)
	}
	for _, r := range svc.Secrets {
		f, err := object(types.FileReferenceConfig(r), types.FileObjectConfig(pr.p.Secrets[r.Source]), "/run/secrets")
		if err != nil {
			return nil, pr.inService(name, err)
		}
		out = append(out, f)
	}
	for _, f := range out {
		total += len(f.content)
	}
	if total > maxFiles {
		return nil, fault.Configf("sandbox.compose-files-large", "Put them into an image.", "%s: service %s mounts %d MiB of files, at most %d can be copied into each sandbox", pr.src.at(name, "volumes"), name, total>>20, maxFiles>>20)
	}
	return out, nil
}

// tree reads what is mounted at a target.
func tree(source, target string) ([]file, error) {
	var out []file
	size := 0
	err := filepath.WalkDir(source, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if p == source {
			st, err = os.Stat(p) // a link that is mounted is followed
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		f := file{path: path.Join(target, filepath.ToSlash(rel)), mode: st.Mode()}
		f.uid, f.gid = ownerOf(st)
		switch {
		case st.IsDir():
		case st.Mode().IsRegular():
			if size += int(st.Size()); size > maxFiles {
				return fmt.Errorf("%s has more than %d MiB of files; put them into an image", source, maxFiles>>20)
			}
			f.content, err = os.ReadFile(p)
		case st.Mode()&fs.ModeSymlink != 0:
			f.link, err = os.Readlink(p)
		default:
			return nil // sockets and pipes have no content
		}
		out = append(out, f)
		return err
	})
	return out, err
}

// object is a config or a secret as a file.
func object(r types.FileReferenceConfig, o types.FileObjectConfig, dir string) (file, error) {
	f := file{path: r.Target, mode: 0o444, content: []byte(o.Content), secret: true}
	if f.path == "" {
		f.path = r.Source
	}
	if !path.IsAbs(f.path) {
		f.path = path.Join(dir, f.path)
	}
	if r.Mode != nil {
		f.mode = fs.FileMode(*r.Mode) & fs.ModePerm
	}
	for _, one := range []struct {
		text string
		to   *int
	}{{r.UID, &f.uid}, {r.GID, &f.gid}} {
		if one.text == "" {
			continue
		}
		n, err := strconv.Atoi(one.text)
		if err != nil {
			return f, fault.Configf("sandbox.compose-refused", "Write a number.", "uid or gid %q of %s is no number", one.text, r.Source)
		}
		*one.to = n
	}
	if o.File != "" {
		b, err := os.ReadFile(o.File)
		if err != nil {
			return f, err
		}
		f.content, f.secret = b, false
	}
	return f, nil
}

// pack returns files as a tar for the root folder; nil for none. Equal files
// give equal bytes. fill replaces placeholders; nil leaves them.
func pack(files []file, fill *strings.Replacer) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		content := f.content
		if f.secret && fill != nil {
			content = []byte(fill.Replace(string(content)))
		}
		h := &tar.Header{
			Name: strings.TrimPrefix(f.path, "/"), Mode: int64(f.mode.Perm()), Uid: f.uid, Gid: f.gid, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
			Typeflag: tar.TypeReg, Size: int64(len(content)),
		}
		switch {
		case f.mode.IsDir():
			h.Typeflag, h.Size, h.Name = tar.TypeDir, 0, h.Name+"/"
		case f.link != "":
			h.Typeflag, h.Size, h.Linkname = tar.TypeSymlink, 0, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(content); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
