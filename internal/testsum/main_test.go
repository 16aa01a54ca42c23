package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The stream is the real one: small modules are tested with the go command.
func TestSummariseRealRuns(t *testing.T) {
	for _, tc := range []struct {
		name, src string
		ok        bool
		has       []string
		hasNot    []string
	}{
		{
			"all pass", `package p
import "testing"
func TestA(t *testing.T) { t.Log("chatter") }`,
			true,
			[]string{"ok  \tp\t", "PASS: 1 packages; tests and subtests: 1 passed, 0 failed, 0 skipped"},
			[]string{"chatter", "Skipped"},
		},
		{
			"a skip with its reason", `package p
import "testing"
func TestA(t *testing.T) { t.Skip("needs docker: no socket") }
func TestB(t *testing.T) {}`,
			true,
			[]string{"Skipped (1):\n  needs docker: no socket\n      p TestA\n", "1 passed, 0 failed, 1 skipped"},
			nil,
		},
		{
			"a failure with its output", `package p
import "testing"
func TestA(t *testing.T) { t.Error("one is not two") }`,
			false,
			[]string{"one is not two", "FAIL\tp\t", "Failed (1):\n  p TestA\n", "FAIL: 1 packages"},
			nil,
		},
		{
			"a panic", `package p
import "testing"
func TestA(t *testing.T) { var m map[string]int; m["a"] = 1 }`,
			false,
			[]string{"nil map", "p TestA", "FAIL: 1 packages"},
			nil,
		},
		{
			"TestMain that ends badly", `package p
import ("fmt"; "os"; "testing")
func TestMain(m *testing.M) { m.Run(); fmt.Println("left in the engine: c1"); os.Exit(1) }
func TestA(t *testing.T) {}`,
			false,
			[]string{"left in the engine: c1", "FAIL: 1 packages"},
			nil,
		},
		{
			"no build", `package p
import "testing"
func TestA(t *testing.T) { nonsense() }`,
			false,
			[]string{"undefined: nonsense", "Did not build (1)", "FAIL"},
			nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module p\n\ngo 1.26\n", "a_test.go": tc.src} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
			cmd.Dir = dir
			stream, _ := cmd.Output() // red on purpose in most cases
			var out strings.Builder
			ok, err := summarise(strings.NewReader(string(stream)), &out)
			if err != nil {
				t.Fatal(err)
			}
			if ok != tc.ok {
				t.Errorf("ok = %v, want %v", ok, tc.ok)
			}
			for _, want := range tc.has {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, out.String())
				}
			}
			for _, not := range tc.hasNot {
				if strings.Contains(out.String(), not) {
					t.Errorf("%q in:\n%s", not, out.String())
				}
			}
		})
	}
}

func TestAnEmptyStreamIsNotGreen(t *testing.T) {
	var out strings.Builder
	if ok, err := summarise(strings.NewReader(""), &out); ok || err != nil {
		t.Errorf("ok = %v, %v; want false, nil", ok, err)
	}
}

func TestOtherLinesPassThrough(t *testing.T) {
	var out strings.Builder
	if _, err := summarise(strings.NewReader("go: updates to go.mod needed\n"), &out); err != nil || !strings.Contains(out.String(), "go: updates to go.mod needed\n") {
		t.Errorf("%v, output %q", err, out.String())
	}
}
