package orphan

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"assay/internal/keep"
	"assay/record"
	"assay/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shelf is an inventory in memory.
type shelf struct {
	all   []sandbox.Instance
	stuck string // cannot be destroyed
	err   error
}

func (s *shelf) Inventory(context.Context) ([]sandbox.Instance, error) { return s.all, s.err }

func (s *shelf) Destroy(_ context.Context, id string) error {
	if id == s.stuck {
		return errors.New("it is in use")
	}
	s.all = slices.DeleteFunc(slices.Clone(s.all), func(i sandbox.Instance) bool { return i.ID == id })
	return nil
}

func (s *shelf) ids() []string {
	var out []string
	for _, i := range s.all {
		out = append(out, i.ID)
	}
	return out
}

func owner() sandbox.Owner {
	o := record.CurrentOwner()
	return sandbox.Owner{Host: o.Host, Boot: o.Boot, PIDNamespace: o.PIDNamespace, PID: o.PID, StartTime: o.Start}
}

// gone is an owner that was a real process and is dead.
func gone(t *testing.T) sandbox.Owner {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	o := owner()
	o.PID = cmd.Process.Pid
	return o
}

func thing(id, kind, token string, o sandbox.Owner) sandbox.Instance {
	o.Token = token
	return sandbox.Instance{ID: id, Kind: kind, Labels: o.Labels()}
}

