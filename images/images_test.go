package images_test

import (
	"fmt"
	"strings"
	"testing"

	"assay/agent/bub"
	"assay/agent/claudecode"
	"assay/agent/codex"
	"assay/images"
)

// A recipe installs the version that the agent wants, and its tag says so.
func TestRecipesMatchTheAgents(t *testing.T) {
	want := map[string]string{"claude-code": claudecode.Version, "codex": codex.Version, "bub": bub.Version}
	if len(images.All()) != len(want) {
		t.Errorf("%d recipes", len(images.All()))
	}
	for _, r := range images.All() {
		if r.Version != want[r.Agent] {
			t.Errorf("%s: version %s, the agent's is %s", r.Agent, r.Version, want[r.Agent])
		}
		if r.Image() != fmt.Sprintf("assay/%s:%s-r%d", r.Agent, r.Version, r.Revision) {
			t.Errorf("%s is called %s", r.Agent, r.Image())
		}
		if !strings.Contains(r.Dockerfile, r.Version) || strings.Contains(r.Dockerfile, "latest") || strings.Contains(r.Dockerfile, "amd64/") {
			t.Errorf("%s: the recipe does not pin the version, or one architecture:\n%s", r.Agent, r.Dockerfile)
		}
		if strings.Contains(strings.SplitAfterN(r.Dockerfile, "FROM", 2)[1], "assay") {
			t.Errorf("%s: the environment would name this program", r.Agent)
		}
		for _, other := range images.All() {
			if other.Agent != r.Agent && strings.Contains(r.Dockerfile, other.Agent+"@") {
				t.Errorf("%s installs %s too", r.Agent, other.Agent)
			}
		}
	}
}
