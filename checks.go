package assay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"assay/agent"
	"assay/expect"
	"assay/fault"
	"assay/record"
	"assay/sandbox"
)

// yes and no make outcomes in one line.
func yes() (record.Check, error) { return record.Check{Outcome: record.Matched}, nil }

func no(format string, args ...any) (record.Check, error) {
	return record.Check{Outcome: record.Mismatched, Detail: fmt.Sprintf(format, args...)}, nil
}

// unknown is an outcome for missing evidence.
func unknown(reason, format string, args ...any) (record.Check, error) {
	return record.Check{Outcome: record.Unavailable, Reason: reason, Detail: fmt.Sprintf(format, args...)}, nil
}

// Matcher returns the matcher of a declared expectation, or ok false when it
// declares nothing.
func (m *ValueMatch) Matcher() (expect.Matcher, bool) {
	if m == nil {
		return expect.Matcher{}, false
	}
	var all []expect.Matcher
	if m.Contains != "" {
		all = append(all, expect.Contains(m.Contains))
	}
	if m.Excludes != "" {
		all = append(all, expect.Excludes(m.Excludes))
	}
	if m.Matches != "" {
		all = append(all, expect.Matches(m.Matches))
	}
	if m.Equals != nil {
		all = append(all, expect.Equals(*m.Equals))
	}
	if m.JSON != nil {
		all = append(all, expect.JSON(structure(m.JSON)))
	}
	switch len(all) {
	case 0:
		return expect.Matcher{}, false
	case 1:
		return all[0], true
	default:
		return expect.And(all...), true
	}
}

