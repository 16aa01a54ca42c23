package guestbin

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"assay/fault"
	"assay/internal/guest/guesttest"
)

func TestFind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the candidates are Linux binaries of this machine")
	}
	arch := runtime.GOARCH
	built := guesttest.Build(t)
	binary, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	name := "assay-guest-linux-" + arch
	dir := t.TempDir()
	write := func(path string, b []byte) string {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o755)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	beside := write("with/"+name, binary)
	write("with/assay", binary)
	alone := write("alone/assay", binary)
	script := write("script/assay", []byte("#!/bin/sh\n"))
	self := func(p string) func() (string, error) { return func() (string, error) { return p, nil } }
	cache := filepath.Join(dir, "cache")
	inCache := func() (string, error) { return cache, nil }
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte("packed")); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		f       finder
		arch    string
		path    string // "cache": an unpacked file
		content string
		code    string
	}{
		{"embedded wins", finder{embedded: fstest.MapFS{name: {Data: []byte("plain")}}, cache: inCache, env: built, self: self(alone)}, arch, "cache", "plain", ""},
		{"embedded packed", finder{embedded: fstest.MapFS{name + ".gz": {Data: packed.Bytes()}}, cache: inCache, self: self(alone)}, arch, "cache", "packed", ""},
		{"embedded for others only", finder{embedded: fstest.MapFS{"assay-guest-linux-x": {}}, cache: inCache, env: built, self: self(alone)}, arch, built, "", ""},
		{"no cache", finder{embedded: fstest.MapFS{name: {}}, cache: func() (string, error) { return "", fs.ErrNotExist }, self: self(alone)}, arch, "", "", "guest-unpack"},
		{"environment", finder{env: built, self: self(filepath.Join(dir, "with/assay"))}, arch, built, "", ""},
		{"environment names nothing", finder{env: filepath.Join(dir, "no"), self: self(alone)}, arch, "", "", "guest-missing"},
		{"environment names a script", finder{env: script, self: self(alone)}, arch, "", "", "guest-missing"},
		{"beside", finder{self: self(filepath.Join(dir, "with/assay"))}, arch, beside, "", ""},
		{"itself", finder{self: self(alone), serves: true}, arch, alone, "", ""},
		{"itself, which does not serve", finder{self: self(alone)}, arch, "", "", "guest-missing"},
		{"itself is no program", finder{self: self(script), serves: true}, arch, "", "", "guest-missing"},
		{"other architecture", finder{self: self(alone), serves: true}, "riscv64", "", "", "guest-missing"},
		{"dynamic", finder{self: self("/bin/sh"), serves: true}, arch, "", "", "guest-missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := tt.f.find("linux", tt.arch)
			if fault.CodeOf(err) != tt.code {
				t.Fatalf("err = %v, want code %q", err, tt.code)
			}
			if tt.code != "" {
				if fault.ClassOf(err) == fault.Config && fault.FixOf(err) == "" {
					t.Error("no fix")
				}
				return
			}
			if tt.path == "cache" {
				b, err := os.ReadFile(g.Path)
				st, statErr := os.Stat(g.Path)
				if err != nil || statErr != nil || string(b) != tt.content || st.Mode().Perm() != 0o755 || !strings.HasPrefix(g.Path, cache) {
					t.Errorf("%s: %q, %v", g.Path, b, err)
				}
			} else if g.Path != tt.path {
				t.Errorf("path = %s, want %s", g.Path, tt.path)
			}
		})
	}
}

func TestUnpackRepairs(t *testing.T) {
	dir := t.TempDir()
	f := finder{embedded: fstest.MapFS{"x": {Data: []byte("whole")}}, cache: func() (string, error) { return dir, nil }}
	path, err := f.unpack("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("cut"), 0o755); err != nil {
		t.Fatal(err)
	}
	if again, err := f.unpack("x"); err != nil || again != path {
		t.Fatal(again, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "whole" {
		t.Errorf("content %q, %v", b, err)
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(names) != 1 {
		t.Errorf("files %v", names)
	}
}
