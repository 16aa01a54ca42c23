package plan_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"assay"
	"assay/agent"
	"assay/fault"
	"assay/internal/carry"
	"assay/internal/plan"
	"assay/record"
	"assay/ref"
	"assay/sandbox"
)

// known is what a record knows.
type known map[string]*plan.Past

func (k known) Past(s ref.Slot) *plan.Past { return k[s.String()] }

// with is a result of a plan's slot as it would be recorded.
func with(s *plan.Slot, v record.Verdict, d time.Duration) *plan.Past {
	ms := d.Milliseconds()
	return &plan.Past{Identity: s.Identity, Attempt: &record.Attempt{ID: "a", Locator: ref.Locator("@" + s.Ref.String()), Run: "r", Verdict: v, DurationMS: &ms, Identity: s.Identity}}
}

func link(t *testing.T, s *assay.Suite, sel plan.Selection) *plan.Plan {
	t.Helper()
	p, err := plan.Link(t.Context(), s, sel, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhatIsCarried(t *testing.T) {
	none := (*plan.Past)(nil)
	for _, c := range []struct {
		name    string
		verdict record.Verdict
		took    time.Duration
		sel     plan.Selection
		change  func(*plan.Past) *plan.Past
		want    string // action and reason
	}{
		{"passed", record.Passed, time.Second, plan.Selection{}, nil, "carry unchanged"},
		{"failed", record.Failed, time.Second, plan.Selection{}, nil, "carry unchanged"},
		{"errored", record.Errored, time.Second, plan.Selection{}, nil, "execute errored"},
		{"skipped", record.Skipped, time.Second, plan.Selection{}, nil, "execute skipped"},
		{"nothing", "", 0, plan.Selection{}, func(*plan.Past) *plan.Past { return none }, "execute new"},
		{"interrupted", "", 0, plan.Selection{}, func(*plan.Past) *plan.Past { return &plan.Past{} }, "execute interrupted"},
		{"rerun, passed", record.Passed, 0, plan.Selection{Rerun: plan.RerunFailed}, nil, "carry unchanged"},
		{"rerun, failed", record.Failed, 0, plan.Selection{Rerun: plan.RerunFailed}, nil, "execute rerun"},
		{"rerun, errored", record.Errored, 0, plan.Selection{Rerun: plan.RerunFailed}, nil, "execute errored"},
		{"rerun all", record.Passed, 0, plan.Selection{Rerun: plan.RerunAll}, nil, "execute rerun"},
		{"keep a failed sandbox", record.Failed, 0, plan.Selection{KeepSandbox: "failed"}, nil, "execute keep-sandbox"},
		{"keep a failed sandbox, passed", record.Passed, 0, plan.Selection{KeepSandbox: "failed"}, nil, "carry unchanged"},
		{"keep all sandboxes", record.Passed, 0, plan.Selection{KeepSandbox: "all"}, nil, "execute keep-sandbox"},
		{"within a lower limit", record.Passed, 10 * time.Minute, plan.Selection{Timeout: 10 * time.Minute}, nil, "carry unchanged"},
		{"over a lower limit", record.Passed, 15 * time.Minute, plan.Selection{Timeout: 10 * time.Minute}, nil, "execute exceeds-timeout"},
		{"a higher limit", record.Passed, 15 * time.Minute, plan.Selection{Timeout: 40 * time.Minute}, nil, "carry unchanged"},
		{"nobody knows how long", record.Passed, 0, plan.Selection{Timeout: time.Hour}, func(p *plan.Past) *plan.Past { p.Attempt.DurationMS = nil; return p }, "execute exceeds-timeout"},
		{"another identity", record.Passed, 0, plan.Selection{}, func(p *plan.Past) *plan.Past { p.Identity = &record.Identity{}; return p }, "execute stale"},
		{"no identity", record.Passed, 0, plan.Selection{}, func(p *plan.Past) *plan.Past { p.Identity = nil; return p }, "execute stale"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := suite("x", "e", (&keyed{info: sandbox.Info{Keep: true}}).from("s"))
			p := link(t, &s, c.sel)
			slot := p.Slots()[0]
			past := with(slot, c.verdict, c.took)
			if c.change != nil {
				past = c.change(past)
			}
			p.Adopt(known{slot.Ref.String(): past})
			if got := string(slot.Action) + " " + slot.Reason; got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if stale := strings.HasSuffix(c.want, "stale"); stale != (len(slot.Changed) > 0) {
				t.Errorf("changed %v", slot.Changed)
			}
			if carried := slot.Action == plan.Carry; carried != (len(p.Environments) == 0) || carried != (len(p.Executing()) == 0) {
				t.Errorf("%d environments for %s", len(p.Environments), slot.Action)
			}
		})
	}
}

// A changed field makes only what depends on it stale, and says what it was.
func TestOneChangeIsNamed(t *testing.T) {
	s := suite("x", "one two", (&keyed{}).from("s"))
	before := known{}
	for _, slot := range link(t, &s, plan.Selection{}).Slots() {
		before[slot.Ref.String()] = with(slot, record.Passed, 0)
	}
	s.Evals[1].Prompt = "y"
	p := link(t, &s, plan.Selection{})
	p.Adopt(before)
	if got := p.Slots(); got[0].Action != plan.Carry || got[1].Action != plan.Execute || strings.Join(got[1].Changed, ",") != "prompt: x → y" {
		t.Errorf("%s, %s because of %v", got[0].Action, got[1].Action, got[1].Changed)
	}
	if len(p.Environments) != 1 {
		t.Errorf("%d environments", len(p.Environments))
	}
}

// Raising the number of attempts adds; a carried pass is a pass for early exit.
func TestAttemptsAndEarlyExit(t *testing.T) {
	s := suite("x", "a b", (&keyed{}).from("s"))
	s.Experiments[0].Attempts = 5
	for _, early := range []bool{false, true} {
		s.Experiments[0].EarlyExit = early
		p := link(t, &s, plan.Selection{})
		before := known{}
		for _, slot := range p.Slots() {
			if slot.Ref.Ordinal < 3 && slot.Ref.Eval == "a" {
				before[slot.Ref.String()] = with(slot, map[bool]record.Verdict{true: record.Passed, false: record.Failed}[slot.Ref.Ordinal == 2], 0)
			}
		}
		p.Adopt(before)
		n := map[plan.Action]int{}
		for _, slot := range p.Slots() {
			n[slot.Action]++
		}
		want := map[plan.Action]int{plan.Carry: 3, plan.Execute: 7}
		if early {
			want = map[plan.Action]int{plan.Carry: 3, plan.Skip: 2, plan.Execute: 5}
		}
		for a, k := range want {
			if n[a] != k {
				t.Errorf("early exit %v: %d slots %s, want %d", early, n[a], a, k)
			}
		}
	}
}

func TestPlugins(t *testing.T) {
	hook := func(context.Context, *sandbox.Sandbox, sandbox.Notes) error { return nil }
	plug := assay.Plugin{Name: "cache", With: map[string]any{"maxSize": 3, "dir": "/c"}, Setup: []sandbox.Command{{Shell: "warm"}}, Teardown: []sandbox.Command{{Shell: "cool"}}, SetupHook: hook, TeardownHook: hook}
	second := plug
	second.Key = "b"
	s := suite("x", "e", (&keyed{}).from("s"))
	s.Experiments[0].Sandbox = sandbox.NewLayer().SetupCommands(sandbox.Command{Shell: "own"})
	plain := link(t, &s, plan.Selection{}).Slots()[0].Identity
	s.Experiments[0].Plugins = []assay.Plugin{plug, second}
	slot := link(t, &s, plan.Selection{}).Slots()[0]
	var labels []string
	for _, lv := range slot.Layers {
		for _, st := range append(lv.Layer.SetupSteps(), lv.Layer.TeardownSteps()...) {
			labels = append(labels, st.Label())
			if st.Hook == nil && st.Command.Shell != "own" && (st.Command.Env["PLUGIN_MAXSIZE"] != "3" || st.Command.Env["PLUGIN_DIR"] != "/c") {
				t.Errorf("%s has the variables %v", st.Label(), st.Command.Env)
			}
		}
	}
	if got, want := strings.Join(labels, "|"), "own|plugin cache setup: warm|hook|plugin cache/b setup: warm|hook|plugin cache teardown: cool|hook|plugin cache/b teardown: cool|hook"; got != want {
		t.Errorf("steps %s\nwant  %s", got, want)
	}
	if plain.Digest == slot.Identity.Digest {
		t.Error("plugins do not enter the identity")
	}
	for code, ps := range map[string][]assay.Plugin{"plugin-duplicate": {plug, plug}, "plugin-name-missing": {{}}} {
		s.Experiments[0].Plugins = nil
		s.Evals[0].Plugins = ps
		if _, err := plan.Link(t.Context(), &s, plan.Selection{}, nil); fault.CodeOf(err) != code || !strings.Contains(err.Error(), "eval e") || fault.FixOf(err) == "" {
			t.Errorf("%v, want %s", err, code)
		}
	}
}

// Plugins of a pair without a sandbox do nothing, which is said once.
func TestPluginsWithoutASandboxAreInert(t *testing.T) {
	s := suite("x", "a b", sandbox.NewLayer())
	s.Experiments[0].Agent = direct{}
	s.Experiments[0].Plugins = []assay.Plugin{{Name: "p", Setup: []sandbox.Command{{Shell: "x"}}}}
	p := link(t, &s, plan.Selection{})
	n := 0
	for _, notice := range p.Notices {
		if notice.Code == "sandbox-inert" && strings.Contains(notice.Message, "plugins") {
			n++
		}
	}
	if n != 1 || p.Slots()[0].Identity == nil {
		t.Errorf("%d notices in %v", n, p.Notices)
	}
}

// The same plan a moment later, and after the process began anew, has the same
// identities; two evals never share one.
func TestIdentitiesAreStableAndDistinct(t *testing.T) {
	s := suite("x y", "a b", (&keyed{}).from("s"))
	one, two := link(t, &s, plan.Selection{}), link(t, &s, plan.Selection{Attempts: 3, Timeout: time.Hour})
	seen := map[string]string{}
	for _, slot := range one.Slots() {
		d := slot.Identity.Digest
		if other := seen[d]; other != "" {
			t.Errorf("%s and %s have one identity", other, slot.Ref)
		}
		seen[d] = slot.Ref.String()
	}
	for _, slot := range two.Slots() {
		if seen[slot.Identity.Digest] == "" {
			t.Errorf("%s has another identity", slot.Ref)
		}
	}
}

// direct is an agent without a sandbox.
type direct struct{ agent.Agent }

func (direct) Info() agent.Info { return agent.Info{Name: "direct", Direct: true} }

// Whose start point it is decides whose prepare commands run first, so that it is
// an input where there are two.
func TestTheOrderOfPrepareCommandsIsAnInput(t *testing.T) {
	k := &keyed{}
	both := func(owner func(*assay.Suite) *sandbox.Layer, commands int) *record.Identity {
		s := suite("x", "e", sandbox.NewLayer())
		*owner(&s) = k.from("s")
		for i, l := range []*sandbox.Layer{&s.Experiments[0].Sandbox, &s.Evals[0].Sandbox} {
			if i < commands {
				*l = l.Prepare(sandbox.Command{Shell: []string{"make a", "make b"}[i]})
			}
		}
		return link(t, &s, plan.Selection{}).Slots()[0].Identity
	}
	experiments := func(s *assay.Suite) *sandbox.Layer { return &s.Experiments[0].Sandbox }
	evals := func(s *assay.Suite) *sandbox.Layer { return &s.Evals[0].Sandbox }
	if carry.Equal(both(experiments, 2), both(evals, 2)) {
		t.Error("a result of another order of the commands is carried")
	}
	if !carry.Equal(both(experiments, 1), both(evals, 1)) {
		t.Error("who says where the sandbox starts changes nothing else")
	}
}
