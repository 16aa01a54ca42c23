package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"assay/internal/testreq"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	testreq.Main(m)
}

// bench is a working tree and a store on disk, served as a sandbox would.
type bench struct {
	testing.TB
	root, store string
}

func newBench(tb testing.TB) *bench {
	tb.Helper()
	dir := tb.TempDir()
	b := &bench{TB: tb, root: filepath.Join(dir, "work"), store: filepath.Join(dir, "store")}
	if err := os.Mkdir(b.root, 0o755); err != nil {
		tb.Fatal(err)
	}
	return b
}

func (b *bench) try(r Request) (Response, error) {
	b.Helper()
	r.Root, r.Store = b.root, b.store
	req, err := r.Encode()
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	if err := Serve(context.Background(), req, &out); err != nil {
		b.Fatalf("serve: %v", err)
	}
	return DecodeResponse(&out)
}

func (b *bench) do(r Request) Response {
	b.Helper()
	res, err := b.try(r)
	if err != nil {
		b.Fatalf("%s: %v", r.Op, err)
	}
	return res
}

func (b *bench) mark(ignore ...string) Commit {
	b.Helper()
	return b.do(Request{Op: OpMark, Label: "baseline", Rules: Rules{Ignore: ignore}}).Commit
}

// turn commits as the agent and returns the changes, with content.
func (b *bench) turn() []Change {
	b.Helper()
	c := b.do(Request{Op: OpCommit, Author: Agent, Label: "turn", AllowEmpty: true}).Commit
	res := b.do(Request{Op: OpDiff, Content: true, Windows: []Window{{From: c.Parent, To: c.ID}}})
	return res.Windows[0].Changes
}

func (b *bench) path(p string) string { return b.root + "/" + p }

func (b *bench) write(p, content string) {
	b.Helper()
	b.must(os.MkdirAll(filepath.Dir(b.path(p)), 0o755))
	b.must(os.WriteFile(b.path(p), []byte(content), 0o644))
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// summary lists changes as "status path" for comparison.
func summary(changes []Change) []string {
	var out []string
	for _, c := range changes {
		out = append(out, string(c.Status)+" "+string(c.Path))
	}
	return out
}

func wantSummary(tb testing.TB, changes []Change, want ...string) {
	tb.Helper()
	if got := summary(changes); !slices.Equal(got, want) {
		tb.Errorf("changes\n got %q\nwant %q", got, want)
	}
}

// manifest describes everything in a tree but the root's .git: type, mode,
// owner, content.
func manifest(tb testing.TB, root string) []string {
	tb.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if rel == ".git" {
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		l := fmt.Sprintf("%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch uint32(st.Mode) & TypeMask {
		case TypeFile:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			l += fmt.Sprintf(" %x", sha256.Sum256(data))
		case TypeLink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			l = fmt.Sprintf("%q link %q", rel, target)
		}
		out = append(out, l)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func diffLines(a, b []string) string {
	var out strings.Builder
	for _, l := range a {
		if !slices.Contains(b, l) {
			fmt.Fprintf(&out, "- %s\n", l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			fmt.Fprintf(&out, "+ %s\n", l)
		}
	}
	return out.String()
}

// git runs the real git with a clean configuration.
func git(tb testing.TB, dir string, args ...string) string {
	tb.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent",
		"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@localhost", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@localhost")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		tb.Fatalf("git %q: %v\n%s", args, err, errs.String())
	}
	return out.String()
}
