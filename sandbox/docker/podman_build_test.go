package docker

import (
	"strings"
	"testing"

	"assay/fault"
	"assay/internal/testimage"
	"assay/internal/testreq"
	"assay/sandbox"
)

// Podman builds with its own builder, by the same rules.
func TestBuildsOnPodman(t *testing.T) {
	_, host := testreq.Podman(t)
	p := providerOf(t, Podman, host)
	base, word := testimage.Podman(t, "busybox"), newToken()
	mine := func(i sandbox.StoredImage) bool { return strings.Contains(i.Of, word) }
	t.Cleanup(func() {
		if _, err := p.RemoveImages(limited(t), mine); err != nil {
			t.Error(err)
		}
	})
	dir := folder(t, map[string]string{word: "FROM " + base + "\nRUN echo hi > /made\nCOPY a /a\n", "a": word, word + "-bad": "FROM " + base + "\nRUN echo the reason; exit 3\n"})
	h := sandbox.Harness{Name: "t", Version: "1", Install: []string{"test -e /made"}}
	made, err := prepare(t, p, dir, Spec{Dockerfile: word}, h)
	var l sandbox.Logged
	if asLogged(err, &l) {
		t.Log(l.Log())
	}
	if err != nil || made.Details["origin"] != originBuilt {
		t.Fatalf("%+v, %v", made, err)
	}
	again, err := prepare(t, p, dir, Spec{Dockerfile: word}, h)
	if err != nil || again.Details["origin"] != originReused || again.Ref != made.Ref {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = prepare(t, p, dir, Spec{Dockerfile: word + "-bad"}, sandbox.Harness{})
	if fault.ClassOf(err) != fault.Config || fault.StageOf(err) != "dockerfile" || !strings.Contains(err.Error(), "exit code 3") || !asLogged(err, &l) || l.Log() != "the reason" {
		t.Errorf("a failing step: %v", err)
	}
	gone, err := p.RemoveImages(limited(t), mine)
	if err != nil || len(gone) != 2 {
		t.Errorf("removed %+v, %v", gone, err)
	}
	left, err := p.Images(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range left {
		if mine(i) {
			t.Errorf("it is there: %+v", i)
		}
	}
}
