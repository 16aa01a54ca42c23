package sandboxtest

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"assay/internal/snapshot"
	"assay/sandbox"
)

func powerPromises() []Promise {
	return []Promise{
		{"powers-are-claimed-or-absent", powersClaimed},
		{"power-environer", powerEnviron},
		{"power-stater", powerStat},
		{"power-tracker", powerTrack},
		{"power-tracker-reset", powerReset},
		{"power-process-ender", powerEnd},
		{"power-digester", powerDigest},
		{"power-remover", powerRemove},
		{"power-lifetimer", powerLifetime},
		{"power-reporter", powerReport},
		{"power-reconciler", powerReconcile},
		{"power-inventory", powerInventory},
		{"power-suspender", powerSuspend},
	}
}

// powersOf finds which optional powers a driver and its provider have.
func powersOf(p sandbox.Provider, d sandbox.Driver) []string {
	var out []string
	add := func(name string, ok bool) {
		if ok {
			out = append(out, name)
		}
	}
	_, ok := sandbox.AsDriver[sandbox.Environer](d)
	add("Environer", ok)
	_, ok = sandbox.AsDriver[sandbox.Stater](d)
	add("Stater", ok)
	_, ok = sandbox.AsDriver[sandbox.Tracker](d)
	add("Tracker", ok)
	_, ok = sandbox.AsDriver[sandbox.ProcessEnder](d)
	add("ProcessEnder", ok)
	_, ok = sandbox.AsDriver[sandbox.Digester](d)
	add("Digester", ok)
	_, ok = sandbox.AsDriver[sandbox.Remover](d)
	add("Remover", ok)
	_, ok = sandbox.AsDriver[sandbox.Lifetimer](d)
	add("Lifetimer", ok)
	_, ok = sandbox.AsDriver[sandbox.Reporter](d)
	add("Reporter", ok)
	_, ok = sandbox.AsDriver[sandbox.Suspender](d)
	add("Suspender", ok)
	_, ok = sandbox.AsDriver[sandbox.Leaver](d)
	add("Leaver", ok)
	_, ok = sandbox.AsDriver[sandbox.Enterer](d)
	add("Enterer", ok)
	_, ok = p.(sandbox.Reconciler)
	add("Reconciler", ok)
	_, ok = p.(sandbox.Inventory)
	add("Inventory", ok)
	_, ok = p.(sandbox.Waker)
	add("Waker", ok)
	return out
}

func powersClaimed(t testing.TB, h Harness) {
	b := start(t, h)
	got, want := powersOf(h.Provider, b.d), slices.Sorted(slices.Values(h.Powers))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the driver has the powers %q, the harness claims %q", got, want)
	}
	if a, ok := sandbox.As[sandbox.Environer](sandbox.New(wrapped{b.d}, sandbox.Options{})); ok != slices.Contains(want, "Environer") || ok && a == nil {
		t.Error("powers are not found through a wrapper")
	}
}

// wrapped is a driver that wraps another.
type wrapped struct{ sandbox.Driver }

func (w wrapped) Unwrap() sandbox.Driver { return w.Driver }

// power finds an optional power or skips.
func power[C any](b *box) C {
	b.t.Helper()
	c, ok := sandbox.AsDriver[C](b.d)
	if !ok {
		b.t.Skip("the driver does not claim this power")
	}
	return c
}

func powerEnviron(t testing.TB, h Harness) {
	b := start(t, h)
	env, err := power[sandbox.Environer](b).Environ(b.ctx, "")
	if err != nil {
		t.Fatalf("Environ: %v", err)
	}
	if env["HOME"] == "" || env["PATH"] == "" {
		t.Errorf("HOME is %q and PATH is %q", env["HOME"], env["PATH"])
	}
	if !h.NoShell {
		b.sh(`: >"$HOME/.st-probe" && rm "$HOME/.st-probe"`)
	}
}

func powerStat(t testing.TB, h Harness) {
	b := start(t, h)
	s := power[sandbox.Stater](b)
	b.put(b.dir, executable("x", "1234"), dir("d"), link("l", "x"), link("dl", "d"), link("dangling", "nowhere"))
	for _, c := range []struct {
		name         string
		dir, regular bool
		mode         uint32
		size         int64
	}{{"x", false, true, 0o755, 4}, {"l", false, true, 0o755, 4}, {"d", true, false, 0o755, -1}, {"dl", true, false, 0o755, -1}} {
		st, err := s.Stat(b.ctx, b.dir+"/"+c.name)
		if err != nil || st.Dir != c.dir || st.Regular != c.regular || st.Mode&0o777 != c.mode || c.size >= 0 && st.Size != c.size {
			t.Errorf("Stat of %s is %+v, %v", c.name, st, err)
		}
	}
	for _, name := range []string{"missing", "dangling", "no/such/dir"} {
		if _, err := s.Stat(b.ctx, b.dir+"/"+name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat of %s: %v, want an error that matches fs.ErrNotExist", name, err)
		}
	}
}

