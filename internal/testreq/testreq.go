// Package testreq says what a test needs from the machine it runs on: a
// container engine, root, git, a tool. A need that is not met skips the test
// with the reason in the output. The environment variable ASSAY_REQUIRE holds
// a comma-separated list of needs that must be met ("docker,root,git"); for
// those a skip becomes a failure, so that a CI machine cannot quietly test
// less than it says.
//
// Main, called from a TestMain, ends a test binary with a check that no
// goroutine and no container, network or volume of this process is left.
//
// Only tests import this package.
package testreq

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// RequireEnv is the environment variable that lists the needs that must not be
// skipped.
const RequireEnv = "ASSAY_REQUIRE"

// need is one thing that a test may ask for. missing returns why it is not
// there, or the empty string.
type need struct {
	name    string
	missing func() string
	fix     string
}

// needs returns every known need. Names outside this list are tools looked up
// in PATH under their own name.
func needs() []need {
	return []need{
		{"docker", func() string { return sharedEngine().missing }, "./dev engine starts one"},
		{"root", func() string {
			if os.Geteuid() != 0 {
				return fmt.Sprintf("running as uid %d", os.Geteuid())
			}
			return ""
		}, "run the tests as root"},
		{"git", inPath("git"), "install git"},
		{"podman", func() string { return sharedPodman().missing }, "./dev engine --podman starts it"},
		{"node", inPath("node"), "install node"},
		{"chromium", inPath("chromium", "chromium-browser", "google-chrome"), "install chromium"},
	}
}

func inPath(names ...string) func() string {
	return func() string {
		for _, n := range names {
			if _, err := exec.LookPath(n); err == nil {
				return ""
			}
		}
		return strings.Join(names, ", ") + " not found in PATH"
	}
}

func lookup(name string) need {
	known := needs()
	if i := slices.IndexFunc(known, func(n need) bool { return n.name == name }); i >= 0 {
		return known[i]
	}
	return need{name: name, missing: inPath(name), fix: "install " + name}
}

// Have reports whether the need called name is met: "docker", "root", "git",
// "podman", "chromium", "node", or the name of any tool in PATH.
func Have(name string) bool { return lookup(name).missing() == "" }

// Required reports whether ASSAY_REQUIRE lists name.
func Required(name string) bool {
	for f := range strings.SplitSeq(os.Getenv(RequireEnv), ",") {
		if strings.TrimSpace(f) == name {
			return true
		}
	}
	return false
}

// Need skips the test when the need called name is not met, or fails it when
// ASSAY_REQUIRE lists the name.
func Need(tb testing.TB, name string) {
	tb.Helper()
	n := lookup(name)
	if reason := n.missing(); reason != "" {
		Missing(tb, name, reason+" ("+n.fix+")")
	}
}

// Missing skips the test because the need called name is not met, for a reason
// that only the caller can see, or fails it when ASSAY_REQUIRE lists the name.
func Missing(tb testing.TB, name, reason string) {
	tb.Helper()
	if Required(name) {
		tb.Fatalf("needs %s: %s; %s=%s makes this a failure", name, reason, RequireEnv, os.Getenv(RequireEnv))
	}
	tb.Skipf("needs %s: %s", name, reason)
}

// Docker needs a container engine that answers at DOCKER_HOST or at one of the
// usual sockets. Use it with Main, which checks at the end that this process
// left nothing in the engine.
func Docker(tb testing.TB) {
	tb.Helper()
	Need(tb, "docker")
}

// Root needs an effective uid of 0.
func Root(tb testing.TB) {
	tb.Helper()
	Need(tb, "root")
}

// Git needs the git command.
func Git(tb testing.TB) {
	tb.Helper()
	Need(tb, "git")
}
