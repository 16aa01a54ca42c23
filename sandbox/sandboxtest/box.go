package sandboxtest

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"

	"assay/sandbox"
)

// outcome is what one command did.
type outcome struct {
	sandbox.Exit
	out, err string
}

const plainPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// cmd completes a command: a directory, the environment of its user.
func (b *box) cmd(c sandbox.Cmd) sandbox.Cmd {
	if c.Dir == "" {
		c.Dir = b.d.Workdir()
	}
	env := map[string]string{"PATH": plainPath}
	if e, ok := sandbox.AsDriver[sandbox.Environer](b.d); ok {
		got, err := e.Environ(b.ctx, c.User)
		if err != nil {
			b.t.Fatalf("Environ(%q): %v", c.User, err)
		}
		for k, v := range got {
			env[k] = v
		}
	}
	for k, v := range c.Env {
		env[k] = v
	}
	c.Env = env
	return c
}

// exec runs a command and returns what it did, whatever that was.
func (b *box) exec(ctx context.Context, c sandbox.Cmd) (outcome, error) {
	var out, errb bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &errb
	}
	exit, err := b.d.Exec(ctx, b.cmd(c))
	return outcome{exit, out.String(), errb.String()}, err
}

// argv runs a command that must not be an error.
func (b *box) argv(argv ...string) outcome {
	b.t.Helper()
	o, err := b.exec(b.ctx, sandbox.Cmd{Argv: argv})
	if err != nil {
		b.t.Fatalf("Exec %q: %v", argv, err)
	}
	return o
}

// script is the argv of a shell script with arguments.
func script(text string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", text, "sh"}, args...)
}

// sh runs a script that must exit 0 and returns its standard output.
func (b *box) sh(text string, args ...string) string {
	b.t.Helper()
	o := b.argv(script(text, args...)...)
	if o.Code != 0 {
		b.t.Fatalf("script %q: exit %d, stderr %q", text, o.Code, o.err)
	}
	return o.out
}

// mkdir makes the box's own directory, through Put where there is no shell.
func (b *box) mkdir() string {
	b.t.Helper()
	if err := b.d.Put(b.ctx, b.dir, tarOf(b.t, dir("."))); err != nil {
		b.t.Fatalf("Put an empty directory: %v", err)
	}
	return b.dir
}

// await returns when the script exits 0; it is repeated inside the sandbox.
func (b *box) await(condition string, args ...string) {
	b.t.Helper()
	b.sh("until "+condition+"; do sleep 0.02; done", args...)
}

// marked counts the live processes with a mark in their environment.
func (b *box) marked(mark string) int {
	b.t.Helper()
	if b.h.Marked != nil {
		n, err := b.h.Marked(b.ctx, b.d, mark)
		if err != nil {
			b.t.Fatalf("count marked processes: %v", err)
		}
		return n
	}
	out := b.sh(`n=0
for f in /proc/[0-9]*/environ; do
  if tr '\0' '\n' 2>/dev/null <"$f" | grep -qx "ST_MARK=$1"; then n=$((n+1)); fi
done 2>/dev/null
echo $n`, mark)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		b.t.Fatalf("count marked processes: %v", err)
	}
	return n
}

// size is the size of a file as the sandbox sees it.
func (b *box) size(path string) int64 {
	b.t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(b.sh(`wc -c <"$1"`, path)), 10, 64)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// sink is a writer that notices a write after it was closed.
type sink struct {
	mu     sync.Mutex
	n      int64
	closed bool
	late   bool
	keep   bytes.Buffer
	max    int
	on     func(n int64)
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.n += int64(len(p))
	s.late = s.late || s.closed
	if room := s.max - s.keep.Len(); room > 0 {
		s.keep.Write(p[:min(room, len(p))])
	}
	n, on := s.n, s.on
	s.mu.Unlock()
	if on != nil {
		on(n)
	}
	return len(p), nil
}

func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (s *sink) wroteLate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.late
}