// track sends one request to the ledger.
func (b *box) track(r snapshot.Request) snapshot.Response {
	b.t.Helper()
	r.Root, r.Store = b.d.Workdir(), "/tmp/.st-store-"+b.owner.Token
	body, err := r.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := power[sandbox.Tracker](b).Track(b.ctx, body, &out); err != nil {
		b.t.Fatalf("Track %s: %v", r.Op, err)
	}
	res, err := snapshot.DecodeResponse(&out)
	if err != nil {
		b.t.Fatalf("Track %s: %v", r.Op, err)
	}
	return res
}

func changes(w snapshot.WindowDiff, below string) map[string]string {
	out := map[string]string{}
	for _, c := range w.Changes {
		if p, ok := strings.CutPrefix(string(c.Path), below+"/"); ok {
			text := ""
			if c.After != nil && c.After.Text != nil {
				text = " " + string(*c.After.Text)
			}
			out[p] = string(c.Status) + text
		}
	}
	return out
}

func powerTrack(t testing.TB, h Harness) {
	b := start(t, h)
	_ = power[sandbox.Tracker](b)
	sub := b.dir[strings.LastIndex(b.dir, "/")+1:]
	b.put(b.dir, file("same", "1"), file("edit", "before"), file("gone", "1"))
	base := b.track(snapshot.Request{Op: snapshot.OpMark, Label: "baseline"})
	if base.Commit.ID.IsZero() {
		t.Fatal("a mark made no commit")
	}
	b.put(b.dir, file("edit", "after"), file("new\nname", "n"))
	if !h.NoShell {
		b.sh(`rm "$1/gone"`, b.dir)
	}
	work := b.track(snapshot.Request{Op: snapshot.OpCommit, Author: snapshot.Agent, Label: "turn1"})
	res := b.track(snapshot.Request{Op: snapshot.OpDiff, Content: true, Windows: []snapshot.Window{{Label: "turn1", From: base.Commit.ID, To: work.Commit.ID}}})
	if len(res.Windows) != 1 {
		t.Fatalf("one window was asked for, %d came", len(res.Windows))
	}
	got := changes(res.Windows[0], sub)
	want := map[string]string{"edit": "modified after", "new\nname": "added n"}
	if !h.NoShell {
		want["gone"] = "deleted"
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("change of %q is %q, want %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the window holds %v, want %v", got, want)
	}
	if st := b.track(snapshot.Request{Op: snapshot.OpStatus}); st.Dirty {
		t.Error("an unchanged tree is reported as changed")
	}
	for name := range b.mustRead(b.d.Workdir()) {
		if !strings.HasPrefix(name, sub) && strings.Contains(name, "ledger") {
			t.Errorf("the ledger put %q into the workdir", name)
		}
	}
}

func powerReset(t testing.TB, h Harness) {
	if !h.Provider.Info().Reset {
		t.Skip("the provider never changes the workdir")
	}
	b := start(t, h)
	_ = power[sandbox.Tracker](b)
	b.put(b.dir, file("edit", "before"), file("gone", "1"), executable("x", "1"), link("l", "edit"))
	before := b.mustRead(b.dir)
	base := b.track(snapshot.Request{Op: snapshot.OpMark, Label: "baseline"})
	b.put(b.dir, file("edit", "after"), file("new/er", "n"), file("l", "no link now"))
	if !h.NoShell {
		b.sh(`rm "$1/gone"; chmod 600 "$1/x"`, b.dir)
	}
	res := b.track(snapshot.Request{Op: snapshot.OpReset, Commit: base.Commit.ID})
	if d := before.diff(b.mustRead(b.dir)); d != "" {
		t.Errorf("the tree after a reset differs:%s", d)
	}
	if res.Dirty || res.Tree != base.Commit.Tree {
		t.Errorf("a reset to %v proves %v (dirty %v)", base.Commit.Tree, res.Tree, res.Dirty)
	}
}