// structure replaces the declared expectations inside a partial structure by
// matchers.
func structure(v any) any {
	switch v := v.(type) {
	case ValueMatch:
		if m, ok := v.Matcher(); ok {
			return m
		}
		return nil
	case *ValueMatch:
		return structure(*v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = structure(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = structure(e)
		}
		return out
	}
	return v
}

// Run runs a command in the sandbox as a check: it must exit 0.
func (t *T) Run(ctx context.Context, script string) *Assertion {
	return t.RunCheck(ctx, RunCheck{Command: sandbox.Command{Shell: script}})
}

// RunCheck runs a command in the sandbox now and judges how it ended. The
// grader's shell and PATH are those of before the agent ran.
func (t *T) RunCheck(ctx context.Context, c RunCheck) *Assertion {
	s := t.Sandbox()
	a := t.assert("run", c.Command.Label(), func(context.Context) (record.Check, error) { return runCheck(ctx, s, c) })
	a.result(ctx)
	return a
}

func runCheck(ctx context.Context, s EvalSandbox, c RunCheck) (record.Check, error) {
	if err := s.VerifyShell(ctx); err != nil {
		return record.Check{}, err
	}
	res, err := s.RunDeclared(ctx, c.Command, sandbox.CommandOptions{Trusted: true})
	var exit *sandbox.CommandError
	if err != nil && !errors.As(err, &exit) {
		if own := (*fault.Timeout)(nil); errors.As(err, &own) && own.Limit == "command-timeout" {
			// The author's own limit is part of the expectation.
			return no("the command did not end within %s, its own timeout%s", own.Value, printed(res))
		}
		return record.Check{}, err
	}
	if res.Code != c.Exit {
		out, _ := no("expected exit %d, received exit %d%s", c.Exit, res.Code, printed(res))
		if res.Code == 126 || res.Code == 127 {
			out.Environment = fmt.Sprintf("exit %d: the check's own command could not run; see whether the environment lacks a program", res.Code)
			out.Detail = fmt.Sprintf("expected exit %d, received exit %d: the check's own command could not run, see whether the environment lacks a program%s", c.Exit, res.Code, printed(res))
		}
		if res.OOM {
			out.Environment = "the check's command was ended for lack of memory"
		}
		return out, nil
	}
	for _, part := range []struct {
		name, text string
		dropped    int64
		want       *ValueMatch
	}{{"stdout", res.Stdout, res.StdoutDropped, c.Stdout}, {"stderr", res.Stderr, res.StderrDropped, c.Stderr}} {
		m, ok := part.want.Matcher()
		if !ok {
			continue
		}
		if r := matched(m.Match(part.text)); r.Outcome != record.Matched {
			if part.dropped > 0 && r.Outcome == record.Mismatched {
				return unknown("output-dropped", "%s has %d bytes too many to be kept, so a mismatch proves nothing", part.name, part.dropped)
			}
			r.Detail = part.name + ": " + r.Detail
			return r, nil
		}
	}
	return yes()
}

func printed(res sandbox.Result) string {
	var b strings.Builder
	for _, part := range []struct{ name, text string }{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		text := strings.TrimSpace(sandbox.StripControl(part.text))
		if text == "" {
			continue
		}
		if len(text) > 1500 {
			text = "…" + text[len(text)-1500:]
		}
		fmt.Fprintf(&b, "\n%s: %s", part.name, text)
	}
	return b.String()
}

// FileExists checks for a file or directory now.
func (t *T) FileExists(ctx context.Context, p string) *Assertion {
	want := true
	return t.FileCheck(ctx, FileCheck{Path: p, Exists: &want})
}

// FileCheck judges one file of the sandbox now.
func (t *T) FileCheck(ctx context.Context, c FileCheck) *Assertion {
	s := t.Sandbox()
	name := "file " + c.Path
	if m, ok := c.Match.Matcher(); ok {
		name += " is " + m.Label
	} else if c.Exists != nil && !*c.Exists {
		name += " does not exist"
	} else {
		name += " exists"
	}
	a := t.assert("file", name, func(context.Context) (record.Check, error) {
		m, match := c.Match.Matcher()
		if !match || c.Exists != nil && !*c.Exists {
			want := c.Exists == nil || *c.Exists
			exists, err := s.PathExists(ctx, c.Path)
			if err != nil {
				return record.Check{}, err
			}
			if exists != want {
				return no("expected that %s %s, it %s", c.Path, existence(want), existence(exists))
			}
			return yes()
		}
		content, err := s.ReadBytes(ctx, c.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return no("expected %s, but %s does not exist", m.Label, c.Path)
		}
		if code := fault.CodeOf(err); code == "is-a-directory" || code == "not-a-regular-file" {
			return no("expected %s, but %s is no regular file", m.Label, c.Path)
		}
		if err != nil {
			return record.Check{}, err
		}
		return matched(m.Match(content)), nil
	})
	a.result(ctx)
	return a
}

func existence(b bool) string {
	if b {
		return "exists"
	}
	return "does not exist"
}

// rows returns the agent's changes up to the turn at which a check was made.
func (t *T) changes(upTo int) func(context.Context) ([]record.Row, string, error) {
	return func(ctx context.Context) ([]record.Row, string, error) { return t.host.Changes(ctx, 1, upTo) }
}

func (t *T) diffCheck(kind, name string, judge func(rows []record.Row, partial string) (record.Check, error)) *Assertion {
	t.Sandbox() // a direct agent has no diff
	t.mu.Lock()
	upTo := len(t.turns)
	t.mu.Unlock()
	get := t.changes(upTo)
	return t.assert(kind, name, func(ctx context.Context) (record.Check, error) {
		rows, partial, err := get(ctx)
		if err != nil {
			return record.Check{}, err
		}
		return judge(rows, partial)
	})
}

// match reports whether a change is at path or matches it as a pattern in which
// ** spans directories.
func match(pattern, path string) bool {
	pattern = strings.TrimPrefix(pattern, "./")
	if pattern == path {
		return true
	}
	ok, err := doublestar.Match(pattern, path)
	return err == nil && ok
}

func find(rows []record.Row, pattern string, statuses ...string) (record.Row, bool) {
	for _, r := range rows {
		if slices.Contains(statuses, r.Status) && match(pattern, r.Path) {
			return r, true
		}
	}
	return record.Row{}, false
}

func listed(rows []record.Row) string {
	if len(rows) == 0 {
		return "the agent changed nothing"
	}
	names := make([]string, 0, 11)
	for i, r := range rows {
		if i == 10 {
			names = append(names, fmt.Sprintf("and %d more", len(rows)-10))
			break
		}
		names = append(names, r.Path+" ("+r.Status+")")
	}
	return "the agent changed " + strings.Join(names, ", ")
}

// FileChanged checks that the agent added or modified a path or pattern.
func (t *T) FileChanged(pattern string) *Assertion {
	return t.diffCheck("changed", "changed "+pattern, func(rows []record.Row, partial string) (record.Check, error) {
		return t.positive(rows, partial, pattern, "changed", "added", "modified")
	})
}

// FileDeleted checks that the agent deleted a path or pattern.
func (t *T) FileDeleted(pattern string) *Assertion {
	return t.diffCheck("deleted", "deleted "+pattern, func(rows []record.Row, partial string) (record.Check, error) {
		return t.positive(rows, partial, pattern, "deleted", "deleted")
	})
}

func (t *T) positive(rows []record.Row, partial, pattern, verb string, statuses ...string) (record.Check, error) {
	if _, ok := find(rows, pattern, statuses...); ok {
		return yes()
	}
	if partial != "" {
		return unknown(partial, "no change of %s is among the collected changes, which are not complete", pattern)
	}
	return no("expected that the agent %s %s; %s", verb, pattern, listed(rows))
}

// NotInDiff checks that the agent changed nothing at a path or pattern.
func (t *T) NotInDiff(pattern string) *Assertion {
	return t.diffCheck("unchanged", "unchanged "+pattern, func(rows []record.Row, partial string) (record.Check, error) {
		if r, ok := find(rows, pattern, "added", "modified", "deleted"); ok {
			return no("expected no change of %s; %s was %s", pattern, r.Path, r.Status)
		}
		if partial != "" {
			return unknown(partial, "the collected changes are not complete")
		}
		return yes()
	})
}

// NoChanges checks that the agent changed nothing.
func (t *T) NoChanges() *Assertion {
	return t.diffCheck("noChanges", "no changes", func(rows []record.Row, partial string) (record.Check, error) {
		if len(rows) > 0 {
			return no("expected no changes; %s", listed(rows))
		}
		if partial != "" {
			return unknown(partial, "the collected changes are not complete")
		}
		return yes()
	})
}

// ChangedPaths returns what the agent changed so far.
func (t *T) ChangedPaths(ctx context.Context) ([]record.Row, error) {
	t.live()
	rows, _, err := t.host.Changes(ctx, 1, len(t.Turns()))
	return rows, err
}

// coverage is the worst coverage of the turns so far.
func (t *T) coverage() agent.Coverage {
	c := t.host.Facts().Coverage
	for _, turn := range t.Turns() {
		if turn.Coverage != nil {
			c = c.Worst(*turn.Coverage)
		}
	}
	return c
}

// call is one tool call, paired by turn and id: ids may restart in each turn.
type call struct {
	start, end agent.Event
	ended      bool
}

func calls(events []agent.Event) []call {
	var out []call
	open := map[string]int{}
	for _, e := range events {
		key := fmt.Sprintf("%d\x00%s", e.Turn, e.ID)
		switch e.Type {
		case agent.OperationStarted:
			if e.Kind != "" && e.Kind != "tool" {
				continue
			}
			open[key] = len(out)
			out = append(out, call{start: e})
		case agent.OperationFinished:
			if i, ok := open[key]; ok {
				out[i].end, out[i].ended = e, true
				delete(open, key)
			}
		}
	}
	return out
}

func (m ToolMatch) matches(c call) bool {
	if m.Name != "" && c.start.Name != m.Name {
		return false
	}
	if m.Status != "" && (!c.ended || c.end.Status != m.Status) {
		return false
	}
	if m.Input != nil && !expect.JSON(structure(m.Input)).Match(raw(c.start.Input)).OK {
		return false
	}
	if om, ok := m.Output.Matcher(); ok && !om.Match(textOf(c.end.Output)).OK {
		return false
	}
	return true
}

func raw(r json.RawMessage) json.RawMessage {
	if len(r) == 0 {
		return json.RawMessage("null")
	}
	return r
}

// textOf is an output as text: a JSON string's content, else the JSON.
func textOf(r json.RawMessage) string {
	var s string
	if json.Unmarshal(r, &s) == nil {
		return s
	}
	return string(r)
}

func (m ToolMatch) label() string {
	l := m.Name
	if l == "" {
		l = "any tool"
	}
	if m.Input != nil {
		l += " with " + expect.Show(structure(m.Input))
	}
	return l
}

func seen(cs []call) string {
	if len(cs) == 0 {
		return "no tool calls were seen"
	}
	names := make([]string, 0, len(cs))
	for _, c := range cs[:min(len(cs), 15)] {
		names = append(names, c.start.Name)
	}
	return fmt.Sprintf("%d tool calls were seen: %s", len(cs), strings.Join(names, ", "))
}

func (t *T) eventCheck(kind, name string, judge func([]agent.Event, agent.Coverage) (record.Check, error)) *Assertion {
	events, cov := t.Events(), t.coverage()
	return t.assert(kind, name, func(context.Context) (record.Check, error) { return judge(events, cov) })
}

// CalledTool checks that the agent called a tool, Count times where that is set.
func (t *T) CalledTool(m ToolMatch) *Assertion {
	return t.eventCheck("calledTool", "called "+m.label(), func(evs []agent.Event, cov agent.Coverage) (record.Check, error) {
		cs, n := calls(evs), 0
		for _, c := range cs {
			if m.matches(c) {
				n++
			}
		}
		switch {
		case m.Count == nil && n > 0, m.Count != nil && n == *m.Count && cov.Actions == agent.Complete:
			return yes()
		case m.Count != nil && n > *m.Count:
			return no("expected %d calls of %s, received %d", *m.Count, m.label(), n)
		case cov.Actions != agent.Complete:
			return unknown("coverage-incomplete", "the agent does not report its tool calls completely; %s", seen(cs))
		case m.Count != nil:
			return no("expected %d calls of %s, received %d", *m.Count, m.label(), n)
		default:
			return no("expected a call of %s; %s", m.label(), seen(cs))
		}
	})
}

// NotCalledTool checks that the agent did not call a tool.
func (t *T) NotCalledTool(m ToolMatch) *Assertion {
	return t.negative("notCalledTool", "did not call "+m.label(), func(cs []call) (bool, string) {
		for _, c := range cs {
			if m.matches(c) {
				return false, fmt.Sprintf("expected no call of %s, received one: %s %s", m.label(), c.start.Name, expect.Show(raw(c.start.Input)))
			}
		}
		return true, ""
	})
}

// negative is a check that something did not happen: incomplete evidence can
// refute it but never prove it.
func (t *T) negative(kind, name string, judge func([]call) (bool, string)) *Assertion {
	return t.eventCheck(kind, name, func(evs []agent.Event, cov agent.Coverage) (record.Check, error) {
		if ok, why := judge(calls(evs)); !ok {
			return no("%s", why)
		}
		if cov.Actions != agent.Complete {
			return unknown("coverage-incomplete", "the agent does not report its tool calls completely")
		}
		return yes()
	})
}

// UsedNoTools checks that the agent called no tool.
func (t *T) UsedNoTools() *Assertion {
	return t.negative("usedNoTools", "used no tools", func(cs []call) (bool, string) {
		return len(cs) == 0, "expected no tool calls; " + seen(cs)
	})
}

// NoFailedActions checks that no tool call failed.
func (t *T) NoFailedActions() *Assertion {
	return t.negative("noFailedActions", "no failed actions", func(cs []call) (bool, string) {
		for _, c := range cs {
			if c.ended && c.end.Status != "completed" && c.end.Status != "" {
				return false, fmt.Sprintf("the call of %s was %s: %s", c.start.Name, c.end.Status, expect.Show(textOf(c.end.Output)))
			}
		}
		return true, ""
	})
}

// MaxToolCalls checks that the agent made at most n tool calls.
func (t *T) MaxToolCalls(n int) *Assertion {
	return t.negative("maxToolCalls", fmt.Sprintf("at most %d tool calls", n), func(cs []call) (bool, string) {
		return len(cs) <= n, fmt.Sprintf("expected at most %d tool calls, received %d", n, len(cs))
	})
}

// ToolOrder checks that tools were called in this order, with others between.
func (t *T) ToolOrder(names ...string) *Assertion {
	return t.eventCheck("toolOrder", "tools in order "+strings.Join(names, ", "), func(evs []agent.Event, cov agent.Coverage) (record.Check, error) {
		cs, i := calls(evs), 0
		for _, c := range cs {
			if i < len(names) && c.start.Name == names[i] {
				i++
			}
		}
		if i == len(names) {
			return yes()
		}
		if cov.Actions != agent.Complete {
			return unknown("coverage-incomplete", "the agent does not report its tool calls completely; %s", seen(cs))
		}
		return no("expected %s after %s; %s", names[i], strings.Join(names[:i], ", "), seen(cs))
	})
}

// HasEvent checks that an event of a type happened.
func (t *T) HasEvent(typ string) *Assertion {
	return t.eventCheck("event", "event "+typ, func(evs []agent.Event, cov agent.Coverage) (record.Check, error) {
		if slices.ContainsFunc(evs, func(e agent.Event) bool { return string(e.Type) == typ }) {
			return yes()
		}
		if cov.Events != agent.Complete {
			return unknown("coverage-incomplete", "the agent does not report its events completely")
		}
		return no("expected an event of type %s among %d events", typ, len(evs))
	})
}

// NoEvent checks that no event of a type happened.
func (t *T) NoEvent(typ string) *Assertion {
	return t.eventCheck("notEvent", "no event "+typ, func(evs []agent.Event, cov agent.Coverage) (record.Check, error) {
		if slices.ContainsFunc(evs, func(e agent.Event) bool { return string(e.Type) == typ }) {
			return no("expected no event of type %s, received one", typ)
		}
		if cov.Events != agent.Complete {
			return unknown("coverage-incomplete", "the agent does not report its events completely")
		}
		return yes()
	})
}

// Succeeded checks that every turn so far completed.
func (t *T) Succeeded() *Assertion {
	turns := t.Turns()
	return t.assert("succeeded", "every turn completed", func(context.Context) (record.Check, error) {
		for _, turn := range turns {
			if turn.Status != agent.Completed {
				return no("turn %d is %s: %s", turn.Number, turn.Status, turn.Reason)
			}
		}
		return yes()
	})
}

// MaxTokens checks the agent's reported tokens.
func (t *T) MaxTokens(n int64) *Assertion {
	u, cov := t.Usage(), t.coverage()
	return t.assert("maxTokens", fmt.Sprintf("at most %d tokens", n), func(context.Context) (record.Check, error) {
		got, known := u.Tokens()
		switch {
		case known && got > n:
			return no("expected at most %d tokens, received %d", n, got)
		case !known || cov.Usage != agent.Complete:
			return unknown("usage-unknown", "the agent does not report its usage completely")
		default:
			return yes()
		}
	})
}

// MaxCost checks the agent's reported cost in USD.
func (t *T) MaxCost(usd float64) *Assertion {
	u := t.Usage()
	return t.assert("maxCost", fmt.Sprintf("at most %g USD", usd), func(context.Context) (record.Check, error) {
		switch {
		case u == nil || u.CostUSD == nil:
			return unknown("cost-unknown", "the agent does not report its cost")
		case *u.CostUSD > usd:
			return no("expected at most %g USD, received %g USD", usd, *u.CostUSD)
		default:
			return yes()
		}
	})
}
