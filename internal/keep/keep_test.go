package keep

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"assay/fault"
	"assay/record"
)

func entry(provider, id string) Entry {
	return Entry{
		ID: IDOf(provider, id), SandboxID: id, Provider: provider, Experiment: "x", Eval: "e", Ordinal: 1, Locator: "@" + "l" + "1",
		Verdict: record.Failed, KeptAt: time.Now().UTC().Truncate(time.Second), Workdir: "/w", State: Alive,
	}
}

func TestWants(t *testing.T) {
	for _, c := range []struct {
		level string
		v     record.Verdict
		want  bool
	}{
		{"", record.Failed, false},
		{Failed, record.Failed, true},
		{Failed, record.Errored, true},
		{Failed, record.Passed, false},
		{Failed, record.Skipped, false},
		{All, record.Passed, true},
		{All, record.Failed, true},
		{All, record.Skipped, false},
		{All, "", false},
	} {
		if got := Wants(c.level, c.v); got != c.want {
			t.Errorf("%q keeps %q: %v", c.level, c.v, got)
		}
	}
	if CheckLevel("some") == nil || CheckLevel("") != nil || CheckLevel(All) != nil {
		t.Error("the levels are not those that are documented")
	}
}

func TestRegistry(t *testing.T) {
	r := Registry{filepath.Join(t.TempDir(), "s")}
	if all, err := r.List(); len(all) != 0 || err != nil {
		t.Fatal(all, err)
	}
	a, b := entry("docker", "abcd"), entry("docker", "abxy")
	b.KeptAt = b.KeptAt.Add(time.Second)
	b.Locator = "@l2"
	for _, e := range []Entry{b, a} {
		if err := r.Put(e); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.List()
	if err != nil || len(all) != 2 || all[0] != a || all[1] != b {
		t.Errorf("%+v, %v", all, err)
	}
	for name, want := range map[string]string{"abc": a.ID, b.ID: b.ID, b.ID[:9]: b.ID, "@l2": b.ID} {
		if e, err := r.Find(name); err != nil || e.ID != want {
			t.Errorf("%s finds %+v, %v", name, e, err)
		}
	}
	for name, code := range map[string]string{"ab": CodeAmbiguous, "zz": "sandbox-unknown", "": "sandbox-unknown"} {
		if _, err := r.Find(name); fault.CodeOf(err) != code {
			t.Errorf("%q: %v", name, err)
		}
	}
	// An unreadable file hides nothing else.
	if err := os.WriteFile(r.file("ffff"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := r.List(); len(all) != 2 || err == nil {
		t.Errorf("%d entries beside a broken one, %v", len(all), err)
	}
	for range 2 {
		if err := r.Forget(a.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Find(a.ID); fault.CodeOf(err) != "sandbox-unknown" {
		t.Error(err)
	}
	past := time.Now().Add(-time.Hour)
	b.ExpiresAt = &past
	if got := b.Now(time.Now()); got != Expired {
		t.Errorf("after its end it is %s", got)
	}
}

func TestOneCommandAtATime(t *testing.T) {
	r := Registry{t.TempDir()}
	release, err := r.Lock("a", "enter")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Lock("a", "stop"); fault.CodeOf(err) != CodeBusy {
		t.Errorf("a second command gets %v", err)
	}
	other, err := r.Lock("b", "stop")
	if err != nil {
		t.Fatal(err)
	}
	other()
	release()
	again, err := r.Lock("a", "stop")
	if err != nil {
		t.Fatal(err)
	}
	again()
	if all, err := r.List(); len(all) != 0 || err != nil {
		t.Errorf("locks are listed: %v, %v", all, err)
	}
}
