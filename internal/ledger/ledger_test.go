package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"assay/fault"
	"assay/internal/guest/guesttest"
	"assay/internal/snapshot"
	"assay/record"
	"assay/sandbox"
	"assay/sandbox/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fakeBox(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	p := fake.New(fake.Script{})
	d, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(context.Background()) })
	return sandbox.New(d, sandbox.Options{Provider: p})
}

// plain hides the optional powers of a driver.
type plain struct{ sandbox.Driver }

// TestWindows plays one story over a driver that serves a ledger and over one
// that does not, where the helper is put into the folder's machine.
func TestWindows(t *testing.T) {
	t.Run("tracker", func(t *testing.T) { story(t, fakeBox(t), "/tmp/.s-1") })
	t.Run("helper", func(t *testing.T) {
		t.Setenv("ASSAY_GUEST", guesttest.Build(t))
		story(t, sandbox.New(plain{newFolder(t)}, sandbox.Options{}), t.TempDir())
	})
}

func story(t *testing.T, s *sandbox.Sandbox, scratch string) {
	ctx := t.Context()
	sh := func(script string) {
		t.Helper()
		if _, err := s.RunShellOrThrow(ctx, script); err != nil {
			t.Fatal(err)
		}
	}
	l := Open(s, scratch, snapshot.Rules{Ignore: []string{"events.jsonl"}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sh("echo base >kept; echo base >edited; echo base >gone; echo '*' >.gitignore")
	if stats, err := l.Mark(ctx); err != nil || stats.Files != 4 {
		t.Fatalf("baseline %+v, %v", stats, err)
	}
	if d, err := l.Export(ctx, 1, 0); err != nil || len(d.Windows) != 0 {
		t.Fatalf("no window gave %+v, %v", d, err)
	}
	sh("echo eval >by-eval-before")
	must(l.BeforeSend(ctx))
	sh("echo agent >edited; rm gone; echo agent >new; echo x >events.jsonl; mkdir -p node_modules; echo x >node_modules/a")
	must(l.AfterSend(ctx, 1, 1))
	sh("echo eval >by-eval-between; echo eval >kept")
	must(l.BeforeSend(ctx))
	must(l.AfterSend(ctx, 1, 2))
	must(l.BeforeSend(ctx))
	sh("rm new; echo again >gone")
	must(l.AfterSend(ctx, 2, 3))
	d, err := l.Export(ctx, 1, 3)
	must(err)
	var got []string
	for _, w := range d.Windows {
		for _, r := range w.Rows {
			got = append(got, fmt.Sprintf("%s %s %s", w.Label, r.Status, r.Path))
		}
		if len(w.Rows) == 0 {
			got = append(got, w.Label+" nothing")
		}
	}
	want := "turn1 modified edited,turn1 deleted gone,turn1 added new,turn2 nothing,session2/turn3 added gone,session2/turn3 deleted new"
	if strings.Join(got, ",") != want || d.Partial != "" {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ","), want)
	}
	if r := d.Windows[0].Rows[0]; r.Before == nil || *r.Before.Text != "base\n" || *r.After.Text != "agent\n" || r.After.Mode != "100644" || r.After.Size != 6 || len(r.After.Digest) != 64 {
		t.Errorf("row %+v", r)
	}
	if got := rows(Union(d)); got != "edited modified, gone modified" {
		t.Errorf("the union is %s", got)
	}
	for _, c := range []struct{ first, last, want int }{{2, 2, 1}, {2, 99, 2}, {0, 1, 1}, {5, 2, 0}, {9, 12, 0}, {1, -1, 0}} {
		if d, err := l.Export(ctx, c.first, c.last); err != nil || len(d.Windows) != c.want {
			t.Errorf("windows %d to %d: %+v, %v", c.first, c.last, d, err)
		}
	}
}

func rows(rs []record.Row) string {
	var out []string
	for _, r := range rs {
		out = append(out, r.Path+" "+r.Status)
	}
	return strings.Join(out, ", ")
}

