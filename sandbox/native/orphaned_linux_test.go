package native

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"assay/fault"
)

// Only what a dead runner of this process namespace left is swept: in another one
// its number says nothing.
func TestCgroupsOfOthersAreNotSwept(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead, self := gone.Process.Pid, os.Getpid()
	dir := t.TempDir()
	left := fmt.Sprintf("%s%d-1-%s-1", boxPrefix, dead, namespace())
	reused := fmt.Sprintf("%s%d-1-%s-1", boxPrefix, self, namespace())
	stay := []string{
		fmt.Sprintf("%s%d-%s-%s-1", boxPrefix, self, startOf(self), namespace()),
		fmt.Sprintf("%s%d-1-4026530000-1", boxPrefix, dead), // of another namespace
		fmt.Sprintf("%s%d-1-1", boxPrefix, dead),            // nobody knows of which
		boxPrefix + "x", "another",
	}
	for _, name := range append([]string{left, reused}, stay...) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := &cgroups{parents: map[string]string{"pids": dir, "memory": dir}}
	p := New(Options{})
	p.cgs = c
	var listed []string
	for _, i := range p.deadGroups() {
		listed = append(listed, i.Name)
	}
	slices.Sort(listed)
	if want := []string{left, reused}; !slices.Equal(listed, sorted(want)) {
		t.Errorf("listed as left: %v, want %v", listed, want)
	}
	c.sweep()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, sorted(stay)) {
		t.Errorf("%v stay, want %v", names, stay)
	}
}

// The folder of the boxes stands where everybody may make it: in one of somebody
// else nothing is looked at, because a link there could lead anywhere.
func TestBoxesOfSomebodyElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "boxes")
	target := filepath.Join(t.TempDir(), "made")
	if err := os.MkdirAll(filepath.Join(dir, "b1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "b1", boxLock)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	p := New(Options{Boxes: dir})
	if _, err := p.Inventory(t.Context()); fault.CodeOf(err) != "sandbox.native-boxes" {
		t.Errorf("listed, error %v", err)
	}
	if err := p.Destroy(t.Context(), "b1"); fault.CodeOf(err) != "sandbox.native-boxes" {
		t.Errorf("destroyed, error %v", err)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Error("a link was followed and made a file")
	}
}

func sorted(s []string) []string { slices.Sort(s); return s }