func powerEnd(t testing.TB, h Harness) {
	needShell(t, h)
	b := start(t, h)
	p := power[sandbox.ProcessEnder](b)
	b.mkdir()
	m := mark()
	o, err := b.exec(b.ctx, sandbox.Cmd{
		Argv: script(`(trap '' TERM; while :; do echo x >>"$1/hb"; sleep 0.05; done) & (setsid sleep 300 &) ; echo up`, b.dir),
		Env:  map[string]string{"ST_MARK": m},
	})
	if err != nil || o.Code != 0 {
		t.Fatalf("start services: %+v, %v", o.Exit, err)
	}
	b.await(`[ -s "$1/hb" ]`, b.dir)
	ps, err := p.Processes(b.ctx)
	if err != nil || len(ps) == 0 {
		t.Errorf("Processes lists %v, %v while services run", ps, err)
	}
	ended, err := p.EndProcesses(b.ctx)
	if err != nil || len(ended) == 0 {
		t.Errorf("EndProcesses ended %v, %v", ended, err)
	}
	if n := b.marked(m); n != 0 {
		t.Errorf("%d processes live on", n)
	}
	if ps, err := p.Processes(b.ctx); err != nil || len(ps) != 0 {
		t.Errorf("Processes lists %v, %v after all were ended", ps, err)
	}
	if o := b.argv("true"); o.Code != 0 {
		t.Errorf("the sandbox does not work afterwards: %+v", o.Exit)
	}
}

func powerDigest(t testing.TB, h Harness) {
	b := start(t, h)
	d := power[sandbox.Digester](b)
	body := string(noise(5000))
	b.put(b.dir, file("f", body), file("empty", ""))
	got, err := d.Digest(b.ctx, []string{b.dir + "/f", b.dir + "/missing", b.dir + "/empty"})
	if want := []string{digest([]byte(body)), "", digest(nil)}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Digest is %q, %v, want %q", got, err, want)
	}
}

func powerRemove(t testing.TB, h Harness) {
	b := start(t, h)
	r := power[sandbox.Remover](b)
	b.put(b.dir, file("gone/deep/f", "x"), file("stays", "y"))
	for range 2 { // the second time it is missing
		if err := r.Remove(b.ctx, b.dir+"/gone"); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	s := sandbox.New(b.d, sandbox.Options{Provider: h.Provider})
	for name, want := range map[string]bool{"/gone": false, "/gone/deep/f": false, "/stays": true} {
		if got, err := s.PathExists(b.ctx, b.dir+name); err != nil || got != want {
			t.Errorf("after Remove %s exists is %v, %v, want %v", name, got, err, want)
		}
	}
}

func powerLifetime(t testing.TB, h Harness) {
	b := start(t, h)
	l := power[sandbox.Lifetimer](b)
	want := time.Now().Add(10 * time.Minute)
	if expires, err := l.EnsureLifetime(b.ctx, 10*time.Minute); err != nil || expires.Before(want) {
		t.Errorf("ten minutes were asked for; the sandbox expires at %v (%v), now and ten minutes is %v", expires, err, want)
	}
	if err := b.d.Stop(b.ctx); err != nil {
		t.Fatal(err)
	}
	if expires, err := l.EnsureLifetime(b.ctx, time.Minute); err == nil {
		t.Errorf("a stopped sandbox lives until %v", expires)
	}
}

func powerReport(t testing.TB, h Harness) {
	b := start(t, h)
	if err := power[sandbox.Reporter](b).Health(b.ctx); err != nil {
		t.Errorf("Health of a running sandbox: %v", err)
	}
	if err := b.d.Stop(b.ctx); err != nil {
		t.Fatal(err)
	}
	if power[sandbox.Reporter](b).Health(b.ctx) == nil {
		t.Error("Health says that a stopped sandbox runs")
	}
}

func powerReconcile(t testing.TB, h Harness) {
	r, ok := h.Provider.(sandbox.Reconciler)
	if !ok {
		t.Skip("the provider does not claim this power")
	}
	b := start(t, h)
	if err := r.Reconcile(b.ctx, owner()); err != nil {
		t.Errorf("Reconcile of an owner that made nothing: %v", err)
	}
	if ids := leftovers(t, h.Instances, b.owner.Token); len(ids) != 1 {
		t.Fatalf("Reconcile of another owner left %q", ids)
	}
	if err := r.Reconcile(b.ctx, b.owner); err != nil {
		t.Errorf("Reconcile: %v", err)
	}
	if ids := leftovers(t, h.Instances, b.owner.Token); len(ids) != 0 {
		t.Errorf("Reconcile left %q", ids)
	}
}
