// Package agenttest holds every agent to the promises that package agent writes
// on Agent, Ensurer, Starter, Session and Turn: one subtest for each promise. An
// agent's own test file only builds a Harness: where commands run, and one case
// for each behaviour that it can make its agent show.
//
// A promise that a harness has no case for is skipped with the reason. Every
// promise is itself tested: the package's own tests run it against an agent that
// breaks just that promise and require it to fail.
package agenttest

import (
	"slices"
	"testing"

	"assay/agent"
	"assay/sandbox"
)

// Behaviour is something that a harness can make its agent do in a turn.
type Behaviour string

// The behaviours. In all of them the agent works in the workdir of its sandbox.
const (
	// Works: the agent succeeds; see Reply, Changes and Tools of Case.
	Works Behaviour = "works"
	// Fails: the agent ends normally and failed at its task.
	Fails Behaviour = "fails"
	// Hangs: the agent starts a child in a session of its own, makes the file
	// "started" in the workdir, and never ends.
	Hangs Behaviour = "hangs"
	// Digests: the agent replies with the SHA-256 of the message's text, in
	// lower-case hex.
	Digests Behaviour = "digests"
	// ReadsSecret: the agent replies with the SHA-256 of the value of the first
	// variable in Info.SecretEnv.
	ReadsSecret Behaviour = "reads-secret"
	// ReportsUsage: the agent reports exactly Case.Usage.
	ReportsUsage Behaviour = "reports-usage"
	// LosesCall: the agent reports a tool call and never that call's end.
	LosesCall Behaviour = "loses-call"
	// Junk: among Case.Tools the agent's event stream holds lines that are no
	// events, and one event of the type Case.Unknown.
	Junk Behaviour = "junk"
	// HalfLine: the event stream breaks off in the middle of its last line.
	HalfLine Behaviour = "half-line"
	// HugeLine: the event stream holds one line longer than
	// agent.MaxEventLine.
	HugeLine Behaviour = "huge-line"
	// Missing: the agent is not installed and can be.
	Missing Behaviour = "missing"
	// Absent: the agent is not installed and cannot be.
	Absent Behaviour = "absent"
	// FailsSetup: Setup fails after it did a part of its work.
	FailsSetup Behaviour = "fails-setup"
)

// Case is one behaviour, ready to be played.
type Case struct {
	// Agent shows the behaviour.
	Agent agent.Agent
	// Text makes it do so; empty is an ordinary sentence. The promises about
	// texts replace it.
	Text string
	// Turns is how many turns of one attempt show the behaviour; 0 is any
	// number.
	Turns int
	// Session changes a session before it is used, as the engine does for an
	// eval's solution; nil changes nothing.
	Session func(*agent.Session)

	// Reply is the last assistant message.
	Reply string
	// Changes are the files below the workdir that the agent itself changes.
	Changes []string
	// Tools are the names of the tool calls, in order.
	Tools []string
	// Usage is what is reported; nil is nothing.
	Usage *agent.Usage
	// Unknown is the type of an event that package agent does not know, or
	// empty.
	Unknown agent.EventType
}

// Harness is what the suite needs to know of an agent. Driver and the case
// Works are required.
type Harness struct {
	// Driver makes a fresh environment with a POSIX shell that ends with the
	// test; nil for direct agents.
	Driver func(tb testing.TB) sandbox.Driver
	// Cases makes the behaviours; a missing one skips the promises about it.
	Cases map[Behaviour]func(tb testing.TB) Case
}

// Promise is one promise and its test.
type Promise struct {
	// Name is the name of the subtest.
	Name string
	// Test fails t when the agent breaks the promise.
	Test func(t testing.TB, h Harness)
}

// Promises returns every promise of the contract, in a fixed order.
func Promises() []Promise {
	return slices.Concat(infoPromises(), sendPromises(), textPromises(), evidencePromises(), lifePromises())
}

// Run holds an agent to every promise.
func Run(t *testing.T, h Harness) {
	for _, p := range Promises() {
		t.Run(p.Name, func(t *testing.T) { p.Test(t, h) })
	}
}

func caseOf(t testing.TB, h Harness, b Behaviour) Case {
	t.Helper()
	mk := h.Cases[b]
	if mk == nil {
		t.Skipf("the harness has no case for the behaviour %q", b)
	}
	c := mk(t)
	if c.Text == "" {
		c.Text = "Make it so, please."
	}
	return c
}

// several skips when a case is good for fewer than n turns.
func several(t testing.TB, c Case, n int) {
	t.Helper()
	if c.Turns > 0 && c.Turns < n {
		t.Skipf("the case is good for %d turns, the promise needs %d", c.Turns, n)
	}
}
