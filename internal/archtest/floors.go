package archtest

// The house as data. A new package is one new line here, in the floor where
// everything it imports is below and everything that imports it is above; the
// why of each floor is in ARCHITECTURE.md.

// Rooms are paths below the module root; "." is the root itself. "x/..." is x
// and everything below it, one room whose packages may import each other.
var house = rules{
	module: "assay",
	floors: []floor{
		{"0 words", []string{"fault", "ref", "images"}},
		{"0 tools", []string{
			"expect", "internal/archive", "internal/atomicfile", "internal/modeltest", "internal/otlp", "internal/proc", "internal/redact", "internal/snapshot",
		}},
		{"0 guest", []string{"internal/guest/..."}},
		{"1", []string{"sandbox", "record", "judge", "internal/schedule"}},
		{"1 events", []string{"internal/event", "internal/keep", "internal/lease"}},
		{"1 box", []string{"internal/guestbox", "internal/ocistore", "internal/imagebuild"}},
		{"1 cloud", []string{"internal/cloudbox", "internal/hostbox"}},
		{"2", []string{
			"sandbox/docker/...", "sandbox/e2b/...", "sandbox/vercel/...", "sandbox/k8s/...",
			"sandbox/local/...", "sandbox/native/...", "sandbox/fake/...", "sandbox/sandboxtest",
			"agent", "report", "internal/ledger", "internal/board", "internal/emit", "internal/orphan",
		}},
		{"2 groups", []string{"sandbox/compose/..."}},
		{"2 parts of adapters", []string{"agent/internal/..."}},
		{"3", []string{
			".",
			"agent/claudecode/...", "agent/codex/...", "agent/bub/...", "agent/opencode/...", "agent/command/...",
			"agent/oracle/...", "agent/nop/...", "agent/script/...", "agent/agenttest",
			"report/terminal/...", "report/atif/...", "report/showjson/...", "report/html/...", "report/junit/...", "report/markdown/...", "report/annotate/...",
			"internal/dash", "internal/plain", "internal/jsonstream", "internal/projectfile",
		}},
		{"3 carry", []string{"internal/carry"}},
		{"4", []string{"internal/discover", "internal/schema", "internal/scaffold", "internal/plan", "builtin"}},
		{"4 bake", []string{"internal/bake"}},
		{"4 pool", []string{"internal/pool"}},
		{"5", []string{"internal/attempt"}},
		{"6", []string{"internal/run"}},
		{"7", []string{"internal/cli"}},
		{"8", []string{"app"}},
		{"9", []string{"cmd/...", "examples/...", "bench/..."}},
	},
	// Imported by tests and by each other only; free to look at any floor.
	testOnly: []string{
		"internal/archtest", "internal/testreq", "internal/testimage/...", "internal/testsum",
		"internal/guest/guesttest", "internal/board/boardtest", "sandbox/sandboxtest", "agent/agenttest", "agent/internal/codingtest",
	},
	// Things that few may import.
	guarded: []guard{
		{"builtin", []string{"cmd/..."}, "a program that names a provider links only what it names"},
		{"sandbox/*", []string{"builtin", "sandbox/compose/...", "examples/...", "bench/..."}, "only builtin names providers"},
		{"agent/*", []string{"builtin", "examples/...", "bench/...", "agent/..."}, "only builtin names agents"},
		{"report/*", []string{"internal/cli"}, "only the command line chooses a report"},
		{"internal/dash", []string{"internal/cli"}, "only the command line chooses a view"},
		{"internal/plain", []string{"internal/cli"}, "only the command line chooses a view"},
		{"internal/jsonstream", []string{"internal/cli"}, "only the command line chooses a view"},
	},
	// Third-party modules that are kept behind one wall. A module that is not
	// named is free.
	modules: []guard{
		{"charm.land/", []string{"internal/dash"}, "the terminal library stays in dash"},
		{"github.com/spf13/", []string{"internal/cli"}, "the flags library stays in cli"},
		{"github.com/goccy/go-yaml", []string{"internal/projectfile", "sandbox/fake", "internal/modeltest"}, "YAML is read in projectfile, and scripts of their own in fake and modeltest"},
		{"github.com/moby/", []string{"sandbox/docker/...", "sandbox/compose/...", "internal/imagebuild", "bench/..."}, "the engine's client stays in docker"},
		{"github.com/compose-spec/", []string{"sandbox/compose/..."}, "Compose files are read in compose"},
		{"k8s.io/", []string{"sandbox/k8s/..."}, "Kubernetes stays in k8s"},
	},
	// The guest is a small static program that starts in a millisecond.
	leanRooms:   []string{"internal/guest/...", "internal/snapshot", "cmd/assay-guest"},
	leanModules: []string{"golang.org/x/sys"},
	// Where a process's own arguments, streams and exit are touched.
	process: []string{"internal/cli", "app", "cmd/...", "internal/guest/...", "examples/...", "bench/..."},
}
