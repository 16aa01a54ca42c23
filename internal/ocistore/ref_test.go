package ocistore

import (
	"os"
	"path/filepath"
	"testing"

	"assay/fault"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]Ref{
		"node:24":                    {Registry, "index.docker.io/library/node:24"},
		"ghcr.io/a/b@sha256:" + zero: {Registry, "ghcr.io/a/b@sha256:" + zero},
		"localhost:5000/x":           {Registry, "localhost:5000/x:latest"},
		"docker:24":                  {Registry, "index.docker.io/library/docker:24"},
		"docker:node:24":             {Engine, "index.docker.io/library/node:24"},
		"docker:mine":                {Engine, "index.docker.io/library/mine:latest"},
		"docker:sha256:" + zero:      {Engine, "sha256:" + zero},
		"docker-archive:x.tar":       {Archive, "/folder/x.tar"},
		"oci:/abs/layout":            {Layout, "/abs/layout"},
	} {
		got, err := Parse(s, "/folder")
		if err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", s, got, err, want)
		}
	}
	for _, bad := range []string{"", "UPPER", "a b", "oci:", "docker-archive:", "x@sha256:short"} {
		if _, err := Parse(bad, "/folder"); fault.CodeOf(err) != "sandbox.image-invalid" || fault.FixOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Parse("oci:rel", ""); fault.ClassOf(err) != fault.Config {
		t.Errorf("a relative path without a folder: %v", err)
	}
}

const zero = "0000000000000000000000000000000000000000000000000000000000000000"

func TestKeyFollowsContent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar")
	key := func(body string) string {
		if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := Ref{Archive, file}.Key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	a, again, b := key("a"), key("a"), key("b")
	if a != again || a == b {
		t.Errorf("keys are %q, %q, %q", a, again, b)
	}
	if _, err := (Ref{Archive, file + ".none"}).Key(); fault.CodeOf(err) != "sandbox.image-missing" {
		t.Errorf("a missing archive: %v", err)
	}
}
