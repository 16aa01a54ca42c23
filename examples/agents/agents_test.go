// Package agents_test runs the example with both real agents against its
// scripted model.
package agents_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"assay/internal/modeltest"
	"assay/internal/testimage"
	"assay/internal/testreq"
)

func TestMain(m *testing.M) { testreq.Main(m) }

// gateway is this machine as containers see it.
func gateway(t *testing.T) string {
	t.Helper()
	i, err := net.InterfaceByName("docker0")
	if err != nil {
		testreq.Missing(t, "agents", "no bridge to the containers: "+err.Error())
	}
	addrs, err := i.Addrs()
	if err != nil || len(addrs) == 0 {
		testreq.Missing(t, "agents", "the bridge to the containers has no address")
	}
	return strings.Split(addrs[0].String(), "/")[0]
}

// model serves the example's script until the test ends, at the address that
// sandboxes reach.
func model(t *testing.T) string {
	t.Helper()
	if !testreq.Required("agents") {
		testreq.Missing(t, "agents", "the real agent CLIs are installed and run only with ASSAY_REQUIRE=agents")
	}
	testreq.Need(t, "npm")
	script, err := os.Open("model.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer script.Close()
	s, err := modeltest.ParseScript(script)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(gateway(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- modeltest.New(s).Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// example copies the project and returns its folder and what runs the program in
// it, with the scripted model in the place of the real ones.
func example(t *testing.T, addr string) (dir string, run func(args ...string) string) {
	t.Helper()
	dir, bin := t.TempDir(), filepath.Join(t.TempDir(), "assay")
	if out, err := exec.Command("go", "build", "-o", bin, "assay/cmd/assay").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	return dir, func(args ...string) string {
		t.Helper()
		cmd := exec.Command(bin, append([]string{"-C", dir}, args...)...)
		url := "http://" + addr
		cmd.Env = append(os.Environ(), "ANTHROPIC_API_KEY=scripted-key-1234", "CODEX_API_KEY=scripted-key-1234", "ANTHROPIC_BASE_URL="+url, "CODEX_BASE_URL="+url+"/v1")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Start()
		if err == nil {
			testreq.Owns(cmd.Process.Pid)
			err = cmd.Wait()
		}
		if err != nil {
			t.Fatalf("%q: %v\n%s%s", args, err, out.String(), errs.String())
		}
		return out.String()
	}
}

// TestExampleNative runs one eval with both agents in the embedded sandbox, which
// reaches the model alone.
func TestExampleNative(t *testing.T) {
	addr := model(t)
	dir, run := example(t, addr)
	if !strings.Contains(strings.Join(strings.Fields(run("doctor")), " "), "native works") {
		testreq.Missing(t, "native", "the embedded sandbox does not work here")
	}
	project := fmt.Appendf(nil, "name: agents\ndefaults:\n  timeout: 10m\n  sandbox:\n    native: {}\n    network: {allow: [%q]}\n", addr)
	if err := os.WriteFile(filepath.Join(dir, "assay.yaml"), project, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []string{"claude-code", "codex"} {
		if out := run("exp", x, "hello"); !strings.Contains(out, "1 passed") {
			t.Errorf("%s: %s", x, out)
		}
	}
}

func TestExample(t *testing.T) {
	addr := model(t)
	image := testimage.SliceNode(t)
	dir, run := example(t, addr)
	project, err := os.ReadFile("assay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The test image lacks one library of the C library's that the CLIs need.
	lib, err := os.ReadFile("/lib/x86_64-linux-gnu/librt.so.1")
	if err != nil {
		testreq.Missing(t, "agents", "no library to put into the image: "+err.Error())
	}
	project = bytes.Replace(project, []byte("node:24-slim"), []byte(image), 1)
	project = fmt.Appendf(project, "    setup: [{run: 'echo %s | base64 -d > /lib/x86_64-linux-gnu/librt.so.1', name: one more library, user: root}]\n", base64.StdEncoding.EncodeToString(lib))
	if err := os.WriteFile(filepath.Join(dir, "assay.yaml"), project, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []string{"claude-code", "codex"} {
		run("exp", x)
	}
	var doc struct {
		Totals struct{ Passed, Failed, Errored int }
		Runs   []struct {
			Experiment string
			Slots      []struct {
				Eval, Verdict string
				Usage         map[string]float64
				CostUSD       *float64
			}
		}
	}
	if err := json.Unmarshal([]byte(run("show", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Totals.Passed != 6 || len(doc.Runs) != 2 {
		t.Errorf("totals %+v of %d runs", doc.Totals, len(doc.Runs))
	}
	for _, r := range doc.Runs {
		for _, slot := range r.Slots {
			if slot.Verdict != "passed" || slot.Usage["outputTokens"] == 0 || slot.CostUSD == nil {
				t.Errorf("%s %s: %s, usage %v, cost %v", r.Experiment, slot.Eval, slot.Verdict, slot.Usage, slot.CostUSD)
			}
		}
	}
}
