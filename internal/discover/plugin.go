package discover

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"assay"
	"assay/internal/projectfile"
)

// pluginsDir holds the plugins that several files use by name. Other files may
// lie there: only what is named is read.
const pluginsDir = "plugins"

// pluginFiles are the files of pluginsDir that were named, each read once.
type pluginFiles struct {
	mu       sync.Mutex
	read     map[string]*assay.Plugin // nil: the file is there and has problems
	problems []Problem
}

// plugin returns the plugin of a file; there is false where there is no such
// file.
func (l *loader) plugin(name string) (p *assay.Plugin, there bool) {
	f := &l.plugins
	f.mu.Lock()
	defer f.mu.Unlock()
	if p, ok := f.read[name]; ok {
		return p, true
	}
	rel := pluginsDir + "/" + name + ".yaml"
	if info, err := os.Stat(filepath.Join(l.root, filepath.FromSlash(rel))); err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	if f.read == nil {
		f.read = map[string]*assay.Plugin{}
	}
	file := &file{l: l, path: rel}
	var in projectfile.PluginFile
	if file.load(&in) {
		at := field(nil)
		p = &assay.Plugin{
			Name: name, Revision: in.Revision, With: in.With,
			Setup: file.commands(in.Setup, at.Key("setup")), Teardown: file.commands(in.Teardown, at.Key("teardown")),
		}
	}
	f.problems = append(f.problems, file.problems...)
	f.read[name] = p
	return p, true
}

// pluginsOf converts the plugins of a definition.
func (f *file) pluginsOf(in []projectfile.Plugin, at field) []assay.Plugin {
	var out []assay.Plugin
	seen := map[string]bool{}
	for i := range in {
		where := at.Index(i)
		p := f.pluginOf(&in[i], where)
		if p == nil {
			continue
		}
		if key := p.Name + "\x00" + p.Key; seen[key] {
			f.report(where, "plugin-duplicate", fmt.Sprintf("the plugin %s is here twice", p.Label()), "Remove one of them, or give each a key of its own.")
			continue
		} else {
			seen[key] = true
		}
		out = append(out, *p)
	}
	return out
}

func (f *file) pluginOf(in *projectfile.Plugin, at field) *assay.Plugin {
	own := projectfile.PluginFields{Name: in.Name}
	if in.Fields != nil {
		own = *in.Fields
	}
	if own.Name == "" {
		return nil // a problem that was told
	}
	file, there := f.l.plugin(own.Name)
	switch inline := len(own.Setup)+len(own.Teardown) > 0; {
	case inline && there:
		f.report(at, "field-conflict", fmt.Sprintf("the plugin %s is declared here and in %s/%s.yaml", own.Name, pluginsDir, own.Name), "Rename it, or leave setup and teardown to the file.")
		return nil
	case inline:
		return &assay.Plugin{
			Name: own.Name, Key: own.Key, Revision: own.Revision, With: own.With,
			Setup: f.commands(own.Setup, at.Key("setup")), Teardown: f.commands(own.Teardown, at.Key("teardown")),
		}
	case !there && !clean(f, at):
		return nil // what is misspelled may be its setup
	case !there:
		f.report(at, "plugin-unknown", fmt.Sprintf("there is no file %s/%s.yaml", pluginsDir, own.Name), f.l.nearPlugin(own.Name))
		return nil
	case file == nil:
		return nil
	}
	p := *file
	p.Key = own.Key
	if own.Revision != "" {
		p.Revision = own.Revision
	}
	if len(own.With) > 0 {
		p.With = maps.Clone(p.With)
		if p.With == nil {
			p.With = map[string]any{}
		}
		maps.Copy(p.With, own.With)
	}
	return &p
}

// input resolves a file or folder that a result depends on.
func (f *file) input(p string, at field) (string, bool) {
	info, err := os.Stat(filepath.Join(f.dir(), filepath.FromSlash(p)))
	return f.resolve(p, err == nil && info.IsDir(), at)
}

func (l *loader) nearPlugin(name string) string {
	entries, _ := os.ReadDir(filepath.Join(l.root, pluginsDir)) // a missing folder has none
	var names []string
	for _, e := range entries {
		if n, ok := strings.CutSuffix(e.Name(), ".yaml"); ok {
			names = append(names, n)
		}
	}
	if near := projectfile.Nearest(name, names); near != "" {
		return "Did you mean " + near + "?"
	}
	return "Create the file, or give the plugin its setup and teardown here."
}
