package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

// TestKeep runs the stories of kept sandboxes on each kind of sandbox that keeps.
func TestKeep(t *testing.T) {
	guest := guesttest.Build(t)
	for kind, spec := range map[string]func(*testing.T) string{
		"docker": func(t *testing.T) string {
			testreq.Docker(t)
			return "docker: {image: \"" + testimage.Slice(t) + "\"}, network: none"
		},
		"native": func(t *testing.T) string {
			need(t, quickstart(t), "native")
			return "native: {}"
		},
	} {
		t.Run(kind, func(t *testing.T) {
			box := spec(t)
			testscript.Run(t, testscript.Params{
				Dir: "testdata/keep", UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
				Setup: func(e *testscript.Env) error {
					e.Setenv("HOME", e.WorkDir)
					e.Setenv("CI", "")
					e.Setenv("ASSAY_GUEST", guest)
					e.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
					e.Setenv("SANDBOX", box)
					return nil
				},
			})
		})
	}
}
