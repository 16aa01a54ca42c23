package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/internal/guest/guesttest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

// A web application with a database, both built, is used by a real eval: its
// checks talk to the application, and what the services said is kept with the
// attempt that misses them.
func TestComposeExample(t *testing.T) {
	cli, _ := testreq.Engine(t)
	testimage.Tag(t, cli, testimage.Busybox(t), "busybox:1.36")
	dir := quickstart(t)
	project := filepath.Join(dir, "compose")
	if err := os.CopyFS(project, os.DirFS("../../examples/compose")); err != nil {
		t.Fatal(err)
	}
	assay := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "bin", "assay"), append([]string{"-C", project}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "CI=", "ASSAY_GUEST="+guesttest.Build(t))
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if cmd.Process != nil {
			testreq.Owns(cmd.Process.Pid)
		}
		if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() > 1) {
			t.Fatalf("assay %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if out := assay("exp", "oracle"); !strings.Contains(out, "PASSED") {
		t.Fatalf("the eval's own solution does not pass:\n%s", out)
	}
	if out := assay("exp", "idle"); !strings.Contains(out, "0 passed, 1 failed") {
		t.Fatalf("doing nothing does not fail:\n%s", out)
	}
	var doc struct {
		Runs []struct {
			Slots []struct {
				Diagnostics []struct {
					Code string
					Data struct{ Name, State, Log string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(assay("show", "--experiment", "idle", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range doc.Runs {
		for _, s := range r.Slots {
			for _, d := range s.Diagnostics {
				if d.Code == "companion-log" {
					got = append(got, d.Data.Name+": "+d.Data.State+": "+strings.SplitN(d.Data.Log, "\n", 2)[0])
				}
			}
		}
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "app: running, healthy: ") || !slices.Contains(got, "db: running, healthy: serving visits") {
		t.Errorf("the attempt keeps of its services %q", got)
	}
}
