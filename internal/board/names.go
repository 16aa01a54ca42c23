package board

import (
	"fmt"
	"strings"
	"time"

	"assay/ref"
	"assay/sandbox"
)

// PhaseText is the name of a phase for people. A phase that is not known is
// shown by its own name.
func PhaseText(phase string) string {
	switch phase {
	case "":
		return "Starting"
	case "sandbox.queue":
		return "Waiting for a slot"
	case "sandbox.create":
		return "Creating the sandbox"
	case "sandbox.setup":
		return "Sandbox setup"
	case "sandbox.reset":
		return "Resetting the sandbox"
	case "sandbox.cleanup":
		return "Undoing preparations"
	case "sandbox.teardown":
		return "Sandbox teardown"
	case "sandbox.suspend":
		return "Keeping the sandbox"
	case "sandbox.stop":
		return "Stopping the sandbox"
	case "agent.ensure":
		return "Installing the agent"
	case "agent.setup":
		return "Agent setup"
	case "agent.run", "agent.send":
		return "Agent at work"
	case "agent.teardown":
		return "Agent teardown"
	case "workspace.baseline":
		return "Taking the baseline"
	case "workspace.diff":
		return "Collecting changes"
	case "telemetry.configure":
		return "Telemetry setup"
	case "telemetry.collect":
		return "Collecting telemetry"
	case "eval.setup":
		return "Eval setup"
	case "eval.run":
		return "Running the eval"
	case "eval.teardown":
		return "Eval teardown"
	case "assertions.evaluate":
		return "Checking"
	}
	if owner, ok := strings.CutPrefix(phase, "sandbox.prepare"); ok {
		return strings.TrimSuffix("Preparing the sandbox ("+strings.TrimPrefix(owner, ".")+")", " ()")
	}
	return sandbox.Clean(phase)
}

// Elapsed is a duration for people: "4.2s", "42s", "3m12s", "1h02m".
func Elapsed(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 9950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 59500*time.Millisecond:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		s := int(d.Seconds())
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	}
	m := int(d.Minutes())
	return fmt.Sprintf("%dh%02dm", m/60, m%60)
}

// SlotName is a slot as lines show it: never cut, because the next command may
// need it.
func SlotName(r ref.Slot) string {
	return sandbox.Clean(fmt.Sprintf("%s  %s#%d", r.Experiment, r.Eval, r.Ordinal))
}

// SpendText tells cost and tokens of what was newly executed, with how many
// attempts are in a sum that does not cover all; "" where nothing is known.
func (p Spend) SpendText() string {
	var parts []string
	if p.Priced > 0 {
		parts = append(parts, fmt.Sprintf("cost $%.2f%s", p.USD, partOf(p.Priced, p.Executed)))
	}
	if p.Metered > 0 {
		parts = append(parts, fmt.Sprintf("tokens %s in, %s out%s", thousands(p.Input), thousands(p.Output), partOf(p.Metered, p.Executed)))
	}
	return strings.Join(parts, ", ")
}

func partOf(n, all int) string {
	if n == all {
		return ""
	}
	return fmt.Sprintf(" (known of %d of %d)", n, all)
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func counted(current, total int64) string { return fmt.Sprintf("%d/%d", current, total) }

// join puts a space between two texts that are not empty.
func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}

// clip cuts s to at most limit bytes at a rune and marks the cut.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}
