package coding

import "path/filepath"

// HostFiles are the host folders of skills and plugins, for agent.Info: a changed
// file in them makes results stale. What comes from a repository is named by its
// ref instead. Relative paths start at dir.
func HostFiles(dir string, skills []Skill, plugins []Plugin) []string {
	var out []string
	add := func(git, path string) {
		switch {
		case git != "" || path == "":
		case filepath.IsAbs(path):
			out = append(out, path)
		default:
			out = append(out, filepath.Join(dir, path))
		}
	}
	for _, s := range skills {
		add(s.Git, s.Path)
	}
	for _, p := range plugins {
		add(p.Marketplace.Git, p.Marketplace.Path)
	}
	return out
}