// Only what a dead owner on this machine left goes; the living, the reused number,
// other machines and namespaces and what is kept are each told apart.
func TestSweep(t *testing.T) {
	mine, theirs := keep.Registry{Dir: filepath.Join(t.TempDir(), "mine")}, keep.Registry{Dir: filepath.Join(t.TempDir(), "theirs")}
	dead := gone(t)
	elsewhere, inside, before, reused, vague := dead, dead, owner(), owner(), dead
	vague.Boot, vague.StartTime = "", "" // as of a system that tells neither
	elsewhere.Host, inside.PIDNamespace, before.Boot, reused.StartTime = "another", "pid:[1]", "an-earlier-boot", "1"
	named := dead
	named.Registry = theirs.Dir
	for r, id := range map[keep.Registry]string{mine: "kept-here", theirs: "kept-there"} {
		if err := r.Put(keep.Entry{ID: keep.IDOf("box", id), SandboxID: id, Provider: "box", KeptAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	s := &shelf{all: []sandbox.Instance{
		thing("live", "container", "1", owner()), thing("dead", "container", "2", dead), thing("dead-net", "network", "2", dead),
		thing("elsewhere", "container", "3", elsewhere), thing("namespace", "container", "4", inside), thing("rebooted", "container", "5", before),
		thing("reused-pid", "container", "6", reused), thing("kept-here", "container", "7", dead), thing("kept-there", "container", "8", named),
		thing("kept-net", "network", "8", named), thing("vague", "container", "9", vague),
		{ID: "no-owner", Kind: "container"},
	}}
	found, err := Find(t.Context(), Place{"box", s}, mine)
	if err != nil {
		t.Fatal(err)
	}
	lives := map[string]record.Liveness{}
	for _, f := range found {
		lives[f.Instance.ID] = f.Life
	}
	want := map[string]record.Liveness{
		"dead": record.Dead, "dead-net": record.Dead, "elsewhere": record.Unverified, "namespace": record.Unverified,
		"rebooted": record.Dead, "reused-pid": record.Dead, "no-owner": record.Unverified, "vague": record.Unverified,
	}
	for id, life := range want {
		if lives[id] != life {
			t.Errorf("%s is %q, want %q", id, lives[id], life)
		}
	}
	if len(lives) != len(want) {
		t.Errorf("found %v", lives)
	}
	removed, err := Sweep(t.Context(), []Place{{"box", s}, {"broken", &shelf{err: errors.New("no engine")}}}, mine)
	if err == nil {
		t.Error("an engine that does not answer is not told")
	}
	if got := Counted(removed); got != "3 box containers, 1 box network" {
		t.Errorf("removed %s", got)
	}
	left := []string{"live", "elsewhere", "namespace", "kept-here", "kept-there", "kept-net", "vague", "no-owner"}
	if got := s.ids(); !slices.Equal(got, left) {
		t.Errorf("left %v, want %v", got, left)
	}
}

// What cannot be removed is told and does not hide the rest; a registry that
// cannot be read keeps everything.
func TestSweepKeepsWhatItCannotJudge(t *testing.T) {
	s := &shelf{all: []sandbox.Instance{thing("a", "volume", "1", gone(t)), thing("b", "volume", "2", gone(t))}, stuck: "a"}
	removed, err := Sweep(t.Context(), []Place{{"box", s}}, keep.Registry{})
	if err == nil || len(removed) != 1 || !slices.Equal(s.ids(), []string{"a"}) {
		t.Errorf("removed %v, %v, left %v", removed, err, s.ids())
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.stuck = ""
	if removed, err := Sweep(t.Context(), []Place{{"box", s}}, keep.Registry{Dir: dir}); err != nil || len(removed) != 0 {
		t.Errorf("beside an unreadable registry %v was removed, %v", removed, err)
	}
}

// crashing is an inventory with a bug.
type crashing struct{ *shelf }

func (crashing) Inventory(context.Context) ([]sandbox.Instance, error) { panic("no such field") }

func TestSweepOutlivesAProviderThatPanics(t *testing.T) {
	s := &shelf{all: []sandbox.Instance{thing("dead", "container", "1", gone(t))}}
	removed, err := Sweep(t.Context(), []Place{{"broken", crashing{&shelf{}}}, {"box", s}}, keep.Registry{Dir: t.TempDir()})
	if len(removed) != 1 || err == nil || !strings.Contains(err.Error(), "no such field") {
		t.Errorf("removed %v, error %v", removed, err)
	}
}

// What a project kept that was moved since is not taken for an orphan.
func TestSweepLeavesWhatAMovedProjectMayKeep(t *testing.T) {
	project := filepath.Join(t.TempDir(), "project")
	r := keep.Registry{Dir: filepath.Join(project, ".assay", "sandboxes")}
	if err := r.Put(keep.Entry{ID: keep.IDOf("box", "kept"), SandboxID: "kept", Provider: "box", KeptAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	dead := gone(t)
	dead.Registry = r.Dir
	s := &shelf{all: []sandbox.Instance{thing("kept", "container", "1", dead), thing("left", "container", "2", dead)}}
	if err := os.Rename(project, project+"-2"); err != nil {
		t.Fatal(err)
	}
	sweep := func() int {
		removed, err := Sweep(t.Context(), []Place{{"box", s}}, keep.Registry{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return len(removed)
	}
	if n := sweep(); n != 0 {
		t.Errorf("%d removed, %v are left", n, s.ids())
	}
	if found, err := Find(t.Context(), Place{"box", s}, keep.Registry{}); err != nil || len(found) != 2 || found[0].Life != record.Unverified {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := os.Rename(project+"-2", project); err != nil {
		t.Fatal(err)
	}
	if n := sweep(); n != 1 || !slices.Equal(s.ids(), []string{"kept"}) {
		t.Errorf("%d removed, %v are left", n, s.ids())
	}
}

// Copies of one machine have one name. What a boot made that is not this one, and
// made after this one began, belongs to a copy.
func TestSweepLeavesWhatACopyOfThisMachineMade(t *testing.T) {
	if booted().IsZero() {
		t.Skip("this system does not tell when it started")
	}
	before := owner()
	before.Boot = "another-boot"
	old, now := thing("of-before", "sandbox", "1", before), thing("of-a-copy", "sandbox", "2", before)
	old.Created, now.Created = booted().Add(-time.Hour), booted().Add(time.Minute)
	s := &shelf{all: []sandbox.Instance{old, now}}
	removed, err := Sweep(t.Context(), []Place{{"box", s}}, keep.Registry{Dir: t.TempDir()})
	if err != nil || len(removed) != 1 || !slices.Equal(s.ids(), []string{"of-a-copy"}) {
		t.Errorf("removed %v, %v are left, %v", removed, s.ids(), err)
	}
}
