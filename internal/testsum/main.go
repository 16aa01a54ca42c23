// Command testsum reads the event stream of `go test -json` and prints what a
// person wants of it: the line of each package as it ends, the whole output of
// each failed test, and at the end the skipped tests under their reasons, then
// the totals. It exits with 1 when anything failed, and when the stream holds
// no package at all.
//
//	go test -json ./... | go run ./internal/testsum
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	ok, err := summarise(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is one line of the stream; the format is documented at
// `go doc test2json`, build events at `go help buildjson`.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
}

// summary is the fold of the stream.
type summary struct {
	w                       io.Writer
	output                  map[string][]string // package, NUL, test → its lines
	building                map[string][]string // import path → compiler output
	packages, bad           int
	passed, failed, skipped int
	failures, brokenBuilds  []string
	skips                   map[string][]string // reason → tests
}

// summarise copies the stream's gist to w and reports whether all passed.
func summarise(r io.Reader, w io.Writer) (bool, error) {
	s := &summary{w: w, output: map[string][]string{}, building: map[string][]string{}, skips: map[string][]string{}}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			s.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	s.totals()
	return s.bad == 0 && s.failed == 0 && s.packages > 0, nil
}

// line takes one line; what is no event (a message of the go command itself)
// is shown as it is.
func (s *summary) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(s.w, line)
		return
	}
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "build-output":
		s.building[e.ImportPath] = append(s.building[e.ImportPath], e.Output)
	case "build-fail":
		s.bad++
		s.brokenBuilds = append(s.brokenBuilds, e.ImportPath)
		fmt.Fprint(s.w, strings.Join(s.building[e.ImportPath], ""))
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, s.output[key])
		} else {
			s.endTest(e, s.output[key])
		}
		delete(s.output, key)
	}
}

func (s *summary) endTest(e event, output []string) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped++
		why := reason(output)
		s.skips[why] = append(s.skips[why], name)
	case "fail":
		s.failed++
		s.failures = append(s.failures, name)
		fmt.Fprint(s.w, strings.Join(output, ""))
	}
}

// endPackage prints the package's own line ("ok  \tassay/ref\t0.1s"), and all
// that the package itself said when it failed: a panic, a leak, a time limit.
// Tests that it took down with it never ended, so theirs is shown too.
func (s *summary) endPackage(e event, output []string) {
	s.packages++
	if e.Action == "fail" {
		s.bad++
		for key, lines := range s.output {
			if pkg, test, _ := strings.Cut(key, "\x00"); pkg == e.Package && test != "" {
				fmt.Fprint(s.w, strings.Join(lines, ""))
				s.failed++
				s.failures = append(s.failures, pkg+" "+test+" (did not end)")
				delete(s.output, key)
			}
		}
		fmt.Fprint(s.w, strings.Join(output, ""))
		return
	}
	for _, l := range output {
		if strings.HasPrefix(l, "ok ") || strings.HasPrefix(l, "? ") || strings.Contains(l, "\tcoverage:") {
			fmt.Fprint(s.w, l)
		}
	}
}

// reason returns what a skipped test printed, on one line.
func reason(output []string) string {
	var said []string
	for _, l := range output {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") {
			continue
		}
		// "file_test.go:12: needs docker: …"
		if _, after, ok := strings.Cut(l, ".go:"); ok {
			if _, text, ok := strings.Cut(after, ": "); ok {
				l = text
			}
		}
		said = append(said, l)
	}
	if said == nil {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

func (s *summary) totals() {
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		slices.Sort(lines)
		fmt.Fprintf(s.w, "\n%s (%d):\n", title, len(lines))
		for _, l := range lines {
			fmt.Fprintln(s.w, "  "+l)
		}
	}
	if s.skipped > 0 {
		fmt.Fprintf(s.w, "\nSkipped (%d):\n", s.skipped)
		for _, why := range slices.Sorted(maps.Keys(s.skips)) {
			fmt.Fprintln(s.w, "  "+why)
			for _, name := range slices.Sorted(slices.Values(s.skips[why])) {
				fmt.Fprintln(s.w, "      "+name)
			}
		}
	}
	list("Failed", s.failures)
	list("Did not build", s.brokenBuilds)
	verdict := "PASS"
	if s.bad > 0 || s.failed > 0 {
		verdict = "FAIL"
	}
	if s.packages == 0 {
		verdict = "FAIL: no package was tested"
	}
	fmt.Fprintf(s.w, "\n%s: %d packages; tests and subtests: %d passed, %d failed, %d skipped\n", verdict, s.packages, s.passed, s.failed, s.skipped)
}