func TestUnion(t *testing.T) {
	s := func(digest string) *record.Side { return &record.Side{Digest: digest, Mode: "100644"} }
	exec := &record.Side{Digest: "a", Mode: "100755"}
	row := func(before, after *record.Side) record.Row {
		return record.Row{Path: "p", Before: before, After: after}
	}
	for _, c := range []struct {
		name string
		rows []record.Row // one window each
		want string
	}{
		{"none", nil, ""},
		{"added", []record.Row{row(nil, s("a"))}, "p added"},
		{"added, then modified", []record.Row{row(nil, s("a")), row(s("a"), s("b"))}, "p added"},
		{"added, then deleted", []record.Row{row(nil, s("a")), row(s("a"), nil)}, ""},
		{"modified, then back", []record.Row{row(s("a"), s("b")), row(s("b"), s("a"))}, ""},
		{"modified twice", []record.Row{row(s("a"), s("b")), row(s("b"), s("c"))}, "p modified"},
		{"deleted, then the same again", []record.Row{row(s("a"), nil), row(nil, s("a"))}, ""},
		{"deleted, then another", []record.Row{row(s("a"), nil), row(nil, s("b"))}, "p modified"},
		{"modified, then deleted", []record.Row{row(s("a"), s("b")), row(s("b"), nil)}, "p deleted"},
		{"mode alone", []record.Row{row(s("a"), exec)}, "p modified"},
		{"the eval changed it between", []record.Row{row(s("a"), s("b")), row(s("x"), s("y"))}, "p modified"},
	} {
		d := &record.Diff{}
		for _, r := range c.rows {
			d.Windows = append(d.Windows, record.Window{Rows: []record.Row{r}})
		}
		if got := rows(Union(d)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\xff", `a\xff`)
	f.Add(`\\xff`, `\xff`)
	f.Add("\\\xff", "\\\\xff")
	f.Add("naïve", "\x00\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := Printable(a), Printable(b)
		if !utf8.ValidString(x) {
			t.Fatalf("%q is shown as %q", a, x)
		}
		if a != b && x == y {
			t.Fatalf("%q and %q are both shown as %q", a, b, x)
		}
	})
}

// tracker answers as it is told.
type tracker func(ctx context.Context, w io.Writer) error

func (f tracker) Track(ctx context.Context, _ []byte, w io.Writer) error { return f(ctx, w) }

func TestAnswersAreNotTrusted(t *testing.T) {
	lost := errors.New("the connection was reset")
	say := func(text string, err error) tracker {
		return func(_ context.Context, w io.Writer) error { _, _ = io.WriteString(w, text); return err }
	}
	for _, c := range []struct {
		name string
		tr   tracker
		code string
		is   error
	}{
		{"nothing", say("", nil), "ledger-protocol", nil},
		{"garbage", say("hello\n", nil), "ledger-protocol", nil},
		{"binary", say("\x00\xff\n", nil), "ledger-protocol", nil},
		{"breaks off", say(`{"ok":`, nil), "ledger-protocol", nil},
		{"the transport is lost", say("", lost), "ledger-failed", lost},
		{"lost in the middle", say(`{"ok":`, lost), "ledger-failed", lost},
		{"an error of its own", say(`{"error":{"code":"nested-repository","message":"move it"}}`+"\n", nil), "nested-repository", nil},
		{"endless", func(_ context.Context, w io.Writer) error {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		}, "ledger-protocol", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Open(fakeBox(t), "/tmp/.s", snapshot.Rules{})
			l.tracker = c.tr
			for _, err := range []error{func() error { _, err := l.Mark(t.Context()); return err }(), l.BeforeSend(t.Context()), l.AfterSend(t.Context(), 1, 1)} {
				if err == nil || fault.CodeOf(err) != c.code || c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("error %v with the code %q, want %q", err, fault.CodeOf(err), c.code)
				}
			}
			if d, err := l.Export(t.Context(), 1, 1); err != nil || len(d.Windows) != 0 {
				t.Errorf("a window that failed is exported: %+v, %v", d, err)
			}
		})
	}
}

func TestHelperSaysWhenItCannotServe(t *testing.T) {
	p := fake.New(fake.Script{Commands: []fake.Response{{Match: "^uname", Stdout: "Plan9 mips\n"}}})
	d, err := p.Create(t.Context(), sandbox.CreateRequest{Template: p.Template(), Notes: sandbox.Quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop(context.Background()) })
	l := Open(sandbox.New(plain{d}, sandbox.Options{}), "/tmp/.s", snapshot.Rules{})
	if _, err := l.Mark(t.Context()); fault.CodeOf(err) != CodeUnavailable || !strings.Contains(err.Error(), "Plan9") {
		t.Errorf("error %v", err)
	}
}
