package attempt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"assay/internal/event"
	"assay/internal/keep"
	"assay/internal/plan"
	"assay/internal/redact"
	"assay/record"
	"assay/sandbox"
)

// bed is a driver that can be suspended.
type bed struct {
	sandbox.Driver
	log      []string
	suspend  error
	registry keep.Registry
	wakes    string // the id under which it sleeps
}

func (b *bed) ID() string      { return "box" }
func (b *bed) Workdir() string { return "/w" }

func (b *bed) Stop(context.Context) error { b.log = append(b.log, "stop"); return nil }

// Suspend notes whether the registry lists the sandbox by then.
func (b *bed) Suspend(context.Context) (sandbox.Dormant, error) {
	all, _ := b.registry.List()
	b.log = append(b.log, "suspend", string(rune('0'+len(all)))+" listed")
	return sandbox.Dormant{ID: b.wakes}, b.suspend
}

func TestRetain(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		level   string
		verdict func(*record.Attempt)
		cut     bool
		suspend error
		dir     string
		wakes   string
		log     []string
		state   keep.State
		diag    string
	}{
		"failed":           {level: keep.Failed, verdict: failed, log: []string{"suspend", "1 listed"}, state: keep.Dormant},
		"errored":          {level: keep.Failed, verdict: func(a *record.Attempt) { a.Error = &record.ErrorInfo{} }, log: []string{"suspend", "1 listed"}, state: keep.Dormant},
		"passed":           {level: keep.Failed, verdict: func(*record.Attempt) {}, log: []string{"stop"}},
		"passed, all":      {level: keep.All, verdict: func(*record.Attempt) {}, log: []string{"suspend", "1 listed"}, state: keep.Dormant},
		"interrupted":      {level: keep.All, verdict: failed, cut: true, log: []string{"stop"}},
		"no registry":      {level: keep.Failed, verdict: failed, dir: broken, log: []string{"stop"}, diag: "sandbox-keep-failed"},
		"no suspend":       {level: keep.Failed, verdict: failed, suspend: errors.New("no"), log: []string{"suspend", "1 listed"}, state: keep.Alive, diag: "sandbox-suspend-failed"},
		"under another id": {level: keep.Failed, verdict: failed, wakes: "snap", log: []string{"suspend", "1 listed"}, state: keep.Dormant},
	} {
		t.Run(name, func(t *testing.T) {
			r := keep.Registry{Dir: filepath.Join(t.TempDir(), "s")}
			if c.dir != "" {
				r.Dir = filepath.Join(c.dir, "s")
			}
			if c.wakes == "" {
				c.wakes = "box"
			}
			d := &bed{suspend: c.suspend, registry: r, wakes: c.wakes}
			a := &attempt{
				slot: &plan.Slot{Experiment: &plan.Experiment{}}, env: Env{Sink: func(event.Event) {}}, red: redact.New(), facts: record.Facts{},
			}
			a.driver, a.sb, a.cut = d, sandbox.New(d, sandbox.Options{}), c.cut
			a.env.Keep = &Keeping{Level: c.level, Registry: r, Command: "assay"}
			a.rec.Sandbox = &record.Sandbox{Provider: "bed"}
			c.verdict(&a.rec)
			if err := a.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(d.log, c.log) {
				t.Errorf("%v, want %v", d.log, c.log)
			}
			all, _ := r.List()
			if c.state == "" {
				if len(all) != 0 || a.rec.Sandbox.Kept {
					t.Errorf("a stopped sandbox is listed: %+v", all)
				}
			} else if len(all) != 1 || all[0].State != c.state || all[0].SandboxID != c.wakes && c.state == keep.Dormant || !a.rec.Sandbox.Kept {
				t.Errorf("%+v, kept %v", all, a.rec.Sandbox.Kept)
			}
			var codes []string
			for _, d := range a.diags {
				codes = append(codes, d.Code)
			}
			if c.diag != "" && !slices.Contains(codes, c.diag) || c.diag == "" && len(codes) != 0 {
				t.Errorf("diagnostics %v, want %q", codes, c.diag)
			}
		})
	}
}

func failed(a *record.Attempt) {
	a.Checks = []record.Check{{Severity: record.Gate, Outcome: record.Mismatched}}
}
