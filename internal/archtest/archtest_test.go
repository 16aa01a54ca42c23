package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestHouse(t *testing.T) {
	problems, err := check(os.DirFS("../.."), house)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// Every rule must be able to fail: each case plants one violation in a small
// house and names the line that must be printed.
func TestPlantedViolations(t *testing.T) {
	small := rules{
		module: "m",
		floors: []floor{
			{"0", []string{"low", "peer", "tree/..."}},
			{"1", []string{"mid", "mid/kind"}},
			{"2", []string{"high", "."}},
		},
		testOnly:    []string{"check"},
		guarded:     []guard{{"mid/*", []string{"high"}, "few know kinds"}},
		modules:     []guard{{"example.com/tty", []string{"high"}, "one wall"}},
		leanRooms:   []string{"low"},
		leanModules: []string{"example.com/sys"},
		process:     []string{"high"},
	}
	const doc = "// Package x is a plant.\n"
	for _, tc := range []struct {
		name, file, src string
		want            string // a part of the one problem, or empty for none
	}{
		{"downwards", "high/a.go", doc + "package high\nimport \"m/low\"\n", ""},
		{"upwards", "low/a.go", doc + "package low\nimport \"m/high\"\n", "low/a.go:3: low (floor 0) may not import high (floor 2)"},
		{"the line is printed", "low/a.go", doc + "package low\nimport odd \"m/high\"\n", "\n\timport odd \"m/high\""},
		{"siblings", "low/a.go", doc + "package low\nimport \"m/peer\"\n", "siblings"},
		{"the root has a floor", "mid/a.go", doc + "package mid\nimport \"m\"\n", "may not import . (floor 2)"},
		{"one room", "tree/a/a.go", doc + "package a\nimport \"m/tree/b\"\n", ""},
		{"any build tag", "low/a.go", "//go:build never\n\n" + doc + "package low\nimport \"m/high\"\n", "may not import"},
		{"tests look anywhere", "low/a_test.go", doc + "package low\nimport \"m/high\"\n", ""},
		{"unknown package", "attic/a.go", doc + "package attic\n", "attic: this package is on no floor"},
		{"test-only from code", "high/a.go", doc + "package high\nimport \"m/check\"\n", "for tests only"},
		{"test-only from a test", "high/a_test.go", doc + "package high\nimport \"m/check\"\n", ""},
		{"guarded by the right one", "high/a.go", doc + "package high\nimport \"m/mid/kind\"\n", ""},
		{"guarded by another", "a.go", doc + "package m\nimport \"m/mid/kind\"\n", "few know kinds"},
		{"module in its place", "high/a.go", doc + "package high\nimport \"example.com/tty/v2\"\n", ""},
		{"module elsewhere", "mid/a.go", doc + "package mid\nimport \"example.com/tty/v2\"\n", "one wall"},
		{"module with a longer name", "mid/a.go", doc + "package mid\nimport \"example.com/ttyx\"\n", ""},
		{"lean", "low/a.go", doc + "package low\nimport \"example.com/sys/unix\"\n", ""},
		{"not lean", "low/a.go", doc + "package low\nimport \"example.com/big\"\n", "linked into the guest"},
		{"no comment", "low/a.go", "package low\n", "low: the package has no comment"},
		{"a directive is no comment", "low/a.go", "//go:build linux\n\npackage low\n", "no comment"},
		{"init", "low/a.go", doc + "package low\nfunc init() {}\n", "low/a.go:3: init function"},
		{"init in a test", "low/a_test.go", doc + "package low\nfunc init() {}\n", "init function"},
		{"a method called init", "low/a.go", doc + "package low\ntype T int\nfunc (T) init() {}\n", ""},
		{"exit", "low/a.go", doc + "package low\nimport \"os\"\nfunc f() { os.Exit(1) }\n", "low/a.go:4: os.Exit belongs to high"},
		{"stdout under another name", "low/a.go", doc + "package low\nimport sys \"os\"\nvar w = sys.Stdout\n", "os.Stdout"},
		{"args where allowed", "high/a.go", doc + "package high\nimport \"os\"\nvar a = os.Args\n", ""},
		{"another os", "low/a.go", doc + "package low\nimport \"m/tree/os\"\nvar a = os.Args\n", "siblings"},
		{"testdata is not ours", "low/testdata/a.go", "package x\nfunc init() {}\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := check(fstest.MapFS{tc.file: {Data: []byte(tc.src)}}, small)
			if err != nil {
				t.Fatal(err)
			}
			var text []string
			for _, p := range got {
				text = append(text, p.String())
			}
			all := strings.Join(text, "\n")
			switch {
			case tc.want == "" && all != "":
				t.Errorf("found %q, want nothing", all)
			case tc.want != "" && (len(got) != 1 || !strings.Contains(all, tc.want)):
				t.Errorf("found %q, want one problem with %q", all, tc.want)
			}
		})
	}
}

func TestNestedModulesAreLeftAlone(t *testing.T) {
	fsys := fstest.MapFS{
		"tools/go.mod": {Data: []byte("module tools\n")},
		"tools/a.go":   {Data: []byte("package tools\nfunc init() {}\n")},
	}
	if got, err := check(fsys, house); err != nil || len(got) != 0 {
		t.Errorf("found %v, %v; want nothing", got, err)
	}
}

// A file that does not parse must stop the check, not hide from it.
func TestUnparsableFileIsAnError(t *testing.T) {
	fsys := fstest.MapFS{"fault/a.go": {Data: []byte("package fault\nimport (\n")}}
	if _, err := check(fsys, house); err == nil {
		t.Error("no error")
	}
}

// A room named twice would make its floor a matter of order.
func TestEachRoomIsNamedOnce(t *testing.T) {
	seen := map[string]string{}
	for _, f := range house.floors {
		for _, rm := range f.rooms {
			if was, ok := seen[rm]; ok {
				t.Errorf("%s is on floor %s and on floor %s", rm, was, f.name)
			}
			seen[rm] = f.name
		}
	}
}
