package compose

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"assay/fault"
)

// sources are the files of a project as they are written: only they know lines.
type sources struct {
	root  string
	files []source
}

type source struct {
	path string
	doc  *yaml.Node
	text []byte
}

// maxSources bounds how many files a project includes and extends.
const maxSources = 100

// readSources reads a Compose file and the local files that it includes and
// extends. Files elsewhere are refused: what a project is must not change
// between two runs, and no file outside of the project's folder is read.
func readSources(file string) (*sources, error) {
	s := &sources{root: filepath.Dir(file)}
	if real, err := filepath.EvalSymlinks(s.root); err == nil {
		s.root = real
	}
	return s, s.read(file)
}

func (s *sources) read(file string) error {
	if slices.ContainsFunc(s.files, func(o source) bool { return o.path == file }) {
		return nil
	}
	if len(s.files) == maxSources {
		return fault.Configf("sandbox.compose-refused", "Put them together.", "the project includes and extends more than %d files", maxSources)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: "sandbox.compose-file", What: "read the Compose file", Fix: "Check `file:` of the compose sandbox, and what the file includes.", Err: err}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return &fault.Error{Class: fault.Config, Code: "sandbox.compose-invalid", What: s.name(file), Fix: "Correct the YAML.", Err: err}
	}
	s.files = append(s.files, source{file, &doc, text})
	for _, ref := range references(&doc) {
		where := fmt.Sprintf("%s:%d", s.name(file), ref.line)
		if strings.Contains(ref.path, "://") || strings.HasPrefix(ref.path, "git@") || strings.HasPrefix(ref.path, "oci:") || strings.Contains(ref.path, "$") {
			return fault.Configf("sandbox.compose-refused", "Copy the file into the project.", "%s: %q is no plain local file", where, ref.path)
		}
		path := ref.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), filepath.FromSlash(path))
		}
		if !inside(s.root, path) {
			return fault.Configf("sandbox.compose-refused", "Copy the file into the folder of the Compose file.", "%s: %s is outside of the project's folder", where, ref.path)
		}
		if err := s.read(path); err != nil {
			return err
		}
	}
	return nil
}

// inside reports whether a path is below a folder, with symlinks followed. root
// has none.
func inside(root, path string) bool {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(real, filepath.Base(path))
	}
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

type reference struct {
	path string
	line int
}

// references are the files that a file includes and that its services extend.
func references(doc *yaml.Node) []reference {
	var out []reference
	add := func(n *yaml.Node) {
		if n != nil && n.Kind == yaml.ScalarNode {
			out = append(out, reference{n.Value, n.Line})
		}
	}
	all := func(n *yaml.Node) {
		if n == nil {
			return
		}
		if n.Kind == yaml.SequenceNode {
			for _, one := range n.Content {
				add(one)
			}
			return
		}
		add(n)
	}
	if inc := find(doc, "include"); inc != nil {
		for _, one := range inc.Content {
			if one.Kind == yaml.MappingNode {
				all(find(one, "path"))
			} else {
				add(one)
			}
		}
	}
	if services := find(doc, "services"); services != nil && services.Kind == yaml.MappingNode {
		for i := 1; i < len(services.Content); i += 2 {
			add(find(services.Content[i], "extends", "file"))
		}
	}
	return out
}

// find follows keys from a node; nil is not there.
func find(n *yaml.Node, keys ...string) *yaml.Node {
	_, v := lookup(n, keys...)
	return v
}

// lookup returns the key's and the value's node at the end of a path.
func lookup(n *yaml.Node, keys ...string) (key, value *yaml.Node) {
	for n != nil && (n.Kind == yaml.DocumentNode || n.Kind == yaml.AliasNode) {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		} else if len(n.Content) > 0 {
			n = n.Content[0]
		} else {
			return nil, nil
		}
	}
	if len(keys) == 0 {
		return nil, n
	}
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == keys[0] {
			if k, v := lookup(n.Content[i+1], keys[1:]...); v != nil {
				if k == nil {
					k = n.Content[i]
				}
				return k, v
			}
		}
	}
	return nil, nil
}

// name is a path for messages: relative to the project's folder.
func (s *sources) name(path string) string {
	if rel, err := filepath.Rel(s.root, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return filepath.Base(path)
}

// path returns the place of a path in any of the files, as "file:line", or "".
func (s *sources) path(keys ...string) string {
	for _, f := range s.files {
		if k, v := lookup(f.doc, keys...); v != nil {
			line := v.Line
			if k != nil {
				line = k.Line
			}
			return fmt.Sprintf("%s:%d", s.name(f.path), line)
		}
	}
	return ""
}

// at returns the place of the first field of a service that is there, else of
// the service. With no service it is the first place that has the text.
func (s *sources) at(service string, fields ...string) string {
	if service == "" {
		for _, f := range s.files {
			if i := bytes.Index(f.text, []byte(fields[0])); i >= 0 {
				return fmt.Sprintf("%s:%d", s.name(f.path), 1+bytes.Count(f.text[:i], []byte("\n")))
			}
		}
	}
	for _, f := range fields {
		if at := s.path("services", service, f); at != "" {
			return at
		}
	}
	if at := s.path("services", service); at != "" {
		return at
	}
	return s.name(s.files[0].path)
}

// loadError gives an error of the library the place that it is about, where its
// text names one.
func (s *sources) loadError(err error) error {
	text := strings.ReplaceAll(err.Error(), s.root+string(filepath.Separator), "")
	at := s.name(s.files[0].path)
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" '\"`:,[]", r) }) {
		keys := strings.Split(strings.TrimSuffix(word, "."), ".")
		if len(keys) == 1 {
			keys = []string{"services", word} // some texts name a service only
		}
		for n := len(keys); n > 1; n-- {
			if where := s.path(keys[:n]...); where != "" {
				at = where
				break
			}
		}
	}
	return &fault.Error{Class: fault.Config, Code: "sandbox.compose-invalid", What: at, Fix: "Correct the Compose file; `docker compose config` reads it in the same way.", Err: plainError(text)}
}

type plainError string

func (e plainError) Error() string { return string(e) }
