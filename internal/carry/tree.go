package carry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tree is the content of a host file or folder.
type tree struct {
	text  string
	files []entry
}

// entry is one file, link or empty folder of a tree.
type entry struct{ name, text string }

// tree digests a path once per planner.
func (p *Planner) tree(path string, ignore []string) (*tree, error) {
	key := path + "\x00" + strings.Join(ignore, "\x00")
	if t, ok := p.trees[key]; ok {
		return t, nil
	}
	t, err := read(path, ignore)
	if err != nil {
		return nil, err
	}
	p.trees[key] = t
	return t, nil
}

// read digests what an upload of the path puts into a sandbox: names, content,
// the executable bit and where links lead; not owners and times.
func read(path string, ignore []string) (*tree, error) {
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		text, err := file(root, info)
		return &tree{text: text}, err
	}
	t := &tree{}
	err = filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if at == root {
			return nil
		}
		if slices.Contains(ignore, d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		text, err := one(at, d)
		if err != nil {
			return err
		}
		t.files = append(t.files, entry{filepath.ToSlash(rel), text})
		return nil
	})
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	files := t.files[:0]
	for _, f := range t.files {
		fmt.Fprintf(h, "%d:%s%d:%s", len(f.name), f.name, len(f.text), f.text)
		files = append(files, f)
	}
	t.files = files
	t.text = fmt.Sprintf("sha256:%s (%d entries)", hex.EncodeToString(h.Sum(nil)[:16]), len(t.files))
	return t, nil
}

func one(at string, d fs.DirEntry) (string, error) {
	info, err := d.Info()
	switch {
	case err != nil:
		return "", err
	case d.IsDir():
		return "folder", nil
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(at)
		return "link to " + to, err
	case info.Mode().IsRegular():
		return file(at, info)
	default:
		return "special", nil // the upload refuses it, by name
	}
}

func file(path string, info fs.FileInfo) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", err
	}
	return described(h.Sum(nil), n, info.Mode().Perm()&0o111 != 0), nil
}

// content describes a text as a file with that content is described.
func content(text string) string {
	sum := sha256.Sum256([]byte(text))
	return described(sum[:], int64(len(text)), false)
}

func described(sum []byte, n int64, executable bool) string {
	out := fmt.Sprintf("sha256:%s (%d bytes", hex.EncodeToString(sum[:16]), n)
	if executable {
		out += ", executable"
	}
	return out + ")"
}

func regular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
