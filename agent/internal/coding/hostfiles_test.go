package coding_test

import (
	"slices"
	"testing"

	"assay/agent/internal/coding"
)

func TestHostFilesAreThoseOfTheHost(t *testing.T) {
	got := coding.HostFiles("/p", []coding.Skill{{Path: "a"}, {Git: "https://x/y.git", Ref: "v1", Path: "skills/b"}, {Path: "/abs"}},
		[]coding.Plugin{{Name: "n", Marketplace: coding.Source{Path: "m"}}, {Name: "g", Marketplace: coding.Source{Git: "https://x/y.git", Ref: "v1"}}})
	if want := []string{"/p/a", "/abs", "/p/m"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
